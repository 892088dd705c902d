"""Brokers replicate: acknowledged records survive their leader, followers cut the others, the ISR follows."""

import asyncio
from typing import Any

import pytest

from replication_harness.brokers import Stage, run
from tidelog.client.channel import Channel
from tidelog.metadata.controller import TopicChoice
from tidelog.metadata.image import NO_LEADER
from tidelog.metadata.link import DeleteTopics
from tidelog.simulation.medium import PowerCutOdds
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch

FSYNC = {"durability": "fsync"}


@pytest.mark.parametrize("brokers", [2, 3])
@pytest.mark.parametrize("config", [{}, FSYNC], ids=["os", "fsync"])
def test_acks_all_is_on_every_replica(brokers: int, config: dict[str, str]) -> None:
    async def scenario(stage: Stage) -> None:
        for number in range(20):
            answer = await stage.produce(b"%d" % number)
            assert (answer.error_code, answer.base_offset) == (0, number)
            assert all(stage.partition(node).log_end_offset > number for node in stage.cluster.nodes)
            if config:
                assert all(stage.partition(node).log.durable_offset > number for node in stage.cluster.nodes)
        await stage.until_equal(*stage.cluster.nodes)

    run(scenario, brokers=brokers, config=config)


def test_a_killed_leader_loses_nothing_and_comes_back_as_a_follower() -> None:
    async def scenario(stage: Stage) -> None:
        first, followers = stage.leader, stage.followers
        for number in range(5):
            assert (await stage.produce(b"%d" % number)).error_code == 0
        for node in followers:
            stage.world.network.partition(first.host.name, node.host.name)
        client = await stage.client(first)
        assert (await client.produce("orders", 0, [Record(value=b"only here")], acks=1)).error_code == 0
        assert stage.partition(first).high_watermark == 5
        first.kill()
        await stage.until(lambda: stage.state().leader > 0 and stage.leader is not first and stage.leads(stage.leader))
        assert sorted(stage.state().isr) == sorted(node.node_id for node in followers)
        assert (await stage.produce(b"5")).error_code == 0
        assert stage.values(stage.leader) == [b"%d" % number for number in range(6)]
        stage.world.network.heal()
        await first.start()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)
        assert (await stage.produce(b"6")).error_code == 0
        await stage.until_equal(*stage.cluster.nodes)

    run(scenario)


def test_a_dead_follower_leaves_the_isr_and_returns() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        lost, other = stage.followers
        lost.kill()
        waiting = asyncio.ensure_future(stage.produce(b"b"))
        await asyncio.sleep(1)
        assert not waiting.done(), "the dead follower is still in the ISR"
        answer = await waiting
        assert answer.error_code == 0
        assert sorted(stage.state().isr) == sorted((stage.leader.node_id, other.node_id))
        await lost.start()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)

    run(scenario)


def test_the_last_in_sync_replica_does_not_lead_after_it_has_lost_its_power() -> None:
    """Without eligible leader replicas, it would lead without the acknowledged record (KIP-966)."""

    async def scenario(stage: Stage) -> None:
        first, followers = stage.leader, stage.followers
        assert (await stage.produce(b"acknowledged")).error_code == 0
        first.cut_power(PowerCutOdds(keep=0.0, torn=0.0, wrong_size=0.0))
        for node in followers:
            node.kill()
        await first.start()
        await stage.until(lambda: sum(not broker.fenced for broker in stage.image.brokers.values()) == 1)
        await asyncio.sleep(1)
        assert stage.values(first) == []
        assert stage.state().leader == NO_LEADER
        await followers[0].start()
        await stage.until(lambda: stage.leads(followers[0]))
        assert stage.values(followers[0]) == [b"acknowledged"]
        await stage.until_equal(first)

    run(scenario, config={"min.insync.replicas": "2"})


def test_min_insync_replicas() -> None:
    async def scenario(stage: Stage) -> None:
        one, other = stage.followers
        assert (await stage.produce(b"a")).error_code == 0
        one.kill()
        assert (await stage.produce(b"b")).error_code == 0
        other.kill()
        client = await stage.client(stage.leader)
        answer = await client.produce("orders", 0, [Record(value=b"c")])
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT, "appended while the ISR had two members"
        await stage.until_isr(stage.leader.node_id)
        answer = await stage.produce(b"d")
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await stage.produce(b"e", acks=1)).error_code == 0
        assert stage.partition(stage.leader).high_watermark == 2
        await one.start()
        await stage.until_equal(one)
        assert stage.values(stage.leader) == [b"a", b"b", b"c", b"e"]
        await other.start()
        await stage.until_isr(1, 2, 3)

    run(scenario, config={"min.insync.replicas": "2"})


