"""What of a log a pass would clean, and whether that is worthwhile: Kafka's rules.

The active segment is never touched, nor what a consumer may not see yet, what is not durable, and what is younger than
`min.compaction.lag.ms`.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.partition_log import PartitionLog
    from tidelog.log.segment import Segment


class Cleanable(NamedTuple):
    """`end_offset`: where the first segment begins that stays as it is. `overdue`: `max.compaction.lag.ms` is over."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def worthwhile(self, config: "LogConfig") -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


def cleanable(log: "PartitionLog", clean_offset: int | None, high_watermark: int, now_ms: int) -> Cleanable:
    """`clean_offset`: where the last pass ended, None before the first. Raises CorruptLog, OSError from an index or a
    header that must be read.
    """
    config = log.config
    items = log.segments.items
    first_dirty = log.log_start_offset if clean_offset is None else clean_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset  # cut at either end since: everything counts as dirty
    limit = min(log.last_stable_offset_below(high_watermark), log.recovery_point, items[-1].base_offset)
    dirty_from = log.segments.floor(first_dirty)
    if config.min_compaction_lag_ms > 0:
        latest = now_ms - config.min_compaction_lag_ms
        young = (s.base_offset for s in items[dirty_from:-1] if s.latest_time() > latest)
        limit = min(limit, next(young, limit))
    limit = max(limit, first_dirty)
    end = log.segments.floor(limit)
    dirty = items[min(dirty_from, end) : end]
    return Cleanable(
        first_dirty,
        items[end].base_offset,
        sum(segment.size for segment in items if segment.base_offset < first_dirty),
        sum(segment.size for segment in dirty),
        _overdue(items[dirty_from:-1], now_ms - config.max_compaction_lag_ms),
    )


def _overdue(dirty: "list[Segment]", clean_until_ms: int) -> bool:
    """Whether a dirty record is older than that, by the first batch of each segment."""
    if clean_until_ms <= 0:
        return False
    return any(0 < segment.first_timestamp() < clean_until_ms for segment in dirty)
