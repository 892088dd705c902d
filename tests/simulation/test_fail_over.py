"""The time from the end of a broker's lease until all its partitions acknowledge records again, in virtual time: only
pauses and the network count, and not the speed of the machine.
"""

import asyncio
import logging
from collections.abc import Iterator
from statistics import median

import pytest

from replication_harness.brokers import TOPIC, Stage, run
from tidelog.client.operations import Backoff, produce
from tidelog.metadata import link
from tidelog.metadata.controller import NewTopic
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import SimCluster, SimNode
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record, encode_batch

PARTITIONS = 100
BACKOFF = Backoff(20, 20)
ANSWERED_S = 0.4
"""Upper bound on the median of this time, in seconds. It contains up to 0.25 s until the controller notices the end of
the lease (CHECK_S), since the simulated store does not report writes. It is shorter than `replica.fetch.wait.max.ms`
(0.5 s): a follower does not wait for its fetch under way before it fetches the partitions of a new leader.
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_all_partitions_of_a_dead_broker_acknowledge_soon_after_the_end_of_its_lease() -> None:
    times_s: list[float] = []

    async def scenario(world: World) -> None:
        cluster = SimCluster(world, 3, {"min.insync.replicas": "2"})
        await cluster.start()
        controller = await _controller_of(cluster)
        controller_link = controller.broker.services.controller  # type: ignore[union-attr]
        creating = controller_link.create_topics(link.CreateTopics([NewTopic("t", PARTITIONS, 3)]))
        (result,) = (await controller.host.runtime.tasks.spawn(creating, name="create")).result()
        assert result.error == ErrorCode.NONE
        client = cluster.client("producer")
        batch = encode_batch([Record(key=b"k", value=b"v", timestamp=0)])
        everywhere = {TopicPartition("t", index): batch for index in range(PARTITIONS)}
        await client.run(produce(client.cluster, BACKOFF, everywhere, -1, 5_000), 30.0)
        dying = next(node for node in cluster.nodes if node is not controller)
        topic = controller.broker.services.metadata.image.topics["t"]  # type: ignore[union-attr]
        led = [index for index, state in enumerate(topic.partitions) if state.leader == dying.node_id]
        assert len(led) > PARTITIONS // 4
        dying.kill()
        cluster.store.expire_sessions(dying.host.name)  # as a supervisor does
        began_s = world.loop.time()
        batches = {TopicPartition("t", index): batch for index in led}
        produced = await client.run(produce(client.cluster, BACKOFF, batches, -1, 5_000), 30.0)
        assert produced.keys() == batches.keys()
        times_s.append(world.loop.time() - began_s)

    for seed in range(1, 6):
        with simulated(seed) as world:
            world.run(scenario(world))
    assert median(times_s) < ANSWERED_S, times_s


def test_a_leader_that_was_paused_does_not_say_that_newer_records_do_not_exist() -> None:
    """Requests that arrive during the pause are handled before the timers that notice the end of the lease."""

    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        await stage.until_equal(*stage.followers)
        paused = stage.leader
        clients = [await stage.client(paused) for _ in range(5)]
        epoch = stage.state().leader_epoch
        paused.host.pause()
        waiting = [asyncio.ensure_future(each.fetch(TOPIC, 0, 3, leader_epoch=epoch)) for each in clients]
        await stage.until(lambda: stage.state().leader not in (-1, paused.node_id) and stage.leads(stage.leader))
        await stage.produce(b"b", b"c", b"d")
        paused.host.resume()
        answers = [(await each)[0] for each in waiting]
        # The second one after the broker has heard of the new leader.
        refusals = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
        assert {answer.error_code for answer in answers} <= refusals

    run(scenario)


async def _controller_of(cluster: SimCluster) -> SimNode:
    while True:
        for node in cluster.nodes:
            if node.broker is not None and node.broker.controller is not None and node.broker.controller.is_active:
                return node
        await asyncio.sleep(0.05)
