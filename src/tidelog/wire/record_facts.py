"""Read the few facts that a broker needs about each record, one record after another, without storing the records.

A few KB of compressed data may decompress to millions of records. Therefore the broker validates and searches
clients' records only in this way, and within a limit of decompressed bytes. `record_facts` checks each record at least
as strictly as `records.decode_records`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.wire.batches import TIMESTAMP_TYPE_BIT, BatchHeader
from tidelog.wire.primitives import Buffer, MalformedMessage, read_varint, read_varlong, wrong_record_length
from tidelog.wire.records import BytesAfterRecords, WrongRecordCount

INT64_MAX = (1 << 63) - 1
INT64_MIN = -1 << 63


class UnreadableLength(MalformedMessage):
    """The length field of a record is not a varint of 32 bits."""


class CutShort(MalformedMessage):
    """The data ends inside a record."""


class FieldCutShort(MalformedMessage):
    """According to its length, the record ends within the data, but one of its fields extends beyond the data."""


VARINT_BYTES_MAX, VARLONG_BYTES_MAX = 5, 10
"""Longest varints of 32 and of 64 bits, in bytes."""


class RecordFacts(NamedTuple):
    """Facts about one record. `timestamp` is in ms; it is the batch's append time if the batch has one."""

    offset_delta: int
    timestamp: int
    has_key: bool


def record_facts(data: bytes, header: BatchHeader) -> Iterator[RecordFacts]:
    """Yield the facts of each record in `data`, which is the result of `records.decompressed_records`.

    Raises MalformedMessage at the first record that is malformed or that contradicts the header, and at the end if
    bytes follow the last record.
    """
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    size = len(data)
    position = 0
    try:
        for number in range(header.count):
            if position == size:
                raise WrongRecordCount(f"record batch: {number} records, but the header states {header.count}")
            length, position = _read_length(data, position)
            end = position + length
            if end > size or length < 0:
                raise wrong_record_length(length, size - position)
            delta, position = read_varlong(data, position + 1)  # after the record's attributes, which are unused
            timestamp = base_timestamp + delta if append_time is None else append_time
            if not INT64_MIN <= timestamp <= INT64_MAX:
                raise MalformedMessage(f"record batch: the timestamp {timestamp} of a record is beyond 64 bits")
            offset_delta, position = read_varint(data, position)
            key_bytes, position = read_varint(data, position)
            position += max(key_bytes, 0)
            value_bytes, position = read_varint(data, position)
            position += max(value_bytes, 0)
            position = _skip_headers(data, position, end)
            if position != end:
                raise MalformedMessage("record batch: a record does not have the length that it states")
            yield RecordFacts(offset_delta, timestamp, key_bytes >= 0)
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    if position != size:
        raise BytesAfterRecords(f"record batch: {size - position} bytes after the last of {header.count} records")


def check_records(data: Buffer, header: BatchHeader) -> None:
    """Check that `data` consists of exactly as many well-formed records as the header states.

    The fields of a record must fill exactly the length that the record states. The values of the fields are not
    checked. Raises MalformedMessage or one of its subclasses: WrongRecordCount, BytesAfterRecords, UnreadableLength,
    CutShort (also if a record extends beyond `data`) or FieldCutShort.
    """
    if not isinstance(data, bytes):
        data = bytes(data)  # single bytes are read fastest from `bytes`
    size = len(data)
    position = end = 0
    try:
        for number in range(header.count):
            if position == size:
                raise WrongRecordCount(f"record batch: {number} records, but the header states {header.count}")
            end = 0
            # Length fields of one or two bytes are decoded here, because a call would take as long as the other checks
            # of the record.
            byte = data[position]
            if byte < 0x80:
                length = byte >> 1 ^ -(byte & 1)
                position += 1
            elif (second := data[position + 1]) < 0x80:
                length = byte >> 1 & 0x3F ^ -(byte & 1) ^ second << 6
                position += 2
            else:
                length, position = _read_length(data, position)
            end = position + length
            if length < 0:
                raise MalformedMessage(f"record batch: a record states {length} bytes")
            if end > size:
                raise CutShort(f"record batch: a record states {length} bytes, but {size - position} are left")
            start = position = position + 1  # after the record's attributes, which are unused
            while data[position] >= 0x80:  # its timestamp delta
                position += 1
            if position - start >= VARLONG_BYTES_MAX:
                raise MalformedMessage("record batch: the timestamp of a record is too long")
            start = position = position + 1
            while data[position] >= 0x80:  # its offset delta
                position += 1
            if position - start >= VARINT_BYTES_MAX:
                raise MalformedMessage("record batch: the offset of a record is too long")
            position += 1
            for _ in range(2):  # key and value
                byte = data[position]
                if byte < 0x80:
                    if byte & 1:
                        position += 1  # a negative length means null
                    else:
                        position += 1 + (byte >> 1)
                else:
                    length, position = read_varint(data, position)
                    position += max(length, 0)
            position = position + 1 if not data[position] else _skip_headers(data, position, end)
            if position != end:
                raise MalformedMessage("record batch: a record does not have the length that it states")
    except IndexError:
        if not end:
            raise CutShort("record batch: the length of a record is cut short") from None
        raise FieldCutShort("record batch: a record does not have the length that it states") from None
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
        raise MalformedMessage(f"record batch: {end - position} bytes cannot hold {count} headers")
    for _ in range(count):
        name_bytes, position = read_varint(data, position)
        if name_bytes < 0:
            raise MalformedMessage("record batch: a header has no name")
        value_bytes, position = read_varint(data, position + name_bytes)
        position += max(value_bytes, 0)
    return position
