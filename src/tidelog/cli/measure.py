"""The measurements of `tidelog bench`, through librdkafka: write throughput, read throughput, and latency."""

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
from tidelog.cli.tables import counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

SAMPLE_S = 0.1
"""Seconds between two points of the throughput curve."""
RECORDS_PER_TIMING = 100
"""The acknowledgement of one out of this many records is timed. Timing all of them would slow down the writing."""
STUCK_S = 30.0
"""Time limit in seconds. A measurement of reads fails if no record arrives within this time. A measurement of latency
fails if a record is still missing when this time has passed after the planned end."""


class Point(NamedTuple):
    """A point of the throughput curve: the numbers of records and bytes in the first `seconds` seconds."""

    seconds: float
    records: int
    size_bytes: int


ShowPoint = Callable[[Point], None]


class Throughput(NamedTuple):
    records: int
    size_bytes: int
    seconds: float
    points: list[Point]
    latencies_ms: list[float]
    """For a sample of the records, the times from the produce call to the acknowledgement, sorted; empty for a
    measurement of reads."""


class Latency(NamedTuple):
    latencies_ms: list[float]
    """For each record, the time from its planned time to its arrival at the consumer, sorted."""
    rate_wanted: float
    """In records per second, like `rate_reached`."""
    rate_reached: float


