"""The data directory: lock, clean marker, checkpoints, partitions that come, go, and are not what they seem."""

import errno
import random

import pytest

from log_harness import NOW_MS, make_batch, read_records
from tidelog.log.checkpoints import read_offsets, read_partition_metadata
from tidelog.log.config import LogConfig
from tidelog.log.directory import CLEAN_MARKER, DataDirectory, DirectoryInUse
from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.model.ids import TopicPartition
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import BatchHeader

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
KEY = TopicPartition("orders", 0)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(rng=random.Random(1))


def open_orders(directory: DataDirectory, topic_id: bytes = TOPIC_ID) -> PartitionLog:
    return directory.open_partition("orders", 0, topic_id, LogConfig(), NOW_MS)


def append(log: PartitionLog, *values: bytes) -> None:
    for value in values:
        batch = make_batch(value)
        log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS)


def checkpoint(directory: DataDirectory, *logs: PartitionLog) -> None:
    directory.write_checkpoints(
        {log.topic_partition: log.recovery_point for log in logs},
        {log.topic_partition: log.log_start_offset for log in logs},
        {log.topic_partition: log.log_end_offset for log in logs},
    )


def flush(log: PartitionLog) -> None:
    plan = log.flush_plan()
    plan.run()
    log.flushed(plan)


def test_one_broker_at_a_time(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    with pytest.raises(DirectoryInUse, match="another broker runs in /data"):
        DataDirectory.open(disk, "/data")
    directory.release()
    DataDirectory.open(disk, "/data")


def test_clean_only_after_a_shutdown_in_order_and_only_once(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    assert not directory.clean
    append(log := open_orders(directory), b"a")
    log.close(clean=True)
    checkpoint(directory, log)
    directory.close_clean()
    assert disk.exists(f"/data/{CLEAN_MARKER}")
    directory = DataDirectory.open(disk, "/data")
    assert directory.clean
    assert not disk.exists(f"/data/{CLEAN_MARKER}")
    assert read_records(open_orders(directory)) == [(0, b"a")]
    directory.release()
    assert not DataDirectory.open(disk, "/data").clean


def test_the_marker_is_gone_durably_before_anything_is_written(disk: SimDisk) -> None:
    DataDirectory.open(disk, "/data").close_clean()
    DataDirectory.open(disk, "/data")
    for seed in range(20):
        assert not disk.power_cut(random.Random(seed)).exists(f"/data/{CLEAN_MARKER}")


def test_a_new_partition_gets_its_topic_id_written(disk: SimDisk) -> None:
    open_orders(DataDirectory.open(disk, "/data"))
    assert read_partition_metadata(disk, "/data/orders-0") == TOPIC_ID
    assert read_partition_metadata(disk, "/data/orders-1") is None


def test_a_directory_of_an_earlier_topic_of_that_name_is_put_aside(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"old")
    flush(log)
    checkpoint(directory, log)
    directory.release()
    directory = DataDirectory.open(disk, "/data")
    log = open_orders(directory, OTHER_ID)
    assert log.log_end_offset == 0
    [stray] = [name for name in disk.list("/data") if name.endswith("-stray")]
    assert disk.exists(f"/data/{stray}/{0:020d}.log")
    append(log, b"new")
    directory.release()
    assert read_records(open_orders(DataDirectory.open(disk, "/data"), OTHER_ID)) == [(0, b"new")]


def test_recovery_begins_at_the_checkpoint(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a", b"b")
    flush(log)
    log.delete_before(1)
    checkpoint(directory, log)
    append(log, b"c")
    disk = disk.kill()
    log = open_orders(DataDirectory.open(disk, "/data"))
    assert log.recovery.scanned_bytes == len(make_batch(b"c"))
    assert (log.log_start_offset, log.log_end_offset) == (1, 3)


def test_a_partition_that_did_not_open_keeps_its_recovery_point(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a", b"b")
    flush(log)
    checkpoint(directory, log)
    disk = disk.kill()
    disk.remove_tree("/data/orders-0")
    for _ in range(2):
        directory = DataDirectory.open(disk, "/data")
        with pytest.raises(CorruptLog, match="2 was on the disk"):
            open_orders(directory)
        other = directory.open_partition("payments", 0, OTHER_ID, LogConfig(), NOW_MS)
        checkpoint(directory, other)
        directory.release()
    assert read_offsets(disk, "/data/recovery-point-offset-checkpoint") == {KEY: 2, TopicPartition("payments", 0): 0}


def test_a_deleted_partition_leaves_no_trace_that_could_harm_its_successor(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a", b"b")
    flush(log)
    checkpoint(directory, log)
    plan = log.flush_plan()
    retired = directory.retire_partition(log, TOPIC_ID)
    plan.run()  # a flush that was under way does not fail over it
    assert directory.retired() == [retired]
    assert read_offsets(disk, "/data/recovery-point-offset-checkpoint") == {}
    disk = disk.kill()
    directory = DataDirectory.open(disk, "/data")
    log = open_orders(directory, OTHER_ID)
    assert log.log_end_offset == 0
    directory.remove_retired(retired)
    assert directory.retired() == []


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_a_deletion_survives_a_power_cut_at_any_step(disk: SimDisk, order: int) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a", b"b")
    flush(log)
    checkpoint(directory, log)
    cuts: list[SimDisk] = []
    disk.on_operation = lambda _operation, _path: cuts.append(disk.power_cut(random.Random(order)))
    directory.retire_partition(log, TOPIC_ID)
    for after in cuts:
        opened = open_orders(DataDirectory.open(after, "/data"))
        assert read_records(opened) in ([], [(0, b"a"), (1, b"b")])


def test_checkpoints_that_did_not_change_are_not_written_again(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a")
    flush(log)
    checkpoint(directory, log)
    operations = disk.operations
    checkpoint(directory, log)
    assert disk.operations == operations


def test_a_damaged_checkpoint_costs_a_longer_scan_and_no_record(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a")
    log.close(clean=True)
    checkpoint(directory, log)
    directory.close_clean()
    disk.write_atomic("/data/recovery-point-offset-checkpoint", b"\0\0\0")
    directory = DataDirectory.open(disk, "/data")
    assert not directory.clean
    assert read_records(open_orders(directory)) == [(0, b"a")]


def test_identity_is_written_once(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    directory.write_identity("cluster-a", 1)
    directory.write_identity("cluster-b", 2)
    assert disk.read("/data/meta.properties") == b"#\nversion=1\ncluster.id=cluster-a\nnode.id=1\n"


def test_a_disk_that_cannot_be_written_is_said_and_the_lock_given_back(disk: SimDisk) -> None:
    DataDirectory.open(disk, "/data").close_clean()
    disk.fail("remove", "*", errno.EROFS)
    with pytest.raises(OSError, match="planted"):
        DataDirectory.open(disk, "/data")
    DataDirectory.open(disk, "/data")
