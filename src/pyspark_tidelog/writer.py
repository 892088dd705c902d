"""The sink. It writes rows as record batches.

Without the option `exactlyOnce`, rows are written at least once. A batch whose answer is lost is sent again, but is
appended only once (see `idempotent`). But a task that runs again, or a micro-batch that is replayed, writes its rows
again. Without the option, the sink never removes records that it has written, not even in `abort`, because Spark may
call `abort` for results of tasks that it commits in a later attempt. `exactly_once` explains what the sink does with
the option.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
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
from pyspark_tidelog.errors import OptionError, SchemaError, WriteError
from pyspark_tidelog.exactly_once.decision import BatchIdentity
from pyspark_tidelog.garbage import exempt_imported_objects
from pyspark_tidelog.idempotent import PRODUCERS, Producer
from pyspark_tidelog.options import WriteOptions
from tidelog.client.blocking import Client, StartedOperation
from tidelog.client.errors import ClientError
from tidelog.client.operations import Produced
from tidelog.model.ids import TopicPartition
from tidelog.runtime.clock import SystemClock
from tidelog.wire.errors import ApiError, RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from pyspark_tidelog.exactly_once.task import TaskResult, TransactionalSender

logger = logging.getLogger("tidelog.spark")

ROUND_BYTES = 32 << 20
"""Upper bound on the bytes of a round, unless it is a single larger batch. Only one round is in flight at a time."""

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


class _Writer:
    """The parts that the writers of batch and of streaming queries have in common."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic, include_timestamp=options.include_timestamp)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        write = write_rows_once if self._options.exactly_once else write_rows
        result = write(self._options, iterator)
        exempt_imported_objects("write")
        return result

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the transactions of the tasks, in the driver. Do nothing unless the write is exactly once."""
        from pyspark_tidelog.exactly_once.driver import commit_batch

        results = _task_results(messages)
        if results:
            with connect(self._options) as client:
                commit_batch(client, results[0].identity, results, self._options.transaction_timeout_ms)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of the tasks, in the driver, or commit them if a decision lists them. Do nothing
        unless the write is exactly once. Failures are only logged, because Spark reports the error that caused the
        abort.
        """
        from pyspark_tidelog.exactly_once.driver import abort_batch

        results = _task_results(messages)
        if results:
            try:
                with connect(self._options) as client:
                    abort_batch(client, results[0].identity, results, self._options.transaction_timeout_ms)
            except (ApiError, ClientError, WriteError) as error:
                logger.warning("the abort of %s is not complete: %s", results[0].identity, error)


def _task_results(messages: Sequence[WriterCommitMessage | None]) -> "list[TaskResult]":
    """Return the results of exactly-once tasks. The message of a failed task is None."""
    from pyspark_tidelog.exactly_once.task import TaskResult

    return [message for message in messages if isinstance(message, TaskResult)]


class TidelogWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic only accepts appended rows: write with mode("append")')
        if options.exactly_once and options.identity is None:
            raise OptionError(
                "option exactlyOnce needs exactlyOnceId and exactlyOnceBatch in a batch write: they name the batch, "
                "so that it is written only once"
            )
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class TidelogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic only accepts appended rows: use outputMode("append"), or foreachBatch')
        if options.identity is not None:
            raise OptionError(
                "options exactlyOnceId and exactlyOnceBatch are for batch writes: Spark names the micro-batches of a "
                "streaming query; remove the options"
            )
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


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
        raise SchemaError("there is no column named value")
    if topic is None and "topic" not in types:
        raise SchemaError("no topic is chosen: give option topic or a topic column")
    columns = COLUMNS | ({TIMESTAMP: (TimestampType(),)} if include_timestamp else {})
    if include_timestamp and TIMESTAMP not in types:
        raise SchemaError("option includeTimestamp is true, but there is no column named timestamp")
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
    """Sends rounds of batches. A round has at most one batch of each partition. A round is in flight until it is
    acknowledged. Before `send` sends a round, it waits until no round is in flight.
    """

    def __init__(self, client: Client, acks: int, producer: Producer | None) -> None:
        """Without `producer`, a batch whose answer is lost may be appended twice."""
        self._client = client
        self._acks = acks
        self._producer = producer
        self._in_flight: _Round | None = None

    def send(self, batches: dict[TopicPartition, bytearray]) -> None:
        if self._producer is not None:
            self._producer.stamp(batches)
        self.finish()
        self._in_flight = _Round(batches, self._client.start_produce(batches, self._acks))

    def finish(self) -> None:
        """Wait until the round in flight is acknowledged."""
        if self._in_flight is None:
            return
        in_flight, self._in_flight = self._in_flight, None
        in_flight.acknowledgements.result()


