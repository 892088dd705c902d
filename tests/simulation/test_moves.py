"""Partitions move between data directories during writes and reads, and power is cut meanwhile."""

import asyncio
import errno
from typing import Any, NamedTuple

import pytest

from process_harness import note
from simulation_harness import boot, connect
from tidelog.broker.broker import BrokerServer
from tidelog.replication.moves import PARALLEL_MOVES_MAX, PAUSE_MAX_S, Move, Moves
from tidelog.simulation.client import SimClient
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.wire.records import Record

TWO = {"log_dirs": "/a,/b"}
VALUE = bytes(2000)


async def client_of(world: World, name: str = "client", broker: str = "broker") -> SimClient:
    return await connect(world.host(name), world.host(broker))


async def move(client: SimClient, path: str, topic: str = "t", index: int = 0) -> int:
    wanted = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(topic, [index])])]
    answer = await client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
    return answer.results[0].partitions[0].error_code


class Copy(NamedTuple):
    path: str
    size: int
    lag: int
    future: bool


async def copies(client: SimClient, topic: str = "t", index: int = 0) -> list[Copy]:
    answer = await client.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return [
        Copy(result.log_dir, p.partition_size, p.offset_lag, p.is_future_key)
        for result in answer.results
        for t in result.topics
        if t.name == topic
        for p in t.partitions
        if p.partition_index == index
    ]


async def moved(client: SimClient, path: str, topic: str = "t") -> None:
    while [(copy.path, copy.future) for copy in await copies(client, topic)] != [(path, False)]:
        await asyncio.sleep(0.01)


class Writer:
    """Writes numbered records one after another, as an idempotent producer, and keeps what was acknowledged."""

    def __init__(self, client: SimClient) -> None:
        self.client = client
        self.acknowledged: dict[int, bytes] = {}
        self.refused: list[int] = []
        self.stopped = False
        self._sequence = 0

    async def run(self) -> None:
        identity = await self.client.init_producer()
        while not self.stopped:
            value = b"%d " % self._sequence + VALUE
            producer = (identity.producer_id, identity.producer_epoch, self._sequence)
            answer = await self.client.produce("t", 0, [Record(b"k", value, 1)], producer=producer)
            if answer.error_code == ErrorCode.NONE:
                self.acknowledged[answer.base_offset] = value
                self._sequence += 1
            else:
                self.refused.append(answer.error_code)


async def read_all(client: SimClient, topic: str = "t", start: int = 0) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    while True:
        answer, records = await client.fetch(topic, 0, start)
        assert answer.error_code == ErrorCode.NONE
        if not records:
            return found
        found |= {record.offset: record.value for record in records if record.offset >= start}
        start = records[-1].offset + 1


async def prepared(world: World, records: int = 40, **settings: object) -> tuple[BrokerServer, SimClient]:
    """Start a broker with two directories. The first directory has a topic with several segments."""
    broker = await boot(world.host("broker"), **TWO, log_segment_bytes=1 << 20, **settings)
    client = await client_of(world)
    await client.create_topic("t", 1)
    for number in range(records):
        assert (await client.produce("t", 0, [Record(b"k", b"%d" % number * 5000, 1)])).error_code == ErrorCode.NONE
    assert (await copies(client))[0].path == "/a"
    return broker, client


async def stop(host: SimHost, broker: BrokerServer) -> None:
    await host.runtime.tasks.spawn(broker.stop(), name="stop")
    host.kill()


