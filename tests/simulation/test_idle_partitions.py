"""A partition without news costs a follower's fetch nothing, and every kind of news still reaches the follower."""

import asyncio
from typing import Any

import pytest

from replication_harness.brokers import TOPIC, Stage, run
from tidelog.api.fetch_sessions import FetchItem
from tidelog.api.follower_fetch import FollowerFetch, WideFollowerFetch
from tidelog.api.idle_partitions import IdlePartitions
from tidelog.client.channel import Channel
from tidelog.metadata.controller import TopicChoice
from tidelog.metadata.link import DeleteTopics
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

PARTITIONS = 40
IDLE_S = 2.0
"""Time in which all partitions of an idle cluster become idle: several fetches, in seconds."""


@pytest.fixture
def read_items(monkeypatch: pytest.MonkeyPatch) -> list[FetchItem]:
    """Every partition that a fetch of a follower has read."""
    items: list[FetchItem] = []
    for fetch_class in (FollowerFetch, WideFollowerFetch):
        read = fetch_class._read

        def counted(fetch: Any, item: FetchItem, read: Any = read) -> None:
            items.append(item)
            read(fetch, item)

        monkeypatch.setattr(fetch_class, "_read", counted)
    return items


async def until_idle(read_items: list[FetchItem]) -> None:
    for _ in range(20):
        read_items.clear()
        await asyncio.sleep(IDLE_S)
        if not read_items:
            return
    raise AssertionError(f"{len(read_items)} partitions are read in {IDLE_S} s without any append")


def internal(stage: Stage) -> Any:
    return stage.partition(stage.leader).replica.isr


@pytest.mark.parametrize("partitions", [PARTITIONS, 650])
def test_no_partition_is_read_without_news_and_only_the_one_that_has_some(
    partitions: int, read_items: list[FetchItem]
) -> None:
    """With 650 partitions, the first fetches are wide ones."""

    async def scenario(stage: Stage) -> None:
        await until_idle(read_items)
        for number in range(5):
            began_s = stage.world.loop.time()
            assert (await stage.produce(b"%d" % number)).error_code == 0
            assert stage.world.loop.time() - began_s < 0.2, "the followers must not learn of it at their next fetch"
        assert {item.index for item in read_items} == {0}
        assert len(read_items) < 100
        await stage.until_equal(*stage.cluster.nodes)
        await until_idle(read_items)

    run(scenario, partitions=partitions)


def test_a_new_high_watermark_reaches_the_followers_of_an_idle_partition(read_items: list[FetchItem]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        await until_idle(read_items)
        assert all(stage.partition(node).high_watermark == 1 for node in stage.cluster.nodes)

    run(scenario, partitions=PARTITIONS)


def test_a_new_log_start_reaches_the_followers_of_an_idle_partition(read_items: list[FetchItem]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a", b"b", b"c")
        await until_idle(read_items)
        topic = DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, 2)])
        channel = Channel(stage.world.host("client").runtime, stage.leader.address)
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=3000)
        response = await channel.ask(request, DeleteRecordsResponse)
        assert (response.topics[0].partitions[0].error_code, response.topics[0].partitions[0].low_watermark) == (0, 2)
        assert all(stage.partition(node).log_start_offset == 2 for node in stage.cluster.nodes)

    run(scenario, partitions=PARTITIONS)


def test_a_follower_that_loses_its_place_in_the_isr_while_the_partition_is_idle_asks_to_come_back(
    read_items: list[FetchItem],
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        await until_idle(read_items)
        lost = stage.followers[0]
        members = tuple(node.node_id for node in stage.cluster.nodes if node is not lost)
        await stage.change(isr=members)
        await stage.until(lambda: sorted(internal(stage).committed) == [1, 2, 3], seconds=5)

    run(scenario, partitions=PARTITIONS)


def test_an_idle_follower_counts_as_fetching_and_caught_up(read_items: list[FetchItem]) -> None:
    """As `replica.lag.time.max.ms` and the lease of the leader's broker need it."""

    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        await until_idle(read_items)
        await asyncio.sleep(10)  # longer than replica.lag.time.max.ms
        now_ms = stage.partition(stage.leader).monotonic_ms()
        for follower in internal(stage).followers.values():
            assert now_ms - follower.fetched_ms < 1000
            assert now_ms - follower.caught_up_ms < 1000

    run(scenario, partitions=PARTITIONS)


def test_an_append_to_an_idle_partition_does_not_make_its_followers_late(read_items: list[FetchItem]) -> None:
    """They were caught up until the append, however long the partition was idle."""

    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        await until_idle(read_items)
        await asyncio.sleep(10)
        for node in stage.followers:
            stage.world.network.partition(stage.leader.host.name, node.host.name)
        waiting = asyncio.ensure_future(stage.produce(b"b"))
        await asyncio.sleep(2.5)  # the leader looks for late followers every 2 s
        assert sorted(internal(stage).committed) == [1, 2, 3]
        stage.world.network.heal()
        assert (await waiting).error_code == 0

    run(scenario, partitions=PARTITIONS)


def test_sessions_of_followers_that_have_restarted_do_not_watch_for_ever(read_items: list[FetchItem]) -> None:
    async def scenario(stage: Stage) -> None:
        leader, node = stage.leader, stage.followers[0]
        for number in range(4):
            await stage.produce(b"%d" % number)
            await asyncio.sleep(IDLE_S)
            node.kill()
            await node.start()
            await stage.until_isr(1, 2, 3)
        await asyncio.sleep(70)
        await stage.produce(b"last")
        await until_idle(read_items)
        assert leader.broker is not None
        assert stage.leader is leader
        watchers = leader.broker.services.partitions.shared.end_watchers
        assert len(watchers) <= 4, "one of each session, and one of each fetch"

    run(scenario)


def test_a_deleted_topic_is_not_watched(read_items: list[FetchItem]) -> None:
    async def scenario(stage: Stage) -> None:
        await until_idle(read_items)
        partition = stage.partition(stage.leader)
        assert any(isinstance(watcher, IdlePartitions) for watcher in partition._watchers)
        await stage.running.services.controller.delete_topics(DeleteTopics([TopicChoice(TOPIC)]))
        await stage.until(lambda: partition.deleted, seconds=5)
        assert not any(isinstance(watcher, IdlePartitions) for watcher in partition._watchers)

    run(scenario, partitions=PARTITIONS)
