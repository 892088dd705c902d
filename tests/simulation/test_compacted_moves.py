"""Compacted logs, and logs with a moved start, while they move between data directories."""

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from process_harness import amount, seed_of
from simulation_harness import boot, connect
from tidelog.broker.broker import BrokerServer
from tidelog.log.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS, read_offsets
from tidelog.log.partition_log import PartitionLog
from tidelog.model.ids import TopicPartition
from tidelog.replication.moves import Move, Moves
from tidelog.simulation.client import SimClient
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.tasks import SimTasks
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.records import Record

TOPIC = "table"
KEY = TopicPartition(TOPIC, 0)
SETTINGS = {"log_dirs": "/a,/b", "log_cleaner_backoff_ms": 20, "durability": "fsync"}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "internal.segment.bytes": "2000",
    "delete.retention.ms": "200",
}
SEEDS = amount(3, 30)
LIVES = 5


async def move(client: SimClient, path: str) -> int:
    wanted = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(TOPIC, [0])])]
    answer = await client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
    return answer.results[0].partitions[0].error_code


async def moved(broker: BrokerServer, path: str) -> None:
    partitions = broker.services.partitions
    partition = partitions.get(*KEY)
    while partition in partitions.moves or partition.log.directory != f"{path}/{KEY}":
        await asyncio.sleep(0.01)


async def delete_records(client: SimClient, offset: int, topic: str = TOPIC, index: int = 0) -> tuple[int, int]:
    """Delete the records below `offset`. Return the error code and the low watermark."""
    partition = DeleteRecordsPartition(partition_index=index, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=1000)
    answer = await client.ask(request, DeleteRecordsResponse)
    result = answer.topics[0].partitions[0]
    return result.error_code, result.low_watermark


async def write(client: SimClient, count: int, keys: int = 5) -> None:
    for number in range(count):
        answer = await client.produce(TOPIC, 0, [Record(b"k%d" % (number % keys), b"%d" % number + bytes(100), 1)])
        assert answer.error_code == ErrorCode.NONE


async def read_all(client: SimClient, start: int = 0) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    while True:
        answer, records = await client.fetch(TOPIC, 0, start)
        assert answer.error_code == ErrorCode.NONE
        if not records:
            return found
        found |= {record.offset: (record.key, record.value) for record in records if record.offset >= start}
        start = records[-1].offset + 1


def clean_offset(disk: SimDisk, path: str) -> int | None:
    return (read_offsets(disk, f"{path}/{CLEANER_OFFSETS}") or {}).get(KEY)


async def started(world: World, **settings: object) -> tuple[SimHost, BrokerServer, SimClient]:
    host = world.host("broker")
    broker = await boot(host, **{**SETTINGS, **settings})
    return host, broker, await connect(world.host(f"client-{host.starts}"), host)


async def stop(host: SimHost, broker: BrokerServer) -> None:
    await host.runtime.tasks.spawn(broker.stop(), name="stop")
    host.kill()


async def compacted(client: SimClient, disk: SimDisk, path: str = "/a") -> int:
    """Write a table of 300 records in many segments, and compact it. Return the offset up to which it was cleaned."""
    assert (await client.create_topic(TOPIC, configs=COMPACTED)).error_code == ErrorCode.NONE
    await write(client, 300)
    await asyncio.sleep(5)
    offset = clean_offset(disk, path)
    assert offset is not None
    assert offset > 200
    return offset


