"""The metadata store in etcd 3.4 or newer, for brokers on several hosts.

Keys below the prefix:

    journal/POSITION     one entry; POSITION has 20 digits
    end                  the position of the next entry
    leases/NAME          holder and epoch; the key has a lease of etcd: when that lease ends, etcd deletes the key
    epochs/NAME          the last epoch of the lease NAME; this key is never deleted
    snapshot             the pointer to the current snapshot
    snapshots/ID/PART    the parts of snapshots

An append is one transaction: it compares the lease and the end, and writes the entry and the new end. Transactions and
reads need a majority of the servers. A renewal creates a new lease of etcd and attaches the key to it. An etcd
server that has just lost the leadership of etcd's cluster may still answer a keep-alive of etcd, so none is sent.

etcd retains each value that a renewal has replaced, until the history of etcd is compacted. Every few minutes, the
controller compacts the history (`discard_history`), except the history of the last few minutes.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from tidelog.metadata.etcd_gateway import (
    ANSWER_TIMEOUT_S,
    AnswerLost,
    AnswerTooLarge,
    EtcdGateway,
    EtcdServers,
    WatchEnd,
    to_bytes,
    to_text,
)
from tidelog.metadata.remote_store import CHANGES, LEASE_CALL_SHARE, LEASES, READS, WATCH, WATCH_S, RemoteStore
from tidelog.metadata.store import (
    AppendUnknown,
    Lease,
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
    parts_prefix,
    read_snapshot,
    split,
)
from tidelog.runtime.interfaces import Runtime

T = TypeVar("T")

WATCH_PAUSE_S: Final = 0.2
"""Pause after a watch that failed, in seconds."""
TRIM_KEYS: Final = 2000
"""Largest number of entries that one transaction deletes."""
ACQUIRE_TRIES: Final = 5
"""Number of attempts to acquire a lease while other brokers change it."""


class EtcdStore(RemoteStore):
    """`Store` in the etcd cluster of `servers`, in the keys below `prefix`. Each lane (`remote_store`) has its own
    connection, but all lanes use the same server.
    """

    def __init__(
        self, url: str, servers: list[tuple[str, int]], prefix: str, runtime: Runtime, *, first_server: int = 0
    ) -> None:
        """The first server to use is `servers[first_server % len(servers)]`."""
        super().__init__(url, runtime)
        self._prefix = prefix
        self._servers = EtcdServers(servers, first_server)
        self._gateways = {lane: EtcdGateway(url, self._servers) for lane in (CHANGES, LEASES, READS, WATCH)}
        self._discard_before = 0
        """The revision of etcd at the last call of `discard_history`; 0 before the first call."""
        # If a server fails, the watch on it is ended. Otherwise a watch on a hung server would end only after WATCH_S.
        self._servers.on_failed = self._gateways[WATCH].interrupt

    async def wait(self, position: int) -> None:
        try:
            watched: WatchEnd | None = None
            server = 0
            while True:
                end, revision = await self._run(READS, self._end)
                if end > position:
                    if watched is WatchEnd.TIME_OVER:
                        self._servers.failed(server)  # it has not reported the change
                    return
                server = self._servers.current
                watched = await self._run(WATCH, self._watch, revision + 1)
                if watched is WatchEnd.FAILED:
                    await self._tasks.sleep(WATCH_PAUSE_S)
        except BaseException:
            self._gateways[WATCH].cancel_watch()  # a cancelled wait must not occupy the thread
            raise

    async def discard_history(self) -> None:
        # The revision of the previous call is used, so that the history of some minutes remains for other programs.
        self._discard_before = await self._run(READS, self._compact, self._discard_before)

    async def close(self) -> None:
        self._gateways[WATCH].cancel_watch()
        for lane, gateway in self._gateways.items():
            await self._tasks.run_blocking(gateway.close, lane=lane)

    # `_run` is called on the event loop. All methods after it run on the thread of a lane.

    async def _run(self, lane: str, function: Callable[..., T], *args: object) -> T:
        return await self._tasks.run_blocking(self._call, function, self._gateways[lane], *args, lane=lane)

    def _call(self, function: Callable[..., T], gateway: EtcdGateway, *args: object) -> T:
        try:
            return function(gateway, *args)
        except AnswerLost as error:
            raise StoreUnavailable(f"{self._url} has not answered ({error})") from error
        except AnswerTooLarge:
            raise StoreFailed(f"{self._url}: an answer of etcd exceeds the limit of its gateway") from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StoreFailed(f"{self._url}: etcd's answer has an unknown form: {error!r}") from error

    def _append(self, gateway: EtcdGateway, position: int, value: bytes, lease: Lease) -> None:
        lease_key, end_key = self._key("leases", lease.name), self._key("end")
        try:
            answer = gateway.change(
                "/v3/kv/txn",
                {
                    "compare": [
                        _value_is(lease_key, encode_lease(lease)),
                        _value_is(end_key, str(position).encode()) if position else _is_absent(end_key),
                    ],
                    "success": [_put(self._entry_key(position), value), _put(end_key, str(position + 1).encode())],
                    "failure": [_get(lease_key), _get(end_key)],
                },
            )
        except AnswerLost as error:
            raise AppendUnknown(
                f"{self._url} has not answered ({error}): it is unknown whether the change was stored"
            ) from error
        if answer.get("succeeded"):
            return
        stored_lease, stored_end = (_first_value(each["response_range"]) for each in answer["responses"])
        if stored_lease != encode_lease(lease):
            raise lease_lost(lease)
        end = int(stored_end or 0)
        if position < end:
            raise PositionTaken(f"position {position} is taken; the next free position is {end}")
        assert position == end, "an append must not leave a gap"
        raise StoreFailed(f"{self._url}: an append was refused without a reason")

    def _read(self, gateway: EtcdGateway, start: int, limit: int) -> list[StoredEntry]:
        body = {"key": to_text(self._entry_key(start)), "range_end": to_text(_after(self._key("journal", "")))}
        while True:
            try:
                answer = gateway.read("/v3/kv/range", {**body, "limit": str(limit)})
            except AnswerTooLarge:
                if limit == 1:
                    raise
                limit = (limit + 1) // 2
            else:
                return [decode_entry(int(key[-20:]), value) for key, value in _pairs(answer)]

    def _end(self, gateway: EtcdGateway) -> tuple[int, int]:
        """Return the position of the next entry, and the revision of etcd at which it was read."""
        answer = gateway.read("/v3/kv/range", {"key": to_text(self._key("end"))})
        return int(_first_value(answer) or 0), int(answer["header"]["revision"])

    def _watch(self, gateway: EtcdGateway, revision: int) -> WatchEnd:
        return gateway.watch(self._key("end"), revision, WATCH_S)

    def _snapshot(self, gateway: EtcdGateway) -> Snapshot | None:
        return read_snapshot(self._url, lambda *names: self._get(gateway, self._key(*names)))

    def _save_snapshot(self, gateway: EtcdGateway, snapshot: Snapshot, parts_id: str) -> None:
        parts = split(snapshot.data)
        for i, part in enumerate(parts):
            key = self._key("snapshots", parts_id, str(i))
            gateway.change("/v3/kv/put", {"key": to_text(key), "value": to_text(part)})
        if self._point_to(gateway, SnapshotPointer.of(snapshot, parts_id, len(parts))):
            # The ids of parts begin with the position of their snapshot, so the keys of the parts of earlier snapshots
            # are below `earlier_parts_end`.
            earlier_parts_end = self._key("snapshots", parts_prefix(snapshot.position))
            self._delete(gateway, self._key("snapshots", ""), earlier_parts_end)
            self._trim(gateway, snapshot.position)
        else:
            own_parts = self._key("snapshots", parts_id, "")
            self._delete(gateway, own_parts, _after(own_parts))

    def _point_to(self, gateway: EtcdGateway, pointer: SnapshotPointer) -> bool:
        """Store `pointer` as the pointer to the current snapshot, and return True. If the current snapshot already has
        the position of `pointer` or a later one, store nothing, and return False.
        """
        key = self._key("snapshot")
        while True:
            answer = gateway.read("/v3/kv/range", {"key": to_text(key)})
            current = _first_value(answer)
            if current is not None and SnapshotPointer.decode(current).position >= pointer.position:
                return False
            unchanged = _value_is(key, current) if current is not None else _is_absent(key)
            body = {"compare": [unchanged], "success": [_put(key, pointer.encode())]}
            if gateway.change("/v3/kv/txn", body).get("succeeded"):
                return True

    def _trim(self, gateway: EtcdGateway, position: int) -> None:
        """Delete the entries before `position` in several transactions."""
        key_range = {"key": to_text(self._entry_key(0)), "range_end": to_text(self._entry_key(position))}
        while pairs := _pairs(gateway.read("/v3/kv/range", {**key_range, "limit": "1", "keys_only": True})):
            first = int(pairs[0][0][-20:])
            self._delete(gateway, self._entry_key(first), self._entry_key(min(first + TRIM_KEYS, position)))

    def _compact(self, gateway: EtcdGateway, revision: int) -> int:
        """For all keys, delete the history before `revision`. Return the current revision."""
        if revision:
            with suppress(StoreFailed):  # another broker or etcd itself may have compacted at a later revision
                gateway.change("/v3/kv/compaction", {"revision": str(revision)})
        return self._end(gateway)[1]

    def _acquire(self, gateway: EtcdGateway, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        self._limit_calls(gateway, ttl_ms)
        lease_key, epoch_key = self._key("leases", name), self._key("epochs", name)
        for _ in range(ACQUIRE_TRIES):
            answer = gateway.read("/v3/kv/txn", {"success": [_get(lease_key), _get(epoch_key)]})
            stored_lease, stored_epoch = (_first_value(each["response_range"]) for each in answer["responses"])
            if stored_lease is not None and decode_lease(name, stored_lease).holder != holder:
                return None
            lease = Lease(name, holder, int(stored_epoch or 0) + 1)
            lease_put = _put(lease_key, encode_lease(lease), self._grant(gateway, ttl_ms))
            unchanged = [
                _is_absent(key) if value is None else _value_is(key, value)
                for key, value in ((lease_key, stored_lease), (epoch_key, stored_epoch))
            ]
            puts = [lease_put, _put(epoch_key, str(lease.epoch).encode())]
            if gateway.change("/v3/kv/txn", {"compare": unchanged, "success": puts}).get("succeeded"):
                return lease
        raise StoreUnavailable(f"{self._url}: other brokers change the lease {name} at the same time")

    def _renew(self, gateway: EtcdGateway, lease: Lease, ttl_ms: int) -> None:
        self._limit_calls(gateway, ttl_ms)
        key, value = self._key("leases", lease.name), encode_lease(lease)
        body = {"compare": [_value_is(key, value)], "success": [_put(key, value, self._grant(gateway, ttl_ms))]}
        if not gateway.change("/v3/kv/txn", body).get("succeeded"):
            raise lease_lost(lease)

    def _limit_calls(self, gateway: EtcdGateway, ttl_ms: int | None) -> None:
        """Limit the time of all calls on the lane of the leases from now on. These calls include reads of the leases: a
        renewal must not wait for such a read for a long time.
        """
        if ttl_ms is not None:
            gateway.answer_timeout_s = min(ANSWER_TIMEOUT_S, ttl_ms / 1000 * LEASE_CALL_SHARE)

    def _grant(self, gateway: EtcdGateway, ttl_ms: int | None) -> str:
        """Return the id of a new lease of etcd, or "0" without `ttl_ms`. If no key is attached to the lease, it has no
        effect and ends after its time.
        """
        if ttl_ms is None:
            return "0"
        ttl_s = -(-ttl_ms // 1000)  # rounded up
        answer = gateway.change("/v3/lease/grant", {"TTL": str(ttl_s), "ID": "0"})
        return str(answer["ID"])

    def _release(self, gateway: EtcdGateway, lease: Lease) -> None:
        key = self._key("leases", lease.name)
        delete = {"request_delete_range": {"key": to_text(key)}}
        gateway.change("/v3/kv/txn", {"compare": [_value_is(key, encode_lease(lease))], "success": [delete]})

    def _held_leases(self, gateway: EtcdGateway, prefix: str) -> list[Lease]:
        first = self._key("leases", prefix)
        answer = gateway.read("/v3/kv/range", {"key": to_text(first), "range_end": to_text(_after(first))})
        names_from = len(self._key("leases", ""))
        return [decode_lease(key[names_from:].decode(), value) for key, value in _pairs(answer)]

    def _get(self, gateway: EtcdGateway, key: bytes) -> bytes | None:
        return _first_value(gateway.read("/v3/kv/range", {"key": to_text(key)}))

    def _delete(self, gateway: EtcdGateway, first: bytes, end: bytes) -> None:
        gateway.change("/v3/kv/deleterange", {"key": to_text(first), "range_end": to_text(end)})

    def _key(self, *names: str) -> bytes:
        return "/".join((self._prefix, *names)).encode()

    def _entry_key(self, position: int) -> bytes:
        return self._key("journal", f"{position:020d}")


def _after(prefix: bytes) -> bytes:
    """Return the first key that is greater than every key with this prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _value_is(key: bytes, value: bytes) -> dict[str, Any]:
    return {"key": to_text(key), "target": "VALUE", "result": "EQUAL", "value": to_text(value)}


def _is_absent(key: bytes) -> dict[str, Any]:
    return {"key": to_text(key), "target": "VERSION", "result": "EQUAL", "version": "0"}


def _get(key: bytes) -> dict[str, Any]:
    return {"request_range": {"key": to_text(key)}}


def _put(key: bytes, value: bytes, lease_id: str = "0") -> dict[str, Any]:
    return {"request_put": {"key": to_text(key), "value": to_text(value), "lease": lease_id}}


def _pairs(answer: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(to_bytes(pair["key"]), to_bytes(pair.get("value", ""))) for pair in answer.get("kvs", ())]


def _first_value(answer: dict[str, Any]) -> bytes | None:
    pairs = _pairs(answer)
    return pairs[0][1] if pairs else None
