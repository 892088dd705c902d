"""Decide by Kafka's rules which part of a log a compaction pass would clean, and whether a pass is worthwhile.

The dirty part of a log begins at the offset at which the last pass ended. Some records must not be cleaned yet: those
in the active segment, those that consumers must not see yet, those that are not durable, and those that are younger
than `min.compaction.lag.ms`.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.partition_log import PartitionLog
    from tidelog.log.segment import Segment


class CleanablePart(NamedTuple):
    """The part of a log that a pass would clean.

    `end_offset` is the base offset of the first segment that must not be changed. `clean_bytes` is the size of the
    segments that begin below the first dirty offset. `dirty_bytes` is the size of the dirty segments below
    `end_offset`. `is_overdue`: the first batch of a dirty segment is older than `max.compaction.lag.ms`.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worthwhile(self, config: "LogConfig") -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


def cleanable_part(log: "PartitionLog", clean_offset: int | None, high_watermark: int, now_ms: int) -> CleanablePart:
    """Return the cleanable part of a log.

    `clean_offset` is the offset at which the last pass ended; None if there was no pass. Raises CorruptLog and
    OSError if an index or a header cannot be read.
    """
    config = log.config
    segments = log.segments.items
    first_dirty = log.log_start_offset if clean_offset is None else clean_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset  # the log was cut, or its start was moved, since the last pass
    limit = min(log.last_stable_offset_below(high_watermark), log.recovery_point, segments[-1].base_offset)
    first_dirty_index = log.segments.floor(first_dirty)
    if config.min_compaction_lag_ms > 0:
        old_until_ms = now_ms - config.min_compaction_lag_ms
        too_young = (s.base_offset for s in segments[first_dirty_index:-1] if s.latest_time() > old_until_ms)
        limit = min(limit, next(too_young, limit))
    limit = max(limit, first_dirty)
    end = log.segments.floor(limit)
    dirty = segments[min(first_dirty_index, end) : end]
    return CleanablePart(
        first_dirty,
        segments[end].base_offset,
        sum(segment.size for segment in segments if segment.base_offset < first_dirty),
        sum(segment.size for segment in dirty),
        _has_overdue_segment(segments[first_dirty_index:-1], now_ms - config.max_compaction_lag_ms),
    )


def _has_overdue_segment(dirty: "list[Segment]", overdue_before_ms: int) -> bool:
    """Return whether the first batch of a dirty segment has a timestamp before `overdue_before_ms`."""
    if overdue_before_ms <= 0:
        return False
    return any(0 < segment.first_timestamp() < overdue_before_ms for segment in dirty)
