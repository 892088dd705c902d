"""The controller while its store is away or loses answers: nothing is decided twice, lost or answered too early."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from metadata_harness.controlled import Node, run
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.leadership import HeldLease
from tidelog.metadata.records import ControllerElected, encode
from tidelog.metadata.store import AppendUnknown, Lease, Store, StoreUnavailable
from tidelog.simulation.store import SimStore
from tidelog.simulation.world import SimHost
from tidelog.wire.errors import ApiError, ErrorCode

LEASE_MS = 3000


class Outages:
    """A store that can be away, or lose the answers to appends, before or after they are executed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_away = False
        self.lost_answers = 0
        self.executes_lost = True
        self.on_append: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if not callable(method):
            return method

        async def call(*arguments: Any) -> Any:
            if self.is_away and name != "close":
                raise StoreUnavailable("the store is away")
            return await method(*arguments)

        return call

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        if self.lost_answers:
            self.lost_answers -= 1
            if self.executes_lost:
                await self.store.append(position, data, lease, writer, number)
            if self.on_append is not None:
                self.on_append()
            raise AppendUnknown("the answer was lost")
        await self.store.append(position, data, lease, writer, number)


async def started(host: SimHost, lease_ms: int | None = LEASE_MS) -> tuple[Node, Outages]:
    wrapped: list[Outages] = []

    def wrap(store: Store) -> Store:
        wrapped.append(Outages(store))
        return wrapped[0]  # type: ignore[return-value]

    node = await Node(host, {}, wrap, lease_ms).started()
    return node, wrapped[0]


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("lease_ms", [LEASE_MS, None])
def test_a_lost_answer_is_found_out_before_the_client_is_answered(executed: bool, lease_ms: int | None) -> None:
    async def scenario(host: SimHost) -> None:
        node, store = await started(host, lease_ms)
        position = node.image.position
        store.lost_answers, store.executes_lost = 1, executed
        (result,) = await node.controller.create_topics([NewTopic("t")])
        assert result.error == 0
        assert list(node.image.topics) == ["t"]
        assert node.image.position == position + 1  # one entry, not two
        await node.controller.create_topics([NewTopic("u")])
        await node.controller.stop()
        again = await Node(host, {}, lease_ms=lease_ms).started()
        assert sorted(again.image.topics) == ["t", "u"]

    run(scenario)


@pytest.mark.parametrize("executed", [True, False])
def test_while_the_outcome_is_unknown_nothing_is_decided_and_then_it_is_published(executed: bool) -> None:
    async def scenario(host: SimHost) -> None:
        node, store = await started(host)

        def go_away() -> None:
            store.is_away = True

        store.lost_answers, store.executes_lost, store.on_append = 1, executed, go_away
        with pytest.raises(ApiError, match="unknown") as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ApiError, match="cannot be changed") as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not node.image.topics
        store.is_away = False
        # The lease is over. The entry is in the journal if it was executed; otherwise it never will be.
        await node.runtime.tasks.sleep(LEASE_MS / 1000 + 1)
        assert list(node.image.topics) == (["t"] if executed else [])
        (result,) = await node.controller.create_topics([NewTopic("t")])
        assert result.error == (ErrorCode.TOPIC_ALREADY_EXISTS if executed else 0)
        await node.controller.create_topics([NewTopic("u")])
        await node.controller.stop()
        again = await Node(host, {}, lease_ms=LEASE_MS).started()
        assert sorted(again.image.topics) == ["t", "u"]
        assert again.image.position == node.image.position + 2  # its election and its registration

    run(scenario)


def test_after_an_outage_longer_than_the_lease_the_controller_goes_on_with_a_new_epoch() -> None:
    async def scenario(host: SimHost) -> None:
        node, store = await started(host)
        epoch = node.image.controller_epoch
        store.is_away = True
        await node.runtime.tasks.sleep(60)
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        store.is_away = False
        (result,) = await node.controller.create_topics([NewTopic("t")])  # does not wait for the next renewal
        assert result.error == 0
        assert node.image.controller_epoch == epoch + 1
        await node.runtime.tasks.sleep(60)
        await node.controller.create_topics([NewTopic("u")])
        assert node.image.controller_epoch == epoch + 1

    run(scenario)