@pytest.mark.parametrize("skip", [*range(8), 12, 20])
@pytest.mark.parametrize("operation", ["create", "sync", "sync_dir", "read", "list"])
def test_a_move_waits_for_descriptors(operation: str, skip: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker, client = await prepared(world, durability="fsync")
        before = await read_all(client)
        for path in ("/b", "/a"):
            host.disk.fail(operation, "/[ab]/*", errno.EMFILE, skip=skip, times=3)
            host.disk.fail(operation, "/[ab]", errno.EMFILE, skip=skip // 4, times=3)
            assert await move(client, path) == ErrorCode.NONE
            await moved(client, path)
            host.disk.repair()
        assert await read_all(client) == before
        assert (await client.produce("t", 0, [Record(b"k", b"new", 1)])).error_code == ErrorCode.NONE
        await stop(host, broker)
        await boot(host, **TWO)
        found = await read_all(await client_of(world, "later"))
        assert found == {**before, len(before): b"new"}

    with simulated(1) as world:
        world.run(scenario(), virtual_s=200)
    lines = [r.getMessage() for r in caplog.records]
    assert not [line for line in lines if "offline" in line or "move failed" in line or "not removed" in line]


def test_of_many_moves_some_go_on_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    side_by_side: list[int] = []
    copying: list[None] = []
    inner = Moves._copy

    async def copy(moves: Moves, one: Move) -> bool:
        copying.append(None)
        side_by_side.append(len(copying))
        try:
            return await inner(moves, one)
        finally:
            copying.pop()

    monkeypatch.setattr(Moves, "_copy", copy)

    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 50)
        for path in ("/a", "/b", "/a"):
            wanted = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic("t", list(range(50)))])]
            await client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
            if path == "/a":
                while any(broker.services.partitions.moves):
                    await asyncio.sleep(0.01)
        assert {p.log.directory.rpartition("/")[0] for p in broker.services.partitions} == {"/a"}
        assert not [name for path in ("/a", "/b") for name in host.disk.list(path) if name.endswith("-future")]
        wanted = [AlterReplicaLogDir("/b", [AlterReplicaLogDirTopic("t", list(range(50)))])]
        await client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
        await stop(host, broker)  # moves that wait do not delay the stop
        broker = await boot(host, **TWO)
        while any(broker.services.partitions.moves):
            await asyncio.sleep(0.01)
        assert {p.log.directory.rpartition("/")[0] for p in broker.services.partitions} == {"/b"}, "none is forgotten"
        assert not [name for path in ("/a", "/b") for name in host.disk.list(path) if name.endswith("-future")]

    with simulated(1) as world:
        world.run(scenario(), virtual_s=60)
    assert 1 < max(side_by_side) <= PARALLEL_MOVES_MAX


@pytest.mark.parametrize("durability", ["interval", "fsync"])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_written_and_read_all_the_while(seed: int, durability: str) -> None:
    async def scenario() -> None:
        broker, client = await prepared(world, durability=durability)
        writer = Writer(await client_of(world, "writer"))
        writing = asyncio.ensure_future(writer.run())
        waiting = asyncio.ensure_future((await client_of(world, "reader")).fetch("t", 0, 10_000, wait_ms=600_000))
        for path in ("/b", "/a", "/b"):
            assert await move(client, path) == ErrorCode.NONE
            await moved(client, path)
            await asyncio.sleep(0.05)
        writer.stopped = True
        await writing
        waiting.cancel()
        assert writer.refused == []
        assert len(writer.acknowledged) > 3
        found = await read_all(client)
        assert list(found) == list(range(40 + len(writer.acknowledged)))
        assert {offset: found[offset] for offset in writer.acknowledged} == writer.acknowledged
        host = world.host("broker")
        assert [name for name in host.disk.list("/a") if name == "t-0" or name.endswith("future")] == []
        await asyncio.sleep(70)
        assert [name for name in host.disk.list("/a") if name.endswith("-delete")] == []
        await stop(host, broker)
        await boot(host, **TWO, log_segment_bytes=1 << 20, durability=durability)
        client = await client_of(world)
        assert await read_all(client) == found
        assert [copy.path for copy in await copies(client)] == ["/b"]

    with simulated(seed) as world:
        world.run(scenario())


def test_what_a_producer_sent_before_is_known_after() -> None:
    """This is also true after retention has deleted the batches: a repeated batch is answered with its old offset."""

    async def scenario() -> None:
        _, client = await prepared(world)
        identity = await client.init_producer()
        producer = (identity.producer_id, identity.producer_epoch, 0)
        first = await client.produce("t", 0, [Record(b"k", b"once", 1)], producer=producer)
        await move(client, "/b")
        await moved(client, "/b")
        again = await client.produce("t", 0, [Record(b"k", b"once", 1)], producer=producer)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_commits_go_on_while_the_offsets_move(seed: int) -> None:
    async def scenario() -> None:
        await prepared(world, offsets_topic_num_partitions=1)
        client = await client_of(world, "member")
        while (await client.find_coordinator("g")).error_code != ErrorCode.NONE:
            await asyncio.sleep(0.1)
        member = SimMember(client, "g", ["t"])
        while await member.join() != ErrorCode.NONE:
            await asyncio.sleep(0.1)
        assert await member.sync({"t": 1}) == ErrorCode.NONE
        admin = await client_of(world)
        committed = 0
        ended = False

        async def commit() -> None:
            nonlocal committed
            while not ended:
                committed += 1
                assert await member.commit("t", 0, committed) == ErrorCode.NONE
                assert await member.heartbeat() == ErrorCode.NONE, "the coordinator was not unloaded"

        committing = asyncio.ensure_future(commit())
        moves = 0
        while moves < 4 or committed < 4:
            path = ("/b", "/a")[moves % 2]
            assert await move(admin, path, "__consumer_offsets") == ErrorCode.NONE
            await moved(admin, path, "__consumer_offsets")
            moves += 1
        ended = True
        await committing
        assert await member.committed("t", 0) == (committed, ErrorCode.NONE)
        world.host("broker").kill()
        await boot(world.host("broker"), **TWO, offsets_topic_num_partitions=1)
        reader = SimMember(await client_of(world), "g", ["t"])
        while (await reader.committed("t", 0))[1] != ErrorCode.NONE:
            await asyncio.sleep(0.1)
        assert (await reader.committed("t", 0))[0] == committed

    with simulated(seed) as world:
        world.run(scenario())


