"""The leases of a broker: acquire a lease, renew it, notice its loss, and append to the journal under the controller
lease.

A broker relies on its lease only for a limited time, which it measures on its own monotonic clock. This time begins
when the broker sends an acquisition or renewal, not when the confirmation arrives. A renewal that is not confirmed does
not extend this time. The time is shorter than the lease by a margin (`LeaseTerm`). So the broker stops relying on the
lease before another broker can acquire it, even if the process was paused in the meantime.
"""

import asyncio
import logging
from typing import Final, NamedTuple

from tidelog.metadata.store import (
    AppendUnknown,
    Lease,
    LeaseLost,
    LeaseTerm,
    Store,
    StoreFailed,
    StoreUnavailable,
    settle_append,
)
from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.metadata")

CONTROLLER_LEASE: Final = "controller"
_HOLDER_PREFIX: Final = "broker-"
NOT_RENEWED: Final = "the lease was not renewed in time"
TIMER_ERROR_S: Final = 0.001
"""A pause ends when less than this time remains, in seconds, since a timer may fire slightly too early."""
RENEWALS_PER_LEASE: Final = 3
"""The regular pause between two renewals is the duration of the lease divided by this number. After a failed renewal,
the pause is RETRY_S."""
SETTLE_S: Final = 10.0
"""Only for leases without expiry (`ttl_ms` None): after this time, in seconds, an append stops trying to find out its
outcome."""
CLOCK_CHECK_S: Final = 0.5
"""While no renewal is due, the clock is read at this interval, in seconds. Timers do not run while the machine sleeps,
so the timer of the next renewal could fire long after the lease has ended."""
RETRY_S: Final = 0.2
"""Pause after a failed call of the store, in seconds."""


def controller_holder(node_id: int, identity: str) -> str:
    """Return the `holder` text with which a broker acquires the controller lease. Used only for stores that other
    processes can reach. `identity` distinguishes this broker from another broker with the same node id. It is the id of
    the broker's first data directory, or the id of this run of the broker's process.
    """
    return f"{_HOLDER_PREFIX}{node_id}/{identity}"


def holding_broker(lease: Lease) -> int | None:
    """Return the node id in the holder of a controller lease, or None if the holder contains no node id."""
    text = lease.holder.removeprefix(_HOLDER_PREFIX).partition("/")[0]
    return int(text) if text.isascii() and text.isdigit() else None


class SentEntry(NamedTuple):
    """Identifies an entry that a controller has sent to the store."""

    position: int
    writer: str
    """Identifies the lease, by its holder and its epoch. Each acquisition of the controller lease has a new epoch."""
    number: int
    """Sequence number of the append under this lease, starting with 0."""


class OutcomeUnknown(Exception):
    """An append was sent, but this broker cannot find out yet whether the store has the entry."""

    def __init__(self, entry: SentEntry) -> None:
        super().__init__(f"it is unknown whether metadata entry {entry.position} was stored")
        self.entry = entry


