"""The broker under test: Tidelog in a separate process, Apache Kafka by `script/kafka`, or a broker that runs
already.
"""

import contextlib
import os
import random
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidelog.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
KAFKA = [sys.executable, str(ROOT / "script/kafka")]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",  # a group with one consumer starts at once
    "group.min.session.timeout.ms": "1000",  # a failed member is removed soon
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "4",
    "num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",  # a transaction times out without delay
}
"""Settings for either broker. All others have their defaults."""

KAFKA_READY_S = 90.0


class Target(NamedTuple):
    """A broker. `data` is the directory of its partition directories; None for a broker that the tests did not
    start.
    """

    kind: str
    bootstrap: str
    data: Path | None

    @property
    def is_tidelog(self) -> bool:
        return self.kind == "tidelog"


class NoKafka(RuntimeError):
    """Apache Kafka cannot run here; the message names the missing program."""


@contextlib.contextmanager
def started(against: str) -> Iterator[Target]:
    """Start or connect to a broker: `against` is `tidelog`, `kafka` or HOST:PORT. Raises NoKafka without Java or
    mvn.
    """
    if against == "tidelog":
        with Broker(process=True, settings=SETTINGS) as broker:
            yield Target("tidelog", broker.bootstrap, broker.data)
    elif against == "kafka":
        with _kafka() as target:
            yield target
    else:
        yield Target("other", against, None)


def missing_for_java() -> str | None:
    """Return why Kafka's jars cannot run here, or None if they can."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"no {program}"
    if shutil.which("mvn") is None and not Path(kafka_jars(), "complete").exists():
        return "no mvn to fetch Kafka's jars"
    return None


def kafka_version() -> str:
    return os.environ.get("KAFKA_VERSION", "4.3.1")


def kafka_jars() -> str:
    """Return the directory of the jars of `script/kafka`."""
    return os.environ.get("KAFKA_JARS", str(Path.home() / ".cache/tidelog-kafka" / kafka_version()))


@contextlib.contextmanager
def _kafka() -> Iterator[Target]:
    missing = missing_for_java()
    if missing:
        raise NoKafka(missing)
    with tempfile.TemporaryDirectory(prefix="interop-kafka-") as data:
        command = [*KAFKA, "start", "--port", str(_free_pair()), "--data", data]
        for name, value in SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        environment = os.environ | {"KAFKA_HEAP_OPTS": "-Xms256M -Xmx512M"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            yield Target("kafka", _ready(process), Path(data, "0"))
        finally:
            process.terminate()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def _ready(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + KAFKA_READY_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            line = process.stdout.readline()
            if line.startswith("ready: "):
                return line.split()[1]
            if not line:
                raise RuntimeError(f"Kafka ended with {process.wait()} before it was ready")
    raise RuntimeError(f"Kafka was not ready after {KAFKA_READY_S:.0f} s")


def _free_pair() -> int:
    """Return a free port whose successor is also free: one for the broker, one for its controller.

    It is below the system's range for outgoing connections, one of which could take the port before Kafka does.
    """
    for port in random.SystemRandom().sample(range(21_000, 22_000, 2), 100):
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two free ports from 21000 on")
