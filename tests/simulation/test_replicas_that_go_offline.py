"""Replicas whose logs cannot be used: others lead, damaged logs are fetched anew, a full disk delays only itself."""

import asyncio
import errno

import pytest

from replication_harness.brokers import TOPIC, Stage, run
from tidelog.simulation import shared_store
from tidelog.simulation.cluster import SimNode
from tidelog.wire.errors import ErrorCode

DAMAGED = 9999
"""Number of times that the injected error happens: always."""


@pytest.mark.parametrize("leads", [True, False])
def test_a_failed_directory_moves_leadership_away(leads: bool) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        node = stage.leader if leads else stage.followers[0]
        others = [other for other in stage.cluster.nodes if other is not node]
        path = stage.partition(node).log.directory.rpartition("/")[0]
        node.host.disk.fail("write", f"{path}/*", errno.EIO, times=DAMAGED)
        await stage.produce(b"b", acks=1)
        await stage.until_isr(*(other.node_id for other in others))
        await stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
        assert (await stage.produce(b"c")).error_code == 0
        assert stage.values(stage.leader)[-1] == b"c"
        await asyncio.sleep(5)
        assert node.broker is not None, "the broker goes on with its other directory"
        assert sorted(stage.state().isr) == sorted(other.node_id for other in others)

    run(scenario, settings={"log.dirs": "/a,/b"})


