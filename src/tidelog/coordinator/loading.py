"""Load a coordinator's partition: read its log from start to end in pieces of bounded size, and replay the records
into a core.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordinator.decision import LoadOrder, Producer
from tidelog.log.errors import CorruptLog
from tidelog.wire.batches import COMMIT, BatchHeader
from tidelog.wire.errors import CorruptMessage
from tidelog.wire.messages.control_records import ControlRecordTypeSchema
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, decode_records

if TYPE_CHECKING:
    from typing import Any, Protocol

    from tidelog.log.reader import ColdRead, Slice
    from tidelog.runtime.interfaces import Tasks

    class ReplayCore(Protocol):
        """The part of a core that a load uses."""

        def decode(self, key: bytes, value: bytes | None) -> Any:
            """Decode a record. Returns None for an unknown kind of record. Raises MalformedMessage."""

        @property
        def load_order(self) -> LoadOrder: ...
        def replay(self, record: Any, next_offset: int) -> None: ...
        def replay_pending(
            self, record: Any, next_offset: int, producer: Producer, record_offset: int, *, is_superseded: bool
        ) -> None:
            """Replay a record of an open transaction. With LoadOrder.ALL_IN_ORDER, the transaction's end may follow
            later in the log. Otherwise, the transaction is still open at the end of the log.
            """

        def end_transaction(self, producer: Producer, next_offset: int, *, is_commit: bool) -> None:
            """Replay the marker of a transaction. A load calls this only if `load_order` is ALL_IN_ORDER."""

    class LogView(Protocol):
        """The part of a partition's log that a load uses."""

        @property
        def log_start_offset(self) -> int: ...
        @property
        def log_end_offset(self) -> int: ...
        def cold_read(self, start: int, bytes_max: int) -> "ColdRead | None": ...
        def read(self, start: int, bytes_max: int, end_offset: int) -> "Slice": ...


logger = logging.getLogger("tidelog.coordinator")

READ_BYTES_MAX = 1 << 20
"""Upper bound on the size of one read, in bytes. A batch that is larger is still read as a whole."""
RECORDS_PER_TURN = 200
"""Number of records after which the loader yields to the event loop."""


