"""Groups in a cluster: their coordinators move with the leaders of `__consumer_offsets`, and no commit is lost."""

import asyncio
from collections.abc import Mapping

import pytest

from replication_harness.brokers import TOPIC, Stage, run
from tidelog.client import groups
from tidelog.coordinator.group.hashing import partition_of
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.metadata.records import PartitionChanged, PartitionState
from tidelog.model.ids import TopicPartition
from tidelog.simulation.client import SimClient
from tidelog.simulation.cluster import SimNode
from tidelog.simulation.cluster_client import BACKOFF, ClusterClient
from tidelog.simulation.member import SimMember
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

GROUP = "billing"
PARTITION = TopicPartition(TOPIC, 0)


async def commit(client: ClusterClient, offset: int, group: str = GROUP) -> None:
    done = await client.run(groups.commit(client.cluster, BACKOFF, group, {PARTITION: offset}), 60)
    assert done == {PARTITION: offset}


async def committed(client: ClusterClient, *names: str) -> Mapping[str, object]:
    found = await client.run(groups.committed_offsets(client.cluster, BACKOFF, names or [GROUP]), 60)
    return {name: offsets.get(PARTITION) if isinstance(offsets, dict) else offsets for name, offsets in found.items()}


def offsets_state(stage: Stage, group: str = GROUP) -> PartitionState:
    topic = stage.image.topics[CONSUMER_OFFSETS]
    state: PartitionState = topic.partitions[partition_of(group, len(topic.partitions))]
    return state


def coordinator(stage: Stage, group: str = GROUP) -> SimNode:
    return stage.node(offsets_state(stage, group).leader)


async def elect_coordinator(stage: Stage, leader: SimNode) -> None:
    """Let the controller move the group's partition to another leader."""
    topic = stage.image.topics[CONSUMER_OFFSETS]
    index = partition_of(GROUP, len(topic.partitions))
    record = PartitionChanged(topic.topic_id, index, leader=leader.node_id)
    answer = await (await stage.controller())._commit(lambda image: JournalDecision([record], None), None)
    assert answer.error is ErrorCode.NONE, answer
    await stage.until(lambda: leads(leader, index))


def leads(node: SimNode, index: int) -> bool:
    partition = node.broker and node.broker.services.partitions.find(CONSUMER_OFFSETS, index)
    return bool(partition and partition.replica.leads)


def others(stage: Stage, node: SimNode) -> list[SimNode]:
    return [other for other in stage.cluster.nodes if other is not node]


@pytest.mark.parametrize("brokers", [2, 3])
def test_the_offsets_topic_has_a_replica_on_each_broker_up_to_three(brokers: int) -> None:
    async def scenario(stage: Stage) -> None:
        await commit(stage.cluster.client("admin"), 1)
        topic = stage.image.topics[CONSUMER_OFFSETS]
        assert [len(state.replicas) for state in topic.partitions] == [brokers] * len(topic.partitions)

    run(scenario, brokers=brokers)


def test_a_topic_that_was_made_for_fewer_brokers_is_reported_until_it_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if "too few replicas" in record.getMessage()]
        caplog.clear()
        return lines

    async def scenario(stage: Stage) -> None:
        await commit(stage.cluster.client("admin"), 1)
        assert warnings() == []
        third = SimNode(stage.cluster, 3)
        stage.cluster.nodes.append(third)
        await third.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        expected = ["internal topic has too few replicas topic=__consumer_offsets replicas=2 possible=3"]
        assert warnings() == expected
        topic = stage.image.topics[CONSUMER_OFFSETS]
        for index in range(len(topic.partitions)):
            record = PartitionChanged(topic.topic_id, index, replicas=(1, 2, 3), isr=(1, 2, 3))
            decision = JournalDecision([record], None)
            await (await stage.controller())._commit(lambda image, decision=decision: decision, None)
        stage.node(stage.image.controller_id).kill()
        await stage.controller()
        await asyncio.sleep(1)
        assert warnings() == []

    run(scenario, brokers=2)


def test_every_broker_finds_the_coordinator_and_only_this_one_answers() -> None:
    async def scenario(stage: Stage) -> None:
        await commit(stage.cluster.client("admin"), 1)
        at = coordinator(stage)
        for node in stage.cluster.nodes:
            client = await stage.client(node)
            found = await client.find_coordinator(GROUP)
            assert (found.node_id, found.host, found.port) == (at.node_id, at.host.address, at.address.port)
            described = await client.ask(DescribeGroupsRequest(groups=[GROUP]), DescribeGroupsResponse)
            listed = await client.ask(ListGroupsRequest(), ListGroupsResponse)
            assert listed.error_code == 0
            if node is at:
                assert described.groups[0].error_code == 0
                assert [group.group_id for group in listed.groups] == [GROUP]
            else:
                assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
                assert listed.groups == []
                deleted = await client.ask(DeleteGroupsRequest([GROUP]), DeleteGroupsResponse)
                assert deleted.results[0].error_code == ErrorCode.NOT_COORDINATOR
                assert await member(client).join() == ErrorCode.NOT_COORDINATOR
            client.close()

    run(scenario)


def member(client: SimClient) -> SimMember:
    return SimMember(client, GROUP, [TOPIC])


