"""A topic is deleted and created again with the same name, and the process or the power ends at any step: the new
topic never gets data of the old one.
"""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from process_harness import amount, note
from simulation_harness import boot, connect
from tidelog.broker.broker import BrokerServer
from tidelog.log.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from tidelog.model.ids import TopicPartition
from tidelog.simulation.client import SimClient
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World, simulated
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
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.records import Record

OLD_RECORDS, OLD_START, NEW_RECORDS = 30, 20, 3
SETTINGS = {"durability": "fsync", "log_segment_delete_delay_ms": "500"}
KEY = TopicPartition("t", 0)
KILLED = next(seed for seed in range(1000) if 0.25 <= random.Random(seed).random() < 0.35)
"""With this seed, no written byte is lost in a power cut, as with kill -9."""
SHARE = amount(3, 1)
"""In the short test run, the process ends after every third step; in the full run, after every step."""


class End(NamedTuple):
    """The state at the end of the process."""

    disk: SimDisk
    acknowledged: list[bytes]
    """The acknowledged values of the new topic."""
    made: bool
    """Whether the creation of the new topic was answered."""


class Life:
    """One broker on its host. After `watch`, each operation of the disk adds an element to `ends`."""

    def __init__(self, world: World, **settings: str) -> None:
        self.world = world
        self.host = world.host("broker")
        self.settings = {**SETTINGS, **settings}
        self.acknowledged: list[bytes] = []
        self.made = False
        self.damaged = False
        self.old_id: bytes | None = None
        self.ends: list[End] = []
        self.broker: BrokerServer
        self.client: SimClient

    async def start(self) -> None:
        self.broker = await boot(self.host, **self.settings)
        self.client = await connect(self.world.host("client"), self.host)

    async def old_topic(self) -> None:
        """Create the old topic. The checkpoints get offsets that the log of the new topic cannot have."""
        await self.start()
        assert (await self.client.create_topic("t")).error_code == ErrorCode.NONE
        for number in range(OLD_RECORDS):
            await self.client.produce("t", 0, [Record(b"k", b"old %d" % number, 1)])
        part = DeleteRecordsPartition(partition_index=0, offset=OLD_START)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic("t", [part])], timeout_ms=1000)
        answer = await self.client.ask(request, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].low_watermark == OLD_START
        await asyncio.sleep(2.5)
        assert self.entries() == (OLD_RECORDS, OLD_START)
        self.old_id = await id_of(self.client)

    def entries(self, path: str | None = None) -> tuple[int | None, int | None]:
        path = path or self.settings.get("log_dirs", "/data").split(",")[0]
        points = read_offsets(self.host.disk, f"{path}/{RECOVERY_POINTS}") or {}
        starts = read_offsets(self.host.disk, f"{path}/{LOG_START_OFFSETS}") or {}
        return points.get(KEY), starts.get(KEY)

    def watch(self) -> None:
        def end(_operation: str, _path: str) -> None:
            number = len(self.ends)
            how = random.Random(KILLED) if number % 2 else random.Random(number)
            self.ends.append(End(self.host.disk.power_cut(how), list(self.acknowledged), self.made))

        self.host.disk.on_operation = end

    async def delete(self) -> None:
        await delete(self.client)

    async def new_topic(self) -> None:
        """Create the new topic. It has fewer records than the old topic, and ends before the start of the old topic."""
        assert (await self.client.create_topic("t")).error_code == ErrorCode.NONE
        self.made = True
        for number in range(NEW_RECORDS):
            value = b"new %d" % number
            while (await self.client.produce("t", 0, [Record(b"k", value, 1)])).error_code != ErrorCode.NONE:
                await asyncio.sleep(0.2)
            self.acknowledged.append(value)

    async def made_anew(self) -> None:
        self.watch()
        await self.delete()
        await self.new_topic()
        await asyncio.sleep(2.5)
        self.host.disk.on_operation = None
        self.host.kill()


async def check(world: World, number: int, end: End, life: Life) -> None:
    """Check that the next start serves the new topic with all acknowledged records. If the old topic still exists, all
    its records are served, and after its deletion a new topic can be created.
    """
    host = world.host(f"after-{number}")
    host.insert(end.disk)
    broker = await boot(host, **life.settings)
    client = await connect(world.host("client"), host)
    topic_id = await id_of(client)
    if topic_id == life.old_id and topic_id is not None:
        assert not end.made
        if not life.damaged:
            answer, records = await client.fetch("t", 0, OLD_START)
            assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NONE, OLD_START)
            assert [record.value for record in records] == [b"old %d" % n for n in range(OLD_START, OLD_RECORDS)]
        await delete(client)
        topic_id = None
    if topic_id is None:
        assert not end.made
        assert (await client.create_topic("t")).error_code == ErrorCode.NONE
    assert broker.services.partitions.offline_count == 0
    answer, records = await client.fetch("t", 0, 0)
    values = [record.value for record in records]
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NONE, 0)
    assert values[: len(end.acknowledged)] == end.acknowledged
    assert set(values) <= {b"new %d" % n for n in range(NEW_RECORDS)}
    for name in (b"a", b"b"):
        assert (await client.produce("t", 0, [Record(b"k", name, 1)])).error_code == ErrorCode.NONE
    client.close()
    host.kill()


