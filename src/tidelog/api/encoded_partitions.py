"""Encode the partitions of topics for DescribeTopicPartitions responses. The encoded partitions are stored, so that
only topics that have changed are described and encoded again.

All partitions of a topic are encoded together. A response may contain any range of the partitions. So the position
in the bytes where each encoded partition ends is stored, too. The docstring of the module `encoded_topics` says when
stored topics are valid.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from tidelog.model.steps import Steps
from tidelog.wire.message import StepwiseEncoder
from tidelog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tidelog.wire.primitives import uvarint

VERSION: Final = 0
TOPICS_FROM: Final = 4
"""Position of the number of topics in a response: `throttle_time_ms` precedes it."""
AFTER_TOPICS: Final = 2
"""Bytes after the last topic of a response without a cursor: the null cursor, and the number of tagged fields."""
AFTER_PARTITIONS: Final = 5
"""Bytes after the last partition of a topic: `topic_authorized_operations`, and the number of tagged fields."""
FIXED_PARTITION_BYTES: Final = 15
"""Bytes of a partition besides its five arrays: an int16, three int32, and the number of tagged fields."""
PARTITIONS_PER_STEP: Final = 500

_encoder: StepwiseEncoder = DescribeTopicPartitionsResponse.stepwise_encoder(VERSION)


class EncodedPartitions:
    """All partitions of one topic, encoded one after another."""

    __slots__ = ("_data", "_ends")

    def __init__(self, data: bytes, ends: "array[int]") -> None:
        """`ends` begins with 0, and continues with the end of each partition in `data`."""
        self._data = data
        self._ends = ends

    def __len__(self) -> int:
        """Return the memory that this object uses, in bytes."""
        return len(self._data) + len(self._ends) * self._ends.itemsize

    def part(self, indexes: range) -> bytes:
        """Return the encoded partitions with these indexes. The step of `indexes` must be 1."""
        return self._data[self._ends[indexes.start] : self._ends[indexes.stop]] if indexes else b""


def encode_partitions(partitions: list[DescribeTopicPartitionsResponsePartition]) -> Steps[EncodedPartitions]:
    ends, end = array("I", [0]), 0
    for number, partition in enumerate(partitions):
        end += _size(partition)
        ends.append(end)
        if number % PARTITIONS_PER_STEP == 0:
            yield
    topic = DescribeTopicPartitionsResponseTopic(partitions=partitions)
    pieces = yield from _encoder(DescribeTopicPartitionsResponse(topics=[topic]))
    data = b"".join(pieces)  # type: ignore[arg-type]  # a response without records has no file regions
    after = AFTER_PARTITIONS + AFTER_TOPICS
    data = data[len(data) - after - end : len(data) - after]
    return EncodedPartitions(data, ends)


def encode_topic(
    topic: DescribeTopicPartitionsResponseTopic, partitions: EncodedPartitions | None = None, indexes: range = range(0)
) -> bytes:
    """Return `topic`, encoded with the range `indexes` of `partitions`. The list `topic.partitions` must be empty."""
    # The number of topics, which is 1, takes one byte. So does the number of partitions, which is 0.
    data = DescribeTopicPartitionsResponse(topics=[topic]).encode(VERSION)[TOPICS_FROM + 1 : -AFTER_TOPICS]
    if partitions is None or not indexes:
        return data
    head = data[: -AFTER_PARTITIONS - 1]
    return b"".join((head, uvarint(len(indexes) + 1), partitions.part(indexes), data[-AFTER_PARTITIONS:]))


def join_topics(response: DescribeTopicPartitionsResponse, topics: list[bytes]) -> bytes:
    """Return the encoded `response` with these encoded topics. The list `response.topics` must be empty."""
    data = response.encode(VERSION)
    return b"".join((data[:TOPICS_FROM], uvarint(len(topics) + 1), *topics, data[TOPICS_FROM + 1 :]))


def _size(partition: DescribeTopicPartitionsResponsePartition) -> int:
    """Return the number of bytes of an encoded partition."""
    size = FIXED_PARTITION_BYTES
    arrays: tuple[Sequence[int] | None, ...] = (
        partition.replica_nodes,
        partition.isr_nodes,
        partition.eligible_leader_replicas,
        partition.last_known_elr,
        partition.offline_replicas,
    )
    for elements in arrays:
        count = 0 if elements is None else len(elements)
        size += 4 * count + (1 if count < 127 else len(uvarint(count + 1)))
    return size
