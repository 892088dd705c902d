"""Record batches to Arrow columns: what both decoders take and give, and the choice between them."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_tidelog import compiled
from pyspark_tidelog.decode_kernel import Bytes, Int32s, Int64s
from tidelog.wire.batches import BatchHeader


class Payload(NamedTuple):
    """The records of one batch, no longer compressed: `data[begin:end]`."""

    header: BatchHeader
    data: Bytes
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class Decoded(NamedTuple):
    """Columns of equal length. One that was not wanted is None."""

    offsets: Int64s
    timestamps_us: Int64s
    timestamp_types: Int32s
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None


class MalformedRecords(ValueError):
    """The records of a batch are not as KIP-98 has them. `position` is where, in the data of the payload."""

    def __init__(self, header: BatchHeader, position: int) -> None:
        super().__init__(f"malformed record at byte {position} of the batch's records")
        self.header = header


Decode: TypeAlias = Callable[[list[Payload], int, int, int], Decoded]
"""`decode(payloads, low, high, wanted)`: the records with low <= offset < high. Raises MalformedRecords."""


def decoder() -> Decode:
    """By compiled code where numba is installed, else by numpy, at about a tenth of the speed."""
    if compiled.AVAILABLE:
        from pyspark_tidelog.decode_compiled import decode
    else:
        from pyspark_tidelog.decode_numpy import decode
    return decode


HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))


def headers_array(ends: Int32s, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of headers; null, as in Spark's Kafka source, for a record without any."""
    counts = np.diff(ends)
    items = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    bitmap, nulls = validity(counts > 0)
    offsets = pa.py_buffer(np.ascontiguousarray(ends, np.int32))
    return pa.Array.from_buffers(HEADERS, len(counts), [bitmap, offsets], nulls, children=[items])


def validity(valid: "np.typing.NDArray[np.bool_] | Bytes") -> tuple[pa.Buffer | None, int]:
    """An Arrow bitmap and the number of nulls; no bitmap when there are none."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls
