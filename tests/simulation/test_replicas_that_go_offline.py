"""Replicas whose logs cannot be used: others lead, damaged logs are fetched anew, a full disk delays only itself."""

import asyncio
import errno

import pytest

from replication_harness.brokers import TOPIC, Stage, run
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
    assert lines.count(f"damaged log put aside, to be fetched anew partition={TOPIC}-0") == 2


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
