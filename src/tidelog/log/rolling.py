"""Decide whether a client's batch rolls the active segment by time (`segment.ms`). If the headers of batches would
cause a roll, these headers are first compared with the records.
"""

from typing import TYPE_CHECKING

from tidelog.log.validation import Limits, check_client_batch

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.segment import Segment
    from tidelog.wire.batches import BatchHeader


def latest_for_roll(
    segment: "Segment", batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int, limits: Limits
) -> int:
    """Return the largest timestamp of a client's `batch`. This timestamp decides whether `segment` is rolled.

    A roll by time depends on two headers: the header of this batch and the header of the segment's first batch.
    Before the segment is rolled, the records of both batches are examined. If `header` is wrong, `header` and `batch`
    are corrected. Raises CorruptLog, OSError, and the errors of `check_client_batch`.
    """
    segment.start_pending_clock(config)
    if header.max_timestamp > segment.roll_timestamp:
        check_client_batch(batch, header, config, now_ms, limits, would_roll=True)
    if header.max_timestamp > segment.roll_timestamp and not segment.clock_confirmed:
        segment.clock_confirmed = True
        segment.start_clock(segment.first_records_time(), config)
    return header.max_timestamp
