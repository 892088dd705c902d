"""Runs the flash sale: a broker and every part in a process of its own, one worker killed in the middle, a live view.

What each part prints on stderr is kept in `logs/` of the directory.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, Self

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.demo.ledger import Ledger
from tidelog.demo.orders import EVENTS, ORDERS, PARTITIONS, REORDERS, opening_stock, read_orders
from tidelog.demo.readers import READERS, read_events_seen
from tidelog.demo.worker import SESSION_MS
from tidelog.testing import Broker

SETTINGS = {"offsets.topic.num.partitions": 3, "group.min.session.timeout.ms": SESSION_MS}
QUIET: dict[str, Any] = {"log_level": 0}
"""Of clients in this process: librdkafka's own lines would go into the display."""
SAMPLE_S = 0.25
PATIENCE_S = 100
"""Until everything is settled; then the sale has failed."""
KILL_AT_PERCENT = 40
CHECK_PATIENCE_S = 90


class SaleFailed(Exception):
    """A part failed or took too long. One line that says which, and where its log is."""


class Plan(NamedTuple):
    directory: Path
    spark: bool = True
    orders_per_s: int = 700
    """What one worker may do."""
    expiry_ms: int = 15_000
    bursts: int = 3
    pause_s: float = 2.0


class Sample(NamedTuple):
    """What is seen at one moment."""

    at_s: float
    sent: int
    counts: dict[str, int]
    unpublished: int
    seen: dict[str, int]
    """Events that each reading group has seen."""
    workers: dict[str, str]
    """Name -> "works", "killed"."""

    @property
    def settled(self) -> int:
        return sum(self.counts.values())

    @property
    def queue(self) -> int:
        return self.sent - self.settled


class Result(NamedTuple):
    samples: list[Sample]
    verdict: dict[str, Any]
    left_out: tuple[int, int]
    duration_s: float


class Show(Protocol):
    """Whoever tells a person how far the sale is."""

    def show(self, sample: Sample, expected: int) -> None:
        """Each sample, and how many orders there will be."""

    def phase(self, name: str) -> None:
        """What is going on now, as a part of a sentence; called again and again while that lasts."""


class Stage:
    """The processes of one sale; ends them all when its block ends."""

    def __init__(self, plan: Plan, bootstrap: str, show: Show) -> None:
        self.plan = plan
        self._show = show
        self.bootstrap = bootstrap
        self.workers: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._logs: list[IO[str]] = []
        (plan.directory / "logs").mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for log in self._logs:
            log.close()

    def start(self, name: str, module: str, *arguments: object) -> subprocess.Popen[str]:
        log = open(self._log(name), "w")  # noqa: SIM115 - closed with the block
        self._logs.append(log)
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", f"tidelog.demo.{module}", self.bootstrap, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        return self._processes[name]

    def start_worker(self, name: str) -> None:
        self.workers[name] = "works"
        self.start(name, "worker", self.plan.directory / "ledger.sqlite", name, self.plan.orders_per_s)

    def kill_worker(self, name: str) -> None:
        self.workers[name] = "killed"
        self._processes[name].kill()

    def stop(self, *names: str) -> None:
        """SIGTERM, and wait for each."""
        for name in names:
            self._processes[name].send_signal(signal.SIGTERM)
        for name in names:
            self.expect(name, self._processes[name].wait(30))

    def expect(self, name: str, code: int | None) -> None:
        """Raise SaleFailed unless the part runs on or has ended well."""
        if code not in (None, 0):
            raise SaleFailed(f"{name} ended with exit code {code}: see {self._log(name)}")

    def finish(self, name: str, phase: str, line: str = "", *, codes: tuple[int, ...] = (0,)) -> str:
        """Give the part a line on stdin and wait for its end, which is the `phase`; what it printed."""
        process = self._processes[name]
        deadline = time.monotonic() + CHECK_PATIENCE_S
        given: str | None = line
        while True:
            self._show.phase(phase)
            try:
                out, _ = process.communicate(given, timeout=SAMPLE_S)
                break
            except subprocess.TimeoutExpired:
                given = None  # the pipe remembers what it was given
                if time.monotonic() > deadline:
                    raise SaleFailed(f"{name} took more than {CHECK_PATIENCE_S} s: see {self._log(name)}") from None
        if process.returncode not in codes:
            self.expect(name, process.returncode)
        return out

    def _log(self, name: str) -> Path:
        return self.plan.directory / "logs" / f"{name}.log"

    def check_all(self) -> None:
        for name, process in self._processes.items():
            if self.workers.get(name) != "killed":
                self.expect(name, process.poll())

    def ended(self, name: str) -> bool:
        return self._processes[name].poll() is not None


