"""The metadata store of a simulated cluster: one server, which never stops. Brokers reach it over the simulated
network.

Each broker process gets its store from `SharedStore.handle`. A call takes the time of the network in both directions.
It can fail like a call to a real server: if a link was blocked, the caller does not know whether its call was executed.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.metadata.store import (
    SHARED_VALUE_BYTES_MAX,
    AppendUnknown,
    EntryTooLarge,
    Lease,
    LeaseLost,
    PositionTaken,
    Snapshot,
    StoredEntry,
    StoredJournal,
    StoreUnavailable,
)
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.leases import Leases

if TYPE_CHECKING:
    from tidelog.simulation.world import World

T = TypeVar("T")

HOST: Final = "store"
ADDRESS: Final = "10.0.1.1"
CALL_TIMEOUT_S = 5.0
"""Time limit of one call, in seconds. A process that waits for an entry asks the server again after this time, so that
it notices a broken link."""


class SharedStore:
    """The journal, its snapshot and the leases. Everything in it is durable."""

    def __init__(self, world: "World") -> None:
        self._network = world.network
        self._loop = world.loop
        self._trace = world.trace
        self._network.add_host(HOST, ADDRESS)
        self._network.start_process(HOST)
        self.entries: dict[int, StoredEntry] = {}
        self.next_position = 0
        self.stored_snapshot: Snapshot | None = None
        self.leases = Leases(lambda: int(world.loop.time() * 1000))
        self.delay_s = (0.0, 0.0)
        """Shortest and longest time, in seconds, that the server takes for a call."""
        self.on_append: Callable[[int, bytes, Lease], None] | None = None
        """Called after each append, with the position and the bytes of the entry, and the lease of its writer."""
        self._rng = world.rng("store")
        self._arrivals: dict[int, list[Callable[[], None]]] = {}
        """For each position without an entry: the functions to call when an entry is appended there."""

    def handle(self, host: str, runtime: Runtime) -> "StoreHandle":
        """Return the store for one process on `host`."""
        return StoreHandle(self, host, runtime)

    def expire_sessions(self, host: str) -> None:
        """End all leases of the process on `host`, as a store does when it has received no message from the process for
        too long.
        """
        names = self.leases.expire(host, host.replace("-", "/"))  # the host "broker-1" has the lease "broker/1"
        self._trace.note(HOST, "store.expire", f"{','.join(names)} of {host}")

    def send(
        self, host: str, function: Callable[..., T], args: tuple[object, ...], answer: "asyncio.Future[T]"
    ) -> None:
        """Send a call from `host` to the server. The call is executed even if the caller's process ends meanwhile.
        If the link is blocked for CALL_TIMEOUT_S, the call is lost.
        """

        def execute() -> None:
            outcome: T | Exception
            try:
                outcome = function(*args)
            except (LeaseLost, PositionTaken, AssertionError) as error:
                outcome = error
            self.notify(host, partial(_settle, answer, outcome))

        def serve() -> None:
            if self.delay_s[1]:
                self._loop.call_system_later(self._rng.uniform(*self.delay_s), execute)
            else:
                execute()

        self._network.send(host, HOST, self._loop.time() + CALL_TIMEOUT_S, serve)

    def notify(self, host: str, arrive: Callable[[], object]) -> None:
        """Send a message from the server to `host`. If the link is blocked for CALL_TIMEOUT_S, the message is lost."""
        self._network.send(HOST, host, self._loop.time() + CALL_TIMEOUT_S, arrive)

    # Calls, executed on the server

    def append(self, position: int, data: bytes, lease: Lease, writer: str, number: int) -> None:
        self.leases.check(lease)
        if position < self.next_position:
            raise PositionTaken(f"position {position} is taken; the next free position is {self.next_position}")
        assert position == self.next_position, "an append must not leave a gap"
        self.entries[position] = StoredEntry(position, data, writer, number)
        self.next_position = position + 1
        self._trace.note_bytes(HOST, "store.append", f"{position} by {lease.holder} in epoch {lease.epoch}", data)
        if self.on_append is not None:
            self.on_append(position, data, lease)
        for arrived in self._arrivals.pop(position, ()):
            arrived()

    def read(self, start: int, limit: int) -> list[StoredEntry]:
        first = self.stored_snapshot.position if self.stored_snapshot is not None else 0
        stop = min(max(start, first) + limit, self.next_position)
        return [self.entries[at] for at in range(start, stop) if at in self.entries]

    def journal(self) -> StoredJournal | None:
        if not self.next_position:
            return None
        return StoredJournal(
            self.stored_snapshot,
            self.read(self.stored_snapshot.position if self.stored_snapshot else 0, self.next_position),
        )

    def watch(self, position: int, arrived: Callable[[], None] | None) -> bool:
        """Return whether the journal has an entry at `position`. If not, `arrived` is called when an entry is appended
        there.
        """
        if self.next_position > position:
            return True
        if arrived is not None:
            self._arrivals.setdefault(position, []).append(arrived)
        return False

    def save_snapshot(self, snapshot: Snapshot) -> None:
        if self.stored_snapshot is not None and self.stored_snapshot.position > snapshot.position:
            return
        self.stored_snapshot = snapshot
        self.next_position = max(self.next_position, snapshot.position)
        self.entries = {position: entry for position, entry in self.entries.items() if position >= snapshot.position}

    def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        lease = self.leases.acquire(name, holder, ttl_ms)
        if lease is not None:
            self._trace.note(HOST, "store.acquire", f"{name} by {holder} in epoch {lease.epoch}")
        return lease


class StoreHandle:
    """The `Store` of one process."""

    entry_bytes_max: int | None = SHARED_VALUE_BYTES_MAX

    def __init__(self, store: SharedStore, host: str, runtime: Runtime) -> None:
        self._store = store
        self._host = host
        self._runtime = runtime

    async def inspect(self) -> StoredJournal | None:
        return await self._call(self._store.journal)

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        if len(data) > SHARED_VALUE_BYTES_MAX:
            raise EntryTooLarge(f"the change has {len(data)} bytes; the store accepts at most {SHARED_VALUE_BYTES_MAX}")
        try:
            await self._call(self._store.append, position, data, lease, writer, number)
        except StoreUnavailable as error:
            raise AppendUnknown(str(error)) from None

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        return await self._call(self._store.read, start, limit)

    async def wait(self, position: int) -> None:
        arrived: asyncio.Future[bool] = self._runtime.tasks.future()

        def notify() -> None:
            self._store.notify(self._host, partial(_settle, arrived, True))

        has_entry = await self._call(self._store.watch, position, notify)
        while not has_entry:
            # The notification may be lost, so ask again after some time. If the store cannot be reached, the new
            # question raises StoreUnavailable.
            timer = self._runtime.tasks.call_later(CALL_TIMEOUT_S, _settle, arrived, False)
            try:
                has_entry = await arrived
            finally:
                timer.cancel()
            if not has_entry:
                arrived = self._runtime.tasks.future()
                has_entry = await self._call(self._store.watch, position, None)

    async def snapshot(self) -> Snapshot | None:
        return await self._call(lambda: self._store.stored_snapshot)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        await self._call(self._store.save_snapshot, snapshot)

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        return await self._call(self._store.acquire, name, holder, ttl_ms)

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        await self._call(self._store.leases.renew, lease, ttl_ms)

    async def release(self, lease: Lease) -> None:
        await self._call(self._store.leases.release, lease)

    async def held_leases(self, prefix: str) -> list[Lease]:
        return await self._call(self._store.leases.held, prefix)

    async def discard_history(self) -> None:
        """Do nothing: the store retains no old values."""

    async def wait_for_write(self, limit_s: float) -> None:
        await self._runtime.tasks.sleep(limit_s)

    async def close(self) -> None:
        """Do nothing: the server continues to run."""

    async def _call(self, function: Callable[..., T], *args: object) -> T:
        """Send a call and wait for the answer. Raises StoreUnavailable if no answer arrives in time. In this case, the
        call may have been executed.
        """
        answer: asyncio.Future[T] = self._runtime.tasks.future()
        self._store.send(self._host, function, args, answer)
        timer = self._runtime.tasks.call_later(
            CALL_TIMEOUT_S, _settle, answer, StoreUnavailable(f"the store has not answered for {CALL_TIMEOUT_S:g} s")
        )
        try:
            return await answer
        finally:
            timer.cancel()


def _settle(answer: "asyncio.Future[Any]", outcome: object) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
