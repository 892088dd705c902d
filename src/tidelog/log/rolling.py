"""Whether a segment's time is over (`segment.ms`), where headers of batches say so."""

from typing import TYPE_CHECKING

from tidelog.log.validation import Limits, check_client_batch

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.segment import Segment
    from tidelog.wire.batches import BatchHeader


def latest_for_roll(
    segment: "Segment", batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int, limits: Limits
) -> int:
    """The largest timestamp of a client's `batch`, by which `segment` is rolled or not.

    A roll by time follows from two headers, that of this batch and that of the segment's first. Neither rolls the
    segment before its records were looked at; `header` and `batch` are corrected. Raises what `check_client_batch`
    does, CorruptLog, OSError.
    """
    segment.start_pending_clock(config)
    if header.max_timestamp > segment.roll_timestamp:
        check_client_batch(batch, header, config, now_ms, limits, would_roll=True)
    if header.max_timestamp > segment.roll_timestamp and not segment.clock_confirmed:
        segment.clock_confirmed = True
        segment.start_clock(segment.first_records_time(), config)
    return header.max_timestamp