def test_a_damaged_log_is_fetched_anew(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        for number in range(5):
            await stage.produce(b"%d" % number)
        await asyncio.sleep(5)
        for node in (stage.followers[0], stage.leader):
            await stage.until_isr(1, 2, 3)
            node.kill()
            file = node.host.disk.open(f"/data/{TOPIC}-0/{0:020d}.log")
            file.truncate(file.size() // 2)
            file.sync()
            file.close()
            await node.start()
            await stage.until(lambda node=node: node.node_id not in stage.state().isr)  # type: ignore[misc]
            await stage.until_isr(1, 2, 3)
            await stage.until_equal(*stage.cluster.nodes)
            assert stage.values(node) == [b"%d" % number for number in range(5)]
            await asyncio.sleep(5)

    run(scenario)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count(f"damaged log renamed, to be fetched anew partition={TOPIC}-0") == 2


def test_a_full_disk_of_a_follower_delays_acknowledgements_within_the_lag_limit_only() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        full = stage.followers[0]
        full.host.disk.fail("write", f"/data/{TOPIC}-0/*", errno.ENOSPC, times=DAMAGED)
        began_s = stage.world.loop.time()
        assert (await stage.produce(b"b")).error_code == 0
        assert 2 < stage.world.loop.time() - began_s < 8
        began_s = stage.world.loop.time()
        assert (await stage.produce(b"c")).error_code == 0
        assert stage.world.loop.time() - began_s < 0.5
        full.host.disk.repair()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)

    run(scenario)


def test_a_full_disk_of_the_leader_moves_leadership_away(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        full = stage.leader
        others = [other for other in stage.cluster.nodes if other is not full]
        full.host.disk.fail("write", f"/data/{TOPIC}-0/*", errno.ENOSPC, times=DAMAGED)
        began_s = stage.world.loop.time()
        assert (await stage.produce(b"refused", acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
        assert 1 < stage.world.loop.time() - began_s < 3
        assert sorted(stage.state().isr) == sorted(other.node_id for other in others)
        assert (await stage.produce(b"b")).error_code == 0
        assert full.broker is not None
        full.host.disk.repair()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)
        assert stage.values(full) == [b"a", b"b"]

    run(scenario, settings={"min.insync.replicas": "2"})
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count(f"disk is full, another broker is to lead partition={TOPIC}-0") == 1


def test_a_new_leader_whose_log_cannot_be_cut_on_a_full_disk_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        full, others = stage.leader, stage.followers
        for node in others:
            stage.world.network.partition(full.host.name, node.host.name)
        assert (await stage.produce(b"only here", acks=1)).error_code == 0
        await stage.elect(others[0], others)
        full.host.disk.fail("create", "/data/*", errno.ENOSPC, times=DAMAGED)
        stage.world.network.heal()
        await stage.until(lambda: "truncation put off" in caplog.text)
        await stage.change(leader=full.node_id, isr=tuple(stage.state().replicas))
        began_s = stage.world.loop.time()
        await stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
        assert 1 < stage.world.loop.time() - began_s < 3
        assert (await stage.produce(b"b")).error_code == 0
        await asyncio.sleep(10)
        assert sorted(stage.state().isr) == sorted(other.node_id for other in others)
        full.host.disk.repair()
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)
        assert stage.values(full) == [b"a", b"b"]

    run(scenario, settings={"min.insync.replicas": "2"})
    for line in (
        "truncation put off",
        "no leader until the log is truncated",
        "disk is full, another broker is to lead",
    ):
        assert caplog.text.count(f"{line} partition={TOPIC}-0") == 1


def test_a_short_lack_of_space_moves_no_leadership() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        leader = stage.leader
        leader.host.disk.fail("write", f"/data/{TOPIC}-0/*", errno.ENOSPC, times=1)
        assert (await stage.produce(b"refused", acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await stage.produce(b"b")).error_code == 0
        await asyncio.sleep(5)
        assert stage.leader is leader
        assert sorted(stage.state().isr) == [1, 2, 3]

    run(scenario)


def test_full_disks_of_all_brokers_leave_enough_replicas_in_sync() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.produce(b"a")
        for node in stage.cluster.nodes:
            node.host.disk.fail("write", f"/data/{TOPIC}-0/*", errno.ENOSPC, times=DAMAGED)
        for _ in range(10):
            assert (await stage.produce(b"refused", acks=1)).error_code
            await asyncio.sleep(1)
        assert len(stage.state().isr) >= 2, "a replica that has everything may return, even if its disk is full"
        for node in stage.cluster.nodes:
            node.host.disk.repair()
        await stage.until_isr(1, 2, 3)
        assert (await stage.produce(b"b")).error_code == 0
        assert stage.values(stage.leader) == [b"a", b"b"]

    run(scenario, settings={"min.insync.replicas": "2"})


@pytest.mark.parametrize("away", ["store", "controller"])
def test_a_damaged_log_is_not_replaced_while_a_proposal_for_the_isr_has_no_outcome(
    away: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader has proposed to add a replica to the ISR, and repeats this, since the store is away, or since its link
    to the controller is cut. Meanwhile the log of the replica is found damaged. The replica must not be in the ISR with
    the log that replaces it, until this log has all committed records.
    """

    async def scenario(stage: Stage) -> None:
        network, values = stage.world.network, [b"%d" % number for number in range(5)]
        controller = await stage.controller()
        busy = next(node for node in stage.cluster.nodes if node.broker and node.broker.controller is controller)
        leader, returning = (node for node in stage.cluster.nodes if node is not busy)
        await stage.elect(leader)
        await stage.until_equal(*stage.cluster.nodes)
        for node in (returning, busy):
            network.partition(leader.host.name, node.host.name)
        await stage.change(isr=(leader.node_id,))
        for value in values:
            assert (await stage.produce(value)).error_code == 0
        damaged = stage.partition(returning)
        assert not damaged.log_end_offset

        lost: list[str] = []

        def check() -> None:
            partition = returning.broker and returning.broker.services.partitions.find(TOPIC, 0)
            end = partition.log_end_offset if partition else 0
            if returning.node_id in stage.state().isr and partition is not damaged and end < len(values):
                lost.append(str(stage))

        async def watch() -> None:
            while True:
                check()
                await asyncio.sleep(0.005)

        watching = asyncio.ensure_future(watch())
        if away == "store":
            for node in stage.cluster.nodes:
                network.partition(node.host.name, shared_store.HOST)
            unblock(stage, leader, busy)
        unblock(stage, leader, returning)
        isr = stage.partition(leader).replica.isr
        assert isr is not None
        await stage.until(lambda: isr.proposed is not None and returning.node_id in isr.proposed, seconds=3)
        damaged.log.fail("damaged by this test")
        damaged.fail()
        network.partition(leader.host.name, returning.host.name)
        await asyncio.sleep(1.6)
        if away == "store":
            for node in stage.cluster.nodes:
                unblock_host(stage, node, shared_store.HOST)
        else:
            unblock(stage, leader, busy)
        await stage.until(lambda: stage.partition(returning) is not damaged)
        await asyncio.sleep(3)
        assert returning.node_id not in stage.state().isr
        assert stage.leader is leader
        unblock(stage, leader, returning)
        await stage.until_isr(1, 2, 3)
        await stage.until_equal(*stage.cluster.nodes)
        watching.cancel()
        assert not lost, lost[0]
        assert stage.values(returning) == values

    def unblock(stage: Stage, one: SimNode, other: SimNode) -> None:
        unblock_host(stage, one, other.host.name)

    def unblock_host(stage: Stage, node: SimNode, host: str) -> None:
        stage.world.network.unblock(node.host.name, host)
        stage.world.network.unblock(host, node.host.name)

    run(scenario)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count(f"damaged log renamed, to be fetched anew partition={TOPIC}-0") == 1
