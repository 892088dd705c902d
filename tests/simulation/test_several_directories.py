"""A broker with several data directories: placement, a directory that fails at the start or later, refusals."""

import errno

import pytest

from simulation_harness import boot, connect
from tidelog.broker.broker import BrokerServer
from tidelog.log.directories import UnusableDirectories
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.wire.records import Record

TWO = {"log_dirs": "/a,/b"}
DAMAGED = 9999
"""Number of times that the injected error happens: always."""


async def client_of(world: World) -> SimClient:
    return await connect(world.host("client"), world.host("broker"))


async def directories(client: SimClient) -> dict[str, tuple[int, dict[str, list[int]]]]:
    """Return, for each path, the error and the partitions of each topic."""
    answer = await client.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return {
        result.log_dir: (
            result.error_code,
            {topic.name: sorted(p.partition_index for p in topic.partitions) for topic in result.topics},
        )
        for result in answer.results
    }


async def code_of(client: SimClient, partition: int, value: bytes = b"v", topic: str = "t") -> int:
    return (await client.produce(topic, partition, [Record(b"k", value, 1)])).error_code


async def read(client: SimClient, partition: int, topic: str = "t") -> tuple[int, list[bytes | None]]:
    answer, records = await client.fetch(topic, partition, 0)
    return answer.error_code, [record.value for record in records]


async def stop(host: SimHost, broker: BrokerServer) -> None:
    await host.runtime.tasks.spawn(broker.stop(), name="stop")
    host.kill()


def offline_lines(caplog: pytest.LogCaptureFixture, path: str) -> list[str]:
    return [r.message for r in caplog.records if r.message.startswith(f"directory offline path={path} ")]


def test_new_partitions_go_where_the_fewest_are() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, log_dirs="/a,/b,/c")
        client = await client_of(world)
        await client.create_topic("t", 6)
        await client.create_topic("one", 1)
        found = await directories(client)
        assert [len(topics["t"]) for _, topics in found.values()] == [2, 2, 2]
        assert "one" in found["/a"][1]
        ids = {}
        for path in ("/a", "/b", "/c"):
            properties = dict(
                line.split("=") for line in host.disk.read(f"{path}/meta.properties").decode().split()[1:]
            )
            assert (properties["cluster.id"], properties["node.id"]) == (broker.cluster_id, "1")
            ids[properties["directory.id"]] = path
        assert len(ids) == 3
        for number in range(6):
            assert await code_of(client, number, b"%d" % number) == ErrorCode.NONE
        await stop(host, broker)
        assert all(host.disk.exists(f"{path}/.kafka_cleanshutdown") for path in ("/a", "/b", "/c"))
        await boot(host, log_dirs="/a,/b,/c")
        again = await client_of(world)
        assert await directories(again) == found
        for number in range(6):
            assert await read(again, number) == (ErrorCode.NONE, [b"%d" % number])

    with simulated(1) as world:
        world.run(scenario())


def test_a_directory_that_is_added_gets_what_is_new() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, log_dirs="/a")
        await (await client_of(world)).create_topic("t", 3)
        await stop(host, broker)
        await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("u", 3)
        assert await directories(client) == {"/a": (0, {"t": [0, 1, 2]}), "/b": (0, {"u": [0, 1, 2]})}

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("durability", ["interval", "fsync"])
def test_one_that_fails_while_running_takes_its_partitions_along(
    operation: str, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, **TWO, durability=durability)
        client = await client_of(world)
        await client.create_topic("t", 4)
        where = await directories(client)
        lost, kept = where["/b"][1]["t"], where["/a"][1]["t"]
        for number in range(4):
            assert await code_of(client, number) == ErrorCode.NONE
        await world_sleep(world, 3)
        host.disk.fail(operation, "/b/t-*.log", errno.EIO, times=DAMAGED)
        code = await code_of(client, lost[0])
        assert code == (
            ErrorCode.NONE if (operation, durability) == ("sync", "interval") else ErrorCode.KAFKA_STORAGE_ERROR
        )
        await world_sleep(world, 3)
        for number in lost:
            assert await code_of(client, number) == ErrorCode.KAFKA_STORAGE_ERROR
            assert await read(client, number) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        for number in kept:
            assert await code_of(client, number) == ErrorCode.NONE
            assert await read(client, number) == (ErrorCode.NONE, [b"v", b"v"])
        assert await directories(client) == {"/a": (0, {"t": kept}), "/b": (ErrorCode.KAFKA_STORAGE_ERROR, {})}
        [line] = offline_lines(caplog, "/b")
        assert "partitions=2" in line
        await client.create_topic("u", 3)
        assert (await directories(client))["/a"][1]["u"] == [0, 1, 2]
        await stop(host, broker)
        assert host.disk.exists("/a/.kafka_cleanshutdown")
        assert not host.disk.exists("/b/.kafka_cleanshutdown")
        host.disk.repair()
        await boot(host, **TWO)
        again = await client_of(world)
        for number in range(4):
            assert (await read(again, number))[0] == ErrorCode.NONE
            assert await code_of(again, number) == ErrorCode.NONE

    with simulated(1) as world:
        world.run(scenario())


async def world_sleep(world: World, seconds: float) -> None:
    await world.host("client").runtime.tasks.sleep(seconds)


