"""Decode the records of batches into the buffers of Arrow columns, byte by byte, in compiled code.

A record (KIP-98) consists of: length, attributes (1 byte), timestamp delta, offset delta, key, value, headers.
Integers are zigzag varints; a length of -1 means null. No length is trusted: if a length extends beyond the end of
its record, `walk` returns MALFORMED.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_tidelog.compiled import compile_callee, compile_function, compile_inline

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# Columns of the array `batches`, which has one row for each batch: where the batch's records begin and end in the data,
# and fields of the batch's header.
BEGIN, END, COUNT, BASE_OFFSET, BASE_TIMESTAMP, APPEND_TIME = range(6)
CREATE_TIME = -(1 << 63)
"""Value in the column APPEND_TIME for a batch in which every record has a timestamp of its own."""

WELL_FORMED = 0
MALFORMED = 1
"""Results of `walk`."""

WANT_KEY = 1
WANT_VALUE = 2
WANT_HEADERS = 4
"""Flags of the columns that are filled only if the caller wants them. Columns without a flag are always filled."""

# Indexes into `Rows.filled`: the numbers of items and bytes written so far, and the position at which `walk` found
# malformed data.
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, FAILED_AT = range(7)

MICROSECONDS_MAX = (1 << 63) - 1
MILLISECONDS_MAX = MICROSECONDS_MAX // 1000
"""The largest timestamp of a row, in milliseconds: its number of microseconds must not exceed MICROSECONDS_MAX. If a
record has a larger timestamp, its row gets this one."""


class Column(NamedTuple):
    """A binary column that is being filled. Value i ends at `ends[i + 1]`. If `valid[i]` is 0, value i is null."""

    ends: Int32s
    valid: Bytes
    data: Bytes


class Rows(NamedTuple):
    """The output arrays of `walk`. The caller allocates enough rows, and enough bytes in each column, for all
    batches.
    """

    offsets: Int64s
    timestamps_us: Int64s
    timestamp_types: Int32s
    keys: Column
    values: Column
    header_ends: Int32s
    """The headers of row i end at `header_ends[i + 1]`."""
    header_keys: Column
    header_values: Column
    filled: Int64s


@compile_inline
def _varlong(data: Any, at: int, end: int) -> Any:
    """Read a zigzag varint. Return its value and the position after it. The position is -1 if the varint is too long
    or extends beyond `end`.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    byte = np.uint8(0x80)
    while byte >= 0x80 and at < end and shift < np.uint64(70):
        byte = data[np.uint64(at)]
        at += 1
        value |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
    if byte >= 0x80 or (shift == np.uint64(70) and byte > 1):
        at = -1
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at


@compile_inline
def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read a zigzag varint of 32 bits; see `_varlong`."""
    value, position = _varlong(data, at, min(at + 5, end))
    if value > 2147483647 or value < -2147483648:
        position = -1
    return value, position


@compile_inline
def _size(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read a length. Return it and the position after it. A negative length means null. The position is -1 if the
    length is malformed, or if fewer bytes than this length remain before `end`.
    """
    size, at = _varint(data, at, end)
    if size > end - at:
        at = -1
    return size, at


@compile_inline
def _copy(data: Any, at: int, size: int, target: Any, filled: int) -> int:
    """Copy `size` bytes into `target`, after its first `filled` bytes. Return the sum of `filled` and the number of
    copied bytes. If `size` is negative, nothing is copied.
    """
    # The index is unsigned. A signed index may be negative, and the check for a negative index would prevent the
    # compiler from turning the loop into a block copy.
    source, destination = np.uint64(at), np.uint64(filled)
    for i in range(np.uint64(max(size, 0))):
        target[destination + i] = data[source + i]
    return filled + max(size, 0)


@compile_inline
def _append(column: Any, row: int, filled: int, data: Any, at: int, size: int) -> int:
    """Set value number `row` of a column that has `filled` bytes of data. Return the column's new number of bytes."""
    filled = _copy(data, at, size, column.data, filled)
    column.valid[row] = size >= 0
    column.ends[row + 1] = filled
    return filled


@compile_inline
def _microseconds(timestamp_ms: int) -> int:
    """Convert milliseconds to microseconds. The result is limited to the range of 64 bits."""
    return min(max(timestamp_ms, -MILLISECONDS_MAX), MILLISECONDS_MAX) * 1000


