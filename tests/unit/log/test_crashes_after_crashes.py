"""A second fault soon after a first one: what recovery kept is on the disk, and what it removed does not return."""

import errno
import random

import pytest

from log_harness import DIRECTORY, NOW_MS, LogOnDisk, make_batch, read_records
from tidelog.log import recovery
from tidelog.log.config import LogConfig
from tidelog.log.directory import DataDirectory
from tidelog.simulation.disk import SimDisk, SimFile
from tidelog.simulation.tasks import ProcessGone
from tidelog.wire.batches import BatchHeader


def failed_flush(on: LogOnDisk, skip: int) -> bool:
    """Flush the log. The sync of a log file fails, after `skip` successful ones. Returns whether that happened."""
    on.disk.fail("sync", "*.log", errno.EIO, skip=skip)
    plan = on.log.flush_plan()
    try:
        plan.run()
    except OSError as error:
        on.log.fail("sync failed", error)
        return True
    return False


@pytest.mark.parametrize("record_bytes", [20, 500])
@pytest.mark.parametrize("recovery_point", [0, 3])
def test_after_a_failed_sync_recovery_writes_the_batches_to_the_disk(
    recovery_point: int, record_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel marks pages clean although their sync has failed: the next sync succeeds and writes nothing."""
    monkeypatch.setattr(recovery, "REWRITE_BYTES", 300)
    values = [b"%d" % number * record_bytes for number in range(9)]
    failures = 0
    for skip in range(5):
        on = LogOnDisk(segment_bytes=1300)
        for value in values[:3]:
            on.append(value)
        if recovery_point:
            on.flush()
        for value in values[3:]:
            on.append(value)
        failures += failed_flush(on, skip)
        on.kill()
        assert (on.log.log_end_offset, on.log.recovery_point) == (9, 9)
        on.persisted_recovery_point = on.log.recovery_point
        for seed in range(10):
            disk = on.disk
            on.power_cut(seed)
            assert on.records() == list(enumerate(values))
            on.disk = disk
    assert failures


def test_only_batches_that_were_not_flushed_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    on = LogOnDisk(segment_bytes=6000)
    on.append(b"a" * 5000)
    on.flush()
    flushed_bytes = on.log.size_bytes
    on.append(b"b" * 50)
    for _ in range(4):
        on.append(b"c" * 1400)
    contents = {path: on.disk.read(path) for path in (on.path(0), on.path(2))}
    written: list[tuple[str, int, bytes]] = []
    pwrite = SimFile.pwrite

    def note(file: SimFile, data: bytes, position: int) -> None:
        if file.path in contents:
            written.append((file.path, position, bytes(data)))
        pwrite(file, data, position)

    monkeypatch.setattr(recovery, "REWRITE_BYTES", 2000)  # the second segment is written in several parts
    monkeypatch.setattr(SimFile, "pwrite", note)
    on.kill()
    monkeypatch.undo()
    assert written[0][:2] == (on.path(0), flushed_bytes)
    for path, start in ((on.path(0), flushed_bytes), (on.path(2), 0)):
        parts = [(position, data) for name, position, data in written if name == path]
        ends = [position + len(data) for position, data in parts]
        assert [position for position, _ in parts] == [start, *ends[:-1]]
        assert b"".join(data for _, data in parts) == contents[path][start:]


def left_behind(policy: str) -> LogOnDisk:
    """A log that was to be emptied. Its new start offset is stored, but no file was changed yet."""
    on = LogOnDisk(cleanup_policy=policy, segment_bytes=300)
    for number in range(4):
        on.append(b"t", producer_id=9, producer_epoch=0, base_sequence=number, is_transactional=True)
    on.append(b"i", producer_id=7, producer_epoch=0, base_sequence=0)
    on.flush()
    on.log.lacks_snapshot(on.log.log_end_offset)
    on.flush()
    on.persisted_recovery_point = on.persisted_log_start_offset = 500
    return on


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_power_cut_at_any_step_of_the_start_of_an_empty_log_leaves_an_empty_log(policy: str) -> None:
    on = left_behind(policy)
    on.disk = on.disk.kill()
    rng = random.Random(1)
    cuts: list[SimDisk] = []
    on.disk.on_operation = lambda _operation, _path: cuts.extend(on.disk.power_cut(rng) for _ in range(10))
    on.open(clean=False)
    assert len(cuts) > 50
    for after in cuts:
        on.disk = after
        log = on.open(clean=False)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (500, 500, 0)
        assert (log.producers.entries, log.last_stable_offset) == ({}, 500)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_what_was_below_the_start_offset_does_not_return_beside_new_records(policy: str) -> None:
    """A broker is killed while it empties a log that was left behind. The next start removes the old segments."""
    ends = set()
    for seed in range(150):
        on = left_behind(policy)
        on.kill()
        assert (on.log.log_start_offset, on.log.log_end_offset) == (500, 500)
        for number in range(2):
            batch = make_batch(
                b"n", base_offset=500 + number, producer_id=7, producer_epoch=0, base_sequence=40 + number
            )
            on.log.append_as_follower(memoryview(batch))
        on.power_cut(seed)
        end = on.log.log_end_offset
        next_sequences = {i: entry.next_sequence for i, entry in on.log.producers.entries.items()}
        assert next_sequences == ({7: 40 + end - 500} if end > 500 else {})
        assert on.log.last_stable_offset == end
        ends.add(end)
    assert ends == {500, 501, 502}


def log_without_its_middle(policy: str) -> LogOnDisk:
    """A log after a power cut: offsets 0 and 1 were flushed, 2 and 3 are lost, and two later segments survived."""
    on = LogOnDisk(segment_bytes=300, cleanup_policy=policy)
    for number in range(12):
        on.append(b"old%02d" % number)
        if number == 1:
            on.flush()
            flushed_bytes = on.log.size_bytes
    on.flush(checkpoint=False)
    assert on.bases() == [0, 4, 8]
    file = on.disk.open(on.path(0))
    file.truncate(flushed_bytes)
    file.sync()
    on.disk.remove(on.path(4, ".snapshot"))
    on.disk.remove(on.path(8, ".snapshot"))
    on.disk.sync_dir(DIRECTORY)
    on.disk = on.disk.power_cut(random.Random(0))
    return on


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_segment_that_a_killed_recovery_removed_does_not_return_behind_new_records(policy: str) -> None:
    """Recovery is killed at any of its steps. The next one finds nothing to remove, but the removal is not durable."""
    kills = 0
    for last_step in range(1, 20):
        for seed in range(12):
            on = log_without_its_middle(policy)
            steps_left = [last_step]

            def kill(_operation: str, _path: str, disk: SimDisk = on.disk, left: list[int] = steps_left) -> None:
                left[0] -= 1
                if not left[0]:
                    disk.kill()

            on.disk.on_operation = kill
            try:
                on.open(clean=False)
            except ProcessGone:
                kills += 1
            on.disk = SimDisk(on.disk.medium, rng=random.Random(seed))
            on.open(clean=False)
            assert on.log.log_end_offset == 2
            for number in range(on.log.log_end_offset, 4):
                on.append(b"new%02d" % number)
            expected = on.records()
            on.power_cut(seed)
            records = on.records()
            assert records == expected[: len(records)]
    assert kills


def test_a_start_after_a_kill_syncs_each_directory_once() -> None:
    """The number of syncs decides how long a start with thousands of logs takes."""
    disk = SimDisk(rng=random.Random(1))
    directory = DataDirectory.open(disk, "/data")
    for index in range(3):
        log = directory.open_partition("orders", index, bytes(range(16)), LogConfig(), NOW_MS)
        batch = make_batch(b"a")
        log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS)
    disk = disk.kill()
    syncs: list[str] = []
    disk.on_operation = lambda operation, path: syncs.append(path) if operation == "sync_dir" else None
    directory = DataDirectory.open(disk, "/data")
    for index in range(3):
        directory.open_partition("orders", index, bytes(range(16)), LogConfig(), NOW_MS)
    assert syncs == ["/data", "/data/orders-0", "/data/orders-1", "/data/orders-2"]


def test_records_of_a_log_whose_name_was_not_durable_survive_a_power_cut_after_the_next_start() -> None:
    """A broker was killed between the rename of a moved log and the sync of the target directory."""
    for seed in range(20):
        disk = SimDisk(rng=random.Random(seed))
        directory = DataDirectory.open(disk, "/data")
        log = directory.open_partition("orders", 0, bytes(range(16)), LogConfig(), NOW_MS)
        batch = make_batch(b"a")
        log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS)
        disk.rename("/data/orders-0", "/data/other")
        disk.sync_dir("/data")
        disk.rename("/data/other", "/data/orders-0")
        disk = disk.kill()
        DataDirectory.open(disk, "/data").open_partition("orders", 0, bytes(range(16)), LogConfig(), NOW_MS)
        disk = disk.power_cut(random.Random(seed))
        log = DataDirectory.open(disk, "/data").open_partition("orders", 0, bytes(range(16)), LogConfig(), NOW_MS)
        assert read_records(log) == [(0, b"a")]
