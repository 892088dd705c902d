"""The metadata store of simulated brokers: a journal file on the simulated disk, used instead of SQLite.

The file consists of frames (length, CRC-32, payload). Each frame is appended and synced before the next frame. A
snapshot rewrites the file. If the last frame is torn, it was never acknowledged, so the next start removes it. A
damaged frame that is followed by a valid frame is an error.
"""

import asyncio
import errno
import json
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, TypeVar
from zlib import crc32

from tidelog.metadata.store import (
    AppendUnknown,
    Lease,
    PositionTaken,
    Snapshot,
    StoredEntry,
    StoreFailed,
    StoreUnavailable,
)
from tidelog.runtime.interfaces import Clock, Disk, File, Tasks
from tidelog.simulation.leases import Leases

T = TypeVar("T")

LANE: Final = "metadata"

_FRAME = Struct(">II")
_HEAD = Struct(">cq")
_WRITER = Struct(">qB")
_ENTRY, _ENTRY_OF_WRITER, _SNAPSHOT, _LEASE = b"E", b"W", b"S", b"L"


class SimStore:
    """A `Store` in the file at `path`, which only one process opens at a time."""

    entry_bytes_max: int | None = None

    def __init__(self, path: str, clock: Clock, tasks: Tasks, disk: Disk) -> None:
        self.path = path
        self._clock = clock
        self._tasks = tasks
        self._disk = disk
        self._file: File | None = None
        self._end = 0
        self._failure: str | None = None
        self._entries: dict[int, StoredEntry] = {}
        self._next_position = 0
        self._stored_snapshot: Snapshot | None = None
        self._leases = Leases(clock.now_ms, self._persist_lease)
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def inspect(self) -> None:
        """Return None without reading the file: reading may remove a torn last frame, and this method must not change
        the disk.
        """

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        await self._run(self._append, StoredEntry(position, data, writer, number), lease)
        finished_waits = [future for awaited, future in self._waiting if awaited <= position]
        self._waiting = [(awaited, future) for awaited, future in self._waiting if awaited > position]
        for future in finished_waits:
            if not future.done():
                future.set_result(None)

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        return await self._run(self._read, start, limit)

    async def wait(self, position: int) -> None:
        if await self._run(lambda: self._next_position) <= position:
            future: asyncio.Future[None] = self._tasks.future()
            self._waiting.append((position, future))
            await future

    async def snapshot(self) -> Snapshot | None:
        return await self._run(lambda: self._stored_snapshot)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        await self._run(self._save_snapshot, snapshot)

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        return await self._run(self._leases.acquire, name, holder, ttl_ms)

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        await self._run(self._leases.renew, lease, ttl_ms)

    async def release(self, lease: Lease) -> None:
        await self._run(self._leases.release, lease)

    async def held_leases(self, prefix: str) -> list[Lease]:
        return await self._run(self._leases.held, prefix)

    async def discard_history(self) -> None:
        """Do nothing: the store retains no old values."""

    async def wait_for_write(self, limit_s: float) -> None:
        await self._tasks.sleep(limit_s)

    async def close(self) -> None:
        await self._tasks.run_blocking(self._close, lane=LANE)

    # The functions below block. `_run` passes them to `run_blocking`, as a real store passes its blocking functions.

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        return await self._tasks.run_blocking(self._call, function, args, lane=LANE)

    def _call(self, function: Callable[..., T], args: tuple[object, ...]) -> T:
        if self._failure is not None:
            raise StoreFailed(self._failure)
        try:
            if self._file is None:
                self._load()
            return function(*args)
        except OSError as error:
            # It is unknown whether the frame was written. Only the next start, which reads the file, finds this out.
            self._failure = f"{self.path}: {error}"
            raise (AppendUnknown if function == self._append else StoreFailed)(self._failure) from error

    def _append(self, entry: StoredEntry, lease: Lease) -> None:
        self._leases.check(lease)
        if entry.position < self._next_position:
            raise PositionTaken(f"position {entry.position} is taken; the next free position is {self._next_position}")
        assert entry.position == self._next_position, "an append must not leave a gap"
        self._write(_encode_frame(_entry_payload(entry)))
        self._restore_entry(entry)

    def _read(self, start: int, limit: int) -> list[StoredEntry]:
        first = self._stored_snapshot.position if self._stored_snapshot is not None else 0
        stop = min(max(start, first) + limit, self._next_position)
        return [self._entries[at] for at in range(start, stop) if at in self._entries]

    def _save_snapshot(self, snapshot: Snapshot) -> None:
        if self._stored_snapshot is not None and self._stored_snapshot.position > snapshot.position:
            return
        later_entries = {position: entry for position, entry in self._entries.items() if position >= snapshot.position}
        frames = [_encode_frame(_HEAD.pack(_SNAPSHOT, snapshot.position) + snapshot.data)]
        frames += [_encode_frame(_lease_payload(lease, expires_ms)) for lease, expires_ms in self._leases.all()]
        frames += [_encode_frame(_entry_payload(entry)) for entry in later_entries.values()]
        content = b"".join(frames)
        try:
            self._disk.write_atomic(self.path, content)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreUnavailable(f"{self.path}: {error}") from error
            raise
        self._close()
        self._file = self._disk.open(self.path)
        self._end = len(content)
        self._entries = later_entries
        self._stored_snapshot = snapshot

    def _persist_lease(self, lease: Lease, expires_ms: int | None) -> None:
        self._write(_encode_frame(_lease_payload(lease, expires_ms)))

    def _write(self, frame: bytes) -> None:
        """Append one frame. The frame is durable when this returns."""
        assert self._file is not None
        try:
            self._file.pwrite(frame, self._end)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._file.truncate(self._end)
            raise StoreUnavailable(f"{self.path}: {error}") from error
        self._file.sync()
        self._end += len(frame)

    def _load(self) -> None:
        file = self._disk.open(self.path, create=True)
        self._disk.sync_dir(self.path.rpartition("/")[0])
        content = file.pread(file.size(), 0)
        for payload, end in _frames(content, self.path):
            self._replay(payload)
            self._end = end
        if self._end < len(content):
            file.truncate(self._end)
            file.sync()
        self._file = file

    def _replay(self, payload: bytes) -> None:
        if payload[:1] == _LEASE:
            name, holder, epoch, expires_ms = json.loads(payload[1:])
            self._leases.restore(Lease(name, holder, epoch), expires_ms)
            return
        kind, position = _HEAD.unpack_from(payload)
        data = payload[_HEAD.size :]
        if kind == _SNAPSHOT:
            self._stored_snapshot = Snapshot(position, data)
            self._next_position = position
        elif kind == _ENTRY_OF_WRITER:
            number, writer_bytes = _WRITER.unpack_from(data)
            end = _WRITER.size + writer_bytes
            self._restore_entry(StoredEntry(position, data[end:], data[_WRITER.size : end].decode(), number))
        else:
            self._restore_entry(StoredEntry(position, data))

    def _restore_entry(self, entry: StoredEntry) -> None:
        self._entries[entry.position] = entry
        self._next_position = entry.position + 1

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lease_payload(lease: Lease, expires_ms: int | None) -> bytes:
    return _LEASE + json.dumps([*lease, expires_ms]).encode()


