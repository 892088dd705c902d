"""The interface of metadata stores. A store contains the metadata journal. Its entries are durable, and the reads and
appends of all brokers are linearizable.
"""

from typing import Final, NamedTuple, Protocol

from tidelog.runtime.interfaces import Clock

SHARED_VALUE_BYTES_MAX: Final = 480 * 1024
"""Upper bound, in bytes, on one entry and on one part of a snapshot in ZooKeeper and etcd. With its header, an
entry or a part is smaller than 512 KiB. ZooKeeper refuses requests of 1 MiB (jute.maxbuffer), and etcd refuses requests
of 1.5 MiB."""
LEASE_MARGIN_MS: Final = 500
"""The holder of a lease stops relying on it before the lease can end in the store: this number of milliseconds earlier.
This margin covers the different speeds of the clocks and the time between a check of the lease and the action that
depends on it."""


class PositionTaken(Exception):
    """The journal already has an entry at the position that was given to `append`. Usually another controller has
    appended it.

    The caller has to read that entry and decide again.
    """


class LeaseLost(Exception):
    """The lease of an append or renewal has expired, or another holder has it."""


def lease_lost(lease: "Lease") -> LeaseLost:
    """Return the error for a lease that has expired or that another holder has.

    In a broker's lease, `holder` is a secret of the cluster's brokers. So the text does not contain it.
    """
    return LeaseLost(f"lease {lease.name} of epoch {lease.epoch} has ended, or another process has acquired it")


class StoreUnavailable(Exception):
    """The store cannot be reached, its disk is full, or another process has locked it. A later call may succeed.

    An append that raises this error has changed nothing. Any other call that raises it may have been executed, and can
    safely be repeated.
    """


class EntryTooLarge(StoreUnavailable):
    """The entry exceeds `Store.entry_bytes_max`. A later call with the same entry fails, too: the caller must split the
    change into several entries.
    """


class StoreFailed(Exception):
    """The store cannot be used, and it is unknown whether it contains the last append. The text names the store and the
    cause.
    """


class AppendUnknown(StoreFailed):
    """The answer to an append was lost. The entry may be in the journal already, may get there later, or may never get
    there.

    `settle_append` finds out the outcome. Until it is known, the caller must neither decide another change nor answer
    the request.
    """


class StoredEntry(NamedTuple):
    position: int
    data: bytes
    writer: str = ""
    """Identifies the process or lease that has appended the entry; "" in entries of older versions of Tidelog."""
    number: int = 0
    """The number of the append among all appends of the same writer."""


class Snapshot(NamedTuple):
    """The encoded state after the entries 0 .. position - 1. The store does not decode `data`."""

    position: int
    data: bytes


class Lease(NamedTuple):
    name: str
    holder: str
    epoch: int
    """Incremented at each acquisition of the lease."""


class StoredJournal(NamedTuple):
    snapshot: Snapshot | None
    entries: list[StoredEntry]
    """The entries after the snapshot, in order."""


