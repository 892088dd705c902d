"""The power fails in the first second of a new data directory, before the first round of syncs has ended."""

import random

import pytest

from log_harness import NOW_MS, make_batch, read_records
from tidelog.log.checkpoints import RECOVERY_POINTS, read_offsets
from tidelog.log.config import LogConfig
from tidelog.log.directory import DataDirectory
from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import BatchHeader

TOPIC_ID = bytes(range(16))


def start(disk: SimDisk, config: LogConfig) -> tuple[DataDirectory, PartitionLog]:
    directory = DataDirectory.open(disk, "/data")
    directory.write_identity("cluster", 1, "directory")
    return directory, directory.open_partition("orders", 0, TOPIC_ID, config, NOW_MS)


def append(log: PartitionLog, *values: bytes) -> None:
    for value in values:
        batch = make_batch(value)
        log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("flushes", [True, False], ids=["three records are flushed", "nothing is flushed"])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_power_cut_before_the_first_checkpoint_is_no_damage(policy: str, flushes: bool) -> None:
    values = [b"%d" % number for number in range(9)]
    for seed in range(60):
        disk = SimDisk(rng=random.Random(seed))
        config = LogConfig(segment_bytes=150, cleanup_policy=policy)
        _, log = start(disk, config)
        append(log, *values[:3])
        if flushes:
            plan = log.flush_plan()
            plan.run()
            log.flushed(plan)
        append(log, *values[3:])
        _, log = start(disk.power_cut(random.Random(seed)), config)
        end = log.log_end_offset
        assert read_records(log) == list(enumerate(values[:end]))
        assert end >= (3 if flushes else 0)


def test_a_power_cut_at_any_step_of_the_first_start_leaves_a_directory_that_knows_its_recovery_points() -> None:
    disk = SimDisk(rng=random.Random(1))
    cuts: list[SimDisk] = []
    disk.on_operation = lambda _operation, _path: cuts.extend(disk.power_cut(random.Random(n)) for n in range(4))
    start(disk, LogConfig())
    for after in cuts:
        if after.exists("/data/orders-0"):
            assert read_offsets(after, f"/data/{RECOVERY_POINTS}") == {}


def test_logs_without_identity_and_recovery_points_count_as_flushed() -> None:
    """A user copied them there, for example from a backup, so damage is not taken for the end of an unflushed log."""
    disk = SimDisk(rng=random.Random(1))
    config = LogConfig(segment_bytes=150)
    _, log = start(disk, config)
    append(log, b"a", b"b", b"c", b"d")
    log.close(clean=False)
    disk.remove("/data/meta.properties")
    disk.remove(f"/data/{RECOVERY_POINTS}")
    file = disk.open(log.segments.items[0].path)
    file.truncate(file.size() - 1)
    with pytest.raises(CorruptLog):
        start(disk.kill(), config)
