"""Reading a coordinator's partition from its begin to its end, a bounded piece at a time, into a core."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.log.errors import CorruptLog
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import CorruptMessage
from tidelog.wire.messages.control_records import ControlRecordTypeSchema
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, decode_records

if TYPE_CHECKING:
    from tidelog.log.reader import Slice
    from tidelog.runtime.interfaces import Tasks

logger = logging.getLogger("tidelog.coordinator")

READ_BYTES_MAX = 1 << 20
"""Read at once. A larger batch comes whole all the same."""
RECORDS_PER_TURN = 500
"""Then the loop's other work has its turn."""
COMMIT_MARKER = 1


class ReplayCore(Protocol):
    """The part of a core that a load needs."""

    def decode(self, key: bytes, value: bytes | None) -> Any:
        """None for a kind of record that the core does not know. Raises MalformedMessage."""

    def replay(self, record: Any, next_offset: int) -> None: ...


class LogView(Protocol):
    """What a load needs of a partition's log."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    def read(self, start: int, bytes_max: int, end_offset: int) -> "Slice": ...


class Loader:
    """One load. Records of transactions count once their commit marker is read (KIP-98)."""

    def __init__(self, name: str, log: LogView, core: ReplayCore, tasks: "Tasks") -> None:
        self._name = name
        self._log = log
        self._core = core
        self._tasks = tasks
        self._open: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self._turn = 0
        self.records = 0
        self.unknown = 0

    async def run(self, still_wanted: Callable[[], bool]) -> None:
        """Replay everything below the log's end. Raises CorruptLog, ApiError or OSError; ends early if not wanted."""
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset and still_wanted():
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
            offset = await self._replay_batches(data, file.path, position)
        if self._open:
            logger.warning(
                "transactions without an end are ignored partition=%s producers=%d", self._name, len(self._open)
            )
        if self.unknown:
            logger.warning(
                "records of kinds not known here are left alone partition=%s count=%d", self._name, self.unknown
            )

    async def _replay_batches(self, data: bytes, path: str, file_position: int) -> int:
        """Returns the offset after the last batch."""
        position = 0
        next_offset = 0
        while position < len(data):
            try:
                header = BatchHeader(data, position)
                if header.size > len(data) - position:
                    raise CorruptMessage(f"the batch states {header.size} bytes, {len(data) - position} are there")
                if not header.crc_ok():
                    raise CorruptMessage("the batch's CRC-32C does not hold")
                next_offset = header.next_offset
                self._replay_batch(data, header)
            except (CorruptMessage, MalformedMessage) as error:
                raise CorruptLog(path, file_position + position, str(error)) from error
            position += header.size
            self._turn += header.count
            if self._turn >= RECORDS_PER_TURN:
                self._turn = 0
                await self._tasks.sleep(0)
        return next_offset

    def _replay_batch(self, data: bytes, header: BatchHeader) -> None:
        records = decode_records(data, header.position)
        self.records += len(records)
        if header.is_control:
            for record in records:
                self._end_transaction(header.producer_id, record, header.next_offset)
        elif header.is_transactional:
            held = self._open.setdefault(header.producer_id, [])
            held += [(_key(record), record.value) for record in records]
        else:
            for record in records:
                self._replay(_key(record), record.value, header.next_offset)

    def _end_transaction(self, producer_id: int, marker: Record, next_offset: int) -> None:
        held = self._open.pop(producer_id, [])
        kind, _ = ControlRecordTypeSchema.decode(_key(marker), 2, 0)
        if kind.type == COMMIT_MARKER:
            for key, value in held:
                self._replay(key, value, next_offset)

    def _replay(self, key: bytes, value: bytes | None, next_offset: int) -> None:
        record = self._core.decode(key, value)
        if record is None:
            self.unknown += 1
        else:
            self._core.replay(record, next_offset)


def _key(record: Record) -> bytes:
    if record.key is None:
        raise MalformedMessage("a coordinator's record has no key")
    return record.key
