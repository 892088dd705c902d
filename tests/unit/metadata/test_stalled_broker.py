"""A controller whose own broker does not finish its file work, for example because its disk hangs."""

import asyncio
from typing import Any

import pytest

from metadata_harness.shared import LEASE_MS, SharedCluster, SharedNode, run_shared
from tidelog.metadata import link
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.service import STALLED_CANDIDACY_S, MetadataService
from tidelog.wire.errors import ErrorCode

HANGS_S = 1e6
LEASE_S = LEASE_MS / 1000


async def hang(cluster: SharedCluster, node: SharedNode) -> None:
    """Let the file work of a new topic hang on this broker."""
    node.partitions.open_s = HANGS_S
    position = cluster.store.next_position
    answer = node.controller.create_topics([NewTopic("hangs", 3)])
    node.host.runtime.tasks.spawn(answer, name="create")
    while cluster.store.next_position == position:
        await asyncio.sleep(0.05)


async def until(condition: Any, seconds: float) -> None:
    ends_s = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < ends_s, "not in time"
        await asyncio.sleep(0.05)


def never_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(service: MetadataService, lease: object) -> None:
        await service._tasks.sleep(HANGS_S)

    monkeypatch.setattr(MetadataService, "_give_up_if_stalled", keep)


def test_brokers_are_still_fenced_and_their_requests_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a controller that has not given up its lease yet, or has no successor."""
    never_give_up(monkeypatch)

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        victims = [node for node in cluster.nodes if node is not controller]
        witness = victims.pop()
        await hang(cluster, controller)
        for victim in victims:
            victim.host.kill()
        newest = controller.cache
        await until(lambda: all(newest.newest.brokers[v.node_id].fenced for v in victims), LEASE_S + 5)
        assert controller.is_controller
        assert "hangs" not in controller.image.topics
        await until(lambda: all(witness.image.brokers[v.node_id].fenced for v in victims), 1)
        allocate = link.AllocateProducerIds(witness.node_id)
        for node in (witness, controller):
            answer = await asyncio.wait_for(node.metadata.link.allocate_producer_ids(allocate), 2)
            assert not answer.error
        await victims[0].start()
        await until(lambda: not witness.image.brokers[victims[0].node_id].fenced, 10)

    run_shared(scenario, nodes=4)


def test_a_client_waits_for_the_files_of_the_controllers_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    never_give_up(monkeypatch)

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        controller.partitions.open_s = HANGS_S
        for node in cluster.nodes:
            request = link.CreateTopics([NewTopic(f"t{node.node_id}")], timeout_ms=2000)
            answer = await node.metadata.link.create_topics(request)
            assert answer.error == ErrorCode.REQUEST_TIMED_OUT

    run_shared(scenario, nodes=2)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_controller_that_hangs_gives_up_its_lease(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await hang(cluster, first)
        await asyncio.sleep(LEASE_S - 1)
        assert first.is_controller, "one slow change is no reason"
        await until(lambda: not first.is_controller, 2)
        second = await cluster.controller()
        assert second is not first
        await second.controller.create_topics([NewTopic("u")])
        await asyncio.sleep(30)
        assert second.is_controller
        assert first.cache.newest.controller_id == second.node_id

    run_shared(scenario, nodes=2, seed=seed)
    (line,) = [record.message for record in caplog.records if "controller lease lost" in record.message]
    assert line.startswith("controller lease lost node=")
    assert "has not processed metadata entry" in line


def test_the_only_active_broker_keeps_the_lease() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        (other,) = [node for node in cluster.nodes if node is not controller]
        await other.stop()
        await until(lambda: controller.image.brokers[other.node_id].fenced, LEASE_S + 5)
        await hang(cluster, controller)
        for _ in range(10):
            await asyncio.sleep(LEASE_S / 2)
            assert controller.is_controller

    run_shared(scenario, nodes=2)


def test_if_all_brokers_hang_one_of_them_is_the_controller() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        for node in cluster.nodes:
            node.partitions.open_s = HANGS_S
        await hang(cluster, await cluster.controller())
        without_s, epochs = 0.0, set()
        for _ in range(1000):
            await asyncio.sleep(0.1)
            without_s += 0.0 if cluster.controllers_now else 0.1
            epochs |= {node.cache.newest.controller_epoch for node in cluster.nodes}
        assert len(epochs) > 10
        assert without_s / 100 < (STALLED_CANDIDACY_S + 1.5) / LEASE_S / 2

    run_shared(scenario, nodes=2)


def test_a_busy_broker_is_unfenced_and_delays_no_shutdown() -> None:
    """Neither waits for its file work: it has the roles of the newest metadata."""

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        busy, leaving = [node for node in cluster.nodes if node is not controller]
        busy.partitions.open_s = HANGS_S
        creation = link.CreateTopics([NewTopic("t")], timeout_ms=60_000)
        assert not (await controller.metadata.link.create_topics(creation)).error
        busy.cut_off()

        def is_fenced() -> bool:
            return controller.image.brokers[busy.node_id].fenced

        await until(is_fenced, LEASE_S + 5)
        cluster.world.network.heal()
        await until(lambda: not is_fenced(), 5)
        assert "t" not in busy.image.topics
        began_s = cluster.world.loop.time()
        lifecycle = leaving.metadata.lifecycle
        assert lifecycle is not None
        await leaving.host.runtime.tasks.spawn(lifecycle.shut_down(), name="shutdown")
        assert cluster.world.loop.time() - began_s < 1

    run_shared(scenario, nodes=3)