class Store(Protocol):
    """A journal of entries at positions 0, 1, 2 ..., a snapshot of the journal, and leases.

    Every method may raise StoreUnavailable or StoreFailed, except `wait_for_write`. When a method returns, its change
    is durable and visible to every broker.

    If the answer to a change was lost, no method sends the change again.
    """

    entry_bytes_max: int | None
    """Upper bound on the data of one entry, in bytes; None if there is no bound."""

    async def inspect(self) -> StoredJournal | None:
        """Read the journal without changing anything in the store. Returns None if this is not possible, or if
        nothing is stored.

        Raises StoreFailed if the store is damaged, or if it is not a metadata store of Tidelog.
        """

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        """Append an entry at `position`.

        `position` must not be after the end of the journal. Raises PositionTaken if it is before the end, LeaseLost if
        `lease` is not valid any more, AppendUnknown if the answer was lost, and EntryTooLarge. If an append arrives at
        the store after its lease has ended or its position was taken, the append changes nothing.
        """

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        """Return up to `limit` entries in order, beginning at `start`. The list is empty only at the journal's end.

        The entry of every append that was answered before this call is included, whichever broker has appended it. If
        entries before the snapshot's position were deleted, the list may begin after `start`.
        """

    async def wait(self, position: int) -> None:
        """Wait until the journal has an entry at `position`."""

    async def snapshot(self) -> Snapshot | None: ...

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the previous snapshot, and delete the entries before `snapshot.position`.

        If the stored snapshot has a later position, `snapshot` is ignored.
        """

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        """Acquire a lease that is free, has expired, or belongs to the same `holder`. Returns None if another holder
        has it.

        Without `ttl_ms` the lease does not expire: it ends when it is released or when the same holder acquires it
        again. With `ttl_ms`, no other holder can acquire the lease during this time, unless it is released. The time
        begins when the last confirmed `acquire` or `renew` is sent, and the holder also measures it from this moment
        (`LeaseTerm`).
        """

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        """Extend the lease to `ttl_ms` from now. Raises LeaseLost."""

    async def release(self, lease: Lease) -> None:
        """Release the lease. It is not an error if the lease was lost before."""

    async def held_leases(self, prefix: str) -> list[Lease]:
        """Return the leases that have not ended and whose names begin with `prefix`, sorted by name.

        A lease that has expired may still be listed for some time. A lease that was released is not listed.
        """

    async def discard_history(self) -> None:
        """Discard the old values that the store retains, except the values of the last minutes.

        The controller calls this method every few minutes. A store may keep each value that a renewal has replaced.
        Without this call, these values would fill the store within some months.
        """

    async def wait_for_write(self, limit_s: float) -> None:
        """Wait for `limit_s`, or less if the store may have been written to in the meantime. A store that does not
        notice writes always waits for `limit_s`. This method never raises the errors of the store.
        """

    async def close(self) -> None: ...


class LeaseTerm:
    """The time during which a holder may rely on its lease. This time also passes while the holder's process is paused.

    The lease begins in the store at some time between the sending of the acquisition or renewal and the arrival of the
    confirmation. So the term begins at the sending. It is measured with `Clock.monotonic`: after a long pause of the
    process the term is over, even if no call has failed. On Linux, the same is true after a sleep of the machine.
    """

    def __init__(self, clock: Clock, ttl_ms: int) -> None:
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._end_s = 0.0

    def extend(self, sent_s: float) -> None:
        """Let the term begin at `sent_s`. The store has confirmed an acquisition or renewal, and `sent_s` is the
        clock's time just before the holder sent this request.
        """
        self._end_s = max(self._end_s, sent_s + (self._ttl_ms - LEASE_MARGIN_MS) / 1000)

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end_s

    @property
    def remaining_s(self) -> float:
        """The time until the term is over, in seconds. It is negative when the term is over."""
        return self._end_s - self._clock.monotonic()


async def find_lease(store: Store, name: str) -> Lease | None:
    """Return the lease with this name, or None if no holder has it. Raises the exceptions of `Store.held_leases`."""
    return next((lease for lease in await store.held_leases(name) if lease.name == name), None)


async def settle_append(store: Store, position: int, data: bytes, lease: Lease, writer: str, number: int) -> None:
    """Find out the outcome of an append that ended with AppendUnknown. Returns when the entry is in the journal.

    The same append is sent again. This is safe: only one entry can be stored at the position, and the entry names its
    writer and number. Raises PositionTaken or LeaseLost if the entry is not in the journal and will never get there,
    and StoreUnavailable or StoreFailed (for example AppendUnknown) if the outcome is still unknown.
    """
    try:
        await store.append(position, data, lease, writer, number)
    except (PositionTaken, LeaseLost):
        # After either of these errors, no earlier attempt can succeed any more. So the read result is final.
        entries = await store.read(position, 1)
        if entries and entries[0].position == position:
            if (entries[0].writer, entries[0].number) == (writer, number):
                return
            raise
        stored_snapshot = await store.snapshot()
        if stored_snapshot is not None and stored_snapshot.position > position:
            # Another controller has deleted the entry at the position. It may have been this append's entry.
            raise AppendUnknown(f"metadata entry {position} was deleted before it could be read back") from None
        raise
