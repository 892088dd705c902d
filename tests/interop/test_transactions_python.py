"""Transactions of the Python clients: committed and aborted records, offsets in transactions, fencing, timeouts."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

from interop_harness.suite import LIMIT_S, NewTopicNamed, Unique, wait_until

CLIENT = ["confluent-kafka", "kafka-python", "aiokafka"]
pytestmark = [pytest.mark.timeout(240), pytest.mark.exercises("transactions", "transactional-offsets")]
RECORDS = 20


class Session(Protocol):
    """A transactional producer, and a consumer of a group. A session runs the same steps with any client."""

    def write(self, topic: str, values: list[bytes], *, commit: bool) -> None:
        """Write the values to partition 0 in one transaction, and end it."""

    def begin(self, topic: str, value: bytes) -> None:
        """Begin a transaction with one record that the broker has acknowledged."""

    def send(self, topic: str, value: bytes) -> None:
        """Write one more record in the transaction. Raises the client's error."""

    def commit(self) -> None:
        """Commit the transaction that `begin` began. Raises the client's error."""

    def abort(self) -> None:
        """Abort the transaction that `begin` began. Raises the client's error."""

    def transform(self, source: str, target: str, group: str, *, commit: bool) -> int:
        """Consume what is there (at least one record), and write the values and the offsets in one transaction."""

    def close(self) -> None: ...


class ConfluentSession:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._refused: list[KafkaError] = []
        settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
        callbacks = {"error_cb": lambda error: None, "on_delivery": self._delivered}
        self._producer = Producer(settings | callbacks | {"transaction.timeout.ms": timeout_ms})
        self._producer.init_transactions(LIMIT_S)

    def write(self, topic: str, values: list[bytes], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(topic, value, partition=0)
        self._producer.flush(LIMIT_S)
        self._producer.commit_transaction(LIMIT_S) if commit else self._producer.abort_transaction(LIMIT_S)

    def begin(self, topic: str, value: bytes) -> None:
        self._producer.begin_transaction()
        self.send(topic, value)

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, partition=0)
        self._producer.flush(LIMIT_S)
        if self._refused:
            raise KafkaException(self._refused[0])

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._refused.append(error)

    def commit(self) -> None:
        self._producer.commit_transaction(LIMIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(LIMIT_S)

    def transform(self, source: str, target: str, group: str, *, commit: bool) -> int:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe([source])
            records = []
            wait_until(lambda: bool(records.extend(consumer.consume(1000, 0.5)) or records), "records")
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(target, record.value(), partition=0)
            offset = TopicPartition(source, 0, max(record.offset() or 0 for record in records) + 1)
            self._producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata(), LIMIT_S)
            self._producer.commit_transaction(LIMIT_S) if commit else self._producer.abort_transaction(LIMIT_S)
            return len(records)
        finally:
            consumer.close()

    def close(self) -> None:
        pass


class KafkaPythonSession:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def write(self, topic: str, values: list[bytes], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.send(topic, value, partition=0)
        self._producer.flush(LIMIT_S)
        self._producer.commit_transaction() if commit else self._producer.abort_transaction()

    def begin(self, topic: str, value: bytes) -> None:
        self._producer.begin_transaction()
        self.send(topic, value)

    def send(self, topic: str, value: bytes) -> None:
        self._producer.send(topic, value, partition=0).get(LIMIT_S)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def transform(self, source: str, target: str, group: str, *, commit: bool) -> int:
        consumer = KafkaConsumer(
            source,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            records: list[Any] = []

            def poll() -> bool:
                for own in consumer.poll(timeout_ms=500).values():
                    records.extend(own)
                return bool(records)

            wait_until(poll, "records")
            self._producer.begin_transaction()
            for record in records:
                self._producer.send(target, record.value, partition=0)
            offset = OffsetAndMetadata(max(record.offset for record in records) + 1, "", -1)
            offsets = {KafkaPythonPartition(source, 0): offset}
            self._producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            self._producer.commit_transaction() if commit else self._producer.abort_transaction()
            return len(records)
        finally:
            consumer.close()

    def close(self) -> None:
        self._producer.close()


class AiokafkaSession:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 2 * LIMIT_S))

    def write(self, topic: str, values: list[bytes], *, commit: bool) -> None:
        async def write() -> None:
            await self._producer.begin_transaction()
            for value in values:
                await self._producer.send(topic, value, partition=0)
            await self._producer.flush()
            await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())

        self._run(write())

    def begin(self, topic: str, value: bytes) -> None:
        async def begin() -> None:
            await self._producer.begin_transaction()
            await self._producer.send_and_wait(topic, value, partition=0)

        self._run(begin())

    def send(self, topic: str, value: bytes) -> None:
        async def send() -> None:
            await self._producer.send_and_wait(topic, value, partition=0)

        self._run(send())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def transform(self, source: str, target: str, group: str, *, commit: bool) -> int:
        async def transform() -> int:
            consumer = AIOKafkaConsumer(
                source,
                bootstrap_servers=self._bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            try:
                batches: dict[Any, Any] = {}
                while not batches:
                    batches = await consumer.getmany(timeout_ms=500)
                await self._producer.begin_transaction()
                for records in batches.values():
                    for record in records:
                        await self._producer.send(target, record.value, partition=0)
                offsets = {tp: records[-1].offset + 1 for tp, records in batches.items()}
                await self._producer.send_offsets_to_transaction(offsets, group)
                await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())
                return sum(map(len, batches.values()))
            finally:
                await consumer.stop()

        count: int = self._run(transform())
        return count

    def close(self) -> None:
        async def stop() -> None:
            await self._producer.stop()

        try:
            self._run(stop())
        finally:
            self._loop.close()