def test_a_slow_move_is_seen_given_up_and_begun_anew_after_a_kill() -> None:
    async def scenario() -> None:
        slow = {"replica_alter_log_dirs_io_max_bytes_per_second": 100_000}
        broker, client = await prepared(world, 400, **slow)
        await move(client, "/b")
        await asyncio.sleep(1)
        here, future = await copies(client)
        assert (here.path, here.future, here.lag) == ("/a", False, 0)
        assert (future.path, future.future) == ("/b", True)
        assert 0 < future.size < here.size
        assert 0 < future.lag < 400
        assert await move(client, "/a") == ErrorCode.NONE, "to where it lies: given up"
        while len(await copies(client)) > 1:
            await asyncio.sleep(0.1)
        host = world.host("broker")
        assert [name for name in host.disk.list("/b") if name.startswith("t-0")] == []
        await move(client, "/b")
        await asyncio.sleep(1)
        assert await client.create_topic("deleted", 1)
        host.kill()
        broker = await boot(host, **TWO, log_segment_bytes=1 << 20)
        client = await client_of(world)
        await moved(client, "/b")
        assert len(await read_all(client)) == 400
        await stop(host, broker)

    with simulated(1) as world:
        world.run(scenario())


def test_a_stop_in_the_middle_leaves_the_copy_for_the_next_start() -> None:
    async def scenario() -> None:
        broker, client = await prepared(world, 400, replica_alter_log_dirs_io_max_bytes_per_second=100_000)
        await move(client, "/b")
        await asyncio.sleep(1)
        host = world.host("broker")
        await stop(host, broker)
        assert host.disk.exists("/a/.kafka_cleanshutdown")
        broker = await boot(host, **TWO, log_segment_bytes=1 << 20)
        client = await client_of(world)
        await moved(client, "/b")
        assert len(await read_all(client)) == 400

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync", "sync_dir", "rename", "create", "read", "remove"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("where", ["/a", "/b"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_an_error_on_the_way_costs_no_record(operation: str, error: int, where: str, skip: int) -> None:
    """The move or its directory fails. All acknowledged records exist after a restart."""

    async def scenario() -> None:
        host = world.host("broker")
        broker, client = await prepared(world)
        await asyncio.sleep(3)
        pattern = f"{where}*" if operation in ("sync_dir", "remove") else f"{where}/t-0*"
        host.disk.fail(operation, pattern, error, skip=skip)
        await move(client, "/b")
        await asyncio.sleep(5)
        acknowledged = [bytes(b"%d" % number * 5000) for number in range(40)]
        out_of_use = list(broker.services.partitions.directories.failed)
        assert out_of_use in ([], [where]), "the other directory is not to blame"
        for number in range(5):
            answer = await client.produce("t", 0, [Record(b"k", b"later %d" % number, 1)])
            if answer.error_code == ErrorCode.NONE:
                acknowledged.append(b"later %d" % number)
            else:
                assert error == errno.EIO
        host.kill()
        await boot(host, **TWO, log_segment_bytes=1 << 20)
        client = await client_of(world)
        assert list((await read_all(client)).values()) == acknowledged
        await asyncio.sleep(5)
        assert len([copy for copy in await copies(client) if not copy.future]) == 1

    with simulated(1) as world:
        world.run(scenario())


