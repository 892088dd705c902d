"""The controller lease: acquire it, renew it, notice its loss, and append under it.

A broker relies on its lease only for a time on its own monotonic clock. This time begins when the last confirmed
acquisition or renewal was sent, and is shorter than the lease by a margin. So the broker stops before the store gives
the lease to another broker, even if the broker was paused meanwhile.
"""

import asyncio
import logging
import math
from typing import Final

from tidelog.metadata.store import Lease, LeaseLost, PositionTaken, Store, StoreFailed, StoreUnavailable
from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.metadata")

CONTROLLER_LEASE: Final = "controller"
MARGIN: Final = 0.1
"""Part of the lease's time that is not used, since the clocks of this broker and of the store may run at different
speeds."""
RENEWALS_PER_LEASE: Final = 3
RETRY_S: Final = 0.2
"""Pause after a call of the store that failed, in seconds."""


class OutcomeUnknown(Exception):
    """An append was sent, and this broker cannot find out yet whether the store has the entry."""


class HeldLease:
    """The controller lease of this broker, from its acquisition to its loss. A lost lease is never valid again."""

    def __init__(self, store: Store, runtime: Runtime, lease: Lease, ttl_ms: int | None, sent_s: float) -> None:
        self.lease = lease
        self.lost: asyncio.Future[str] = runtime.tasks.future()
        """Done, with the reason, when the lease is lost."""
        self._store = store
        self._clock = runtime.clock
        self._tasks = runtime.tasks
        self._ttl_ms = ttl_ms
        self._ends_s = self._end_s(sent_s)

    @staticmethod
    async def acquire(store: Store, runtime: Runtime, holder: str, ttl_ms: int | None) -> "HeldLease | None":
        """Acquire the controller lease if no other holder has it. Raises as `Store.acquire`.

        Without `ttl_ms` the lease does not expire, since no other process can reach the store.
        """
        sent_s = runtime.clock.monotonic()
        lease = await store.acquire(CONTROLLER_LEASE, holder, ttl_ms)
        return None if lease is None else HeldLease(store, runtime, lease, ttl_ms, sent_s)

    def _end_s(self, sent_s: float) -> float:
        return math.inf if self._ttl_ms is None else sent_s + self._ttl_ms * (1 - MARGIN) / 1000

    @property
    def expires(self) -> bool:
        """Whether the lease ends unless it is renewed."""
        return self._ttl_ms is not None

    @property
    def is_valid(self) -> bool:
        return not self.lost.done() and self._clock.monotonic() < self._ends_s

    def check(self) -> None:
        """Raise LeaseLost unless this broker can be sure that it holds the lease."""
        if self.lost.done():
            raise LeaseLost(self.lost.result())
        if self._clock.monotonic() >= self._ends_s:
            raise LeaseLost("the controller lease was not renewed in time")

    def lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    async def keep(self) -> None:
        """Renew the lease until it is lost."""
        assert self._ttl_ms is not None
        pause_s = self._ttl_ms / 1000 / RENEWALS_PER_LEASE
        while not self.lost.done():
            await self._tasks.sleep(pause_s)
            try:
                await self._renew(self._ttl_ms)
                pause_s = self._ttl_ms / 1000 / RENEWALS_PER_LEASE
            except LeaseLost as error:
                self.lose(str(error))
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("controller lease not renewed reason=%s", error)
                pause_s = RETRY_S
            except TimeoutError:
                self.lose("the controller lease was not renewed in time")

    async def _renew(self, ttl_ms: int) -> None:
        """Renew the lease. Raises LeaseLost; StoreUnavailable or StoreFailed if there is time for another attempt; and
        TimeoutError when the lease ends before the store has answered.
        """
        self.check()
        sent_s = self._clock.monotonic()
        await asyncio.wait_for(self._store.renew(self.lease, ttl_ms), self._ends_s - sent_s)
        self._ends_s = self._end_s(sent_s)

    # Appending

    async def append(self, position: int, data: bytes) -> None:
        """Append an entry while the lease is valid.

        If the answer to an append is lost, the position is read back until the lease ends. If it is empty, the same
        entry is appended again at the same position: the store accepts at most one entry there.

        Raises PositionTaken, LeaseLost or StoreUnavailable if the store does not have the entry and never will;
        OutcomeUnknown if the lease ended before the outcome was known.
        """
        self.check()
        if self._ttl_ms is None:
            await self._store.append(position, data, self.lease)
            return
        may_be_stored = False
        while True:
            try:
                self.check()
                await self._store.append(position, data, self.lease)
                return
            except PositionTaken:
                may_be_stored = True  # the position may have this entry: a client of the store may send it twice
            except StoreUnavailable:
                if not may_be_stored:
                    raise
            except LeaseLost as error:
                self.lose(str(error))
                if not may_be_stored:
                    raise
            except StoreFailed as error:
                may_be_stored = True
                logger.warning("metadata append without answer position=%d reason=%s", position, error)
            if await self._has_entry(position, data):
                return

    async def _has_entry(self, position: int, data: bytes) -> bool:
        """Return whether the store has the entry at `position`; False if the position is empty.

        Raises PositionTaken if another entry is there, and OutcomeUnknown when the lease has ended.
        """
        while True:
            try:
                entries = await self._store.read(position, 1)
            except (StoreUnavailable, StoreFailed):
                entries = None
            if entries and entries[0].position == position:
                if entries[0].data == data:
                    return True
                raise PositionTaken(f"position {position} has an entry of another controller")
            if not self.is_valid or entries:
                raise OutcomeUnknown(f"the controller lease ended before the answer to append {position} was known")
            await self._tasks.sleep(RETRY_S)
            if entries is not None:
                return False
