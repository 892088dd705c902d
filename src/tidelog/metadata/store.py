"""The interface of metadata stores. A store keeps the metadata journal durable and linearizable for all brokers."""

from typing import NamedTuple, Protocol


class PositionTaken(Exception):
    """An append found another entry at its position, since another controller has appended.

    The caller has to read that entry and decide again.
    """


class LeaseLost(Exception):
    """The lease of an append or renewal has expired, or another holder has it."""


class StoreUnavailable(Exception):
    """The call changed nothing, since the disk is full or another process holds the store. A later call may succeed."""


class StoreFailed(Exception):
    """The store cannot be used, and it is unknown whether the last append is in it. The text says where and why."""


class StoredEntry(NamedTuple):
    position: int
    data: bytes


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
    """

    async def inspect(self) -> StoredJournal | None:
        """Read the journal without changing anything on the disk. Returns None if this is not possible, or if
        nothing is stored.

        Raises StoreFailed if the store is damaged or is not of this kind.
        """

    async def append(self, position: int, data: bytes, lease: Lease) -> None:
        """Append an entry at `position`.

        Raises PositionTaken unless `position` is the end of the journal, and LeaseLost unless `lease` is still valid.
        """

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        """Return up to `limit` entries in order, beginning at `start`.

        Entries before the snapshot's position may have been deleted.
        """

    async def wait(self, position: int) -> None:
        """Wait until the journal has an entry at `position`."""

    async def snapshot(self) -> Snapshot | None: ...

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the previous snapshot, and delete the entries before `snapshot.position`."""

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        """Acquire a lease that is free, expired, or held by the same `holder`. Returns None if another holder has it.

        Without `ttl_ms` the lease does not expire: it ends when it is released or when the same holder acquires it.
        """

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        """Extend the lease to `ttl_ms` from now. Raises LeaseLost."""

    async def release(self, lease: Lease) -> None:
        """Release the lease. It is not an error if the lease is lost already."""

    async def close(self) -> None: ...
