"""The controller's lease: acquired at the start, renewed while the broker runs, and acquired again after the store was
away.
"""

from typing import Final

from tidelog.metadata.store import Lease, LeaseLost, LeaseTerm, Store
from tidelog.runtime.interfaces import Runtime

CONTROLLER_LEASE: Final = "controller"
ACQUIRE_POLL_S: Final = 0.5
ACQUIRE_EXTRA_S: Final = 4.0
"""A start waits this long after a full term, since a store may notice the end of a lease late."""


class ControllerLease:
    """The lease of one broker. `current` is the lease that appends carry; None before `acquire` and after `release`."""

    def __init__(self, store: Store, runtime: Runtime, ttl_ms: int | None) -> None:
        """`ttl_ms` is None if the lease does not expire, since no other process can reach the store."""
        self.current: Lease | None = None
        self._store = store
        self._clock = runtime.clock
        self._tasks = runtime.tasks
        self._ttl_ms = ttl_ms
        self._term: LeaseTerm | None = None

    @property
    def renewal_s(self) -> float | None:
        """Interval at which the lease must be renewed; None if it does not expire."""
        return None if self._ttl_ms is None else self._ttl_ms / 3000

    @property
    def is_over(self) -> bool:
        """Whether the last confirmed renewal was sent too long ago to rely on the lease."""
        return self._term is not None and self._term.is_over

    async def acquire(self, holder: str) -> Lease:
        """Acquire the lease. If a process that ended holds it, wait until its term is over.

        Raises LeaseLost if another holder still has it then, StoreUnavailable, StoreFailed.
        """
        latest_s = self._clock.monotonic() + (0 if self._ttl_ms is None else self._ttl_ms / 1000 + ACQUIRE_EXTRA_S)
        while (lease := await self._try_to_acquire(holder)) is None:
            if self._clock.monotonic() >= latest_s:
                raise LeaseLost("another broker is the controller of this cluster")
            await self._tasks.sleep(ACQUIRE_POLL_S)
        return lease

    async def renew(self) -> None:
        """Raises LeaseLost, StoreUnavailable, StoreFailed."""
        assert self.current is not None
        assert self._ttl_ms is not None
        sent_s = self._clock.monotonic()
        await self._store.renew(self.current, self._ttl_ms)
        if self._term is not None:
            self._term.extend(sent_s)

    async def regain(self) -> Lease:
        """Acquire the lease again after its term, with a new epoch, if nobody has acquired it meanwhile.

        Raises LeaseLost if another process has acquired it, also if it has the same node id; StoreUnavailable,
        StoreFailed.
        """
        lost = self.current
        assert lost is not None
        if self._ttl_ms is None:
            raise LeaseLost(f"lease {lost.name} is not {lost.holder}'s in epoch {lost.epoch}")
        held = [lease for lease in await self._store.held_leases(lost.name) if lease.name == lost.name]
        lease = await self._try_to_acquire(lost.holder) if held in ([], [lost]) else None
        if lease is None or lease.epoch != lost.epoch + 1:
            raise LeaseLost(f"another broker has acquired the lease {lost.name}")
        return lease

    async def release(self) -> None:
        """Raises StoreUnavailable, StoreFailed."""
        lease, self.current = self.current, None
        if lease is not None:
            await self._store.release(lease)

    async def _try_to_acquire(self, holder: str) -> Lease | None:
        sent_s = self._clock.monotonic()
        lease = await self._store.acquire(CONTROLLER_LEASE, holder, self._ttl_ms)
        if lease is not None:
            self.current = lease
            if self._ttl_ms is not None:
                self._term = LeaseTerm(self._clock, self._ttl_ms)
                self._term.extend(sent_s)
        return lease
