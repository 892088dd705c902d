"""Records of a batch as stretches of bytes, and the batch written anew with some of them. Pure.

Offsets, sequences, epochs, codec and flags stay as they were: only records are missing then, and the header says how
many are left. A batch may tell in its base timestamp, with a flag in its attributes, until when its tombstones stay
(KIP-534); the records' own times are relative to whatever the base timestamp is.
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
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
)
from tidelog.wire.checksums import crc32c
from tidelog.wire.primitives import MalformedMessage, read_varint, read_varlong, varint
from tidelog.wire.record_facts import INT64_MAX, INT64_MIN
from tidelog.wire.records import NO_TIMESTAMP, BytesAfterRecords

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Buffer

DELETE_HORIZON_BIT = 0x40
INT32_MAX = (1 << 31) - 1

RawRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bool, int]
"""(start, where the offset delta begins, timestamp delta, offset delta, key, whether there is a value, end): positions
in the plain bytes of the batch's records.
"""

_CRC = Struct(">I")
_CRC_AT = 17
_CRC_FROM = 21


def delete_horizon(fields: Fields) -> int | None:
    """The time in ms from which the batch's tombstones and markers may go; None before a pass has set it."""
    return fields[BASE_TIMESTAMP] if fields[ATTRIBUTES] & DELETE_HORIZON_BIT else None


def plain_records(batch: "Buffer", fields: Fields) -> bytes:
    """The batch's records, decompressed. Raises MalformedMessage."""
    data: Buffer = memoryview(batch)[HEADER_BYTES:]
    codec = fields[ATTRIBUTES] & CODEC_MASK
    if codec != Codec.NONE and fields[COUNT]:
        from tidelog.wire.compression import decompress

        data = decompress(codec, data, DECOMPRESSED_BYTES_MAX)
    return bytes(data)


def raw_records(data: bytes, count: int, last_offset_delta: int = INT32_MAX) -> Iterator[RawRecord]:
    """Each of the `count` records in `data`. Raises MalformedMessage for anything but exactly those, with offsets that
    rise up to the batch's last: by any others, a record would supersede what came after it.

    Values and headers are stepped over. Varints of one and two bytes, nearly all of them, are read in line.
    """
    size = len(data)
    p = 0
    before = -1
    try:
        for _ in range(count):
            start = p
            n = data[p]
            if n < 128:
                n = n >> 1 ^ -(n & 1)
                p += 1
            else:
                n, p = read_varint(data, p)
            end = p + n
            if end > size or n < 0:
                raise MalformedMessage(f"record batch: a record of {n} bytes with {size - p} left")
            p += 1  # the attributes of a record, unused
            n = data[p]
            if n < 128:
                timestamp_delta = n >> 1 ^ -(n & 1)
                p += 1
            else:
                timestamp_delta, p = read_varlong(data, p)
            offset_at = p
            n, m = data[p], data[p + 1]
            if n < 128:
                offset_delta = n >> 1 ^ -(n & 1)
                p += 1
            elif m < 128:
                offset_delta = n >> 1 & 63 ^ -(n & 1) ^ m << 6
                p += 2
            else:
                offset_delta, p = read_varint(data, p)
            if not before < offset_delta <= last_offset_delta:
                raise MalformedMessage(
                    f"record batch: offset delta {offset_delta} follows {before}, the last is {last_offset_delta}"
                )
            before = offset_delta
            n = data[p]
            if n < 128:
                n = n >> 1 ^ -(n & 1)
                p += 1
            else:
                n, p = read_varint(data, p)
            key = None
            if n >= 0:
                key = data[p : p + n]
                p += n
            if p >= end:
                raise MalformedMessage("record batch: a record that is not of the length it states")
            # The first byte of the value's length tells whether there is one: only the varint of -1 is 1.
            has_value = data[p] != 1
            yield start, offset_at, timestamp_delta, offset_delta, key, has_value, end
            p = end
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    if p != size:
        raise BytesAfterRecords(f"record batch: {size - p} bytes after the last of {count} records")


def rebuilt(fields: Fields, data: bytes, kept: Sequence[RawRecord], horizon_ms: int | None) -> bytearray:
    """The batch of `fields` with only the `kept` of the records in `data`, at least one. `horizon_ms`: as its base
    timestamp.
    """
    append_time = fields[ATTRIBUTES] & TIMESTAMP_TYPE_BIT
    old_base = fields[BASE_TIMESTAMP]
    if append_time:
        times = [fields[MAX_TIMESTAMP]] * len(kept)
    else:
        times = [old_base + record[2] for record in kept]
    if min(times) < INT64_MIN or max(times) > INT64_MAX:
        raise MalformedMessage(f"record batch: a record of the time {max(times, key=abs)}, beyond 64 bits")
    base_timestamp = times[0] if horizon_ms is None else horizon_ms
    if base_timestamp == old_base and not append_time:
        plain = b"".join([data[record[0] : record[6]] for record in kept])
    else:
        parts: list[bytes] = []
        for record, timestamp in zip(kept, times, strict=True):
            delta = varint(timestamp - base_timestamp)
            rest = data[record[1] : record[6]]
            parts += (varint(1 + len(delta) + len(rest)), b"\0", delta, rest)
        plain = b"".join(parts)
    attributes = fields[ATTRIBUTES] & ~DELETE_HORIZON_BIT
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    codec = attributes & CODEC_MASK
    content: Buffer = plain
    if codec != Codec.NONE:
        from tidelog.wire.compression import compress

        content = compress(codec, plain)
    return _batch(fields, attributes, base_timestamp, max(times), len(kept), content)


def emptied(fields: Fields) -> bytearray:
    """The batch of `fields` without records: it says which offsets and sequences were there."""
    attributes = fields[ATTRIBUTES] & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _batch(fields, attributes, NO_TIMESTAMP, fields[MAX_TIMESTAMP], 0, b"")


def _batch(
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
