"""`tidelog pipeline run` as a process: SIGTERM in a micro-batch, a broker that is away for a while, a killed mirror."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop_harness.suite import wait_until
from pipelines_harness import EXAMPLES, read_topic
from tidelog.pipelines.mirror_store import MirrorStore
from tidelog.pipelines.mirror_writer import connect
from tidelog.testing import Broker

LIMIT_S = 120.0
PIPELINE = [sys.executable, "-m", "tidelog", "pipeline"]
SHORT_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
GATED = """
import time
from pathlib import Path

from tidelog.pipelines import pipeline, topic

HERE = Path(__file__).parent


def wait_at_the_gate(batches):
    (HERE / "in-batch").touch()
    deadline = time.monotonic() + {limit}
    while not (HERE / "gate").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield from batches


@pipeline(
    source=topic("steps", options={{"maxOffsetsPerTrigger": 100}}),
    sink=topic("steps-copied", partitions=1),
    trigger="100 ms",
)
def copied(steps):
    return steps.select("value").mapInArrow(wait_at_the_gate, "value binary")
"""
PLAIN = """
from tidelog.pipelines import pipeline, topic


@pipeline(source=topic("steps"), sink=topic("steps-copied", partitions=1), trigger="100 ms")
def copied(steps):
    return steps.select("value")
"""


def create(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)


def produce(broker: Broker, topic: str, numbers: range, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(30) == 0


@contextmanager
def running(
    directory: Path, file: Path, broker: Broker, *options: str, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Run the pipelines of a file in a process, which is killed at the end of the block."""
    with open(directory / "output", "a") as output:
        process = subprocess.Popen(
            [*PIPELINE, "run", str(file), *options, "--bootstrap", broker.bootstrap],
            cwd=directory,
            env=os.environ | SHORT_JVM | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    except BaseException:
        print((directory / "output").read_text())
        raise
    finally:
        process.kill()
        process.wait()


def stored_query(directory: Path, pipeline: str) -> dict[str, Any]:
    """Return the newest figures of the only query that a run has stored; empty if there are none yet. No process is
    started for this.
    """
    try:
        stored = json.loads((directory / f".tidelog-pipelines/{pipeline}/status.json").read_text())
    except FileNotFoundError:
        return {}
    found: dict[str, Any] = (stored["queries"] or [{}])[0]
    return found


class Place:
    """A directory with the file of a pipeline, and a topic."""

    def __init__(self, directory: Path, broker: Broker, text: str) -> None:
        self.directory = directory
        self.broker = broker
        self.file = directory / "copied.py"
        self.file.write_text(text)
        create(broker, "steps", 1)

    def running(self, *options: str) -> AbstractContextManager["subprocess.Popen[str]"]:
        return running(self.directory, self.file, self.broker, *options)

    def status(self) -> dict[str, Any]:
        """Return what `tidelog pipeline status` says of the pipeline; empty before its first status."""
        shown = subprocess.run(
            [*PIPELINE, "status", "--json"], cwd=self.directory, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S
        )
        found: list[dict[str, Any]] = json.loads(shown.stdout)
        return found[0] if found else {}

    def stored(self, figure: str) -> object:
        return stored_query(self.directory, "copied").get(figure)

    def write(self, numbers: range) -> None:
        produce(self.broker, "steps", numbers)

    def copies(self) -> list[int]:
        return [int(message.value()) for message in read_topic(self.broker.bootstrap, "steps-copied")]


def test_sigterm_lets_the_micro_batch_end_and_the_status_is_that_of_the_end(tmp_path: Path) -> None:
    with Broker(process=True) as broker:
        place = Place(tmp_path, broker, GATED.format(limit=LIMIT_S))
        place.write(range(250))
        with place.running() as process:
            wait_until((tmp_path / "in-batch").exists, "the micro-batch runs", LIMIT_S)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: "Stopping: " in (tmp_path / "output").read_text(), "it stops", LIMIT_S)
            assert process.poll() is None
            assert place.status()["process"] is True
            (tmp_path / "gate").touch()
            assert process.wait(LIMIT_S) == -signal.SIGTERM
        assert place.copies() == list(range(100))
        status = place.status()
        assert (status["state"], status["process"], status["restarts"], status["error"]) == ("stopped", False, 0, None)
        [query] = status["queries"]
        assert (query["rows"], query["batches"], query["offsets"]) == (
            100,
            1,
            {broker.bootstrap: {"steps": {"0": 100}}},
        )
        assert query["lag_records"] == 150

        with place.running("--once") as process:
            assert process.wait(LIMIT_S) == 0
        assert place.copies() == list(range(250))
        status = place.status()
        assert (status["state"], status["process"], status["restarts"], status["error"]) == ("done", False, 0, None)
        [query] = status["queries"]
        assert (query["rows"], query["offsets"]) == (150, {broker.bootstrap: {"steps": {"0": 250}}})
        assert (query["lag_records"], query["lag_ms"]) == (0, 0)


def test_a_broker_that_is_away_for_a_while_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with Broker(process=True, data=tmp_path / "data") as broker:
        place = Place(tmp_path, broker, PLAIN)
        place.write(range(100))
        with place.running() as process:
            wait_until(lambda: place.stored("rows") == 100, "the first records are copied", LIMIT_S)
            wait_until(lambda: place.stored("lag_records") == 0, "the lag is known", LIMIT_S)
            broker.kill()
            # The run asks the brokers every two seconds how far the query is behind.
            wait_until(lambda: place.stored("lag_records") is None, "the run notices that the broker is away", LIMIT_S)
            broker.start()
            place.write(range(100, 200))
            wait_until(lambda: place.stored("rows") == 200, "the other records are copied", LIMIT_S)
            assert place.copies() == list(range(200))
            wait_until(lambda: place.stored("lag_records") == 0, "the lag is known again", LIMIT_S)
            assert place.status()["state"] == "running"
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == -signal.SIGTERM
        status = place.status()
        assert (status["state"], status["process"]) == ("stopped", False)
        assert status["queries"][0]["offsets"] == {broker.bootstrap: {"steps": {"0": 200}}}
        assert place.copies() == list(range(200))


def test_a_mirror_that_is_killed_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    """With the file of the example, whose second micro-batch is killed while it writes to the target."""
    file = EXAMPLES / "mirror/mirror.py"
    with Broker(process=True) as source, Broker(process=True) as target:
        create(source, "shop-orders", 2)
        produce(source, "shop-orders", range(100), 2)
        with running(tmp_path, file, target, SOURCE=source.bootstrap) as process:
            wait_until(lambda: stored_query(tmp_path, "shop").get("batches") == 1, "the first records", LIMIT_S)
            with log_end(target, "shop-orders", 2) as end:
                before = end()
                produce(source, "shop-orders", range(100, 40_000), 2)
                wait_until(lambda: end() > before, "the second micro-batch writes", LIMIT_S)
            process.kill()
        assert stored_end(target) == 100, "the kill came too late"
        with running(tmp_path, file, target, "--once", SOURCE=source.bootstrap) as process:
            assert process.wait(LIMIT_S) == 0
        for bootstrap in (source.bootstrap, target.bootstrap):
            copied = read_topic(bootstrap, "shop-orders")
            expected = [[str(n).encode() for n in range(first, 40_000, 2)] for first in (0, 1)]
            assert [[m.value() for m in copied if m.partition() == number] for number in (0, 1)] == expected
        check = [sys.executable, "-m", "tidelog.pipelines.mirror_check", str(file), "--bootstrap", target.bootstrap]
        environment = os.environ | {"SOURCE": source.bootstrap}
        compared = subprocess.run(check, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert compared.returncode == 0, compared.stdout
        assert "no differences between source and target" in compared.stdout


@contextmanager
def log_end(broker: Broker, topic: str, partitions: int) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the sum of the ends of the partitions, with the records of open transactions."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "isolation.level": "read_uncommitted"}
    )
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    yield lambda: sum(consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts)
    consumer.close()


def stored_end(target: Broker) -> int:
    """Return the number of source records whose offsets the mirror has stored as mirrored."""
    cluster = connect(target.bootstrap)
    try:
        store = MirrorStore(cluster, "shop")
        store.load(-1)
        return sum(offsets.source_end or 0 for offsets in store.offsets.values())
    finally:
        cluster.close()