class Loader:
    """One load of a partition.

    The core's `load_order` says which records are replayed. For LAST_OF_EACH_KEY, only the last committed record of
    each key is decoded and replayed, since the topic is compacted. The last record is the one with the highest offset.
    The position of the marker that commits a record does not matter (KIP-98). The records of transactions that are
    still open at the end of the log are replayed after all others.
    """

    def __init__(self, name: str, log: "LogView", core: "ReplayCore", tasks: "Tasks") -> None:
        self._name = name
        self._log = log
        self._core = core
        self._tasks = tasks
        self._replays_all = core.load_order is LoadOrder.ALL_IN_ORDER
        self._unknown_count = 0
        """Number of records of unknown kinds."""
        self._latest_records: dict[bytes, StoredRecord] = {}
        self._open_transactions: dict[int, _OpenTransaction] = {}
        """The transactions whose end has not been read yet, by producer id."""
        self._latest_during_transactions: dict[bytes, StoredRecord] = {}
        """For each key, the last of the records that were committed while a transaction of another producer was open.
        The dict is emptied when no transaction is open."""
        self._deleted_during_transactions: dict[bytes, int] = {}
        """For each key, the offset of the last tombstone that was committed while a transaction of another producer was
        open. This dict, too, is emptied when no transaction is open."""
        self._records_in_turn = 0
        self.records = 0
        """Number of records read so far."""
        self.next_offset = log.log_start_offset
        """The log was replayed up to this offset (exclusive end)."""

    async def run(self, still_wanted: Callable[[], bool]) -> None:
        """Replay the log up to its end. Returns early when `still_wanted` returns False.

        Raises CorruptLog, ApiError or OSError.
        """
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset and still_wanted():
            cold = self._log.cold_read(offset, READ_BYTES_MAX)
            if cold is not None:  # the headers of the batches have to be read from the disk
                await self._tasks.run_blocking(cold.run)
                if not still_wanted():
                    return
            piece = self._log.read(offset, READ_BYTES_MAX, self._log.log_end_offset)
            if piece.file is None:
                break
            file, position, size = piece.file, piece.position, piece.size
            if file.resident(position, size):
                data = file.pread(size, position)
            else:
                data = await self._tasks.run_blocking(file.pread, size, position)
            if len(data) < size:
                raise CorruptLog(file.path, position + len(data), "the file ends inside a batch")
            offset = await self._read_batches(data, file.path, position)
        if still_wanted():
            await self._replay(offset)
            await self._replay_open_transactions(offset)
            self.next_offset = offset
            if self._unknown_count:
                logger.warning(
                    "records of unknown kinds are ignored partition=%s count=%d", self._name, self._unknown_count
                )

    async def _read_batches(self, data: bytes, path: str, file_position: int) -> int:
        """Process the batches in `data`. Return the offset after the last batch."""
        position = 0
        next_offset = 0
        while position < len(data):
            try:
                header = BatchHeader(data, position)
                if header.size > len(data) - position:
                    raise CorruptMessage(
                        f"the batch states a size of {header.size} bytes, but only {len(data) - position} follow"
                    )
                if not header.crc_ok():
                    raise CorruptMessage("the batch's CRC-32C is wrong")
                next_offset = header.next_offset
                self._read_batch(data, header, path, file_position)
            except (CorruptMessage, MalformedMessage) as error:
                raise CorruptLog(path, file_position + position, str(error)) from error
            position += header.size
            await self._yield_after(header.count)
        return next_offset

    def _read_batch(self, data: bytes, header: BatchHeader, path: str, file_position: int) -> None:
        records = decode_records(data, header.position)
        self.records += len(records)
        producer = Producer(header.producer_id, header.producer_epoch)
        if self._replays_all:
            self._replay_batch(records, header, producer)
            return
        if header.is_control:
            for record in records:
                self._end_transaction(producer.producer_id, record)
            return
        batch_position = file_position + header.position
        if header.is_transactional:
            transaction = self._open_transactions.get(producer.producer_id)
            if transaction is None:
                transaction = self._open_transactions[producer.producer_id] = _OpenTransaction(producer, [])
            transaction.records.extend(
                StoredRecord(_key(record), record.value, record.offset, path, batch_position) for record in records
            )
        else:
            for record in records:
                self._set_latest(StoredRecord(_key(record), record.value, record.offset, path, batch_position))

    def _end_transaction(self, producer_id: int, marker: Record) -> None:
        is_commit = _is_commit(marker)
        transaction = self._open_transactions.pop(producer_id, None)
        if transaction is not None and is_commit:
            for stored in transaction.records:
                latest = self._latest_during_transactions.get(stored.key)
                if latest is None or latest.offset < stored.offset:
                    self._set_latest(stored)
        if not self._open_transactions:
            self._latest_during_transactions.clear()
            self._deleted_during_transactions.clear()

    def _set_latest(self, stored: "StoredRecord") -> None:
        if self._open_transactions:
            self._latest_during_transactions[stored.key] = stored
            if stored.value is None:
                self._deleted_during_transactions[stored.key] = stored.offset
        if stored.value is None:
            self._latest_records.pop(stored.key, None)
        else:
            self._latest_records[stored.key] = stored

    def _replay_batch(self, records: list[Record], header: BatchHeader, producer: Producer) -> None:
        """Replay a batch exactly as it was replayed after its append. Raises MalformedMessage."""
        next_offset = header.next_offset
        for record in records:
            if header.is_control:
                self._core.end_transaction(producer, next_offset, is_commit=_is_commit(record))
                continue
            decoded = self._core.decode(_key(record), record.value)
            if decoded is None:
                self._unknown_count += 1
            elif header.is_transactional:
                self._core.replay_pending(decoded, next_offset, producer, record.offset, is_superseded=False)
            else:
                self._core.replay(decoded, next_offset)

    async def _replay(self, next_offset: int) -> None:
        for stored in self._latest_records.values():
            try:
                record = self._core.decode(stored.key, stored.value)
            except MalformedMessage as error:
                raise CorruptLog(stored.path, stored.position, str(error)) from error
            if record is None:
                self._unknown_count += 1
            else:
                self._core.replay(record, next_offset)
            await self._yield_after(1)

    async def _replay_open_transactions(self, next_offset: int) -> None:
        for producer, records in self._open_transactions.values():
            for stored in records:
                if self._deleted_during_transactions.get(stored.key, -1) > stored.offset:
                    continue
                latest = self._latest_during_transactions.get(stored.key)
                is_superseded = latest is not None and latest.offset > stored.offset
                try:
                    record = self._core.decode(stored.key, stored.value)
                except MalformedMessage as error:
                    raise CorruptLog(stored.path, stored.position, str(error)) from error
                if record is None:
                    self._unknown_count += 1
                elif stored.value is not None:
                    self._core.replay_pending(record, next_offset, producer, stored.offset, is_superseded=is_superseded)
                await self._yield_after(1)

    async def _yield_after(self, records: int) -> None:
        self._records_in_turn += records
        if self._records_in_turn >= RECORDS_PER_TURN:
            self._records_in_turn = 0
            await self._tasks.sleep(0)


class StoredRecord(NamedTuple):
    """A record in the log. `path` is the log file, and `position` is where the record's batch begins in this file."""

    key: bytes
    value: bytes | None
    offset: int
    path: str
    position: int


class _OpenTransaction(NamedTuple):
    producer: Producer
    records: list[StoredRecord]


def _is_commit(marker: Record) -> bool:
    kind, _ = ControlRecordTypeSchema.decode(_key(marker), 2, 0)
    return bool(kind.type == COMMIT)


def _key(record: Record) -> bytes:
    if record.key is None:
        raise MalformedMessage("a coordinator's record has no key")
    return record.key
