"""Sparse indexes of a segment, in Kafka's file formats. All numbers are big-endian.

    .index      8 bytes per entry: offset relative to the segment's base (int32), position (int32)
    .timeindex 12 bytes per entry: timestamp in ms (int64), offset relative to the base (int32)

An offset entry means that the batch which ends with this offset begins at this position. A time entry means that no
record up to this offset has a later timestamp. The entries are loaded into memory, as arrays, when a look-up first
needs them. They can be unloaded again. New entries are written to the file in groups. Zeros that Kafka preallocated
after the last entry are ignored.
"""

from array import array
from bisect import bisect_left, bisect_right
from operator import le, lt
from sys import byteorder
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

INT32_MAX = (1 << 31) - 1
PENDING_MAX = 512
"""Maximum number of new entries that are collected in memory before they are written to the file."""
SMALL_BYTES = 4096
"""An index file up to this size (in bytes) is read as a whole to determine its number of rows."""

assert array("I").itemsize == 4
assert array("q").itemsize == 8


class CorruptIndex(Exception):
    """The content of the index file is invalid. The index is then rebuilt from the log."""


class SparseIndex:
    """Base class of both indexes, which have two ascending columns. The file contains the first `written` rows.

    Memory contains the rows from `_first` on. These are at least the last row and the new rows. If a look-up needs
    earlier rows, all rows are loaded. `count` is the number of all rows; it is -1 until this number is known.
    """

    __slots__ = (
        "_cache",
        "_disk",
        "_first",
        "_has_padding",
        "_keys",
        "_values",
        "base_offset",
        "count",
        "path",
        "written",
    )

    entry_bytes: ClassVar[int]
    key_code: ClassVar[str]

    def __init__(self, disk: "Disk", path: str, base_offset: int) -> None:
        self._disk = disk
        self._cache: IndexCache | None = None
        self.path = path
        self.base_offset = base_offset
        self.count = -1
        self.written = 0
        self._first = 0
        self._has_padding = False
        """Whether Kafka preallocated zeros after the last entry. A truncation removes them."""
        self._keys = self._empty_keys()
        self._values = array("I")

    def create(self) -> None:
        """Create the empty file of a new segment. Raises OSError."""
        self._disk.open(self.path, create=True).close()
        self.count = 0

    def last(self) -> tuple[int, int] | None:
        """Return the last row as it is stored: relative offset and position, or timestamp and relative offset.
        Returns None if there are no rows.

        Raises CorruptIndex, FileNotFoundError.
        """
        if self.count < 0:
            self._read_count()
        return (self._keys[-1], self._values[-1]) if self.count else None

    @property
    def pending(self) -> int:
        """Number of rows that are not in the file yet."""
        return max(self.count, 0) - self.written

    @property
    def memory_bytes(self) -> int:
        return len(self._keys) * self.entry_bytes

    def load_all(self) -> None:
        """Load every row into memory. Raises CorruptIndex, FileNotFoundError."""
        if self.count < 0 or self._first:
            self._load()
        if self._cache is not None:
            self._cache.touch(self)

    def unload(self) -> None:
        """Remove from memory the rows that are in the file, except the last row."""
        drop_count = min(self.written, self.count - 1) - self._first
        if drop_count > 0:
            self._keys = self._keys[drop_count:]
            self._values = self._values[drop_count:]
            self._first += drop_count

    def write_pending(self) -> bool:
        """Write new rows to the file. Returns whether there were new rows. Raises OSError; after an error, the rows
        remain in memory.
        """
        pending = self.pending
        if not pending:
            return False
        data = self._format(self._keys[-pending:], self._values[-pending:])
        file = self._disk.open(self.path, create=True)
        try:
            file.pwrite(data, self.written * self.entry_bytes)
        finally:
            file.close()
        self.written = self.count
        if self._cache is not None:
            self._cache.touch(self)
        return True

    def rewrite(self) -> None:
        """Replace the file by the rows in memory, durably. All rows must be in memory, as after a rebuild. Raises
        OSError.
        """
        assert not self._first
        self._disk.write_atomic(self.path, self._format(self._keys, self._values))
        self.written = self.count

    def sync(self) -> None:
        """Make the file durable. The call blocks. It is thread-safe, because it does not use the rows in memory."""
        file = self._disk.open(self.path)
        try:
            file.sync()
        finally:
            file.close()

    def use_cache(self, cache: "IndexCache | None") -> None:
        """Unload the index, and count its memory in `cache` from now on. After this call, only the event loop may use
        the index.

        If `cache` is None, the memory is not counted, and a thread may use the index instead of the event loop.
        """
        self._cache = cache
        self.unload()

    def empty(self) -> None:
        """Remove every row from memory and from the file, which is created if it is missing."""
        self.clear()
        file = self._disk.open(self.path, create=True)
        try:
            file.truncate(0)
        finally:
            file.close()

    def clear(self) -> None:
        """Remove every row from memory only. Use it before a rebuild, which ends with `rewrite`."""
        self.count = self.written = self._first = 0
        self._keys = self._empty_keys()
        self._values = array("I")

    def check_rows(self) -> None:
        """Raise CorruptIndex unless both columns ascend and the offsets fit into 31 bits. Offsets of a time index may
        repeat.
        """
        if not (all(map(lt, self._keys, self._keys[1:])) and self._has_valid_rows()):
            raise CorruptIndex(f"{self.path}: entries are not in order")

    def rows(self) -> list[tuple[int, int]]:
        self.load_all()
        return list(zip(self._keys, self._values, strict=True))

    def _cut_to(self, count: int) -> None:
        """Truncate the index and its file to the first `count` rows. All of them must be in memory."""
        del self._keys[count - self._first :]
        del self._values[count - self._first :]
        self.count = count
        if self.written > count or self._has_padding:
            self.written = min(self.written, count)
            file = self._disk.open(self.path)
            try:
                file.truncate(self.written * self.entry_bytes)
            finally:
                file.close()
            self._has_padding = False

    def _read_count(self) -> None:
        """Determine the number of rows, and load the last row. A large file is read as a whole only if it ends with
        preallocated zeros or with part of an entry.
        """
        size = self._disk.size(self.path)
        if not size:
            self.count = 0
            return
        if size > SMALL_BYTES and size % self.entry_bytes == 0:
            file = self._disk.open(self.path)
            try:
                last_entry = file.pread(self.entry_bytes, size - self.entry_bytes)
            finally:
                file.close()
            if last_entry.strip(b"\0"):
                self.count = self.written = size // self.entry_bytes
                self._first = self.count - 1
                self._keys, self._values = self._parse(last_entry)
                return
        self._load()

    def _load(self) -> None:
        pending = self.pending
        keys, values = (self._keys[-pending:], self._values[-pending:]) if pending else (self._empty_keys(), array("I"))
        data = self._disk.read(self.path)
        if self.count >= 0:
            used_bytes = self.written * self.entry_bytes
        else:
            used_bytes = len(data.rstrip(b"\0"))
            used_bytes += -used_bytes % self.entry_bytes  # the last entry itself may end with zeros
        if used_bytes > len(data):
            raise CorruptIndex(
                f"{self.path}: {len(data)} bytes do not hold {-(-used_bytes // self.entry_bytes)} whole entries"
            )
        self._has_padding = used_bytes < len(data)
        self._keys, self._values = self._parse(data[:used_bytes])
        self._first = 0
        self.written = len(self._keys)
        self.check_rows()
        self._keys.extend(keys)
        self._values.extend(values)
        self.count = len(self._keys)

    @classmethod
    def _empty_keys(cls) -> "array[int]":
        return array(cls.key_code)

    def _has_valid_rows(self) -> bool:
        """Return whether the values ascend and the offsets fit into 31 bits."""
        raise NotImplementedError

    @staticmethod
    def _parse(data: bytes) -> tuple["array[int]", "array[int]"]:
        raise NotImplementedError

    @staticmethod
    def _format(keys: "array[int]", values: "array[int]") -> bytes:
        raise NotImplementedError


