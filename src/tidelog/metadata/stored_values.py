"""Encode and decode the values in the metadata stores that several hosts share (ZooKeeper, etcd): entries, leases, and
the parts of snapshots.
"""

import json
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from tidelog.metadata.store import (
    SHARED_VALUE_BYTES_MAX,
    EntryTooLarge,
    Lease,
    Snapshot,
    Store,
    StoredEntry,
    StoredJournal,
    StoreFailed,
)

ENTRY_FORMAT: Final = 1
_ENTRY_HEAD = Struct(">BqB")
"""The head of an entry: its format, its number among the writer's entries, and the length of the writer's id. The
writer's id and the data follow."""
WRITER_BYTES_MAX: Final = 255


def encode_entry(data: bytes, writer: str, number: int) -> bytes:
    """Return the bytes of one entry. Raises EntryTooLarge."""
    if len(data) > SHARED_VALUE_BYTES_MAX:
        raise EntryTooLarge(
            f"the entry has {len(data)} bytes; the metadata store accepts at most {SHARED_VALUE_BYTES_MAX}"
        )
    writer_id = writer.encode()
    assert len(writer_id) <= WRITER_BYTES_MAX
    return b"".join((_ENTRY_HEAD.pack(ENTRY_FORMAT, number, len(writer_id)), writer_id, data))


def decode_entry(position: int, value: bytes) -> StoredEntry:
    """Return one entry. Raises StoreFailed."""
    if len(value) < _ENTRY_HEAD.size or value[0] != ENTRY_FORMAT:
        raise StoreFailed(
            f"metadata entry {position} has an unknown format: a newer version of Tidelog wrote it, or it is damaged"
        )
    _, number, writer_bytes = _ENTRY_HEAD.unpack_from(value)
    end = _ENTRY_HEAD.size + writer_bytes
    return StoredEntry(position, value[end:], value[_ENTRY_HEAD.size : end].decode(errors="replace"), number)


def encode_lease(lease: Lease, ttl_ms: int | None = None) -> bytes:
    fields: dict[str, object] = {"holder": lease.holder, "epoch": lease.epoch}
    if ttl_ms is not None:
        fields["ttl_ms"] = ttl_ms
    return json.dumps(fields).encode()


def decode_lease(name: str, value: bytes) -> Lease:
    """Return one lease. Raises StoreFailed."""
    try:
        fields = json.loads(value)
        return Lease(name, str(fields["holder"]), int(fields["epoch"]))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreFailed(f"the lease {name} in the metadata store cannot be read: {error!r}") from error


def lease_ttl_ms(value: bytes) -> int | None:
    """Return the duration that is stored in a lease's value; None if the lease does not expire."""
    ttl_ms: int | None = json.loads(value).get("ttl_ms")
    return ttl_ms


class SnapshotPointer(NamedTuple):
    """The stored value that says which parts form the current snapshot. It is written after all parts."""

    position: int
    parts_id: str
    """Distinguishes the parts of this snapshot from the parts of other snapshots and of failed attempts."""
    parts: int
    """Number of the parts."""
    checksum: int
    """CRC-32 of the whole snapshot."""

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, value: bytes) -> "SnapshotPointer":
        """Return the decoded pointer. Raises StoreFailed."""
        try:
            return cls(**json.loads(value))
        except (ValueError, TypeError) as error:
            raise StoreFailed(f"the pointer to the metadata snapshot cannot be read: {error!r}") from error

    @classmethod
    def of(cls, snapshot: Snapshot, parts_id: str, part_count: int) -> "SnapshotPointer":
        return cls(snapshot.position, parts_id, part_count, crc32(snapshot.data))

    def join(self, parts: list[bytes]) -> Snapshot:
        """Return the snapshot. Raises StoreFailed."""
        data = b"".join(parts)
        if crc32(data) != self.checksum:
            raise StoreFailed(f"the metadata snapshot at position {self.position} is damaged: its checksum is wrong")
        return Snapshot(self.position, data)


def read_snapshot(url: str, get: Callable[..., bytes | None]) -> Snapshot | None:
    """Return the current snapshot, or None. `get` is called with the names that form a key. It returns the key's value,
    or None if the key does not exist. Raises StoreFailed.
    """
    stored_pointer = get("snapshot")
    while stored_pointer is not None:
        pointer = SnapshotPointer.decode(stored_pointer)
        parts = [get("snapshots", pointer.parts_id, str(i)) for i in range(pointer.parts)]
        existing_parts = [part for part in parts if part is not None]
        if len(existing_parts) == len(parts):
            return pointer.join(existing_parts)
        newer_pointer = get("snapshot")
        if newer_pointer == stored_pointer:
            raise StoreFailed(f"{url}: parts of the snapshot at position {pointer.position} are missing")
        stored_pointer = newer_pointer  # another broker has replaced the snapshot during the read
    return None


def parts_prefix(position: int, nonce: str = "") -> str:
    """Return the id of the parts of a snapshot at `position`. Without `nonce`, return the prefix of all ids for this
    position; the ids of snapshots at earlier positions sort before this prefix.
    """
    return f"{position:020d}-{nonce}"


def split(data: bytes) -> list[bytes]:
    """Return the parts of a snapshot, at least one."""
    step = SHARED_VALUE_BYTES_MAX
    return [data[start : start + step] for start in range(0, len(data), step)] or [b""]


async def read_journal(store: Store) -> StoredJournal | None:
    """Return the whole stored journal, or None if nothing is stored. Raises the exceptions of `Store.read`."""
    snapshot = await store.snapshot()
    entries: list[StoredEntry] = []
    position = snapshot.position if snapshot is not None else 0
    while page := await store.read(position):
        entries += page
        position = page[-1].position + 1
    return StoredJournal(snapshot, entries) if snapshot is not None or entries else None
