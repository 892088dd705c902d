"""Fetches by followers at a real broker: refused unless they are switched on; sessions, ends, divergence, waiting."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from follower_harness import Entry, FollowerReplica, entries_in
from simulation_harness import PORT, boot
from tidelog.api.follower_fetch import EndWatcher, Follower
from tidelog.api.services import Services
from tidelog.client.channel import Channel
from tidelog.client.cluster import Address
from tidelog.client.operations import EARLIEST, LATEST
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import ImageBuilder
from tidelog.metadata.link import CreateTopics
from tidelog.metadata.records import BrokerRegistered
from tidelog.replication.fetcher import Fetcher
from tidelog.replication.followed import FetchSettings
from tidelog.replication.partition import Partition
from tidelog.simulation.world import World, simulated
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ErrorCode, NotLeaderOrFollower
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.records import Record, encode_batch

FOLLOWER, EPOCH = 2, 40
WIDE = 250


class FakeFollowers:
    """Records the reports, and holds the high watermarks where the test puts them."""

    def __init__(self, services: Services) -> None:
        self.reports: list[tuple[int, int, int, int, int]] = []
        """Partition, broker, its epoch, fetch offset and log start offset of each report."""
        self.refused: dict[int, None] = {}
        self.watchers: dict[EndWatcher, None] = {}
        self._services = services

    def fetched(
        self, partition: Partition, follower: Follower, fetch_offset: int, log_start_offset: int, proved_ms: int
    ) -> None:
        if partition.index in self.refused:
            raise NotLeaderOrFollower(f"broker {follower.broker_id} is no replica")
        self.reports.append((partition.index, *follower, fetch_offset, log_start_offset))

    async def wait_for_log_start(self, *arguments: object) -> int:
        raise NotImplementedError

    def must_wait(self, partition: Partition, broker: int) -> bool:
        return False

    def sent(self, partition: Partition, broker: int, byte_count: int) -> None: ...
    def watch_ends(self, watcher: EndWatcher) -> None:
        self.watchers[watcher] = None

    def unwatch_ends(self, watcher: EndWatcher) -> None:
        self.watchers.pop(watcher, None)


class Stage:
    """A broker with topic "t", and a channel to it from another host."""

    def __init__(self, world: World, services: Services) -> None:
        self.world = world
        self.services = services
        self.followers = FakeFollowers(services)
        self.topic_id = services.metadata.image.topics["t"].topic_id
        self.client = world.host("follower").runtime
        self.channel = Channel(self.client, Address(world.host("broker").address, PORT))

    def switch_on(self) -> None:
        """Register the follower, and let the broker have followers."""
        services = self.services
        own = services.metadata.image.brokers[services.config.node_id]
        other = BrokerRegistered(FOLLOWER, EPOCH, "other", own.endpoints, None)
        services.metadata.image = ImageBuilder(services.metadata.image).apply([other]).build()
        services.followers = self.followers

    def partition(self, index: int = 0) -> Partition:
        return self.services.partitions.get("t", index)

    def append(self, value: bytes, index: int = 0, *, committed: bool = True) -> None:
        """Append a record. Unless it is `committed`, the high watermark does not move, as when a follower is behind."""
        partition = self.partition(index)
        batch = encode_batch([Record(value=value)])
        if committed:
            partition.append(memoryview(batch), BatchHeader(batch))
        else:
            log = partition.log
            log.append(memoryview(batch), BatchHeader(batch), leader_epoch=partition.leader_epoch, now_ms=0)
        for watcher in list(self.followers.watchers):
            watcher.moved(partition)

    def request(self, *offsets: int, epoch: int = EPOCH, broker: int = FOLLOWER, **fields: Any) -> FetchRequest:
        items = [
            FetchPartition(partition=index, fetch_offset=offset, log_start_offset=7, partition_max_bytes=1 << 20)
            for index, offset in enumerate(offsets)
        ]
        topics = [FetchTopic(topic="t", topic_id=self.topic_id, partitions=items)] if items else []
        state = ReplicaState(broker, epoch)
        defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        return FetchRequest(topics=topics, replica_state=state, **(defaults | fields))

    async def ask(self, *offsets: int, version_max: int = 18, **fields: Any) -> FetchResponse:
        return await self.send(self.request(*offsets, **fields), version_max)

    async def send(self, request: FetchRequest, version_max: int = 18) -> FetchResponse:
        return await self.channel.ask(request, FetchResponse, version_max=version_max)


def run(scenario: Callable[[Stage], Coroutine[Any, Any, None]], partitions: int = 3, **settings: Any) -> None:
    async def whole() -> None:
        broker = await boot(world.host("broker"), **settings)
        await broker.services.controller.create_topics(CreateTopics([NewTopic("t", partitions, 1)]))
        stage = Stage(world, broker.services)
        await scenario(stage)
        assert not stage.followers.watchers, "something still watches"
        await broker.stop()

    with simulated(1) as world:
        world.run(whole())


def parts(response: FetchResponse) -> dict[int, PartitionData]:
    assert response.error_code == 0
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def values(data: PartitionData) -> list[bytes]:
    records: Any = data.records
    return [value for _, _, value in entries_in(records)]


@pytest.mark.parametrize("how", ["off", "unknown", "itself", "stale"])
@pytest.mark.parametrize("version", [12, 14, 18])
def test_a_follower_that_is_none_is_refused(how: str, version: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.append(b"x")
        if how != "off":
            stage.switch_on()
        request = stage.request(
            0,
            broker={"unknown": 3, "itself": 1}.get(how, FOLLOWER),
            epoch=EPOCH - 1 if how == "stale" else EPOCH,
        )
        if version < 15:
            assert request.replica_state is not None
            request.replica_id, request.replica_state = request.replica_state.replica_id, None
        if how == "stale" and version < 15:
            return
        data = parts(await stage.send(request, version))[0]
        assert (data.error_code, data.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        assert stage.followers.reports == []

    run(scenario)


@pytest.mark.parametrize("version", [12, 14, 18])
def test_a_follower_reads_to_the_end_and_is_reported(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        stage.append(b"committed")
        stage.append(b"not yet", committed=False)
        request = stage.request(0, 0, 1)
        if version < 15:
            request.replica_id, request.replica_state = FOLLOWER, None
        answered = parts(await stage.send(request, version))
        assert [answered[index].error_code for index in range(3)] == [0, 0, ErrorCode.OFFSET_OUT_OF_RANGE]
        assert values(answered[0]) == [b"committed", b"not yet"]
        assert (answered[0].high_watermark, answered[0].log_start_offset) == (1, 0)
        assert answered[0].aborted_transactions is None
        epoch = EPOCH if version >= 15 else -1
        assert stage.followers.reports == [(0, FOLLOWER, epoch, 0, 7), (1, FOLLOWER, epoch, 0, 7)]

    run(scenario)


def test_a_partition_whose_replica_it_is_not_is_refused_alone() -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        stage.followers.refused[1] = None
        answered = parts(await stage.ask(0, 0, 0))
        assert [answered[index].error_code for index in range(3)] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]

    run(scenario)


@pytest.mark.parametrize("partitions", [3, WIDE])
def test_a_follower_waits_for_records_below_no_high_watermark(partitions: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        loop = asyncio.get_running_loop()
        offsets = [0] * partitions
        asking = asyncio.ensure_future(stage.ask(*offsets, max_wait_ms=5_000))
        await asyncio.sleep(1)
        assert not asking.done()
        assert len(stage.followers.reports) == partitions, "its ends are known before it waits"
        stage.append(b"new", 2, committed=False)
        before = loop.time()
        answered = parts(await asking)
        assert loop.time() - before < 0.3
        assert values(answered[2]) == [b"new"]
        assert len(stage.followers.reports) == partitions, "it is not reported again for an end that is old by now"
        asking = asyncio.ensure_future(stage.ask(*offsets[:2], max_wait_ms=700))
        await asyncio.sleep(0.3)
        stage.append(b"elsewhere", 2)
        before = loop.time()
        assert not any(data.records for data in parts(await asking).values())
        assert loop.time() - before > 0.3

    run(scenario, partitions)


@pytest.mark.parametrize("partitions", [3, WIDE])
def test_a_follower_that_disconnects_leaves_nothing_behind(partitions: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        asking = asyncio.ensure_future(stage.ask(*[0] * partitions, max_wait_ms=60_000))
        await asyncio.sleep(1)
        assert stage.followers.watchers
        stage.world.network.reset_connections("broker", "follower")
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(1)

    run(scenario, partitions)


@pytest.mark.parametrize("partitions", [3, WIDE])
def test_sessions_of_followers(partitions: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        first = await stage.ask(*[0] * partitions, session_epoch=0)
        assert first.session_id > 0
        assert len(parts(first)) == partitions
        stage.append(b"x", 1)
        stage.followers.reports.clear()
        second = await stage.ask(session_id=first.session_id, session_epoch=1)
        assert {index: values(data) for index, data in parts(second).items()} == {1: [b"x"]}
        assert len(stage.followers.reports) == partitions, "every partition of the session counts as fetched"
        request = stage.request(0, 1, session_id=first.session_id, session_epoch=2)
        request.topics[0].partitions[1].log_start_offset = 1
        request.forgotten_topics_data = [ForgottenTopic(topic_id=stage.topic_id, partitions=[2])]
        stage.followers.reports.clear()
        await stage.send(request)
        reports = {index: (offset, start) for index, _, _, offset, start in stage.followers.reports}
        assert (reports[1], 2 in reports) == ((1, 1), False)
        wrong = await stage.ask(session_id=first.session_id, session_epoch=2)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        lost = await stage.ask(session_id=first.session_id + 1, session_epoch=2)
        assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(scenario, partitions)


def test_a_follower_gets_a_session_although_consumers_use_all() -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        consumer = await stage.ask(0, session_epoch=0, broker=-1, epoch=-1)
        assert consumer.session_id > 0
        assert (await stage.ask(0, session_epoch=0)).session_id > 0

    run(scenario, **{"max.incremental.fetch.session.cache.slots": "1"})


def test_the_leader_says_where_logs_differ_and_checks_epochs() -> None:
    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        stage.append(b"x")
        epoch = stage.partition().leader_epoch
        request = stage.request(5, 0, 0)
        first, second, third = request.topics[0].partitions
        first.last_fetched_epoch, second.current_leader_epoch, third.current_leader_epoch = epoch, epoch + 1, epoch
        answered = parts(await stage.send(request))
        diverging = answered[0].diverging_epoch
        assert diverging is not None
        assert (diverging.epoch, diverging.end_offset) == (epoch, 1)
        assert [answered[index].error_code for index in range(3)] == [0, ErrorCode.UNKNOWN_LEADER_EPOCH, 0]
        assert [report[0] for report in stage.followers.reports] == [2], "an end that is no end of this log is not one"

    run(scenario)


def test_a_follower_whose_records_the_leader_has_deleted_unseen_is_out_of_range() -> None:
    """Nobody can say whether the records of such a follower were committed, unless the leader knows their epoch."""

    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        for index in range(3):
            stage.append(b"x", index)
            log = stage.partition(index).log
            log.delete_before(1)
            log.epochs.assign(stage.partition(index).leader_epoch + 5, 1)
        request = stage.request(1, 1, 1)
        unknown, known, empty = request.topics[0].partitions
        epoch = stage.partition().leader_epoch + 5
        unknown.last_fetched_epoch, known.last_fetched_epoch, empty.last_fetched_epoch = epoch - 1, epoch, epoch - 1
        unknown.log_start_offset, known.log_start_offset, empty.log_start_offset = 0, 0, 1
        answered = parts(await stage.send(request))
        codes = [answered[index].error_code for index in range(3)]
        assert codes == [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE, ErrorCode.NONE]
        assert [report[0] for report in stage.followers.reports] == [1, 2]

    run(scenario)


def test_offsets_for_followers_reach_to_the_end_of_the_log() -> None:
    async def offset(stage: Stage, replica_id: int, timestamp: int) -> int:
        item = ListOffsetsPartition(0, -1, timestamp)
        topics = [ListOffsetsTopic(name="t", partitions=[item])]
        request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
        return (await stage.channel.ask(request, ListOffsetsResponse)).topics[0].partitions[0].offset

    async def scenario(stage: Stage) -> None:
        stage.append(b"x")
        stage.append(b"y", committed=False)
        assert [await offset(stage, replica, LATEST) for replica in (-1, FOLLOWER)] == [1, 1]
        stage.switch_on()
        assert [await offset(stage, replica, LATEST) for replica in (-1, FOLLOWER)] == [1, 2]
        assert await offset(stage, FOLLOWER, EARLIEST) == 0

    run(scenario)


@pytest.mark.parametrize("partitions", [4, WIDE])
def test_a_fetcher_copies_a_real_broker(partitions: int) -> None:
    """The follower of this package against the leader of this package: logs are equal, byte for byte."""

    async def scenario(stage: Stage) -> None:
        stage.switch_on()
        replicas = [FollowerReplica(stage.client, index) for index in range(partitions)]
        fetcher = Fetcher(
            stage.client,
            stage.channel,
            leader_id=1,
            broker_id=FOLLOWER,
            broker_epoch=lambda: EPOCH,
            sync=no_sync,
            settings=FetchSettings(partition_bytes_max=2_000, response_bytes_max=8_000),
        )
        fetcher.start()
        for replica in replicas:
            replica.topic, replica.topic_id = "t", stage.topic_id
            replica.leader_epoch = stage.partition(replica.index).leader_epoch
            fetcher.follow(replica, replica.leader_epoch)
        rng = stage.world.rng("appends")
        for number in range(60):
            index = rng.randrange(partitions)
            stage.append(b"%d:" % number + bytes(rng.choice((5, 900, 3_000))), index, committed=rng.random() < 0.5)
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.3)))
        await asyncio.sleep(3)
        for replica in replicas:
            partition = stage.partition(replica.index)
            assert replica.entries() == leader_entries(partition)
            assert replica.high_watermark == partition.high_watermark
        last = {report[0]: report[3] for report in stage.followers.reports}
        assert last == {index: stage.partition(index).log_end_offset for index in range(partitions)}
        await fetcher.stop()
        await asyncio.sleep(1)

    run(scenario, partitions)


async def no_sync(partitions: Any) -> list[Any]:
    assert not partitions
    return []


def leader_entries(partition: Partition) -> list[Entry]:
    log, entries = partition.log, []
    position = log.log_start_offset
    while position < log.log_end_offset:
        batches = log.read(position, 1 << 20, log.log_end_offset)
        part = entries_in(batches.file.pread(batches.size, batches.position))
        entries += part
        position = part[-1][0] + 1
    return entries
