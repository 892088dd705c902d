"""The times of the records themselves, for where a batch's header cannot be taken at its word.

Kafka works the largest timestamp of every batch out from its records. Tidelog does so only where the header contradicts
itself, or where something would be done because of what it says: see `docs/conformance.md` for what is trusted.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    COUNT,
    MAX_TIMESTAMP,
    Fields,
    batches,
)
from tidelog.log.errors import CorruptLog
from tidelog.wire.batches import DECOMPRESSED_BYTES_MAX, TIMESTAMP_TYPE_BIT, BatchHeader
from tidelog.wire.primitives import MalformedMessage, read_varint, read_varlong
from tidelog.wire.records import plain_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.runtime.interfaces import Apart, Buffer, File

NO_TIMESTAMP = -1
DELETE_HORIZON_BIT = 0x40
AHEAD_MS = 3_600_000
"""A header may say a time so far after the present, which is Kafka's default of message.timestamp.after.max.ms."""
INLINE_RECORDS_MAX = 4000
INLINE_BYTES_MAX = 1 << 20
"""Looked at on the loop, or while a log is opened: some ms."""


def contradicts_itself(header: BatchHeader) -> bool:
    """Whether a client's header cannot be right: a time is missing, or the largest is before the first.

    Zero counts as missing: librdkafka states a largest timestamp of 0 when no record has a timestamp. A single record
    has one time.
    """
    first, largest = header.base_timestamp, header.max_timestamp
    return first <= 0 or (first != largest and (first > largest or header.count == 1))


def largest_timestamp(data: bytes, count: int, base_timestamp: int) -> int:
    """Of `count` records in `data`, decompressed; NO_TIMESTAMP when none is later. Raises MalformedMessage.

    Only the lengths and times of records are read.
    """
    largest = NO_TIMESTAMP - base_timestamp
    size = len(data)
    position = 0
    try:
        for _ in range(count):
            length = data[position]
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
                position += 1
            else:
                length, position = read_varint(data, position)
            end = position + length
            delta, after = data[position + 1], position + 2
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, after = read_varlong(data, position + 1)
            if after > end or end > size:
                raise MalformedMessage(f"record batch: a record of {length} bytes with {size - position} left")
            if delta > largest:
                largest = delta
            position = end
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    return base_timestamp + largest


def stated_or_looked_at(file: "File", position: int, size: int, fields: Fields) -> int:
    """The largest timestamp of a batch in a log: its header's, or that of its records where the header's cannot be
    right.

    Kafka and Tidelog correct the header before they write a batch. Earlier versions of Tidelog did not.
    """
    return looked_at(file, position, size, fields) if _cannot_be_right(fields) else fields[MAX_TIMESTAMP]


def looked_at(file: "File", position: int, size: int, fields: Fields) -> int:
    """The largest timestamp of a batch's records; its header's where there is too much to look at on the loop."""
    if fields[COUNT] > INLINE_RECORDS_MAX or size > INLINE_BYTES_MAX:
        return fields[MAX_TIMESTAMP]
    found = _of_records(file.pread(size, position), INLINE_BYTES_MAX)
    return fields[MAX_TIMESTAMP] if found is None else found


def latest_of(batch: "Buffer", fields: Fields) -> int:
    """As `stated_or_looked_at`, of a batch in memory."""
    found = _of_records(batch, INLINE_BYTES_MAX) if _cannot_be_right(fields) else None
    return fields[MAX_TIMESTAMP] if found is None else found


def _cannot_be_right(fields: Fields) -> bool:
    stated = fields[MAX_TIMESTAMP]
    return (
        (stated == 0 or stated < fields[BASE_TIMESTAMP])
        and fields[COUNT] > 0
        and not fields[ATTRIBUTES] & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)  # the first time is not a record's
    )


def _of_records(batch: "Buffer", bytes_max: int) -> int | None:
    """The largest timestamp of the records of a batch; None when they cannot be decoded."""
    header = BatchHeader(batch)
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return header.max_timestamp
    try:
        return largest_timestamp(plain_records(batch, header, bytes_max), header.count, header.base_timestamp)
    except ValueError:
        return None


# Whole segments, beside the broker


class SegmentPart(NamedTuple):
    """The batches from `position` to `end` of a segment's file."""

    path: str
    base_offset: int
    position: int
    end: int

    def encode(self) -> bytes:
        return json.dumps(self).encode()


class FoundTimes(NamedTuple):
    """`latest`: the largest timestamp of all records that could be decoded. `stated`: that of the headers of others.

    `damage`: why the rest was not looked at; empty when everything was.
    """

    latest: int
    stated: int
    damage: str

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, content: bytes) -> "FoundTimes":
        """Raises ValueError, TypeError."""
        return cls(*json.loads(content))


def find_times(file: "File", part: SegmentPart) -> FoundTimes:
    """Look at every record of a part of a segment. Takes about a second for a million records. Raises OSError."""
    latest = stated = NO_TIMESTAMP
    try:
        for _, batch, fields in batches(file, part.position, part.end, part.base_offset):
            if not fields[COUNT]:
                continue
            found = _of_records(batch, DECOMPRESSED_BYTES_MAX)
            if found is None:
                stated = max(stated, fields[MAX_TIMESTAMP])
            else:
                latest = max(latest, found)
    except CorruptLog as error:
        return FoundTimes(latest, stated, str(error))
    return FoundTimes(latest, stated, "")


def find_times_apart(apart: "Apart", request: bytes, report: "Callable[[bytes], None]") -> None:
    """`find_times` in a process of its own: `request` is a SegmentPart, the report FoundTimes."""
    part = SegmentPart(*json.loads(request))
    file = apart.disk.open(part.path)
    try:
        report(find_times(file, part).encode())
    finally:
        file.close()
