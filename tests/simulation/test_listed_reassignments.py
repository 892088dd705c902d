"""Every broker lists the moves of replicas that another broker has begun or cancelled, as soon as that one answers."""

from typing import Any

from replication_harness.brokers import TOPIC, Stage, run
from tidelog.client.channel import Channel
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

THROTTLED = {
    "leader.replication.throttled.rate": "1",
    "follower.replication.throttled.rate": "1",
    "replica.fetch.response.max.bytes": "5000",
}
REPLICAS = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}


async def reassign(channel: Channel, replicas: list[int] | None) -> None:
    topic = ReassignableTopic(TOPIC, [ReassignablePartition(0, replicas)])
    request = AlterPartitionReassignmentsRequest(topics=[topic])
    answer: Any = await channel.ask(request, AlterPartitionReassignmentsResponse)
    (partition,) = answer.responses[0].partitions
    assert (answer.error_code, partition.error_code) == (0, 0)


async def listed(channel: Channel) -> list[tuple[list[int], list[int]]]:
    answer = await channel.ask(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
    assert (answer.error_code, answer.error_message) == (0, None)
    return [(part.adding_replicas, part.removing_replicas) for topic in answer.topics for part in topic.partitions]


async def follow_late(node: Any, delay_s: float) -> None:
    """Delay the broker's view of each change."""

    async def wait(*_: object) -> None:
        await node.broker.runtime.tasks.sleep(delay_s)

    await node.broker._metadata.subscribe(wait)


def test_every_broker_lists_what_another_has_begun() -> None:
    async def scenario(stage: Stage) -> None:
        for node in stage.cluster.nodes:
            await follow_late(node, 0.1 * node.node_id)
        runtime = stage.world.host("client").runtime
        for _ in range(4):
            await stage.produce(bytes(5_000))
        channels = [Channel(runtime, node.address) for node in stage.cluster.nodes]
        for asked in channels:
            for replicas, ongoing in (([1, 3], [([3], [2])]), (None, [])):
                await reassign(asked, replicas)
                for other in channels:
                    assert await listed(other) == ongoing

    run(scenario, settings=THROTTLED, config=REPLICAS, replicas=(1, 2))
