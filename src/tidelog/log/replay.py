"""Replay batches of the log into the state derived from them: producers and their transactions. Check new batches
against this state.
"""

from struct import Struct
from typing import TYPE_CHECKING

from tidelog.log.appended import Appended
from tidelog.log.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Fields,
)
from tidelog.log.errors import CorruptLog
from tidelog.wire.batches import ABORT, COMMIT, CONTROL_BIT
from tidelog.wire.errors import InvalidRecord
from tidelog.wire.records import decode_records

if TYPE_CHECKING:
    from tidelog.log.producer_state import ProducerState
    from tidelog.log.segment import Segment
    from tidelog.runtime.interfaces import Buffer
    from tidelog.wire.batches import BatchHeader

_KEY = Struct(">hh")
_END_MARKER = Struct(">hi")


def end_marker(batch: "Buffer") -> tuple[int, int] | None:
    """Return (`ABORT` or `COMMIT`, coordinator epoch) of a control batch that ends a transaction; None for other
    control batches.

    The key consists of a version and a type (int16, int16). The value consists of a version and the coordinator's
    epoch (int16, int32). Compaction may leave a control batch without records; such a batch ends no transaction.
    Raises ValueError if the batch cannot be decoded.
    """
    records = decode_records(batch, 0)
    if not records:
        return None
    record = records[0]
    if record.key is None or len(record.key) < _KEY.size:
        raise ValueError("a control record has no type")
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < _END_MARKER.size:
        raise ValueError("a transaction marker has no coordinator epoch")
    return kind, _END_MARKER.unpack_from(record.value)[1]


def index_aborted(producers: "ProducerState", segment: "Segment", fields: Fields, batch: "Buffer") -> None:
    """If `batch` is a control batch that aborts a transaction, add the transaction to the index of `segment`.

    Call this function before `replay_producer`, which ends the transaction. A new batch is indexed before it is
    written: if the disk is full, nothing has changed yet, and the marker can be written later. Raises ValueError if the
    batch cannot be decoded, and OSError.
    """
    if not fields[ATTRIBUTES] & CONTROL_BIT or fields[PRODUCER_ID] < 0:
        return
    marker = end_marker(batch)
    if marker is not None and marker[0] == ABORT:
        aborted = producers.aborted_by_marker(fields[PRODUCER_ID], fields[BASE_OFFSET])
        if aborted is not None:
            _ = segment.file  # opened first: if it cannot be opened, there must be no entry
            segment.transactions.append(aborted)


def replay_producer(producers: "ProducerState", fields: Fields, batch: "Buffer | None") -> None:
    """Apply one batch of a producer id. `batch` is needed only if it is a control batch. Before this call,
    `index_aborted` has been called with the control batch. Raises ValueError if the control batch cannot be decoded.
    """
    producer_id, epoch, base_offset = fields[PRODUCER_ID], fields[PRODUCER_EPOCH], fields[BASE_OFFSET]
    if batch is None or not fields[ATTRIBUTES] & CONTROL_BIT:
        producers.appended(
            producer_id,
            epoch,
            fields[BASE_SEQUENCE],
            base_offset,
            fields[LAST_OFFSET_DELTA],
            fields[MAX_TIMESTAMP],
            fields[ATTRIBUTES],
        )
        return
    marker = end_marker(batch)
    if marker is not None:
        kind, coordinator_epoch = marker
        producers.marker_appended(producer_id, epoch, coordinator_epoch, base_offset, fields[MAX_TIMESTAMP], kind)


def replay_batch(producers: "ProducerState", segment: "Segment", position: int, size: int, fields: Fields) -> None:
    """Apply a batch of `segment`. If it aborts a transaction, index the transaction. Raises CorruptLog, OSError."""
    if not fields[ATTRIBUTES] & CONTROL_BIT:
        replay_producer(producers, fields, None)
        return
    batch = segment.file.pread(size, position)
    try:
        index_aborted(producers, segment, fields, batch)
        replay_producer(producers, fields, batch)
    except ValueError as error:
        raise CorruptLog(segment.path, position, f"the control batch cannot be decoded: {error}") from error


def check_producer(
    producers: "ProducerState", batch: memoryview, header: "BatchHeader", log_start_offset: int
) -> Appended | None:
    """Return the answer to a repeated batch, or None if the batch may be appended. Raises ApiError if its sequence,
    producer epoch or transaction state is wrong, and InvalidRecord for a control batch that cannot be decoded.
    """
    if header.attributes & CONTROL_BIT:
        try:
            marker = end_marker(batch)
        except ValueError as error:
            message = f"the control batch of producer id {header.producer_id} cannot be decoded: {error}"
            raise InvalidRecord(message) from error
        if marker is not None:
            producers.check_marker(header.producer_id, header.producer_epoch, marker[1])
        return None
    repeated = producers.check(header)
    if repeated is None:
        return None
    return Appended(repeated.base_offset, repeated.last_offset + 1, repeated.timestamp, log_start_offset)
