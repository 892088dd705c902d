"""The broker is killed, or the power is cut, while a partition moves to another data directory."""

import asyncio
import errno
import random
from typing import Any

import pytest

from replication_harness.lone_broker import PATHS, LoneBroker, append, records
from tidelog.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from tidelog.model.ids import TopicPartition
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.world import World, simulated

KEY = TopicPartition("t", 0)
ALL_KEPT = PowerCutOdds(keep=1.0, torn=0.0, wrong_size=0.0)
"""What a killed process leaves: every change, also those that are not synced."""


def run(scenario: Any, seed: int = 1, **settings: Any) -> None:
    async def whole(world: World) -> None:
        await scenario(LoneBroker(world.host("broker"), **settings))

    with simulated(seed) as world:
        world.run(whole(world), virtual_s=3600)


async def with_deleted_records(broker: LoneBroker, deleted_to: int = 5) -> str:
    """Start a broker with a log of 8 records whose start offset is `deleted_to`. Returns the log's data directory."""
    await broker.start({"t": (1, 2)})
    partition = broker.partition()
    for number in range(8):
        append(partition, b"%d" % number)
    await asyncio.sleep(1)
    partition.log.delete_before(deleted_to)
    assert await broker.partitions.persist_start_offsets([partition]) == []
    await asyncio.sleep(1)
    return broker.directory_of(partition)


def entries(disk: SimDisk, path: str, key: TopicPartition = KEY) -> list[int | None]:
    names = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS)
    return [(read_offsets(disk, f"{path}/{name}") or {}).get(key) for name in names]


async def keep_writing(broker: LoneBroker, index: int) -> None:
    """Append to a partition, so that each flush interval writes the checkpoints."""
    while True:
        append(broker.partition(index), b"busy")
        await asyncio.sleep(0.003)


async def until_moved(broker: LoneBroker) -> None:
    while broker.partition() in broker.partitions.moves:
        await asyncio.sleep(0.01)


def test_the_old_log_has_its_entries_in_the_checkpoints_until_it_is_renamed() -> None:
    """The rename waits for a file descriptor while the flusher writes checkpoints. Then the broker is killed."""

    async def scenario(broker: LoneBroker) -> None:
        source = await with_deleted_records(broker)
        before = entries(broker.disk, source)
        assert before == [8, 5, 8]
        writer = asyncio.ensure_future(keep_writing(broker, 1))
        broker.disk.fail("rename", f"{source}/t-0", errno.EMFILE, times=5)
        target = broker.begin_move(broker.partition())
        while broker.directory_of(broker.partition()) != target:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.9)
        left = broker.disk.power_cut(random.Random(1), ALL_KEPT)
        assert left.exists(f"{source}/t-0"), "not renamed yet"
        assert entries(left, source) == before
        await until_moved(broker)
        await asyncio.sleep(0.5)
        writer.cancel()
        assert entries(broker.disk, source) == [None, None, None]
        assert entries(broker.disk, target) == before
        broker.kill()
        await broker.start({"t": (1, 2)}, left)
        assert dict(broker.partitions.unopened) == {}
        assert broker.directory_of(broker.partition()) == source
        assert records(broker.partition()) == [(5, b"5"), (6, b"6"), (7, b"7")]

    run(scenario, segment_bytes=150, file_delete_delay_ms=0)


def test_an_older_start_offset_is_not_written_for_the_copy() -> None:
    """The start of a log moves, and DeleteRecords waits for the sync of another partition. In the meantime the log is
    moved, and a checkpoint is written with the older start offset. The copy has no file there.
    """

    async def scenario(broker: LoneBroker) -> None:
        source = await with_deleted_records(broker, 1)
        target = next(path for path in PATHS if path != source)
        partition, partitions = broker.partition(), broker.partitions
        partition.log.delete_before(5)  # the offsets for the checkpoints do not have it yet
        writes: list[asyncio.Future[None]] = []

        def write_checkpoints(operation: str, path: str) -> None:
            if operation == "rename" and path.endswith("-future"):  # the copy gets its final name
                write = partitions.checkpoint([broker.partition(1)])
                writes.append(broker.host.runtime.tasks.run_blocking(write, lane=CHECKPOINTS_LANE))

        broker.disk.on_operation = write_checkpoints
        assert broker.begin_move(partition) == target
        while not (writes and writes[0].done()):
            await asyncio.sleep(0.0001)
        broker.disk.on_operation = None
        assert entries(broker.disk, target)[:2] == [8, 5]
        await until_moved(broker)
        broker.kill()
        await broker.start({"t": (1, 2)})
        assert dict(broker.partitions.unopened) == {}
        assert broker.directory_of(broker.partition()) == target
        assert records(broker.partition()) == [(5, b"5"), (6, b"6"), (7, b"7")]

    run(scenario, segment_bytes=150)


