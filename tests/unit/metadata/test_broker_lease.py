"""The lease of a broker is lost again while the broker waits for the answer to a heartbeat that belongs to an earlier
lease: what happens to the broker's partitions follows the newest lease only.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from metadata_harness.controlled import run
from tidelog.metadata.broker_lifecycle import BrokerLifecycle
from tidelog.metadata.leadership import HeldLease
from tidelog.metadata.registration import HeartbeatReply
from tidelog.simulation.store import SimStore
from tidelog.simulation.world import SimHost
from tidelog.wire.errors import ErrorCode

LEASE_MS = 9000
ACCEPTED = SimpleNamespace(
    error=ErrorCode.NONE, position=7, message="", result=lambda: HeartbeatReply(False, False, False)
)
REFUSED = SimpleNamespace(error=ErrorCode.REQUEST_TIMED_OUT, position=-1, message="no answer in time")


class Stage:
    """A registered broker whose heartbeats the test answers. `events`: what the lease made the broker do."""

    def __init__(self, host: SimHost) -> None:
        self.heartbeats: list[asyncio.Future[Any]] = []
        self.events: list[str] = []
        store = SimStore("/metadata", host.runtime.clock, host.runtime.tasks, host.runtime.disk)
        link: Any = SimpleNamespace(heartbeat=self._heartbeat)
        publisher: Any = SimpleNamespace(wait_for_roles=self._wait_for_roles)
        cache: Any = SimpleNamespace(newest=SimpleNamespace(position=3, brokers={}))
        config: Any = SimpleNamespace(lease_ms=LEASE_MS, node_id=1)
        self.lifecycle = BrokerLifecycle(store, link, publisher, cache, config, host.runtime, "run-1")
        self.lifecycle.broker_epoch = 5
        self.lifecycle.on_lease_over = lambda: self.events.append("over")
        self.lifecycle.on_lease_regained = lambda: self.events.append("regained")

    async def _heartbeat(self, _request: object) -> Any:
        self.heartbeats.append(asyncio.get_running_loop().create_future())
        return await self.heartbeats[-1]

    async def _wait_for_roles(self, _position: int) -> None:
        return

    async def lose_lease(self) -> None:
        """Lose the lease. Return when the broker has the next lease, and has sent a heartbeat because of it."""
        lease, count = self.lease, len(self.heartbeats)
        lease.lose("the test")
        while self.lease is lease or len(self.heartbeats) == count:
            await asyncio.sleep(0.01)

    async def lose_two_leases(self) -> list[asyncio.Future[Any]]:
        """Return the unanswered heartbeats of the two leases after them, the earlier one first."""
        await self.lose_lease()
        await self.lose_lease()
        assert len(self.heartbeats) == 2
        return self.heartbeats

    @property
    def lease(self) -> HeldLease:
        lease = self.lifecycle._lease
        assert lease is not None
        return lease


def on_stage(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def staged(host: SimHost) -> None:
        stage = Stage(host)
        await stage.lifecycle.acquire_lease()
        await scenario(stage)
        await stage.lifecycle.release_lease()

    run(staged)


def test_a_refused_heartbeat_of_an_earlier_lease_does_not_stop_a_broker_with_a_new_lease() -> None:
    async def scenario(stage: Stage) -> None:
        earlier, newest = await stage.lose_two_leases()
        newest.set_result(ACCEPTED)
        await asyncio.sleep(0.1)
        assert stage.events[-1] == "regained"
        earlier.set_result(REFUSED)
        await asyncio.sleep(1)
        assert stage.events[-1] == "regained"
        assert len(stage.heartbeats) == 2

    on_stage(scenario)


@pytest.mark.parametrize("newest_answer", [ACCEPTED, REFUSED])
def test_an_accepted_heartbeat_of_an_earlier_lease_does_not_let_the_broker_lead(newest_answer: Any) -> None:
    async def scenario(stage: Stage) -> None:
        earlier, newest = await stage.lose_two_leases()
        earlier.set_result(ACCEPTED)
        await asyncio.sleep(0.1)
        assert set(stage.events) == {"over"}
        newest.set_result(newest_answer)
        await asyncio.sleep(0.1)
        assert stage.events[-1] == ("regained" if newest_answer is ACCEPTED else "over")

    on_stage(scenario)