def test_a_broker_that_does_not_lead_names_the_leader() -> None:
    async def scenario(stage: Stage) -> None:
        leader, follower = stage.leader, stage.followers[0]
        outsider = next(node for node in stage.cluster.nodes if node not in (leader, *stage.followers))
        topic_id = stage.image.topics["orders"].topic_id
        for node in (follower, outsider):
            channel = Channel(stage.world.host("client").runtime, node.address)
            batch = encode_batch([Record(value=b"x")])
            data = PartitionProduceData(index=0, records=batch)
            produce = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData("", topic_id, [data])])
            produced = await channel.ask(produce, ProduceResponse)
            answer: Any = produced.responses[0].partition_responses[0]
            item = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=-1)
            fetch = FetchRequest(
                max_wait_ms=100, min_bytes=1, max_bytes=1000, topics=[FetchTopic("", topic_id, [item])]
            )
            fetched = await channel.ask(fetch, FetchResponse)
            found: Any = fetched.responses[0].partitions[0]
            answers = [(answer, produced.node_endpoints)]
            if node is outsider:
                answers.append((found, fetched.node_endpoints))
            else:
                assert found.error_code == 0, "consumers may fetch from followers"
            for part, endpoints in answers:
                assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert part.current_leader.leader_id == leader.node_id
                assert part.current_leader.leader_epoch == stage.state().leader_epoch
                assert [(e.node_id, e.host, e.port) for e in endpoints] == [(leader.node_id, *leader.address)]
            offsets = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic("orders", [ListOffsetsPartition(0, -1, -1)])]
            )
            listed = await channel.ask(offsets, ListOffsetsResponse)
            assert listed.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            channel.close()

    run(scenario, replicas=(1, 2))


def test_consumers_fetch_from_the_follower_in_their_rack() -> None:
    async def scenario(stage: Stage) -> None:
        leader, near = stage.leader, stage.followers[0]
        for number in range(3):
            await stage.produce(b"%d" % number)
        await stage.until_equal(near)
        answers = {}
        for node in (leader, near):
            for rack in (f"rack-{near.node_id}", f"rack-{leader.node_id}", "elsewhere", ""):
                channel = Channel(stage.world.host("client").runtime, node.address)
                item = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
                topic = FetchTopic("", stage.image.topics["orders"].topic_id, [item])
                fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1000, rack_id=rack, topics=[topic])
                fetched = await channel.ask(fetch, FetchResponse)
                data: Any = fetched.responses[0].partitions[0]
                assert (data.error_code, data.high_watermark) == (0, 3)
                answers[node.node_id, rack] = data.preferred_read_replica, len(data.records) > 0
                channel.close()
        assert answers.pop((leader.node_id, f"rack-{near.node_id}")) == (near.node_id, False)
        assert set(answers.values()) == {(-1, True)}

    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    run(scenario, settings={"replica.selector.class": selector}, has_racks=True)


def test_records_are_deleted_on_all_live_replicas() -> None:
    async def scenario(stage: Stage) -> None:
        for number in range(5):
            await stage.produce(b"%d" % number)
        channel = Channel(stage.world.host("client").runtime, stage.leader.address)

        async def delete(offset: int, timeout_ms: int) -> tuple[int, int]:
            topic = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, offset)])
            request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
            response = await channel.ask(request, DeleteRecordsResponse)
            part = response.topics[0].partitions[0]
            return part.error_code, part.low_watermark

        assert await delete(2, 10_000) == (0, 2)
        assert [stage.partition(node).log_start_offset for node in stage.cluster.nodes] == [2, 2, 2]
        cut_off = stage.followers[0]
        stage.world.network.partition(cut_off.host.name, stage.leader.host.name)
        assert await delete(3, 1_000) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        stage.world.network.heal()
        assert await delete(-1, 10_000) == (0, 5)
        assert [stage.partition(node).log_start_offset for node in stage.cluster.nodes] == [5, 5, 5]
        follower = Channel(stage.world.host("client").runtime, cut_off.address)
        channel.close()
        channel = follower
        assert await delete(5, 1_000) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        channel.close()

    run(scenario)