@contextmanager
def temporary_topic(connection: ConnectionOptions, partitions: int) -> Iterator[str]:
    """Create a topic for one measurement; it is deleted when the block ends."""
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
    connection: ConnectionOptions, topic: str, records: int, value: bytes, settings: dict[str, Any], show: ShowPoint
) -> Throughput:
    """Write `records` records, all with the same value, and wait for every acknowledgement.

    Raises CommandError when a record is rejected.
    """
    producer = connection.producer({"queue.buffering.max.messages": 1_000_000, "linger.ms": 5, **settings})
    meter = ThroughputMeter(len(value), show)
    latencies: list[float] = []
    failures: list[KafkaError] = []

    def record_failure(error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            failures.append(error)

    def record_latency(error: "KafkaError | None", message: "Message") -> None:
        record_failure(error, message)
        latency = message.latency() if error is None else None
        if latency is not None:
            latencies.append(latency * 1000)

    written = 0
    while written < records and not failures:
        is_timed = written % RECORDS_PER_TIMING == 0
        try:
            producer.produce(topic, value, on_delivery=record_latency if is_timed else record_failure)
        except BufferError:
            producer.poll(SAMPLE_S / 10)
        else:
            written += 1
        if is_timed:
            producer.poll(0)
            meter.update(written - len(producer))
    while (unacknowledged := producer.flush(SAMPLE_S)) and not failures:
        meter.update(written - unacknowledged)
    if failures:
        producer.purge()
        raise kafka_error(failures[0], topic=topic)
    return meter.result(written, sorted(latencies))


def measure_consume(connection: ConnectionOptions, topic: str, records: int, show: ShowPoint) -> Throughput:
    """Read at most `records` records from the beginning of the topic. Stop earlier if all partitions have been read
    to their ends.

    The topic may have fewer records than offsets, because compaction and transactions leave offsets without records.
    Raises CommandError when there is no readable record, and when no record arrives for STUCK_S.
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
        open_partitions = {part.partition for part in state.partitions}
        meter = ThroughputMeter(0, show)
        read = size_bytes = 0
        last_arrival_s = 0.0
        while read < records and open_partitions:
            read_before = read
            # consume() returns when it has all requested records, or at its timeout. If the topic has fewer records
            # than requested, the call that reads the last ones waits until its timeout, and this wait is part of the
            # measured time. So the timeout is short.
            for message in consumer.consume(min(10_000, records - read), SAMPLE_S / 10):
                error = message.error()
                if error is None:
                    read += 1
                    size_bytes += len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition() or 0)
                else:
                    raise kafka_error(error, topic=topic)
            if read > read_before:
                last_arrival_s = meter.seconds
            elif meter.seconds - last_arrival_s > STUCK_S:
                raise CommandError(
                    f"topic {topic}: {read} of {counted(records, 'record')} arrived, then none for {STUCK_S:.0f} s"
                )
            meter.update(read, size_bytes)
        if not read:
            raise CommandError(f"topic {topic} has no readable record")
        # After the last record, a fetch waits for more records before librdkafka reports the end of the partition. The
        # result does not contain this wait: it ends when consume() has returned the last record.
        return meter.result(read, [], size_bytes, last_arrival_s)
    finally:
        consumer.close()


def measure_latency(
    connection: ConnectionOptions,
    topic: str,
    rate: float,
    seconds: float,
    value: bytes,
    settings: dict[str, Any],
    show: ShowPoint,
) -> Latency:
    """Write records at a steady rate, and measure the time until a waiting consumer receives each of them.

    Each record has a planned time and is timed from this time. A stall therefore counts for every record that it
    delays.
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
            meter = ThroughputMeter(len(value), show)
            start = time.perf_counter()
            for number in range(arrivals.wanted):
                due = start + number / rate
                while (wait_s := due - time.perf_counter()) > 0:
                    producer.poll(min(wait_s, SAMPLE_S))
                produce_when_there_is_room(producer, topic, value, arrivals.key(due))
                meter.update(number + 1)
            seconds_taken = time.perf_counter() - start
            producer.flush(STUCK_S)
            arrivals.wait()
    finally:
        consumer.close()
    if len(arrivals.latencies_ms) < arrivals.wanted:
        raise CommandError(
            f"only {len(arrivals.latencies_ms)} of {counted(arrivals.wanted, 'record')} had arrived {STUCK_S:.0f} s"
            " after the planned time of the last one"
        )
    return Latency(sorted(arrivals.latencies_ms), rate, arrivals.wanted / seconds_taken)


class Arrivals:
    """Reads records in a thread of its own. Each record is timed from its planned time, which is in its key."""

    def __init__(self, consumer: "Consumer", wanted: int, deadline: float) -> None:
        self.wanted = wanted
        self.latencies_ms: list[float] = []
        self._consumer = consumer
        self._deadline = deadline
        self._key_prefix = os.urandom(4).hex() + "@"
        """Prefix of the keys of this run's records. Other producers may also write to the topic."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="tidelog-bench-reader")

    def key(self, due: float) -> str:
        return f"{self._key_prefix}{due!r}"

    def wait(self) -> None:
        """Wait until all records have arrived, or the deadline has passed."""
        self._thread.join()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        key_prefix = self._key_prefix.encode()
        while len(self.latencies_ms) < self.wanted and time.monotonic() < self._deadline and not self._stop.is_set():
            message = self._consumer.poll(SAMPLE_S)
            arrived = time.perf_counter()
            key = message.key() if message is not None and message.error() is None else None
            if key is not None and key.startswith(key_prefix):
                self.latencies_ms.append((arrived - float(key[len(key_prefix) :])) * 1000)


def produce_when_there_is_room(producer: "Producer", topic: str, value: bytes, key: str) -> None:
    while True:
        try:
            producer.produce(topic, value, key=key, partition=0)
        except BufferError:
            producer.poll(SAMPLE_S / 10)
        else:
            return


def wait_until_reading(producer: "Producer", consumer: "Consumer", topic: str) -> None:
    """Write records until the consumer reads one of them. After this, the consumer receives every new record.

    Raises CommandError if no record is read within STUCK_S.
    """
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
    raise CommandError(
        f"topic {topic}: none of {counted(written, 'written record')} could be read within {STUCK_S:.0f} s"
    )


class ThroughputMeter:
    """Collects the points of a throughput curve, and passes each point to `show` when it is added."""

    def __init__(self, record_bytes: int, show: ShowPoint) -> None:
        self.record_bytes = record_bytes
        self.show = show
        self.start = time.perf_counter()
        self.points = [Point(0.0, 0, 0)]

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def update(self, records: int, size_bytes: int | None = None) -> None:
        """Report the current number of records. Most calls are cheap, because a point is added only once in
        SAMPLE_S.
        """
        seconds = self.seconds
        if seconds - self.points[-1].seconds >= SAMPLE_S:
            self.points.append(Point(seconds, records, self.bytes_of(records, size_bytes)))
            self.show(self.points[-1])

    def result(
        self, records: int, latencies_ms: list[float], size_bytes: int | None = None, seconds: float | None = None
    ) -> Throughput:
        """Return the result of the measurement, which ends `seconds` after the start, or now if `seconds` is None."""
        seconds = self.seconds if seconds is None else seconds
        self.points = [point for point in self.points if point.seconds < seconds]
        size = self.bytes_of(records, size_bytes)
        self.points.append(Point(seconds, records, size))
        self.show(self.points[-1])
        return Throughput(records, size, seconds, self.points, latencies_ms)

    def bytes_of(self, records: int, size_bytes: int | None) -> int:
        return records * self.record_bytes if size_bytes is None else size_bytes


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """Return the smallest value v for which at least `percent` percent of the values are at most v.

    Raises ValueError if there are no values.
    """
    if not sorted_values:
        raise ValueError("no values")
    rank = -(-len(sorted_values) * percent // 100)  # rounded up
    return sorted_values[max(int(rank), 1) - 1]


def rates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return the middle of each interval between points, in seconds, and the records per second within it."""
    # The last interval may be too short for a meaningful rate.
    pairs = [(start, end) for start, end in pairwise(points) if end.seconds - start.seconds >= SAMPLE_S / 2]
    return (
        [(start.seconds + end.seconds) / 2 for start, end in pairs],
        [(end.records - start.records) / (end.seconds - start.seconds) for start, end in pairs],
    )
