"""`tidelog pipeline run` as a process: SIGTERM within a micro-batch, and a broker that is away for a while."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop_harness.suite import wait_until
from pipelines_harness import read_topic
from tidelog.testing import Broker

LIMIT_S = 120.0
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


class Place:
    """A directory with the file of a pipeline, and a topic."""

    def __init__(self, directory: Path, broker: Broker, text: str) -> None:
        self.directory = directory
        self.broker = broker
        (directory / "copied.py").write_text(text)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("steps", 1)])["steps"].result(30)

    @contextmanager
    def running(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        with open(self.directory / "output", "a") as output:
            process = subprocess.Popen(
                self.command("run", "copied.py", *options, "--bootstrap", self.broker.bootstrap),
                cwd=self.directory,
                env=os.environ | SHORT_JVM,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            yield process
        except BaseException:
            print((self.directory / "output").read_text())
            raise
        finally:
            process.kill()
            process.wait()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tidelog", "pipeline", *arguments]

    def status(self) -> dict[str, Any]:
        """Return what `tidelog pipeline status` says of the pipeline; empty before its first status."""
        shown = subprocess.run(
            self.command("status", "--json"), cwd=self.directory, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S
        )
        found: list[dict[str, Any]] = json.loads(shown.stdout)
        return found[0] if found else {}

    def stored_status(self) -> dict[str, Any]:
        """Return the newest status that the run has stored, without starting a process for it."""
        try:
            stored: dict[str, Any] = json.loads((self.directory / ".tidelog-pipelines/copied/status.json").read_text())
        except FileNotFoundError:
            return {}
        return stored

    def write(self, numbers: range) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number in numbers:
            producer.produce("steps", str(number))
        assert producer.flush(30) == 0

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
        assert (query["rows"], query["batches"], query["offsets"]) == (100, 1, {"steps": {"0": 100}})
        assert query["lag_records"] == 150

        with place.running("--once") as process:
            assert process.wait(LIMIT_S) == 0
        assert place.copies() == list(range(250))
        status = place.status()
        assert (status["state"], status["process"], status["restarts"], status["error"]) == ("done", False, 0, None)
        [query] = status["queries"]
        assert (query["rows"], query["offsets"]) == (150, {"steps": {"0": 250}})
        assert (query["lag_records"], query["lag_ms"]) == (0, 0)


def test_a_broker_that_is_away_for_a_while_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with Broker(process=True, data=tmp_path / "data") as broker:
        place = Place(tmp_path, broker, PLAIN)
        place.write(range(100))
        with place.running() as process:
            wait_until(lambda: rows_of(place) == 100, "the first records are copied", LIMIT_S)
            wait_until(lambda: lag_of(place) == 0, "the lag is known", LIMIT_S)
            broker.kill()
            # The run asks the brokers every two seconds how far the query is behind.
            wait_until(lambda: lag_of(place) is None, "the run notices that the broker is away", LIMIT_S)
            broker.start()
            place.write(range(100, 200))
            wait_until(lambda: rows_of(place) >= 200, "the other records are copied", LIMIT_S)
            assert place.copies() == list(range(200))
            wait_until(lambda: lag_of(place) == 0, "the lag is known again", LIMIT_S)
            assert place.status()["state"] == "running"
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == -signal.SIGTERM
        status = place.status()
        assert (status["state"], status["process"]) == ("stopped", False)
        assert status["queries"][0]["offsets"] == {"steps": {"0": 200}}
        assert place.copies() == list(range(200))


def rows_of(place: Place) -> int:
    return sum(query["rows"] for query in place.stored_status().get("queries", []))


def lag_of(place: Place) -> int | None:
    lag: int | None = place.stored_status()["queries"][0]["lag_records"]
    return lag
