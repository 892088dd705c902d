"""librdkafka's transactions with three brokers that are killed one after the other: a chain that consumes, transforms
and produces has each result exactly once.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.testing import Cluster

CLIENT = ["confluent-kafka"]
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}
PARTITIONS = 3
INPUT, OUTPUT, GROUP = "orders", "invoices", "billing"
PROGRESS = 20
"""Records that the chain must process after each change of the cluster."""
STEP_S = 90.0
CALL_S = 20.0
"""Time after which the chain gives up a call of librdkafka that ignores its timeout, and begins another producer."""
LOG = logging.getLogger("librdkafka.transactions")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    handler = logging.FileHandler(tmp_path / "librdkafka.log")
    LOG.addHandler(handler)
    LOG.propagate = False
    try:
        with Cluster(3, settings=SETTINGS) as running:
            admin = AdminClient({"bootstrap.servers": running.bootstrap}, logger=LOG)
            for future in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (INPUT, OUTPUT)]).values():
                future.result(30)
            yield running
    finally:
        LOG.removeHandler(handler)
        handler.close()


class Worker(threading.Thread):
    """A thread that repeats `step` until it is stopped. A fatal error of its producer begins another one."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(name=transactional_id, daemon=True)
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.stops = threading.Event()
        self.failure: BaseException | None = None
        self.producers = 0
        self.aborts = 0

    def run(self) -> None:
        try:
            while not self.stops.is_set():
                producer = self._producer()
                while not self.stops.is_set() and self._survives(producer):
                    pass
        except BaseException as error:
            self.failure = error

    def step(self, producer: Producer) -> None:
        """Make one transaction. May raise KafkaException."""
        raise NotImplementedError

    def restore(self) -> None:
        """Continue after a transaction that was aborted."""

    def finish(self) -> None:
        self.stops.set()
        self.join(STEP_S)
        assert not self.is_alive(), f"{self.name} is stuck"
        if self.failure is not None:
            raise self.failure

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 10_000,
                "linger.ms": 5,
            },
            logger=LOG,
        )
        retried(lambda: producer.init_transactions(10))
        self.producers += 1
        self.restore()
        return producer

    def _survives(self, producer: Producer) -> bool:
        """Make one transaction, and return whether the producer can make another one."""
        try:
            self.step(producer)
        except KafkaException as exception:
            error = exception.args[0]
            if error.fatal() or not error.txn_requires_abort():
                return False
            try:
                retried(lambda: producer.abort_transaction(10))
            except KafkaException:
                return False
            self.aborts += 1
            self.restore()
        return True


def retried(call: Callable[[], Any]) -> None:
    """Repeat the call after errors that librdkafka calls retriable."""
    deadline = time.monotonic() + STEP_S
    while True:
        try:
            call()
            return
        except KafkaException as exception:
            if not exception.args[0].retriable() or time.monotonic() > deadline:
                raise


def bounded(call: Callable[[], Any]) -> None:
    """Make the call in a thread of its own. Raises KafkaException if it has not ended after CALL_S: when the group's
    coordinator is killed, `send_offsets_to_transaction` of librdkafka may wait for ever (GAPS.md). The thread keeps
    the producer, because its destructor would wait, too.
    """
    errors: list[KafkaException] = []

    def make() -> None:
        try:
            call()
        except KafkaException as error:
            errors.append(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(CALL_S)
    if thread.is_alive():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the call does not end"))
    if errors:
        raise errors[0]


class Source(Worker):
    """Writes orders in transactions. Every fifth transaction is aborted."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "source")
        self.number = 0
        self.committed: list[str] = []

    def step(self, producer: Producer) -> None:
        self.number += 1
        aborts = self.number % 5 == 0
        values = [f"{'aborted' if aborts else 'order'} {self.number}.{index}" for index in range(4)]
        producer.begin_transaction()
        for index, value in enumerate(values):
            producer.produce(INPUT, value.encode(), partition=(self.number + index) % PARTITIONS)
        if aborts:
            producer.flush(10)
            retried(lambda: producer.abort_transaction(10))
        else:
            retried(lambda: producer.commit_transaction(10))
            self.committed += values
        time.sleep(0.02)


class Chain(Worker):
    """Turns each order into an invoice."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "chain")
        self.processed = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            },
            logger=LOG,
        )
        self.partitions = [TopicPartition(INPUT, index) for index in range(PARTITIONS)]

    def restore(self) -> None:
        """Begin again at the committed offsets."""
        committed: list[TopicPartition] = []

        def fetch() -> None:
            committed[:] = self.consumer.committed(self.partitions, timeout=10)
            for partition in committed:
                if partition.error is not None:
                    raise KafkaException(KafkaError(partition.error.code(), retriable=True))

        retried(fetch)
        for partition in committed:
            partition.offset = max(partition.offset, 0)
        self.consumer.assign(committed)

    def step(self, producer: Producer) -> None:
        messages: list[Message] = [m for m in self.consumer.consume(20, timeout=0.5) if m.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce(OUTPUT, b"invoice for " + (message.value() or b""), partition=message.partition() or 0)
        offsets = self.consumer.position(self.partitions)
        metadata = self.consumer.consumer_group_metadata()
        known = [partition for partition in offsets if partition.offset >= 0]
        bounded(lambda: retried(lambda: producer.send_offsets_to_transaction(known, metadata, 10)))
        retried(lambda: producer.commit_transaction(10))
        self.processed += len(messages)


def read_all(bootstrap: str, topic: str) -> list[str]:
    """Return all committed records of the topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
         "enable.partition.eof": True}, logger=LOG,
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: list[str] = []
    ended: set[int] = set()
    deadline = time.monotonic() + STEP_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"the end of {topic} is not reached: {ended}"
        for message in consumer.consume(500, timeout=0.5):
            error = message.error()
            if error is None:
                values.append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
    consumer.close()
    return values


def wait_for(condition: Callable[[], bool], what: str, workers: list[Worker]) -> None:
    deadline = time.monotonic() + STEP_S
    while not condition():
        for worker in workers:
            if worker.failure is not None:
                raise worker.failure
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def wait_for_progress(chain: Chain, when: str, workers: list[Worker]) -> None:
    aim = chain.processed + PROGRESS
    wait_for(lambda: chain.processed >= aim, f"the chain makes no progress {when}", workers)


def test_a_chain_has_each_result_once_while_brokers_are_killed(cluster: Cluster) -> None:
    source, chain = Source(cluster.bootstrap), Chain(cluster.bootstrap)
    workers: list[Worker] = [source, chain]
    for worker in workers:
        worker.start()
    try:
        for number in cluster.numbers:
            wait_for_progress(chain, f"before broker {number} is killed", workers)
            cluster.kill(number)
            wait_for_progress(chain, f"without broker {number}", workers)
            cluster.start(number)
            cluster.wait_until_in_sync(60)
        wait_for_progress(chain, "with all brokers", workers)
        source.finish()
        orders = read_all(cluster.bootstrap, INPUT)
        wait_for(lambda: len(read_all(cluster.bootstrap, OUTPUT)) >= len(orders), "not all orders processed", workers)
    finally:
        for worker in workers:
            worker.stops.set()
    chain.finish()
    assert not [order for order in orders if order.startswith("aborted")]
    assert Counter(source.committed) - Counter(orders) == Counter(), "committed orders are missing"
    assert max(Counter(orders).values()) == 1
    invoices = Counter(read_all(cluster.bootstrap, OUTPUT))
    assert invoices == Counter(f"invoice for {order}" for order in orders)