def write_rows(options: WriteOptions, rows: "Iterator[pa.RecordBatch]") -> WriteResult:
    """Write the rows of one task at least once, in a worker.

    When this function returns, the brokers have acknowledged every row. Any error is raised, so that the task fails.
    """
    with connect(options) as client:
        producer = PRODUCERS.acquire(client, options.bootstrap) if options.idempotent else None
        try:
            return WriteResult(_send_rows(options, client, _Sender(client, options.acks, producer), rows))
        except BaseException:
            PRODUCERS.discard(options.bootstrap)
            raise


def write_rows_once(options: WriteOptions, rows: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
    """Write the rows of one task in a transaction, in a worker. The transaction remains open.

    If a decision says that the rows must not be written any more, write nothing. They have been written, or their
    micro-batch was left out, and a later one is decided. In the latter case, `commit_batch` raises an error in the
    driver, so the rows are not lost without a message.
    """
    from pyspark import TaskContext

    from pyspark_tidelog.exactly_once.decision import TaskTransaction
    from pyspark_tidelog.exactly_once.driver import read_decision
    from pyspark_tidelog.exactly_once.task import TaskResult, TransactionalSender

    context = TaskContext.get()
    assert context is not None
    task = context.partitionId()
    identity = options.identity or _streaming_identity(context)
    with connect(options) as client:
        decision = read_decision(client, identity)
        if decision.covers(identity.batch):
            # Spark expects that a task reads its input, and the driver needs the number of rows.
            return TaskResult(identity, sum(batch.num_rows for batch in rows), None, is_skipped=True)
        written_tasks = decision.written_tasks(identity.batch)
        if task in written_tasks:
            count = sum(batch.num_rows for batch in rows)
            if count != written_tasks[task]:
                raise WriteError(
                    f"task {task} of {identity} has {count} rows now, but had {written_tasks[task]} when they were "
                    "written: the query must compute the same rows again, so that only the missing rows are written"
                )
            return TaskResult(identity, count, None, is_skipped=True)
        sender = TransactionalSender(client, options.bootstrap, identity, decision, options.transaction_timeout_ms)
        try:
            count = _send_rows(options, client, sender, rows)
        except BaseException:
            sender.abort()
            raise
        producer = sender.transaction
        transaction = TaskTransaction(task, count, producer) if producer is not None else None
        return TaskResult(identity, count, transaction, is_skipped=False)


def _streaming_identity(context: "TaskContext") -> BatchIdentity:
    """Return the identity of the micro-batch that this task belongs to."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise WriteError("Spark does not name the micro-batch of this task: use foreachBatch with exactlyOnceId")
    return BatchIdentity(query, int(batch))


def _send_rows(
    options: WriteOptions, client: Client, sender: "_Sender | TransactionalSender", rows: "Iterator[pa.RecordBatch]"
) -> int:
    """Send the rows, and return their number when the brokers have acknowledged every row."""
    from pyspark import TaskContext

    from pyspark_tidelog.outgoing import BatchEncoder

    context = TaskContext.get()
    written = 0
    counts: dict[str, int] = {}

    def partition_count(topic: str) -> int:
        if topic not in counts:
            counts[topic] = len(client.topics([topic], create=True)[topic].leaders)
        return counts[topic]

    encoder = BatchEncoder(
        options.topic,
        partition_count,
        SystemClock.now_ms,
        batch_bytes=options.batch_bytes,
        codec=options.codec,
        first_partition=context.partitionId() if context else 0,
        include_timestamp=options.include_timestamp,
    )
    try:
        for batch in rows:
            for round_batches in split_into_rounds(encoder.batches(batch)):
                sender.send(round_batches)
            written += batch.num_rows
        sender.finish()
    except RecordTooLarge as error:
        remedy = "raise the topic's max.message.bytes, or, if the batch has several records, lower kafka.batch.size"
        raise RecordTooLarge(f"{error.message}: {remedy}") from error
    return written


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
