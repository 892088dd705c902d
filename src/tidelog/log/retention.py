"""Which whole segments the topic's settings no longer keep, and how they leave: off the loop, in steps.

    look      (a thread)  from when segments age that may be too old, as far as that is not known
    take      (the loop)  segments leave the log; the log start offset moves
              (a thread)  the caller persists the log start offset
    removal   (a thread)  files are renamed to .deleted and stay readable; they go after file.delete.delay.ms

The start offset is on the disk before the first file goes: a first segment above it is a file that somebody else took.

A segment ages from its latest record, or from its last change where no record has a timestamp. The headers of its
batches say which time that is. It is taken as long as it keeps the segment and agrees with the time of the last
change; otherwise the records are looked at before anything is deleted.
"""

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.record_times import AHEAD_MS, FoundTimes, SegmentPart, find_times
from tidelog.log.segment import NO_TIMESTAMP, UNKNOWN, SegmentAge

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.segment import Segment
    from tidelog.log.segment_list import SegmentList
    from tidelog.runtime.interfaces import Disk

BESIDE_PART = 64
"""Batches may be written this part of the retention time after their records' times: the last change counts then."""
HERE_BYTES_MAX = 256 << 10
"""More of a segment is looked at in a process of its own."""


class Standing(Enum):
    """Of a segment, by time."""

    STAYS = 1
    DUE = 2
    UNKNOWN = 3


class _Doubtful(NamedTuple):
    """A segment whose headers state a time that its last change does not bear out."""

    segment: "Segment"
    size: int
    modified_ms: int
    known_ms: int
    """Its records up to `part.position` are of this time or before."""
    part: SegmentPart


class TimesLook:
    """Learns from when segments age. `run` blocks, on any thread, and changes nothing; `take` on the loop uses it.

    After `run` records of a segment may have to be looked at (`wanted`). Then `found` is to be called, and `run` again.
    """

    __slots__ = ("_config", "_disk", "_doubtful", "_found", "_now_ms", "_segments", "_sizes", "_times")

    def __init__(self, disk: "Disk", segments: list["Segment"], config: "LogConfig", now_ms: int) -> None:
        self._disk = disk
        self._segments = segments
        self._sizes = [segment.size for segment in segments]
        self._config = config
        self._now_ms = now_ms
        self._times: dict[Segment, tuple[int, int]] = {}
        self._found: dict[Segment, SegmentAge] = {}
        self._doubtful: _Doubtful | None = None

    def run(self) -> None:
        """Raises CorruptLog, OSError."""
        for segment, size in zip(self._segments, self._sizes, strict=True):
            if segment not in self._found:
                latest = self._latest(segment)
                if segment.age is None and _kept_by_header(latest, self._config, self._now_ms):
                    return  # it stays, and so do all after it
                self._look_at(segment, size, latest)
                if self._doubtful is not None:
                    return
            if self._now_ms - self._found[segment].from_ms <= self._config.retention_ms:
                return

    @property
    def wanted(self) -> SegmentPart | None:
        """The part of a segment whose records have to be looked at before `run` can go on; None when all is known."""
        return None if self._doubtful is None else self._doubtful.part

    def found(self, times: FoundTimes) -> None:
        """What the records of `wanted` say."""
        doubtful = self._doubtful
        assert doubtful is not None
        self._doubtful = None
        from_ms = max(doubtful.known_ms, times.latest, min(times.stated, doubtful.modified_ms))
        if times.damage or max(times.latest, times.stated) < 0:
            from_ms = max(from_ms, doubtful.modified_ms)
        self._found[doubtful.segment] = SegmentAge(doubtful.size, from_ms)

    @property
    def outdated(self) -> bool:
        """Whether compaction put other files in the place of those that are looked at: what was found says nothing."""
        return any(segment.deleted for segment in self._segments)

    def take(self) -> None:
        for segment, (latest, offset) in self._times.items():
            if segment.max_timestamp == UNKNOWN:
                segment.max_timestamp, segment.max_timestamp_offset = latest, offset
        for segment, age in self._found.items():
            segment.age = age

    def _latest(self, segment: "Segment") -> int:
        """By the headers of its batches."""
        if segment.max_timestamp != UNKNOWN:
            return segment.max_timestamp
        if segment not in self._times:
            self._times[segment] = segment.read_latest_timestamp()
        return self._times[segment][0]

    def _look_at(self, segment: "Segment", size: int, latest: int) -> None:
        modified_ms = self._disk.modified_ms(segment.path)
        beside_ms = self._config.retention_ms // BESIDE_PART
        if latest == NO_TIMESTAMP or modified_ms - beside_ms <= latest <= modified_ms + AHEAD_MS:
            self._found[segment] = SegmentAge(size, max(latest, modified_ms))
            return
        known = segment.age if segment.age is not None and segment.age.size <= size else SegmentAge(0, NO_TIMESTAMP)
        part = SegmentPart(segment.path, segment.base_offset, known.size, size)
        self._doubtful = _Doubtful(segment, size, modified_ms, known.from_ms, part)
        if part.end - part.position <= HERE_BYTES_MAX:
            file = self._disk.open(part.path)
            try:
                self.found(find_times(file, part))
            finally:
                file.close()