def test_a_deletion_that_waits_for_a_follower_ends_with_the_leadership() -> None:
    async def scenario(stage: Stage) -> None:
        old, (new, cut_off) = stage.leader, stage.followers
        await stage.produce(b"0")
        await stage.until_equal(new, cut_off)
        stage.world.network.partition(old.host.name, cut_off.host.name)
        channel = Channel(stage.world.host("client").runtime, old.address)
        topic = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, 1)])
        asked = channel.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), DeleteRecordsResponse)
        waiting = asyncio.ensure_future(asked)
        await stage.until(lambda: stage.partition(new).log_start_offset == 1)
        assert not waiting.done()
        await stage.elect(new)
        elected_s = stage.world.loop.time()
        part = (await waiting).topics[0].partitions[0]
        assert (part.error_code, part.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert stage.world.loop.time() - elected_s < 2
        channel.close()
        stage.world.network.heal()

    run(scenario)


def test_a_follower_below_the_start_of_its_leader_begins_there_anew() -> None:
    async def scenario(stage: Stage) -> None:
        late = stage.followers[0]
        await stage.produce(b"a")
        await stage.until_equal(late)
        late.kill()
        for number in range(5):
            await stage.produce(b"%d" % number, acks=1)
        await stage.until_isr(*(node.node_id for node in stage.cluster.nodes if node is not late))
        partition = stage.partition(stage.leader)
        partition.log.delete_before(4)
        await late.start()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)
        assert stage.partition(late).log_start_offset == 4
        late.kill()
        await late.start()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)

    run(scenario)


def test_a_follower_begins_at_the_batch_into_which_records_were_deleted() -> None:
    async def scenario(stage: Stage) -> None:
        follower = stage.followers[0]
        follower.kill()
        await stage.until_isr(*(node.node_id for node in stage.cluster.nodes if node is not follower))
        await stage.produce(b"1")
        await stage.produce(b"2", b"3", b"4")
        client = await stage.client(stage.leader)
        topic = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, 2)])
        answer = await client.ask(DeleteRecordsRequest([topic], timeout_ms=5000), DeleteRecordsResponse)
        client.close()
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        await follower.start()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(follower)
        assert stage.partition(follower).log_start_offset == 2
        assert stage.values(follower) == [b"3", b"4"]

    run(scenario)


def test_a_new_leader_does_not_name_the_end_before_it_knows_what_is_committed() -> None:
    async def scenario(stage: Stage) -> None:
        first, (second, third) = stage.leader, stage.followers
        for number in range(3):
            assert (await stage.produce(b"%d" % number)).error_code == 0
        await stage.until_equal(second)
        stage.world.network.partition(first.host.name, third.host.name)
        assert (await stage.produce(b"on two replicas", acks=1)).error_code == 0
        await stage.until(lambda: stage.partition(second).log_end_offset == 4)
        stage.world.network.partition(second.host.name, third.host.name)
        stage.world.network.partition(second.host.name, first.host.name)
        await stage.elect(second)
        assert stage.partition(second).high_watermark == 3

        async def latest(timestamp: int, version: int) -> tuple[int, int]:
            channel = Channel(stage.world.host("client").runtime, second.address)
            topics = [ListOffsetsTopic("orders", [ListOffsetsPartition(0, -1, timestamp)])]
            request = ListOffsetsRequest(replica_id=-1, topics=topics)
            answer = (await channel.ask(request, ListOffsetsResponse, version_max=version)).topics[0].partitions[0]
            channel.close()
            return answer.error_code, answer.offset

        assert await latest(-1, 11) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await latest(-1, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await latest(1 << 60, 11) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await latest(-2, 11) == (0, 0)
        client = await stage.client(second)
        data, records = await client.fetch("orders", 0, 3)
        assert (data.error_code, data.high_watermark, records) == (0, 3, []), "not committed, and not out of range"
        stage.world.network.heal()
        await stage.until(lambda: stage.partition(second).high_watermark == 4)
        assert await latest(-1, 11) == (0, 4)

    run(scenario)


def test_fetchers_share_the_partitions_and_end_without_any() -> None:
    async def scenario(stage: Stage) -> None:
        def fetchers() -> list[list[tuple[int, int]]]:
            """Return, for each broker, its fetchers: their leader and their number."""
            peers = [node.broker._peers for node in stage.cluster.nodes if node.broker is not None]
            return [sorted(part._fetchers._fetchers) for part in peers if part is not None]

        await stage.until(lambda: all(len(keys) == 4 for keys in fetchers()))
        for index in range(12):
            client = await stage.client(stage.node(stage.state(index).leader))
            answer = await client.produce("orders", index, [Record(value=b"%d" % index)])
            assert answer.error_code == 0
            client.close()
        for index in range(12):
            assert [stage.values(node, index) for node in stage.cluster.nodes] == [[b"%d" % index]] * 3
        controller = stage.running.services.controller
        await controller.delete_topics(DeleteTopics([TopicChoice("orders")]))
        await stage.until(lambda: fetchers() == [[], [], []])

    run(scenario, settings={"num.replica.fetchers": "2"}, partitions=12)
