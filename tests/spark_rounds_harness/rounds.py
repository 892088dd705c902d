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
from spark_rounds_harness.keys import PARTITIONS, key_of
from spark_rounds_harness.sinks import SINKS, Target

TESTS = Path(__file__).resolve().parents[1]
RECORDS_PER_ROUND = 600
LIMIT_S = float(os.environ.get("SPARK_ROUNDS_LIMIT_S", "600"))
"""Upper bound, in seconds, on the time of one attempt of a round with its restarts, and on the time until the last
attempt begins."""
FIRST_DURATION_S = 3.0
"""The expected time in which the query writes the records of a round, until it has been measured."""


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
    misses: int
    """Number of earlier attempts in which nothing was killed, or nothing that had work. They are not counted as rounds,
    but their output was checked, too."""
    restarts: int
    """Number of drivers that were started."""
    seconds: float
    checked: str
    """What was compared after the round, as a text."""


class Life:
    """The query, its input and its output. `close` stops it."""

    def __init__(self, sink: str, bootstrap: str, folder: Path, seed: int) -> None:
        self._sink = sink
        self._random = Random(seed)
        self._bootstrap = bootstrap
        self._source = f"rounds-in-{sink}-{seed}-{int(time.time())}"
        self.target = Target(bootstrap, self._source.replace("-in-", "-out-"), folder)
        self.count = 0
        """Number of records in the input. Their values are the numbers below it, and their keys are those of
        `key_of`."""
        self._duration_s = FIRST_DURATION_S
        """The time in which the query wrote the records of the last round without a restart. Something is killed at a
        random point of such a time, so that it is in the middle of the work on a fast and on a slow machine."""
        self._child: subprocess.Popen[str] | None = None
        self._lines: Queue[str] = Queue()
        self._log = (folder / "driver.log").open("a")
        topics = [NewTopic(name, PARTITIONS) for name in (self._source, self.target.name)]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics(topics).values():
            created.result(30)

    def run_round(self, number: int) -> Round:
        """Write records to the input, kill something while they are processed, and check the output when the query
        has processed them all. If the kill was too late, or there was nothing to kill, do it again. Raises
        NotExactlyOnce.
        """
        began = time.monotonic()
        misses = restarts = killed = 0
        checked = ""
        kill = list(KILLS)[(number - 1) % len(KILLS)]
        while not killed:
            assert time.monotonic() - began < LIMIT_S, f"round {number}: {misses} kills without effect"
            killed, starts = self._kill_once(number, kill)
            checked = self.check()
            restarts += starts
            misses += not killed
        return Round(number, kill, killed, misses, restarts, time.monotonic() - began, checked)

    def _kill_once(self, number: int, kill: str) -> tuple[int, int]:
        """Return the number of processes that were killed before the query had committed all records, and the number of
        drivers that were started.
        """
        deadline = time.monotonic() + LIMIT_S
        restarts = self._start_if_dead()
        while restarts and self._end_of_last_batch() < 0:
            restarts += self._start_if_dead()
            assert time.monotonic() < deadline, f"round {number}: the query does not start, see {self._log.name}"
        self.add_records(RECORDS_PER_ROUND)
        added = time.monotonic()
        starts_before = restarts
        time.sleep(self._random.uniform(0, self._duration_s))
        assert self._child
        pids = KILLS[kill](self._child.pid, self._random) if self._child.poll() is None else []
        had_work = self._committed() < self.count
        processes.kill(pids)
        if self._child.pid in pids:
            self._child.wait()  # otherwise the next attempt may take it for a driver that works
        while self._end_of_last_batch() < self.count:
            restarts += self._start_if_dead()
            assert time.monotonic() < deadline, f"round {number}: not complete, see {self._log.name}"
        if restarts == starts_before:
            self._duration_s = time.monotonic() - added
        return len(pids) if had_work else 0, restarts

    def _committed(self) -> int:
        """Return the number of input records in the micro-batches that the checkpoint contains as committed."""
        checkpoint = self.target.folder / "checkpoint"
        numbers = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
        if not numbers:
            return 0
        last_line = (checkpoint / "offsets" / str(max(numbers))).read_text().splitlines()[-1]
        return sum(json.loads(last_line)[self._source].values())

    def add_records(self, count: int) -> None:
        """Append records to the input."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for n in range(self.count, self.count + count):
            producer.produce(self._source, str(n), str(key_of(n)), partition=n % PARTITIONS)
        assert producer.flush(60) == 0
        self.count += count

    def check(self) -> str:
        """Raise NotExactlyOnce unless the output has the contents that the sink promises for the input. Return a text
        that says what was checked.
        """
        sink = SINKS[self._sink]
        return sink.contents.check(sink.read(self.target), self.count)

    def close(self) -> None:
        if self._child is not None:
            processes.kill([self._child.pid, *processes.descendants(self._child.pid)])
            self._release_child(self._child)
        self._log.close()

    def _release_child(self, child: "subprocess.Popen[str]") -> None:
        """Wait for the end of a driver that was killed or that ended itself, and close its pipes."""
        child.wait()
        assert child.stdin
        child.stdin.close()
        self._reader.join()

    def _start_if_dead(self) -> int:
        """Start a driver if none runs. Return the number of drivers that were started: 0 or 1."""
        if self._child is not None:
            if self._child.poll() is None:
                return 0
            self._release_child(self._child)
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
        self._reader = Thread(target=_read_lines, args=(self._child.stdout, self._lines), daemon=True)
        self._reader.start()
        return 1

    def _end_of_last_batch(self) -> int:
        """Return the number of input records that the last reported micro-batch ends at. Wait up to a second."""
        try:
            line = self._lines.get(timeout=1)
        except Empty:
            return -1
        return int(json.loads(line)["end"]) if line.startswith("{") else -1


def _read_lines(stream: IO[str], lines: "Queue[str]") -> None:
    """Put each line into the queue, and close the stream at its end."""
    with stream:
        for line in stream:
            lines.put(line)
