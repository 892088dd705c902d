"""Store encoded topics for Metadata responses, so that only topics that have changed are described and encoded
again. `encoded_partitions` uses EncodedTopics for the partitions of DescribeTopicPartitions responses.

A `TopicImage` never changes: a changed topic has a new object. The description of a topic also depends on the
brokers that are online, and on the logs that are offline on this broker. Topics with an offline log are not stored.
"""

from collections.abc import Sized
from functools import cache
from typing import Final, Generic, TypeVar

from tidelog.metadata.image import MetadataImage, TopicImage
from tidelog.model.steps import Steps
from tidelog.wire.message import StepwiseEncoder
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from tidelog.wire.primitives import uvarint

S = TypeVar("S", bound=Sized)
"""The form in which a topic is stored. Its length is the memory that it uses, in bytes."""
BYTES_MAX: Final = 16 << 20
"""Upper bound on all stored topics, in bytes. It is enough for about 300,000 partitions in one version of the API."""
ENTRY_BYTES: Final = 200
"""Estimate of the memory of an entry besides its encoded topic, in bytes."""
FLEXIBLE_FROM: Final = 9
"""The first version of Metadata in which the number of topics is a varint."""


class EncodedTopics(Generic[S]):
    """The stored topics, by API version, authorized operations and name."""

    __slots__ = ("_bytes", "_bytes_max", "_online", "_topics")

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._online: frozenset[int] = frozenset()
        self._topics: dict[tuple[int, int], dict[str, tuple[TopicImage, S]]] = {}

    def of(self, image: MetadataImage, version: int, operations: int) -> "TopicsOfVersion[S]":
        """Return the stored topics for this version of the API and these authorized operations. Remove all entries
        first if the online brokers have changed since the previous call, or if most of the stored topics were deleted.
        """
        online = frozenset(broker_id for broker_id in image.brokers if image.is_online(broker_id))
        if online != self._online:
            self.clear()
            self._online = online
        topics = self._topics.setdefault((version, operations), {})
        if len(topics) > 2 * len(image.topics) + 16:  # most of the stored topics were deleted
            self.clear()
            topics = self._topics.setdefault((version, operations), {})
        return TopicsOfVersion(self, topics, online)

    def clear(self) -> None:
        self._topics = {}
        self._bytes = 0

    def add_bytes(self, count: int) -> bool:
        """Count the bytes of a new entry. If there is no space for it, remove all entries and return False."""
        self._bytes += count
        if self._bytes <= self._bytes_max:
            return True
        self.clear()
        return False

    def is_valid(self, topics: dict[str, tuple[TopicImage, S]], online: frozenset[int]) -> bool:
        """Return whether a `TopicsOfVersion` may still add to `topics`. It may if no call of `clear` has dropped this
        dictionary, and if `online` still contains exactly the online brokers.
        """
        return online == self._online and any(known is topics for known in self._topics.values())


class TopicsOfVersion(Generic[S]):
    """The stored topics of one API version and one set of authorized operations, during one request."""

    __slots__ = ("_online", "_owner", "_topics")

    def __init__(
        self, owner: EncodedTopics[S], topics: dict[str, tuple[TopicImage, S]], online: frozenset[int]
    ) -> None:
        self._owner = owner
        self._topics = topics
        self._online = online

    def find(self, topic: TopicImage) -> S | None:
        entry = self._topics.get(topic.name)
        return entry[1] if entry is not None and entry[0] is topic else None

    def store(self, topic: TopicImage, encoded: S) -> None:
        """Store a topic, unless all entries were removed after this object was created, for example because the online
        brokers have changed.
        """
        if not self._owner.is_valid(self._topics, self._online):
            return
        replaced = self._topics.get(topic.name)
        more_bytes = len(encoded) - (-ENTRY_BYTES if replaced is None else len(replaced[1]))
        if self._owner.add_bytes(more_bytes):
            self._topics[topic.name] = topic, encoded


def encode_topics(topics: list[MetadataResponseTopic], version: int) -> Steps[bytes]:
    """Encode `topics` as elements of the array `topics` of a response, without the length of this array."""
    pieces = yield from _stepwise_encoder(version)(MetadataResponse(topics=topics))
    data = b"".join(pieces)  # type: ignore[arg-type]  # a response without records has no file regions
    start, end_bytes = _place_of_topics(version)
    # `start` is correct for one topic. The varint of a larger number of topics may take more bytes.
    start += len(_encoded_count(len(topics), version)) - len(_encoded_count(1, version))
    return data[start : len(data) - end_bytes]


def join_topics(response: MetadataResponse, count: int, topics: list[bytes], version: int) -> bytes:
    """Return the encoded `response` with `count` encoded topics. `response` itself has no topics, and each element of
    `topics` contains one or several topics.
    """
    data = response.encode(version)
    _, end_bytes = _place_of_topics(version)
    end = len(data) - end_bytes
    start = end - len(_encoded_count(0, version))
    return b"".join((data[:start], _encoded_count(count, version), *topics, data[end:]))


def _encoded_count(count: int, version: int) -> bytes:
    return uvarint(count + 1) if version >= FLEXIBLE_FROM else count.to_bytes(4, "big")


@cache
def _stepwise_encoder(version: int) -> StepwiseEncoder:
    return MetadataResponse.stepwise_encoder(version)


@cache
def _place_of_topics(version: int) -> tuple[int, int]:
    """Return the position of the first topic in a response without brokers, and the number of bytes after the last
    topic.
    """
    without, with_one = (MetadataResponse(topics=topics).encode(version) for topics in ([], [MetadataResponseTopic()]))
    # The first difference is in the last byte of the number of topics.
    start = next(position for position, (a, b) in enumerate(zip(without, with_one, strict=False)) if a != b) + 1
    return start, len(without) - start
