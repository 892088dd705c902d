"""The producers of a log after a restart or a cut, if their batches were deleted: from a snapshot, or from the deleted
batches while their files exist. No segment leaves the log before a durable snapshot includes its producers.
"""

import errno
import logging
from collections.abc import Callable
from functools import partial
from itertools import takewhile

import pytest

from log_harness import LogOnDisk, make_batch
from tidelog.simulation.tasks import ProcessGone
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
    on.disk.fail("create", "*.snapshot.tmp", errno.ENOSPC, times=2)
    on.retain(on.now_ms)
    on.retain(on.now_ms)
    assert [segment.base_offset for segment in on.log.segments.items] == [3]
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


@pytest.mark.parametrize("missing", [2, 4])
def test_producers_are_unknown_if_batches_between_the_snapshot_and_the_start_offset_are_missing(
    missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut may undo some of the renames of removed segments and not others."""
    on = filled(snapshot_at=2, start_offset=6, segment_bytes=2 * BATCH_BYTES)
    on.log.roll(on.now_ms)
    on.flush()
    on.disk.remove(on.path(missing))
    on.disk.remove(on.path(6, ".snapshot"))
    on.kill()
    assert on.log.producers.entries == {}
    assert "batches below the log start offset are missing, producers forgotten" in caplog.text
    assert append(on, 6) == 6


# No segment leaves the log before a durable snapshot includes its producers.


def expired(**settings: int) -> LogOnDisk:
    """Return a log whose only segment is too large. It is durable, and the newest producer snapshot is at 2."""
    on = filled(snapshot_at=2, start_offset=0, **settings)
    on.config.retention_bytes = 0
    return on


def crash_in_retention(on: LogOnDisk, step: int, crash: Callable[[], object]) -> bool:
    """Run retention, and crash directly after the operation of the disk with this number. Return whether there was
    one.
    """
    remaining = step

    def count(_operation: str, _path: str) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise ProcessGone

    on.disk.on_operation = count
    try:
        on.retain(on.now_ms)
    except ProcessGone:
        crash()
        return True
    on.disk.on_operation = None
    return False


@pytest.mark.parametrize("end", ["kill", "power cut"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 2 * BATCH_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_step_of_retention_forgets_no_producer(seed: int, segment_bytes: int, end: str) -> None:
    for step in range(100):
        on = expired(segment_bytes=segment_bytes)
        if not crash_in_retention(on, step, on.kill if end == "kill" else partial(on.power_cut, seed)):
            break
        assert on.log.producers.entries[6].next_sequence == 6
        assert append(on, 5) == 5  # a repeated batch
        assert append(on, 6) == 6
    assert step > 8
    assert on.log.log_start_offset == 6


def test_segments_are_kept_until_a_flush_has_written_their_producers() -> None:
    on = expired()
    assert on.log.apply_retention(on.now_ms) == 0
    assert on.log.retention_needs_flush(on.now_ms, on.log.log_end_offset)
    assert on.log.unflushed
    assert on.log.has_unsynced_segments
    assert on.log.apply_retention(on.now_ms) == 0
    on.flush()
    assert not on.log.unflushed
    assert not on.log.retention_needs_flush(on.now_ms, on.log.log_end_offset)
    assert on.log.apply_retention(on.now_ms) == 1


def test_a_plan_that_was_put_back_does_not_count() -> None:
    on = expired()
    assert on.log.retention_needs_flush(on.now_ms, on.log.log_end_offset)
    on.log.put_back(on.log.flush_plan())
    assert on.log.unflushed
    assert on.log.apply_retention(on.now_ms) == 0
    on.flush()
    assert on.log.apply_retention(on.now_ms) == 1


def test_after_a_cut_the_snapshots_that_remain_count() -> None:
    on = expired(segment_bytes=2 * BATCH_BYTES)
    on.truncate_to(5)
    assert on.log.apply_retention(on.now_ms) == 1, "the snapshot at 2 remains"
    on.retain(on.now_ms)
    assert on.log.log_start_offset == 5
    on.kill()
    assert on.log.producers.entries[6].next_sequence == 5


def test_a_cut_after_retention_keeps_the_producers() -> None:
    on = expired()
    on.retain(on.now_ms)
    append(on, 6)
    on.truncate_to(6)
    assert on.log.producers.entries[6].next_sequence == 6


def operations(on: LogOnDisk) -> list[str]:
    """Return the operations of the disk during retention, before the first file is renamed to `.deleted`."""
    found: list[str] = []
    on.disk.on_operation = lambda operation, path: found.append(f"{operation} {path.rpartition('/')[2]}")
    on.retain(on.now_ms)
    on.disk.on_operation = None
    return list(takewhile(lambda line: not line.startswith("rename"), found))


def test_a_sound_snapshot_is_not_written_again() -> None:
    on = filled(snapshot_at=2, start_offset=0, segment_bytes=2 * BATCH_BYTES)
    append(on, 6)
    on.flush()
    on.config.retention_bytes = BATCH_BYTES
    assert operations(on) == []
    assert on.log.log_start_offset == 6


def test_after_a_kill_the_name_of_the_snapshot_is_synced_by_the_start() -> None:
    on = filled(snapshot_at=2, start_offset=0, segment_bytes=2 * BATCH_BYTES)
    append(on, 6)
    on.flush()
    on.disk = on.disk.kill()
    found: list[str] = []
    on.disk.on_operation = lambda operation, path: found.append(f"{operation} {path.rpartition('/')[2]}")
    on.open(clean=False)
    assert found.count("sync_dir orders-0") == 1
    on.config.retention_bytes = BATCH_BYTES
    assert operations(on) == []
    assert on.log.log_start_offset == 6


def test_without_producers_nothing_is_written_first() -> None:
    on = LogOnDisk(retention_bytes=0)
    on.append(b"1")
    on.flush()
    assert not on.log.retention_needs_flush(on.now_ms, 1)
    assert on.log.apply_retention(on.now_ms) == 1
    assert on.log.unflushed, "the snapshot at the new segment is due"
    on.flush()
    assert on.disk.exists(on.path(1, ".snapshot"))
    assert not on.log.unflushed


def test_a_log_with_holes_needs_a_snapshot_even_without_producers() -> None:
    """A restart could not notice that batches are missing, and would use an old snapshot."""
    on = expired()
    on.log.producers.entries.clear()
    assert not on.log.retention_needs_flush(on.now_ms, 6)
    on.log.reader.may_have_holes = True
    assert on.log.retention_needs_flush(on.now_ms, 6)


def test_a_full_disk_keeps_segments_only_once(caplog: pytest.LogCaptureFixture) -> None:
    """The segments that the snapshot at 2 includes are removed at once. The others are removed by the next retention,
    because a disk that remains full would refuse all batches.
    """
    on = filled(snapshot_at=2, start_offset=0, segment_bytes=2 * BATCH_BYTES)
    on.kill()  # the snapshots of the later segments are lost
    on.config.retention_bytes = 0
    on.disk.fail("create", "*.snapshot.tmp", errno.ENOSPC, times=1 << 30)
    on.flush()
    assert on.retain(on.now_ms) == 1
    assert on.log.unflushed
    assert "without a producer snapshot, because" not in caplog.text
    assert on.retain(on.now_ms) == 2
    assert "segments are removed without a producer snapshot, because the disk is full" in caplog.text
    assert on.log.log_start_offset == 6
    on.disk.repair()
    on.flush()
    on.kill()
    assert on.log.producers.entries[6].next_sequence == 6


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
def test_no_segment_is_removed_without_a_snapshot_while_index_entries_wait_for_descriptors_or_memory(
    error: int, caplog: pytest.LogCaptureFixture
) -> None:
    on = expired(index_interval_bytes=0)
    on.disk.fail("create", "*index", error, times=1 << 30)
    on.disk.fail("write", "*index", error, times=1 << 30)
    for _ in range(3):
        assert on.retain(on.now_ms) == 0
    assert "without a producer snapshot, because" not in caplog.text
    on.disk.repair()
    on.flush()
    assert on.retain(on.now_ms) == 1


def test_a_full_disk_that_has_space_again_keeps_the_rule() -> None:
    on = expired()
    on.disk.fail("create", "*.snapshot.tmp", errno.ENOSPC)
    assert on.retain(on.now_ms) == 0
    on.flush()
    assert on.disk.exists(on.path(6, ".snapshot"))
    assert on.retain(on.now_ms) == 1


def test_a_cut_after_a_kill_and_retention_keeps_the_producers_whose_segments_are_gone() -> None:
    """The kill loses the snapshots of the rolls, and recovery takes them again: the cut removes the one at the end."""
    on = LogOnDisk(segment_bytes=100)
    on.append_batch(make_batch(b"x" * 20, producer_id=1, producer_epoch=0, base_sequence=0))
    for sequence in range(3):
        on.append_batch(make_batch(b"x" * 20, producer_id=6, producer_epoch=0, base_sequence=sequence))
    on.kill()
    on.config.retention_bytes = 200
    on.retain(on.now_ms)
    assert on.log.log_start_offset > 0
    on.truncate_to(3)
    assert {producer: entry.next_sequence for producer, entry in on.log.producers.entries.items()} == {1: 1, 6: 2}
