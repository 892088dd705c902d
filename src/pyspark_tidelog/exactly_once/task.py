"""A task's part of the exactly-once sink: write the rows in a transaction, and leave it open."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_tidelog.exactly_once.decision import BatchIdentity, Decision, State, TaskTransaction, task_id
from pyspark_tidelog.exactly_once.waiting import named_wait
from pyspark_tidelog.idempotent import Producer
from tidelog.client.blocking import Client, StartedOperation
from tidelog.client.errors import ClientError
from tidelog.client.operations import Produced
from tidelog.client.transactional_writes import TransactionalProducer
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode


class TaskResult(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    def __init__(
        self, identity: BatchIdentity, rows: int, transaction: TaskTransaction | None, *, is_skipped: bool
    ) -> None:
        self.identity = identity
        self.rows = rows
        """Number of rows of the task, even if it has not written them."""
        self.transaction = transaction
        """The open transaction with the rows. None if the task has no rows, or has written none."""
        self.is_skipped = is_skipped
        """Whether the task has written nothing because a decision says that its rows must not be written any more."""


class TransactionalIds:
    """The transactional ids of one Python worker process. No other process ever uses them.

    So a repeated task, or a task that still runs after its driver was killed, cannot abort the transaction of another
    task. An id is used again only for a later micro-batch of the same query, and only if the last decision proves that
    no transaction of the earlier micro-batch still waits for its commit. This keeps the number of ids small.
    """

    def __init__(self) -> None:
        self._process = -1
        self._worker = ""
        self._last_batches: dict[tuple[str, str], dict[str, int]] = {}
        """For each cluster and query: the ids, and the micro-batch in which each was used last."""

    def acquire(self, bootstrap: str, identity: BatchIdentity, decision: Decision) -> str:
        """Return an id for one transaction of the micro-batch. `decision` is the last decision, or an earlier one."""
        if self._process != os.getpid():  # in a process that was forked, the ids belong to the parent
            self._process, self._worker = os.getpid(), uuid.uuid4().hex[:12]
            self._last_batches = {}
        last_batches = self._last_batches.setdefault((bootstrap, identity.query), {})
        # No transaction of a micro-batch below this number still waits for its commit.
        committed_below = decision.batch + (decision.state is State.FINISHED)
        below = min(committed_below, identity.batch)
        name = next((name for name, batch in last_batches.items() if batch < below), None)
        name = name or task_id(identity.query, self._worker, len(last_batches))
        last_batches[name] = identity.batch
        return name


TRANSACTIONAL_IDS = TransactionalIds()


class TransactionalSender:
    """Sends record batches in rounds, all in one transaction. The transaction begins with the first round. At most one
    round is in flight.
    """

    def __init__(
        self, client: Client, bootstrap: str, identity: BatchIdentity, decision: Decision, timeout_ms: int
    ) -> None:
        """`decision` is the newest of the query's decisions that the task has read."""
        self._client = client
        self._bootstrap = bootstrap
        self._identity = identity
        self._decision = decision
        self._timeout_ms = timeout_ms
        self._stamping: Producer | None = None
        """Writes the producer id, the epoch and the sequence numbers into the batches. None before the first round."""
        self._in_flight: StartedOperation[dict[TopicPartition, Produced]] | None = None
        self.transaction: TransactionalProducer | None = None

    def send(self, batches: Mapping[TopicPartition, bytearray]) -> None:
        """Send the batches, after the acknowledgement of the previous round."""
        if self.transaction is None or self._stamping is None:
            self.transaction = self._begin()
            producer_id, epoch = self.transaction.producer_id, self.transaction.producer_epoch
            self._stamping = Producer(producer_id, epoch, is_transactional=True)
        producer = self.transaction
        new_partitions = self._stamping.stamp(batches)
        self.finish()
        if producer.version == 1 and new_partitions:
            self._client.add_partitions(producer, new_partitions)
        self._in_flight = self._client.start_produce_in_transaction(producer, batches)

    def finish(self) -> None:
        """Wait until the round in flight is acknowledged."""
        if self._in_flight is not None:
            in_flight, self._in_flight = self._in_flight, None
            in_flight.result()

    def abort(self) -> None:
        """Abort the transaction of a failed task, so that readers need not wait for its timeout. A failure to abort is
        ignored: the driver aborts the transaction later.
        """
        if self.transaction is not None:
            with suppress(ApiError, ClientError):
                self._client.end_transactions([self.transaction], commit=False)

    def _begin(self) -> TransactionalProducer:
        name = TRANSACTIONAL_IDS.acquire(self._bootstrap, self._identity, self._decision)
        try:
            with named_wait(self._identity, f"transactional id {name!r} is not ready for a transaction"):
                return self._client.init_producer(name, self._timeout_ms)
        except ApiError as error:
            if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            remedy = (
                f"the broker's transaction.max.timeout.ms is below {self._timeout_ms}: lower the option "
                "kafka.transaction.timeout.ms, or raise the broker's limit"
            )
            raise ApiError(f"{error.message}: {remedy}", error.code) from error
