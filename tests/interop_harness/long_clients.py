"""Producers and group consumers of several client families that run while brokers stop, start, die and move.

Each one runs until `stop`, and notes the acknowledged or consumed records, and every error that reaches the
application.
"""

import asyncio
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from interop_harness.java_tools import JavaTools, RunningTool
from interop_harness.suite import LIMIT_S

RATE = 25
"""Records per second of one producer. The machine also runs three brokers and all other clients."""
KEYS = 20
COMMIT_EVERY_S = 0.5
LOG = logging.getLogger("long-clients")
LOG.addHandler(logging.NullHandler())
"""Log lines of librdkafka; the test writes them to a file."""

METADATA_MS = 3000
"""Time after which aiokafka and kafka-python refresh their metadata. With `client_rack` they do not do so by themselves
when a leader sends them to a replica on a broker that they do not know yet, and the default is 5 minutes (GAPS.md,
F19)."""

HARMLESS = (KafkaError._TRANSPORT, KafkaError._RESOLVE)
"""Codes of librdkafka's error callback that only say that one connection ended."""


class Place(NamedTuple):
    partition: int
    offset: int


class Consumed(NamedTuple):
    place: Place
    key: str
    value: int


class LongProducer(ABC):
    """Sends the values 0, 1, 2, ..., each with the key `value % KEYS`, with acks=all."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.acknowledged: dict[int, Place] = {}
        self.errors: list[str] = []

    @abstractmethod
    def stop(self) -> None:
        """Wait until every record is acknowledged or has failed, and end."""


class LongConsumer(ABC):
    """A member of a group of its own."""

    def __init__(self, bootstrap: str, topic: str, group: str, rack: str) -> None:
        self.bootstrap, self.topic, self.group, self.rack = bootstrap, topic, group, rack
        self.records: list[Consumed] = []
        self.errors: list[str] = []

    @abstractmethod
    def stop(self) -> None:
        """Leave the group and end."""


MakeProducer: TypeAlias = Callable[[str, str], LongProducer]
MakeConsumer: TypeAlias = Callable[[str, str, str, str], LongConsumer]


class Worker:
    """A thread that calls `work` with itself. An exception of `work` is an error of the client."""

    def __init__(self, work: Callable[["Worker"], None], errors: list[str]) -> None:
        self.stopping = threading.Event()
        self._work, self._errors = work, errors
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self)
        except Exception as error:
            self._errors.append(f"raised {error!r}")

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(LIMIT_S)
        if self._thread.is_alive():
            self._errors.append(f"has not ended in {LIMIT_S:.0f} s")


# confluent-kafka


class ConfluentProducer(LongProducer):
    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, Any] = {}) -> None:
        super().__init__(bootstrap, topic)
        defaults = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "error_cb": self._notify}
        self._producer = Producer({**defaults, **settings}, logger=LOG)
        self._worker = Worker(self._work, self.errors)

    def _notify(self, error: KafkaError) -> None:
        if error.fatal() or error.code() not in HARMLESS:
            self.errors.append(f"error callback: {error}")

    def _work(self, worker: Worker) -> None:
        value = 0
        while not worker.stopping.wait(1 / RATE):
            self._producer.produce(self.topic, str(value), str(value % KEYS), on_delivery=self._delivered)
            self._producer.poll(0)
            value += 1
        unsent = self._producer.flush(LIMIT_S)
        if unsent:
            self.errors.append(f"{unsent} records were not acknowledged in {LIMIT_S:.0f} s")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        if error is not None:
            self.errors.append(f"record {value.decode()}: {error}")
        else:
            assert partition is not None
            assert offset is not None
            self.acknowledged[int(value)] = Place(partition, offset)

    def stop(self) -> None:
        self._worker.stop()


def confluent_idempotent(bootstrap: str, topic: str) -> LongProducer:
    return ConfluentProducer(bootstrap, topic, {"enable.idempotence": True})


class ConfluentConsumer(LongConsumer):
    def __init__(self, bootstrap: str, topic: str, group: str, rack: str, settings: Mapping[str, Any] = {}) -> None:
        super().__init__(bootstrap, topic, group, rack)
        defaults = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.rack": rack,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "error_cb": self._notify,
        }
        self._consumer = Consumer({**defaults, **settings}, logger=LOG)
        self._worker = Worker(self._work, self.errors)

    def _notify(self, error: KafkaError) -> None:
        if error.fatal() or error.code() not in HARMLESS:
            self.errors.append(f"error callback: {error}")

    def _work(self, worker: Worker) -> None:
        self._consumer.subscribe([self.topic])
        next_commit = time.monotonic()
        try:
            while not worker.stopping.is_set():
                for message in self._consumer.consume(500, 0.1):
                    self._take(message)
                if time.monotonic() >= next_commit and self.records:
                    self._commit()
                    next_commit = time.monotonic() + COMMIT_EVERY_S
        finally:
            self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self.errors.append(f"consume: {error}")
            return
        key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        assert partition is not None
        assert offset is not None
        self.records.append(Consumed(Place(partition, offset), key.decode(), int(value)))

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() != KafkaError._NO_OFFSET:  # nothing new was consumed
                self.errors.append(f"commit: {error}")

    def stop(self) -> None:
        self._worker.stop()


def confluent_consumer_protocol(bootstrap: str, topic: str, group: str, rack: str) -> LongConsumer:
    """A consumer of the protocol of KIP-848."""
    return ConfluentConsumer(bootstrap, topic, group, rack, {"group.protocol": "consumer"})


# kafka-python


class KafkaPythonProducer(LongProducer):
    def __init__(self, bootstrap: str, topic: str) -> None:
        from kafka import KafkaProducer

        super().__init__(bootstrap, topic)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", linger_ms=5)
        self._worker = Worker(self._work, self.errors)

    def _work(self, worker: Worker) -> None:
        value = 0
        while not worker.stopping.wait(1 / RATE):
            self._send(value)
            value += 1
        self._producer.flush(LIMIT_S)
        self._producer.close(LIMIT_S)

    def _send(self, value: int) -> None:
        def acknowledged(metadata: Any) -> None:
            self.acknowledged[value] = Place(metadata.partition, metadata.offset)

        future = self._producer.send(self.topic, str(value).encode(), str(value % KEYS).encode())
        future.add_callback(acknowledged)
        future.add_errback(lambda error: self.errors.append(f"record {value}: {error!r}"))

    def stop(self) -> None:
        self._worker.stop()


class KafkaPythonConsumer(LongConsumer):
    def __init__(self, bootstrap: str, topic: str, group: str, rack: str) -> None:
        from kafka import KafkaConsumer

        super().__init__(bootstrap, topic, group, rack)
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            client_rack=rack,
            metadata_max_age_ms=METADATA_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._worker = Worker(self._work, self.errors)

    def _work(self, worker: Worker) -> None:
        next_commit = time.monotonic()
        try:
            while not worker.stopping.is_set():
                for records in self._consumer.poll(1000).values():
                    for record in records:
                        place = Place(record.partition, record.offset)
                        self.records.append(Consumed(place, record.key.decode(), int(record.value)))
                if time.monotonic() >= next_commit and self.records:
                    self._commit()
                    next_commit = time.monotonic() + COMMIT_EVERY_S
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        try:
            self._consumer.commit()
        except Exception as error:
            self.errors.append(f"commit: {error!r}")

    def stop(self) -> None:
        self._worker.stop()


# aiokafka


def run_loop(work: Callable[[Worker], Coroutine[Any, Any, None]], errors: list[str]) -> Worker:
    """Run the coroutine in an event loop of its own, in a thread of its own."""
    return Worker(lambda worker: asyncio.run(work(worker)), errors)


class AiokafkaProducer(LongProducer):
    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self._worker = run_loop(self._work, self.errors)

    async def _work(self, worker: Worker) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, linger_ms=5)
        await producer.start()
        pending: set[asyncio.Task[None]] = set()
        value = 0
        while not worker.stopping.is_set():
            task = asyncio.create_task(self._finish(value, await self._send(producer, value)))
            pending.add(task)
            task.add_done_callback(pending.discard)
            value += 1
            await asyncio.sleep(1 / RATE)
        await producer.stop()
        await asyncio.gather(*pending)

    async def _send(self, producer: Any, value: int) -> Any:
        return await producer.send(self.topic, str(value).encode(), str(value % KEYS).encode())

    async def _finish(self, value: int, future: Any) -> None:
        try:
            metadata = await future
        except Exception as error:
            self.errors.append(f"record {value}: {error!r}")
        else:
            self.acknowledged[value] = Place(metadata.partition, metadata.offset)

    def stop(self) -> None:
        self._worker.stop()


class AiokafkaConsumer(LongConsumer):
    def __init__(self, bootstrap: str, topic: str, group: str, rack: str) -> None:
        super().__init__(bootstrap, topic, group, rack)
        self._worker = run_loop(self._work, self.errors)

    async def _work(self, worker: Worker) -> None:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            client_rack=self.rack,
            metadata_max_age_ms=METADATA_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        next_commit = time.monotonic()
        try:
            while not worker.stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        place = Place(record.partition, record.offset)
                        self.records.append(Consumed(place, record.key.decode(), int(record.value)))
                if time.monotonic() >= next_commit and self.records:
                    await self._commit(consumer)
                    next_commit = time.monotonic() + COMMIT_EVERY_S
        finally:
            await consumer.stop()

    async def _commit(self, consumer: Any) -> None:
        try:
            await consumer.commit()
        except Exception as error:
            self.errors.append(f"commit: {error!r}")

    def stop(self) -> None:
        self._worker.stop()


# Java


class ToolReader:
    """The events of a running tool, each read once, with the tool's failures."""

    def __init__(self, tool: RunningTool, errors: list[str]) -> None:
        self._tool, self._errors = tool, errors
        self._line_count = 0

    def new_events(self) -> list[dict[str, Any]]:
        lines = self._tool.out.split("\n")[:-1]
        fresh, self._line_count = lines[self._line_count :], len(lines)
        return [json.loads(line) for line in fresh if line.startswith("{")]

    def stop(self) -> None:
        ran = self._tool.stop()
        if ran.code != 0:
            self._errors.append(f"ended with exit code {ran.code}: {ran.err[-500:]}")
        # The client logs each attempt that it repeats as a warning, with the name of Java's exception.
        lines = [line for line in ran.err.splitlines() if " WARN " not in line and " INFO " not in line]
        if any("Exception" in line or "ERROR" in line for line in lines):
            self._errors.append(f"stderr: {ran.err[-2000:]}")


