"""Brokers replicate: acknowledged records survive their leader, followers cut the others, the ISR follows."""

import asyncio

import pytest

from replication_harness.brokers import Stage, run
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

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
        await stage.elect(followers[0], followers)
        assert (await stage.produce(b"5")).error_code == 0
        assert stage.values(followers[0]) == [b"%d" % number for number in range(6)]
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
