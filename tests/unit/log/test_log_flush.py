"""The two halves of a flush, and which data is reported as durable."""

import errno

import pytest

from log_harness import DIRECTORY, LogOnDisk
from tidelog.log.durability import SNAPSHOT_INTERVAL_BYTES
from tidelog.log.flush import DirectorySyncs, FlushPlan


def test_the_recovery_point_moves_only_when_a_plan_has_run() -> None:
    on = LogOnDisk()
    on.append(b"a")
    plan = on.log.flush_plan()
    on.append(b"b")
    assert (on.log.recovery_point, on.log.unflushed) == (0, True)
    plan.run()
    on.log.flushed(plan)
    assert (on.log.recovery_point, on.log.unflushed) == (1, True)
    on.flush()
    assert (on.log.recovery_point, on.log.unflushed) == (2, False)


def test_records_are_synced_before_indexes_before_epochs_before_names_before_the_snapshot() -> None:
    on = LogOnDisk(segment_bytes=200)
    for number in range(4):
        on.append(b"%d" % number)
    order: list[str] = []
    on.disk.on_operation = lambda operation, path: order.append(f"{operation} {path.rpartition('/')[2]}")
    on.flush()
    wanted = [
        f"sync {0:020d}.log",
        f"sync {2:020d}.log",
        f"sync {0:020d}.index",
        f"sync {0:020d}.timeindex",
        "rename leader-epoch-checkpoint.tmp",
        "sync_dir orders-0",
        "sync_dir data",
        f"rename {2:020d}.snapshot.tmp",
    ]
    assert [step for step in order if step in wanted] == [
        *wanted[:5], "sync_dir orders-0", *wanted[5:], "sync_dir orders-0",
    ]  # fmt: skip


def test_a_second_flush_syncs_only_what_is_new() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.flush()
    on.append(b"b")
    order: list[str] = []
    on.disk.on_operation = lambda operation, path: order.append(operation)
    on.flush()
    assert order == ["sync"]


def test_a_sync_that_fails_takes_the_log_offline_when_the_caller_says_so() -> None:
    on = LogOnDisk()
    on.append(b"a")
    plan = on.log.flush_plan()
    on.disk.fail("sync", "*.log", errno.EIO)
    with pytest.raises(OSError, match="planted"):
        plan.run()
    on.log.fail("sync failed")
    assert on.log.recovery_point == 0
    with pytest.raises(OSError, match="earlier sync"):
        plan.run()


@pytest.mark.parametrize("skip", range(3))
@pytest.mark.parametrize(
    ("operation", "pattern"), [("sync", "*.log"), ("sync", "*index"), ("sync_dir", "*"), ("create", "*.tmp")]
)
def test_a_plan_that_wanted_a_descriptor_is_put_back_and_the_next_does_its_work(
    operation: str, pattern: str, skip: int
) -> None:
    on = LogOnDisk(segment_bytes=SNAPSHOT_INTERVAL_BYTES + (1 << 20), index_interval_bytes=0)
    chunk = bytes((1 << 20) - 200)
    for number in range((2 * SNAPSHOT_INTERVAL_BYTES >> 20) + 2):  # a roll, and a snapshot is due in the active segment
        on.append(chunk, producer_id=5, producer_epoch=0, base_sequence=number)
    plan = on.log.flush_plan()
    wanted = set(plan.snapshots)
    assert len(wanted) == 2
    on.disk.fail(operation, pattern, errno.EMFILE, skip=skip)
    try:
        plan.run()
    except OSError:
        on.log.put_back(plan)
        assert on.log.durable_offset == on.log.recovery_point == 0
    else:
        on.log.flushed(plan)  # small files are put off in another way, or there were not that many operations
    on.disk.repair()
    on.append(b"last", producer_id=5, producer_epoch=0, base_sequence=number + 1)
    end = on.log.log_end_offset
    on.flush()
    assert on.log.recovery_point == end
    on.disk = on.disk.power_cut()
    assert on.open(clean=False).log_end_offset == end
    assert wanted <= {int(name[:20]) for name in on.files() if name.endswith(".snapshot")}
    assert on.repeats(b"last", producer_id=5, producer_epoch=0, base_sequence=number + 1)


def test_a_plan_from_before_a_truncation_says_nothing() -> None:
    on = LogOnDisk()
    for value in (b"a", b"b", b"c"):
        on.append(value)
    plan = on.log.flush_plan()
    plan.run()
    on.truncate_to(1)
    on.append(b"new")
    on.log.flushed(plan)
    assert on.log.recovery_point == 0


def test_a_plan_passes_over_segments_that_retention_took_meanwhile() -> None:
    on = LogOnDisk(segment_bytes=200, retention_bytes=0, file_delete_delay_ms=0)
    for number in range(4):
        on.append(b"%d" % number)
    on.flush()
    on.append(b"4")
    plan = on.log.flush_plan()
    assert on.retain(on.now_ms) > 0
    plan.run()
    on.log.flushed(plan)
    assert on.log.recovery_point == 5