def test_a_log_whose_file_ends_inside_a_batch_goes_offline_and_not_its_directory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The bytes are lost, so no client may continue to write after them."""

    async def scenario() -> None:
        host = world.host("broker")
        broker, client = await prepared(world)
        partition = broker.services.partitions.get("t", 0)
        segment = partition.log.segments.active
        host.disk.open(segment.path).truncate(segment.size - 100)
        await move(client, "/b")
        while partition in broker.services.partitions.moves:
            await asyncio.sleep(0.01)
        assert (await client.produce("t", 0, [Record(b"k", b"v", 1)])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.services.partitions.directories.failed == {}

    with simulated(1) as world:
        world.run(scenario())
    assert "log offline partition=t-0 reason=/a/t-0/" in caplog.text
    assert "the file ends inside a batch" in caplog.text


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02, 0.05, 0.5])
def test_the_topic_is_deleted_while_it_moves_and_made_anew(delay_s: float) -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker, client = await prepared(world, 100, replica_alter_log_dirs_io_max_bytes_per_second=10_000_000)
        await move(client, "/b")
        await asyncio.sleep(delay_s)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
        answer = await client.ask(request, DeleteTopicsResponse)
        assert answer.responses[0].error_code == ErrorCode.NONE
        assert (await client.create_topic("t", 1)).error_code == ErrorCode.NONE
        assert (await client.produce("t", 0, [Record(b"k", b"new")])).base_offset == 0
        await asyncio.sleep(100)
        assert list((await read_all(client)).values()) == [b"new"]
        left = [name for path in ("/a", "/b") for name in host.disk.list(path) if name.startswith("t-0")]
        assert left == ["t-0"]
        await stop(host, broker)
        assert host.disk.exists("/a/.kafka_cleanshutdown")
        await boot(host, **TWO, log_segment_bytes=1 << 20)
        assert list((await read_all(await client_of(world))).values()) == [b"new"]

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_the_topic_is_deleted_at_any_step_of_its_move(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """A missing file of a deleted topic does not take the directory out of use."""

    async def scenario() -> None:
        host = world.host("broker")
        broker, client = await prepared(world, 5)
        other = await client_of(world, "other")
        assert (await client.create_topic("bystander", 1)).error_code == ErrorCode.NONE
        await asyncio.sleep(3)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
        rng = world.rng("targets")
        for _ in range(20):
            target = rng.choice(["/a", "/b"])
            await asyncio.gather(move(client, target), other.ask(request, DeleteTopicsResponse))
            assert (await client.create_topic("t", 1)).error_code == ErrorCode.NONE
            assert (await client.produce("t", 0, [Record(b"k", VALUE, 1)])).base_offset == 0
        await asyncio.sleep(100)
        assert (await client.produce("bystander", 0, [Record(b"k", b"v", 1)])).error_code == ErrorCode.NONE
        assert not broker.services.partitions.directories.failed
        assert sorted(name for path in ("/a", "/b") for name in host.disk.list(path) if "-0" in name) == [
            "bystander-0", "t-0",
        ]  # fmt: skip
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []

    with simulated(seed) as world:
        world.run(scenario())


@pytest.mark.parametrize("last", ["_pause", "_flush"])
@pytest.mark.parametrize("event", ["deleted", "source", "target"])
def test_what_ends_a_move_just_before_the_switch(
    last: str, event: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is deleted, or a directory fails, while the move waits for the last time before its switch."""

    async def scenario() -> None:
        host = world.host("broker")
        broker, client = await prepared(world)
        await asyncio.sleep(3)
        partitions = broker.services.partitions
        waited = getattr(Moves, last)

        async def wait(moves: Moves, *args: Any) -> None:
            if event == "deleted":
                request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
                await client.ask(request, DeleteTopicsResponse)
            else:
                partitions.fail_soon("/a" if event == "source" else "/b", "it is broken")
                await asyncio.sleep(0.1)
            await waited(moves, *args)

        monkeypatch.setattr(Moves, last, wait)
        await move(client, "/b")
        await asyncio.sleep(10)
        assert not list(partitions.moves)
        if event != "target":
            assert [name for name in host.disk.list("/b") if name.startswith("t-0")] == []
        assert [r.getMessage() for r in caplog.records if r.name in ("tidelog.tasks", "tidelog.moves")] == []
        if event == "target":
            assert len(await read_all(client)) == 40

    with simulated(1) as world:
        world.run(scenario())


def test_a_throttled_move_of_a_deleted_topic_ends_soon() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        _, client = await prepared(world, replica_alter_log_dirs_io_max_bytes_per_second=1000)
        await move(client, "/b")
        await asyncio.sleep(1)
        assert [copy.future for copy in await copies(client)] == [False, True]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
        await client.ask(request, DeleteTopicsResponse)
        await asyncio.sleep(2 * PAUSE_MAX_S)
        assert [name for name in host.disk.list("/b") if name.startswith("t-0")] == []

    with simulated(1) as world:
        world.run(scenario())