def test_one_whose_small_files_cannot_be_written_is_found_by_the_next_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        host = world.host("broker")
        await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 2)
        host.disk.fail("create", "/b/*checkpoint.tmp", errno.EROFS, times=DAMAGED)
        for _ in range(4):
            for number in (0, 1):
                await code_of(client, number)
            await world_sleep(world, 1.5)
        assert len(offline_lines(caplog, "/b")) == 1
        found = await directories(client)
        assert (found["/a"][0], found["/b"][0]) == (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("operation", ["list", "create", "read"])
def test_one_that_is_out_of_use_at_the_start(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """The partitions of such a directory are offline, and are not created in another directory. New partitions are
    created in the other directories.
    """

    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 4)
        lost, kept = (await directories(client))["/b"][1]["t"], (await directories(client))["/a"][1]["t"]
        for number in range(4):
            assert await code_of(client, number) == ErrorCode.NONE
        await stop(host, broker)
        if operation == "create":
            host.disk.remove("/b/.lock")
        pattern = {"list": "/b", "create": "/b/.lock", "read": "/b/recovery-*"}[operation]
        host.disk.fail(operation, pattern, errno.EIO, times=DAMAGED)
        broker = await boot(host, **TWO)
        client = await client_of(world)
        for number in lost:
            assert await code_of(client, number) == ErrorCode.KAFKA_STORAGE_ERROR
        for number in kept:
            assert await read(client, number) == (ErrorCode.NONE, [b"v"])
        assert len(offline_lines(caplog, "/b")) == 1
        assert broker.services.partitions.offline_count == 2
        await client.create_topic("u", 2)
        assert (await directories(client))["/a"] == (0, {"t": kept, "u": [0, 1]})
        await stop(host, broker)
        host.disk.repair()
        await boot(host, **TWO)
        client = await client_of(world)
        for number in range(4):
            assert await read(client, number) == (ErrorCode.NONE, [b"v"])

    with simulated(1) as world:
        world.run(scenario())


def test_a_directory_that_is_empty_where_one_was_full_is_no_reason_to_begin_anew() -> None:
    """The disk of such a directory was not mounted."""

    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 2)
        await stop(host, broker)
        host.disk.rename("/b", "/unmounted")
        broker = await boot(host, **TWO)
        client = await client_of(world)
        codes = sorted([await code_of(client, 0), await code_of(client, 1)])
        assert codes == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
        with pytest.raises(Exception, match="is its disk not mounted"):
            [broker.services.partitions.get("t", number) for number in (0, 1)]

    with simulated(1) as world:
        world.run(scenario())


def test_the_broker_leaves_when_the_last_one_has_failed() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 2)
        failed = world.loop.create_task(broker.wait_for_failure())
        for path in ("/a", "/b"):
            await world_sleep(world, 1)
            assert not failed.done()
            host.disk.fail("write", f"{path}/t-*.log", errno.EIO, times=DAMAGED)
            for number in (0, 1):
                await code_of(client, number)
        assert "no usable data directory is left, because /b failed: " in await failed
        await stop(host, broker)

    with simulated(1) as world:
        world.run(scenario())


async def refused(world: World, **settings: object) -> str:
    with pytest.raises(UnusableDirectories) as caught:
        await boot(world.host("broker"), **settings)
    return str(caught.value)


def test_what_is_refused() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 2)
        [index] = (await directories(client))["/a"][1]["t"]
        await stop(host, broker)
        source, copy = f"/a/t-{index}", f"/b/t-{index}"
        host.disk.make_dirs(copy)
        for name in host.disk.list(source):
            host.disk.write_atomic(f"{copy}/{name}", host.disk.read(f"{source}/{name}"))
        assert await refused(world, **TWO) == (
            f"partition t-{index} lies in /a and in /b: keep the directory t-{index} that is to be used, and "
            f"move the other t-{index} to a place outside log.dirs"
        )
        host.disk.remove_tree(copy)
        host.disk.fail("list", "/a", errno.EIO, times=DAMAGED)
        assert "metadata.sqlite is in no data directory that can be used (/a: " in await refused(world, **TWO)
        host.disk.fail("list", "/b", errno.EIO, times=DAMAGED)
        assert "none of the data directories (log.dirs) can be used: /a: " in await refused(world, **TWO)
        host.disk.repair()
        identity = host.disk.read("/a/meta.properties")
        kept = host.disk.read("/b/meta.properties")
        host.disk.write_atomic("/b/meta.properties", identity)
        assert await refused(world, **TWO) == "/b is a copy of /a: both have the same directory.id"
        host.disk.write_atomic("/b/meta.properties", kept)
        for name in host.disk.list("/a"):
            if name.startswith("metadata.sqlite"):
                host.disk.write_atomic(f"/b/{name}", host.disk.read(f"/a/{name}"))
        assert "metadata.sqlite lies in /a and in /b" in await refused(world, **TWO)

    with simulated(1) as world:
        world.run(scenario())


def test_a_request_to_move_to_a_directory_that_is_out_of_use() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        await boot(host, **TWO)
        client = await client_of(world)
        await client.create_topic("t", 2)
        lost = (await directories(client))["/b"][1]["t"][0]
        host.disk.fail("write", "/b/t-*.log", errno.EIO, times=DAMAGED)
        await code_of(client, lost)
        wanted = [AlterReplicaLogDir("/b", [AlterReplicaLogDirTopic("t", [0, 1])])]
        answer = await client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
        codes = [partition.error_code for partition in answer.results[0].partitions]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        wanted = [AlterReplicaLogDir("/a", [AlterReplicaLogDirTopic("t", [lost])])]
        answer = await client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
        assert answer.results[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR

    with simulated(1) as world:
        world.run(scenario())
