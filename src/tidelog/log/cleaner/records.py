"""Split a batch into records without decoding them fully, and rebuild it with some of its records. Pure.

A rebuilt batch contains only the kept records (perhaps all, or none), and its header states their number. Its offsets,
sequences and epochs are not changed. If records remain, its codec is not changed either. The base timestamp of a batch
may be its delete horizon, which is the time until which its tombstones are kept. In this case, a flag in the attributes
is set (KIP-534). The other flags are not changed. The timestamps of records are always relative to the base timestamp.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from tidelog.log.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    HEADER,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Fields,
)
from tidelog.wire.batches import (
    CODEC_MASK,
    CONTROL_BIT,
    DECOMPRESSED_BYTES_MAX,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
)
from tidelog.wire.checksums import crc32c
from tidelog.wire.primitives import MalformedMessage, read_varint, read_varlong, varint, wrong_record_length
from tidelog.wire.record_facts import INT64_MAX, INT64_MIN
from tidelog.wire.records import NO_TIMESTAMP, BytesAfterRecords

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Buffer

INT32_MAX = (1 << 31) - 1

RawRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bool, int]
"""(start, position of the offset delta, timestamp delta, offset delta, key, whether the record has a value, end).
The positions are in the decompressed records of the batch."""

_CRC = Struct(">I")
_CRC_AT = 17
"""Position of the CRC in a batch."""
_CRC_FROM = 21
"""Position of the first byte that the CRC covers. The CRC covers all bytes from there to the end of the batch."""


def delete_horizon(fields: Fields) -> int | None:
    """Return the time in ms from which the batch's tombstones and markers may be removed; None if no pass has set
    this time.
    """
    return fields[BASE_TIMESTAMP] if fields[ATTRIBUTES] & DELETE_HORIZON_BIT else None


def decompressed_records(batch: "Buffer", fields: Fields) -> bytes:
    """Return the batch's records, decompressed. Raises MalformedMessage."""
    data: Buffer = memoryview(batch)[HEADER_BYTES:]
    codec = fields[ATTRIBUTES] & CODEC_MASK
    if codec != Codec.NONE and fields[COUNT]:
        from tidelog.wire.compression import decompress

        data = decompress(codec, data, DECOMPRESSED_BYTES_MAX)
    return bytes(data)


def raw_records(data: bytes, count: int, last_offset_delta: int = INT32_MAX) -> Iterator[RawRecord]:
    """Yield each of the `count` records in `data`.

    Raises MalformedMessage unless `data` contains exactly these records, with ascending offset deltas up to
    `last_offset_delta`. The offset map relies on offsets that ascend from record to record, also across batches.

    Values and headers are skipped. Short varints are decoded inline, because nearly all varints have one byte (an
    offset delta has one or two).
    """
    size = len(data)
    position = 0
    previous = -1
    try:
        for _ in range(count):
            start = position
            number = data[position]
            if number < 128:
                number = number >> 1 ^ -(number & 1)
                position += 1
            else:
                number, position = read_varint(data, position)
            end = position + number
            if end > size or number < 0:
                raise wrong_record_length(number, size - position)
            position += 1  # the record's attributes, which are unused
            number = data[position]
            if number < 128:
                timestamp_delta = number >> 1 ^ -(number & 1)
                position += 1
            else:
                timestamp_delta, position = read_varlong(data, position)
            offset_position = position
            number, next_byte = data[position], data[position + 1]
            if number < 128:
                offset_delta = number >> 1 ^ -(number & 1)
                position += 1
            elif next_byte < 128:
                offset_delta = number >> 1 & 63 ^ -(number & 1) ^ next_byte << 6
                position += 2
            else:
                offset_delta, position = read_varint(data, position)
            if not previous < offset_delta <= last_offset_delta:
                raise MalformedMessage(
                    f"record batch: the offset delta {offset_delta} of a record is not within "
                    f"{previous + 1}..{last_offset_delta}"
                )
            previous = offset_delta
            number = data[position]
            if number < 128:
                number = number >> 1 ^ -(number & 1)
                position += 1
            else:
                number, position = read_varint(data, position)
            key = None
            if number >= 0:
                key = data[position : position + number]
                position += number
            if position >= end:
                raise MalformedMessage("record batch: a record does not have the length that it states")
            # The first byte of the value's length is 1 only for the length -1, which means no value.
            has_value = data[position] != 1
            yield start, offset_position, timestamp_delta, offset_delta, key, has_value, end
            position = end
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    if position != size:
        raise BytesAfterRecords(f"record batch: {size - position} bytes after the last of {count} records")


def rebuild_batch(fields: Fields, data: bytes, kept_records: Sequence[RawRecord], horizon_ms: int | None) -> bytearray:
    """Return a new batch that contains only `kept_records`, which must not be empty. `fields` are the header fields of
    the old batch, and `data` contains its decompressed records.

    If `horizon_ms` is not None, it is a delete horizon and becomes the base timestamp. Raises MalformedMessage.
    """
    has_append_time = fields[ATTRIBUTES] & TIMESTAMP_TYPE_BIT
    old_base = fields[BASE_TIMESTAMP]
    if has_append_time:
        times = [fields[MAX_TIMESTAMP]] * len(kept_records)
    else:
        times = [old_base + record[2] for record in kept_records]
    if min(times) < INT64_MIN or max(times) > INT64_MAX:
        raise MalformedMessage(f"record batch: the timestamp {max(times, key=abs)} of a record is beyond 64 bits")
    base_timestamp = times[0] if horizon_ms is None else horizon_ms
    if base_timestamp == old_base and not has_append_time:
        records = b"".join([data[record[0] : record[6]] for record in kept_records])
    else:
        parts: list[bytes] = []
        for record, timestamp in zip(kept_records, times, strict=True):
            delta = varint(timestamp - base_timestamp)
            remaining_fields = data[record[1] : record[6]]
            parts += (varint(1 + len(delta) + len(remaining_fields)), b"\0", delta, remaining_fields)
        records = b"".join(parts)
    attributes = fields[ATTRIBUTES] & ~DELETE_HORIZON_BIT
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    codec = attributes & CODEC_MASK
    content: Buffer = records
    if codec != Codec.NONE:
        from tidelog.wire.compression import compress

        content = compress(codec, records)
    return _encode_batch(fields, attributes, base_timestamp, max(times), len(kept_records), content)


def empty_batch(fields: Fields) -> bytearray:
    """Return a batch without records in place of the batch with the header `fields`. The new batch preserves the range
    of offsets and the last sequence number.
    """
    attributes = fields[ATTRIBUTES] & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _encode_batch(fields, attributes, NO_TIMESTAMP, fields[MAX_TIMESTAMP], 0, b"")


def _encode_batch(
    fields: Fields, attributes: int, base_timestamp: int, max_timestamp: int, count: int, content: "Buffer"
) -> bytearray:
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        fields[BASE_OFFSET],
        HEADER_BYTES - LENGTH_END + len(content),
        fields[LEADER_EPOCH],
        MAGIC,
        0,
        attributes,
        fields[LAST_OFFSET_DELTA],
        base_timestamp,
        max_timestamp,
        fields[PRODUCER_ID],
        fields[PRODUCER_EPOCH],
        fields[BASE_SEQUENCE],
        count,
    )
    batch += content
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
    return batch
