"""What `tidelog bench` measures, through librdkafka: how fast records go in and come out, and how long one takes."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.connection import ConnectionOptions, kafka_error
from tidelog.cli.errors import CommandError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

SAMPLE_S = 0.1
"""Between two points of the curve."""
CLOCKED_EVERY = 100
"""Every so many records one has its acknowledgement timed: a list of them all would be measured itself."""
STUCK_S = 30.0


class Point(NamedTuple):
    """So many records and bytes after so many seconds."""

    seconds: float
    records: int
    size_bytes: int


Show = Callable[[Point], None]


class Throughput(NamedTuple):
    records: int
    size_bytes: int
    seconds: float
    points: list[Point]
    latencies_ms: list[float]
    """From the call to the acknowledgement, of a sample, sorted; empty for reading."""


class Latency(NamedTuple):
    latencies_ms: list[float]
    """From just before the call that writes a record to its arrival at a consumer, sorted."""
    rate_wanted: float
    rate_reached: float


@contextmanager
def temporary_topic(connection: ConnectionOptions, partitions: int) -> Iterator[str]:
    """A topic for one measurement, deleted afterwards."""
    name = f"tidelog-bench-{os.urandom(4).hex()}"
    with connection.open() as client:
        cluster.create_topic(client, name, partitions, None, {})
    try:
        yield name
    finally:
        with connection.open() as client:
            failure = cluster.delete_topics(client, [name])[name]
        if failure is not None:
            raise failure


def measure_produce(
    connection: ConnectionOptions, topic: str, records: int, value: bytes, settings: dict[str, Any], show: Show
) -> Throughput:
    """Write `value` so often and wait for every acknowledgement. Raises CommandError when one is refused."""
    producer = connection.producer({"queue.buffering.max.messages": 1_000_000, "linger.ms": 5, **settings})
    meter = Meter(len(value), show)
    latencies: list[float] = []
    failures: list[KafkaError] = []

    def delivered(error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            failures.append(error)

    def clocked(error: "KafkaError | None", message: "Message") -> None:
        delivered(error, message)
        latency = message.latency() if error is None else None
        if latency is not None:
            latencies.append(latency * 1000)

    written = 0
    while written < records and not failures:
        due = written % CLOCKED_EVERY == 0
        try:
            producer.produce(topic, value, on_delivery=clocked if due else delivered)
        except BufferError:
            producer.poll(SAMPLE_S / 10)
        else:
            written += 1
        if due:
            producer.poll(0)
            meter.at(written - len(producer))
    while (waiting := producer.flush(SAMPLE_S)) and not failures:
        meter.at(written - waiting)
    if failures:
        producer.purge()
        raise kafka_error(failures[0], f"topic {topic}")
    return meter.result(written, sorted(latencies))


def measure_consume(connection: ConnectionOptions, topic: str, records: int, show: Show) -> Throughput:
    """Read `records` records of the topic from its beginning, or all that can be read: compaction and transactions
    leave holes. Raises CommandError when there is none, and when nothing comes any more.
    """
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    with connection.open() as client:
        (state,) = cluster.describe(client, [topic])
    consumer = connection.consumer(
        {
            "group.id": "tidelog-bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 1 << 20,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, part.partition, OFFSET_BEGINNING) for part in state.partitions])
        left = {part.partition for part in state.partitions}
        meter = Meter(0, show)
        read = size_bytes = 0
        arrived_s = 0.0
        while read < records and left:
            before = read
            # It waits for all of them: the last ones, when there are no more, are not to be timed with a long wait.
            for message in consumer.consume(min(10_000, records - read), SAMPLE_S / 10):
                error = message.error()
                if error is None:
                    read += 1
                    size_bytes += len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
                else:
                    raise kafka_error(error, f"topic {topic}")
            if read > before:
                arrived_s = meter.seconds
            elif meter.seconds - arrived_s > STUCK_S:
                raise CommandError(f"topic {topic} gave {read} of {records} records, then none for {STUCK_S:.0f} s")
            meter.at(read, size_bytes)
        if not read:
            raise CommandError(f"topic {topic} has no record that can be read")
        # That there is no more is told by a fetch that waits: it is not what was measured.
        return meter.result(read, [], size_bytes, arrived_s)
    finally:
        consumer.close()


def measure_latency(
    connection: ConnectionOptions,
    topic: str,
    rate: float,
    seconds: float,
    value: bytes,
    settings: dict[str, Any],
    show: Show,
) -> Latency:
    """Write at a steady rate and time each record's way to a consumer that is already waiting.

    A record is due at a fixed moment and timed from when it was due, so that a stall counts for all that it held up.
    """
    from confluent_kafka import OFFSET_END, TopicPartition

    consumer = connection.consumer(
        {
            "group.id": "tidelog-bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            "fetch.error.backoff.ms": 1,
        }
    )
    producer = connection.producer({"linger.ms": 0, "socket.nagle.disable": True, **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    try:
        wait_until_reading(producer, consumer, topic)
        arrivals = Arrivals(consumer, max(round(rate * seconds), 1), time.monotonic() + seconds + STUCK_S)
        with arrivals:
            meter = Meter(len(value), show)
            start = time.perf_counter()
            for number in range(arrivals.wanted):
                due = start + number / rate
                while (ahead := due - time.perf_counter()) > 0:
                    producer.poll(min(ahead, SAMPLE_S))
                produce_when_there_is_room(producer, topic, value, arrivals.key(due))
                meter.at(number + 1)
            took = time.perf_counter() - start
            producer.flush(STUCK_S)
            arrivals.wait()
    finally:
        consumer.close()
    if len(arrivals.latencies_ms) < arrivals.wanted:
        raise CommandError(
            f"{len(arrivals.latencies_ms)} of {arrivals.wanted} records arrived within {STUCK_S:.0f} s of the last"
        )
    return Latency(sorted(arrivals.latencies_ms), rate, arrivals.wanted / took)


class Arrivals:
    """Reads in a thread of its own and times each record by the moment that its key says it was due."""

    def __init__(self, consumer: "Consumer", wanted: int, deadline: float) -> None:
        self.wanted = wanted
        self.latencies_ms: list[float] = []
        self._consumer = consumer
        self._deadline = deadline
        self._mark = os.urandom(4).hex() + "@"
        """Before the key of each record of this run: others may write to the topic too."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="tidelog-bench-reader")

    def key(self, due: float) -> str:
        return f"{self._mark}{due!r}"

    def wait(self) -> None:
        """Until all have arrived, or the deadline."""
        self._thread.join()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        mark = self._mark.encode()
        while len(self.latencies_ms) < self.wanted and time.monotonic() < self._deadline and not self._stop.is_set():
            message = self._consumer.poll(SAMPLE_S)
            arrived = time.perf_counter()
            key = message.key() if message is not None and message.error() is None else None
            if key is not None and key.startswith(mark):
                self.latencies_ms.append((arrived - float(key[len(mark) :])) * 1000)


