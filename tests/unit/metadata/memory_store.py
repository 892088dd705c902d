"""A store in memory: for brokers that keep nothing, and for clusters in simulation, whose brokers share one journal."""

import asyncio

from tidelog.metadata.store import Lease, LeaseLost, PositionTaken, Snapshot, StoredEntry
from tidelog.runtime.interfaces import Clock


class MemoryJournal:
    """What several `MemoryStore` share. It outlives each of them, as a store on other machines does."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.snapshot: Snapshot | None = None
        self.next_position = 0
        self.leases: dict[str, tuple[Lease, int | None]] = {}
        """With the wall-clock time of expiry in ms."""
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []


class MemoryStore:
    """One broker's way to a `MemoryJournal`."""

    def __init__(self, clock: Clock, journal: MemoryJournal | None = None) -> None:
        self.journal = journal or MemoryJournal()
        self._clock = clock

    async def append(self, position: int, data: bytes, lease: Lease) -> None:
        journal = self.journal
        self._check(lease)
        if position < journal.next_position:
            raise PositionTaken(f"position {position} is taken, the next is {journal.next_position}")
        assert position == journal.next_position, "an append leaves no gap"
        journal.entries[position] = data
        journal.next_position = position + 1
        reached = [future for wanted, future in journal.waiting if wanted <= position]
        journal.waiting = [pair for pair in journal.waiting if pair[0] > position]
        for future in reached:
            if not future.done():
                future.set_result(None)

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        journal = self.journal
        stop = min(start + limit, journal.next_position)
        return [StoredEntry(i, journal.entries[i]) for i in range(start, stop) if i in journal.entries]

    async def wait(self, position: int) -> None:
        if position >= self.journal.next_position:
            future: asyncio.Future[None] = asyncio.Future()
            self.journal.waiting.append((position, future))
            await future

    async def snapshot(self) -> Snapshot | None:
        return self.journal.snapshot

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        self.journal.snapshot = snapshot
        for position in [p for p in self.journal.entries if p < snapshot.position]:
            del self.journal.entries[position]

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        now_ms = self._clock.now_ms()
        held = self.journal.leases.get(name)
        epoch = 0
        if held is not None:
            lease, expires_ms = held
            if lease.holder not in (holder, "") and (expires_ms is None or expires_ms > now_ms):
                return None
            epoch = lease.epoch
        taken = Lease(name, holder, epoch + 1)
        self.journal.leases[name] = (taken, None if ttl_ms is None else now_ms + ttl_ms)
        return taken

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        self._check(lease)
        self.journal.leases[lease.name] = (lease, self._clock.now_ms() + ttl_ms)

    async def release(self, lease: Lease) -> None:
        held = self.journal.leases.get(lease.name)
        if held is not None and held[0] == lease:
            # The epoch stays, so that the next holder's is higher.
            self.journal.leases[lease.name] = (lease._replace(holder=""), None)

    async def close(self) -> None:
        pass

    def _check(self, lease: Lease) -> None:
        held = self.journal.leases.get(lease.name)
        if held is None or held[0] != lease or (held[1] is not None and held[1] <= self._clock.now_ms()):
            raise LeaseLost(f"lease {lease.name} is not {lease.holder}'s in epoch {lease.epoch}")