@pytest.mark.parametrize("ends", ["stop", "kill", "power"])
def test_the_clean_offset_goes_where_the_partition_goes(ends: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host, broker, client = await started(world)
        offset = await compacted(client, host.disk)
        table = await read_all(client)
        assert len(table) < 60
        assert await move(client, "/b") == ErrorCode.NONE
        await moved(broker, "/b")
        assert (clean_offset(host.disk, "/a"), clean_offset(host.disk, "/b")) == (None, offset)
        assert await read_all(client) == table
        if ends == "stop":
            await stop(host, broker)
        elif ends == "kill":
            host.kill()
        else:
            host.cut_power()
        caplog.clear()
        with caplog.at_level("INFO", "tidelog.compaction"):
            host, broker, client = await started(world)
            assert await read_all(client) == table
            await asyncio.sleep(5)
            assert not [r for r in caplog.records if r.name == "tidelog.compaction"], "nothing is cleaned twice"
            await write(client, 200)
            await asyncio.sleep(5)
            lines = [r.getMessage() for r in caplog.records if r.name == "tidelog.compaction"]
        assert f"log cleaned partition={KEY} from={offset} " in lines[0]
        assert clean_offset(host.disk, "/a") is None
        assert (clean_offset(host.disk, "/b") or 0) > offset
        assert dict((await read_all(client)).values()) == {
            b"k%d" % (number % 5): b"%d" % number + bytes(100) for number in range(195, 200)
        }

    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)


def test_the_second_of_two_directories_is_compacted() -> None:
    async def scenario() -> None:
        host, _, client = await started(world)
        assert (await client.create_topic("first", 1)).error_code == ErrorCode.NONE
        offset = await compacted(client, host.disk, "/b")
        assert host.disk.exists(f"/b/{KEY}")
        host.kill()
        host, _, client = await started(world)
        assert clean_offset(host.disk, "/b") == offset
        assert clean_offset(host.disk, "/a") is None

    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)


def test_what_a_cut_swap_and_a_cut_move_left_is_settled_in_each_directory() -> None:
    async def scenario() -> None:
        host, broker, client = await started(world, log_cleaner_enable="false")
        assert (await client.create_topic("first", 1)).error_code == ErrorCode.NONE
        assert (await client.create_topic(TOPIC, configs=COMPACTED)).error_code == ErrorCode.NONE
        await write(client, 60)
        table = await read_all(client)
        segments = broker.services.partitions.get(*KEY).log.segments.items
        first, second = (f"/b/{KEY}/{segment.base_offset:020d}" for segment in segments[:2])
        host.kill()
        disk = host.disk
        for suffix in (".log", ".index", ".timeindex"):
            disk.write_atomic(f"{first}{suffix}.swap", disk.read(first + suffix))
        disk.write_atomic(f"{second}.log.cleaned", b"unfinished")
        future = f"/a/{KEY}.{bytes(16).hex()}-future"
        disk.make_dirs(future)
        for name in disk.list(f"/b/{KEY}"):
            disk.write_atomic(f"{future}/{name}", disk.read(f"/b/{KEY}/{name}"))
        host, broker, client = await started(world, log_cleaner_enable="false")
        await moved(broker, "/a")
        assert await read_all(client) == table
        left = [name for path in ("/a", "/b") for name in host.disk.list(path) if name.startswith(str(KEY))]
        assert sorted(name.rpartition("-")[2] for name in left) == ["0", "delete"]
        assert not [n for n in host.disk.list(f"/a/{KEY}") if n.endswith((".swap", ".cleaned"))]

    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)


def test_a_log_that_begins_in_a_gap_begins_there_after_a_move() -> None:
    """A consumer that has committed an offset in the gap gets no error that its offset is out of range."""

    async def scenario() -> None:
        host, broker, client = await started(world)
        await compacted(client, host.disk)
        partition = broker.services.partitions.get(*KEY)
        first = min(await read_all(client))
        assert first > 100, "below it is a gap"
        partition.log.delete_before(50)
        await move(client, "/b")
        await moved(broker, "/b")
        assert partition.log_start_offset == 50
        assert min(await read_all(client, 50)) == first
        host.kill()
        host, broker, client = await started(world)
        assert broker.services.partitions.get(*KEY).log_start_offset == 50
        assert min(await read_all(client, 50)) == first

    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)


