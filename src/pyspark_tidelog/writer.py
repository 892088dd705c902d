"""The sink: rows are written as record batches, at least once.

A task that runs again, or a micro-batch that is replayed, writes its rows again. Written records are never removed:
`abort` may be called for messages that a later attempt commits.
"""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

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
"""Limit of the bytes of record batches that are sent before their acknowledgements are awaited."""

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


class Written(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    def __init__(self, records: int) -> None:
        self.records = records


class TidelogWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic is only ever appended to: write with mode("append")')
        check_columns(schema, options.topic)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return write_rows(self._options, iterator)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic is only ever appended to: use outputMode("append"), or foreachBatch')
        check_columns(schema, options.topic)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return write_rows(self._options, iterator)


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check the columns. Raises SchemaError.

    There must be a value column, a topic for each row, and the right type for each column that is written. Other
    columns are not written; with the option `topic`, a topic column is not written either, as in Spark's Kafka sink.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        name = next(name for name, count in Counter(schema.fieldNames()).items() if count > 1)
        raise SchemaError(f"two columns are named {name!r}: Spark hands no such rows to a sink in Python; drop one")
    if "value" not in types:
        raise SchemaError("there is no column value")
    if topic is None and "topic" not in types:
        raise SchemaError("no topic is chosen: give option topic or a topic column")
    for name, accepted_types in COLUMNS.items():
        if name not in types or (name == "topic" and topic is not None):
            continue
        if not any(_same(types[name], kind) for kind in accepted_types):
            expected = " or ".join(kind.simpleString() for kind in accepted_types)
            raise SchemaError(f"column {name} must be {expected}, not {types[name].simpleString()}")


def _same(one: DataType, other: DataType) -> bool:
    """Return whether the types are equal. Nullability and the case of the names in a struct do not count."""
    return one.simpleString().lower() == other.simpleString().lower()


class _Round(NamedTuple):
    batches: dict[TopicPartition, bytearray]
    acknowledgements: StartedOperation[dict[TopicPartition, Produced]]


class _Sender:
    """Send rounds of batches, one batch for each partition. One round is in flight while the next is encoded."""

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


def write_rows(options: WriteOptions, rows: "Iterator[pa.RecordBatch]") -> Written:
    """Write the rows of one task, in a worker.

    When it returns, every row is acknowledged. Any error is raised and fails the task.
    """
    from pyspark import TaskContext

    from pyspark_tidelog.outgoing import Outgoing

    context = TaskContext.get()
    written = 0
    with connect(options) as client:
        counts: dict[str, int] = {}

        def partition_count(topic: str) -> int:
            if topic not in counts:
                counts[topic] = len(client.topics([topic], create=True)[topic].leaders)
            return counts[topic]

        outgoing = Outgoing(
            options.topic,
            partition_count,
            lambda: time.time_ns() // 1_000_000,
            batch_bytes=options.batch_bytes,
            codec=options.codec,
            first_partition=context.partitionId() if context else 0,
        )
        sender = _Sender(client, options.acks)
        for batch in rows:
            for round_batches in rounds(outgoing.batches(batch)):
                sender.send(round_batches)
            written += batch.num_rows
        sender.finish()
    return Written(written)


def rounds(batches: dict[TopicPartition, list[bytearray]]) -> Iterator[dict[TopicPartition, bytearray]]:
    """Yield rounds of at most one batch of each partition, in order, and of ROUND_BYTES unless a batch is larger."""
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