def test_nothing_stays_pinned_when_a_move_fails() -> None:
    async def scenario(broker: LoneBroker) -> None:
        source = await with_deleted_records(broker)
        target = next(path for path in PATHS if path != source)
        writer = asyncio.ensure_future(keep_writing(broker, 1))
        broker.disk.fail("rename", f"{target}/t-0.*", errno.ENOSPC)
        broker.begin_move(broker.partition())
        await until_moved(broker)
        await asyncio.sleep(1)
        assert entries(broker.disk, target) == [None, None, None]
        assert entries(broker.disk, source) == [8, 5, 8]
        append(broker.partition(), b"8")
        broker.partition().log.delete_before(6)
        assert await broker.partitions.persist_start_offsets([broker.partition()]) == []
        await asyncio.sleep(1)
        writer.cancel()
        assert entries(broker.disk, source) == [9, 6, 9]

    run(scenario, segment_bytes=150)


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("delay_s", [0, 0.02])
@pytest.mark.parametrize("operation", ["rename", "sync_dir"])
def test_the_topic_is_deleted_before_the_old_log_is_renamed(operation: str, delay_s: float, is_made_anew: bool) -> None:
    """The rename, or its sync, waits for a file descriptor. The old log is removed later. A new topic of the same
    name may have its log in the directory of the old one by then.
    """

    async def scenario(broker: LoneBroker) -> None:
        source = await with_deleted_records(broker)
        target = next(path for path in PATHS if path != source)

        def fail_sync(done: str, path: str) -> None:
            if done == "rename" and path == f"{source}/t-0":
                broker.disk.fail("sync_dir", source, errno.EMFILE)
                broker.disk.on_operation = None

        if operation == "sync_dir":
            broker.disk.on_operation = fail_sync
        else:
            broker.disk.fail("rename", f"{source}/t-0", errno.EMFILE)
        broker.begin_move(broker.partition())
        while broker.directory_of(broker.partition()) != target:
            await asyncio.sleep(0.001)
        await asyncio.sleep(delay_s)
        await broker.apply({})
        if is_made_anew:
            broker.directories.cordoned = lambda: (target,)
            await broker.apply({"t": (2, 1)})
            assert broker.directory_of(broker.partition()) == source
            append(broker.partition(), b"new")
        await asyncio.sleep(1)
        assert not [n for n in broker.disk.list(source) + broker.disk.list(target) if n.endswith("-delete")]
        assert not broker.disk.exists(f"{target}/t-0")
        assert broker.disk.exists(f"{source}/t-0") == is_made_anew
        assert entries(broker.disk, target) == [None, None, None]
        assert entries(broker.disk, source) == ([1, None, 1] if is_made_anew else [None, None, None])
        if is_made_anew:
            broker.kill()
            await broker.start({"t": (2, 1)})
            assert dict(broker.partitions.unopened) == {}
            assert records(broker.partition()) == [(0, b"new")]

    run(scenario, segment_bytes=150, file_delete_delay_ms=0)


@pytest.mark.parametrize("is_old_topic", [True, False])
def test_an_unused_directory_with_the_name_of_the_log_is_in_the_way(is_old_topic: bool) -> None:
    """It is of an older topic, or it is the log of an earlier move whose rename failed. The data directory works."""

    async def scenario(broker: LoneBroker) -> None:
        source = await with_deleted_records(broker)
        target = next(path for path in PATHS if path != source)
        if is_old_topic:
            other = broker.disk.read(f"{source}/t-0/partition.metadata").replace(b"AQ", b"Ag")
            broker.disk.make_dirs(f"{target}/t-0")
            broker.disk.write_atomic(f"{target}/t-0/partition.metadata", other)
        else:
            broker.disk.fail("rename", f"{source}/t-0", errno.ENOSPC)
            broker.begin_move(broker.partition())
            await until_moved(broker)
            assert broker.disk.exists(f"{source}/t-0"), "not renamed"
            source, target = target, source
        append(broker.partition(), b"8")
        assert broker.begin_move(broker.partition()) == target
        await until_moved(broker)
        assert dict(broker.directories.failed) == {}
        assert broker.directory_of(broker.partition()) == target
        assert any(name.endswith("-stray") for name in broker.disk.list(target)) == is_old_topic
        append(broker.partition(), b"9")
        broker.kill()
        await broker.start({"t": (1, 2)})
        assert broker.directory_of(broker.partition()) == target
        assert records(broker.partition()) == [(n, b"%d" % n) for n in range(5, 10)]
        await asyncio.sleep(1)
        assert not [n for path in PATHS for n in broker.disk.list(path) if n.endswith("-delete")]

    run(scenario, segment_bytes=150)
