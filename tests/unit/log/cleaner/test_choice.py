"""Which range of a log a pass compacts, and when a pass is worthwhile."""

from typing import Any

from log_harness import NOW_MS, LogOnDisk
from tidelog.log.cleaner.choice import CleanablePart, cleanable_part
from tidelog.wire.records import Record, encode_batch


def segments_of(*times: int, **settings: Any) -> LogOnDisk:
    """One batch of one record a segment, with these times; all is flushed, and an active segment follows."""
    on = LogOnDisk(cleanup_policy="compact", **settings)
    for time in times:
        on.append_batch(encode_batch([Record(b"k", b"v" * 50, NOW_MS + time)]))
        on.log.roll(NOW_MS)
    on.append(b"active")
    on.flush()
    return on


def choice(
    on: LogOnDisk, clean_offset: int | None = None, *, now: int = 0, high_watermark: int | None = None
) -> CleanablePart:
    if high_watermark is None:
        high_watermark = on.log.log_end_offset
    return cleanable_part(on.log, clean_offset, high_watermark, NOW_MS + now)


def test_all_but_the_active_segment_is_dirty_at_first() -> None:
    on = segments_of(0, 0, 0)
    found = choice(on)
    assert (found.first_dirty_offset, found.end_offset, found.clean_bytes) == (0, 3, 0)
    assert found.dirty_ratio == 1.0
    assert found.is_worthwhile(on.config)


def test_the_ratio_decides_and_must_be_exceeded() -> None:
    on = segments_of(0, 0, 0, 0, min_cleanable_dirty_ratio=0.5)
    assert choice(on, 2).dirty_ratio == 0.5
    assert not choice(on, 2).is_worthwhile(on.config)
    assert choice(on, 1).is_worthwhile(on.config)
    on.config.min_cleanable_dirty_ratio = 0.49
    assert choice(on, 2).is_worthwhile(on.config)


def test_a_clean_log_is_left_alone_whatever_the_ratio() -> None:
    on = segments_of(0, 0, min_cleanable_dirty_ratio=0.0)
    assert not choice(on, 2).is_worthwhile(on.config)


def test_young_segments_stay() -> None:
    on = segments_of(0, 10, 5, min_compaction_lag_ms=100)
    assert choice(on, now=100).end_offset == 1
    assert choice(on, now=99).end_offset == 0
    assert choice(on, now=110).end_offset == 3


def test_what_consumers_may_not_see_yet_stays() -> None:
    on = segments_of(0, 0, 0)
    assert choice(on, high_watermark=2).end_offset == 2
    transaction = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    on.append_batch(encode_batch([Record(b"k", b"v", NOW_MS)], **transaction))  # type: ignore[arg-type]
    on.log.roll(NOW_MS)
    on.append(b"active")
    on.flush()
    assert choice(on).end_offset == 3


def test_what_is_not_durable_stays() -> None:
    on = segments_of(0, 0)
    on.append(b"appended since the flush")
    on.log.roll(NOW_MS)
    on.append(b"active")
    assert choice(on).end_offset == 2
    on.flush()
    assert choice(on).end_offset == 4


def test_overdue_records_are_cleaned_whatever_the_ratio() -> None:
    on = segments_of(0, 50, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100)
    assert not choice(on, now=100).is_worthwhile(on.config)
    assert choice(on, now=101).is_worthwhile(on.config)
    assert not choice(on, 1, now=150).is_worthwhile(on.config)
    assert choice(on, 1, now=151).is_worthwhile(on.config)


def test_an_offset_outside_the_log_means_that_everything_is_dirty() -> None:
    on = segments_of(0, 0, 0)
    assert choice(on, 100).first_dirty_offset == 0
    on.log.delete_before(2)
    assert choice(on, 1).first_dirty_offset == 2


def test_a_compacted_segment_rolls_before_its_records_are_overdue() -> None:
    on = LogOnDisk(cleanup_policy="compact", max_compaction_lag_ms=1000, segment_ms=5000)
    on.append(b"a")
    on.append(b"b", timestamps=[NOW_MS + 1000])
    assert len(on.log.segments.items) == 1
    on.append(b"c", timestamps=[NOW_MS + 1001])
    assert len(on.log.segments.items) == 2


def test_segments_roll_a_little_early_and_not_together() -> None:
    rolled = set()
    for base in range(8):
        on = LogOnDisk(segment_ms=10_000, segment_jitter_ms=4000)
        on.log.restart_at(base)
        on.append(b"a")
        after = 0
        while len(on.log.segments.items) == 1:
            after += 100
            on.append(b"b", timestamps=[NOW_MS + after])
        assert 6000 < after <= 10_100
        rolled.add(after)
    assert len(rolled) > 4
