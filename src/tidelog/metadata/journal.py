"""The metadata journal of this broker: read the entries in the store, apply them to the image, and append new entries.

Every broker follows the journal with `catch_up`. Only the controller appends. It applies its own entries at once,
without reading them back.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from tidelog.metadata import records
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage, snapshot
from tidelog.metadata.leadership import HeldLease, OutcomeUnknown, SentEntry
from tidelog.metadata.records import JournalError, JournalRecord
from tidelog.metadata.store import (
    EntryTooLarge,
    LeaseLost,
    PositionTaken,
    Snapshot,
    Store,
    StoredEntry,
    StoreFailed,
    StoreUnavailable,
)
from tidelog.runtime.cancelling import cancel_and_wait
from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.metadata")

SNAPSHOT_BYTES_MIN: Final = 256 * 1024
"""A new snapshot is written when the entries since the last snapshot have at least this number of bytes, and at least
twice the size of the last snapshot."""
INLINE_BYTES_MAX: Final = 16 * 1024
"""An entry up to this size, in bytes, is decoded on the event loop; a larger entry is decoded on a thread."""


class EntryPending(Exception):
    """This broker has sent an entry, and does not know yet whether the store has it.

    `outcome` is done when the image of this broker contains the entry at `position`. The result is True if this
    entry is the sent entry, False if it is another one, and None if it was deleted before this broker could read it.
    """

    def __init__(self, position: int, outcome: "asyncio.Future[bool | None]") -> None:
        super().__init__(f"it is unknown whether metadata entry {position} was stored")
        self.position = position
        self.outcome = outcome


class PartlyAppended(Exception):
    """The journal may have only some of the entries of a change. It may also get one of the other entries later."""


class Journal:
    """The part of the journal that this broker has applied. Only one task at a time may call `catch_up` or `append`."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        """The image after the last applied entry."""
        self._store = store
        self._tasks = runtime.tasks
        self._turns = runtime.turns
        self._builder = ImageBuilder(EMPTY_IMAGE)
        """Collects the replayed journal until the start is complete."""
        self._pending: list[tuple[SentEntry, asyncio.Future[bool | None]]] = []
        """Sent entries for which it is unknown whether the store has them, each with the future of its outcome."""
        self._snapshot_task: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = 0
        self._snapshot_bytes = 0

    # The start

    async def inspect(self) -> MetadataImage | None:
        """Replay the part of the stored journal that the store can read without changing the disk. `replay` replays
        the rest. Returns the image, or None if nothing could be read.

        Raises StoreFailed, StoreUnavailable and JournalError.
        """
        stored_journal = await self._store.inspect()
        if stored_journal is None:
            return None
        if stored_journal.snapshot is not None:
            self._replay_snapshot(stored_journal.snapshot)
        self._replay_entries(stored_journal.entries)
        return self._builder.build()

    async def replay(self) -> None:
        """Replay what `inspect` has not replayed: first the snapshot, if it is newer than the replayed
        entries, then all later entries.

        Raises StoreFailed, StoreUnavailable and JournalError.
        """
        stored_snapshot = await self._store.snapshot()
        if stored_snapshot is not None and stored_snapshot.position > self._builder.position:
            self._replay_snapshot(stored_snapshot)
        while entries := await self._store.read(self._builder.position):
            self._replay_entries(entries)
        self.image = self._builder.build()
        self._builder = ImageBuilder(EMPTY_IMAGE)  # otherwise the first image would stay in memory

    def _replay_snapshot(self, stored_snapshot: Snapshot) -> None:
        self._builder = ImageBuilder(EMPTY_IMAGE)
        _apply(self._builder, _decode(stored_snapshot.data, stored_snapshot.position), stored_snapshot.position)
        self._note_snapshot(self._builder, stored_snapshot)

    def _replay_entries(self, entries: Sequence[StoredEntry]) -> None:
        for entry in entries:
            if entry.position != self._builder.position:
                raise _missing(self._builder.position)
            _apply(self._builder, _decode(entry.data, entry.position), entry.position)
            self._bytes_since_snapshot += len(entry.data)

    # Following

    async def wait(self) -> None:
        """Wait until the store has an entry that this broker has not applied. Raises the exceptions of `Store.wait`."""
        await self._store.wait(self.image.position)

    async def catch_up(self, *, is_behind: bool = False) -> None:
        """Apply all entries of the store that are not in the image yet.

        `is_behind` means that the journal is known to have at least one entry that is not in the image. If the store
        does not return the first of these entries, another broker has written a snapshot and deleted this entry. Then
        this snapshot is loaded.

        Raises StoreFailed, StoreUnavailable, and JournalError if an entry is missing or cannot be decoded.
        """
        while True:
            position = self.image.position
            entries = await self._store.read(position)
            if entries and entries[0].position == position:
                await self._apply_entries(entries)
                is_behind = False
            elif entries or is_behind:
                await self._load_snapshot()
                is_behind = False
            else:
                return

    async def _apply_entries(self, entries: Sequence[StoredEntry]) -> None:
        builder = ImageBuilder(self.image)
        for entry in entries:
            if entry.position != builder.position:
                raise _missing(builder.position)
            await self._decode_and_apply(builder, entry.data, entry.position)
        self._bytes_since_snapshot += sum(len(entry.data) for entry in entries)
        self.image = builder.build()
        self._settle([SentEntry(entry.position, entry.writer, entry.number) for entry in entries])

    async def _load_snapshot(self) -> None:
        stored_snapshot = await self._store.snapshot()
        if stored_snapshot is None or stored_snapshot.position <= self.image.position:
            raise _missing(self.image.position)
        builder = ImageBuilder(EMPTY_IMAGE)
        await self._decode_and_apply(builder, stored_snapshot.data, stored_snapshot.position)
        self._note_snapshot(builder, stored_snapshot)
        logger.info("metadata snapshot loaded position=%d", stored_snapshot.position)
        self.image = builder.build()
        self._settle([])

    async def _decode_and_apply(self, builder: ImageBuilder, data: bytes, position: int) -> None:
        if len(data) <= INLINE_BYTES_MAX:
            _apply(builder, _decode(data, position), position)
            return
        decoded = await self._tasks.run_blocking(partial(_decode, data, position))
        try:
            await self._turns.run(builder.apply_in_steps(decoded))
        except (LookupError, AssertionError) as error:
            raise _contradiction(position, error) from error

    def _note_snapshot(self, builder: ImageBuilder, stored_snapshot: Snapshot) -> None:
        builder.position = stored_snapshot.position
        self._snapshot_bytes = len(stored_snapshot.data)
        self._bytes_since_snapshot = 0

    # Appending

    async def append(self, new_records: list[JournalRecord], lease: HeldLease, *, undivided: bool = False) -> None:
        """Append the records of one change and apply them to the image.

        The records are appended as one entry. If the store does not accept an entry of this size, they are divided into
        several entries, unless the change must be `undivided`. The image is valid after each entry.

        Raises the exceptions of `HeldLease.append`, with EntryPending instead of OutcomeUnknown. Raises EntryTooLarge
        if one record or the undivided change is too large for one entry, and PartlyAppended if the journal may have
        only some of the entries of the change.
        """
        entries = await self._encode(new_records, lease.lease.epoch)
        size_max = self._store.entry_bytes_max
        if size_max is not None and any(len(data) > size_max for _, data in entries):
            raise EntryTooLarge(
                f"a record of the change exceeds the {size_max} bytes that an entry of the metadata store may have"
            )
        if undivided and len(entries) > 1:
            raise EntryTooLarge(f"the change exceeds the {size_max} bytes that an entry of the metadata store may have")
        is_first = True
        for entry_records, data in entries:
            try:
                await self._append_entry(entry_records, data, lease)
            except (PositionTaken, LeaseLost, StoreUnavailable, StoreFailed, EntryPending) as error:
                # If the first of several entries is pending, the store may get it later without the other entries.
                if is_first and (len(entries) == 1 or not isinstance(error, EntryPending)):
                    raise
                raise PartlyAppended(f"the metadata may be changed in part: {error}") from error
            is_first = False

    async def _encode(self, new_records: list[JournalRecord], epoch: int) -> list[tuple[list[JournalRecord], bytes]]:
        """Return the entries of a change, each as its records and its bytes."""
        data = await self._turns.run(records.encode_in_steps(epoch, new_records))
        size_max = self._store.entry_bytes_max
        if size_max is None or len(data) <= size_max or len(new_records) == 1:
            return [(new_records, data)]
        middle = len(new_records) // 2
        return await self._encode(new_records[:middle], epoch) + await self._encode(new_records[middle:], epoch)

    async def _append_entry(self, entry_records: list[JournalRecord], data: bytes, lease: HeldLease) -> None:
        image = self.image
        try:
            entry = await lease.append(image.position, data)
        except OutcomeUnknown as error:
            outcome: asyncio.Future[bool | None] = self._tasks.future()
            self._pending.append((error.entry, outcome))
            raise EntryPending(image.position, outcome) from None
        self._bytes_since_snapshot += len(data)
        self.image = (await self._turns.run(ImageBuilder(image).apply_in_steps(entry_records))).build()
        self._settle([entry])

    def _settle(self, applied: Sequence[SentEntry]) -> None:
        """Set the outcome of each pending entry whose position the image contains now."""
        if not self._pending:
            return
        by_position = {entry.position: entry for entry in applied}
        for entry, outcome in self._pending:
            if entry.position < self.image.position and not outcome.done():
                applied_entry = by_position.get(entry.position)
                outcome.set_result(None if applied_entry is None else applied_entry == entry)
        self._pending = [pending for pending in self._pending if pending[0].position >= self.image.position]

    # Snapshots

    def save_snapshot_if_due(self) -> None:
        is_due = self._bytes_since_snapshot >= max(SNAPSHOT_BYTES_MIN, 2 * self._snapshot_bytes)
        if is_due and (self._snapshot_task is None or self._snapshot_task.done()):
            self._bytes_since_snapshot = 0
            self._snapshot_task = self._tasks.spawn(self._save_snapshot(self.image), name="metadata-snapshot")

    async def _save_snapshot(self, image: MetadataImage) -> None:
        def encode() -> bytes:
            return records.encode(image.controller_epoch, snapshot(image))

        data = await self._tasks.run_blocking(encode)
        try:
            await self._store.save_snapshot(Snapshot(image.position, data))
        except (StoreUnavailable, StoreFailed) as error:
            logger.warning("metadata snapshot not written reason=%s", error)  # the journal is complete without it
        else:
            self._snapshot_bytes = len(data)

    async def stop(self) -> None:
        """Cancel the snapshot that is being written, if there is one."""
        await cancel_and_wait(self._snapshot_task)


def _decode(data: bytes, position: int) -> list[JournalRecord]:
    return records.decode(data, position).records


def _apply(builder: ImageBuilder, decoded: list[JournalRecord], position: int) -> None:
    """Apply the records of one stored entry or snapshot. Raises JournalError."""
    try:
        builder.apply(decoded)
    except (LookupError, AssertionError) as error:
        raise _contradiction(position, error) from error


def _missing(position: int) -> JournalError:
    return JournalError(f"metadata entry {position} is missing")


def _contradiction(position: int, error: Exception) -> JournalError:
    return JournalError(f"metadata entry {position} contradicts the entries before it: {error!r}")
