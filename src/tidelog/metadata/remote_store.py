"""The base class of the stores for several hosts (ZooKeeper, etcd). Their methods run on threads, in lanes of the
runtime.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.metadata.store import SHARED_VALUE_BYTES_MAX, Lease, Snapshot, StoredEntry, StoredJournal
from tidelog.metadata.stored_values import encode_entry, parts_prefix, read_journal
from tidelog.runtime.interfaces import Runtime

T = TypeVar("T")

CHANGES: Final = "metadata"
LEASES: Final = "metadata-leases"
READS: Final = "metadata-reads"
WATCH: Final = "metadata-watch"
"""Lanes of the runtime. Each lane has its own thread, so that a slow snapshot does not delay a renewal."""
LEASE_CALL_SHARE: Final = 1 / 4
"""A call about leases may take at most this share of a lease's term. If a hung server does not answer a renewal
within this time, the renewal is sent to the next server. The lease is then still valid, because the first attempt to
renew it begins after a third of its term."""
WATCH_S: Final = 10.0
"""Longest time, in seconds, that one watch waits before the journal's end is read again."""


class RemoteStore(ABC):
    """A `Store` whose client blocks the calling thread. A subclass defines the blocking methods.

    The name of each blocking method is an underscore and the name of a `Store` method (`_read` for `read`). Both
    methods have the same arguments, unless other arguments of the blocking method are listed below.
    """

    entry_bytes_max: int | None = SHARED_VALUE_BYTES_MAX

    _append: Callable[..., None]
    """Arguments: position, the result of `encode_entry`, lease."""
    _read: Callable[..., list[StoredEntry]]
    _snapshot: Callable[..., Snapshot | None]
    _save_snapshot: Callable[..., None]
    """Arguments: snapshot, id of its parts."""
    _acquire: Callable[..., Lease | None]
    _renew: Callable[..., None]
    _release: Callable[..., None]
    _held_leases: Callable[..., list[Lease]]

    def __init__(self, url: str, runtime: Runtime) -> None:
        """`url` names the store in errors."""
        self._url = url
        self._random = runtime.random
        self._tasks = runtime.tasks

    @abstractmethod
    async def _run(self, lane: str, function: Callable[..., T], *args: object) -> T:
        """Call one of the blocking methods on the lane's thread."""

    async def inspect(self) -> StoredJournal | None:
        return await read_journal(self)

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        await self._run(CHANGES, self._append, position, encode_entry(data, writer, number), lease)

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        return await self._run(READS, self._read, start, limit)

    @abstractmethod
    async def wait(self, position: int) -> None: ...

    async def snapshot(self) -> Snapshot | None:
        return await self._run(READS, self._snapshot)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        parts_id = parts_prefix(snapshot.position, self._random.randbytes(8).hex())
        await self._run(READS, self._save_snapshot, snapshot, parts_id)

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        return await self._run(LEASES, self._acquire, name, holder, ttl_ms)

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        await self._run(LEASES, self._renew, lease, ttl_ms)

    async def release(self, lease: Lease) -> None:
        await self._run(LEASES, self._release, lease)

    async def held_leases(self, prefix: str) -> list[Lease]:
        return await self._run(LEASES, self._held_leases, prefix)

    @abstractmethod
    async def discard_history(self) -> None: ...

    async def wait_for_write(self, limit_s: float) -> None:
        await self._tasks.sleep(limit_s)

    @abstractmethod
    async def close(self) -> None: ...
