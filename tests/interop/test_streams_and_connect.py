"""Kafka Streams with exactly_once_v2 and Kafka Connect's exactly-once source, killed and started again.

The results are exact under read_committed, although the processes are killed in the middle of transactions.
"""

import json
import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from interop_harness.java_tools import JavaTools
from interop_harness.suite import NewTopicNamed, Unique, wait_until
from interop_harness.target import KAFKA, kafka_jars

CLIENT = "Java kafka-clients and Kafka's tools"
IS_FULL = os.environ.get("TIDELOG_FULL") == "1"
pytestmark = [pytest.mark.timeout(1500 if IS_FULL else 500), pytest.mark.exercises("transactional-offsets")]
SUMS = Path(__file__).parents[1] / "interop_harness/java/Sums.java"
LIMIT_S = 150.0
KEYS = 10
ROUNDS = 10 if IS_FULL else 2
"""How often the process is killed."""
FILLER = b"filler"
RECORDS = 1000
"""Records that are written in each round."""


@pytest.fixture(scope="module")
def classpath(java: JavaTools) -> str:
    """The class path with Kafka Streams and the file connectors; the first use downloads the jars."""
    return subprocess.run(
        [*KAFKA, "classpath", "--with-streams"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


@contextmanager
def running(classpath: str, log: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a Java program that logs to the file. It is killed at the end, as by a power cut."""
    options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={kafka_jars()}/log4j2.xml"]
    with log.open("ab") as output:
        process = subprocess.Popen(["java", *options, "-cp", classpath, *arguments], stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Reader:
    """A read_committed consumer of all partitions of a topic, from the beginning."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer(settings | {"isolation.level": "read_committed"})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self.records: list[tuple[bytes, bytes]] = []

    def poll(self) -> None:
        for record in self._consumer.consume(1000, 0.5):
            if record.error() is None:
                self.records.append((record.key() or b"", record.value() or b""))

    def wait_for(self, count: int, log: Path, nudge: Callable[[], None] = lambda: None) -> None:
        """Read until there are `count` records. `nudge` is called again and again until then."""

        def enough() -> bool:
            nudge()
            self.poll()
            return sum(value != FILLER for _, value in self.records) >= count

        try:
            wait_until(enough, f"{count} records", LIMIT_S)
        except AssertionError as error:
            last = [value for _, value in self.records[-3:]]
            raise AssertionError(
                f"{error}: {len(self.records)} arrived, the last {last}; {log.read_text()[-3000:]}"
            ) from error

    def close(self) -> None:
        self.poll()
        self._consumer.close()


def test_sums_of_kafka_streams(
    bootstrap: str, classpath: str, new_topic: NewTopicNamed, unique: Unique, tmp_path: Path
) -> None:
    """Each value is added to the sum of its key exactly once."""
    source, target, application = new_topic("in", 2), new_topic("out", 2), unique("sums")
    log, chance = tmp_path / "streams.log", random.Random(unique("seed"))
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    reader = Reader(bootstrap, target, 2)
    arguments = [str(SUMS), bootstrap, application, source, target, str(tmp_path / "state")]
    written = 0
    expected: dict[bytes, list[bytes]] = {b"%d" % key: [] for key in range(KEYS)}
    sums = dict.fromkeys(expected, 0)
    for round_number in range(ROUNDS + 1):
        with running(classpath, log, *arguments):
            for _ in range(RECORDS):
                key = b"%d" % chance.randrange(KEYS)
                value = chance.randrange(100)
                sums[key] += value
                expected[key].append(b"%d" % sums[key])
                producer.produce(source, key=key, value=b"%d" % value)
            producer.flush(60)
            written += RECORDS
            # In all rounds but the last, it is killed while it works.
            share = 1.0 if round_number == ROUNDS else chance.uniform(0.1, 0.9)
            reader.wait_for(written - RECORDS + int(RECORDS * share), log)
    reader.close()
    results: dict[bytes, list[bytes]] = {key: [] for key in expected}
    for key, value in reader.records:
        results[key].append(value)
    assert results == expected


class Connect:
    """A worker of Kafka Connect in distributed mode, the only mode that has exactly-once sources."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.properties = directory / "connect.properties"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": 500,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "scheduled.rebalance.max.delay.ms": 500,
        }
        for topic in ("config", "offset", "status"):
            settings |= {f"{topic}.storage.topic": f"{name}-{topic}", f"{topic}.storage.replication.factor": 1}
        settings |= {"offset.storage.partitions": 1, "status.storage.partitions": 1}
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def request(self, path: str, document: Any = None) -> Any:
        """Send a request to the REST interface. Return None while there is no answer, or a refusal."""
        data = None if document is None else json.dumps(document).encode()
        url = f"http://127.0.0.1:{self._port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except (urllib.error.URLError, OSError):
            return None


def test_the_lines_of_connects_file_source(
    bootstrap: str, classpath: str, new_topic: NewTopicNamed, unique: Unique, tmp_path: Path
) -> None:
    """Each line of a file arrives exactly once, and in order, although the worker is killed."""
    topic, name = new_topic("lines"), unique("connect")
    source, log = tmp_path / "source.txt", tmp_path / "connect.log"
    connect = Connect(bootstrap, name, tmp_path)
    connector = {
        "name": name,
        "config": {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": 1,
            "file": str(source),
            "topic": topic,
            "batch.size": 50,
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        },
    }
    reader = Reader(bootstrap, topic, 1)
    source.touch()
    written = 0
    for round_number in range(ROUNDS + 1):
        with running(classpath, log, "org.apache.kafka.connect.cli.ConnectDistributed", str(connect.properties)):
            wait_until(lambda: connect.request("/connectors") is not None, "Connect answers", LIMIT_S)
            if round_number == 0:
                wait_until(lambda: connect.request("/connectors", connector) is not None, "the connector", LIMIT_S)
            share = 1.0 if round_number == ROUNDS else 0.3
            with source.open("a") as lines:
                for _ in range(RECORDS // 100):
                    lines.write("".join(f"line {number}\n" for number in range(written, written + 100)))
                    lines.flush()
                    written += 100
                    time.sleep(0.02)
            # Kafka's connector keeps the lines after a full batch until the file grows again.
            reader.wait_for(written - RECORDS + int(RECORDS * share), log, lambda: append(source, FILLER))
    reader.close()
    lines_read = [value for _, value in reader.records if value != FILLER]
    assert lines_read == [b"line %d" % number for number in range(written)]


def append(file: Path, line: bytes) -> None:
    with file.open("ab") as lines:
        lines.write(line + b"\n")
