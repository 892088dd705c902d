"""Remove whole segments that the topic's settings no longer keep. This happens in steps, and slow work does not run
on the event loop.

    search    (a thread)  determine the unknown ages of segments that may be too old
    snapshot  (a thread)  if no durable producer snapshot includes the batches of these segments, a flush writes one
    take      (the loop)  segments leave the log; the log start offset moves
              (a thread)  the caller persists the log start offset
    removal   (a thread)  files are renamed to .deleted, durably, and stay readable; they are removed after
                          file.delete.delay.ms

Before a segment is taken from the log, a snapshot that includes its batches must be durable. Without it, a later
restart or truncation of the log could not restore the states of the producers. Most logs have such a snapshot, because
one is written after each roll. `RetentionLimits.of` and `Retention.count_removable` describe the exceptions.

The start offset is durable before the first file is removed. So if the first segment begins above the start offset, the
files before it were not removed by retention: they were lost. If the checkpoint of start offsets is missing, the first
file says where the log begins. So if a power cut restored an older segment but not the next one, the log would begin
before a gap. To prevent this, the files of a segment are renamed only when the renames of older segments are durable.

The age of a segment is measured from its largest record timestamp, or from the last change of its file if no record
has a timestamp. The largest timestamp is stated in the headers of the batches. The headers are trusted if this
timestamp is recent enough to keep the segment, or if it agrees with the time of the last change. Otherwise the records
are read before the segment is deleted for its age.
"""

import logging
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.record_times import AHEAD_MS, RecordTimes, SegmentPart, find_times
from tidelog.log.segment import NO_TIMESTAMP, UNKNOWN, SegmentAge

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.durability import Durability
    from tidelog.log.partition_log import PartitionLog
    from tidelog.log.segment import Segment
    from tidelog.log.segment_list import SegmentList
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.log")

TOLERANCE_DIVISOR = 64
"""Headers agree with the time of the file's last change if their largest timestamp is at most (retention time / this
number) before the last change, and at most AHEAD_MS after the last change. The age is then measured from the later one
of the largest timestamp and the last change."""
INLINE_PART_BYTES_MAX = 256 << 10
"""Maximum size, in bytes, of a part of a segment that `SegmentAgeSearch.run` reads itself. A larger part is read in a
separate process."""


class AgeStatus(Enum):
    """Whether the retention time of a segment is over, as far as this is known without reading files."""

    KEPT = 1
    EXPIRED = 2
    UNKNOWN = 3


class _DoubtfulSegment(NamedTuple):
    """A segment whose headers state a time that the last change of its file contradicts."""

    segment: "Segment"
    size: int
    modified_ms: int
    known_from_ms: int
    """Upper bound on the timestamps of the records before `part.position`."""
    part: SegmentPart


