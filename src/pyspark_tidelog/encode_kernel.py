"""Encode rows as the records of a batch (KIP-98), and assign keys to partitions, in compiled code.

`decode_kernel` is the module for the other direction.

The functions that measure or write one field of a record get the field's whole column, and are inlined. Without
inlining, the compiled code would count the references to the column's arrays at each call, which takes ten times as
long as the encoding itself.
"""

from typing import Any, NamedTuple

import numpy as np

from pyspark_tidelog.compiled import compile_function, compile_inline
from pyspark_tidelog.decode_kernel import Bytes, Int32s, Int64s

_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


class Strings(NamedTuple):
    """A column of byte strings. Value i is `data[ends[i]:ends[i + 1]]`, or null if `valid[i]` is 0."""

    ends: Int32s
    valid: Bytes
    data: Bytes


class Records(NamedTuple):
    """Columns with one row for each record; `header_keys` and `header_values` have one row for each header. Record i
    has the headers in the rows from `headers[i]` to `headers[i + 1] - 1`.
    """

    keys: Strings
    values: Strings
    headers: Int32s
    header_keys: Strings
    header_values: Strings
    timestamps: Int64s
    """Timestamp of each record, in milliseconds. Empty if all records of a batch have the batch's own timestamp."""


@compile_inline
def _multiply(a: Any, b: Any) -> Any:
    return (a * b) & np.uint64(_UINT32)


@compile_function
def murmur2(data: Bytes, begin: int, end: int) -> Any:
    """Return the unsigned 32-bit hash of `data[begin:end]`. Java's default partitioner uses it to choose a key's
    partition.
    """
    factor = np.uint64(_MURMUR_FACTOR)
    size = end - begin
    hashed: Any = np.uint64(_MURMUR_SEED ^ (size & _UINT32))
    at = begin
    while at + 4 <= end:
        word: Any = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
        word |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
        word = _multiply(word, factor)
        word ^= word >> np.uint64(24)
        hashed = _multiply(hashed, factor) ^ _multiply(word, factor)
        at += 4
    if at < end:
        for i in range(end - at):
            hashed ^= np.uint64(data[at + i]) << np.uint64(8 * i)
        hashed = _multiply(hashed, factor)
    hashed ^= hashed >> np.uint64(13)
    hashed = _multiply(hashed, factor)
    return hashed ^ hashed >> np.uint64(15)


@compile_function
def assign_partitions(keys: Strings, count: int, target: Int32s) -> None:
    """If `target[i]` is negative and record i has a key, set `target[i]` to the record's partition. This is the
    partition that Java's default partitioner chooses for a topic with `count` partitions.
    """
    for row in range(len(target)):
        if target[row] < 0 and keys.valid[row]:
            hashed = murmur2(keys.data, keys.ends[row], keys.ends[row + 1])
            target[row] = np.int64(hashed & np.uint64(0x7FFFFFFF)) % count


@compile_inline
def _varint_bytes(value: int) -> int:
    """Return the number of bytes of the zigzag varint that encodes `value`, a signed 64-bit number."""
    size = 1
    remaining = np.uint64((value << 1) ^ (value >> 63))
    while remaining > np.uint64(0x7F):
        remaining >>= np.uint64(7)
        size += 1
    return size


@compile_inline
def _put_varint(target: Any, at: int, value: int) -> int:
    remaining = np.uint64((value << 1) ^ (value >> 63))
    while remaining > np.uint64(0x7F):
        target[at] = np.uint8(remaining & np.uint64(0x7F)) | np.uint8(0x80)
        remaining >>= np.uint64(7)
        at += 1
    target[at] = np.uint8(remaining)
    return at + 1


@compile_inline
def _length(column: Any, row: int) -> Any:
    return np.int64(column.ends[row + 1]) - np.int64(column.ends[row]) if column.valid[row] else -1


@compile_inline
def _put_string(target: Any, at: int, column: Any, row: int) -> Any:
    size = _length(column, row)
    at = _put_varint(target, at, size)
    source, destination = np.uint64(column.ends[row]), np.uint64(at)
    for i in range(np.uint64(max(size, 0))):  # with an unsigned index the compiler turns the loop into a block copy
        target[destination + i] = column.data[source + i]
    return at + max(size, 0)


@compile_inline
def _string_bytes(column: Any, row: int) -> Any:
    size = _length(column, row)
    return _varint_bytes(size) + max(size, 0)


@compile_function
def record_bytes(records: Records, row: int, delta: int, timestamp_delta: int) -> Any:
    """Return the size of a record without its length field."""
    first, after = records.headers[row], records.headers[row + 1]
    size = (
        1
        + _varint_bytes(timestamp_delta)
        + _varint_bytes(delta)
        + _string_bytes(records.keys, row)
        + _string_bytes(records.values, row)
    )
    size += _varint_bytes(after - first)
    for header in range(first, after):
        size += _string_bytes(records.header_keys, header) + _string_bytes(records.header_values, header)
    return size


@compile_function
def encode(records: Records, rows: Int64s, first: int, target: Bytes, at: int) -> tuple[int, int]:
    """Write the records of `rows[first:]` to `target`, from position `at`, until `target` is full.

    Return the index in `rows` after the last record written, and the position after that record. If not even the
    first record fits, return `first` and the size that `target` would need. The timestamp of the first record written
    is the base timestamp of the batch.
    """
    has_timestamps = len(records.timestamps) > 0
    base_timestamp = records.timestamps[rows[first]] if has_timestamps else np.int64(0)
    index = first
    while index < len(rows):
        row = rows[index]
        delta = index - first
        timestamp_delta: Any = records.timestamps[row] - base_timestamp if has_timestamps else np.int64(0)
        size = record_bytes(records, row, delta, timestamp_delta)
        end = at + _varint_bytes(size) + size
        if end > len(target):
            return index, (end if index == first else at)
        at = _put_varint(target, at, size)
        target[at] = 0
        at = _put_varint(target, at + 1, timestamp_delta)
        at = _put_varint(target, at, delta)
        at = _put_string(target, at, records.keys, row)
        at = _put_string(target, at, records.values, row)
        begin, after = records.headers[row], records.headers[row + 1]
        at = _put_varint(target, at, after - begin)
        for header in range(begin, after):
            at = _put_string(target, at, records.header_keys, header)
            at = _put_string(target, at, records.header_values, header)
        index += 1
    return index, at
