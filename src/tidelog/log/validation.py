"""What a topic's settings ask of a client's batch beyond its framing: size, timestamps, and on demand every record.

Kafka 4.3's rules. The header tells a batch's base and largest timestamp; the records are decoded only where that is not
enough: `record.validation=full`, compacted topics, where a record without a key may not be, and to name what is
refused.
"""

from struct import Struct
from typing import TYPE_CHECKING

from tidelog.wire.batches import TIMESTAMP_TYPE_BIT
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ApiError, ErrorCode, InvalidRecord, RecordListTooLarge, RecordTooLarge
from tidelog.wire.records import WrongRecordCount, decode_records

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.wire.batches import BatchHeader
    from tidelog.wire.records import Record

NO_TIMESTAMP = -1
RECORD_ERRORS_MAX = 1000
"""Of one answer, where a whole batch is refused without a look at its records."""
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_CRC = Struct(">I")
_CRC_AT = 17


class RefusedRecords(ApiError):
    """Some records of a batch are not taken. `record_errors`: (index in the batch, message), as Produce v8+ answers."""

    def __init__(self, message: str, code: ErrorCode, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(message, code)
        self.record_errors = record_errors


def check_client_batch(batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int) -> int:
    """Check a batch that `check_produced` has passed against the topic's settings; the append time, -1 for CreateTime.

    May write into `batch` and `header`: timestamp type and largest timestamp, with a new CRC. Raises the ApiError to
    answer with.
    """
    if header.size > config.max_message_bytes:
        raise too_large(f"{header.size} bytes", config.max_message_bytes)
    if header.size > config.segment_bytes:
        raise RecordListTooLarge(
            f"the record batch has {header.size} bytes and the topic's segment.bytes is {config.segment_bytes}: "
            "a batch lies in one segment; raise it, or send smaller batches (producer: batch.size)"
        )
    full = config.record_validation == "full"
    records = None
    if full or config.compacts:
        records = _decode(batch, header)
        if full:
            _check_offsets(records, header)
        if config.compacts:
            _check_keys(records)
    if config.message_timestamp_type == "LogAppendTime":
        if header.attributes & TIMESTAMP_TYPE_BIT:
            _refuse_append_time(header)
        _stamp(batch, header, header.attributes | TIMESTAMP_TYPE_BIT, now_ms)
        return now_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    max_timestamp = header.max_timestamp
    if full or not _in_range(header, earliest, latest):
        if records is None:
            records = _decode(batch, header)
        _check_timestamps(records, header, earliest, latest)
        # The header may lie: what its records say is what time indexes and clients go by.
        max_timestamp = max(record.timestamp for record in records)
    elif header.attributes & TIMESTAMP_TYPE_BIT and max_timestamp == NO_TIMESTAMP:
        _check_timestamps(_decode(batch, header), header, earliest, latest)
    _stamp(batch, header, header.attributes & ~TIMESTAMP_TYPE_BIT, max_timestamp)
    return -1


def too_large(what: str, limit: int) -> RecordTooLarge:
    """What to answer when a batch of `what` is beyond max.message.bytes."""
    return RecordTooLarge(
        f"the record batch has {what} and the topic's max.message.bytes is {limit}: raise it "
        "(tidelog topic config TOPIC --set max.message.bytes=N; for all topics the broker's message.max.bytes), "
        "or send less at once (producer: batch.size, compression.type)"
    )


def _in_range(header: "BatchHeader", earliest: int, latest: int) -> bool:
    """By the header alone. With the type LogAppendTime every record has the largest timestamp."""
    if header.attributes & TIMESTAMP_TYPE_BIT or header.base_timestamp == NO_TIMESTAMP:
        least = header.max_timestamp
    else:
        least = header.base_timestamp
    return (earliest <= least or least == NO_TIMESTAMP) and header.max_timestamp <= latest


def _decode(batch: memoryview, header: "BatchHeader") -> "list[Record]":
    try:
        records = decode_records(batch, 0)
    except WrongRecordCount as error:
        raise InvalidRecord(str(error)) from error
    except ValueError as error:
        # Kafka's own answer to records that are garbage under a good checksum.
        raise ApiError(f"the records cannot be decoded: {error}", ErrorCode.UNKNOWN_SERVER_ERROR) from error
    if len(records) != header.count:
        raise InvalidRecord(f"the record batch states {header.count} records and holds {len(records)}")
    return records


def _check_offsets(records: "list[Record]", header: "BatchHeader") -> None:
    for index, record in enumerate(records):
        if record.offset != header.base_offset + index:
            delta = record.offset - header.base_offset
            raise InvalidRecord(f"record {index} of the batch has offset delta {delta}: they must count from 0")


def _check_keys(records: "list[Record]") -> None:
    without = [index for index, record in enumerate(records) if record.key is None]
    if without:
        message = "a record without a key cannot go to a compacted topic"
        raise RefusedRecords(
            f"{len(without)} of {len(records)} records are refused: {message}",
            ErrorCode.INVALID_RECORD,
            [(index, message) for index in without],
        )


def _refuse_append_time(header: "BatchHeader") -> None:
    message = "the broker sets the append time here; a producer may not"
    raise RefusedRecords(
        f"the batch is refused: {message}",
        ErrorCode.INVALID_TIMESTAMP,
        [(index, message) for index in range(min(header.count, RECORD_ERRORS_MAX))],
    )


def _check_timestamps(records: "list[Record]", header: "BatchHeader", earliest: int, latest: int) -> None:
    refused = []
    for index, record in enumerate(records):
        if record.timestamp == NO_TIMESTAMP:
            if header.attributes & TIMESTAMP_TYPE_BIT:
                refused.append((index, "a producer may not say LogAppendTime for a record without a timestamp"))
        elif not earliest <= record.timestamp <= latest:
            refused.append((index, f"timestamp {record.timestamp} is not within {earliest}..{latest}"))
    if refused:
        raise RefusedRecords(
            f"{len(refused)} of {len(records)} records are refused for their timestamps",
            ErrorCode.INVALID_TIMESTAMP,
            refused,
        )


def _stamp(batch: memoryview, header: "BatchHeader", attributes: int, max_timestamp: int) -> None:
    """Write timestamp type and largest timestamp, if they are not there already, and the CRC over them."""
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return
    header.attributes = attributes
    header.max_timestamp = max_timestamp
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    header.crc = crc32c(batch[_ATTRIBUTES_AT:])
    _CRC.pack_into(batch, _CRC_AT, header.crc)