class HeldLease:
    """A lease of this broker, from its acquisition to its loss. A lost lease is never valid again."""

    def __init__(self, store: Store, runtime: Runtime, lease: Lease, ttl_ms: int | None, sent_s: float) -> None:
        self.lease = lease
        self.lost: asyncio.Future[str] = runtime.tasks.future()
        """Done, with the reason, when the lease is lost."""
        self._store = store
        self._clock = runtime.clock
        self._tasks = runtime.tasks
        self._ttl_ms = ttl_ms
        self._term = None if ttl_ms is None else LeaseTerm(runtime.clock, ttl_ms)
        if self._term is not None:
            self._term.extend(sent_s)
        self._append_count = 0

    @staticmethod
    async def acquire(store: Store, runtime: Runtime, name: str, holder: str, ttl_ms: int | None) -> "HeldLease | None":
        """Acquire the lease `name` if no other holder has it. Raises the exceptions of `Store.acquire`.

        Without `ttl_ms` the lease does not expire. This is for a store that no other process can reach.
        """
        sent_s = runtime.clock.monotonic()
        lease = await store.acquire(name, holder, ttl_ms)
        return None if lease is None else HeldLease(store, runtime, lease, ttl_ms, sent_s)

    @property
    def expires(self) -> bool:
        """Whether the lease ends unless it is renewed."""
        return self._ttl_ms is not None

    @property
    def is_valid(self) -> bool:
        return not self.lost.done() and (self._term is None or not self._term.is_over)

    def check(self) -> None:
        """Raise LeaseLost unless it is certain that this broker has the lease."""
        if self.lost.done():
            raise LeaseLost(self.lost.result())
        if not self.is_valid:
            self.lose(NOT_RENEWED)
            raise LeaseLost(NOT_RENEWED)

    def lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    async def release(self) -> None:
        """Release the lease. If the store cannot be reached, the lease ends when it expires."""
        self.lose("the broker stops")
        try:
            await self._store.release(self.lease)
        except (StoreUnavailable, StoreFailed) as error:
            logger.warning("lease not released lease=%s reason=%s", self.lease.name, error)

    async def renew_until_lost(self) -> None:
        """Renew the lease until it is lost."""
        assert self._ttl_ms is not None
        assert self._term is not None
        pause_s = self._renewal_pause_s(self._ttl_ms, self._term)
        while not self.lost.done():
            await self._pause(pause_s)
            try:
                await self._renew(self._ttl_ms, self._term)
                pause_s = self._renewal_pause_s(self._ttl_ms, self._term)
            except LeaseLost as error:
                self.lose(str(error))
            except (StoreUnavailable, StoreFailed) as error:
                if pause_s != RETRY_S:  # the first failure of an outage
                    logger.warning("lease not renewed lease=%s reason=%s", self.lease.name, error)
                pause_s = RETRY_S
            except TimeoutError:
                self.lose(NOT_RENEWED)

    def _renewal_pause_s(self, ttl_ms: int, term: LeaseTerm) -> float:
        """Return the pause before the next renewal, in seconds. It is shorter if the store has answered late, because
        the term began when the request was sent.
        """
        return min(ttl_ms / 1000 / RENEWALS_PER_LEASE, max(term.remaining_s / 2, RETRY_S))

    async def _pause(self, pause_s: float) -> None:
        end_s = self._clock.monotonic() + pause_s
        while (remaining_s := end_s - self._clock.monotonic()) > TIMER_ERROR_S:
            await self._tasks.sleep(min(remaining_s, CLOCK_CHECK_S))

    async def _renew(self, ttl_ms: int, term: LeaseTerm) -> None:
        """Renew the lease.

        Raises LeaseLost if the lease is lost, also if its term has ended before the answer of the store is processed.
        Raises StoreUnavailable or StoreFailed if the attempt failed before the term was over. Raises TimeoutError if
        the term ends before the store has answered.
        """
        self.check()
        sent_s = self._clock.monotonic()
        await asyncio.wait_for(self._store.renew(self.lease, ttl_ms), term.remaining_s)
        # After a pause of the process, the broker may have noticed the end of the term and stopped leading partitions
        # before this answer is processed. It leads them again only when it has acquired the lease again.
        self.check()
        term.extend(sent_s)

    # Appending

    async def append(self, position: int, data: bytes) -> SentEntry:
        """Append an entry while the lease is valid.

        If the answer to an append is lost, this method finds out the outcome (`settle_append`) while the lease is
        valid.

        After PositionTaken, LeaseLost and StoreUnavailable it is certain that the store does not have the entry and
        will never get it. Raises OutcomeUnknown if the outcome is still unknown when the lease ends, or after SETTLE_S
        for a lease that does not expire. If the store reports StoreFailed, a lease with a `ttl_ms` is given up
        and OutcomeUnknown is raised; with a lease that does not expire, StoreFailed is raised.
        """
        self.check()
        entry = SentEntry(position, f"{self.lease.holder}/{self.lease.epoch}", self._append_count)
        self._append_count += 1
        try:
            await self._store.append(position, data, self.lease, entry.writer, entry.number)
        except AppendUnknown as error:
            logger.warning("metadata append without answer position=%d reason=%s", position, error)
            await self._settle(entry, data)
        except StoreFailed as error:
            if not self.expires:
                raise
            self.lose(str(error))
            raise OutcomeUnknown(entry) from None
        return entry

    async def _settle(self, entry: SentEntry, data: bytes) -> None:
        """Return when it is certain that the store has the entry. Raises PositionTaken, LeaseLost and OutcomeUnknown;
        see `append`.
        """
        deadline_s = self._clock.monotonic() + SETTLE_S
        while self.is_valid and (self.expires or self._clock.monotonic() < deadline_s):
            try:
                await settle_append(self._store, entry.position, data, self.lease, entry.writer, entry.number)
                return
            except (StoreFailed, StoreUnavailable):
                await self._tasks.sleep(RETRY_S)
        raise OutcomeUnknown(entry)