@compile_callee
def _append_headers(data: Any, at: int, end: int, remaining: int, rows: Any, totals: Any, selected: bool) -> Any:
    """Decode `remaining` headers, and append them if `selected`.

    `totals` contains the number of headers that were appended so far, the number of bytes of their keys, and the number
    of bytes of their values. Return the new `totals` and the position after the headers. The position is -1 if the
    headers are malformed.
    """
    header, key_bytes, value_bytes = totals
    while at >= 0 and remaining > 0:
        remaining -= 1
        size, at = _size(data, at, end)
        if size < 0:
            at = -1
        if at >= 0:
            if selected:
                key_bytes = _append(rows.header_keys, header, key_bytes, data, at, size)
            size, at = _size(data, at + size, end)
        if at >= 0:
            if selected:
                value_bytes = _append(rows.header_values, header, value_bytes, data, at, size)
                header += 1
            at += max(size, 0)
    return (header, key_bytes, value_bytes), at


@compile_function
def walk(data: Bytes, batches: Int64s, low: int, high: int, wanted: int, rows: Rows) -> int:
    """Append to `rows` the records with low <= offset < high.

    Return WELL_FORMED or MALFORMED. If the result is MALFORMED, `rows.filled[FAILED_AT]` is the position of a malformed
    record, or of bytes after the last record of a batch. `wanted` is a sum of WANT_*. Keys or values that are not
    wanted are not copied: they are null or empty in `rows`. If headers are not wanted, the header columns of `rows` do
    not change.
    """
    # The arrays are unpacked here. Otherwise the compiled code would count references to them for each record, which
    # takes several times as long as decoding a small record.
    offsets, timestamps_us, timestamp_types, keys, values, _, _, _, filled = rows
    key_ends, key_valid, key_data = keys
    value_ends, value_valid, value_data = values
    row, key_bytes, value_bytes = filled[ROWS], filled[KEY_BYTES], filled[VALUE_BYTES]
    header_totals = (filled[HEADERS], filled[HEADER_KEY_BYTES], filled[HEADER_VALUE_BYTES])
    for batch in range(batches.shape[0]):
        at = batches[batch, BEGIN]
        batch_end = batches[batch, END]
        append_time = batches[batch, APPEND_TIME]
        for _ in range(batches[batch, COUNT]):
            filled[FAILED_AT] = at
            length, at = _varint(data, at, batch_end)
            if at < 0 or length < 1 or length > batch_end - at:
                return MALFORMED
            end = at + length
            timestamp_delta, at = _varlong(data, at + 1, end)
            if at < 0:
                return MALFORMED
            offset_delta, at = _varint(data, at, end)
            if at < 0:
                return MALFORMED
            offset = batches[batch, BASE_OFFSET] + offset_delta
            selected = low <= offset < high

            size, at = _size(data, at, end)
            if at < 0:
                return MALFORMED
            if selected:
                key_bytes = _copy(data, at, size if wanted & WANT_KEY else 0, key_data, key_bytes)
                key_valid[row], key_ends[row + 1] = size >= 0, key_bytes
            size, at = _size(data, at + max(size, 0), end)
            if at < 0:
                return MALFORMED
            if selected:
                value_bytes = _copy(data, at, size if wanted & WANT_VALUE else 0, value_data, value_bytes)
                value_valid[row], value_ends[row + 1] = size >= 0, value_bytes
            header_count, at = _varint(data, at + max(size, 0), end)
            headers_selected = selected and wanted & WANT_HEADERS != 0
            if header_count > 0:
                header_totals, at = _append_headers(data, at, end, header_count, rows, header_totals, headers_selected)
            if at != end or header_count < 0:
                return MALFORMED

            if selected:
                offsets[row] = offset
                if append_time == CREATE_TIME:
                    timestamps_us[row] = _microseconds(batches[batch, BASE_TIMESTAMP] + timestamp_delta)
                else:
                    timestamps_us[row] = _microseconds(append_time)
                timestamp_types[row] = append_time != CREATE_TIME
                row += 1
                if headers_selected:
                    rows.header_ends[row] = header_totals[0]
        if at != batch_end:
            filled[FAILED_AT] = at
            return MALFORMED
    filled[ROWS], filled[KEY_BYTES], filled[VALUE_BYTES] = row, key_bytes, value_bytes
    filled[HEADERS], filled[HEADER_KEY_BYTES], filled[HEADER_VALUE_BYTES] = header_totals
    return WELL_FORMED
