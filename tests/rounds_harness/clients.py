"""The clients of the rounds, each in a thread: producers with acks=all, and members of groups that read and commit."""

import logging
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from rounds_harness.brokers import PARTITIONS, TOPIC
from rounds_harness.ledger import GroupLedger, Ledger

KEYS_PER_PARTITION = 2
PAUSE_S = 0.05
"""Between two rounds of a producer over all partitions. It is the resolution of the measured times."""
CLIENT_SETTINGS: dict[str, object] = {
    "socket.timeout.ms": 4000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 5000,
}
"""Shorter than the defaults, so that a round measures the cluster more than the client's patience."""
PRODUCER_SETTINGS: dict[str, object] = {
    "acks": "all",
    "linger.ms": 2,
    "request.timeout.ms": 3000,
    "message.timeout.ms": 150_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
}
COMMIT_PAUSE_S = 0.4
COMMIT_S = 120.0


class _NewEpochs(logging.Handler):
    """Counts how often a producer begins a new epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "bumped epoch" in record.getMessage()


def client_log(path: Path) -> logging.Logger:
    """Return a logger that writes a client's own lines to a file."""
    logger = logging.getLogger(f"rounds.{path.stem}.{id(path)}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


class Client(threading.Thread):
    """A thread that works while `is_working` is set, until `stop`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.is_working = threading.Event()
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        self._is_stopping.set()


class Writer(Client):
    """A producer. The records of a key are numbered from 0, so that a reader sees what is missing or repeated."""

    def __init__(
        self, name: str, bootstrap: str, ledger: Ledger, directory: Path, *, is_idempotent: bool, in_flight_max: int
    ) -> None:
        super().__init__(name)
        self.is_idempotent = is_idempotent
        self._ledger = ledger
        self._is_empty = threading.Event()
        settings = CLIENT_SETTINGS | PRODUCER_SETTINGS | {"bootstrap.servers": bootstrap, "client.id": name}
        settings |= {"enable.idempotence": True, "debug": "eos"} if is_idempotent else {}
        settings |= {"max.in.flight": in_flight_max}
        logger, self._new_epochs = client_log(directory / f"{name}.log"), _NewEpochs()
        logger.addHandler(self._new_epochs)
        self._producer = Producer(settings, logger=logger, error_cb=self._on_error)

    @property
    def new_epochs(self) -> int:
        """How often the producer has begun a new epoch. It then writes again what was not acknowledged yet."""
        return self._new_epochs.count

    def run(self) -> None:
        turn = 0
        while not self._is_stopping.is_set():
            if self.is_working.is_set():
                self._is_empty.clear()
                for partition in range(PARTITIONS):
                    self._produce(partition, turn % KEYS_PER_PARTITION)
                turn += 1
            elif not len(self._producer):
                self._is_empty.set()
            self._producer.poll(PAUSE_S)
            if self.is_working.is_set():
                time.sleep(PAUSE_S)
        self._producer.purge()
        self._producer.poll(0)

    def _produce(self, partition: int, number: int) -> None:
        key = f"{self.name}-{partition}-{number}".encode()
        count = self._ledger.last_number[key] + 1
        try:
            self._producer.produce(TOPIC, b"%d" % count, key, partition, on_delivery=self._on_delivery)
        except BufferError:
            return
        except KafkaException as error:  # a fatal error of an idempotent producer
            self._ledger.fail(f"{self.name}: {error}")
            self._is_stopping.set()
            return
        self._ledger.last_number[key] = count

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
        assert partition is not None
        assert key is not None
        assert value is not None
        if error is not None:
            if not self._is_stopping.is_set():
                self._ledger.fail(f"{self.name}: {key!r} number {value!r} was given up: {error}")
            return
        self._ledger.acknowledge(partition, offset, key, value)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._ledger.fail(f"{self.name}: {error}")

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until every record was acknowledged or given up, after `is_working` was cleared."""
        return self._is_empty.wait(timeout_s)


class Reader(Client):
    """A member of a group. It commits synchronously and records what was acknowledged."""

    def __init__(self, name: str, bootstrap: str, group: GroupLedger, directory: Path, *, protocol: str) -> None:
        super().__init__(name)
        self._group = group
        self._next: dict[int, int] = {}
        """By partition: the offset after the last delivered record."""
        self._floors: dict[int, int] = {}
        """By partition that was assigned and not read yet: what was committed before the assignment."""
        settings = CLIENT_SETTINGS | {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": group.name,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "check.crcs": True,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 8000, "heartbeat.interval.ms": 1000}
        self._consumer = Consumer(settings, logger=client_log(directory / f"{name}.log"))
        self.errors: dict[str, int] = {}
        self._is_committing = threading.Lock()

    def rest(self) -> None:
        """Commit nothing from now on, until `is_working` is set. A commit under way has ended when this returns.

        Raises TimeoutError if it does not end: librdkafka has no limit of time for a synchronous commit.
        """
        self.is_working.clear()
        if not self._is_committing.acquire(timeout=COMMIT_S):
            raise TimeoutError(f"a commit of {self.name} has not ended after {COMMIT_S:g} s")
        self._is_committing.release()

    def run(self) -> None:
        self._consumer.subscribe([TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        committed_s = time.monotonic()
        while not self._is_stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                self._receive(message)
            if time.monotonic() > committed_s + COMMIT_PAUSE_S:
                with self._is_committing:
                    if self.is_working.is_set():
                        self._commit()
                committed_s = time.monotonic()
        self._consumer.close()

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The committed offsets are fetched after this call, so they cannot be lower than what is committed now.
        floor = self._group.floor()
        for each in partitions:
            self._next.pop(each.partition, None)
            self._floors[each.partition] = floor.get(each.partition, 0)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)
            self._floors.pop(each.partition, None)

    def _receive(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None:
            self.errors[str(error.name())] = self.errors.get(str(error.name()), 0) + 1
            return
        assert partition is not None
        assert offset is not None
        expected = self._next.get(partition)
        if expected is None:
            floor = self._floors.pop(partition, None)
            if floor is not None:
                self._group.check_start(partition, offset, floor)
        elif offset != expected:
            self._group.violations.append(
                f"group {self._group.name}: {self.name} got {partition}@{offset} after {partition}@{expected - 1}"
            )
        self._next[partition] = offset + 1
        self._group.delivered[partition].add(offset)

    def _commit(self) -> None:
        offsets = dict(self._next)
        if not offsets:
            return
        self._group.attempt(offsets)
        wanted = [TopicPartition(TOPIC, partition, offset) for partition, offset in offsets.items()]
        try:
            answer = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            name = str(error.args[0].name())
            self.errors[name] = self.errors.get(name, 0) + 1
            return
        assert answer is not None
        self._group.commit({each.partition: each.offset for each in answer if each.error is None})