async def id_of(client: SimClient) -> bytes | None:
    return next((topic.topic_id for topic in (await client.metadata(None)).topics if topic.name == "t"), None)


async def delete(client: SimClient) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
    answer = await client.ask(request, DeleteTopicsResponse)
    assert answer.responses[0].error_code == ErrorCode.NONE


def run(name: str, prepare: Callable[[Life], Awaitable[None]], **settings: str) -> None:
    with simulated(1) as world:
        life = Life(world, **settings)

        async def scenario() -> None:
            await life.old_topic()
            await prepare(life)
            await life.made_anew()

        world.run(scenario())
        assert len(life.ends) > 20
        assert len(life.ends[-1].acknowledged) == NEW_RECORDS
        chosen = [n for n in range(len(life.ends)) if n % SHARE == 0 or n == len(life.ends) - 1]
        for number in chosen:
            try:
                world.run(check(world, number, life.ends[number], life))
            except BaseException as error:
                error.add_note(f"ended at step {number} of {len(life.ends)}")
                raise
    note(f"made anew, {name}: ended at {len(chosen)} steps")


def test_in_order() -> None:
    async def nothing(_life: Life) -> None:
        """Do nothing: there is no fault."""

    run("in order", nothing)


@pytest.mark.parametrize("lost", ["its end", "its start", "its id", "everything"])
def test_when_the_old_one_was_offline(lost: str) -> None:
    async def damage(life: Life) -> None:
        life.damaged = True
        life.host.kill()
        disk = life.host.disk
        if lost == "its end":
            disk.open(f"/data/t-0/{0:020d}.log").truncate(100)
        elif lost == "its start":
            disk.remove(f"/data/t-0/{0:020d}.log")
            disk.open(f"/data/t-0/{25:020d}.log", create=True)
        elif lost == "its id":
            disk.write_atomic("/data/t-0/partition.metadata", b"version: 7")
        else:
            disk.remove_tree("/data/t-0")
        disk.sync_dir("/data")
        await life.start()
        assert life.broker.services.partitions.offline_count == 1
        assert life.entries() == (OLD_RECORDS, OLD_START)

    run(f"offline for want of {lost}", damage)


def test_when_the_old_one_went_offline() -> None:
    async def damage(life: Life) -> None:
        life.broker.services.partitions.get("t", 0).log.fail("for this test")

    run("offline since", damage)


@pytest.mark.parametrize("what", ["*checkpoint*", "*"])
def test_when_the_disk_was_full_at_the_deletion(what: str) -> None:
    """The deletion frees space although the disk is full. The new topic waits for this space."""

    async def full(life: Life) -> None:
        disk = life.host.disk

        def space_again() -> None:
            disk.repair()
            disk.limit_space(None)

        delete = life.delete

        async def delete_on_a_full_disk() -> None:
            for kind in ("create", "write"):
                disk.fail(kind, f"/data/{what}.tmp" if what == "*" else what, errno.ENOSPC, times=1 << 30)
            used = disk.medium.used_bytes()
            await delete()
            assert not disk.exists("/data/t-0")
            await asyncio.sleep(1)
            assert disk.medium.used_bytes() < used - OLD_RECORDS * 60
            assert life.entries()[0] == OLD_RECORDS, "that could not be written"
            life.world.loop.call_later(1.0, space_again)

        life.delete = delete_on_a_full_disk  # type: ignore[method-assign]

    run(f"full for {what}", full)


def test_when_the_old_one_could_not_be_put_aside() -> None:
    async def fail(life: Life) -> None:
        life.host.disk.fail("rename", "/data/t-0", errno.ENOMEM)

    run("not renamed", fail)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_when_the_old_one_had_moved(full: bool, back: bool) -> None:
    """If the directory was full, its checkpoints still have entries of the moved partition."""

    async def move(life: Life) -> None:
        async def to(path: str) -> None:
            wanted = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic("t", [0])])]
            answer = await life.client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
            assert answer.results[0].partitions[0].error_code == ErrorCode.NONE
            while life.broker.services.partitions.get("t", 0).log.directory != f"{path}/t-0":
                await asyncio.sleep(0.01)
            while life.broker.services.partitions.get("t", 0).frozen:
                await asyncio.sleep(0.01)

        if full:
            life.host.disk.fail("create", "/a/*checkpoint.tmp", errno.ENOSPC, times=1 << 30)
        await to("/b")
        if full:
            assert life.entries("/a") == (OLD_RECORDS, OLD_START)
        life.host.disk.repair()
        if back:
            await to("/a")

    run(f"moved, full={full}, back={back}", move, log_dirs="/a,/b")


@pytest.mark.parametrize("seed", range(amount(8, 60)))
def test_while_the_old_one_moves(seed: int) -> None:
    async def move(life: Life) -> None:
        wanted = [AlterReplicaLogDir("/b", [AlterReplicaLogDirTopic("t", [0])])]
        answer = await life.client.ask(AlterReplicaLogDirsRequest(wanted), AlterReplicaLogDirsResponse)
        assert answer.results[0].partitions[0].error_code == ErrorCode.NONE
        await asyncio.sleep(random.Random(seed).uniform(0, 0.03))

    run(f"while it moved ({seed})", move, log_dirs="/a,/b")
