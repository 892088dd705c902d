"""Translate offsets of a source partition to offsets of its mirrored partition. Pure: no I/O.

A mirrored record usually has another offset than its source, because control records, aborted records and gaps after
compaction occupy offsets in one cluster only. Therefore the mirror stores segments. They are not segments of a log: a
segment describes records that have consecutive offsets in both clusters. Successive segments of a partition form an
entry, which is one record in the mirror's own topic.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SEGMENTS_PER_ENTRY_MAX = 5_000
"""Upper bound on the segments of one entry, so that an entry fits into one record of the mirror's topic."""
SEGMENTS_MAX = 100_000
"""Upper bound on the segments of one partition. If there are more, every second entry in the older half of the
partition's entries is removed."""


class Run(NamedTuple):
    """Records with consecutive offsets in one partition."""

    first: int
    length: int


class Segment(NamedTuple):
    """Records with consecutive offsets in the source partition, and also in the mirrored partition."""

    source: int
    """Offset of the first record in the source partition."""
    target: int
    """Offset of the first record in the mirrored partition."""
    length: int


class CountsDiffer(Exception):
    """The source runs and the target runs do not contain the same number of records."""

    def __init__(self, source_records: int, target_records: int) -> None:
        super().__init__(f"{source_records} source records, {target_records} target records")
        self.source_records = source_records
        self.target_records = target_records


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the runs in the order of their offsets. Adjacent runs are joined, and repeated runs are removed."""
    joined: list[Run] = []
    for run in sorted(set(runs)):
        if joined and joined[-1].first + joined[-1].length == run.first:
            joined[-1] = Run(joined[-1].first, joined[-1].length + run.length)
        else:
            joined.append(run)
    return joined


def segments_of(source: Sequence[Run], target: Sequence[Run]) -> list[Segment]:
    """Return the segments of records that were copied in order. Raises CountsDiffer."""
    source_records, target_records = (sum(run.length for run in runs) for runs in (source, target))
    if source_records != target_records:
        raise CountsDiffer(source_records, target_records)
    segments: list[Segment] = []
    target_runs = iter(target)
    target_run = Run(0, 0)
    for first, remaining in source:
        while remaining:
            if not target_run.length:
                target_run = next(target_runs)
            length = min(remaining, target_run.length)
            segments.append(Segment(first, target_run.first, length))
            first, remaining = first + length, remaining - length
            target_run = Run(target_run.first + length, target_run.length - length)
    return segments


def coarse_segments(source: Sequence[Run], target_begin: int, target_end: int) -> list[Segment]:
    """Return segments for records whose offsets cannot be translated one by one. The offset of each record is
    translated to `target_begin`, so that a reader reads some records again and misses none. The offset after the last
    record is translated to `target_end`.
    """
    after_last = source[-1].first + source[-1].length
    return [Segment(source[0].first, target_begin, 0), Segment(after_last, target_end, 0)]


class Entry(NamedTuple):
    """Successive segments of one partition: at least one segment, and at most SEGMENTS_PER_ENTRY_MAX."""

    segments: tuple[Segment, ...]
    target_end: int
    """Exclusive end of the entry in the mirrored partition. If the entry is the last one of a micro-batch, this is the
    end of the partition after the micro-batch. No record is between the last segment and this offset."""

    @property
    def source(self) -> int:
        return self.segments[0].source

    @property
    def source_end(self) -> int:
        """The offset after the last source record of the entry."""
        return self.segments[-1].source + self.segments[-1].length


def entries_of(segments: Sequence[Segment], target_end: int) -> Iterator[Entry]:
    for begin in range(0, len(segments), SEGMENTS_PER_ENTRY_MAX):
        part = tuple(segments[begin : begin + SEGMENTS_PER_ENTRY_MAX])
        is_last = begin + len(part) == len(segments)
        yield Entry(part, target_end if is_last else part[-1].target + part[-1].length)


class PartitionOffsets:
    """The stored entries of one mirrored partition."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = sorted(entries, key=lambda entry: entry.source)
        self._sources = [entry.source for entry in self._entries]
        self._count = sum(len(entry.segments) for entry in self._entries)

    @property
    def source_end(self) -> int | None:
        """The offset after the last mirrored source record; None if no record has been mirrored."""
        return self._entries[-1].source_end if self._entries else None

    @property
    def target_end(self) -> int | None:
        return self._entries[-1].target_end if self._entries else None

    def add(self, entry: Entry) -> None:
        """Add an entry. If there is an entry with the same first source offset, replace it."""
        at = bisect_right(self._sources, entry.source)
        if at and self._sources[at - 1] == entry.source:
            self._count -= len(self._entries[at - 1].segments)
            self._entries[at - 1] = entry
        else:
            self._entries.insert(at, entry)
            self._sources.insert(at, entry.source)
        self._count += len(entry.segments)

    def remove_surplus(self) -> list[Entry]:
        """If there are more than SEGMENTS_MAX segments, remove every second entry in the older half of the entries.
        Return the removed entries. The oldest entry is never removed.
        """
        if self._count <= SEGMENTS_MAX:
            return []
        half = max(2, len(self._entries) // 2)
        removed = self._entries[1:half:2]
        del self._entries[1:half:2]
        self._sources = [entry.source for entry in self._entries]
        self._count -= sum(len(entry.segments) for entry in removed)
        return removed

    def translate(self, offset: int) -> int | None:
        """Return the offset in the mirrored partition from which a reader continues if its next offset in the source
        partition is `offset`. Return None if no record has been mirrored.

        The result is exact, unless the entry for `offset` was removed or was made from `coarse_segments`. In these two
        cases, the result is the end of the last stored segment that begins at or before `offset`. So the reader reads
        some records again and misses none. The caller must make sure that all source records before `offset` have been
        mirrored.
        """
        if not self._entries:
            return None
        at = bisect_right(self._sources, offset) - 1
        if at < 0:
            return self._entries[0].segments[0].target
        entry = self._entries[at]
        if at + 1 == len(self._entries) and offset >= entry.source_end:
            return entry.target_end
        segment = entry.segments[bisect_right(entry.segments, offset, key=lambda each: each.source) - 1]
        return segment.target + min(offset - segment.source, segment.length)
