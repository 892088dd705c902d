"""The aborted transactions of a segment, in Kafka's `.txnindex` format: 34 bytes an entry, big-endian.

    version (int16, 0) | producer id (int64) | first offset | last offset (the marker) | last stable offset then

Most segments have none and no file. Entries are read when a read_committed fetch asks for them.
"""

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.errors import CorruptLog

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

ENTRY = Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """`last_offset` is the abort marker's; `last_stable_offset` is what it became once the marker was appended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """One segment's aborted transactions, in the order of their markers."""

    __slots__ = ("_disk", "_held", "exists", "path", "unsynced")

    def __init__(self, disk: "Disk", path: str, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self.exists = exists
        self.unsynced = False
        self._held: list[AbortedTransaction] | None = None

    def hold(self) -> None:
        """Have the entries in memory until `let_go`: meanwhile the file may be renamed. Raises as `read`."""
        self._held = self.read()

    def let_go(self) -> None:
        self._held = None

    def append(self, aborted: AbortedTransaction) -> None:
        file = self._disk.open(self.path, create=True)
        try:
            file.pwrite(ENTRY.pack(0, *aborted), file.size() // ENTRY.size * ENTRY.size)
        finally:
            file.close()
        self.exists = True
        self.unsynced = True

    def read(self) -> list[AbortedTransaction]:
        """Every entry. Raises CorruptLog for a version that is not known or offsets that are not in order."""
        return list(self.entries())

    def entries(self) -> Iterator[AbortedTransaction]:
        """As `read`, one by one: those before the first bad one are yielded."""
        if self._held is not None:
            yield from self._held
            return
        if not self.exists:
            return
        data = self._disk.read(self.path)
        before = -1
        for position in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
            version, producer_id, first, last, stable = ENTRY.unpack_from(data, position)
            if version != 0 or not 0 <= first < last or last <= before:
                raise CorruptLog(self.path, position, "this is not an entry of a transaction index")
            yield AbortedTransaction(producer_id, first, last, stable)
            before = last

    def truncate_to(self, offset: int) -> None:
        """Drop transactions whose marker is at `offset` or later, and what cannot be read."""
        if not self.exists:
            return
        kept = 0
        with suppress(CorruptLog):
            for entry in self.entries():
                if entry.last_offset >= offset:
                    break
                kept += 1
        file = self._disk.open(self.path)
        try:
            file.truncate(kept * ENTRY.size)
        finally:
            file.close()
        self.unsynced = True

    def sync(self) -> None:
        file = self._disk.open(self.path)
        try:
            file.sync()
        finally:
            file.close()
