"""Encode control batches. Their only record, a marker, ends a transaction in a partition (KIP-98)."""

from struct import Struct

from tidelog.wire.batches import ABORT, COMMIT
from tidelog.wire.messages.control_records import ControlRecordTypeSchema, EndTxnMarker
from tidelog.wire.records import Record, encode_batch

_VERSION = Struct(">h").pack(0)


def marker_batch(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_commit: bool, timestamp: int
) -> bytearray:
    """Encode the marker that commits or aborts a producer's transaction. `timestamp` is in ms."""
    key = _VERSION + ControlRecordTypeSchema(COMMIT if is_commit else ABORT).encode(0)
    value = _VERSION + EndTxnMarker(coordinator_epoch).encode(0)
    return encode_batch(
        [Record(offset=0, timestamp=timestamp, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
