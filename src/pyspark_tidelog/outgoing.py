"""Convert Arrow batches, which Spark passes to a writer, into record batches, each for one partition."""

import re
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidelog import compiled
from pyspark_tidelog.decode_kernel import Bytes, Int64s
from pyspark_tidelog.encode_kernel import Records, Strings, assign_partitions, encode
from pyspark_tidelog.errors import SchemaError, counted
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, LENGTH_END, MAGIC, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.compression import compress
from tidelog.wire.records import Record, encode_batch

BY_KEY = -1
"""Marks a row whose partition is not known yet. Its key determines the partition. Without a key, any partition may
be used."""

COLUMN_NAMES = ("key", "value", "headers", "topic", "partition")
"""The columns that the sink uses besides TIMESTAMP. Other columns are never accessed, because pyarrow may not support
their types."""
TIMESTAMP = "timestamp"
"""The column that the sink also uses if the option includeTimestamp is set."""

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_AT = 17
_CRC_FROM = 21
_ATTRIBUTES = Struct(">h")
_TRANSACTIONAL = 0x10
"""Bit of the attributes that marks a batch of a transaction."""
_PRODUCER = Struct(">qhii")
_PRODUCER_AT = 43
"""Position in a batch of the fields that _PRODUCER describes: the producer's id and epoch, the base sequence number,
the number of records."""

Columns: TypeAlias = Mapping[str, pa.Array]


