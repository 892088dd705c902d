"""Decode record batches to Arrow columns with compiled code."""

from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_tidelog.decode import Decoded, MalformedRecords, Payload, headers_array, validity
from pyspark_tidelog.decode_kernel import (
    BEGIN,
    CREATE_TIME,
    END,
    FAILED_AT,
    HEADERS,
    ROWS,
    WANT_HEADERS,
    WANT_KEY,
    WANT_VALUE,
    WELL_FORMED,
    Column,
    Int64s,
    Rows,
    walk,
)
from tidelog.wire.batches import TimestampType

RECORD_BYTES_MIN = 7
"""Size of the smallest record, in bytes: length, attributes, two deltas, two lengths and the count of headers take
one byte each."""


def decode(payloads: list[Payload], low: int, high: int, wanted: int) -> Decoded:
    """See `decode.Decode`."""
    for payload in payloads:
        if not 0 <= payload.header.count <= payload.size // RECORD_BYTES_MIN:
            reason = f"the batch states {payload.header.count} records, but all its records have {payload.size} bytes"
            raise MalformedRecords(payload.header, reason)
    count = sum(payload.header.count for payload in payloads)
    size = sum(payload.size for payload in payloads)
    rows = _allocate_rows(count, size, wanted)
    # Consecutive payloads in the same buffer are decoded by one call.
    for _, group in groupby(payloads, key=lambda payload: id(payload.data)):
        same_buffer = list(group)
        batches = np.array([_batch_row(payload) for payload in same_buffer], np.int64)
        if walk(same_buffer[0].data, batches, low, high, wanted, rows) != WELL_FORMED:
            raise _malformed(same_buffer, batches, int(rows.filled[FAILED_AT]))
    return _decoded(rows, wanted)


def _batch_row(payload: Payload) -> tuple[int, int, int, int, int, int]:
    """Return the row of a batch in the array that `walk` reads: begin, end, number of records, base offset, base
    timestamp, and append time. The append time is CREATE_TIME if each record has its own timestamp.
    """
    header = payload.header
    append_time = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else CREATE_TIME
    return payload.begin, payload.end, header.count, header.base_offset, header.base_timestamp, append_time


def _malformed(same_buffer: list[Payload], batches: Int64s, position: int) -> MalformedRecords:
    """Return the error for the batch that has a malformed record at `position`. If the batch's header states more
    records than the batch contains, `position` is the end of the batch.
    """
    index = int(np.flatnonzero((batches[:, BEGIN] <= position) & (position <= batches[:, END]))[0])
    return MalformedRecords.at(same_buffer[index].header, position - same_buffer[index].begin)


def _allocate_rows(count: int, size: int, wanted: int) -> Rows:
    """Allocate arrays for `count` records with `size` bytes in total.

    Each array has the largest size that it may need. This costs no memory, because the system provides a page of
    memory only when it is written for the first time.
    """
    headers_max = size // 2 if wanted & WANT_HEADERS else 0  # the smallest header of a record has two bytes
    rows = Rows(
        offsets=_uninitialized(count, np.int64),
        timestamps_us=_uninitialized(count, np.int64),
        timestamp_types=_uninitialized(count, np.int32),
        keys=_column(count, size if wanted & WANT_KEY else 0),
        values=_column(count, size if wanted & WANT_VALUE else 0),
        header_ends=_uninitialized(count + 1 if wanted & WANT_HEADERS else 1, np.int32),
        header_keys=_column(headers_max, size if headers_max else 0),
        header_values=_column(headers_max, size if headers_max else 0),
        filled=np.zeros(FAILED_AT + 1, np.int64),
    )
    rows.header_ends[0] = 0
    return rows


def _column(count: int, size: int) -> Column:
    """Allocate a column for `count` texts or byte strings with at most `size` bytes in total."""
    ends = _uninitialized(count + 1, np.int32)
    ends[0] = 0
    return Column(ends, _uninitialized(count, np.uint8), _uninitialized(size, np.uint8))


def _uninitialized(count: int, kind: type) -> Any:
    """Return an array with undefined content. It comes from Arrow's memory pool, which reuses pages that were
    written before. Writing new pages would cost more than the decoding.
    """
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _decoded(rows: Rows, wanted: int) -> Decoded:
    count, headers = int(rows.filled[ROWS]), int(rows.filled[HEADERS])
    header_columns = None
    if wanted & WANT_HEADERS:
        keys = _binary(rows.header_keys, headers, pa.string(), nullable=False)
        values = _binary(rows.header_values, headers, pa.binary())
        header_columns = headers_array(rows.header_ends[: count + 1], keys, values)
    return Decoded(
        offsets=rows.offsets[:count],
        timestamps_us=rows.timestamps_us[:count],
        timestamp_types=rows.timestamp_types[:count],
        keys=_binary(rows.keys, count, pa.binary()) if wanted & WANT_KEY else None,
        values=_binary(rows.values, count, pa.binary()) if wanted & WANT_VALUE else None,
        headers=header_columns,
    )


def _binary(column: Column, count: int, kind: pa.DataType, *, nullable: bool = True) -> pa.Array:
    bitmap, nulls = validity(column.valid[:count]) if nullable else (None, 0)
    ends = column.ends[: count + 1]
    data = pa.py_buffer(column.data[: ends[-1]])
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(ends), data], nulls)