def _entry_payload(entry: StoredEntry) -> bytes:
    if not entry.writer:
        return _HEAD.pack(_ENTRY, entry.position) + entry.data
    writer = entry.writer.encode()
    head = _HEAD.pack(_ENTRY_OF_WRITER, entry.position) + _WRITER.pack(entry.number, len(writer))
    return head + writer + entry.data


def _encode_frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def _frames(content: bytes, path: str) -> Iterator[tuple[bytes, int]]:
    """Yield the payload and the end of each frame, up to the first invalid frame.

    Raises StoreFailed if a valid frame is at the position where the invalid frame ends according to its length field.
    """
    position = 0
    while (payload := _payload_at(content, position)) is not None:
        position += _FRAME.size + len(payload)
        yield payload, position
    # Each frame was synced before the next frame was written, so only the last frame can be torn.
    if len(content) - position >= _FRAME.size:
        length, _ = _FRAME.unpack_from(content, position)
        if _payload_at(content, position + _FRAME.size + length) is not None:
            raise StoreFailed(f"{path}: the frame at {position} is damaged, and it is not the last frame")


def _payload_at(content: bytes, position: int) -> bytes | None:
    if len(content) - position < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack_from(content, position)
    payload = content[position + _FRAME.size : position + _FRAME.size + length]
    return payload if length and len(payload) == length and crc32(payload) == checksum else None