def test_commits_survive_the_death_of_their_coordinator() -> None:
    async def scenario(stage: Stage) -> None:
        client = stage.cluster.client("committer")
        names = [GROUP, *(f"group-{number}" for number in range(10))]
        for number in range(3):
            first = coordinator(stage) if number else stage.node(1)
            for offset, name in enumerate(names, 10 * number):
                await commit(client, offset, name)
            first = coordinator(stage)
            first.kill()
            await stage.until(lambda first=first: offsets_state(stage).leader not in (-1, first.node_id))
            assert await committed(client, *names) == {name: offset for offset, name in enumerate(names, 10 * number)}
            await first.start()
            await stage.until(lambda: sorted(offsets_state(stage).isr) == [1, 2, 3])

    run(scenario)


def test_a_coordinator_that_moves_and_returns_knows_what_was_committed_elsewhere() -> None:
    async def scenario(stage: Stage) -> None:
        client = stage.cluster.client("committer")
        await commit(client, 1)
        first = coordinator(stage)
        second, third = others(stage, first)
        for offset, leader in enumerate([second, first, third, second, first], 2):
            await elect_coordinator(stage, leader)
            assert await committed(client) == {GROUP: offset - 1}
            await commit(client, offset)
            assert coordinator(stage) is leader

    run(scenario)


def test_a_coordinator_that_was_paused_does_not_answer_with_old_offsets() -> None:
    """Requests that arrive during the pause are handled before the timers that notice the end of the lease."""

    async def scenario(stage: Stage) -> None:
        client = stage.cluster.client("committer")
        await commit(client, 1)
        paused = coordinator(stage)
        impatient = [await stage.client(paused) for _ in range(5)]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=None)])
        paused.host.pause()
        waiting = [asyncio.ensure_future(each.ask(request, OffsetFetchResponse)) for each in impatient]
        await stage.until(lambda: offsets_state(stage).leader not in (-1, paused.node_id))
        await commit(client, 2)
        paused.host.resume()
        answers = [(await answer).groups[0] for answer in waiting]
        assert {answer.error_code for answer in answers} == {ErrorCode.NOT_COORDINATOR}
        assert await committed(client) == {GROUP: 2}

    run(scenario)


def test_members_that_wait_hear_of_a_controlled_shutdown_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        await commit(stage.cluster.client("admin"), 1)
        at = coordinator(stage)
        client, other = await stage.client(at), await stage.client(at)
        first, second = member(client), member(other)
        assert await first.join() == 0
        assert await first.sync({TOPIC: 1}) == 0
        waiting = asyncio.ensure_future(second.join())
        await asyncio.sleep(1)
        assert not waiting.done(), "the first member has not joined again"
        began_s = stage.world.loop.time()
        stopping = asyncio.ensure_future(at.stop())
        assert await waiting == ErrorCode.NOT_COORDINATOR
        assert stage.world.loop.time() - began_s < 5
        await stopping
        assert await committed(stage.cluster.client("admin")) == {GROUP: 1}

    run(scenario)


def test_a_commit_is_answered_when_the_in_sync_replicas_have_it_or_refused_in_time() -> None:
    async def scenario(stage: Stage) -> None:
        client = stage.cluster.client("committer")
        await commit(client, 1)
        at = coordinator(stage)
        assert all(
            node.broker is not None
            and node.broker.services.partitions.get(CONSUMER_OFFSETS, partition_of(GROUP, 2)).log_end_offset == 1
            for node in stage.cluster.nodes
        )
        for node in others(stage, at):
            stage.world.network.partition(at.host.name, node.host.name)
        one = member(await stage.client(at))
        began_s = stage.world.loop.time()
        code = await one.commit(TOPIC, 0, 2)
        assert code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR), code
        assert stage.world.loop.time() - began_s < 8
        stage.world.network.heal()
        await commit(client, 3)
        assert await committed(client) == {GROUP: 3}

    run(scenario)


def test_a_restarted_coordinator_is_loaded_in_a_new_epoch() -> None:
    async def scenario(stage: Stage) -> None:
        client = stage.cluster.client("committer")
        await commit(client, 1)
        at = coordinator(stage)
        epoch = offsets_state(stage).leader_epoch
        at.kill()
        await at.start()
        await commit(client, 2)
        assert offsets_state(stage).leader_epoch > epoch
        assert await committed(client) == {GROUP: 2}

    run(scenario)


def test_no_producer_id_is_given_out_twice() -> None:
    async def scenario(stage: Stage) -> None:
        seen: list[int] = []

        async def take(node: SimNode, count: int) -> None:
            client = await stage.client(node)
            for _ in range(count):
                answer = await client.init_producer()
                assert answer.error_code == 0
                seen.append(answer.producer_id)
            client.close()

        await asyncio.gather(*(take(node, 20) for node in stage.cluster.nodes))
        controller = stage.node(stage.image.controller_id)
        controller.kill()
        await stage.controller()
        await asyncio.gather(*(take(node, 20) for node in others(stage, controller)))
        await controller.start()
        await asyncio.gather(*(take(node, 20) for node in stage.cluster.nodes))
        assert len(seen) == len(set(seen)) == 160

    run(scenario)


def test_without_a_controller_clients_get_an_error_after_which_they_try_again() -> None:
    async def scenario(stage: Stage) -> None:
        controller = stage.node(stage.image.controller_id)
        controller.kill()
        node = others(stage, controller)[0]
        began_s = stage.world.loop.time()
        one, other = await stage.client(node), await stage.client(node)
        found, producer = await asyncio.gather(one.find_coordinator(GROUP), other.init_producer())
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert producer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert stage.world.loop.time() - began_s < 6
        await stage.controller()
        await commit(stage.cluster.client("admin"), 1)
        assert (await other.init_producer()).error_code == 0

    run(scenario)