class SegmentAgeSearch:
    """Determines the ages of segments. `run` blocks, may run on any thread, and does not change the log.
    `store_result` runs on the loop.

    If `wanted_part` is set after `run`, the search needs the records of a segment. Then the caller reads these
    records, calls `add_record_times`, and calls `run` again.
    """

    __slots__ = ("_ages", "_config", "_disk", "_doubtful", "_header_times", "_now_ms", "_segments", "_sizes")

    def __init__(self, disk: "Disk", segments: list["Segment"], config: "LogConfig", now_ms: int) -> None:
        self._disk = disk
        self._segments = segments
        self._sizes = [segment.size for segment in segments]
        self._config = config
        self._now_ms = now_ms
        self._header_times: dict[Segment, tuple[int, int]] = {}
        self._ages: dict[Segment, SegmentAge] = {}
        self._doubtful: _DoubtfulSegment | None = None

    def run(self) -> None:
        """Determine ages, and stop at the first segment that is kept or whose records the caller must read. Raises
        CorruptLog, OSError.
        """
        for segment, size in zip(self._segments, self._sizes, strict=True):
            if segment not in self._ages:
                latest = self._latest_by_headers(segment)
                if segment.age is None and _is_kept_by_header(latest, self._config, self._now_ms):
                    return  # this segment and all later segments are kept
                self._determine_age(segment, size, latest)
                if self._doubtful is not None:
                    return
            if self._now_ms - self._ages[segment].from_ms <= self._config.retention_ms:
                return

    @property
    def wanted_part(self) -> SegmentPart | None:
        """The part of a segment whose records must be read before `run` can continue; None if no records are needed."""
        return None if self._doubtful is None else self._doubtful.part

    def add_record_times(self, times: RecordTimes) -> None:
        """Accept the timestamps of the records of `wanted_part`."""
        doubtful = self._doubtful
        assert doubtful is not None
        self._doubtful = None
        from_ms = max(doubtful.known_from_ms, times.latest)
        if times.damage or times.undecodable or times.latest < 0:
            from_ms = max(from_ms, doubtful.modified_ms)
        self._ages[doubtful.segment] = SegmentAge(doubtful.size, from_ms)

    @property
    def is_outdated(self) -> bool:
        """Whether, since the search began, a segment was replaced by compaction, removed, or cut. If so, the result
        must not be used.
        """
        return any(
            segment.deleted or segment.size < size for segment, size in zip(self._segments, self._sizes, strict=True)
        )

    def store_result(self) -> None:
        for segment, (latest, offset) in self._header_times.items():
            if segment.max_timestamp == UNKNOWN:
                segment.max_timestamp, segment.max_timestamp_offset = latest, offset
        for segment, age in self._ages.items():
            segment.age = age

    def _latest_by_headers(self, segment: "Segment") -> int:
        """Return the largest timestamp in the headers of the segment's batches."""
        if segment.max_timestamp != UNKNOWN:
            return segment.max_timestamp
        if segment not in self._header_times:
            self._header_times[segment] = segment.read_latest_timestamp()
        return self._header_times[segment][0]

    def _determine_age(self, segment: "Segment", size: int, latest: int) -> None:
        modified_ms = self._disk.modified_ms(segment.path)
        tolerance_ms = self._config.retention_ms // TOLERANCE_DIVISOR
        if latest == NO_TIMESTAMP or modified_ms - tolerance_ms <= latest <= modified_ms + AHEAD_MS:
            self._ages[segment] = SegmentAge(size, max(latest, modified_ms))
            return
        known_age = segment.age if segment.age is not None and segment.age.size <= size else SegmentAge(0, NO_TIMESTAMP)
        part = SegmentPart(segment.path, segment.base_offset, known_age.size, size)
        self._doubtful = _DoubtfulSegment(segment, size, modified_ms, known_age.from_ms, part)
        if part.end - part.position <= INLINE_PART_BYTES_MAX:
            file = self._disk.open(part.path)
            try:
                self.add_record_times(find_times(file, part))
            finally:
                file.close()


class RetiredSegments:
    """Segments that were removed from the log together."""

    __slots__ = ("due_ms", "renamed", "segments")

    def __init__(self, segments: list["Segment"], due_ms: int) -> None:
        self.segments = segments
        self.due_ms = due_ms
        """The time from which their files may be removed."""
        self.renamed = False


