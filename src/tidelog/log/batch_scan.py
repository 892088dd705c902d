"""Read the batches of a segment file, or only their headers, in sequence.

Each header is checked: it must be complete, with magic 2, a length that fits into the file, and offsets above those
of the previous batch. If a header is wrong, CorruptLog is raised with the position of the batch. CRCs are not
checked.
"""

from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias

from tidelog.log.errors import CorruptLog
from tidelog.runtime.interfaces import File
from tidelog.wire.batches import HEADER_BYTES, LENGTH_END, MAGIC, MIN_LENGTH

HEADER = Struct(">qiibIhiqqqhii")

Fields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""An unpacked header of a batch. The constants below are the indexes of its fields."""

BASE_OFFSET = 0
LENGTH = 1
LEADER_EPOCH = 2
MAGIC_AT = 3
CRC = 4
ATTRIBUTES = 5
LAST_OFFSET_DELTA = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
BASE_SEQUENCE = 11
COUNT = 12

OFFSETS_MAX = 1 << 31
"""A segment's indexes store each offset relative to the segment's base offset, in 31 bits. So each relative offset is
below this limit."""
WINDOW_BYTES = 16 * 1024
"""Number of bytes that `headers` reads at a time, so that one read returns several small batches. After a batch of at
least this size, a read of LARGE_STEP_BYTES is enough for the next header."""
LARGE_STEP_BYTES = 256
WHOLE_WINDOW_BYTES = 1 << 20
"""Number of bytes that one read of whole batches returns. The read returns more if a batch is larger."""
BATCH_BYTES_MAX = 256 << 20
"""Upper bound on the size of a batch, in bytes. No request is larger. A batch that states a larger length is
damaged, and no memory is allocated for it."""


def defect(fields: Fields, available_bytes: int, next_offset: int, offset_end: int) -> str | None:
    """Return a text that describes the first defect of a batch header; None if the header has no defect.

    `available_bytes` is the number of bytes from the beginning of the batch to the end of the file. The offsets must
    be at least `next_offset` and less than `offset_end`.
    """
    size = fields[LENGTH] + LENGTH_END
    if fields[LENGTH] < MIN_LENGTH:
        return f"the batch states a length of {fields[LENGTH]} bytes, but the least possible length is {MIN_LENGTH}"
    if fields[MAGIC_AT] != MAGIC:
        return f"the batch states magic {fields[MAGIC_AT]}, but a log contains only batches of magic {MAGIC}"
    if size > available_bytes:
        return f"the batch states {size} bytes, but only {available_bytes} bytes are left"
    if size > BATCH_BYTES_MAX:
        return f"the batch states {size} bytes, more than any request carries"
    if fields[BASE_OFFSET] < next_offset:
        return f"the batch's base offset is {fields[BASE_OFFSET]}, expected {next_offset} or more"
    if fields[LAST_OFFSET_DELTA] < 0 or fields[COUNT] < 0:
        return f"the batch states {fields[COUNT]} records and a last offset delta of {fields[LAST_OFFSET_DELTA]}"
    if fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] >= offset_end:
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        return f"the batch's last offset is {last_offset}, but the offsets of this segment are below {offset_end}"
    return None


def is_unwritten(file: File, position: int, end: int) -> bool:
    """Return whether the bytes from `position` to `end`, the file's end, were never written: all of them are zero.

    If `log.preallocate` is set, Kafka creates a new segment with its full size. After a crash, zeros remain after
    the segment's last batch. A segment ends when the next batch does not fit, so any number of zeros is possible, even
    a single one. But fewer than LENGTH_END zeros (the size of a batch's offset and length fields) may also be the
    beginning of a batch. In this case, the caller must decide.
    """
    if end <= position:
        return False
    zeros = bytes(min(WHOLE_WINDOW_BYTES, end - position))
    while position < end:
        chunk = file.pread(min(WHOLE_WINDOW_BYTES, end - position), position)
        if not chunk or chunk != zeros[: len(chunk)]:
            return False
        position += len(chunk)
    return True


def headers(
    file: File, position: int, end: int, base_offset: int, next_offset: int = 0
) -> Iterator[tuple[int, int, Fields]]:
    """Yield (position, size in bytes, header) of every batch from `position`, where a batch must begin, to `end`
    (exclusive).

    Offsets must ascend. They must be at or above `next_offset` and the segment's `base_offset`, and less than 2^31
    above `base_offset`. Raises CorruptLog.
    """
    next_offset = max(base_offset, next_offset)
    offset_end = base_offset + OFFSETS_MAX
    unpack = HEADER.unpack_from
    chunk = b""
    start = position
    available = 0
    step = WINDOW_BYTES
    while position < end:
        at = position - start
        if at + HEADER_BYTES > available:
            chunk = file.pread(min(step, end - position), position)
            available = len(chunk)
            start = position
            at = 0
            if available < HEADER_BYTES:
                raise CorruptLog(
                    file.path, position, f"{available} bytes are left, but a batch header needs {HEADER_BYTES}"
                )
        fields: Fields = unpack(chunk, at)
        # Looking up a name takes time. So this loop has the indexes as numbers, and does not use the constants above.
        size = fields[1] + LENGTH_END
        if (
            fields[0] < next_offset
            or fields[3] != MAGIC
            or not HEADER_BYTES <= size <= BATCH_BYTES_MAX
            or position + size > end
            or fields[6] < 0
            or fields[12] < 0
            or fields[0] + fields[6] >= offset_end
        ):
            raise CorruptLog(file.path, position, str(defect(fields, end - position, next_offset, offset_end)))
        yield position, size, fields
        position += size
        next_offset = fields[0] + fields[6] + 1
        step = WINDOW_BYTES if size < WINDOW_BYTES else LARGE_STEP_BYTES


def batches(
    file: File, position: int, end: int, base_offset: int, next_offset: int = 0
) -> Iterator[tuple[int, memoryview, Fields]]:
    """Yield (position, bytes, header) of every batch. Parameters, checks and errors are those of `headers`. The CRC is
    not checked.
    """
    next_offset = max(base_offset, next_offset)
    offset_end = base_offset + OFFSETS_MAX
    unpack = HEADER.unpack_from
    chunk = memoryview(b"")
    start = position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(chunk):
            chunk = memoryview(file.pread(min(WHOLE_WINDOW_BYTES, end - position), position))
            start = position
            at = 0
            if len(chunk) < HEADER_BYTES:
                raise CorruptLog(
                    file.path, position, f"{len(chunk)} bytes are left, but a batch header needs {HEADER_BYTES}"
                )
        fields: Fields = unpack(chunk, at)
        problem = defect(fields, end - position, next_offset, offset_end)
        if problem is not None:
            raise CorruptLog(file.path, position, problem)
        size = fields[1] + LENGTH_END
        if at + size > len(chunk):
            chunk = memoryview(file.pread(min(max(WHOLE_WINDOW_BYTES, size), end - position), position))
            start = position
            at = 0
            if len(chunk) < size:
                raise CorruptLog(file.path, position, f"the batch states {size} bytes, but {len(chunk)} could be read")
        yield position, chunk[at : at + size], fields
        position += size
        next_offset = fields[0] + fields[6] + 1