SESSIONS: dict[str, Callable[[str, str, int], Session]] = {
    "confluent-kafka": ConfluentSession,
    "kafka-python": KafkaPythonSession,
    "aiokafka": AiokafkaSession,
}


@pytest.fixture(params=SESSIONS)
def open_session(request: pytest.FixtureRequest, bootstrap: str) -> Callable[[str], Any]:
    """`with open_session("id", timeout_ms=30_000) as session` opens a session of one client."""

    @contextmanager
    def opened(transactional_id: str, timeout_ms: int = 30_000) -> Iterator[Session]:
        session = SESSIONS[request.param](bootstrap, transactional_id, timeout_ms)
        try:
            yield session
        finally:
            session.close()

    return opened


def read(bootstrap: str, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """Return the values of partition 0: `count` of them, and those that follow within a moment."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = consumer.consume(count, LIMIT_S) if count else []
        records += consumer.consume(1, 0.5)
        return [record.value() or b"" for record in records if record.error() is None]
    finally:
        consumer.close()


def test_committed_and_aborted_records(
    open_session: Callable[[str], Any], bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic = new_topic()
    with open_session(unique("tx")) as session:
        for number in range(6):
            session.write(topic, [b"%d.%d" % (number, each) for each in range(RECORDS)], commit=number % 2 == 0)
    expected = [b"%d.%d" % (number, each) for number in (0, 2, 4) for each in range(RECORDS)]
    assert read(bootstrap, topic, len(expected)) == expected
    assert len(read(bootstrap, topic, 6 * RECORDS, "read_uncommitted")) == 6 * RECORDS


def test_consume_transform_produce(
    open_session: Callable[[str], Any], bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    source, target, group = new_topic("source"), new_topic("target"), unique("group")
    values = [b"%d" % number for number in range(RECORDS)]
    with open_session(unique("tx")) as session:
        session.write(source, values, commit=True)
        assert session.transform(source, target, group, commit=False) > 0  # this and its offset are undone
        done = 0
        while done < RECORDS:
            done += session.transform(source, target, group, commit=True)
    assert done == RECORDS
    assert read(bootstrap, target, RECORDS) == values


def test_a_second_producer_fences_the_first(
    open_session: Callable[[str], Any], bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    topic, name = new_topic(), unique("tx")
    with open_session(name) as first:
        first.begin(topic, b"fenced")
        with open_session(name) as second:
            second.write(topic, [b"second"], commit=True)
        with pytest.raises((KafkaException, Exception)) as refused:
            first.commit()
        assert is_fenced(refused.value), repr(refused.value)
    assert read(bootstrap, topic, 1) == [b"second"]


@pytest.mark.parametrize("action", ["commit", "abort", "send"])
def test_a_transaction_that_takes_too_long(
    action: str, open_session: Callable[..., Any], bootstrap: str, new_topic: NewTopicNamed, unique: Unique
) -> None:
    """The coordinator aborts it. The application gets the same error as with Kafka, and begins another producer."""
    topic, name = new_topic(), unique("tx")
    with open_session(name, timeout_ms=1_000) as session:
        session.begin(topic, b"too late")
        with open_session(unique("other")) as other:
            other.write(topic, [b"other"], commit=True)
        wait_until(lambda: read(bootstrap, topic, 1) == [b"other"], "the coordinator aborts the transaction", 60)
        with pytest.raises((KafkaException, Exception)) as refused:
            session.send(topic, b"later still") if action == "send" else getattr(session, action)()
        assert is_fenced(refused.value), repr(refused.value)
        try:
            session.begin(topic, b"the old producer cannot go on")
        except Exception:
            has_recovered = False
        else:
            has_recovered = True
        # After a refused batch, kafka-python requests another epoch in the background (KIP-360), and may have it
        # already. Kafka allows this, too: see the conversation txn-timeout-of-version-1.
        assert not has_recovered or (action == "send" and isinstance(session, KafkaPythonSession))
    with open_session(name) as session:
        session.write(topic, [b"next"], commit=True)
    assert read(bootstrap, topic, 2) == [b"other", b"next"]


def is_fenced(error: BaseException) -> bool:
    if isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__  # confluent-kafka hides a fatal error that arrives within a callback
    if isinstance(error, KafkaException):
        return bool(error.args[0].fatal()) and error.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    names = {type(each).__name__ for each in (error, error.__cause__) if each is not None}
    return isinstance(error, ProducerFenced) or bool(names & {"ProducerFencedError", "InvalidProducerEpochError"})
