"""Every broker of a cluster names the controller, and how far the brokers follow the metadata journal."""

from typing import Any

import pytest

from replication_harness.brokers import Stage, run
from tidelog.client.channel import Channel
from tidelog.metadata.image import CLUSTER_METADATA
from tidelog.simulation.cluster import SimNode
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)


async def described(stage: Stage, node: SimNode, topic: str = CLUSTER_METADATA, *partitions: int) -> Any:
    client = Channel(stage.world.host("client").runtime, node.address)
    parts = [PartitionData(number) for number in partitions or (0,)]
    return await client.ask(DescribeQuorumRequest(topics=[TopicData(topic, parts)]), DescribeQuorumResponse)


def test_every_broker_names_the_controller_and_the_positions() -> None:
    async def scenario(stage: Stage) -> None:
        controller = (await stage.controller())._config.node_id
        for node in stage.cluster.nodes:
            for _ in range(100):
                answer = await described(stage, node)
                (part,) = answer.topics[0].partitions
                if all(voter.log_end_offset == part.high_watermark for voter in part.current_voters):
                    break
                await stage.world.host("client").runtime.tasks.sleep(0.2)
            image = stage.image
            assert (answer.error_code, part.error_code, answer.topics[0].topic_name) == (0, 0, CLUSTER_METADATA)
            assert (part.leader_id, part.leader_epoch) == (controller, image.controller_epoch)
            assert [voter.replica_id for voter in part.current_voters] == [1, 2, 3]
            assert {voter.log_end_offset for voter in part.current_voters} == {part.high_watermark}
            assert all(
                [voter.replica_directory_id] == list(image.brokers[voter.replica_id].directories)
                for voter in part.current_voters
            )
            listeners = {found.node_id: [(e.host, e.port) for e in found.listeners] for found in answer.nodes}
            assert listeners == {each.node_id: [tuple(each.address)] for each in stage.cluster.nodes}

    run(scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_is_answered(version: int) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client(stage.node(2))
        request = DescribeQuorumRequest(topics=[TopicData(CLUSTER_METADATA, [PartitionData(0)])])
        answer = await client.ask(request, DescribeQuorumResponse, version_max=version)
        assert answer.topics[0].partitions[0].leader_id > 0
        assert [node.node_id for node in answer.nodes] == ([1, 2, 3] if version == 2 else [])
        client.close()

    run(scenario)


def test_another_controller_is_named_and_a_dead_broker_is_no_voter() -> None:
    async def scenario(stage: Stage) -> None:
        first = stage.node((await stage.controller())._config.node_id)
        epoch = stage.image.controller_epoch
        first.kill()
        node = next(node for node in stage.cluster.nodes if node is not first)
        await stage.until(lambda: stage.image.brokers[first.node_id].fenced)
        (part,) = (await described(stage, node)).topics[0].partitions
        assert part.leader_id == (await stage.controller())._config.node_id != first.node_id
        assert part.leader_epoch > epoch
        assert first.node_id not in [voter.replica_id for voter in part.current_voters]
        await first.start()

    run(scenario)


def test_there_is_no_other_topic_and_no_other_partition() -> None:
    async def scenario(stage: Stage) -> None:
        node = stage.node(1)
        for topic, partitions in (("orders", (0,)), (CLUSTER_METADATA, (1,)), (CLUSTER_METADATA, (0, 1))):
            answer = await described(stage, node, topic, *partitions)
            assert answer.error_code == ErrorCode.NONE
            assert [part.partition_index for part in answer.topics[0].partitions] == list(partitions)
            assert {part.error_code for part in answer.topics[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    run(scenario)
