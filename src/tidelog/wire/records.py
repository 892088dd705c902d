"""Decode and encode record batches (magic 2) with their records. Source: KIP-98.

The broker usually forwards batches unchanged and reads only their headers (`batches.py`). This module is for code that
needs the records: the readers of internal topics, `tidelog log` and clients. Validation and searches for a timestamp
use this module only to decompress the records. They read the decompressed records with `record_facts.py`.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TypeAlias

from tidelog.wire.batches import (
    CONTROL_BIT,
    DECOMPRESSED_BYTES_MAX,
    HEADER_BYTES,
    LEAST_RECORD_BYTES,
    LENGTH_END,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
)
from tidelog.wire.checksums import crc32c
from tidelog.wire.primitives import Buffer, MalformedMessage, read_varint, read_varlong, varint, wrong_record_length

Header: TypeAlias = tuple[str, bytes | None]

NO_TIMESTAMP = -1

_BATCH = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POSITION = 17
_CRC_START = 21
_NULL_LENGTH = b"\1"
"""The varint of -1, which is the length of a null key, value or header value."""
_VARINTS = tuple(varint(value) for value in (*range(64), *range(-64, 0)))
"""The encoded varints of one byte, for the values -64 to 63. A value is the index of its varint: a negative value
counts from the end of the tuple."""
_new_object = object.__new__


class WrongRecordCount(MalformedMessage):
    """The batch does not hold the number of records that its header states."""


class BytesAfterRecords(WrongRecordCount):
    """Bytes follow the last of the records that the batch's header states."""


class Record:
    """One record. `timestamp` is in ms. `key` and `value` may be None. The order of headers matters, and header
    names may repeat.
    """

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        key: bytes | None = None,
        value: bytes | None = None,
        timestamp: int = NO_TIMESTAMP,
        headers: Sequence[Header] = (),
        offset: int = 0,
    ) -> None:
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.headers = headers
        self.offset = offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.offset, self.timestamp, self.key, self.value, list(self.headers)) == (
            other.offset,
            other.timestamp,
            other.key,
            other.value,
            list(other.headers),
        )

    def __repr__(self) -> str:
        """Show only the sizes of key and value, because they may hold user data or secrets."""
        key = "null" if self.key is None else f"{len(self.key)} bytes"
        value = "null" if self.value is None else f"{len(self.value)} bytes"
        return f"Record(offset={self.offset}, timestamp={self.timestamp}, key={key}, value={value})"


def batches_in(buffer: Buffer, position: int = 0) -> Iterator[BatchHeader]:
    """Yield the headers of the complete batches from `position` on. `buffer` contains batches one after another: the
    records of a fetch response or of a segment.

    Stops before an incomplete batch, which may be the last one of a fetch response. Raises MalformedMessage for a
    length below the minimum and for a magic other than 2. Kafka 4 no longer writes message sets of magic 0 and 1.
    """
    while len(buffer) - position >= HEADER_BYTES:
        header = BatchHeader(buffer, position)
        _check_header(header)
        if position + header.size > len(buffer):
            return
        yield header
        position += header.size


def decompressed_records(batch: Buffer, header: BatchHeader, limit_bytes: int) -> bytes:
    """Return the decompressed bytes of all records of the complete `batch`.

    Raises BrokenStream if the compressed data is damaged, TooLargeDecompressed above the limit, MalformedMessage for
    an unknown codec, and WrongRecordCount if the number of records that the header states is negative, or more than
    the bytes can hold.
    """
    data: Buffer = memoryview(batch)[HEADER_BYTES : header.size]
    if header.codec != Codec.NONE:
        from tidelog.wire.compression import decompress

        data = decompress(header.codec, data, limit_bytes)
    if not 0 <= header.count <= len(data) // LEAST_RECORD_BYTES:
        raise WrongRecordCount(f"record batch: {len(data)} bytes cannot hold {header.count} records")
    return bytes(data)