def test_offsets_whose_records_are_gone_are_not_given_again_after_a_move() -> None:
    """The end of the log is after its last record, because all later records were deleted."""

    async def scenario() -> None:
        host, broker, client = await started(world)
        assert (await client.create_topic(TOPIC)).error_code == ErrorCode.NONE
        await write(client, 20)
        assert await delete_records(client, -1) == (ErrorCode.NONE, 20)
        broker.services.partitions.get(*KEY).log.roll(0)
        await move(client, "/b")
        await moved(broker, "/b")
        assert (await client.produce(TOPIC, 0, [Record(b"k", b"v", 1)])).base_offset == 20
        host.kill()
        host, broker, client = await started(world)
        assert list(await read_all(client, 20)) == [20]

    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)


def test_a_copy_without_records_is_emptied_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records that the copy lacks are deleted before the switch, so the copy must begin again at a later offset."""
    places: list[str] = []
    in_thread = False
    run_blocking, restart_at, copy = SimTasks.run_blocking, PartitionLog.restart_at, Moves._copy
    clients: list[SimClient] = []

    def noted_run_blocking(
        tasks: SimTasks, function: Callable[..., Any], *args: object, lane: str = ""
    ) -> "asyncio.Future[Any]":
        def run(*args: object) -> Any:
            nonlocal in_thread
            in_thread = True
            try:
                return function(*args)
            finally:
                in_thread = False

        return run_blocking(tasks, run, *args, lane=lane)

    def noted_restart_at(log: PartitionLog, offset: int) -> None:
        places.append("thread" if in_thread else "loop")
        restart_at(log, offset)

    async def copy_before_more_records_are_deleted(moves: Moves, one: Move) -> bool:
        is_copied = await copy(moves, one)
        await write(clients[0], 5)
        assert await delete_records(clients[0], -1) == (ErrorCode.NONE, 25)
        return is_copied

    async def scenario() -> None:
        host, broker, client = await started(world)
        clients.append(client)
        assert (await client.create_topic(TOPIC)).error_code == ErrorCode.NONE
        await write(client, 20)
        assert await delete_records(client, -1) == (ErrorCode.NONE, 20)
        await move(client, "/b")
        await moved(broker, "/b")
        assert (await client.produce(TOPIC, 0, [Record(b"k", b"v", 1)])).base_offset == 25
        host.kill()
        host, broker, client = await started(world)
        assert list(await read_all(client, 25)) == [25]

    monkeypatch.setattr(SimTasks, "run_blocking", noted_run_blocking)
    monkeypatch.setattr(PartitionLog, "restart_at", noted_restart_at)
    monkeypatch.setattr(Moves, "_copy", copy_before_more_records_are_deleted)
    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)
    assert places == ["thread"]


@pytest.mark.parametrize("seed", range(amount(8, 60)))
def test_a_start_that_was_answered_survives_a_move_and_a_power_cut(seed: int) -> None:
    """This is true at whatever step of a move DeleteRecords arrives, and at whatever step the power fails."""

    async def scenario() -> None:
        rng = random.Random(seed)
        host, _, client = await started(world)
        assert (await client.create_topic(TOPIC)).error_code == ErrorCode.NONE
        await write(client, 40)
        answered = 0

        async def deleting() -> None:
            nonlocal answered
            other = await connect(world.host("deleting"), host)
            for offset in range(1, 40):
                assert await delete_records(other, offset) == (ErrorCode.NONE, offset)
                answered = offset
                await asyncio.sleep(rng.uniform(0, 0.004))

        work = asyncio.ensure_future(deleting())
        for path in ("/b", "/a", "/b"):
            assert await move(client, path) == ErrorCode.NONE
            await asyncio.sleep(rng.uniform(0, 0.05))
        work.cancel()
        await asyncio.wait([work])
        host.cut_power()
        host, broker, client = await started(world)
        start = broker.services.partitions.get(*KEY).log_start_offset
        assert answered <= start <= answered + 1
        assert list(await read_all(client, start)) == list(range(start, 40))

    with simulated(seed) as world:
        world.run(scenario(), virtual_s=120)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_start_is_answered_for_each_directory(error: int) -> None:
    async def scenario() -> None:
        host, _, client = await started(world)
        assert (await client.create_topic(TOPIC, 2)).error_code == ErrorCode.NONE
        for index in (0, 1):
            await client.produce(TOPIC, index, [Record(b"k", b"v", 1)] * 5)
        host.disk.fail("write", f"/b/{LOG_START_OFFSETS}*", error)
        wanted = [DeleteRecordsPartition(partition_index=index, offset=3) for index in (0, 1)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=wanted)], timeout_ms=1000)
        answer = await client.ask(request, DeleteRecordsResponse)
        results = {
            host.disk.exists(f"/b/{TOPIC}-{result.partition_index}"): (result.error_code, result.low_watermark)
            for result in answer.topics[0].partitions
        }
        assert results == {False: (ErrorCode.NONE, 3), True: (ErrorCode.KAFKA_STORAGE_ERROR, -1)}

    with simulated(1) as world:
        world.run(scenario(), virtual_s=120)


async def one_life(
    world: World, number: int, last: dict[bytes, tuple[int, bytes | None]], cleaned: Callable[[], bool] | None
) -> None:
    """Write, compact and move the table at the same time until the power fails, or until `cleaned` returns True."""
    rng = world.rng(f"life {number}")
    host, _, client = await started(
        world, log_initial_task_delay_ms=300, log_retention_check_interval_ms=300, log_segment_delete_delay_ms=100
    )
    if not number:
        await client.create_topic(TOPIC, configs={**COMPACTED, "internal.segment.bytes": "600"})
    found = {key: (offset, value) for offset, (key, value) in (await read_all(client)).items()}
    for key, (offset, value) in last.items():
        known = found.get(key or b"")
        assert (known == (offset, value)) if known is not None else value is None, f"{key!r} is lost or came back"
    assert all(key in last or value is None for key, (_, value) in found.items())
    ended = False

    async def moving() -> None:
        mover = await connect(world.host(f"mover-{number}"), host)
        while not ended:
            assert await move(mover, rng.choice(("/a", "/b"))) == ErrorCode.NONE
            await asyncio.sleep(rng.uniform(0.0, 0.3))

    work = asyncio.ensure_future(moving())
    for count in range(rng.randrange(50, 150)):
        key = b"k%d" % rng.randrange(8)
        value = None if rng.random() < 0.2 else b"%d-%d" % (number, count) + bytes(rng.randrange(60))
        answer = await client.produce(TOPIC, 0, [Record(key, value, 1)])
        assert answer.error_code == ErrorCode.NONE
        last[key] = answer.base_offset, value
        await asyncio.sleep(rng.uniform(0.0, 0.02))
    ended = True
    while cleaned is not None and not cleaned():
        await asyncio.sleep(0.1)
    if rng.random() < 0.5:
        host.cut_power()
    else:
        host.kill()
    work.cancel()
    await asyncio.wait([work])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_table_that_is_compacted_and_moved_loses_and_regains_nothing(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidelog")
    last: dict[bytes, tuple[int, bytes | None]] = {}

    def lines(start: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith(start)]

    with simulated(seed_of("compacted moves") + seed) as world:
        for number in range(LIVES):
            # A pass is abandoned when a move begins, so with some seeds no pass would be complete.
            cleaned = (lambda: bool(lines("log cleaned"))) if number == LIVES - 1 else None
            world.run(one_life(world, number, last, cleaned), virtual_s=120)
    said = [record.getMessage() for record in caplog.records]
    assert lines("partition moved")
    assert lines("log cleaned")
    assert not [line for line in said if "offline" in line and "offline=0" not in line]
