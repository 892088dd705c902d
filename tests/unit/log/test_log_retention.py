"""Retention of whole segments, by size, time and log start offset, in two steps; no reader loses a file."""

import errno
import random
from typing import Any

import pytest

from log_harness import NOW_MS, LogOnDisk, make_batch
from tidelog.log.leader_epochs import EpochEnd
from tidelog.simulation.disk import SimDisk

BATCH_BYTES = len(make_batch(b"00"))


def segmented(**settings: Any) -> LogOnDisk:
    """Three batches a segment: 0-2, 3-5, 6-8, 9; batch n is of NOW_MS + 1000 n."""
    on = LogOnDisk(segment_bytes=3 * BATCH_BYTES, **settings)
    for number in range(10):
        on.append(b"%02d" % number, timestamps=[NOW_MS + 1000 * number], leader_epoch=number // 4)
    on.flush()
    return on


@pytest.mark.parametrize(
    ("keep", "start"),
    [(10 * BATCH_BYTES, 0), (7 * BATCH_BYTES + 1, 0), (7 * BATCH_BYTES, 3), (4 * BATCH_BYTES, 6), (BATCH_BYTES, 9)],
)
def test_size_keeps_at_least_what_is_asked_for(keep: int, start: int) -> None:
    on = segmented(retention_bytes=keep, retention_ms=-1)
    on.retain(NOW_MS)
    assert on.log.log_start_offset == start
    assert on.log.size_bytes >= keep
    assert on.records() == [(n, b"%02d" % n) for n in range(start, 10)]


@pytest.mark.parametrize(("age_ms", "start"), [(9001, 0), (7000, 0), (6999, 3), (4000, 3), (3999, 6), (1, 9)])
def test_time_drops_segments_whose_latest_record_is_too_old(age_ms: int, start: int) -> None:
    on = segmented(retention_ms=age_ms)
    on.retain(NOW_MS + 9000)
    assert on.log.log_start_offset == start


def test_an_active_segment_that_is_too_old_is_rolled_and_goes_too() -> None:
    on = segmented(retention_ms=100)
    assert on.retain(NOW_MS + 100_000) == 4
    assert (on.log.log_start_offset, on.log.log_end_offset, on.log.size_bytes) == (10, 10, 0)
    assert on.retain(NOW_MS + 200_000) == 0
    assert on.append(b"next", leader_epoch=2).base_offset == 10


def test_records_without_timestamps_age_from_when_their_segment_was_seen() -> None:
    on = LogOnDisk(retention_ms=1000)
    on.append(b"a", timestamps=[-1])
    on.flush()
    assert on.retain(on.now_ms + 1000) == 0
    assert on.retain(on.now_ms + 1001) == 1


def test_segments_below_the_log_start_offset_go_whatever_the_policy() -> None:
    on = segmented(cleanup_policy="compact")
    on.log.delete_before(7)
    assert on.retain(NOW_MS) == 2
    assert on.records() == [(n, b"%02d" % n) for n in range(7, 10)]
    assert on.log.epochs.end_offset_for(0, on.log.log_end_offset) == EpochEnd(0, 7)
    assert on.log.epochs.end_offset_for(1, on.log.log_end_offset) == EpochEnd(1, 8)


def test_a_compacted_topic_keeps_what_is_old() -> None:
    on = segmented(cleanup_policy="compact", retention_ms=1, retention_bytes=0)
    assert on.retain(NOW_MS + 1_000_000) == 0


def test_nothing_at_or_above_the_high_watermark_or_not_yet_durable_goes() -> None:
    on = segmented(retention_ms=1)
    assert on.retain(NOW_MS + 100_000, high_watermark=6) == 2
    on = LogOnDisk(segment_bytes=100, retention_ms=1)
    on.append(b"a")
    on.append(b"b")
    assert on.retain(NOW_MS + 100_000) == 0


def test_files_stay_readable_until_their_delay_is_over() -> None:
    on = segmented(retention_bytes=BATCH_BYTES, retention_ms=-1, file_delete_delay_ms=500)
    part = on.log.read(0, 1 << 20, 10)
    assert part.file is not None
    before = part.file.pread(part.size, part.position)
    assert on.retain(NOW_MS) == 3
    assert not on.disk.exists(on.path(0))
    assert on.disk.exists(on.path(0, ".log.deleted"))
    assert part.file.pread(part.size, part.position) == before
    assert on.log.removal(NOW_MS + 499) is None
    on.retain(NOW_MS + 500)
    assert [name for name in on.files() if ".deleted" in name] == []
    assert on.log.removal(NOW_MS + 500) is None


def test_a_restart_before_the_delay_is_over_finishes_the_removal() -> None:
    on = segmented(retention_bytes=BATCH_BYTES, retention_ms=-1)
    on.retain(NOW_MS)
    on.restart()
    assert [name for name in on.files() if ".deleted" in name] == []
    assert on.records() == [(9, b"09")]


def test_nothing_touches_a_file_before_the_start_offset_was_persisted() -> None:
    on = segmented(retention_bytes=BATCH_BYTES, retention_ms=-1, file_delete_delay_ms=0)
    files = on.files()
    assert on.log.apply_retention(NOW_MS) == 3
    assert on.files() == files
    on.kill()
    assert on.records() == [(n, b"%02d" % n) for n in range(10)]


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_at_any_step_of_it_leaves_a_log_that_opens(seed: int) -> None:
    on = segmented(retention_bytes=BATCH_BYTES, retention_ms=-1, file_delete_delay_ms=0)
    rng = random.Random(seed)
    cuts: list[LogOnDisk] = []

    def cut(_operation: str, _path: str) -> None:
        cuts.append(LogOnDisk(on.config, on.disk.power_cut(rng), log_start_offset=on.persisted_log_start_offset))

    on.disk.on_operation = cut
    assert on.retain(NOW_MS) == 3
    assert len(cuts) >= 18, "three files of three segments, renamed and removed"
    for after in cuts:
        assert after.records() == [(9, b"09")]
        after.flush()
        after.retain(NOW_MS)
        assert after.restart().size_bytes == BATCH_BYTES


def test_what_fails_is_tried_again_by_the_next() -> None:
    on = segmented(retention_bytes=BATCH_BYTES, retention_ms=-1, file_delete_delay_ms=0)
    on.disk.fail("rename", on.path(3, ".index"), errno.EIO)
    with pytest.raises(OSError, match="planted"):
        on.retain(NOW_MS)
    on.disk.fail("remove", on.path(3, ".log.deleted"), errno.EIO)
    with pytest.raises(OSError, match="planted"):
        on.retain(NOW_MS)
    assert on.retain(NOW_MS) == 0
    assert {name[:20] for name in on.files() if name.endswith((".log", ".index", ".deleted"))} == {f"{9:020d}"}


@pytest.mark.parametrize("index", ["kept", "missing", "damaged"])
def test_after_a_restart_the_age_of_segments_is_learned_off_the_loop(index: str) -> None:
    on = segmented(retention_ms=4000)
    on.restart()
    if index == "missing":
        on.disk.remove(on.path(0, ".timeindex"))
    elif index == "damaged":
        on.disk.write_atomic(on.path(0, ".timeindex"), b"12345")
    assert on.log.apply_retention(NOW_MS + 9000) == 0, "nothing is known yet, and the loop does not ask the disk"
    look = on.log.segment_age_search(NOW_MS + 9000)
    assert look is not None
    look.run()
    assert on.log.apply_retention(NOW_MS + 9000) == 0
    look.store_result()
    assert on.log.segment_age_search(NOW_MS + 9000) is None
    assert on.log.apply_retention(NOW_MS + 9000) == 1
    assert on.log.log_start_offset == 3


def test_silent_producers_are_forgotten_with_it() -> None:
    on = LogOnDisk(producer_id_expiration_ms=1000)
    on.append(b"a", producer_id=4, producer_epoch=0, base_sequence=0)
    on.retain(NOW_MS + 999)
    assert list(on.log.producers.entries) == [4]
    on.retain(NOW_MS + 1000)
    assert list(on.log.producers.entries) == []


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_power_cut_while_files_are_renamed_leaves_no_gap_even_without_the_start_offset(policy: str) -> None:
    """On a full disk, the checkpoint of start offsets may be missing. Then a log begins with its first file."""
    on = segmented(cleanup_policy=policy, retention_bytes=BATCH_BYTES)
    on.log.lacks_snapshot(10)
    on.flush()
    rng = random.Random(1)
    survivors: list[SimDisk] = []
    on.disk.on_operation = lambda _operation, _path: survivors.extend(on.disk.power_cut(rng) for _ in range(6))
    on.retain(NOW_MS)
    survivors.extend(on.disk.power_cut(rng) for _ in range(20))
    starts = []
    for disk in survivors:
        after = LogOnDisk.__new__(LogOnDisk)
        after.config, after.disk, after.now_ms = on.config, disk, on.now_ms
        after.disk = disk
        start = after.bases()[0]
        after.open(clean=False, recovery_point=10, log_start_offset=start)
        assert after.records() == [(n, b"%02d" % n) for n in range(start, 10)]
        starts.append(start)
    assert set(starts) == {0, 3, 6, 9}
    assert set(starts[-20:]) == {9}, "the renames are durable when the removal ends"


def test_a_removal_syncs_only_if_it_renames_files() -> None:
    on = segmented(retention_bytes=BATCH_BYTES, file_delete_delay_ms=1000)
    operations: list[str] = []
    on.disk.on_operation = lambda operation, _path: operations.append(operation)
    on.retain(NOW_MS)
    assert operations.count("sync_dir") == 3, "once for each segment"
    operations.clear()
    on.retain(NOW_MS + 1000)
    assert set(operations) == {"remove"}