def decode_records(buffer: Buffer, position: int = 0, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Decode all records of the batch at `position`, with absolute offsets and timestamps.

    The CRC is not checked: see `BatchHeader.crc_ok`. Raises TooLargeDecompressed if the records have more than
    `limit_bytes` after decompression. Raises MalformedMessage if there is no complete batch of magic 2 at
    `position`, if its compressed data or a record is damaged, or if its number of records differs from the header.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise MalformedMessage("record batch: cut short")
    header = BatchHeader(buffer, position)
    _check_header(header)
    if position + header.size > len(buffer):
        message = f"record batch: the header states {header.size} bytes, but only {len(buffer) - position} follow"
        raise MalformedMessage(message)
    data = decompressed_records(memoryview(buffer)[position:], header, limit_bytes)
    try:
        return _decode(header, data)
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None


def _check_header(header: BatchHeader) -> None:
    if header.magic != MAGIC:
        raise MalformedMessage(f"record batch: message format {header.magic} is not supported")
    if header.size < HEADER_BYTES:
        raise MalformedMessage(f"record batch: the length {header.length} is below the minimum")


def _decode(header: BatchHeader, data: bytes) -> list[Record]:
    """Decode the records in the decompressed `data`. Nearly all varints are short, so short ones are decoded inline."""
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    records: list[Record] = []
    size = len(data)
    p = 0
    for _ in range(header.count):
        if p == size:
            raise WrongRecordCount(f"record batch: {len(records)} records, but the header states {header.count}")
        length, p = read_varint(data, p)
        end = p + length
        if end > size or length < 0:
            raise wrong_record_length(length, size - p)
        record = _new_object(Record)
        p += 1  # skip the record's attributes, which are unused
        n, m = data[p], data[p + 1]
        if n < 128:
            n = n >> 1 ^ -(n & 1)
            p += 1
        elif m < 128:
            n = n >> 1 & 63 ^ -(n & 1) ^ m << 6
            p += 2
        else:
            n, p = read_varlong(data, p)
        record.timestamp = base_timestamp + n if append_time is None else append_time
        n, m = data[p], data[p + 1]
        if n < 128:
            n = n >> 1 ^ -(n & 1)
            p += 1
        elif m < 128:
            n = n >> 1 & 63 ^ -(n & 1) ^ m << 6
            p += 2
        else:
            n, p = read_varint(data, p)
        record.offset = base_offset + n
        n = data[p]
        if n < 128:
            n = n >> 1 ^ -(n & 1)
            p += 1
        else:
            n, p = read_varint(data, p)
        if n < 0:
            record.key = None
        else:
            record.key = data[p : p + n]
            p += n
        n = data[p]
        if n < 128:
            n = n >> 1 ^ -(n & 1)
            p += 1
        else:
            n, p = read_varint(data, p)
        if n < 0:
            record.value = None
        else:
            record.value = data[p : p + n]
            p += n
        if data[p]:
            record.headers, p = _decode_headers(data, p, end)
        else:
            record.headers = []
            p += 1
        if p != end:
            raise MalformedMessage("record batch: a record does not have the length that it states")
        records.append(record)
    if p != size:
        raise BytesAfterRecords(f"record batch: {size - p} bytes after the last of {header.count} records")
    return records


def _decode_headers(data: bytes, p: int, end: int) -> tuple[list[Header], int]:
    count, p = read_varint(data, p)
    if not 0 <= count <= end - p:
        raise MalformedMessage(f"record batch: {end - p} bytes cannot hold {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        size, p = read_varint(data, p)
        if size < 0:
            raise MalformedMessage("record batch: a header has no name")
        # Names should be UTF-8, but other bytes must survive decoding and encoding.
        name = data[p : p + size].decode("utf-8", "surrogateescape")
        p += size
        size, p = read_varint(data, p)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[p : p + size]))
            p += size
    return headers, p


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = Codec.NONE,
    log_append_time_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """Encode a batch of at least one record, with its CRC.

    Offsets are assigned from `base_offset` on; `Record.offset` is ignored. If `log_append_time_ms` is set, the batch
    has the timestamp type LogAppendTime, and this time as its max timestamp. The result is writable, so that
    `BatchHeader.assign` can change it.
    """
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp
    parts: list[bytes] = []
    for delta, record in enumerate(records):
        encoded = _encode_record(record, record.timestamp - base_timestamp, delta)
        parts += (_varint(len(encoded)), encoded)
    data: Buffer = b"".join(parts)
    attributes = int(codec)
    max_timestamp = max(record.timestamp for record in records)
    if log_append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_BIT
        max_timestamp = log_append_time_ms
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_control:
        attributes |= CONTROL_BIT
    if codec != Codec.NONE:
        from tidelog.wire.compression import compress

        data = compress(codec, data)
    batch = bytearray(HEADER_BYTES)
    _BATCH.pack_into(
        batch,
        0,
        base_offset,
        HEADER_BYTES - LENGTH_END + len(data),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += data
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[_CRC_START:]))
    return batch


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """Encode a record, without its length field."""
    key, value = record.key, record.value
    parts = [
        b"\0",  # the record's attributes, which are unused
        _varint(timestamp_delta),
        _varint(offset_delta),
        _NULL_LENGTH if key is None else _varint(len(key)),
        key or b"",
        _NULL_LENGTH if value is None else _varint(len(value)),
        value or b"",
        _varint(len(record.headers)),
    ]
    for name, content in record.headers:
        raw = name.encode("utf-8", "surrogateescape")
        parts += (_varint(len(raw)), raw)
        parts += (_NULL_LENGTH,) if content is None else (_varint(len(content)), content)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    return _VARINTS[value] if -64 <= value < 64 else varint(value)
