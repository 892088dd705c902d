"""A producer at full rate and a consumer group, and what they were told: the accounts that a kill is checked against.

The record at offset n of a partition has the value n: the producer is idempotent and alone, so every loss, repetition
or change of order is a value in the wrong place.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tidelog.testing import Broker

TOPIC = "orders"
GROUP = "billing"
PARTITIONS = 3
PATIENCE_S = 60.0
PADDING = b"." * 80


def value_of(offset: int) -> bytes:
    return b"%d " % offset + PADDING


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.01)


class Workload:
    """Runs in threads of its own from `start` to `stop`. The counters may be read at any time."""

    def __init__(self, broker: Broker) -> None:
        self.acknowledged = [0] * PARTITIONS
        """Exclusive end of what the producer was told is there, by partition."""
        self.committed = [0] * PARTITIONS
        """The last commit that was confirmed."""
        self.consumed = 0
        self.wrong: list[str] = []
        self._sent = [0] * PARTITIONS
        self._next = [0] * PARTITIONS
        self._stopping = threading.Event()
        self._resting = threading.Event()
        self._bootstrap = broker.bootstrap
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._produce, self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits until everything that was sent is acknowledged."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a client hangs"

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing new is sent: who reads what was sent, in the same process, might never catch up."""
        self._resting.set()
        try:
            yield
        finally:
            self._resting.clear()

    @property
    def total(self) -> int:
        return sum(self.acknowledged)

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "error_cb": self._producer_error,
            }
        )
        partition = 0
        while not self._stopping.is_set():
            if self._resting.is_set():
                producer.poll(0.01)
                continue
            partition = (partition + 1) % PARTITIONS
            for _ in range(100):
                try:
                    producer.produce(
                        TOPIC, value_of(self._sent[partition]), partition=partition, on_delivery=self._delivered
                    )
                except BufferError:
                    producer.poll(0.01)
                    break
                self._sent[partition] += 1
            producer.poll(0)
        if producer.flush(PATIENCE_S):
            self.wrong.append("not everything that was sent is acknowledged")

    def _producer_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.wrong.append(f"the producer failed: {error}")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        expected = self.acknowledged[partition]
        if error is not None:
            self.wrong.append(f"not delivered: {error}")
        elif message.value() != value_of(expected):
            self.wrong.append(f"partition {partition}: acknowledged {message.value()!r}, expected {expected}")
        elif offset is not None and offset >= 0 and offset != expected:
            self.wrong.append(f"partition {partition}: record {expected} acknowledged at offset {offset}")
        self.acknowledged[partition] = expected + 1

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "check.crcs": True,
            }
        )
        consumer.subscribe([TOPIC], on_assign=self._assigned)
        while not self._stopping.is_set():
            for message in consumer.consume(5_000, timeout=0.2):
                self._take(message)
            self._commit(consumer)
        consumer.close()

    def _assigned(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        # It goes on from the commits: what was delivered and not committed comes once more.
        self._next = list(self.committed)

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            return  # the broker is away
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        # A commit that was not confirmed may have been made: the group then goes on behind it.
        if offset < self._next[partition] or message.value() != value_of(offset):
            place = f"{partition} at {offset}, expected {self._next[partition]}"
            self.wrong.append(f"consumed {message.value()!r} from partition {place}")
        self._next[partition] = offset + 1
        self.consumed += 1

    def _commit(self, consumer: Consumer) -> None:
        due = [
            TopicPartition(TOPIC, index, offset)
            for index, offset in enumerate(self._next)
            if offset > self.committed[index]
        ]
        if not due:
            return
        try:
            made = consumer.commit(offsets=due, asynchronous=False)
        except KafkaException:
            return  # the broker is away; the next commit holds this one
        for item in made:
            if item.error is None:
                self.committed[item.partition] = item.offset


class Log:
    """Reads the topic from outside, without a group."""

    def __init__(self, broker: Broker) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "check.crcs": True,
                "reconnect.backoff.max.ms": 100,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def end(self, partition: int) -> int:
        _, end = self._consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=PATIENCE_S)
        return end

    def committed(self) -> list[int]:
        asked = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        return [max(item.offset, 0) for item in self._consumer.committed(asked, timeout=PATIENCE_S)]

    def check(self, partition: int, start: int, end: int) -> None:
        """Every offset from `start` to `end` has its own value, in order, once."""
        if start == end:
            return
        self._consumer.assign([TopicPartition(TOPIC, partition, start)])
        deadline = time.monotonic() + PATIENCE_S
        expected = start
        while expected < end:
            assert time.monotonic() < deadline, f"partition {partition} ends at {expected}, not {end}"
            for message in self._consumer.consume(10_000, timeout=1.0):
                if message.error() is None and expected < end:
                    assert message.offset() == expected
                    assert message.value() == value_of(expected)
                    expected += 1
                    deadline = time.monotonic() + PATIENCE_S
        self._consumer.unassign()
