"""Read the timestamps of the records themselves, in cases in which a batch's header cannot be trusted.

Kafka computes the largest timestamp of every batch from its records. Tidelog does so in three cases: if the header
contradicts itself, before an action that depends on the header's timestamp (such as a deletion or a roll), and if the
records are examined for another reason (see `validation`). `docs/conformance.md` says when the header is trusted.
"""

import json
from functools import lru_cache
from struct import Struct
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
from tidelog.wire.batches import (
    CODEC_MASK,
    DECOMPRESSED_BYTES_MAX,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from tidelog.wire.primitives import MalformedMessage, read_varint, read_varlong, varint, wrong_record_length
from tidelog.wire.records import decompressed_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.runtime.interfaces import Buffer, ChildResources, File

NO_TIMESTAMP = -1
RECORD_BYTES_MIN = 7
"""Size of the shortest record including its length field, in bytes."""
EQUAL_RECORDS_MAX = 64
"""Maximum number of records of equal size that are compared in one call. The cost of such a call grows with the number
of records."""
AHEAD_MS = 3_600_000
"""A header's timestamp is trusted only if it is at most this far in the future, in ms. This is Kafka's default of
message.timestamp.after.max.ms."""
INLINE_RECORDS_MAX = 4000
"""Maximum number of records of a batch whose records are read on the event loop or while a log is opened."""
INLINE_BYTES_MAX = 1 << 20
"""Maximum size of such a batch, in bytes. Reading its records takes some ms."""


def contradicts_itself(header: BatchHeader) -> bool:
    """Return whether the header of a client's batch must be wrong: a timestamp is missing, the largest timestamp is
    before the base timestamp, or the two timestamps differ although the batch has a single record.

    If no record has a timestamp, librdkafka states -1 as the base timestamp and 0 as the largest one.
    """
    first, largest = header.base_timestamp, header.max_timestamp
    return first < 0 or (first != largest and (first > largest or header.count == 1))


def have_base_timestamp(batch: memoryview, header: BatchHeader) -> bool:
    """Return whether the two timestamps in the header are equal, and it is certain that all records have this
    timestamp: the records are not compressed, have equal sizes, and all have the timestamp delta 0.

    The result is False for records of different sizes, because they would have to be read one after the other. This
    function is called for every produced batch that states an old timestamp, so it compares the first bytes of all
    records in a few calls, not in one call for each record.
    """
    if header.base_timestamp != header.max_timestamp or header.attributes & CODEC_MASK:
        return False
    start, count = HEADER_BYTES, header.count
    size = len(batch) - start
    if count == 1:
        if size < RECORD_BYTES_MIN:
            return False
        length = batch[start]
        if length < 0x80:  # zigzag code: twice the number of bytes that follow the length field
            return length == (size - 1) << 1 and not batch[start + 2]
        second = batch[start + 1]
        if second < 0x80:
            return length & 0x7F | second << 7 == (size - 2) << 1 and not batch[start + 3]
    elif count > EQUAL_RECORDS_MAX:
        return _have_base_timestamp_by_column(batch, start, count)
    layout = _equal_records(size, count)
    return layout is not None and layout.unpack(batch, start) == layout.first_bytes


class _EqualRecords(NamedTuple):
    """How records of equal size must begin. `unpack` reads the first bytes of each record, and `first_bytes` are the
    required values of these bytes.
    """

    unpack: "Callable[[memoryview, int], tuple[bytes, ...]]"
    first_bytes: tuple[bytes, ...]


@lru_cache(maxsize=256)
def _equal_records(size: int, count: int) -> _EqualRecords | None:
    """Return the layout of `count` records that fill `size` bytes; None if records of equal size cannot do so."""
    if count <= 0 or size % count or size // count < RECORD_BYTES_MIN:
        return None
    stride = size // count
    for length_bytes in range(1, 6):  # the varint of a 32-bit number has at most five bytes
        code = varint(stride - length_bytes)
        if len(code) == length_bytes:
            first = code + b"\0\0"  # attributes and timestamp delta
            record = f"{len(first)}s{stride - len(first)}x"
            return _EqualRecords(Struct(record * count).unpack_from, (first,) * count)
    return None  # no record has exactly this size, whatever the size of its length field


def _have_base_timestamp_by_column(batch: memoryview, start: int, count: int) -> bool:
    """Return the result of `have_base_timestamp` for many records: compare the bytes at equal distances."""
    size = len(batch) - start
    if size % count or size // count < RECORD_BYTES_MIN:
        return False
    stride = size // count
    try:
        length, length_end = read_varint(batch, start)
    except MalformedMessage:
        return False
    delta_at = length_end + 1  # the timestamp delta follows the attributes, which are one byte
    if length_end - start + length != stride:
        return False
    # Check that all length fields are equal. If they are, each record begins where the one before it ends.
    for position in range(start, length_end):
        if batch[position::stride].tobytes().count(batch[position]) != count:
            return False
    return batch[delta_at::stride].tobytes().count(0) == count


def largest_timestamp(data: bytes, count: int, base_timestamp: int) -> int:
    """Return the largest timestamp of `count` records in the decompressed `data`; at least NO_TIMESTAMP.

    Only the lengths and timestamps of the records are read. Raises MalformedMessage, also if bytes follow the last
    record.
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
            elif (second := data[position + 1]) < 0x80:
                length = (length >> 1 & 0x3F | second << 6) ^ -(length & 1)
                position += 2
            else:
                length, position = read_varint(data, position)
            end = position + length
            delta, after = data[position + 1], position + 2
            if delta < 0x80:
                delta = delta >> 1 ^ -(delta & 1)
            else:
                delta, after = read_varlong(data, position + 1)
            if after > end or end > size:
                raise wrong_record_length(length, size - position)
            if delta > largest:
                largest = delta
            position = end
    except IndexError:
        raise MalformedMessage("record batch: a record is cut short") from None
    if position != size:
        raise MalformedMessage(f"record batch: {size - position} bytes after the last of {count} records")
    return base_timestamp + largest


def latest_timestamp_at(file: "File", position: int, size: int, fields: Fields) -> int:
    """Return the largest timestamp of a batch in a file: the header's timestamp, or, if the header must be wrong, the
    result of `latest_record_timestamp_at`.

    Kafka and Tidelog correct the header before they write a batch. Earlier versions of Tidelog did not do so.
    """
    return (
        latest_record_timestamp_at(file, position, size, fields) if _header_is_wrong(fields) else fields[MAX_TIMESTAMP]
    )


def latest_record_timestamp_at(file: "File", position: int, size: int, fields: Fields) -> int:
    """Return the largest timestamp of a batch's records. If the batch cannot be decoded, or is too large to be read
    on the loop, return the header's timestamp.
    """
    if fields[COUNT] > INLINE_RECORDS_MAX or size > INLINE_BYTES_MAX:
        return fields[MAX_TIMESTAMP]
    latest = _latest_of_records(file.pread(size, position), INLINE_BYTES_MAX)
    return fields[MAX_TIMESTAMP] if latest is None else latest


def latest_timestamp_of(batch: "Buffer", fields: Fields) -> int:
    """Return the largest timestamp of a batch in memory, by the rules of `latest_timestamp_at`, but for a batch of any
    size. If compressed records have more than INLINE_BYTES_MAX bytes after decompression, return the header's
    timestamp.
    """
    latest = _latest_of_records(batch, INLINE_BYTES_MAX) if _header_is_wrong(fields) else None
    return fields[MAX_TIMESTAMP] if latest is None else latest


def _header_is_wrong(fields: Fields) -> bool:
    """Return whether the header of a stored batch must be wrong: its largest timestamp is before its base timestamp, or
    is 0 although the base timestamp is missing.
    """
    stated = fields[MAX_TIMESTAMP]
    return (
        (stated < fields[BASE_TIMESTAMP] or (stated == 0 and fields[BASE_TIMESTAMP] < 0))
        and fields[COUNT] > 0
        # With TIMESTAMP_TYPE_BIT, the header states the time of the append. With DELETE_HORIZON_BIT, the base timestamp
        # is a delete horizon.
        and not fields[ATTRIBUTES] & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)
    )


def _latest_of_records(batch: "Buffer", bytes_max: int) -> int | None:
    """Return the largest timestamp of the records of a batch; None if they cannot be decoded."""
    header = BatchHeader(batch)
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return header.max_timestamp
    try:
        return largest_timestamp(decompressed_records(batch, header, bytes_max), header.count, header.base_timestamp)
    except ValueError:
        return None


# Parts of segments. A large part is read in a separate process.


class SegmentPart(NamedTuple):
    """The batches of a segment's file from the byte position `position` to the byte position `end` (exclusive)."""

    path: str
    base_offset: int
    position: int
    end: int

    def encode(self) -> bytes:
        return json.dumps(self).encode()


class RecordTimes(NamedTuple):
    """The result of `find_times`.

    `latest` is the largest timestamp of all records that could be decoded. `undecodable`: the records of at least one
    batch could not be decoded, so these records may have any timestamp. `damage` is the reason why the reading ended
    early; it is empty if the whole part was read.
    """

    latest: int
    undecodable: bool
    damage: str

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, content: bytes) -> "RecordTimes":
        """Decode the result of `encode`. Raises ValueError, TypeError."""
        return cls(*json.loads(content))


def find_times(file: "File", part: SegmentPart) -> RecordTimes:
    """Read the timestamp of every record of a part of a segment. A million records take about a second. Raises
    OSError.
    """
    latest = NO_TIMESTAMP
    undecodable = False
    try:
        for _, batch, fields in batches(file, part.position, part.end, part.base_offset):
            if not fields[COUNT]:
                continue
            batch_latest = _latest_of_records(batch, DECOMPRESSED_BYTES_MAX)
            if batch_latest is None:
                undecodable = True
            else:
                latest = max(latest, batch_latest)
    except CorruptLog as error:
        return RecordTimes(latest, undecodable, str(error))
    return RecordTimes(latest, undecodable, "")


def find_times_in_child(resources: "ChildResources", request: bytes, report: "Callable[[bytes], None]") -> None:
    """Run `find_times`. This function is called in a child process. `request` is an encoded SegmentPart, and the report
    is an encoded RecordTimes.
    """
    part = SegmentPart(*json.loads(request))
    file = resources.disk.open(part.path)
    try:
        report(find_times(file, part).encode())
    finally:
        file.close()
