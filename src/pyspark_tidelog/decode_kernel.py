"""The records of batches, walked byte by byte by compiled code into the buffers of Arrow columns.

A record (KIP-98): length, attributes (1 byte), timestamp delta, offset delta, key, value, headers; integers are zigzag
varints, a length of -1 is null. Nothing here trusts a length: whatever leaves its record ends the walk with MALFORMED.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_tidelog.compiled import called, compiled, inlined

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# Columns of `runs`, one row for each batch: where its records begin and end in the data, and what its header says.
BEGIN, END, COUNT, BASE_OFFSET, BASE_TIMESTAMP, APPEND_TIME = range(6)
CREATE_TIME = -(1 << 63)
"""In APPEND_TIME: every record has a timestamp of its own."""

WELL_FORMED = 0
MALFORMED = 1

WANT_KEY = 1
WANT_VALUE = 2
WANT_HEADERS = 4

# Places of `Rows.filled`: what there is so far, and where a walk failed.
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, FAILED_AT = range(7)

MICROSECONDS_MAX = (1 << 63) - 1
MILLISECONDS_MAX = MICROSECONDS_MAX // 1000


class Column(NamedTuple):
    """A binary column under construction: value i ends at `ends[i + 1]`; `valid[i]` is 0 when it is null."""

    ends: Int32s
    valid: Bytes
    data: Bytes


class Rows(NamedTuple):
    """Where a walk writes. The caller sees to room for the rows of all runs and, in each column, for all the data."""

    offsets: Int64s
    timestamps_us: Int64s
    timestamp_types: Int32s
    keys: Column
    values: Column
    header_ends: Int32s
    """Row i's headers end at `header_ends[i + 1]`."""
    header_keys: Column
    header_values: Column
    filled: Int64s


@inlined
def _varlong(data: Any, at: int, end: int) -> Any:
    """A zigzag varint and the position after it, which is -1 when it does not end before `end` or is too long."""
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


@inlined
def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """As `_varlong`, of 32 bits."""
    value, position = _varlong(data, at, min(at + 5, end))
    if value > 2147483647 or value < -2147483648:
        position = -1
    return value, position


@inlined
def _size(data: Any, at: int, end: int) -> tuple[int, int]:
    """A length (negative: null) and the position after it, which is -1 when that many bytes are not there."""
    size, at = _varint(data, at, end)
    if size > end - at:
        at = -1
    return size, at


@inlined
def _append(column: Any, row: int, filled: int, data: Any, at: int, size: int, copied: bool) -> int:
    """Set value `row` of a column that holds `filled` bytes; the number of bytes after it."""
    if copied and size > 0:
        # unsigned: a signed index may be negative, and the test for it keeps the loop from becoming a block copy
        source, target = np.uint64(at), np.uint64(filled)
        for i in range(np.uint64(size)):
            column.data[target + i] = data[source + i]
        filled += size
    column.valid[row] = size >= 0
    column.ends[row + 1] = filled
    return filled


@inlined
def _microseconds(timestamp_ms: int) -> int:
    return min(max(timestamp_ms, -MILLISECONDS_MAX), MILLISECONDS_MAX) * 1000


@called
def _take_headers(data: Any, at: int, end: int, left: int, rows: Any, ends: Any, kept: bool) -> Any:
    """Append `left` headers. The new ends (headers, key bytes, value bytes), and the position after them or -1."""
    header, key_bytes, value_bytes = ends
    while at >= 0 and left > 0:
        left -= 1
        size, at = _size(data, at, end)
        if size < 0:
            at = -1
        if at >= 0:
            if kept:
                key_bytes = _append(rows.header_keys, header, key_bytes, data, at, size, True)
            size, at = _size(data, at + size, end)
        if at >= 0:
            if kept:
                value_bytes = _append(rows.header_values, header, value_bytes, data, at, size, True)
                header += 1
            at += max(size, 0)
    return (header, key_bytes, value_bytes), at


@compiled
def walk(data: Bytes, runs: Int64s, low: int, high: int, wanted: int, rows: Rows) -> int:
    """Append the records with low <= offset < high of all runs to `rows`.

    Returns WELL_FORMED, or MALFORMED with FAILED_AT set. `wanted` is a sum of WANT_*: what is not wanted is skipped
    over, and null or empty in `rows`.
    """
    filled = rows.filled
    row, key_bytes, value_bytes = filled[ROWS], filled[KEY_BYTES], filled[VALUE_BYTES]
    ends = (filled[HEADERS], filled[HEADER_KEY_BYTES], filled[HEADER_VALUE_BYTES])
    for run in range(runs.shape[0]):
        at = runs[run, BEGIN]
        stop = runs[run, END]
        append_time = runs[run, APPEND_TIME]
        for _ in range(runs[run, COUNT]):
            filled[FAILED_AT] = at
            length, at = _varint(data, at, stop)
            if at < 0 or length < 1 or length > stop - at:
                return MALFORMED
            end = at + length
            timestamp_delta, at = _varlong(data, at + 1, end)
            if at < 0:
                return MALFORMED
            offset_delta, at = _varint(data, at, end)
            if at < 0:
                return MALFORMED
            offset = runs[run, BASE_OFFSET] + offset_delta
            kept = low <= offset < high

            size, at = _size(data, at, end)
            if at < 0:
                return MALFORMED
            if kept:
                key_bytes = _append(rows.keys, row, key_bytes, data, at, size, wanted & WANT_KEY != 0)
            size, at = _size(data, at + max(size, 0), end)
            if at < 0:
                return MALFORMED
            if kept:
                value_bytes = _append(rows.values, row, value_bytes, data, at, size, wanted & WANT_VALUE != 0)
            headers, at = _varint(data, at + max(size, 0), end)
            headers_kept = kept and wanted & WANT_HEADERS != 0
            if headers > 0:
                ends, at = _take_headers(data, at, end, headers, rows, ends, headers_kept)
            if at != end or headers < 0:
                return MALFORMED

            if kept:
                rows.offsets[row] = offset
                if append_time == CREATE_TIME:
                    rows.timestamps_us[row] = _microseconds(runs[run, BASE_TIMESTAMP] + timestamp_delta)
                else:
                    rows.timestamps_us[row] = _microseconds(append_time)
                rows.timestamp_types[row] = append_time != CREATE_TIME
                row += 1
                if headers_kept:
                    rows.header_ends[row] = ends[0]
        if at != stop:
            filled[FAILED_AT] = at
            return MALFORMED
    filled[ROWS], filled[KEY_BYTES], filled[VALUE_BYTES] = row, key_bytes, value_bytes
    filled[HEADERS], filled[HEADER_KEY_BYTES], filled[HEADER_VALUE_BYTES] = ends
    return WELL_FORMED