class Removal:
    """Renames and removes the files of retired segments. `run` blocks and may run on any thread. Work that fails is
    repeated by the log's next removal.
    """

    __slots__ = ("_directory", "_disk", "_to_remove", "_to_rename", "sync_failure")

    def __init__(
        self, disk: "Disk", directory: str, to_rename: list[RetiredSegments], to_remove: list[RetiredSegments]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._to_rename = to_rename
        self._to_remove = to_remove
        self.sync_failure: OSError | None = None
        """The error of a directory sync. After an error that is not temporary, it is unknown which file names are on
        the disk, and the log must go offline. (A repeated sync may succeed although the new names are not on it.)"""

    @property
    def renames_files(self) -> bool:
        """Whether `run` renames files of the log. If so, call `run` only after the log start offset is persisted."""
        return bool(self._to_rename)

    def run(self) -> None:
        """Rename the files of newly retired segments, and remove the files of segments whose delay is over. Raises
        OSError.
        """
        for retired in self._to_rename:
            for segment in retired.segments:
                segment.rename_deleted()
                self._sync()
            retired.renamed = True
        for retired in self._to_remove:
            while retired.segments:
                retired.segments[-1].remove()
                retired.segments.pop()

    def _sync(self) -> None:
        try:
            self._disk.sync_dir(self._directory)
        except OSError as error:
            self.sync_failure = error
            raise


class RetentionLimits(NamedTuple):
    """The state of a log that decides which segments retention removes."""

    config: "LogConfig"
    log_start_offset: int
    log_end_offset: int
    limit: int
    """Segments that end above this offset are kept. It is the lower one of the high watermark and the recovery point.
    """
    now_ms: int
    needs_snapshot: bool
    """Whether batches may be removed only if a durable producer snapshot includes them."""

    @classmethod
    def of(cls, log: "PartitionLog", limit: int, now_ms: int) -> "RetentionLimits":
        # Segments that are not durable are also kept: after a power cut, a removed file could reappear with a torn end.
        limit = min(limit, log.recovery_point)
        # If the log has no producers, a restart needs no snapshot. But in a log with holes, a restart cannot notice
        # that batches after an old snapshot are missing, and would restore the producers of this snapshot.
        needs_snapshot = bool(log.producers.entries) or log.reader.may_have_holes
        return cls(log.config, log.log_start_offset, log.log_end_offset, limit, now_ms, needs_snapshot)


class Retention:
    """The part of retention that runs on the loop, for the segments of one log."""

    __slots__ = ("_disk", "_durability", "_kept_on_full_disk", "_retired", "_segments")

    def __init__(self, disk: "Disk", segments: "SegmentList", durability: "Durability") -> None:
        self._disk = disk
        self._segments = segments
        self._durability = durability
        self._retired: list[RetiredSegments] = []
        self._kept_on_full_disk = False
        """Whether the last call of `count_removable` kept segments because the disk was too full for a snapshot of
        their producers."""

    def age_search(self, disk: "Disk", config: "LogConfig", now_ms: int) -> SegmentAgeSearch | None:
        """Return a search for the segment ages that `count_removable` needs; None if all these ages are known."""
        unknown_segments: list[Segment] = []
        for segment in self._segments.items:
            status = _age_status(segment, config, now_ms)
            if status is AgeStatus.KEPT:
                break
            if status is AgeStatus.UNKNOWN and (segment.size or segment is not self._segments.active):
                unknown_segments.append(segment)
        return SegmentAgeSearch(disk, unknown_segments, config, now_ms) if unknown_segments else None

    def needs_flush(self, limits: RetentionLimits) -> bool:
        """Return whether expired segments have to wait for a durable producer snapshot. If so, the next flush plan will
        make one durable.
        """
        count = self._count_expired(limits) if limits.needs_snapshot else 0
        return bool(count) and self._durability.cover(self._end_of(count, limits))

    def count_removable(self, limits: RetentionLimits) -> int:
        """Return how many of the oldest segments must be removed. If the log has no other segments, the caller must
        roll the log before it removes them.

        Segments whose producers are in no durable snapshot are kept, with one exception. If the disk is full, the
        snapshot cannot be written, but retention is needed to free the disk. The first call on a full disk keeps the
        segments, because the removal of other logs' segments may free enough space. If the disk is still full at the
        next call, the segments are removed without a snapshot. If the broker then crashes before a snapshot is written,
        the restart forgets the producers of this log, and a repeated batch may be appended again. But if the disk
        remained full, the broker would refuse all batches.
        """
        was_kept, self._kept_on_full_disk = self._kept_on_full_disk, False
        count = self._count_expired(limits)
        snapshot_offset = self._durability.snapshot_offset
        if not (count and limits.needs_snapshot) or self._end_of(count, limits) <= snapshot_offset:
            return count
        if self._durability.disk_full:
            if was_kept:
                logger.warning(
                    "segments are removed without a producer snapshot, because the disk is full path=%s",
                    self._durability.directory,
                )
                return count
            self._kept_on_full_disk = True
        return self._count_expired(limits._replace(limit=min(limits.limit, snapshot_offset)))

    def _end_of(self, count: int, limits: RetentionLimits) -> int:
        """Return the offset at which the oldest `count` segments end."""
        items = self._segments.items
        return items[count].base_offset if count < len(items) else limits.log_end_offset

    def _count_expired(self, limits: RetentionLimits) -> int:
        """Return how many of the oldest segments are too old, exceed the size limit, or are closed and end at or below
        the log start offset.

        A segment that ends above `limits.limit` is kept. An empty active segment is kept, and a segment of unknown age
        is not removed for its age.
        """
        config, now_ms = limits.config, limits.now_ms
        items = self._segments.items
        if self._segments.swapping:
            return 0
        excess = -1
        if config.deletes and config.retention_bytes >= 0:
            excess = self._segments.size_bytes - config.retention_bytes
        count = 0
        for index, segment in enumerate(items):
            end_offset = items[index + 1].base_offset if index + 1 < len(items) else limits.log_end_offset
            if end_offset > limits.limit or (index + 1 == len(items) and not segment.size):
                break
            # `excess` becomes negative if the segments after this one have less than retention.bytes in total.
            excess -= segment.size
            is_below_start = end_offset <= limits.log_start_offset and index + 1 < len(items)
            if not (is_below_start or excess >= 0 or _age_status(segment, config, now_ms) is AgeStatus.EXPIRED):
                break
            count += 1
        return count

    def take(self, count: int, due_ms: int) -> list["Segment"]:
        """Remove the oldest `count` segments from the log and return them. Their files may be removed at `due_ms` or
        later.
        """
        retired = self._segments.take_first(count)
        for segment in retired:
            segment.retire()
        self._retired.append(RetiredSegments(retired, due_ms))
        return retired

    def retire_replaced(self, renamed: list["Segment"], due_ms: int) -> None:
        """Retire segments that compaction has replaced. Their files have already been renamed, and may be removed at
        `due_ms` or later.
        """
        retired = RetiredSegments(renamed, due_ms)
        retired.renamed = True
        self._retired.append(retired)

    def removal(self, now_ms: int) -> Removal | None:
        """Return the work on files that is due; None if no work is due. Only one removal may run at a time.
        `Removal.renames_files` says whether the log start offset must be persisted first.
        """
        self._retired = [retired for retired in self._retired if retired.segments]
        to_rename = [retired for retired in self._retired if not retired.renamed]
        to_remove = [retired for retired in self._retired if retired.due_ms <= now_ms]
        if not (to_rename or to_remove):
            return None
        return Removal(self._disk, self._durability.directory, to_rename, to_remove)

    def take_unrenamed(self) -> list["Segment"]:
        """Return the retired segments whose files are not renamed to .deleted yet. The caller removes the files. A
        `Removal` that was returned before does not touch them any more, not even if it is run later.
        """
        unrenamed = [retired for retired in self._retired if not retired.renamed]
        segments = [segment for retired in unrenamed for segment in retired.segments]
        for retired in unrenamed:
            retired.segments = []
        return segments

    def retired(self) -> list["Segment"]:
        """Return the retired segments whose files still exist."""
        return [segment for retired in self._retired for segment in retired.segments]


def _expires_by_time(config: "LogConfig") -> bool:
    return config.deletes and config.retention_ms >= 0


def _age_status(segment: "Segment", config: "LogConfig", now_ms: int) -> AgeStatus:
    """Return the status of a segment without reading files."""
    if not _expires_by_time(config):
        return AgeStatus.KEPT
    age = segment.age
    if age is not None and now_ms - age.from_ms <= config.retention_ms:
        return AgeStatus.KEPT  # even if the segment has grown since its age was determined
    if age is not None and age.size == segment.size:
        return AgeStatus.EXPIRED
    if age is None and _is_kept_by_header(segment.max_timestamp, config, now_ms):
        return AgeStatus.KEPT
    return AgeStatus.UNKNOWN


def _is_kept_by_header(latest: int, config: "LogConfig", now_ms: int) -> bool:
    """Return whether the largest timestamp in the headers keeps the segment. A timestamp far in the future is
    ignored, because it would keep the segment forever.
    """
    return now_ms - config.retention_ms <= latest <= now_ms + AHEAD_MS and latest >= 0
