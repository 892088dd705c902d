"""Where the journal lives: what others have made linearizable and durable, behind a small interface."""

from typing import NamedTuple, Protocol


class PositionTaken(Exception):
    """Another entry stands at the position of an append: somebody else has appended. Read on and decide again."""


class LeaseLost(Exception):
    """The lease under which an append was made has ended or is another's."""


class StoreUnavailable(Exception):
    """Nothing was done: no space, or another process holds the store. It is as it was, and may do it later."""


class StoreFailed(Exception):
    """The store cannot be used; whether the last append is in it is not known. One line that says where and why."""


class StoredEntry(NamedTuple):
    position: int
    data: bytes


class Snapshot(NamedTuple):
    """The state that entries 0 .. position - 1 give, in the words of whoever wrote it."""

    position: int
    data: bytes


class Lease(NamedTuple):
    name: str
    holder: str
    epoch: int
    """Grows whenever the lease is acquired."""


class StoredJournal(NamedTuple):
    snapshot: Snapshot | None
    entries: list[StoredEntry]
    """Those behind the snapshot, in order."""


class Store(Protocol):
    """A journal of entries at positions 0, 1, 2 ..., its snapshot, and leases.

    Every method raises StoreUnavailable or StoreFailed. What it has done is durable, and every broker sees it, when it
    returns.
    """

    async def look(self) -> StoredJournal | None:
        """What is stored, without a change of anything on the disk; None where it cannot be read without one.

        Raises StoreFailed for what is no store of this kind, or damaged.
        """

    async def append(self, position: int, data: bytes, lease: Lease) -> None:
        """Raises PositionTaken unless `position` is the first free one; LeaseLost unless `lease` holds."""

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        """Entries from `start` on, in order, at most `limit`. Those before the snapshot's position may be gone."""

    async def wait(self, position: int) -> None:
        """Return once there is an entry at `position`."""

    async def snapshot(self) -> Snapshot | None: ...

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep it in place of the one before, and drop the entries that it covers."""

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        """Take a lease that is free, has expired, or is the holder's own; None while another holds it.

        Without `ttl_ms` it holds until it is released or the same holder takes it again.
        """

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        """Hold it for `ttl_ms` from now. Raises LeaseLost."""

    async def release(self, lease: Lease) -> None:
        """Let others have it. No error if it is lost already."""

    async def close(self) -> None: ...
