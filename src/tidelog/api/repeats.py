"""Groups, topics and partitions that one request names more than once, and a limit for the bytes of repeated entries in
its response.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from tidelog.model.steps import Steps

E = TypeVar("E")
K = TypeVar("K", bound=Hashable)

REPEATED_BYTES_MAX = 16 << 20
"""Upper bound on the bytes of repeated entries in one response. The description of a large group takes megabytes in a
response, but its name takes only a few bytes in a request. So without this bound, a request that names one group a
thousand times would exhaust the memory. Kafka has no such limit. Common clients never repeat a name."""
REPEATS_REFUSED = f"the repeated entries of the request take more than {REPEATED_BYTES_MAX >> 20} MiB in the response"


class NamedPartitions(Generic[K, E]):
    """The entries of one request, by topic and partition.

    Entries of the same topic are merged. If a partition is named more than once, it has the position of its first entry
    and the value of its last entry.
    """

    __slots__ = ("by_topic", "repeated")

    def __init__(self) -> None:
        self.by_topic: dict[K, dict[int, E]] = {}
        """Topics and partitions in the order in which the request first names them."""
        self.repeated: dict[tuple[K, int], None] = {}
        """Partitions that were named more than once."""

    def add(self, topic: K, partition: int, entry: E) -> E | None:
        """Add an entry. Return the request's earlier entry for the same partition, or None."""
        partitions = self.by_topic.get(topic)
        if partitions is None:
            partitions = self.by_topic[topic] = {}
        earlier = partitions.get(partition)
        partitions[partition] = entry
        if earlier is not None:
            self.repeated[topic, partition] = None
        return earlier


class Repeats(Generic[K]):
    """Bounds the bytes of repeated entries in one response. The first entry of each key is always allowed."""

    __slots__ = ("_answered", "_remaining_bytes")

    def __init__(self) -> None:
        self._answered: dict[K, None] = {}
        self._remaining_bytes = REPEATED_BYTES_MAX

    def allow(self, key: K, size: int) -> bool:
        """Return whether the response may contain an entry for `key`, of about `size` bytes."""
        if key not in self._answered:
            self._answered[key] = None
            return True
        if size > self._remaining_bytes:
            return False
        self._remaining_bytes -= size
        return True


class TopicEntry(Protocol):
    """A topic of a response, with its partitions."""

    partitions: list[Any]


T = TypeVar("T", bound=TopicEntry)


def join_by_topic(refused: dict[K, T], accepted: Iterable[tuple[K, T]]) -> Steps[list[T]]:
    """Return the topics of a response, grouped as Kafka groups them.

    If `refused` is empty, there is one topic for each topic entry of the request. Otherwise the entries of the same
    topic are joined. Topics with refused partitions come first. Within each topic, the refused partitions come
    first.
    """
    if not refused:
        return [topic for _, topic in accepted]
    topics = dict(refused)
    for key, topic in accepted:
        first = topics.setdefault(key, topic)
        if first is not topic:
            first.partitions += topic.partitions
        yield
    return list(topics.values())