def test_flush_messages_counts_unflushed_records() -> None:
    on = LogOnDisk(flush_messages=3)
    on.append(b"a", b"b")
    assert not on.log.flush_due
    on.append(b"c")
    assert on.log.flush_due
    on.flush()
    assert not on.log.flush_due


def test_snapshots_bound_what_a_recovery_replays_and_old_ones_go() -> None:
    on = LogOnDisk()
    chunk = bytes(1 << 20)
    for _ in range(3 * (SNAPSHOT_INTERVAL_BYTES >> 20) + 8):
        on.append(chunk[: (1 << 20) - 200])
        on.flush()
    snapshots = [int(name[:20]) for name in on.files() if name.endswith(".snapshot")]
    assert len(snapshots) == 2
    assert (on.log.log_end_offset - snapshots[-1]) << 20 <= SNAPSHOT_INTERVAL_BYTES


def test_closing_what_did_not_change_touches_nothing() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.restart()
    operations = on.disk.operations
    on.log.close(clean=True)
    assert on.disk.operations == operations


def test_closing_an_empty_log_writes_no_snapshot() -> None:
    on = LogOnDisk()
    on.restart()
    on.log.close(clean=True)
    assert [name for name in on.files() if name.endswith(".snapshot")] == []


def test_closing_leaves_what_a_clean_start_trusts() -> None:
    on = LogOnDisk(index_interval_bytes=0)
    on.append(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    on.append(b"b", producer_id=5, producer_epoch=0, base_sequence=1)
    on.log.close(clean=True)
    assert on.files() == [
        f"{0:020d}.index", f"{0:020d}.log", f"{0:020d}.timeindex", f"{2:020d}.snapshot", "leader-epoch-checkpoint",
    ]  # fmt: skip
    assert on.disk.size(f"{DIRECTORY}/{0:020d}.timeindex") == 12
    on.disk = on.disk.power_cut()
    on.open(clean=True, recovery_point=2)
    assert on.repeats(b"b", producer_id=5, producer_epoch=0, base_sequence=1)
    assert on.append(b"c", producer_id=5, producer_epoch=0, base_sequence=2).base_offset == 2


def test_a_full_disk_does_not_hold_up_a_flush_of_records() -> None:
    on = LogOnDisk(index_interval_bytes=0)
    for number in range(20):
        on.append(b"%d" % number)
    on.flush()
    on.append(b"last")
    on.disk.limit_space(on.disk.medium.used_bytes())
    on.flush()
    assert on.log.recovery_point == 21


@pytest.mark.parametrize("fails", [False, True])
def test_a_directory_that_plans_share_is_synced_once_and_its_failure_is_theirs(fails: bool) -> None:
    synced: list[str] = []

    class Disk:
        def sync_dir(self, path: str) -> None:
            synced.append(path)
            if fails and path == "/data":
                raise OSError(5, "Input/output error")

    shared = DirectorySyncs()
    failed = 0
    for name in ("t-0", "t-1", "t-2"):
        plan = FlushPlan(Disk(), 1, 0)  # type: ignore[arg-type]
        plan.directories = [f"/data/{name}", "/data"]
        try:
            plan.run(shared)
        except OSError:
            failed += 1
    assert synced.count("/data") == 1
    assert len(synced) == 4
    assert failed == (3 if fails else 0)


def test_a_cut_removes_the_snapshots_that_a_full_disk_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next start would read the producers of the history that was cut off."""
    monkeypatch.setattr("tidelog.log.durability.SNAPSHOT_INTERVAL_BYTES", 300)
    on = LogOnDisk()
    sequences = iter(range(100))

    def append(count: int) -> None:
        for _ in range(count):
            on.append(b"v" * 20, producer_id=7, producer_epoch=0, base_sequence=next(sequences))

    for count in (1, 4, 4):
        append(count)
        on.flush()
    append(4)
    on.disk.fail("create", "*.snapshot.tmp", errno.ENOSPC)
    on.flush()  # the snapshot is postponed, and an obsolete one stays on the disk
    files = [int(name[:20]) for name in on.files() if name.endswith(".snapshot")]
    assert files == [5, 9]
    on.truncate_to(2)
    assert not [name for name in on.files() if name.endswith(".snapshot")]
    for _ in range(4):
        on.append(b"w", leader_epoch=1)
    on.kill()
    assert (on.log.log_end_offset, on.log.producers.entries[7].next_sequence) == (6, 2)


def test_when_the_disk_has_space_again_obsolete_snapshots_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.log.durability.SNAPSHOT_INTERVAL_BYTES", 1)
    on = LogOnDisk()
    for number in range(5):
        if number == 3:
            on.disk.fail("create", "*.snapshot.tmp", errno.ENOSPC)
        on.append(b"v", producer_id=7, producer_epoch=0, base_sequence=number)
        on.flush()
    assert [int(name[:20]) for name in on.files() if name.endswith(".snapshot")] == [4, 5]
