"""The metadata store in ZooKeeper 3.6 or newer, for brokers on several hosts. It needs the package kazoo.

Nodes below the root:

    journal/BUCKET/POSITION   one entry; a bucket has BUCKET_ENTRIES of them. An entry is read by its position: a list
                              of all entries of a long journal would exceed ZooKeeper's limit (jute.maxbuffer)
    end, first                the position of the next entry, and the position of the first entry that is not deleted
    leases/NAME               holder, epoch and term; ephemeral if the lease can expire, so that the lease ends with
                              the holder's session
    epochs/NAME               the last epoch of that lease; this node is never deleted
    snapshot                  the pointer to the current snapshot
    snapshots/ID/PART         the parts of snapshots

An append is one transaction: it checks that the lease exists and that its epoch has not changed, and writes the entry
and the new end. A renewal is a write, which a majority of the servers confirms. (A ping of the session would not prove
that the lease is valid.) If the holder's session continues but the holder does not renew the lease, the lease also
ends. Each other broker measures with its own clock how long the node of the lease has not changed. After the whole
term, such a broker may acquire the lease. A server may be behind the other servers, so a read begins with a sync,
unless a conditional write checks the result of the read.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from tidelog.metadata.remote_store import LEASE_CALL_SHARE, READS, WATCH, WATCH_S, RemoteStore
from tidelog.metadata.store import (
    LEASE_MARGIN_MS,
    AppendUnknown,
    Lease,
    LeaseTerm,
    PositionTaken,
    Snapshot,
    StoredEntry,
    StoreFailed,
    StoreUnavailable,
    lease_lost,
)
from tidelog.metadata.stored_values import (
    SnapshotPointer,
    decode_entry,
    decode_lease,
    encode_lease,
    lease_ttl_ms,
    parts_prefix,
    read_snapshot,
    split,
)
from tidelog.metadata.zookeeper_session import AnswerLost, ZooKeeperSession, translated_errors
from tidelog.runtime.interfaces import Runtime

T = TypeVar("T")

SESSION_MS: Final = 12_000
SESSION_SHARE: Final = 5 / 6
"""A lease may last at most this share of a session. A server reports a session's last ping to the leader of the servers
after a delay of less than one tick. If the server fails before it reports this ping, the leader knows only an earlier
ping, and ends the session earlier by up to this delay."""
BUCKET_ENTRIES: Final = 10_000
"""Number of entries below one node."""
PIPELINED_READS: Final = 100
"""Number of entries that are requested before the first answer has arrived."""
READ_BYTES_MAX: Final = 8 << 20
"""When the entries that `read` has collected reach this total size, in bytes, it returns without the remaining
entries."""
TRIM_NODES: Final = 500
"""Upper bound on the entries that one transaction deletes."""
TRIES: Final = 5
"""Number of attempts at a transaction that fails because other brokers change the same nodes."""


class ZooKeeperStore(RemoteStore):
    """A `Store` in the ZooKeeper ensemble of `servers`, in the nodes below `root`."""

    def __init__(
        self, url: str, servers: list[tuple[str, int]], root: str, runtime: Runtime, *, session_ms: int = SESSION_MS
    ) -> None:
        super().__init__(url, runtime)
        self._root = root
        self._clock = runtime.clock
        self._session = ZooKeeperSession(url, servers, session_ms)
        self._has_nodes = False
        """Whether the parent nodes exist."""
        self._end: tuple[int, int] | None = None
        """The journal's end and the version of its node, after the last append of this store. Both may be outdated."""
        self._epoch_versions: dict[Lease, int] = {}
        """For each lease, the version of the node with its epoch."""
        self._terms: dict[Lease, LeaseTerm] = {}
        self._unchanged_since: dict[str, tuple[object, float]] = {}
        """For each lease that can expire: what identifies the state of its node (creation and version), and the time
        at which this store has first seen this state."""
        self._events: dict[Any, None] = {}
        """Events of the waits that are in progress."""

    async def wait(self, position: int) -> None:
        # The reads use another lane than the watches, so that they do not wait for the watches of other calls.
        while (await self._run(READS, self._read_end))[0] <= position:
            await self._run(WATCH, self._watch, position)

    async def discard_history(self) -> None:
        """Do nothing: ZooKeeper retains no old values, except in files that its servers delete (`autopurge`)."""

    async def close(self) -> None:
        self._wake_waits()
        await self._tasks.run_blocking(self._session.close, lane=WATCH)

    async def _run(self, lane: str, function: Callable[..., T], *args: object) -> T:
        try:
            return await self._tasks.run_blocking(self._call, function, *args, lane=lane)
        except BaseException:
            if lane == WATCH:
                self._wake_waits()  # a cancelled wait must not occupy the thread
            raise

    def _wake_waits(self) -> None:
        for event in list(self._events):
            event.set()

    # The methods below run on the threads of the lanes

    def _call(self, function: Callable[..., T], *args: object) -> T:
        with translated_errors(self._url):
            return function(*args)

    # The journal

    def _append(self, position: int, value: bytes, lease: Lease) -> None:
        for _ in range(TRIES):
            end, end_version = self._end or self._read_end()
            if end != position:
                end, end_version = self._read_end()
            epoch_version = self._check_lease(lease)
            if position < end:
                raise PositionTaken(f"position {position} is taken; the next free position is {end}")
            assert position == end, "an append must not leave a gap"
            transaction = self._session.client.transaction()
            transaction.check(self._path("epochs", _escaped(lease.name)), epoch_version)
            transaction.check(self._path("leases", _escaped(lease.name)), -1)  # the node must exist, in any version
            if position % BUCKET_ENTRIES == 0:
                transaction.create(self._path("journal", _bucket(position)))
            transaction.create(self._entry_path(position), value)
            next_end = str(position + 1).encode()
            if end_version < 0:
                transaction.create(self._path("end"), next_end)
            else:
                transaction.set_data(self._path("end"), next_end, end_version)
            self._end = None
            try:
                is_done = self._commit(transaction)
            except AnswerLost as error:
                raise AppendUnknown(f"{error}: it is unknown whether the change was stored") from error
            if is_done:
                self._end = position + 1, end_version + 1
                return
            self._epoch_versions.pop(lease, None)  # the next round reads everything again and finds the reason
        raise StoreUnavailable(f"{self._url}: other brokers append to the journal at the same time")

    def _check_lease(self, lease: Lease) -> int:
        """Return the version of the node that contains the lease's epoch. Raises LeaseLost if the lease has ended."""
        name = _escaped(lease.name)
        term = self._terms.get(lease)
        if term is None or not term.is_over:
            version = self._epoch_versions.get(lease)
            if version is not None:
                return version
            epoch, version = self._get("epochs", name)
            if epoch is not None and int(epoch) == lease.epoch and self._get("leases", name)[0] is not None:
                self._epoch_versions[lease] = version
                return version
        raise lease_lost(lease)

    def _read_end(self) -> tuple[int, int]:
        """Return the position of the next entry, and the version of the node that contains this position. The version
        is -1 if the node does not exist.
        """
        self._sync()
        value, version = self._get("end")
        return int(value or 0), version

    def _read(self, start: int, limit: int) -> list[StoredEntry]:
        end, _ = self._read_end()
        first, _ = self._get("first")
        start = max(start, int(first or 0))
        entries: list[StoredEntry] = []
        size = 0
        while start < end and len(entries) < limit and size < READ_BYTES_MAX:
            stop = min(end, start + PIPELINED_READS, start + limit - len(entries))
            for entry in self._read_range(start, stop):
                entries.append(entry)
                size += len(entry.data)
            start = stop
        return entries

    def _read_range(self, start: int, stop: int) -> list[StoredEntry]:
        """Return the entries that exist. The first entries may be missing, since a broker that has saved a snapshot
        deletes the entries before the snapshot's position.
        """
        from kazoo.exceptions import NoNodeError

        client = self._session.client
        entries = []
        for position, result in [(at, client.get_async(self._entry_path(at))) for at in range(start, stop)]:
            try:
                value, _ = self._session.answer(result)
            except NoNodeError:
                continue
            entries.append(decode_entry(position, value))
        return entries

    def _watch(self, position: int) -> None:
        """Wait until the journal's end changes, for at most WATCH_S. Return at once if the journal has an entry at
        `position`.
        """
        event = self._session.event()
        self._events[event] = None
        try:
            # The watch is set before the node is read, so no change is missed.
            client, path = self._session.client, self._path("end")
            self._session.answer(client.exists_async(path, watch=lambda _: event.set()))
            if self._read_end()[0] <= position:
                event.wait(WATCH_S)
        finally:
            del self._events[event]

    # Snapshots

    def _snapshot(self) -> Snapshot | None:
        self._sync()
        return read_snapshot(self._url, lambda *names: self._get(*names)[0])

    def _save_snapshot(self, snapshot: Snapshot, parts_id: str) -> None:
        self._make_nodes()
        parts = split(snapshot.data)
        self._create(self._path("snapshots", parts_id))
        for i, part in enumerate(parts):
            self._create(self._path("snapshots", parts_id, str(i)), part)
        if self._point_to(SnapshotPointer.of(snapshot, parts_id, len(parts))):
            own_prefix = parts_prefix(snapshot.position)  # the ids of earlier snapshots' parts sort before it
            names = self._session.answer(self._session.client.get_children_async(self._path("snapshots")))
            self._delete_parts([name for name in sorted(names) if name < own_prefix])
            self._trim(snapshot.position)
        else:
            self._delete_parts([parts_id])

    def _point_to(self, pointer: SnapshotPointer) -> bool:
        """Make a snapshot the current snapshot. Return False if the current snapshot already has this position or a
        later one.
        """
        path = self._path("snapshot")
        while True:
            self._sync()
            current, version = self._get("snapshot")
            if current is not None and SnapshotPointer.decode(current).position >= pointer.position:
                return False
            transaction = self._session.client.transaction()
            if current is None:
                transaction.create(path, pointer.encode())
            else:
                transaction.set_data(path, pointer.encode(), version)
            if self._commit(transaction):
                return True

    def _delete_parts(self, ids: Sequence[str]) -> None:
        for parts_id in ids:
            path = self._path("snapshots", parts_id)
            for part in self._session.answer(self._session.client.get_children_async(path)):
                self._session.answer(self._session.client.delete_async(f"{path}/{part}"))
            self._session.answer(self._session.client.delete_async(path))

    def _trim(self, position: int) -> None:
        """Delete the entries before `position`, in several transactions. Each transaction also writes the new first
        position.
        """
        while True:
            self._sync()
            first_value, version = self._get("first")
            first = int(first_value or 0)
            if first >= position:
                return
            bucket_end = (first // BUCKET_ENTRIES + 1) * BUCKET_ENTRIES
            stop = min(position, first + TRIM_NODES, bucket_end)
            transaction = self._session.client.transaction()
            for at in range(first, stop):
                transaction.delete(self._entry_path(at))
            if stop == bucket_end:
                transaction.delete(self._path("journal", _bucket(first)))
            if version < 0:
                transaction.create(self._path("first"), str(stop).encode())
            else:
                transaction.set_data(self._path("first"), str(stop).encode(), version)
            if not self._commit(transaction) and self._get("first")[1] == version:
                raise StoreFailed(f"{self._url}: the entries {first} to {stop - 1} cannot be deleted")

    # Leases

    def _acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        self._make_nodes()
        self._check_length(ttl_ms)
        self._limit_calls(ttl_ms)
        node = _escaped(name)
        for _ in range(TRIES):
            # The term of the lease begins here, so the acquisition must be short. The servers answer the requests of a
            # session in order, so the three requests take one round trip.
            sent_s = self._clock.monotonic()
            client = self._session.client
            sync = client.sync_async(self._root)
            lease_request = client.get_async(self._path("leases", node))
            epoch_request = client.get_async(self._path("epochs", node))
            self._session.answer(sync)
            stored, stat = self._value_with_stat(lease_request)
            epoch, epoch_stat = self._value_with_stat(epoch_request)
            epoch_version = -1 if epoch_stat is None else epoch_stat.version
            if (
                stored is not None
                and decode_lease(name, stored).holder != holder
                and not self._is_over(name, stored, stat)
            ):
                return None
            lease = Lease(name, holder, int(epoch or 0) + 1)
            transaction = client.transaction()
            if epoch is None:
                transaction.create(self._path("epochs", node), str(lease.epoch).encode())
            else:
                transaction.set_data(self._path("epochs", node), str(lease.epoch).encode(), epoch_version)
            if stored is not None:
                transaction.delete(self._path("leases", node), stat.version)
            value = encode_lease(lease, ttl_ms)
            transaction.create(self._path("leases", node), value, ephemeral=ttl_ms is not None)
            if self._commit(transaction):
                self._epoch_versions = {lease: epoch_version + 1, **self._epoch_versions_of_others(name)}
                self._terms = {key: term for key, term in self._terms.items() if key.name != name}
                self._extend(lease, ttl_ms, sent_s)
                return lease
        raise StoreUnavailable(f"{self._url}: other brokers change the lease {name} at the same time")

    def _epoch_versions_of_others(self, name: str) -> dict[Lease, int]:
        return {lease: version for lease, version in self._epoch_versions.items() if lease.name != name}

    def _renew(self, lease: Lease, ttl_ms: int) -> None:
        from kazoo.exceptions import BadVersionError, NoNodeError

        self._check_length(ttl_ms)
        self._limit_calls(ttl_ms)
        self._check_lease(lease)
        sent_s = self._clock.monotonic()
        value, stat = self._get_with_stat("leases", _escaped(lease.name))
        # If a lease can expire, its node is owned by a session. If this is an earlier session of this process, the
        # servers delete the node soon, so the lease cannot be renewed. A node that no session owns has the owner 0.
        is_own = value is not None and decode_lease(lease.name, value) == lease
        if is_own and stat.ephemeralOwner in (0, self._session.session_id):
            path = self._path("leases", _escaped(lease.name))
            with suppress(BadVersionError, NoNodeError):
                self._session.answer(
                    self._session.client.set_async(path, encode_lease(lease, ttl_ms), version=stat.version)
                )
                self._extend(lease, ttl_ms, sent_s)
                return
        raise lease_lost(lease)

    def _extend(self, lease: Lease, ttl_ms: int | None, sent_s: float) -> None:
        """Record that the term of the lease began at `sent_s`, when the confirmed acquisition or renewal was sent."""
        if ttl_ms is not None:
            term = self._terms[lease] = LeaseTerm(self._clock, ttl_ms)
            term.extend(sent_s)

    def _check_length(self, ttl_ms: int | None) -> None:
        """Raise StoreFailed if the session may end before a lease of `ttl_ms`."""
        if ttl_ms is not None and self._session.client and ttl_ms > self._session.negotiated_ms * SESSION_SHARE:
            raise StoreFailed(
                f"{self._url} allows sessions of {self._session.negotiated_ms} ms, but a lease of {ttl_ms} ms needs "
                f"{int(ttl_ms / SESSION_SHARE)} ms: raise maxSessionTimeout of the ZooKeeper servers"
            )

    def _limit_calls(self, ttl_ms: int | None) -> None:
        """Limit the time of this and all later calls on the lane of the leases. The later calls include reads of the
        leases: a renewal must not wait for such a read for a long time.
        """
        if ttl_ms is not None:
            self._session.limit_answers(ttl_ms / 1000 * LEASE_CALL_SHARE)

    def _release(self, lease: Lease) -> None:
        self._terms.pop(lease, None)
        self._epoch_versions.pop(lease, None)
        value, stat = self._get_with_stat("leases", _escaped(lease.name))
        if value is not None and decode_lease(lease.name, value) == lease:
            transaction = self._session.client.transaction()
            transaction.delete(self._path("leases", _escaped(lease.name)), stat.version)
            self._commit(transaction)

    def _held_leases(self, prefix: str) -> list[Lease]:
        from kazoo.exceptions import NoNodeError

        client = self._session.client
        sync, children = client.sync_async(self._root), client.get_children_async(self._path("leases"))
        self._session.answer(sync)
        try:
            nodes = self._session.answer(children)
        except NoNodeError:
            return []
        names = sorted(unquote(node) for node in nodes)
        requests = [
            (name, client.get_async(self._path("leases", _escaped(name)))) for name in names if name.startswith(prefix)
        ]
        held = []
        for name, request in requests:
            value, stat = self._value_with_stat(request)
            if value is not None and not self._is_over(name, value, stat):
                held.append(decode_lease(name, value))
        return held

    def _is_over(self, name: str, value: bytes, stat: Any) -> bool:
        """Return whether a lease is over: according to the clock of this process, its node has not changed for the
        whole term and LEASE_MARGIN_MS.
        """
        ttl_ms = lease_ttl_ms(value)
        if ttl_ms is None:
            return False
        node_state, now_s = (stat.czxid, stat.version), self._clock.monotonic()
        seen_state, since_s = self._unchanged_since.get(name, (None, now_s))
        if seen_state != node_state:
            self._unchanged_since[name] = node_state, now_s
            return False
        return now_s >= since_s + (ttl_ms + LEASE_MARGIN_MS) / 1000

    # Nodes

    def _sync(self) -> None:
        self._session.answer(self._session.client.sync_async(self._root))

    def _get(self, *names: str) -> tuple[bytes | None, int]:
        """Return the value and the version of a node, or None and -1 if the node does not exist."""
        value, stat = self._get_with_stat(*names)
        return value, -1 if stat is None else stat.version

    def _get_with_stat(self, *names: str) -> tuple[bytes | None, Any]:
        return self._value_with_stat(self._session.client.get_async(self._path(*names)))

    def _value_with_stat(self, request: Any) -> tuple[bytes | None, Any]:
        """Return the answer to a `get_async`: value and stat, or None and None if the node does not exist."""
        from kazoo.exceptions import NoNodeError

        try:
            value, stat = self._session.answer(request)
        except NoNodeError:
            return None, None
        return value, stat

    def _create(self, path: str, value: bytes = b"") -> None:
        """Create a node unless it exists."""
        from kazoo.exceptions import NodeExistsError

        with suppress(NodeExistsError):
            self._session.answer(self._session.client.create_async(path, value))

    def _make_nodes(self) -> None:
        if not self._has_nodes:
            slashes = [i for i, letter in enumerate(self._root) if letter == "/"]
            for end in [*slashes[1:], len(self._root)]:
                self._create(self._root[:end])
            for name in ("journal", "leases", "epochs", "snapshots"):
                self._create(self._path(name))
            self._has_nodes = True

    def _commit(self, transaction: Any) -> bool:
        """Run a transaction. Return True if all its operations were executed, and False if none of them was."""
        results = self._session.answer(transaction.commit_async())
        return not any(isinstance(result, Exception) for result in results)

    def _entry_path(self, position: int) -> str:
        return self._path("journal", _bucket(position), f"{position:020d}")

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))


def _bucket(position: int) -> str:
    return f"{position // BUCKET_ENTRIES:016d}"


def _escaped(name: str) -> str:
    """Return the name of the node for the lease `name`."""
    return quote(name, safe="")
