"""The interface of metadata stores. A store keeps the metadata journal durable and linearizable for all brokers."""

from typing import Final, NamedTuple, Protocol

from tidelog.runtime.interfaces import Clock

SHARED_VALUE_BYTES_MAX: Final = 480 * 1024
"""Upper bound, in bytes, on one entry and on one part of a snapshot in ZooKeeper and etcd. With the header it stays
below 512 KiB. ZooKeeper refuses requests of 1 MiB (jute.maxbuffer), and etcd refuses requests of 1.5 MiB."""
LEASE_MARGIN_MS: Final = 500
"""A holder stops to rely on a lease this time before the lease may end in the store. It covers the difference between
the clocks' rates and the time between the check of the lease and its use."""


class PositionTaken(Exception):
    """An append found another entry at its position, since another controller has appended.

    The caller has to read that entry and decide again.
    """


class LeaseLost(Exception):
    """The lease of an append or renewal has expired, or another holder has it."""


def lease_lost(lease: "Lease") -> LeaseLost:
    """Return the error for a lease that has expired or that another holder has.

    It does not name the holder, since the holder of a broker's lease is a secret of the cluster's brokers.
    """
    return LeaseLost(f"lease {lease.name} of epoch {lease.epoch} has ended, or another process has acquired it")


class StoreUnavailable(Exception):
    """The store cannot be reached, its disk is full, or another process holds it. A later call may succeed.

    An append that raises this has changed nothing. Every other call may have been executed, and may be repeated.
    """


class EntryTooLarge(StoreUnavailable):
    """The entry exceeds `Store.entry_bytes_max`. The caller must split the change into several entries."""


class StoreFailed(Exception):
    """The store cannot be used, and it is unknown whether the last append is in it. The text says where and why."""


class AppendUnknown(StoreFailed):
    """The answer to an append was lost: the entry is in the journal, or will be, or will never be.

    `settle_append` finds out. Until then, the caller must not decide anything, nor answer.
    """


class StoredEntry(NamedTuple):
    position: int
    data: bytes
    writer: str = ""
    """Identifies the process or lease that appended the entry; "" in entries of versions that did not write it."""
    number: int = 0
    """Counts the appends of one writer."""


class Snapshot(NamedTuple):
    """The encoded state after the entries 0 .. position - 1. The store does not decode `data`."""

    position: int
    data: bytes


class Lease(NamedTuple):
    name: str
    holder: str
    epoch: int
    """Incremented whenever the lease is acquired."""


class StoredJournal(NamedTuple):
    snapshot: Snapshot | None
    entries: list[StoredEntry]
    """The entries after the snapshot, in order."""


class Store(Protocol):
    """A journal of entries at positions 0, 1, 2 ..., a snapshot of it, and leases.

    Every method may raise StoreUnavailable or StoreFailed. When a method returns, its change is durable and visible to
    every broker.

    No method repeats a change whose answer was lost.
    """

    entry_bytes_max: int | None
    """Upper bound on the data of one entry, in bytes; None if there is none."""

    async def inspect(self) -> StoredJournal | None:
        """Read the journal without changing anything in the store. Returns None if this is not possible, or if
        nothing is stored.

        Raises StoreFailed if the store is damaged or is not of this kind.
        """

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        """Append an entry at `position`.

        Raises PositionTaken unless `position` is the end of the journal, LeaseLost unless `lease` is still valid,
        EntryTooLarge, and AppendUnknown if the answer was lost. An append that arrives late, after its lease ended or
        its position was taken, changes nothing.
        """

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        """Return up to `limit` entries in order, beginning at `start`. The list is empty only at the journal's end.

        It includes every append that was answered, by any broker, before this call.
        Entries before the snapshot's position may have been deleted: then the list begins after `start`.
        """

    async def wait(self, position: int) -> None:
        """Wait until the journal has an entry at `position`."""

    async def snapshot(self) -> Snapshot | None: ...

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the previous snapshot, and delete the entries before `snapshot.position`.

        A snapshot of an earlier position than the stored one is ignored.
        """

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        """Acquire a lease that is free, expired, or held by the same `holder`. Returns None if another holder has it.

        Without `ttl_ms` the lease does not expire: it ends when it is released or when the same holder acquires it.
        No other holder acquires the lease within `ttl_ms` from the moment at which the last confirmed `acquire` or
        `renew` was sent; the holder counts from the same moment (`LeaseTerm`).
        """

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        """Extend the lease to `ttl_ms` from now. Raises LeaseLost."""

    async def release(self, lease: Lease) -> None:
        """Release the lease. It is not an error if the lease is lost already."""

    async def held_leases(self, prefix: str) -> list[Lease]:
        """Return the leases that have not ended and whose names begin with `prefix`, sorted by name.

        A lease may be listed for some time after its end, never before it is acquired or after it is released.
        """

    async def close(self) -> None: ...


class LeaseTerm:
    """The time during which a holder may rely on its lease, whatever has happened to its process meanwhile.

    The store confirmed a renewal at some time after it was sent, so the term counts from the moment of sending. The
    clock is monotonic: after a pause of the process the term is over, even though no call has failed.
    """

    def __init__(self, clock: Clock, ttl_ms: int) -> None:
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._end_s = 0.0

    def extend(self, sent_s: float) -> None:
        """Note that the store confirmed an acquisition or renewal, before whose sending the clock showed `sent_s`."""
        self._end_s = max(self._end_s, sent_s + (self._ttl_ms - LEASE_MARGIN_MS) / 1000)

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end_s

    @property
    def remaining_s(self) -> float:
        """Return the time until the term is over, in seconds; negative after that."""
        return self._end_s - self._clock.monotonic()


async def find_lease(store: Store, name: str) -> Lease | None:
    """Return the lease of this name if it is held. Raises as `Store.held_leases`."""
    return next((lease for lease in await store.held_leases(name) if lease.name == name), None)


async def settle_append(store: Store, position: int, data: bytes, lease: Lease, writer: str, number: int) -> None:
    """Find out the outcome of an append that ended with AppendUnknown. Returns when the entry is in the journal.

    The same append is sent again. This is safe, since only one entry can take the position, and the entry there says
    which append it comes from. Raises PositionTaken or LeaseLost if the entry is not in the journal and never will be,
    and StoreUnavailable or AppendUnknown if the outcome is still unknown.
    """
    try:
        await store.append(position, data, lease, writer, number)
    except (PositionTaken, LeaseLost):
        # After either of these, no earlier attempt can succeed any more, so the entry that is read is final.
        entries = await store.read(position, 1)
        if entries and entries[0].position == position:
            if (entries[0].writer, entries[0].number) == (writer, number):
                return
            raise
        stored_snapshot = await store.snapshot()
        if stored_snapshot is not None and stored_snapshot.position > position:
            # Another controller has deleted the entry at the position, which may have been this one.
            raise AppendUnknown(f"metadata entry {position} was deleted before it could be read back") from None
        raise