def test_from_a_disk_without_a_byte_left() -> None:
    """A full disk is a reason to move a partition. A partition of the same name can be created there later."""

    async def scenario() -> None:
        host = world.host("broker")
        _, client = await prepared(world)
        await asyncio.sleep(3)
        for kind in ("create", "write"):
            host.disk.fail(kind, "/a/*", errno.ENOSPC, times=1 << 30)
        await move(client, "/b")
        await moved(client, "/b")
        assert len(await read_all(client)) == 40
        assert not host.disk.exists("/a/t-0")
        host.kill()
        await boot(host, **TWO, log_segment_bytes=1 << 20)
        client = await client_of(world)
        assert len(await read_all(client)) == 40
        await move(client, "/a")
        await moved(client, "/a")
        assert len(await read_all(client)) == 40

    with simulated(1) as world:
        world.run(scenario())


class Cut(NamedTuple):
    number: int
    disk: SimDisk
    acknowledged: dict[int, bytes]


@pytest.mark.parametrize("seed", range(2))
def test_power_cuts_at_every_step_of_a_move(seed: int) -> None:
    """After a restart, one directory has the log, with all acknowledged records. The log can be written and moved."""
    cuts: list[Cut] = []

    async def life() -> None:
        _, client = await prepared(world, durability="fsync")
        disk = world.host("broker").disk
        first = await read_all(client)
        writer = Writer(await client_of(world, "writer"))
        writing = asyncio.ensure_future(writer.run())

        def note_step(operation: str, path: str) -> None:
            del operation, path
            known = {offset: value for offset, value in first.items() if value is not None} | writer.acknowledged
            cuts.append(Cut(disk.operations, disk.power_cut(), known))

        disk.on_operation = note_step
        await move(client, "/b")
        await moved(client, "/b")
        await asyncio.sleep(0.02)
        disk.on_operation = None
        writer.stopped = True
        await writing
        world.host("broker").kill()

    async def after(cut: Cut) -> str:
        name = f"after-{cut.number}"
        host = world.host(name)
        host.insert(cut.disk)
        settings = {"log_segment_bytes": 1 << 20, "durability": "fsync"}
        broker = await boot(host, **TWO, **settings)
        path = broker.services.partitions.get("t", 0).log.directory.rpartition("/")[0]
        client = await client_of(world, broker=name)
        found = await read_all(client)
        assert {offset: found.get(offset) for offset in cut.acknowledged} == cut.acknowledged, (
            f"after step {cut.number}"
        )
        assert list(found) == list(range(len(found)))
        assert len([copy for copy in await copies(client) if not copy.future]) == 1
        assert (await client.produce("t", 0, [Record(b"k", b"after", 1)])).base_offset == len(found)
        await move(client, "/b")
        await moved(client, "/b")
        assert list((await read_all(client)).values())[-1] == b"after"
        client.close()
        host.kill()
        return path

    with simulated(seed) as world:
        world.run(life())
        paths = [world.run(after(cut)) for cut in cuts]
        assert set(paths) == {"/a", "/b"}
        note(f"moves: power cut at {len(cuts)} steps, {paths.count('/b')} times the copy counted")


def test_the_longest_names() -> None:
    """The names of their directories have no space for an id or a suffix. Such partitions cannot be moved, but can be
    deleted.
    """

    async def scenario() -> None:
        name = "t" * 249
        broker = await boot(world.host("broker"), **TWO)
        client = await client_of(world)
        for _ in range(3):
            await client.create_topic(name, 1)
            assert (await client.produce(name, 0, [Record(b"k", b"v", 1)])).base_offset == 0
            there = (await copies(client, name))[0].path
            assert await move(client, there, name) == ErrorCode.NONE
            elsewhere = "/b" if there == "/a" else "/a"
            assert await move(client, elsewhere, name) == ErrorCode.INVALID_TOPIC_EXCEPTION
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name)], timeout_ms=10_000)
            answer = await client.ask(deletion, DeleteTopicsResponse)
            assert answer.responses[0].error_code == ErrorCode.NONE
        await client.create_topic("other", 2)
        for index in range(2):
            assert (await client.produce("other", index, [Record(b"k", b"v", 1)])).error_code == ErrorCode.NONE
        await stop(world.host("broker"), broker)

    with simulated(1) as world:
        world.run(scenario())