class Observer:
    """Looks at topics, ledger and readers without disturbing them."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "observer"})
        self._ledger = Ledger(directory / "ledger.sqlite")
        self._directory = directory

    def sample(self, at_s: float, workers: dict[str, str]) -> Sample:
        ends = [self._consumer.get_watermark_offsets(TopicPartition(ORDERS, p), timeout=10) for p in range(PARTITIONS)]
        files = {name: self._directory / f"{name}.sqlite" for name in READERS}
        return Sample(
            at_s=at_s,
            sent=sum(end for _, end in ends),
            counts=self._ledger.counts(),
            unpublished=self._ledger.waiting_events(),
            seen={name: _seen(file) for name, file in files.items()},
            workers=dict(workers),
        )

    def close(self) -> None:
        self._consumer.close()
        self._ledger.close()


def _seen(file: Path) -> int:
    import sqlite3

    try:
        return read_events_seen(file)[0]
    except sqlite3.OperationalError:  # the reader has not made its file yet
        return 0


def run(plan: Plan, show: Show) -> Result:
    """The whole sale. Raises SaleFailed."""
    began = time.monotonic()
    show.phase("reading the orders and starting a broker")
    orders, left_out = read_orders()
    plan.directory.mkdir(parents=True, exist_ok=True)
    Ledger.create(plan.directory / "ledger.sqlite", opening_stock(orders)).close()
    with (
        Broker(process=True, data=plan.directory / "broker", settings=SETTINGS) as broker,
        Stage(plan, broker.bootstrap, show) as stage,
    ):
        make_topics(broker.bootstrap)
        if plan.spark:
            stage.start("pipeline", "pipeline", plan.directory)
        for name in READERS:
            stage.start(name, "readers", name, plan.directory / f"{name}.sqlite")
        stage.start_worker("worker-1")
        stage.start_worker("worker-2")
        stage.start("gateway", "gateway", plan.expiry_ms, plan.bursts, plan.pause_s)
        samples = _watch(stage, len(orders), show)
        show.phase("stopping workers and readers")
        stage.stop(*(name for name, state in stage.workers.items() if state == "works"), *READERS)
        if plan.spark:
            stage.finish("pipeline", "Spark makes Parquet of the events", "go\n")
        verdict = _check(stage)
    return Result(samples, verdict, left_out, time.monotonic() - began)


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    topics = [NewTopic(ORDERS, PARTITIONS, 1), NewTopic(EVENTS, PARTITIONS, 1), NewTopic(REORDERS, 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(30)


def _watch(stage: Stage, expected: int, show: Show) -> list[Sample]:
    """Sample until every order is settled and told to everyone; kill a worker on the way."""
    observer = Observer(stage.bootstrap, stage.plan.directory)
    samples: list[Sample] = []
    began = time.monotonic()
    try:
        while True:
            at_s = time.monotonic() - began
            sample = observer.sample(at_s, stage.workers)
            samples.append(sample)
            show.show(sample, expected)
            stage.check_all()
            if stage.workers["worker-1"] == "works" and sample.settled * 100 >= expected * KILL_AT_PERCENT:
                stage.kill_worker("worker-1")
                stage.start_worker("worker-3")
            told = all(count == sample.settled for count in sample.seen.values())
            if stage.ended("gateway") and sample.queue == 0 and sample.unpublished == 0 and told:
                return samples
            if at_s > PATIENCE_S:
                raise SaleFailed(
                    f"not settled after {PATIENCE_S} s: {sample.queue} orders wait; see {stage.plan.directory}"
                )
            time.sleep(SAMPLE_S)
    finally:
        observer.close()


def _check(stage: Stage) -> dict[str, Any]:
    stage.start("checker", "checker", stage.plan.directory)
    out = stage.finish("checker", "the checker counts again", codes=(0, 1))
    try:
        verdict: dict[str, Any] = json.loads(out)
    except ValueError:
        raise SaleFailed(f"the checker gave no verdict: see {stage.plan.directory / 'logs' / 'checker.log'}") from None
    return verdict