def watched(reader: ToolReader, take: Callable[[dict[str, Any]], None], errors: list[str]) -> Worker:
    """Return a worker that passes the tool's events to `take`, and stops the tool at its own end."""

    def work(worker: Worker) -> None:
        while not worker.stopping.wait(0.2):
            for event in reader.new_events():
                take(event)
        reader.stop()
        for event in reader.new_events():
            take(event)

    return Worker(work, errors)


class JavaProducer(LongProducer):
    """kafka-verifiable-producer with the client's own defaults. (The tool itself switches retries off.)"""

    def __init__(self, bootstrap: str, topic: str, java: JavaTools, directory: Path) -> None:
        super().__init__(bootstrap, topic)
        settings = directory / f"{topic}.properties"
        settings.write_text("retries=2147483647\nenable.idempotence=true\nlinger.ms=5\n")
        tool = java.start(
            "verifiable-producer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--acks", -1, "--throughput", RATE),
            *("--repeating-keys", KEYS, "--command-config", settings),
        )
        self._worker = watched(ToolReader(tool, self.errors), self._take, self.errors)

    def _take(self, event: dict[str, Any]) -> None:
        if event["name"] == "producer_send_success":
            self.acknowledged[int(event["value"])] = Place(event["partition"], event["offset"])
        elif event["name"] == "producer_send_error":
            self.errors.append(f"record {event['value']}: {event['exception']} {event['message']}")

    def stop(self) -> None:
        self._worker.stop()


