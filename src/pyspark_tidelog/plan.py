"""Decide at which offsets a micro-batch ends, and split ranges of offsets into Spark partitions. No I/O."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark_tidelog.offsets import Offsets
from tidelog.model.ids import TopicPartition


class OffsetRange(NamedTuple):
    topic: str
    partition: int
    start: int
    end: int
    """Exclusive end."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def limited_ends(limit: int, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Return an end for each partition, such that about `limit` offsets are read in total.

    Each partition's share of the limit is proportional to its number of unread offsets, but at least one offset, so
    that a small partition is always read. Therefore the result may exceed the limit, at most by the number of
    partitions with unread offsets. If a partition's `end` is before its `begin`, this end is returned unchanged.
    """
    sizes = {tp: max(0, end[tp] - begin[tp]) for tp in end}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    return {tp: begin[tp] + max(1, size * limit // total) if size else end[tp] for tp, size in sizes.items()}


def split(ranges: Iterable[OffsetRange], min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Split the non-empty ranges into at least `min_partitions` pieces of at most `max_records` offsets each.

    For both numbers, 0 means no limit. The sizes of pieces of one range differ by at most one offset. There are fewer
    than `min_partitions` pieces only if the ranges have fewer than `min_partitions` offsets.
    """
    whole = [r for r in ranges if r.size > 0]
    pieces = [max(1, -(-r.size // max_records) if max_records else 1) for r in whole]
    total = sum(r.size for r in whole)
    if sum(pieces) < min_partitions:
        wanted = [r.size * min_partitions / total for r in whole]
        pieces = [min(r.size, max(count, round(share))) for r, count, share in zip(whole, pieces, wanted, strict=True)]
        while sum(pieces) < min(min_partitions, total):
            # Because of rounding, there are too few pieces. Add one to the range with the largest pieces.
            largest = max(range(len(whole)), key=lambda i: whole[i].size / pieces[i])
            pieces[largest] += 1
    return [piece for r, count in zip(whole, pieces, strict=True) for piece in _cut(r, count)]


def grouped(ranges: Sequence[OffsetRange], max_partitions: int) -> list[tuple[OffsetRange, ...]]:
    """Distribute the ranges over at most `max_partitions` Spark partitions; 0 means a Spark partition for each range.

    The ranges are taken in order of size, the largest first. Each goes to the Spark partition that has the fewest
    offsets so far, so that all have about the same number. Ranges of one topic partition that are in the same Spark
    partition are in the order of their offsets.
    """
    if not max_partitions or len(ranges) <= max_partitions:
        return [(each,) for each in ranges]
    groups: list[list[OffsetRange]] = [[] for _ in range(max_partitions)]
    sizes = [(0, number) for number in range(max_partitions)]  # a heap of (number of offsets, index of the group)
    for each in sorted(ranges, key=lambda r: r.size, reverse=True):
        size, number = sizes[0]
        groups[number].append(each)
        heapq.heapreplace(sizes, (size + each.size, number))
    return [tuple(sorted(group)) for group in groups]


def _cut(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    for i in range(count):
        start = whole.start + whole.size * i // count
        yield whole._replace(start=start, end=whole.start + whole.size * (i + 1) // count)
