"""Choose one of the two decoders that convert record batches to Arrow columns, and define their common types."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_tidelog import compiled
from pyspark_tidelog.decode_kernel import Bytes, Int32s, Int64s
from tidelog.wire.batches import BatchHeader


class Payload(NamedTuple):
    """The decompressed records of one batch: `data[begin:end]`."""

    header: BatchHeader
    data: Bytes
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class Decoded(NamedTuple):
    """Columns of equal length. A column that was not requested is None."""

    offsets: Int64s
    timestamps_us: Int64s
    timestamp_types: Int32s
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None


class MalformedRecords(ValueError):
    """The records of a batch do not have the format of KIP-98. `header` is the header of the batch."""

    def __init__(self, header: BatchHeader, reason: str) -> None:
        super().__init__(reason)
        self.header = header

    @classmethod
    def at(cls, header: BatchHeader, position: int) -> "MalformedRecords":
        """Return the error for a malformed record near the position `position` in the batch's decompressed records."""
        return cls(header, f"malformed record at byte {position} of the batch's records")


Decode: TypeAlias = Callable[[list[Payload], int, int, int], Decoded]
"""`decode(payloads, low, high, wanted)` returns the records with low <= offset < high. `wanted` is a sum of `WANT_*`
(see `decode_kernel`) that selects the columns. Raises MalformedRecords."""


def decoder() -> Decode:
    """Return the compiled decoder if numba is installed, else the numpy decoder, which is about ten times slower."""
    if compiled.AVAILABLE:
        from pyspark_tidelog.decode_compiled import decode
    else:
        from pyspark_tidelog.decode_numpy import decode
    return decode


HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))


def headers_array(bounds: Int32s, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return the list of headers of each record. As in Spark's Kafka source, the list is null for a record without
    headers. A header key that is not UTF-8 keeps its bytes, so that a query that copies a topic copies the key exactly.

    Record i has the headers `bounds[i]:bounds[i + 1]`, so there is one bound more than there are records.
    """
    counts = np.diff(bounds)
    items = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    bitmap, nulls = validity(counts > 0)
    offsets = pa.py_buffer(np.ascontiguousarray(bounds, np.int32))
    return pa.Array.from_buffers(HEADERS, len(counts), [bitmap, offsets], nulls, children=[items])


def validity(valid: "np.typing.NDArray[np.bool_] | Bytes") -> tuple[pa.Buffer | None, int]:
    """Return an Arrow validity bitmap and the number of nulls. The bitmap is None if there are no nulls."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls
