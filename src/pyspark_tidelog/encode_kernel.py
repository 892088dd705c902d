"""Rows to the records of a batch (KIP-98), and keys to partitions, by compiled code: the mirror of `decode_kernel`."""

from typing import Any, NamedTuple

import numpy as np

from pyspark_tidelog.compiled import called, compiled, inlined
from pyspark_tidelog.decode_kernel import Bytes, Int32s, Int64s

_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


class Strings(NamedTuple):
    """A column of byte strings: value i is `data[ends[i]:ends[i + 1]]`, null when `valid[i]` is 0."""

    ends: Int32s
    valid: Bytes
    data: Bytes


class Records(NamedTuple):
    """Columns of equal length, a row for each record. Row i has the headers from `headers[i]` to `headers[i + 1]`."""

    keys: Strings
    values: Strings
    headers: Int32s
    header_keys: Strings
    header_values: Strings


@inlined
def _times(a: Any, b: Any) -> Any:
    return (a * b) & np.uint64(_UINT32)


@compiled
def murmur2(data: Bytes, begin: int, end: int) -> Any:
    """The 32-bit hash of `data[begin:end]` by which Java's default partitioner spreads keys, unsigned."""
    factor = np.uint64(_MURMUR_FACTOR)
    size = end - begin
    hashed: Any = np.uint64(_MURMUR_SEED ^ (size & _UINT32))
    at = begin
    while at + 4 <= end:
        word: Any = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
        word |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
        word = _times(word, factor)
        word ^= word >> np.uint64(24)
        hashed = _times(hashed, factor) ^ _times(word, factor)
        at += 4
    if at < end:
        for i in range(end - at):
            hashed ^= np.uint64(data[at + i]) << np.uint64(8 * i)
        hashed = _times(hashed, factor)
    hashed ^= hashed >> np.uint64(13)
    hashed = _times(hashed, factor)
    return hashed ^ hashed >> np.uint64(15)


@compiled
def place(keys: Strings, count: int, target: Int32s) -> None:
    """Where there is a key and the target is -1, set the partition that Java's partitioner chooses of `count`."""
    for row in range(len(target)):
        if target[row] < 0 and keys.valid[row]:
            hashed = murmur2(keys.data, keys.ends[row], keys.ends[row + 1])
            target[row] = np.int64(hashed & np.uint64(0x7FFFFFFF)) % count


@inlined
def _varint_bytes(value: int) -> int:
    """Of a number from -1 up, zigzag coded."""
    size = 1
    left = np.uint64(1) if value < 0 else np.uint64(value) << np.uint64(1)
    while left > np.uint64(0x7F):
        left >>= np.uint64(7)
        size += 1
    return size


@inlined
def _put_varint(target: Any, at: int, value: int) -> int:
    left = np.uint64(1) if value < 0 else np.uint64(value) << np.uint64(1)
    while left > np.uint64(0x7F):
        target[at] = np.uint8(left & np.uint64(0x7F)) | np.uint8(0x80)
        left >>= np.uint64(7)
        at += 1
    target[at] = np.uint8(left)
    return at + 1


@inlined
def _length(column: Any, row: int) -> Any:
    return np.int64(column.ends[row + 1]) - np.int64(column.ends[row]) if column.valid[row] else -1


@called
def _put_string(target: Any, at: int, column: Any, row: int) -> Any:
    size = _length(column, row)
    at = _put_varint(target, at, size)
    source, to = np.uint64(column.ends[row]), np.uint64(at)
    for i in range(np.uint64(max(size, 0))):  # unsigned, so that it becomes a block copy
        target[to + i] = column.data[source + i]
    return at + max(size, 0)


@called
def _string_bytes(column: Any, row: int) -> Any:
    size = _length(column, row)
    return _varint_bytes(size) + max(size, 0)


@compiled
def record_bytes(records: Records, row: int, delta: int) -> Any:
    """Of one record after its length: attributes, deltas of time (0) and offset, key, value, headers."""
    first, after = records.headers[row], records.headers[row + 1]
    size = 2 + _varint_bytes(delta) + _string_bytes(records.keys, row) + _string_bytes(records.values, row)
    size += _varint_bytes(after - first)
    for header in range(first, after):
        size += _string_bytes(records.header_keys, header) + _string_bytes(records.header_values, header)
    return size


@compiled
def encode(records: Records, rows: Int64s, first: int, target: Bytes, at: int) -> tuple[int, int]:
    """Write the records of `rows[first:]` to `target` from `at` on, as many as there is room for.

    Returns the number that follows the last row written, and the position after it. When not even the first has room,
    the number is `first` and the position is what `target` would have to hold.
    """
    number = first
    while number < len(rows):
        row = rows[number]
        delta = number - first
        size = record_bytes(records, row, delta)
        end = at + _varint_bytes(size) + size
        if end > len(target):
            return number, (end if number == first else at)
        at = _put_varint(target, at, size)
        target[at] = 0
        target[at + 1] = 0
        at = _put_varint(target, at + 2, delta)
        at = _put_string(target, at, records.keys, row)
        at = _put_string(target, at, records.values, row)
        begin, after = records.headers[row], records.headers[row + 1]
        at = _put_varint(target, at, after - begin)
        for header in range(begin, after):
            at = _put_string(target, at, records.header_keys, header)
            at = _put_string(target, at, records.header_values, header)
        number += 1
    return number, at
