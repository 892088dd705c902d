"""Things that one request names more than once, and how much of its answer they may fill."""

from collections.abc import Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from tidelog.model.steps import Steps

A = TypeVar("A")
K = TypeVar("K", bound=Hashable)

REPEATED_BYTES_MAX = 16 << 20
"""Of one answer. A large group takes megabytes in an answer, and a few bytes in a request: a request that names it a
thousand times would fill the memory. Kafka has no such limit; clients name each thing once.
"""
REFUSED = f"the request names things again whose answers take more than {REPEATED_BYTES_MAX >> 20} MiB"


class NamedPartitions(Generic[K, A]):
    """What one request asks of each partition that it names.

    All entries of a topic are taken together. A partition that is named again keeps its place; the last entry counts.
    """

    __slots__ = ("by_topic", "repeated")

    def __init__(self) -> None:
        self.by_topic: dict[K, dict[int, A]] = {}
        """Topics and partitions in the order in which the request first names them."""
        self.repeated: dict[tuple[K, int], None] = {}
        """Partitions that were named more than once."""

    def add(self, topic: K, partition: int, asked: A) -> A | None:
        """Returns what the request asked of the same partition before, if it did."""
        partitions = self.by_topic.get(topic)
        if partitions is None:
            partitions = self.by_topic[topic] = {}
        earlier = partitions.get(partition)
        partitions[partition] = asked
        if earlier is not None:
            self.repeated[topic, partition] = None
        return earlier


class Repeats(Generic[K]):
    """Bounds what one answer says again: each thing may be told once, and again while there is room."""

    __slots__ = ("_named", "_room")

    def __init__(self) -> None:
        self._named: dict[K, None] = {}
        self._room = REPEATED_BYTES_MAX

    def allow(self, name: K, size: int) -> bool:
        """Whether the answer may tell of `name`, which takes some `size` bytes in it."""
        if name not in self._named:
            self._named[name] = None
            return True
        if size > self._room:
            return False
        self._room -= size
        return True


class TopicEntry(Protocol):
    """A topic in an answer, with its partitions."""

    partitions: list[Any]


T = TypeVar("T", bound=TopicEntry)


def joined_by_topic(refused: dict[K, T], known: Iterable[tuple[K, T]]) -> Steps[list[T]]:
    """The topics of an answer, as Kafka groups them: if all partitions exist, an entry for each entry of the request;
    if some do not, one entry for each topic, with the partitions that do not exist first.
    """
    if not refused:
        return [topic for _, topic in known]
    joined = dict(refused)
    for key, topic in known:
        first = joined.setdefault(key, topic)
        if first is not topic:
            first.partitions += topic.partitions
        yield
    return list(joined.values())
