"""The sink. It writes rows as record batches, at least once.

A task that runs again, or a micro-batch that is replayed, writes its rows again. The sink never removes records that
it has written, not even in `abort`, because Spark may commit the results of the same tasks in a later attempt.
"""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_tidelog.connecting import connect
from pyspark_tidelog.errors import OptionError, SchemaError
from pyspark_tidelog.options import WriteOptions
from tidelog.client.blocking import Client, StartedOperation
from tidelog.client.operations import Produced
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa


ROUND_BYTES = 32 << 20
"""Limit of the bytes of record batches that are sent before the sink waits for their acknowledgements."""

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}
TIMESTAMP = "timestamp"


class WriteResult(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    def __init__(self, records: int) -> None:
        self.records = records


class TidelogWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic only accepts appended rows: write with mode("append")')
        check_columns(schema, options.topic, include_timestamp=options.include_timestamp)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return write_rows(self._options, iterator)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic only accepts appended rows: use outputMode("append"), or foreachBatch')
        check_columns(schema, options.topic, include_timestamp=options.include_timestamp)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return write_rows(self._options, iterator)


def check_columns(schema: StructType, topic: str | None, *, include_timestamp: bool = False) -> None:
    """Raise SchemaError if the columns cannot be written.

    A value column is required. A topic column is required unless the option `topic` is set. A timestamp column is
    required with the option `includeTimestamp`. The columns of COLUMNS must have the right types. Other columns are
    ignored. With the option `topic`, a topic column is also ignored, as in Spark's Kafka sink.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        name = next(name for name, count in Counter(schema.fieldNames()).items() if count > 1)
        raise SchemaError(f"two columns are named {name!r}: Spark cannot pass such rows to a sink in Python; drop one")
    if "value" not in types:
        raise SchemaError("there is no column value")
    if topic is None and "topic" not in types:
        raise SchemaError("no topic is chosen: give option topic or a topic column")
    columns = COLUMNS | ({TIMESTAMP: (TimestampType(),)} if include_timestamp else {})
    if include_timestamp and TIMESTAMP not in types:
        raise SchemaError("option includeTimestamp is true, but there is no column timestamp")
    for name, accepted_types in columns.items():
        if name not in types or (name == "topic" and topic is not None):
            continue
        if not any(_is_same_type(types[name], kind) for kind in accepted_types):
            expected = " or ".join(kind.simpleString() for kind in accepted_types)
            raise SchemaError(f"column {name} must be {expected}, not {types[name].simpleString()}")


def _is_same_type(left: DataType, right: DataType) -> bool:
    """Return whether the types are equal. Nullability and, in a struct, the case of the names are ignored."""
    return left.simpleString().lower() == right.simpleString().lower()


class _Round(NamedTuple):
    batches: dict[TopicPartition, bytearray]
    acknowledgements: StartedOperation[dict[TopicPartition, Produced]]


class _Sender:
    """Sends rounds of batches. A round has at most one batch of each partition. `send` first waits for the
    acknowledgement of the previous round. Until then, that round is in flight.
    """

    def __init__(self, client: Client, acks: int) -> None:
        self._client = client
        self._acks = acks
        self._in_flight: _Round | None = None

    def send(self, batches: dict[TopicPartition, bytearray]) -> None:
        self.finish()
        self._in_flight = _Round(batches, self._client.start_produce(batches, self._acks))

    def finish(self) -> None:
        """Wait until the round in flight is acknowledged."""
        if self._in_flight is None:
            return
        in_flight, self._in_flight = self._in_flight, None
        try:
            in_flight.acknowledgements.result()
        except RecordTooLarge as error:
            remedy = "raise the topic's max.message.bytes, or lower kafka.batch.size for batches of several records"
            raise RecordTooLarge(f"{error.message}: {remedy}") from error


def write_rows(options: WriteOptions, rows: "Iterator[pa.RecordBatch]") -> WriteResult:
    """Write the rows of one task, in a worker.

    When this function returns, the brokers have acknowledged every row. Any error is raised, so that the task fails.
    """
    from pyspark import TaskContext

    from pyspark_tidelog.outgoing import BatchEncoder

    context = TaskContext.get()
    written = 0
    with connect(options) as client:
        counts: dict[str, int] = {}

        def partition_count(topic: str) -> int:
            if topic not in counts:
                counts[topic] = len(client.topics([topic], create=True)[topic].leaders)
            return counts[topic]

        encoder = BatchEncoder(
            options.topic,
            partition_count,
            lambda: time.time_ns() // 1_000_000,
            batch_bytes=options.batch_bytes,
            codec=options.codec,
            first_partition=context.partitionId() if context else 0,
            include_timestamp=options.include_timestamp,
        )
        sender = _Sender(client, options.acks)
        for batch in rows:
            for round_batches in split_into_rounds(encoder.batches(batch)):
                sender.send(round_batches)
            written += batch.num_rows
        sender.finish()
    return WriteResult(written)


def split_into_rounds(batches: dict[TopicPartition, list[bytearray]]) -> Iterator[dict[TopicPartition, bytearray]]:
    """Yield rounds of batches. The batches of one partition are in different rounds, in order.

    A round has at most one batch of each partition, and at most ROUND_BYTES unless it is a single larger batch.
    """
    for next_batches in zip_longest(*batches.values()):
        round_batches: dict[TopicPartition, bytearray] = {}
        size = 0
        for partition, batch in zip(batches, next_batches, strict=True):
            if batch is None:
                continue
            if round_batches and size + len(batch) > ROUND_BYTES:
                yield round_batches
                round_batches, size = {}, 0
            round_batches[partition] = batch
            size += len(batch)
        if round_batches:
            yield round_batches
