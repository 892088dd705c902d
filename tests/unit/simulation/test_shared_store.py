"""The shared store of a simulated cluster: broken links, slow calls, lost sessions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tidelog.metadata.store import Lease, LeaseLost, StoreFailed, StoreUnavailable
from tidelog.simulation.shared_store import CALL_TIMEOUT_S, HOST, SharedStore, StoreHandle
from tidelog.simulation.world import World, simulated

T = TypeVar("T")

NO_ANSWER = (StoreFailed, StoreUnavailable)
"""The errors of a call without an answer."""


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.store = SharedStore(world)
        self.one, self.two = self.handle("broker-1"), self.handle("broker-2")

    def handle(self, host: str) -> StoreHandle:
        return self.store.handle(host, self.world.host(host).runtime)

    async def lease(self, holder: str = "broker-1", ttl_ms: int | None = None) -> Lease:
        lease = await self.handle(holder).acquire("controller", holder, ttl_ms)
        assert lease is not None
        return lease


def run(scenario: Callable[[Stage], Coroutine[Any, Any, T]]) -> T:
    with simulated(1) as world:
        return world.run(scenario(Stage(world)))


def test_a_waiting_broker_is_notified_of_an_entry() -> None:
    async def scenario(stage: Stage) -> float:
        waiting = asyncio.ensure_future(stage.two.wait(0))
        await asyncio.sleep(60)
        assert not waiting.done()
        await stage.one.append(0, b"entry", await stage.lease())
        before = stage.world.loop.time()
        await waiting
        await stage.two.wait(0)
        return stage.world.loop.time() - before

    assert run(scenario) < 0.5


def test_a_waiting_broker_notices_that_its_link_is_cut() -> None:
    async def scenario(stage: Stage) -> float:
        waiting = asyncio.ensure_future(stage.two.wait(0))
        await asyncio.sleep(1)
        stage.world.network.partition("broker-2", HOST)
        before = stage.world.loop.time()
        with pytest.raises(NO_ANSWER):
            await waiting
        return stage.world.loop.time() - before

    assert run(scenario) <= 2 * CALL_TIMEOUT_S


@pytest.mark.parametrize("cut_s", [1.0, 4.0, 7.0])
def test_an_entry_that_comes_while_the_link_is_cut_is_not_missed(cut_s: float) -> None:
    async def scenario(stage: Stage) -> None:
        waiting = asyncio.ensure_future(stage.two.wait(0))
        await asyncio.sleep(1)
        stage.world.network.partition_one_way(HOST, "broker-2")
        await stage.one.append(0, b"entry", await stage.lease())
        await asyncio.sleep(cut_s)
        assert not waiting.done()
        stage.world.network.unblock(HOST, "broker-2")
        await asyncio.wait_for(waiting, 2 * CALL_TIMEOUT_S)

    run(scenario)


def test_a_call_whose_answer_is_lost_was_executed() -> None:
    async def scenario(stage: Stage) -> list[bytes]:
        lease = await stage.lease()
        stage.world.network.partition_one_way(HOST, "broker-1")
        with pytest.raises(NO_ANSWER):
            await stage.one.append(0, b"entry", lease)
        stage.world.network.unblock(HOST, "broker-1")
        return [entry.data for entry in await stage.one.read(0)]

    assert run(scenario) == [b"entry"]


def test_a_call_on_a_cut_link_arrives_late_or_not_at_all() -> None:
    async def scenario(stage: Stage) -> tuple[int, int]:
        lease = await stage.lease()
        stage.world.network.partition_one_way("broker-1", HOST)
        late = asyncio.ensure_future(stage.one.append(0, b"late", lease))
        await asyncio.sleep(CALL_TIMEOUT_S - 1)
        stage.world.network.unblock("broker-1", HOST)
        await late
        after_a_short_cut = stage.store.next_position
        stage.world.network.partition_one_way("broker-1", HOST)
        with pytest.raises(NO_ANSWER):
            await stage.one.append(1, b"lost", lease)
        stage.world.network.unblock("broker-1", HOST)
        await asyncio.sleep(10)
        return after_a_short_cut, stage.store.next_position

    assert run(scenario) == (1, 1)


def test_a_slow_store_takes_time_for_each_call() -> None:
    async def scenario(stage: Stage) -> float:
        stage.store.delay_s = (2.0, 3.0)
        before = stage.world.loop.time()
        await stage.one.read(0)
        return stage.world.loop.time() - before

    assert 2.0 <= run(scenario) <= 3.5


def test_a_lost_session_ends_the_leases_of_one_host() -> None:
    async def scenario(stage: Stage) -> tuple[int, int]:
        first = await stage.lease("broker-1", 60_000)
        stage.store.expire_sessions("broker-2")
        await stage.one.renew(first, 60_000)
        stage.store.expire_sessions("broker-1")
        with pytest.raises(LeaseLost):
            await stage.one.renew(first, 60_000)
        with pytest.raises(LeaseLost):
            await stage.one.append(0, b"entry", first)
        return first.epoch, (await stage.lease("broker-2", 60_000)).epoch

    first, second = run(scenario)
    assert second > first
