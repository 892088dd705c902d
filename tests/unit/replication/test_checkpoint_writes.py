"""The checkpoint files have the offsets of every partition, although each write formats only what changed."""

import contextlib
import errno
import random
from typing import Any, cast

import pytest

from tidelog.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from tidelog.log.directory import DataDirectory
from tidelog.model.ids import TopicPartition
from tidelog.replication.offsets import Offsets
from tidelog.simulation.disk import SimDisk

NAMES = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS)
KEYS = [TopicPartition("orders", index) for index in range(6)]


class Partition:
    """A partition as `Offsets` uses it."""

    def __init__(self, key: TopicPartition, rng: random.Random) -> None:
        self.log = self
        self.topic_partition = key
        self.recovery_point = self.durable_offset = rng.randrange(2, 5)
        self.log_start_offset = rng.randrange(3)
        self.high_watermark = rng.randrange(5)
        self.is_being_cut = False


def files(disk: SimDisk) -> list[dict[TopicPartition, int]]:
    return [read_offsets(disk, f"/data/{name}") or {} for name in NAMES]


@pytest.mark.parametrize("seed", range(40))
def test_every_write_that_succeeds_leaves_all_offsets_on_the_disk(seed: int) -> None:
    """Partitions change, are deleted and are cut, writes fail and are skipped, and entries are removed in between."""
    rng = random.Random(seed)
    disk = SimDisk(rng=random.Random(seed))
    directory = DataDirectory.open(disk, "/data")
    offsets = Offsets()
    expected: list[dict[TopicPartition, int]] = [{}, {}, {}]
    for _ in range(200):
        key = rng.choice(KEYS)
        partition = cast(Any, Partition(key, rng))
        action = rng.randrange(10)
        if action < 5:
            offsets.update(partition)
            values = (partition.recovery_point, partition.log_start_offset, partition.high_watermark)
            for by_key, value in zip(expected, values, strict=True):
                by_key[key] = value
        elif action == 5:
            offsets.lower(partition, 1)
            offsets.end_cut(partition)
            expected[0][key] = 1
        elif action == 6:
            offsets.forget(partition)
            if rng.random() < 0.5:
                directory.remove_entries(key)
                directory._retired.pop(key)  # a partition of this name is created again
            for by_key in expected:
                by_key.pop(key, None)
        elif action == 7:
            offsets.copies()  # the thread that should write them was cancelled
        elif action == 8:
            if rng.random() < 0.5:
                disk.fail("create", f"*{rng.choice(NAMES)}*", errno.ENOSPC)
            else:  # the new file has its name, but possibly not durably
                disk.fail("sync_dir", "/data", errno.ENOSPC, skip=rng.randrange(3))
            with contextlib.suppress(OSError):  # nothing fails if that file has not changed
                directory.write_checkpoints(*offsets.copies())
            disk.repair()
        else:
            directory.write_checkpoints(*offsets.copies())
            assert files(disk) == [
                expected[0],
                {key: offset for key, offset in expected[1].items() if offset},
                expected[2],
            ]
            assert files(disk.power_cut(rng)) == files(disk)
            if rng.random() < 0.3:  # a restart
                disk = disk.kill()
                directory = DataDirectory.open(disk, "/data")
                offsets = Offsets()
                for known_key in list(expected[0]):  # the logs are opened again: the first write changes nothing
                    partition = cast(Any, Partition(known_key, rng))
                    partition.recovery_point = partition.durable_offset = expected[0][known_key]
                    partition.log_start_offset = expected[1].get(known_key, 0)
                    partition.high_watermark = expected[2].get(known_key, 0)
                    offsets.update(partition)
                    expected[1][known_key] = min(partition.log_start_offset, partition.durable_offset)
                    expected[2][known_key] = partition.high_watermark
