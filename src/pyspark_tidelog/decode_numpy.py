"""Decode record batches to Arrow columns with numpy, for environments without numba.

First, the boundaries of the records are found, record by record. After that, every field is read for all records of
a batch at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidelog.decode import Decoded, MalformedRecords, Payload, headers_array
from pyspark_tidelog.decode_kernel import MILLISECONDS_MAX, WANT_HEADERS, WANT_KEY, WANT_VALUE, Bytes, Int64s
from tidelog.wire.batches import TimestampType
from tidelog.wire.primitives import MalformedMessage, read_varint

VARLONG_BYTES = 10
"""Maximum length of a varint of 64 bits, in bytes."""


class ByteRanges(NamedTuple):
    """Positions and sizes of byte strings in the data of a batch. The positions are ascending. A negative size means
    null.
    """

    at: Int64s
    sizes: Int64s

    @property
    def ends(self) -> Int64s:
        return self.at + np.maximum(self.sizes, 0)


class Fields(NamedTuple):
    """The fields of those records of one batch whose offsets were requested."""

    data: Bytes
    offsets: Int64s
    timestamps_ms: Int64s
    timestamp_type: int
    keys: ByteRanges
    values: ByteRanges
    header_counts: Int64s
    header_keys: ByteRanges
    header_values: ByteRanges


class _BrokenRecord(Exception):
    """A record is malformed near `position`."""

    def __init__(self, position: int) -> None:
        self.position = position


def decode(payloads: list[Payload], low: int, high: int, wanted: int) -> Decoded:
    """See `decode.Decode`."""
    parts = [_fields(payload, low, high) for payload in payloads]
    milliseconds = np.concatenate([part.timestamps_ms for part in parts])
    headers = None
    if wanted & WANT_HEADERS:
        counts = np.concatenate([part.header_counts for part in parts])
        keys = _strings([(part.data, part.header_keys) for part in parts], pa.string())
        values = _strings([(part.data, part.header_values) for part in parts], pa.binary())
        headers = headers_array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), keys, values)
    return Decoded(
        offsets=np.concatenate([part.offsets for part in parts]),
        timestamps_us=np.clip(milliseconds, -MILLISECONDS_MAX, MILLISECONDS_MAX) * 1000,
        timestamp_types=np.concatenate([np.full(len(p.offsets), p.timestamp_type, np.int32) for p in parts]),
        keys=_strings([(p.data, p.keys) for p in parts], pa.binary()) if wanted & WANT_KEY else None,
        values=_strings([(p.data, p.values) for p in parts], pa.binary()) if wanted & WANT_VALUE else None,
        headers=headers,
    )


def _fields(payload: Payload, low: int, high: int) -> Fields:
    header = payload.header
    try:
        starts, ends = _bounds(payload)
        deltas_ms, at = _varints(payload.data, starts + 1, ends)
        offset_deltas, at = _varints(payload.data, at, ends, bits=32)
        keys, at = _read_byte_ranges(payload.data, at, ends)
        values, at = _read_byte_ranges(payload.data, at, ends)
        counts, at = _varints(payload.data, at, ends, bits=32)
        _require(counts >= 0, at)
        rows, header_keys, header_values, at = _read_header_ranges(payload.data, at, ends, counts)
        _require(at == ends, at)
    except _BrokenRecord as error:
        raise MalformedRecords.at(header, error.position - payload.begin) from None
    offsets = header.base_offset + offset_deltas
    selected = (low <= offsets) & (offsets < high)
    selected_headers = selected[rows]
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamps = np.full(len(offsets), header.max_timestamp) if append_time else header.base_timestamp + deltas_ms
    return Fields(
        data=payload.data,
        offsets=offsets[selected],
        timestamps_ms=timestamps[selected],
        timestamp_type=int(append_time),
        keys=_select(keys, selected),
        values=_select(values, selected),
        header_counts=counts[selected],
        header_keys=_select(header_keys, selected_headers),
        header_values=_select(header_values, selected_headers),
    )


def _bounds(payload: Payload) -> tuple[Int64s, Int64s]:
    """Return the start and the end of each record. A record starts at the position after its length field."""
    view = memoryview(payload.data)  # type: ignore[arg-type]  # an array is a buffer
    starts, ends = [], []
    at = payload.begin
    for _ in range(payload.header.count):
        try:
            size, start = read_varint(view, at)
        except (IndexError, MalformedMessage):
            raise _BrokenRecord(at) from None
        if size < 1 or size > payload.end - start:
            raise _BrokenRecord(at)
        at = start + size
        starts.append(start)
        ends.append(at)
    if at != payload.end:
        raise _BrokenRecord(at)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _varints(data: Bytes, at: Int64s, ends: Int64s, bits: int = 64) -> tuple[Int64s, Int64s]:
    """Read the zigzag varints at these positions. Return their values and the positions after them."""
    at = at.copy()
    raw = np.zeros(len(at), np.uint64)
    unfinished = np.arange(len(at))
    for shift in range(0, 7 * VARLONG_BYTES, 7):
        positions = at[unfinished]
        _require(positions < ends[unfinished], positions)
        byte = data[positions]
        _require((byte <= 1) | (shift < 63), positions)
        raw[unfinished] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[unfinished] += 1
        unfinished = unfinished[byte >= 0x80]
        if not len(unfinished):
            break
    values = (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)
    _require((-(1 << bits - 1) <= values) & (values <= (1 << bits - 1) - 1), at)
    return values, at


def _read_byte_ranges(data: Bytes, at: Int64s, ends: Int64s) -> tuple[ByteRanges, Int64s]:
    """At each position, read the length of the byte string that follows. Return the ranges of the byte strings and
    the positions after them.
    """
    sizes, at = _varints(data, at, ends, bits=32)
    _require(sizes <= ends - at, at)
    spans = ByteRanges(at, sizes)
    return spans, spans.ends


def _read_header_ranges(
    data: Bytes, at: Int64s, ends: Int64s, counts: Int64s
) -> tuple[Int64s, ByteRanges, ByteRanges, Int64s]:
    """Read the headers of all records, in order.

    For each header, return the index of its record, the range of its key and the range of its value. For each record,
    return the position after its headers.
    """
    at = at.copy()
    steps: list[tuple[Int64s, ByteRanges, ByteRanges]] = []
    rows = np.flatnonzero(counts > 0)
    while len(rows):
        keys, after = _read_byte_ranges(data, at[rows], ends[rows])
        _require(keys.sizes >= 0, at[rows])
        values, after = _read_byte_ranges(data, after, ends[rows])
        at[rows] = after
        steps.append((rows, keys, values))
        rows = rows[counts[rows] > len(steps)]
    if not steps:
        none = ByteRanges(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return np.zeros(0, np.int64), none, none, at
    owners = np.concatenate([rows for rows, _, _ in steps])
    order = np.argsort(owners, kind="stable")
    return owners[order], _join_steps([k for _, k, _ in steps], order), _join_steps([v for _, _, v in steps], order), at


def _join_steps(steps: list[ByteRanges], order: Int64s) -> ByteRanges:
    return ByteRanges(
        np.concatenate([spans.at for spans in steps])[order], np.concatenate([spans.sizes for spans in steps])[order]
    )


def _require(valid: npt.NDArray[np.bool_], positions: Int64s) -> None:
    if not valid.all():
        raise _BrokenRecord(int(positions[~valid][0]))


def _select(spans: ByteRanges, selected: npt.NDArray[np.bool_]) -> ByteRanges:
    return ByteRanges(spans.at[selected], spans.sizes[selected])


def _strings(parts: list[tuple[Bytes, ByteRanges]], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([_copy_strings(data, spans, kind) for data, spans in parts])


def _copy_strings(data: Bytes, spans: ByteRanges, kind: pa.DataType) -> pa.Array:
    """Copy byte strings from the data of a batch to an Arrow array.

    First, build an Arrow array over the data without a copy. Its items are alternately a byte string and the gap
    after it. Then copy only the byte strings.
    """
    count = len(spans.at)
    if not count:
        return pa.array([], kind)
    ends = np.stack([spans.at, spans.ends], axis=1).astype(np.int32).ravel()
    alternating = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return alternating.take(pa.array(np.arange(0, 2 * count, 2), mask=spans.sizes < 0))
