"""The 61-byte header of record batches (magic 2). A broker handles most batches by their header alone.

    base offset 0..8 | length 8..12 | leader epoch 12..16 | magic 16 | crc 17..21 | attributes 21..23 |
    last offset delta 23..27 | base timestamp 27..35 | max timestamp 35..43 | producer id 43..51 |
    producer epoch 51..53 | base sequence 53..57 | count 57..61 | records

The CRC covers all bytes from `attributes` on, so base offset and leader epoch can be assigned without a new CRC.
Source: KIP-98.
"""

from enum import IntEnum
from struct import Struct
from struct import error as StructError

from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ApiError, CorruptMessage, ErrorCode, InvalidRecord

HEADER_BYTES = 61
LENGTH_END = 12
"""`length` counts the bytes after this position."""
MIN_LENGTH = HEADER_BYTES - LENGTH_END
"""Smallest valid value of the length field of a batch (magic 2)."""
LEAST_RECORD_BYTES = 7
"""Size of the smallest record: length, attributes, two deltas, two lengths and a header count, one byte each."""
DECOMPRESSED_BYTES_MAX = 100 * 1024 * 1024
"""Default limit of a batch's decompressed size; equal to the default of `socket.request.max.bytes`."""
RECORDS_MAX = DECOMPRESSED_BYTES_MAX // LEAST_RECORD_BYTES
"""Upper bound on the number of records that a batch header may state. A count of 2^31 would use up the offset range
of a whole segment."""
LEAST_LENGTH = 14
"""Smallest value of the length field in any message format (magic 0 to 2)."""
MAGIC = 2

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
NOT_FOR_CLIENTS = CONTROL_BIT | TRANSACTIONAL_BIT
"""Attribute bits that are refused in the batch of a client that sends no transactional id."""

ABORT, COMMIT = 0, 1
"""Types of the record in a control batch that ends a transaction."""

_HEADER = Struct(">qiibIhiqqqhii")
_ASSIGNED = Struct(">qii")
_LENGTH = Struct(">i")


class Codec(IntEnum):
    """Compression codec of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader:
    """The header of the batch at `position` of `buffer`, unpacked once.

    The constructor raises CorruptMessage if the buffer ends within the header. It does not check the values;
    `check_produced` and `crc_ok` do that.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "count",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "length",
        "magic",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "size",
    )

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    def __init__(self, buffer: bytes | bytearray | memoryview, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        try:
            (
                self.base_offset,
                self.length,
                self.leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            ) = _HEADER.unpack_from(buffer, position)
        except StructError:
            left = len(buffer) - position
            raise CorruptMessage(f"a record batch needs {HEADER_BYTES} bytes, but {left} are left") from None
        self.size = self.length + LENGTH_END
        """Size of the whole batch in bytes."""

    @property
    def codec(self) -> int:
        """A `Codec` value, or one of the undefined values 5 to 7."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def first_timestamp_ms(self) -> int | None:
        """Timestamp of the first record, which is usually the oldest. With LogAppendTime, it is the append time.
        If the timestamp is negative, the producer set no timestamp, and the result is None.

        If compaction has replaced the base timestamp by the delete horizon (KIP-534), the header does not contain the
        timestamp of the first record. The result is then the largest timestamp of the batch.
        """
        lacks_base = self.attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)
        time_ms = self.max_timestamp if lacks_base else self.base_timestamp
        return time_ms if time_ms >= 0 else None

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    def assign(self, *, base_offset: int, leader_epoch: int) -> None:
        """Write base offset and leader epoch into the buffer, which must be writable. The CRC does not cover them."""
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        _ASSIGNED.pack_into(self.buffer, self.position, base_offset, self.length, leader_epoch)

    def crc_ok(self) -> bool:
        """Return whether the checksum is correct. The buffer must hold the whole batch."""
        start = self.position
        return crc32c(memoryview(self.buffer)[start + 21 : start + self.size]) == self.crc


def check_produced(
    buffer: memoryview, *, framing_only: bool = False, refused_kinds: int = NOT_FOR_CLIENTS
) -> BatchHeader:
    """Check the header and the CRC of the batch that a client sent for one partition, and return the header.

    If the first batch is incomplete, it is refused. If a complete second batch follows, both are refused. An incomplete
    second batch is ignored, and the caller must cut the buffer at the header's `size`. With `framing_only`, only size
    and format are checked. The records are never decoded. A batch with one of the attribute bits `refused_kinds` is
    refused; for a request with a transactional id, the caller sets `refused_kinds` to CONTROL_BIT. Raises InvalidRecord
    (also for magic 0 and 1, which Kafka 4 refuses), CorruptMessage, or ApiError, with the error codes of Kafka 4.3.1.
    """
    if len(buffer) > 16 and buffer[16] != MAGIC:
        _refuse_magic(buffer[16])
    if len(buffer) < HEADER_BYTES:
        raise InvalidRecord(f"a record batch has {HEADER_BYTES} bytes or more, but {len(buffer)} were received")
    header = BatchHeader(buffer)
    if header.size != len(buffer):
        _check_size(header, buffer)
    if framing_only:
        return header
    if crc32c(buffer[21 : header.size]) != header.crc:
        raise CorruptMessage(f"the record batch's CRC-32C differs from {header.crc:#010x}, which its header states")
    count = header.count
    if count < 1 or header.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"the record batch states {count} records and a last offset delta of {header.last_offset_delta}"
        )
    if count * LEAST_RECORD_BYTES > header.size - HEADER_BYTES and (
        count > RECORDS_MAX or not header.attributes & CODEC_MASK
    ):
        raise InvalidRecord(f"the record batch of {header.size} bytes states {count} records, which it cannot hold")
    if header.base_offset:
        raise InvalidRecord(f"the record batch's base offset is {header.base_offset}; a producer must send 0")
    if header.attributes & refused_kinds:
        _refuse_kind(header, refused_kinds)
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise ApiError(f"compression codec {header.codec} is not known", ErrorCode.UNKNOWN_SERVER_ERROR)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"producer id {header.producer_id} has an invalid base sequence {header.base_sequence}")
    return header


def _refuse_kind(header: BatchHeader, refused_kinds: int) -> None:
    if header.attributes & refused_kinds & TRANSACTIONAL_BIT:
        message = "the batch belongs to a transaction, but the request has no transactional id"
        raise ApiError(message, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    raise InvalidRecord("a client may not write control batches")


def _refuse_magic(magic: int) -> None:
    if magic < MAGIC:
        message = f"message format {magic} is not supported since Kafka 4.0: use a client that writes format 2"
        raise InvalidRecord(message)
    raise CorruptMessage(f"message format {magic} is not known")


def _check_size(header: BatchHeader, buffer: memoryview) -> None:
    """Refuse a batch that is not completely in `buffer`, or that is followed by another complete batch."""
    received_bytes = len(buffer)
    if header.length < LEAST_LENGTH:
        raise CorruptMessage(f"the record batch's length {header.length} is below the minimum, {LEAST_LENGTH}")
    if header.length < MIN_LENGTH or header.size > received_bytes:
        raise InvalidRecord(
            f"the record batch states {header.size} bytes, but {received_bytes} were received; "
            f"its header alone has {HEADER_BYTES}"
        )
    remaining_bytes = received_bytes - header.size
    if remaining_bytes >= LENGTH_END:
        (length,) = _LENGTH.unpack_from(buffer, header.size + 8)
        if length + LENGTH_END <= remaining_bytes:
            raise InvalidRecord("a produce request must have exactly one record batch for each partition")
