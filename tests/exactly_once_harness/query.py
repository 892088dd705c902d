"""A query that writes exactly once, as Spark runs it: tasks in worker processes, then the driver."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from exactly_once_harness.transactions import stable_ends
from pyspark_tidelog import writer
from pyspark_tidelog.batch_reader import RangePartition, read_partition
from pyspark_tidelog.exactly_once import task
from pyspark_tidelog.exactly_once.decision import BatchIdentity, Decision, decode, group_of
from pyspark_tidelog.exactly_once.driver import abort_batch, commit_batch
from pyspark_tidelog.exactly_once.task import TaskResult, TransactionalIds
from pyspark_tidelog.options import WriteOptions, read_options, write_options
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.writer import write_rows_once
from tidelog.client.blocking import Client, ClientConfig, Ticket
from tidelog.client.cluster import Address
from tidelog.client.errors import BrokerUnreachable, ClientError
from tidelog.client.operations import Ask, Backoff
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.describe_transactions import DescribeTransactionsResponse

COORDINATOR_CODES = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class Killed(BaseException):
    """The process died. No handler of exceptions may run, so this is not an Exception."""


class MortalClient(Client):
    """A client whose process dies at its request number `dies_at`: before it sends the request, or after."""

    def __init__(self, bootstrap: str, dies_at: int, *, after_sending: bool) -> None:
        super().__init__(bootstrap)
        self._remaining = dies_at
        self._after_sending = after_sending

    def ask_any(self, request: Message, deadline: float) -> Message:
        self._die_before()
        answer = super().ask_any(request, deadline)
        self._die_after()
        return answer

    def send_all(self, ask: Ask, deadline: float) -> list[Ticket]:
        """Of several requests, the process sends only the first half before it dies."""
        if len(ask.requests) > 1 and self._remaining == 0:
            super().send_all(Ask(ask.requests[: len(ask.requests) // 2]), deadline)
            raise Killed
        self._die_before()
        tickets = super().send_all(ask, deadline)
        if self._remaining == 0 and self._after_sending:
            self.collect(tickets, deadline)  # the broker has executed the request, and nobody processes the response
        self._die_after()
        return tickets

    def _die_before(self) -> None:
        if self._remaining == 0 and not self._after_sending:
            raise Killed

    def _die_after(self) -> None:
        if self._remaining == 0:
            raise Killed
        self._remaining -= 1


class LoadingClient(Client):
    """A client of a coordinator that restarts: the first `failures` requests DescribeTransactions fail, in turn because
    the connection breaks and because the coordinator is not ready.
    """

    def __init__(self, bootstrap: str, failures: int, default_api_timeout_ms: int) -> None:
        config = ClientConfig(backoff=Backoff(1, 2), default_api_timeout_ms=default_api_timeout_ms)
        super().__init__(bootstrap, config)
        self._failures = failures
        self.described = 0

    def collect(self, tickets: list[Ticket], deadline: float) -> list[Message | ClientError]:
        return [self._changed(answer) for answer in super().collect(tickets, deadline)]

    def _changed(self, answer: Message | ClientError) -> Message | ClientError:
        if not isinstance(answer, DescribeTransactionsResponse):
            return answer
        self.described += 1
        if self.described > self._failures:
            return answer
        if self.described % 4 == 0:
            return BrokerUnreachable(Address("broker", 9092), "connection reset")
        for state in answer.transaction_states:
            state.error_code = COORDINATOR_CODES[self.described % 4 - 1]
        return answer


class Context:
    """The part of Spark's TaskContext that the sink uses."""

    def __init__(self, task: int) -> None:
        self._task = task

    def partitionId(self) -> int:
        return self._task


class Query:
    """One query, with the topic that it writes to."""

    def __init__(self, bootstrap: str, name: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.topic = f"to-{name}"
        self._options = {key.replace("__", "."): str(value) for key, value in options.items()}
        self._monkeypatch = monkeypatch
        with Client(bootstrap) as client:
            client.topics([self.topic], create=True)

    def identity(self, batch: int) -> BatchIdentity:
        return BatchIdentity(self.name, batch)

    def options(self, batch: int) -> WriteOptions:
        return write_options(
            {
                "kafka.bootstrap.servers": self.bootstrap,
                "topic": self.topic,
                "exactlyOnce": "true",
                "exactlyOnceId": self.name,
                "exactlyOnceBatch": str(batch),
                **self._options,
            }
        )

    def decision(self) -> Decision:
        """Return the last decision, when its transaction has ended."""
        with Client(self.bootstrap) as client:
            return decode(self.name, client.offsets_with_metadata(group_of(self.name), require_stable=True))

    def new_worker(self) -> None:
        """The next tasks run in a new worker process."""
        self._monkeypatch.setattr(task, "TRANSACTIONAL_IDS", TransactionalIds())

    def run_task(self, batch: int, number: int, values: Iterable[str], client: Client | None = None) -> TaskResult:
        """Run one task, with the rows `values`."""
        rows = (pa.record_batch({"value": pa.array([value.encode()])}) for value in values)
        # Only the write sees a task: a read in a task would exempt this process's objects from garbage collections.
        with self._monkeypatch.context() as patched:
            patched.setattr(pyspark.TaskContext, "get", lambda: Context(number))
            if client is not None:
                patched.setattr(writer, "connect", lambda _: client)
            result = write_rows_once(self.options(batch), rows)
        assert isinstance(result, TaskResult)
        return result

    def run_tasks(self, batch: int, tasks: Sequence[Sequence[str]]) -> list[TaskResult]:
        return [self.run_task(batch, number, values) for number, values in enumerate(tasks)]

    def commit(
        self, batch: int, results: Sequence[TaskResult], client: Client | None = None, *, is_streaming: bool = False
    ) -> None:
        timeout_ms = self.options(batch).transaction_timeout_ms
        with client or Client(self.bootstrap) as driver:
            commit_batch(driver, self.identity(batch), results, timeout_ms, is_streaming=is_streaming)

    def abort(self, batch: int, results: Sequence[TaskResult]) -> None:
        with Client(self.bootstrap) as driver:
            abort_batch(driver, self.identity(batch), results, self.options(batch).transaction_timeout_ms)

    def write(self, batch: int, tasks: Sequence[Sequence[str]]) -> None:
        """Write a micro-batch. If the commit fails, call abort, as Spark does, and raise the error of the commit."""
        results = self.run_tasks(batch, tasks)
        try:
            self.commit(batch, results)
        except Exception:
            self.abort(batch, results)
            raise

    def committed(self, limit_s: float = 30.0) -> list[str]:
        """Return the values that a reader with read_committed finds, sorted. Raises AssertionError if a transaction is
        open after `limit_s`.
        """
        options: dict[str, Any] = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "kafka.isolation.level": "read_committed",
        }
        values: list[str] = []
        for tp, end in stable_ends(self.bootstrap, self.topic, limit_s).items():
            offset_range = RangePartition(OffsetRange(*tp, 0, end))
            for batch in read_partition(read_options(options, streaming=False), ("value",), offset_range):
                values += [value.decode() for value in batch.column(0).to_pylist()]
        return sorted(values)