class JavaConsumer(LongConsumer):
    """kafka-verifiable-consumer. It commits after each poll."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, rack: str, java: JavaTools, directory: Path, protocol: str
    ) -> None:
        super().__init__(bootstrap, topic, group, rack)
        settings = directory / f"{group}.properties"
        settings.write_text(f"client.rack={rack}\n")
        tool = java.start(
            "verifiable-consumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group, "--group-protocol", protocol),
            *("--verbose", "--command-config", settings),
        )
        self._worker = watched(ToolReader(tool, self.errors), self._take, self.errors)

    def _take(self, event: dict[str, Any]) -> None:
        if event["name"] == "record_data":
            place = Place(event["partition"], event["offset"])
            self.records.append(Consumed(place, event["key"], int(event["value"])))
        elif event["name"] == "offsets_committed" and not event["success"]:
            self.errors.append(f"commit: {event['error']}")

    def stop(self) -> None:
        self._worker.stop()


class Family(NamedTuple):
    producer: MakeProducer
    consumers: Sequence[MakeConsumer]
    idempotent: bool = True


def families(java: JavaTools | None, directory: Path) -> dict[str, Family]:
    """Return all families; the one of Java only if `java` can run here."""
    found = {
        "confluent-kafka": Family(confluent_idempotent, [ConfluentConsumer, confluent_consumer_protocol]),
        "confluent-kafka, not idempotent": Family(ConfluentProducer, [ConfluentConsumer], idempotent=False),
        "kafka-python": Family(KafkaPythonProducer, [KafkaPythonConsumer]),
        "aiokafka": Family(AiokafkaProducer, [AiokafkaConsumer]),
    }
    if java is not None:
        tools = java

        def producer(bootstrap: str, topic: str) -> LongProducer:
            return JavaProducer(bootstrap, topic, tools, directory)

        def consumer(protocol: str) -> MakeConsumer:
            return lambda bootstrap, topic, group, rack: JavaConsumer(
                bootstrap, topic, group, rack, tools, directory, protocol
            )

        found["Java"] = Family(producer, [consumer("classic"), consumer("consumer")])
    return found
