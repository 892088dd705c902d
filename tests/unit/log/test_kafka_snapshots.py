"""Directories of Kafka are adopted after a power cut: a snapshot may be there without the records below it."""

import random

import pytest

from log_harness import DIRECTORY, LogOnDisk, read_records
from simulation_harness import boot
from tidelog.log.checkpoints import CLEANER_OFFSETS, RECOVERY_POINTS
from tidelog.log.directory import DataDirectory
from tidelog.log.partition_log import PartitionLog
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World, simulated

TOPIC_ID = bytes(15) + b"\1"


def kafkas(disk: SimDisk | None = None, *, lost: str, is_compacted: bool = False, recovery_point: int = 2) -> LogOnDisk:
    """What a power cut leaves in Kafka's directory: six records in segments of one or two records each. Kafka has
    written a snapshot for each segment, but has synced only what is below the recovery point. `lost`: the part of the
    segment with record 3 that the power cut has lost.
    """
    on = LogOnDisk(disk=disk, segment_bytes=150)
    for number in range(6):
        on.append(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    on.flush()
    assert on.bases() == [0, 2, 4]
    file = on.disk.open(on.path(2))
    file.truncate({"nothing": file.size(), "batch": file.size() // 2, "bytes": file.size() - 10}[lost])
    file.sync()
    file.close()
    on.disk.write_atomic("/data/" + RECOVERY_POINTS, b"0\n1\norders 0 %d\n" % recovery_point)
    if is_compacted:
        on.disk.write_atomic("/data/" + CLEANER_OFFSETS, b"0\n1\norders 0 0\n")
    on.disk = on.disk.kill()
    return on


def adopt(on: LogOnDisk) -> PartitionLog:
    """Prepare the adoption, cut the power, and open the log as the next start does."""
    directory = DataDirectory.open(on.disk, "/data")
    assert not directory.clean
    directory.prepare_adoption({"orders"})
    on.disk = on.disk.power_cut(random.Random(3))
    directory = DataDirectory.open(on.disk, "/data")
    on.log = directory.open_partition("orders", 0, TOPIC_ID, on.config, on.now_ms)
    return on.log


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("lost", ["batch", "bytes"])
def test_the_log_ends_before_the_first_record_that_kafka_had_not_synced(lost: str, is_compacted: bool) -> None:
    on = kafkas(lost=lost, is_compacted=is_compacted)
    log = adopt(on)
    assert on.records() == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert on.append(b"again", producer_id=7, producer_epoch=0, base_sequence=3).base_offset == 3
    assert log.log_end_offset == 4


def test_nothing_is_removed_from_a_log_that_has_everything() -> None:
    on = kafkas(lost="nothing")
    adopt(on)
    assert [value for _, value in on.records()] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert on.append(b"6", producer_id=7, producer_epoch=0, base_sequence=6).base_offset == 6


@pytest.mark.parametrize("left", ["2.log.cleaned", "2.index.swap", "3.log.deleted"])
def test_a_gap_of_compaction_above_the_recovery_point_is_no_loss(left: str) -> None:
    """The pass had removed record 3, and was killed before it stored its clean offset."""
    on = kafkas(lost="batch", is_compacted=True)
    offset, _, ending = left.partition(".")
    file = on.disk.open(f"{DIRECTORY}/{int(offset):020d}.{ending}", create=True)
    file.sync()
    on.disk.sync_dir(DIRECTORY)
    adopt(on)
    assert [offset for offset, _ in on.records()] == [0, 1, 2, 4, 5]


def test_files_that_retention_deletes_do_not_look_like_compaction() -> None:
    on = kafkas(lost="bytes")
    for name in on.files():
        if name.startswith(f"{0:020d}.") and name != f"{0:020d}.snapshot":
            on.disk.rename(f"{DIRECTORY}/{name}", f"{DIRECTORY}/{name}.deleted")
    on.disk.sync_dir(DIRECTORY)
    assert adopt(on).log_start_offset == 2
    assert on.records() == [(2, b"2")]


def test_snapshots_below_the_recovery_point_stay() -> None:
    on = kafkas(lost="bytes", recovery_point=4)
    directory = DataDirectory.open(on.disk, "/data")
    directory.prepare_adoption({"orders"})
    assert [name for name in on.files() if "snapshot" in name] == [f"{n:020d}.snapshot" for n in (2, 4)]


def test_logs_that_are_not_adopted_are_not_changed() -> None:
    on = kafkas(lost="bytes")
    files = on.files()
    directory = DataDirectory.open(on.disk, "/data")
    directory.prepare_adoption({"__cluster_metadata of Kafka"})
    assert on.files() == files


def test_a_broker_adopts_such_a_directory() -> None:
    async def scenario(world: World) -> None:
        host = world.host("broker")
        on = kafkas(host.disk, lost="batch", is_compacted=True)
        host.insert(on.disk)
        broker = await boot(host)
        assert read_records(broker.services.partitions.get("orders", 0).log) == [(0, b"0"), (1, b"1"), (2, b"2")]

    with simulated(1) as world:
        world.run(scenario(world))
