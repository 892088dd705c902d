"""The aborted transactions whose markers are in a segment, in Kafka's `.txnindex` format: 34 bytes per entry,
big-endian.

    version (int16, 0) | producer id (int64) | first offset | last offset (of the marker) | last stable offset

Most segments have no aborted transactions, and therefore no such file. The file is read each time its entries are
needed.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.errors import CorruptLog

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

ENTRY = Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """An aborted transaction. `last_offset` is the offset of its abort marker. `last_stable_offset` is the last
    stable offset of the log after the marker was appended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of one segment, in the order of their markers."""

    __slots__ = ("_disk", "_loaded", "exists", "path", "unsynced")

    def __init__(self, disk: "Disk", path: str, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self.exists = exists
        self.unsynced = False
        """Whether the file has changes that are possibly not durable."""
        self._loaded: list[AbortedTransaction] | None = None
        """Between the calls of `hold` and `release`: all entries of the file. Otherwise None."""

    def hold(self) -> None:
        """Store the entries in memory until `release`, so that the file may be renamed during that time. Raises the
        errors of `read`.
        """
        self._loaded = self.read()

    def release(self) -> None:
        self._loaded = None

    def append(self, aborted: AbortedTransaction) -> None:
        file = self._disk.open(self.path, create=True)
        try:
            file.pwrite(ENTRY.pack(0, *aborted), file.size() // ENTRY.size * ENTRY.size)
        finally:
            file.close()
        self.exists = True
        self.unsynced = True

    def read(self) -> list[AbortedTransaction]:
        """Return all entries. An incomplete entry at the end of the file is ignored. Raises OSError, and CorruptLog if
        the version of an entry is unknown or its offsets are out of order.
        """
        return list(self.entries())

    def entries(self, start: int = 0) -> Iterator[AbortedTransaction]:
        """Yield the entries whose marker is at `start` or later, one by one. Raises the errors of `read`. CorruptLog
        is raised only after the entries before the bad entry have been yielded.
        """
        if self._loaded is not None:
            yield from (entry for entry in self._loaded if entry.last_offset >= start)
            return
        if not self.exists:
            return
        data = self._disk.read(self.path)
        previous_last = -1
        first_row = 0
        if start > 0:  # the entries are in the order of their markers, so bisection finds the first one to yield
            rows = range(len(data) // ENTRY.size)
            first_row = bisect_left(rows, start, key=lambda row: ENTRY.unpack_from(data, row * ENTRY.size)[3])
        for position in range(first_row * ENTRY.size, len(data) - ENTRY.size + 1, ENTRY.size):
            version, producer_id, first, last, stable = ENTRY.unpack_from(data, position)
            if version != 0 or not 0 <= first < last or last <= previous_last:
                raise CorruptLog(self.path, position, "this is not an entry of a transaction index")
            yield AbortedTransaction(producer_id, first, last, stable)
            previous_last = last

    def ends_below(self, offset: int) -> bool:
        """Return whether the marker of the last whole entry is below `offset`. Only this entry is read. Raises
        OSError.
        """
        if not self.exists:
            return True
        file = self._disk.open(self.path)
        try:
            position = (file.size() // ENTRY.size - 1) * ENTRY.size
            return position < 0 or ENTRY.unpack(file.pread(ENTRY.size, position))[3] < offset
        finally:
            file.close()

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at `offset` or later. Also remove the first entry that cannot be
        read, and all entries after it. Raises OSError.
        """
        if not self.exists:
            return
        kept_count = 0
        with suppress(CorruptLog):
            for entry in self.entries():
                if entry.last_offset >= offset:
                    break
                kept_count += 1
        file = self._disk.open(self.path)
        try:
            file.truncate(kept_count * ENTRY.size)
        finally:
            file.close()
        self.unsynced = True

    def sync(self) -> None:
        file = self._disk.open(self.path)
        try:
            file.sync()
        finally:
            file.close()