def produce_when_there_is_room(producer: "Producer", topic: str, value: bytes, key: str) -> None:
    while True:
        try:
            producer.produce(topic, value, key=key, partition=0)
        except BufferError:
            producer.poll(SAMPLE_S / 10)
        else:
            return


def wait_until_reading(producer: "Producer", consumer: "Consumer", topic: str) -> None:
    """Write records until one of them is read: from then on the consumer follows the end of the partition."""
    deadline = time.monotonic() + STUCK_S
    mark = os.urandom(8)
    written = 0
    while time.monotonic() < deadline:
        producer.produce(topic, mark, partition=0)
        producer.flush(STUCK_S)
        written += 1
        message = consumer.poll(1.0)
        if message is not None and message.error() is None and message.value() == mark:
            return
    raise CommandError(f"topic {topic}: {written} records were written and none was read in {STUCK_S:.0f} s")


class Meter:
    """Draws the curve of a measurement, and shows its points as they come."""

    def __init__(self, record_bytes: int, show: Show) -> None:
        self.record_bytes = record_bytes
        self.show = show
        self.start = time.perf_counter()
        self.points = [Point(0.0, 0, 0)]

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self.start

    def at(self, records: int, size_bytes: int | None = None) -> None:
        """So many records by now. Cheap unless a point is due."""
        seconds = self.seconds
        if seconds - self.points[-1].seconds >= SAMPLE_S:
            self.points.append(Point(seconds, records, self.bytes_of(records, size_bytes)))
            self.show(self.points[-1])

    def result(
        self, records: int, latencies_ms: list[float], size_bytes: int | None = None, seconds: float | None = None
    ) -> Throughput:
        """All of it, by now or `seconds` after the beginning."""
        seconds = self.seconds if seconds is None else seconds
        self.points = [point for point in self.points if point.seconds < seconds]
        size = self.bytes_of(records, size_bytes)
        self.points.append(Point(seconds, records, size))
        self.show(self.points[-1])
        return Throughput(records, size, seconds, self.points, latencies_ms)

    def bytes_of(self, records: int, size_bytes: int | None) -> int:
        return records * self.record_bytes if size_bytes is None else size_bytes


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed. Raises ValueError without values."""
    if not sorted_values:
        raise ValueError("no values")
    rank = -(-len(sorted_values) * percent // 100)
    return sorted_values[max(int(rank), 1) - 1]


def rates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """The middle of each interval between points, seconds, and the records per second in it."""
    # What is left over at the end is too short an interval to have a rate.
    pairs = [(a, b) for a, b in pairwise(points) if b.seconds - a.seconds >= SAMPLE_S / 2]
    return (
        [(a.seconds + b.seconds) / 2 for a, b in pairs],
        [(b.records - a.records) / (b.seconds - a.seconds) for a, b in pairs],
    )