class OffsetIndex(SparseIndex):
    """Maps an offset to the position of a batch at or before it."""

    __slots__ = ()
    entry_bytes = 8
    key_code = "I"

    def append(self, offset: int, position: int) -> None:
        self._keys.append(offset - self.base_offset)
        self._values.append(position)
        self.count += 1

    def position_for(self, offset: int) -> int:
        """Return the position from which to search for `offset`: the position of the last indexed batch that ends at
        or before `offset`. Returns 0 if there is no such batch.
        """
        relative = offset - self.base_offset
        if not self._keys or self._keys[0] > relative:
            self.load_all()
        row = bisect_right(self._keys, relative) - 1
        return self._values[row] if row >= 0 else 0

    def boundary(self, position_max: int) -> int:
        """Return the last indexed position at or before `position_max`. A batch begins there. Returns 0 if there is
        no such position.
        """
        if not self._values or self._values[0] > position_max:
            self.load_all()
        row = bisect_right(self._values, position_max) - 1
        return self._values[row] if row >= 0 else 0

    def offset_at(self, position_min: int) -> int | None:
        """Return the last offset of the first indexed batch at or after `position_min`; None if there is no such
        batch.
        """
        if not self._values or self._values[0] > position_min:
            self.load_all()
        row = bisect_left(self._values, position_min)
        return self.base_offset + self._keys[row] if row < len(self._keys) else None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries whose batch ends at or after `offset`."""
        self.load_all()
        self._cut_to(bisect_left(self._keys, max(offset - self.base_offset, 0)))

    def _has_valid_rows(self) -> bool:
        return all(map(lt, self._values, self._values[1:])) and not (self._keys and self._keys[-1] > INT32_MAX)

    @staticmethod
    def _parse(data: bytes) -> tuple["array[int]", "array[int]"]:
        words = array("I", data)
        if byteorder == "little":
            words.byteswap()
        return words[0::2], words[1::2]

    @staticmethod
    def _format(keys: "array[int]", values: "array[int]") -> bytes:
        words = array("I", bytes(8 * len(keys)))
        words[0::2] = keys
        words[1::2] = values
        if byteorder == "little":
            words.byteswap()
        return words.tobytes()


class TimeIndex(SparseIndex):
    """Maps a timestamp to an offset. No record up to this offset has a later timestamp."""

    __slots__ = ()
    entry_bytes = 12
    key_code = "q"

    def append(self, timestamp_ms: int, offset: int) -> bool:
        """Add an entry, unless the last entry has the same or a later timestamp, or the timestamp is -1 (no
        timestamp). Returns whether the entry was added.

        Existing entries with a higher offset are removed. Such an entry states that no record up to its offset has a
        timestamp above its own. The new entry contradicts this, so the existing entry came from a wrong batch header.
        """
        if self.count > 0 and self._keys[-1] >= timestamp_ms:  # usual for appends in the same millisecond
            return False
        last = self.last()
        if timestamp_ms < 0 or (last is not None and last[0] >= timestamp_ms):
            return False
        if last is not None and last[1] > offset - self.base_offset:
            self.truncate_to(offset)
        self._keys.append(timestamp_ms)
        self._values.append(offset - self.base_offset)
        self.count += 1
        return True

    def offset_for(self, timestamp_ms: int) -> int:
        """Return an offset below which no record has a timestamp above `timestamp_ms`; the segment's base offset if
        no entry applies.
        """
        if not self._keys or self._keys[0] > timestamp_ms:
            self.load_all()
        row = bisect_right(self._keys, timestamp_ms) - 1
        return self.base_offset + (self._values[row] if row >= 0 else 0)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries with an offset at or above `offset`."""
        self.load_all()
        self._cut_to(bisect_left(self._values, max(offset - self.base_offset, 0)))

    def _has_valid_rows(self) -> bool:
        return all(map(le, self._values, self._values[1:])) and not (self._values and self._values[-1] > INT32_MAX)

    @staticmethod
    def _parse(data: bytes) -> tuple["array[int]", "array[int]"]:
        words = array("I", data)
        raw = array("I", bytes(len(data) // 12 * 8))
        raw[0::2] = words[0::3]
        raw[1::2] = words[1::3]
        timestamps = array("q", raw.tobytes())
        offsets = words[2::3]
        if byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        return timestamps, offsets

    @staticmethod
    def _format(keys: "array[int]", values: "array[int]") -> bytes:
        timestamps = keys[:]
        offsets = values[:]
        if byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        raw = array("I", timestamps.tobytes())
        words = array("I", bytes(12 * len(keys)))
        words[0::3] = raw[0::2]
        words[1::3] = raw[1::2]
        words[2::3] = offsets
        return words.tobytes()


class IndexCache:
    """Limits the memory of all loaded indexes of a broker; the least recently used indexes are unloaded first."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self._bytes_max = bytes_max
        self._bytes_by_index: dict[SparseIndex, int] = {}
        self.bytes_held = 0

    def touch(self, index: SparseIndex) -> None:
        """Record that `index` was used and that its size may have changed. If the limit is exceeded, unload the least
        recently used indexes.
        """
        bytes_by_index = self._bytes_by_index
        index_bytes = index.memory_bytes
        self.bytes_held += index_bytes - bytes_by_index.pop(index, 0)
        bytes_by_index[index] = index_bytes
        while self.bytes_held > self._bytes_max and len(bytes_by_index) > 1:
            oldest = next(iter(bytes_by_index))
            self.bytes_held -= bytes_by_index.pop(oldest)
            oldest.unload()

    def forget(self, index: SparseIndex) -> None:
        self.bytes_held -= self._bytes_by_index.pop(index, 0)
