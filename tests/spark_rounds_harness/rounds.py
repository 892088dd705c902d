"""One query that lives through rounds of kills."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from random import Random
from threading import Thread
from typing import IO, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_rounds_harness import processes
from spark_rounds_harness.checker import check
from spark_rounds_harness.sinks import SINKS, Target

TESTS = Path(__file__).resolve().parents[1]
PARTITIONS = 3
RECORDS_PER_ROUND = 2_000
LIMIT_S = 600.0
"""Upper bound on the time until a round's records are written, restarts included."""
FIRST_KILL_S, LAST_KILL_S = 0.0, 4.0
"""A process is killed so many seconds after the round's records were written to the input."""


def _driver(driver: int, random: Random) -> list[int]:
    return processes.driver_processes(driver)


def _driver_and_executors(driver: int, random: Random) -> list[int]:
    return [driver, *processes.descendants(driver)]


def _executor(driver: int, random: Random) -> list[int]:
    return [random.choice(pids)] if (pids := processes.executors(driver)) else []


def _executors(driver: int, random: Random) -> list[int]:
    return processes.executors(driver)


def _python_worker(driver: int, random: Random) -> list[int]:
    return [random.choice(pids)] if (pids := processes.python_workers(driver)) else []


KILLS: dict[str, Callable[[int, Random], list[int]]] = {
    "driver": _driver,
    "executor": _executor,
    "driver and executors": _driver_and_executors,
    "python worker": _python_worker,
    "executors": _executors,
}
"""What is killed, with a function from the driver's process id to the process ids."""


class Round(NamedTuple):
    number: int
    killed: str
    processes: int
    """Number of processes that were killed."""
    restarts: int
    """Number of drivers that were started."""
    seconds: float


class Life:
    """The query, its input and its output. `close` stops it."""

    def __init__(self, sink: str, bootstrap: str, folder: Path, seed: int) -> None:
        self._sink = sink
        self._random = Random(seed)
        self._bootstrap = bootstrap
        self._source = f"rounds-in-{sink}-{seed}-{int(time.time())}"
        self.target = Target(bootstrap, self._source.replace("-in-", "-out-"), folder)
        self.count = 0
        """Number of records in the input. Their values are the numbers below it."""
        self._child: subprocess.Popen[str] | None = None
        self._lines: Queue[str] = Queue()
        self._log = (folder / "driver.log").open("a")
        topics = [NewTopic(name, PARTITIONS) for name in (self._source, self.target.name)]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics(topics).values():
            created.result(30)

    def run_round(self, number: int) -> Round:
        """Write records to the input, kill something while they are processed, and check the output when the query
        has processed them all. Raises NotExactlyOnce.
        """
        began = time.monotonic()
        restarts = self._start_if_dead()
        self.add_records(RECORDS_PER_ROUND)
        killed = list(KILLS)[(number - 1) % len(KILLS)]
        time.sleep(self._random.uniform(FIRST_KILL_S, LAST_KILL_S))
        assert self._child
        pids = KILLS[killed](self._child.pid, self._random)
        processes.kill(pids)
        deadline = time.monotonic() + LIMIT_S
        while self._end_of_last_batch() < self.count:
            restarts += self._start_if_dead()
            assert time.monotonic() < deadline, f"round {number}: not complete, see {self._log.name}"
        self.check()
        return Round(number, killed, len(pids), restarts, time.monotonic() - began)

    def add_records(self, count: int) -> None:
        """Append records to the input."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for n in range(self.count, self.count + count):
            producer.produce(self._source, str(n), partition=n % PARTITIONS)
        assert producer.flush(60) == 0
        self.count += count

    def check(self) -> None:
        """Raise NotExactlyOnce unless the output is the input."""
        check(SINKS[self._sink].read(self.target), self.count)

    def close(self) -> None:
        if self._child is not None:
            processes.kill([self._child.pid, *processes.descendants(self._child.pid)])
            self._child.wait()
        self._log.close()

    def _start_if_dead(self) -> int:
        """Start a driver if none runs. Return the number of drivers that were started: 0 or 1."""
        if self._child is not None and self._child.poll() is None:
            return 0
        arguments = [self._sink, self._bootstrap, self._source, self.target.name, str(self.target.folder)]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "spark_rounds_harness.driver", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self.target.folder,
            env=os.environ | {"PYTHONPATH": str(TESTS)},
        )
        assert self._child.stdout
        Thread(target=_read_lines, args=(self._child.stdout, self._lines), daemon=True).start()
        return 1

    def _end_of_last_batch(self) -> int:
        """Return the number of input records that the last reported micro-batch ends at. Wait up to a second."""
        try:
            line = self._lines.get(timeout=1)
        except Empty:
            return -1
        return int(json.loads(line)["end"]) if line.startswith("{") else -1


def _read_lines(stream: IO[str], lines: "Queue[str]") -> None:
    for line in stream:
        lines.put(line)