class BatchEncoder:
    """Converts the rows of one task to record batches.

    `partition_count(topic)` is called for each topic of each Arrow batch, and should therefore cache its results.
    """

    def __init__(
        self,
        topic: str | None,
        partition_count: Callable[[str], int],
        now_ms: Callable[[], int],
        *,
        batch_bytes: int,
        codec: Codec,
        first_partition: int,
        include_timestamp: bool = False,
    ) -> None:
        """With `include_timestamp`, the column `timestamp` contains the timestamps of the records."""
        self._topic = topic
        self._column_names = (*COLUMN_NAMES, TIMESTAMP) if include_timestamp else COLUMN_NAMES
        self._partition_count = partition_count
        self._now_ms = now_ms
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._next_turn = first_partition
        """The number of the next group of rows without a key. The group's partition is this number modulo the number
        of partitions. Tasks begin with different numbers, so that they do not all begin with the same partition."""

    def batches(self, rows: pa.RecordBatch) -> dict[TopicPartition, list[bytearray]]:
        """Return the rows as record batches, in order within each partition. Raises SchemaError for invalid values."""
        columns = {name: rows.column(i) for i, name in enumerate(rows.schema.names) if name in self._column_names}
        records = records_of(columns, self._now_ms)
        batches: dict[TopicPartition, list[bytearray]] = {}
        for topic, row_numbers in self._by_topic(columns, rows.num_rows):
            targets = self._targets(topic, columns, records, row_numbers)
            order = np.argsort(targets, kind="stable")
            for group in np.split(order, np.flatnonzero(np.diff(targets[order])) + 1):
                if len(group):
                    partition = TopicPartition(topic, int(targets[group[0]]))
                    batches[partition] = list(self._encode(columns, records, row_numbers[group]))
        return batches

    def _by_topic(self, columns: Columns, count: int) -> Iterator[tuple[str, Int64s]]:
        if self._topic is not None:
            yield self._topic, np.arange(count)
            return
        column = columns["topic"]
        if column.null_count:
            raise SchemaError("column topic is null in some row, and option topic is not given")
        names = column.dictionary_encode()
        codes = names.indices.to_numpy()
        for code, name in enumerate(_valid_text(names.dictionary).to_pylist()):
            yield name, np.flatnonzero(codes == code)

    def _targets(self, topic: str, columns: Columns, records: Records, row_numbers: Int64s) -> Any:
        """Return the partition of each of these rows.

        A row's partition is the value of the partition column. If this value is missing, the row's key determines
        the partition. If the key is missing, too, `_partitions_in_turn` assigns the partition. Raises SchemaError if
        the partition column contains a partition that the topic does not have.
        """
        count = self._partition_count(topic)
        targets = np.full(len(records.keys.valid), BY_KEY, np.int32)
        if "partition" in columns:
            column = columns["partition"]
            targets[:] = pc.fill_null(column, BY_KEY).to_numpy()
            invalid = column.is_valid().to_numpy(zero_copy_only=False) & ((targets < 0) | (targets >= count))
            if invalid[row_numbers].any():
                value = targets[row_numbers][invalid[row_numbers]][0]
                has = counted(count, "partition")
                raise SchemaError(f"column partition has the value {value}; topic {topic} has {has}")
        assign_partitions(records.keys, count, targets)
        row_targets: Any = targets[row_numbers]
        keyless = np.flatnonzero(row_targets == BY_KEY)
        if len(keyless):
            row_targets[keyless] = self._partitions_in_turn(columns, len(keyless), count)
        return row_targets

    def _partitions_in_turn(self, columns: Columns, rows: int, count: int) -> Any:
        """Return partitions for rows without a key. The rows are divided into groups that are about as large as one
        record batch. Each group is assigned to the partition that follows the previous group's partition.
        """
        average = columns["value"].nbytes // max(1, len(columns["value"])) + 1
        group_rows = max(1, self._batch_bytes // average)
        turn_numbers = self._next_turn + np.arange(rows) // group_rows
        self._next_turn = int(turn_numbers[-1]) + 1
        return (turn_numbers % count).astype(np.int32)

    def _encode(self, columns: Columns, records: Records, row_numbers: Int64s) -> Iterator[bytearray]:
        if not compiled.AVAILABLE:
            yield from self._encode_without_numba(columns, row_numbers)
            return
        target = np.empty(self._batch_bytes, np.uint8)
        first = 0
        while first < len(row_numbers):
            after, size = encode(records, row_numbers, first, target, 0)
            encoded = target[:size]
            if after == first:  # the record is larger than batch_bytes, and is the only one of its batch
                large = np.empty(size, np.uint8)
                after, size = encode(records, row_numbers[: first + 1], first, large, 0)
                encoded = large[:size]
            if len(records.timestamps):
                times = records.timestamps[row_numbers[first:after]]
                base_ms, last_ms = int(times[0]), int(times.max())
            else:
                base_ms = last_ms = self._now_ms()
            yield self._finish_batch(encoded, after - first, base_ms, last_ms)
            first = after

    def _finish_batch(self, records: Bytes, count: int, base_ms: int, last_ms: int) -> bytearray:
        """Compress encoded records, and return a batch with header and CRC. `base_ms` is the timestamp of the first
        record, and `last_ms` is the largest timestamp.
        """
        data = compress(self._codec, memoryview(records))  # type: ignore[arg-type]  # an array is a buffer
        batch = bytearray(HEADER_BYTES)
        length = HEADER_BYTES - LENGTH_END + len(data)
        codec = int(self._codec)
        _HEADER.pack_into(batch, 0, 0, length, -1, MAGIC, 0, codec, count - 1, base_ms, last_ms, -1, -1, -1, count)
        batch += data
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
        return batch

    def _encode_without_numba(self, columns: Columns, row_numbers: Int64s) -> Iterator[bytearray]:
        """Encode in plain Python, because numba is not installed."""
        batch: list[Record] = []
        size = 0
        for record in _python_records(columns, row_numbers, self._now_ms):
            record_bytes = (
                len(record.key or b"")
                + len(record.value or b"")
                + sum(len(n) + len(v or b"") for n, v in record.headers)
            )
            if batch and size + record_bytes > self._batch_bytes:
                yield encode_batch(batch, codec=self._codec)
                batch, size = [], 0
            batch.append(record)
            size += record_bytes
        if batch:
            yield encode_batch(batch, codec=self._codec)


def stamp(batch: bytearray, producer_id: int, producer_epoch: int, sequence: int, *, is_transactional: bool) -> int:
    """Assign a finished batch to a producer: write the producer's id and epoch, the sequence number of the first
    record, and the CRC into the header of the batch. With `is_transactional`, also mark the batch as part of a
    transaction. Return the number of records.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)
    count: int = _PRODUCER.unpack_from(batch, _PRODUCER_AT)[3]
    _ATTRIBUTES.pack_into(batch, _CRC_FROM, attributes | (_TRANSACTIONAL if is_transactional else 0))
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, sequence, count)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
    return count


def next_sequence(sequence: int, records: int) -> int:
    """Return the sequence number after `records` records. After the largest int32, 0 follows."""
    return (sequence + records) % (1 << 31)


def records_of(columns: Columns, now_ms: Callable[[], int]) -> Records:
    """Return the columns in the form that the compiled code reads. Raises SchemaError if a header's key is null."""
    count = len(columns["value"])
    keys = columns.get("key", pa.nulls(count, pa.binary()))
    lists = columns.get("headers")
    if lists is None:
        ends, names, values = np.zeros(count + 1, np.int32), pa.array([], pa.binary()), pa.array([], pa.binary())
    else:
        ends = lists.offsets.to_numpy()
        names, values = lists.values.flatten()
        if names.null_count:
            raise SchemaError("column headers has a header whose key is null")
    timestamps = _read_only(_timestamps_ms(columns, now_ms))
    return Records(
        _strings(keys), _strings(columns["value"]), _read_only(ends), _strings(names), _strings(values), timestamps
    )


BINARY_HEADERS = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Matches the three bytes that stand for half of a surrogate pair. They are not valid UTF-8: Java replaces them by one
character, Python by three."""


def _valid_text(strings: pa.Array) -> pa.Array:
    """Return the strings with U+FFFD instead of bytes that are not valid UTF-8, as in Java. The array must not contain
    nulls. Spark does not check strings, and Python cannot decode such bytes.
    """
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        found = strings.view(pa.binary()).to_pylist()
        replaced = [SURROGATE.sub(REPLACEMENT, each).decode("utf-8", "replace") for each in found]
        return pa.array(replaced, pa.string())
    return strings


def _timestamps_ms(columns: Columns, now_ms: Callable[[], int]) -> Int64s:
    """Return the timestamp of each row in milliseconds, rounded down. A row whose timestamp is null gets the current
    time. Return an empty array if there is no column of timestamps.
    """
    column = columns.get(TIMESTAMP)
    if column is None:
        return np.empty(0, np.int64)
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    timestamps: Int64s = pc.fill_null(microseconds, now_ms() * 1000).to_numpy() // 1000
    return timestamps


def _strings(column: pa.Array) -> Strings:
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())  # for example from large_binary, or from the type null
    _, ends, data = column.buffers()
    offsets = np.frombuffer(ends, np.int32)[column.offset :][: len(column) + 1] if ends else np.zeros(1, np.int32)
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return Strings(_read_only(offsets), _read_only(valid), _read_only(np.frombuffer(data or b"", np.uint8)))


def _read_only(array: Any) -> Any:
    """Make an array read-only. numba regards writable arrays as a different type, and would compile the code again
    for this type.
    """
    array.flags.writeable = False
    return array


def _python_records(columns: Columns, row_numbers: Int64s, now_ms: Callable[[], int]) -> Iterator[Record]:
    columns = {name: column.take(pa.array(row_numbers)) for name, column in columns.items()}
    for name in ("key", "value"):
        if name in columns:
            columns[name] = columns[name].cast(pa.binary())  # a string may have bytes that are not UTF-8
    timestamps = _timestamps_ms(columns, now_ms).tolist() or [now_ms()] * len(row_numbers)
    if "headers" in columns:
        columns["headers"] = columns["headers"].cast(BINARY_HEADERS)
    cells = {name: columns[name].to_pylist() for name in ("key", "value", "headers") if name in columns}
    for i in range(len(row_numbers)):
        entries = cells["headers"][i] if "headers" in cells else None
        headers = [(each["key"].decode("utf-8", "surrogateescape"), each["value"]) for each in entries or ()]
        key = cells["key"][i] if "key" in cells else None
        yield Record(key, cells["value"][i], timestamps[i], headers)