def test_a_controller_that_was_replaced_during_an_outage_changes_nothing() -> None:
    async def scenario(host: SimHost) -> None:
        node, store = await started(host)
        store.is_away = True
        await node.runtime.tasks.sleep(60)
        other = await store.store.acquire("controller", "broker-2", None)
        assert other is not None
        await store.store.append(node.image.position, encode(2, [ControllerElected(2, 2)]), other)
        await store.store.release(other)  # nobody holds the lease now, and the journal has grown
        store.is_away = False
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.NOT_CONTROLLER
        await node.runtime.tasks.sleep(60)
        with pytest.raises(ApiError, match="another broker") as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.NOT_CONTROLLER

    run(scenario)


def test_after_a_pause_the_clock_decides_and_not_the_memory() -> None:
    """No call has failed, and no renewal ran: the process stood still for longer than its lease."""

    async def scenario(host: SimHost) -> None:
        node, store = await started(host)
        renewal = node.metadata._renewal
        assert renewal is not None
        renewal.cancel()
        await node.runtime.tasks.sleep(LEASE_MS / 1000)
        appended: list[int] = []
        plain_append = store.store.append

        async def counting_append(position: int, *arguments: Any) -> None:
            appended.append(arguments[1].epoch)
            await plain_append(position, *arguments)

        store.store.append = counting_append  # type: ignore[method-assign]
        epoch = node.image.controller_epoch
        await node.controller.create_topics([NewTopic("t")])
        assert appended == [epoch + 1, epoch + 1]  # nothing was sent under the lease that is over

    run(scenario)


def test_after_a_sleep_of_the_machine_the_end_of_the_lease_is_noticed_soon() -> None:
    """Timers do not run while the machine sleeps. So the end of the lease is noticed before the next renewal is due."""

    async def scenario(host: SimHost) -> None:
        store = SimStore("/metadata", host.runtime.clock, host.runtime.tasks, host.runtime.disk)
        held = await HeldLease.acquire(store, host.runtime, "broker/1", "one", 60_000)
        assert held is not None
        renewal = asyncio.create_task(held.renew_until_lost())
        await host.runtime.tasks.sleep(1)
        host.clock.sleep(3600)
        await host.runtime.tasks.sleep(0.6)
        assert held.lost.done()
        await renewal

    run(scenario)


def test_a_renewal_that_is_processed_after_the_end_of_the_term_does_not_make_the_lease_valid_again() -> None:
    """Otherwise a broker that has stopped leading because of the end would never lead again."""

    async def scenario(host: SimHost) -> None:
        store = SimStore("/metadata", host.runtime.clock, host.runtime.tasks, host.runtime.disk)
        held = await HeldLease.acquire(store, host.runtime, "broker/1", "one", 60_000)
        assert held is not None
        renewed = asyncio.Event()
        renew = store.renew

        async def renew_and_sleep(lease: Lease, ttl_ms: int | None) -> None:
            await renew(lease, ttl_ms)
            host.clock.sleep(50)  # the process is paused after the renewal was sent, 20 s after the last one
            assert not held.is_valid
            renewed.set()

        store.renew = renew_and_sleep  # type: ignore[method-assign]
        renewal = asyncio.create_task(held.renew_until_lost())
        await renewed.wait()
        await asyncio.wait((renewal,), timeout=1)
        assert renewal.done()
        assert held.lost.done()

    run(scenario)


def test_a_lease_whose_acquisition_was_answered_late_is_renewed_in_time() -> None:
    async def scenario(host: SimHost) -> None:
        store = SimStore("/metadata", host.runtime.clock, host.runtime.tasks, host.runtime.disk)
        acquire = store.acquire

        async def acquire_late(name: str, holder: str, ttl_ms: int | None) -> Lease | None:
            lease = await acquire(name, holder, ttl_ms)
            await host.runtime.tasks.sleep(45)
            return lease

        store.acquire = acquire_late  # type: ignore[method-assign]
        held = await HeldLease.acquire(store, host.runtime, "broker/1", "one", 60_000)
        assert held is not None
        renewal = asyncio.create_task(held.renew_until_lost())
        await host.runtime.tasks.sleep(100)
        assert held.is_valid
        held.lose("the test ends")
        await renewal

    run(scenario)


def test_a_stop_during_an_outage_ends() -> None:
    async def scenario(host: SimHost) -> None:
        node, store = await started(host)
        store.is_away = True
        await node.controller.stop()
        again = await Node(host, {}, lease_ms=LEASE_MS).started()  # the same holder need not wait
        assert again.image.controller_epoch == 2

    run(scenario)
