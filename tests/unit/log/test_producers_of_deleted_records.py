"""The producers of a log after a restart or a cut, if the log start offset is above the newest producer snapshot."""

import logging

import pytest

from log_harness import LogOnDisk, make_batch
from tidelog.wire.errors import OutOfOrderSequenceNumber

BATCH_BYTES = len(make_batch(b"0"))


def append(on: LogOnDisk, sequence: int) -> int:
    """Append the batch of one record with this sequence. Return the offset in the answer."""
    batch = make_batch(b"%d" % (sequence % 10), producer_id=6, producer_epoch=0, base_sequence=sequence)
    return on.append_batch(batch).base_offset


def filled(*, snapshot_at: int, start_offset: int, count: int = 6, **settings: int) -> LogOnDisk:
    """Return a log of one producer's records. Its newest snapshot is at `snapshot_at`, and its records below
    `start_offset` were deleted.
    """
    on = LogOnDisk(**settings)
    for number in range(snapshot_at):
        append(on, number)
    on.log.close(clean=True)
    on.open(clean=True)
    for number in range(snapshot_at, count):
        append(on, number)
    on.flush()
    on.log.delete_before(start_offset)
    on.persisted_log_start_offset = start_offset
    for offset in range(snapshot_at + 1, count + 1):
        if on.disk.exists(on.path(offset, ".snapshot")):
            on.disk.remove(on.path(offset, ".snapshot"))
    assert on.disk.exists(on.path(snapshot_at, ".snapshot"))
    return on


@pytest.mark.parametrize("start_offset", [3, 4, 6])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 2 * BATCH_BYTES])
def test_deleted_records_count_for_the_sequence_after_a_kill(start_offset: int, segment_bytes: int) -> None:
    on = filled(snapshot_at=2, start_offset=start_offset, segment_bytes=segment_bytes)
    on.kill()
    assert append(on, 5) == 5  # a repeated batch
    assert append(on, 6) == 6
    with pytest.raises(OutOfOrderSequenceNumber):
        append(on, 8)


def test_a_clean_stop_writes_the_producers_whose_snapshots_were_lost_and_whose_records_were_deleted() -> None:
    on = LogOnDisk()
    for number in range(3):
        append(on, number)
    on.log.roll(on.now_ms)
    on.flush()
    on.disk = on.disk.kill()
    on.disk.remove(on.path(3, ".snapshot"))
    on.open(clean=False)
    on.config.retention_bytes = 0
    on.log.apply_retention(on.now_ms, on.log.log_end_offset)
    assert [segment.base_offset for segment in on.log.segments.items] == [3]
    on.flush()  # so that the stop has no other reason to write
    on.restart()
    assert on.log.producers.entries[6].next_sequence == 3


def test_deleted_records_count_for_the_sequence_after_a_cut() -> None:
    on = filled(snapshot_at=2, start_offset=4)
    on.truncate_to(5)
    assert append(on, 4) == 4
    assert append(on, 5) == 5


def test_damage_below_the_start_offset_makes_the_producers_unknown(caplog: pytest.LogCaptureFixture) -> None:
    on = filled(snapshot_at=2, start_offset=4, segment_bytes=2 * BATCH_BYTES)
    on.flip(on.path(2), BATCH_BYTES + 8)
    with caplog.at_level(logging.WARNING, "tidelog.log"):
        on.kill()
    assert "batches below the log start offset are damaged, producers forgotten" in caplog.text
    assert append(on, 6) == 6


def test_producers_are_unknown_if_the_batches_after_the_newest_snapshot_were_removed() -> None:
    """Without this, the snapshot at 2 would be used: the producer would have to continue with sequence 2."""
    on = filled(snapshot_at=2, start_offset=6, segment_bytes=2 * BATCH_BYTES)
    on.log.roll(on.now_ms)
    for base_offset in (0, 2, 4):
        on.disk.remove(on.path(base_offset))
    on.kill()
    assert append(on, 6) == 6


def test_a_log_that_begins_again_above_its_end_forgets_its_producers() -> None:
    on = filled(snapshot_at=2, start_offset=4)
    on.log.close(clean=False)
    on.persisted_recovery_point = on.persisted_log_start_offset = 9
    on.open(clean=False)
    assert append(on, 9) == 9
    on.kill()
    assert append(on, 10) == 10
