"""Convert record batches of one topic partition to Arrow record batches with the columns that Spark requests."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from pyspark_tidelog.decode import HEADERS, Decoded, MalformedRecords, Payload, decoder
from pyspark_tidelog.decode_kernel import WANT_HEADERS, WANT_KEY, WANT_VALUE, Bytes
from pyspark_tidelog.fetched import damaged
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import DECOMPRESSED_BYTES_MAX, HEADER_BYTES, BatchHeader, Codec
from tidelog.wire.compression import decompress
from tidelog.wire.primitives import Buffer, MalformedMessage

ROWS_MAX = 64 << 10
"""Upper bound on the rows of one Arrow batch."""
BYTES_MAX = 8 << 20
"""Limit of the record bytes that are decoded to one Arrow batch, including records outside the requested range. A
single record batch may have more bytes."""

COLUMN_FLAGS = {"key": WANT_KEY, "value": WANT_VALUE, "headers": WANT_HEADERS}
TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}


class ArrowRows:
    """Converts the batches of one partition. `columns` are keys of TYPES, in the order that Spark expects."""

    def __init__(self, partition: TopicPartition, columns: tuple[str, ...]) -> None:
        self._partition = partition
        self._wanted = sum(COLUMN_FLAGS.get(name, 0) for name in columns)
        self._decode = decoder()
        self._schema = pa.schema([pa.field(name, TYPES[name]) for name in columns])
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())

    def batches(self, headers: Iterable[BatchHeader], low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Copy the records with low <= offset < high, and yield them as Arrow batches. Raises DamagedBatch."""
        pending: list[Payload] = []
        count = size = 0
        for header in headers:
            payload = self._payload(header, pending)
            if pending and (count + header.count > ROWS_MAX or size + payload.size > BYTES_MAX):
                yield from self._arrow(pending, low, high)
                pending, count, size = [], 0, 0
            pending.append(payload)
            count += header.count
            size += payload.size
        if pending:
            yield from self._arrow(pending, low, high)

    def _payload(self, header: BatchHeader, pending: list[Payload]) -> Payload:
        """Return the decompressed records of a batch. Consecutive uncompressed batches of a buffer share an array."""
        begin, end = header.position + HEADER_BYTES, header.position + header.size
        if header.codec != Codec.NONE:
            try:
                decompressed = decompress(header.codec, memoryview(header.buffer)[begin:end], DECOMPRESSED_BYTES_MAX)
            except MalformedMessage as malformed:
                raise damaged(self._partition, header.base_offset, str(malformed)) from malformed
            data = _array(decompressed)
            return Payload(header, data, 0, len(data))
        if pending and pending[-1].header.buffer is header.buffer and pending[-1].header.codec == Codec.NONE:
            return Payload(header, pending[-1].data, begin, end)
        return Payload(header, _array(header.buffer), begin, end)

    def _arrow(self, payloads: list[Payload], low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as one Arrow batch, or nothing if there are none.

        A single record batch may have more than ROWS_MAX rows. So if `payloads` is a single record batch, its range of
        offsets is divided into parts of ROWS_MAX offsets, and each part that contains rows becomes one Arrow batch.
        """
        low = max(low, payloads[0].header.base_offset)
        high = min(high, payloads[-1].header.next_offset)
        step = ROWS_MAX if len(payloads) == 1 else max(1, high - low)
        for begin in range(low, high, step):
            try:
                decoded = self._decode(payloads, begin, min(begin + step, high), self._wanted)
            except MalformedRecords as malformed:
                raise damaged(self._partition, malformed.header.base_offset, str(malformed)) from malformed
            if len(decoded.offsets):
                yield self._record_batch(decoded)

    def _record_batch(self, decoded: Decoded) -> pa.RecordBatch:
        count = len(decoded.offsets)
        self._fill_constants(count)
        columns = {
            "key": decoded.keys,
            "value": decoded.values,
            "topic": self._topics[:count],
            "partition": self._partitions[:count],
            "offset": _numbers(decoded.offsets, pa.int64()),
            "timestamp": _numbers(decoded.timestamps_us, TYPES["timestamp"]),
            "timestampType": _numbers(decoded.timestamp_types, pa.int32()),
            "headers": decoded.headers,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _fill_constants(self, count: int) -> None:
        """Make the topic and partition columns at least `count` rows long. A batch gets slices of these columns. They
        are built again only if they are too short.
        """
        if len(self._topics) >= count:
            return
        name = self._partition.topic.encode()
        ends = np.arange(count + 1, dtype=np.int32) * len(name)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(name * count)]
        self._topics = pa.Array.from_buffers(pa.string(), count, buffers, 0)
        self._partitions = pa.array(np.full(count, self._partition.partition, np.int32))


def _array(buffer: Buffer) -> Bytes:
    data = np.frombuffer(buffer, np.uint8)
    data.flags.writeable = False  # numba regards writable arrays as a different type
    return data


def _numbers(values: "np.typing.NDArray[np.int64] | np.typing.NDArray[np.int32]", kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))], 0)
