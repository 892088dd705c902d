"""The data directory: lock, clean marker, checkpoints, and partitions that are created, deleted, or invalid."""

import errno
import random

import pytest

from log_harness import NOW_MS, make_batch, read_records
from tidelog.log.checkpoints import HIGH_WATERMARKS, read_offsets, read_partition_metadata
from tidelog.log.config import LogConfig
from tidelog.log.directory import CLEAN_MARKER, DataDirectory, DirectoryInUse, InTheWay
from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.model.ids import TopicPartition
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import StorageError

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
KEY = TopicPartition("orders", 0)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(rng=random.Random(1))


def open_orders(directory: DataDirectory, topic_id: bytes = TOPIC_ID) -> PartitionLog:
    try:
        return directory.open_partition("orders", 0, topic_id, LogConfig(), NOW_MS)
    except InTheWay:
        directory.make_way(KEY, topic_id)
        return directory.open_partition("orders", 0, topic_id, LogConfig(), NOW_MS)


def retire(directory: DataDirectory, log: PartitionLog) -> str:
    [retired], error = directory.retire({KEY: (TOPIC_ID, log)})
    assert error is None
    return retired


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
        with pytest.raises(CorruptLog, match="every offset below 2 was on the disk"):
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
    retired = retire(directory, log)
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
    retire(directory, log)
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


RECOVERY = "/data/recovery-point-offset-checkpoint"
STARTS = "/data/log-start-offset-checkpoint"


def test_high_watermarks_are_read_at_the_start_and_kept_for_a_partition_that_did_not_open(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    other = TopicPartition("other", 3)
    directory.write_checkpoints({}, {}, {KEY: 5, other: 7})
    assert disk.read(f"/data/{HIGH_WATERMARKS}") == b"0\n2\norders 0 5\nother 3 7\n"
    directory.release()
    directory = DataDirectory.open(disk, "/data")
    assert [directory.high_watermark(key) for key in (KEY, other, TopicPartition("none", 0))] == [5, 7, 0]
    open_orders(directory)
    directory.write_checkpoints({}, {}, {other: 8})
    assert read_offsets(disk, f"/data/{HIGH_WATERMARKS}") == {KEY: 5, other: 8}


def test_the_high_watermark_of_a_deleted_partition_is_not_its_successors(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = open_orders(directory)
    directory.write_checkpoints({KEY: 0}, {}, {KEY: 5})
    directory.release()
    directory = DataDirectory.open(disk, "/data")
    log = open_orders(directory)
    retire(directory, log)
    assert read_offsets(disk, f"/data/{HIGH_WATERMARKS}") == {}
    open_orders(directory, OTHER_ID)
    assert directory.high_watermark(KEY) == 0


def test_damaged_high_watermarks_cost_no_scan(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    directory = DataDirectory.open(disk, "/data")
    directory.write_checkpoints({}, {}, {KEY: 5})
    directory.close_clean()
    disk.write_atomic(f"/data/{HIGH_WATERMARKS}", b"0\n1\nnonsense\n")
    directory = DataDirectory.open(disk, "/data")
    assert directory.clean
    assert directory.high_watermark(KEY) == 0
    assert "checkpoint ignored, high watermarks are determined again" in caplog.text


def segmented(directory: DataDirectory) -> PartitionLog:
    """Segments 0, 2 and 4, the last of one record; flushed."""
    log = directory.open_partition("orders", 0, TOPIC_ID, LogConfig(segment_bytes=2 * len(make_batch(b"a"))), NOW_MS)
    append(log, b"a", b"b", b"c", b"d", b"e")
    flush(log)
    return log


def stop(directory: DataDirectory, log: PartitionLog) -> None:
    log.close(clean=True)
    checkpoint(directory, log)
    directory.close_clean()


def segment(base_offset: int) -> str:
    return f"/data/orders-0/{base_offset:020d}.log"


@pytest.mark.parametrize("clean", [True, False])
def test_a_first_segment_that_is_gone_takes_the_partition_offline_with_a_remedy(disk: SimDisk, clean: bool) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = segmented(directory)
    if clean:
        stop(directory, log)
    else:
        checkpoint(directory, log)
        disk = disk.kill()
    disk.rename(segment(0), "/data/backup")
    disk.sync_dir("/data")
    for _ in range(2):
        directory = DataDirectory.open(disk, "/data")
        with pytest.raises(CorruptLog) as found:
            open_orders(directory)
        assert found.value.path == segment(2)
        assert "the log begins at offset 2, above its start offset 0" in found.value.reason
        assert f"set the offset of orders-0 to 2 in {STARTS}" in found.value.reason
        checkpoint(directory)
        directory.release()
    restored = disk.power_cut(random.Random(1))
    restored.rename("/data/backup", segment(0))
    assert len(read_records(open_orders(DataDirectory.open(restored, "/data")))) == 5
    disk.write_atomic(STARTS, b"0\n1\norders 0 2\n")
    log = open_orders(DataDirectory.open(disk, "/data"))
    assert read_records(log) == [(2, b"c"), (3, b"d"), (4, b"e")]


def test_a_first_segment_below_a_start_offset_inside_the_log_is_missed_too(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = segmented(directory)
    log.delete_before(3)
    stop(directory, log)
    disk.remove(segment(0))  # as retention would: nothing of it is in the log
    directory = DataDirectory.open(disk, "/data")
    assert read_records(open_orders(directory)) == [(3, b"d"), (4, b"e")]
    directory.release()
    disk.remove(segment(2))
    with pytest.raises(CorruptLog, match="begins at offset 4, above its start offset 3"):
        open_orders(DataDirectory.open(disk, "/data"))


@pytest.mark.parametrize("snapshots", ["kept", "gone"])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_log_cut_between_two_batches_after_a_clean_stop_is_noticed(disk: SimDisk, lost: int, snapshots: str) -> None:
    directory = DataDirectory.open(disk, "/data")
    append(log := open_orders(directory), b"a", b"b", b"c")
    stop(directory, log)
    disk.open(segment(0)).truncate((3 - lost) * len(make_batch(b"a")))
    end_snapshot = f"/data/orders-0/{3:020d}.snapshot"
    if snapshots == "gone":
        disk.remove(end_snapshot)
    directory = DataDirectory.open(disk, "/data")
    with pytest.raises(CorruptLog) as found:
        open_orders(directory)
    assert found.value.path == segment(0)
    assert f"the log ends at offset {3 - lost}, but every offset below 3 was on the disk" in found.value.reason
    assert f"set the offset of orders-0 to {3 - lost} in /data/recovery-point-offset-checkpoint" in found.value.reason
    assert (f"and remove {end_snapshot}" in found.value.reason) == (snapshots == "kept")
    directory.release()
    disk.write_atomic("/data/recovery-point-offset-checkpoint", b"0\n1\norders 0 %d\n" % (3 - lost))
    if snapshots == "kept":
        disk.remove(end_snapshot)
    assert len(read_records(open_orders(DataDirectory.open(disk, "/data")))) == 3 - lost


@pytest.mark.parametrize("gone", ["missing", "damaged"])
def test_without_the_start_offsets_logs_begin_with_their_files_once(disk: SimDisk, gone: str) -> None:
    directory = DataDirectory.open(disk, "/data")
    stop(directory, segmented(directory))
    disk.remove(segment(0))
    if gone == "missing":
        disk.remove(STARTS)
    else:
        disk.write_atomic(STARTS, b"0\n7\n")
    directory = DataDirectory.open(disk, "/data")
    log = open_orders(directory)
    assert log.log_start_offset == 2
    stop(directory, log)
    assert read_offsets(disk, STARTS) == {KEY: 2}
    disk.remove(segment(2))
    with pytest.raises(CorruptLog, match="begins at offset 4, above its start offset 2"):
        open_orders(DataDirectory.open(disk, "/data"))


@pytest.mark.parametrize("checkpointed", [b"0\n0\n", b"0\n1\norders 0 1\n", b"0\n1\norders 0 3\n"])
def test_kafkas_start_offsets_may_lag_behind_its_files_until_they_are_adopted(
    disk: SimDisk, checkpointed: bytes
) -> None:
    directory = DataDirectory.open(disk, "/data")
    stop(directory, segmented(directory))
    disk.remove(segment(0))
    disk.sync_dir("/data/orders-0")
    disk.write_atomic(STARTS, checkpointed)
    directory = DataDirectory.open(disk, "/data")
    directory.adopt_start_offsets()
    expected = 3 if b"3" in checkpointed else 2
    disk = disk.power_cut(random.Random(1))  # what was adopted is durable
    directory = DataDirectory.open(disk, "/data")
    assert open_orders(directory).log_start_offset == expected
    directory.release()
    disk.remove(segment(2))
    with pytest.raises(CorruptLog, match=f"begins at offset 4, above its start offset {expected}"):
        open_orders(DataDirectory.open(disk, "/data"))


def test_a_partition_that_opened_just_now_keeps_its_entries_until_it_is_named(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = segmented(directory)
    log.delete_before(2)
    stop(directory, log)
    directory = DataDirectory.open(disk, "/data")
    log = open_orders(directory)
    checkpoint(directory)  # of a broker that has not heard of it yet
    directory.write_start_offsets({})
    assert read_offsets(disk, STARTS) == {KEY: 2}
    assert read_offsets(disk, "/data/recovery-point-offset-checkpoint") == {KEY: 5}
    checkpoint(directory, log)
    checkpoint(directory)
    assert read_offsets(disk, STARTS) == {}


def test_on_a_full_disk_the_start_offsets_give_way_to_what_makes_room(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = segmented(directory)
    checkpoint(directory, log)
    log.delete_before(2)
    disk.limit_space(0)
    directory.write_start_offsets({KEY: 2})
    assert not disk.exists(STARTS)
    disk.limit_space(None)
    after = disk.power_cut(random.Random(1))
    after.remove(segment(0))
    assert open_orders(DataDirectory.open(after, "/data")).log_start_offset == 2
    checkpoint(directory, log)
    assert read_offsets(disk, STARTS) == {KEY: 2}


def test_on_a_full_disk_the_start_offsets_are_overwritten_in_place(disk: SimDisk) -> None:
    """The checkpoint also has the start offsets of other logs, whose records DeleteRecords has removed."""
    directory = DataDirectory.open(disk, "/data")
    other = TopicPartition("payments", 0)
    directory.write_start_offsets({KEY: 1, other: 5})
    disk.fail("create", "*.tmp", errno.ENOSPC, times=1 << 30)
    directory.write_start_offsets({KEY: 2, other: 5})
    assert read_offsets(disk.power_cut(random.Random(1)), STARTS) == {KEY: 2, other: 5}
    assert not directory.is_behind
    disk.repair()
    directory.write_start_offsets({KEY: 3, other: 5})
    assert read_offsets(disk.power_cut(random.Random(1)), STARTS) == {KEY: 3, other: 5}


def test_without_a_descriptor_the_start_offsets_stay(disk: SimDisk) -> None:
    """Retention then waits: it frees no descriptor."""
    directory = DataDirectory.open(disk, "/data")
    directory.write_start_offsets({KEY: 1})
    disk.fail("create", "*.tmp", errno.EMFILE)
    with pytest.raises(OSError, match="open files"):
        directory.write_start_offsets({KEY: 2})
    assert read_offsets(disk, STARTS) == {KEY: 1}
    directory.write_start_offsets({KEY: 2})
    assert read_offsets(disk, STARTS) == {KEY: 2}


def test_a_log_from_another_directory_is_told_of_beside_all_others_though_the_disk_was_full(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = segmented(directory)
    checkpoint(directory, log)
    log.delete_before(2)
    disk.limit_space(0)
    directory.write_start_offsets({KEY: 2})
    assert not disk.exists(STARTS)
    assert directory.is_behind
    disk.remove(segment(0))
    disk.limit_space(None)
    copy = directory.open_future(f"/data/payments-0.{'0' * 32}-future", LogConfig(), 7, OTHER_ID, NOW_MS)
    directory.register_incoming(copy, None)
    assert read_offsets(disk, STARTS) == {KEY: 2, TopicPartition("payments", 0): 7}
    assert not directory.is_behind
    log = open_orders(DataDirectory.open(disk.kill(), "/data"))
    assert (log.log_start_offset, log.log_end_offset) == (2, 5)


def test_on_a_full_disk_a_deletion_goes_on_and_its_last_trace_waits_for_the_checkpoints(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    log = segmented(directory)
    log.delete_before(2)
    checkpoint(directory, log)
    disk.fail("create", "*.tmp", errno.ENOSPC, times=1 << 30)
    retired = retire(directory, log)
    used = disk.medium.used_bytes()
    directory.empty_retired(retired)
    assert disk.medium.used_bytes() <= used - 5 * len(make_batch(b"a"))
    with pytest.raises(OSError, match="No space left"):
        directory.remove_retired(retired)
    with pytest.raises(InTheWay):
        directory.open_partition("orders", 0, OTHER_ID, LogConfig(), NOW_MS, new=True)
    with pytest.raises(OSError, match="No space left"):
        directory.make_way(KEY, OTHER_ID)
    assert disk.list(retired) == []
    assert read_offsets(disk, STARTS) == {KEY: 2}
    after = disk.kill()
    with pytest.raises(InTheWay):  # as the next start finds it: the topic was made anew, and its log was not
        DataDirectory.open(after, "/data").open_partition("orders", 0, OTHER_ID, LogConfig(), NOW_MS)
    disk = after.kill()
    directory = DataDirectory.open(disk, "/data")
    directory.remove_retired(retired)
    assert directory.retired() == []
    assert read_offsets(disk, STARTS) == {}


def test_a_topic_of_the_longest_name_is_deleted_and_made_anew(disk: SimDisk) -> None:
    """There is no room for an id and an ending in the name of a directory that is renamed."""
    keys = [TopicPartition("t" * 249, 0), TopicPartition("t" * 249, 12345)]
    other = TopicPartition("t" * 249, 7)
    directory = DataDirectory.open(disk, "/data")
    logs = {k: directory.open_partition(*k, TOPIC_ID, LogConfig(), NOW_MS, new=True) for k in [*keys, other]}
    for log in logs.values():
        append(log, b"old")
        flush(log)
    checkpoint(directory, *logs.values())
    disk.fail("create", "*.tmp", errno.ENOSPC, times=1 << 30)  # the checkpoints go on telling of them
    retired, _ = directory.retire({key: (TOPIC_ID, logs[key]) for key in keys})
    assert sorted(directory.retired()) == sorted(retired)
    disk = disk.kill()
    directory = DataDirectory.open(disk, "/data")
    disk.repair()
    assert set(read_offsets(disk, "/data/recovery-point-offset-checkpoint") or {}) == {*keys, other}
    for key in keys:
        with pytest.raises(InTheWay):
            directory.open_partition(*key, OTHER_ID, LogConfig(), NOW_MS)
    for path in retired:
        directory.empty_retired(path)
        directory.remove_retired(path)
    assert directory.retired() == []
    assert set(read_offsets(disk, "/data/recovery-point-offset-checkpoint") or {}) == {other}
    assert read_records(directory.open_partition(*other, TOPIC_ID, LogConfig(), NOW_MS)) == [(0, b"old")]
    assert [directory.open_partition(*key, OTHER_ID, LogConfig(), NOW_MS).log_end_offset for key in keys] == [0, 0]
    directory.release()
    directory = DataDirectory.open(disk, "/data")
    directory.make_way(keys[0], TOPIC_ID)
    assert [name[:2] for name in disk.list("/data") if name.endswith("-stray")] == ["tt"]


def test_identity_is_written_once(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    directory.write_identity("cluster-a", 1, "id-a")
    directory.write_identity("cluster-b", 2, "id-b")
    written = b"#\nversion=1\ncluster.id=cluster-a\nnode.id=1\ndirectory.id=id-a\n"
    assert disk.read("/data/meta.properties") == written


def test_a_directory_from_before_it_had_an_id_gets_one(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    disk.write_atomic("/data/meta.properties", b"#\nversion=1\ncluster.id=cluster-a\nnode.id=1\n")
    directory.write_identity("cluster-a", 1, "id-a")
    assert b"directory.id=id-a" in disk.read("/data/meta.properties")


def test_an_identity_of_kafka_is_left_as_it_is(disk: SimDisk) -> None:
    directory = DataDirectory.open(disk, "/data")
    of_zookeeper = b"version=0\nbroker.id=1\ncluster.id=abc\n"
    disk.write_atomic("/data/meta.properties", of_zookeeper)
    directory.write_identity("abc", 1, "id-a")
    assert disk.read("/data/meta.properties") == of_zookeeper


def test_a_disk_that_cannot_be_written_is_said_and_the_lock_given_back(disk: SimDisk) -> None:
    DataDirectory.open(disk, "/data").close_clean()
    disk.fail("remove", "*", errno.EROFS)
    with pytest.raises(OSError, match="planted"):
        DataDirectory.open(disk, "/data")
    DataDirectory.open(disk, "/data")


# A segment file that is missing from the middle


def without_its_middle(disk: SimDisk, *, clean: bool = False) -> tuple[DataDirectory, str]:
    """A directory whose log has lost the second of three segments while nobody ran. `clean`: after a clean stop."""
    directory = DataDirectory.open(disk, "/data")
    log = directory.open_partition("orders", 0, TOPIC_ID, LogConfig(segment_bytes=200), NOW_MS)
    append(log, b"0", b"1", b"2", b"3", b"4", b"5")
    assert [segment.base_offset for segment in log.segments.items] == [0, 2, 4]
    flush(log)
    checkpoint(directory, log)
    log.close(clean=True)
    if clean:
        directory.close_clean()
    else:
        directory.release()
    lost = log.segments.items[1].path
    disk.remove(lost)
    return DataDirectory.open(disk, "/data"), lost


@pytest.mark.parametrize("start", [2, 3])
def test_a_log_is_not_read_across_a_missing_segment(disk: SimDisk, start: int) -> None:
    directory, _ = without_its_middle(disk, clean=True)
    log = open_orders(directory)
    assert log.read(0, 1000, 6).size
    with pytest.raises(StorageError, match=rf"offsets {start} to 3 are missing before this batch"):
        log.read(start, 1000, 6)
    assert log.failure is not None
    assert "set the offset of orders-0 to 0 in /data/cleaner-offset-checkpoint" in log.failure
    with pytest.raises(StorageError):
        log.read(4, 1000, 6)


def test_after_a_crash_a_missing_segment_is_noticed_when_the_log_is_opened(disk: SimDisk) -> None:
    directory, _ = without_its_middle(disk)
    with pytest.raises(CorruptLog, match="offsets 2 to 3 are missing before this segment") as found:
        open_orders(directory)
    assert "set the offset of orders-0 to 0 in /data/cleaner-offset-checkpoint" in found.value.reason


def test_its_remedy_helps(disk: SimDisk) -> None:
    directory, _ = without_its_middle(disk)
    directory.write_cleaner_offsets({KEY: 0})
    log = open_orders(directory)
    assert [offset for offset, _ in read_records(log)] == [0, 1, 4, 5]


def test_compaction_makes_holes_that_are_no_damage(disk: SimDisk) -> None:
    directory, _ = without_its_middle(disk)
    log = directory.open_partition("orders", 0, TOPIC_ID, LogConfig(cleanup_policy="compact"), NOW_MS)
    assert [offset for offset, _ in read_records(log)] == [0, 1, 4, 5]
    log.reader.may_have_holes = True
    log.configure(LogConfig())
    assert [offset for offset, _ in read_records(log)] == [0, 1, 4, 5]


def test_a_checkpoint_whose_write_failed_after_the_rename_is_written_again(disk: SimDisk) -> None:
    """Otherwise the next topic of this name would find the entry that the write left on the disk."""
    directory = DataDirectory.open(disk, "/data")
    checkpoint(directory)
    log = open_orders(directory)
    for _ in range(5):
        append(log, b"x")
    flush(log)
    disk.fail("sync_dir", "/data", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        directory.write_checkpoints({KEY: 5}, {}, {KEY: 5})
    assert read_offsets(disk, "/data/recovery-point-offset-checkpoint") == {KEY: 5}, (
        "the new file is there, but its name is possibly not durable"
    )
    assert directory.is_behind
    assert directory.has_entries_of(KEY)
    retire(directory, log)
    assert read_offsets(disk, "/data/recovery-point-offset-checkpoint") == {}
    new = directory.open_partition("orders", 0, OTHER_ID, LogConfig(), NOW_MS, new=True)
    append(new, b"new")
    directory = DataDirectory.open(disk.kill(), "/data")
    assert directory.open_partition("orders", 0, OTHER_ID, LogConfig(), NOW_MS).log_end_offset == 1


def test_after_a_failed_write_both_possible_clean_offsets_are_known(disk: SimDisk) -> None:
    """Compaction needs an entry that certainly is on the disk; a cut lowers every entry that may be there."""
    directory = DataDirectory.open(disk, "/data")

    def fail_to_write(offset: int) -> None:
        disk.fail("sync_dir", "/data", errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            directory.write_cleaner_offsets({KEY: offset})

    def offsets() -> tuple[int | None, int | None]:
        return directory.clean_offset(KEY), directory.possible_clean_offset(KEY)

    fail_to_write(3)
    assert offsets() == (None, 3)
    directory.write_cleaner_offsets({KEY: 3})
    assert offsets() == (3, 3)
    fail_to_write(7)
    assert offsets() == (3, 7)
    fail_to_write(5)
    assert offsets() == (3, 7)
    directory.write_cleaner_offsets({KEY: 5})
    assert offsets() == (5, 5)
    assert read_offsets(disk, "/data/cleaner-offset-checkpoint") == {KEY: 5}