class Retired:
    """Segments that left the log together."""

    __slots__ = ("due_ms", "renamed", "segments")

    def __init__(self, segments: list["Segment"], due_ms: int) -> None:
        self.segments = segments
        self.due_ms = due_ms
        """When their files may go."""
        self.renamed = False


class Removal:
    """File work on retired segments. `run` blocks, on any thread; what fails is in the log's next removal again."""

    __slots__ = ("_due", "_fresh")

    def __init__(self, fresh: list[Retired], due: list[Retired]) -> None:
        self._fresh = fresh
        self._due = due

    @property
    def begins(self) -> bool:
        """Whether files leave the log with it: not before the log start offset has been persisted."""
        return bool(self._fresh)

    def run(self) -> None:
        """Raises OSError."""
        for retired in self._fresh:
            for segment in retired.segments:
                segment.rename_deleted()
            retired.renamed = True
        for retired in self._due:
            while retired.segments:
                retired.segments[-1].remove()
                retired.segments.pop()


class Retention:
    """The loop's part of retention, for the segments of one log."""

    __slots__ = ("_retired", "_segments")

    def __init__(self, segments: "SegmentList") -> None:
        self._segments = segments
        self._retired: list[Retired] = []

    def look(self, disk: "Disk", config: "LogConfig", now_ms: int) -> TimesLook | None:
        """What must be known before `count` can tell which segments are too old; None when all of it is."""
        unknown: list[Segment] = []
        for segment in self._segments.items:
            standing = _standing(segment, config, now_ms)
            if standing is Standing.STAYS:
                break
            if standing is Standing.UNKNOWN and (segment.size or segment is not self._segments.active):
                unknown.append(segment)
        return TimesLook(disk, unknown, config, now_ms) if unknown else None

    def count(self, config: "LogConfig", *, log_start_offset: int, log_end_offset: int, limit: int, now_ms: int) -> int:
        """How many of the oldest segments go: too old, too much in all, or wholly below the log start offset.

        `limit` is the high watermark: nothing of a segment that reaches it goes. An empty active segment stays, and one
        whose age is not known yet. May be all of them: then the caller rolls first.
        """
        items = self._segments.items
        if self._segments.swapping:
            return 0
        excess = -1
        if config.deletes and config.retention_bytes >= 0:
            excess = self._segments.size_bytes - config.retention_bytes
        count = 0
        for place, segment in enumerate(items):
            end_offset = items[place + 1].base_offset if place + 1 < len(items) else log_end_offset
            if end_offset > limit or (place + 1 == len(items) and not segment.size):
                break
            excess -= segment.size
            below_start = end_offset <= log_start_offset and place + 1 < len(items)
            if not (below_start or excess >= 0 or _standing(segment, config, now_ms) is Standing.DUE):
                break
            count += 1
        return count

    def take(self, count: int, due_ms: int) -> list["Segment"]:
        """Take the oldest out of the log; their files may go at `due_ms`."""
        gone = self._segments.take_first(count)
        for segment in gone:
            segment.retire()
        self._retired.append(Retired(gone, due_ms))
        return gone

    def keep(self, renamed: list["Segment"], due_ms: int) -> None:
        """Segments that compaction has replaced; their files, which are renamed already, may go at `due_ms`."""
        retired = Retired(renamed, due_ms)
        retired.renamed = True
        self._retired.append(retired)

    def removal(self, now_ms: int) -> Removal | None:
        """Run one at a time; see `Removal.begins`."""
        self._retired = [retired for retired in self._retired if retired.segments]
        fresh = [retired for retired in self._retired if not retired.renamed]
        due = [retired for retired in self._retired if retired.due_ms <= now_ms]
        return Removal(fresh, due) if fresh or due else None

    def retired(self) -> list["Segment"]:
        """Segments whose files are there still."""
        return [segment for retired in self._retired for segment in retired.segments]


def _by_time(config: "LogConfig") -> bool:
    return config.deletes and config.retention_ms >= 0


def _standing(segment: "Segment", config: "LogConfig", now_ms: int) -> Standing:
    """What is known without a look at the disk."""
    if not _by_time(config):
        return Standing.STAYS
    age = segment.age
    if age is not None and now_ms - age.from_ms <= config.retention_ms:
        return Standing.STAYS  # also where it has grown since
    if age is not None and age.size == segment.size:
        return Standing.DUE
    if age is None and _kept_by_header(segment.max_timestamp, config, now_ms):
        return Standing.STAYS
    return Standing.UNKNOWN


def _kept_by_header(latest: int, config: "LogConfig", now_ms: int) -> bool:
    """Whether a segment stays if its headers are right. A time in the future would keep it for ever: no answer."""
    return now_ms - config.retention_ms <= latest <= now_ms + AHEAD_MS and latest >= 0
