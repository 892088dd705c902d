"""What a broker has to know of each record of a batch, one after another, without making objects of them.

A few KB of compressed records may be millions: the broker looks at records of clients in this way only, within a limit
of the bytes that are decompressed. This checks all that `records.decode_records` checks.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.wire.batches import TIMESTAMP_TYPE_BIT, BatchHeader
from tidelog.wire.primitives import Buffer, MalformedMessage, read_varint, read_varlong
from tidelog.wire.records import BytesAfterRecords, WrongRecordCount

INT64_MAX = (1 << 63) - 1
INT64_MIN = -1 << 63


class UnreadableLength(MalformedMessage):
    """The length of a record is no number of 32 bits."""


class RecordFacts(NamedTuple):
    """`offset_delta` and `timestamp` (ms; the batch's append time where it has one) as the record states them."""

    offset_delta: int
    timestamp: int
    has_key: bool


def record_facts(data: bytes, header: BatchHeader) -> Iterator[RecordFacts]:
    """Of each of the records in `data`, which `records.plain_records` gave. Raises MalformedMessage for anything but
    exactly what the header states, when it is met.
    """
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    size = len(data)
    position = 0
    try:
        for number in range(header.count):
            if position == size:
                raise WrongRecordCount(f"record batch: {header.count} records stated, {number} there")
            length, position = _read_length(data, position)
            end = position + length
            if end > size or length < 0:
                raise MalformedMessage(f"record batch: a record of {length} bytes with {size - position} left")
            delta, position = read_varlong(data, position + 1)  # behind the attributes of a record, unused
            timestamp = base_timestamp + delta if append_time is None else append_time
            if not INT64_MIN <= timestamp <= INT64_MAX:
                raise MalformedMessage(f"record batch: a record of the time {timestamp}, beyond 64 bits")
            offset_delta, position = read_varint(data, position)
            key_bytes, position = read_varint(data, position)
            position += max(key_bytes, 0)
            value_bytes, position = read_varint(data, position)
            position += max(value_bytes, 0)
            position = _skip_headers(data, position, end)
            if position != end:
                raise MalformedMessage("record batch: a record that is not of the length it states")
            yield RecordFacts(offset_delta, timestamp, key_bytes >= 0)
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    if position != size:
        raise BytesAfterRecords(f"record batch: {size - position} bytes after the last of {header.count} records")


def check_record_count(data: Buffer, header: BatchHeader) -> None:
    """Step from record to record by their lengths alone.

    Raises WrongRecordCount unless the records that `header` states fill `data`, MalformedMessage for a length that
    leads out of it.
    """
    size = len(data)
    position = 0
    try:
        for number in range(header.count):
            if position == size:
                raise WrongRecordCount(f"record batch: {header.count} records stated, {number} there")
            first = data[position]
            if first < 0x80:
                length = first >> 1 ^ -(first & 1)
                position += 1
            elif (second := data[position + 1]) < 0x80:
                length = first >> 1 & 0x3F ^ -(first & 1) ^ second << 6
                position += 2
            else:
                length, position = _read_length(data, position)
            position += length
            if position > size or length < 0:
                raise MalformedMessage(f"record batch: a record of {length} bytes leads out of the batch")
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    if position != size:
        raise BytesAfterRecords(f"record batch: {size - position} bytes after the last of {header.count} records")


def _read_length(data: Buffer, position: int) -> tuple[int, int]:
    try:
        return read_varint(data, position)
    except MalformedMessage as error:
        raise UnreadableLength(f"record batch: the length of a record is {error}") from None


def _skip_headers(data: bytes, position: int, end: int) -> int:
    if not data[position]:
        return position + 1
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:
        raise MalformedMessage(f"record batch: {count} headers cannot be in {end - position} bytes")
    for _ in range(count):
        name_bytes, position = read_varint(data, position)
        if name_bytes < 0:
            raise MalformedMessage("record batch: a header without a name")
        value_bytes, position = read_varint(data, position + name_bytes)
        position += max(value_bytes, 0)
    return position
