"""Run the flash sale. The brokers and the parts (gateway, workers, readers, pipeline, checker) run in separate
processes. One worker is killed midway. If there are several brokers, one broker is also killed.

The stderr of each part is stored in the subdirectory `logs/` of the plan's directory.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.demo.brokers import BrokerFault, Takeover, brokers_of
from tidelog.demo.ledger import Ledger
from tidelog.demo.orders import EVENTS, ORDERS, PARTITIONS, REORDERS, opening_stock, read_orders
from tidelog.demo.readers import READERS, read_events_seen
from tidelog.demo.worker import SESSION_MS
from tidelog.testing import BrokerFailedError

SETTINGS: dict[str, object] = {"offsets.topic.num.partitions": 3, "group.min.session.timeout.ms": SESSION_MS}
QUIET: dict[str, Any] = {"log_level": 0}
"""Settings of clients in this process. They disable librdkafka's own log lines, which would disturb the display."""
SAMPLE_S = 0.25
"""Time between two samples, in seconds."""
SALE_TIMEOUT_S = 100
"""Time limit, in seconds, until every order is settled and every event is processed. After this time the sale has
failed."""
KILL_AT_PERCENT = 40
"""The first worker is killed when this percentage of the orders is settled."""
REPLICAS_MAX = 3
PART_TIMEOUT_S = 90
"""Time limit, in seconds, for the pipeline and for the checker."""


class SaleFailed(Exception):
    """A part or a broker failed, or the sale took too long. If a part failed, the message names it and its log file."""


class Plan(NamedTuple):
    directory: Path
    spark: bool = True
    orders_per_s: int = 700
    """Maximum orders per second of one worker."""
    expiry_ms: int = 15_000
    bursts: int = 3
    pause_s: float = 2.0
    brokers: int = 1


class Sample(NamedTuple):
    """The state of the sale at one moment."""

    at_s: float
    sent: int
    counts: dict[str, int]
    unpublished: int
    seen: dict[str, int]
    """Number of events that each reader group has processed."""
    workers: dict[str, str]
    """State of each worker by its name: "works" or "killed"."""
    brokers: dict[str, str] = {}  # noqa: RUF012 - this default is never changed
    """State of each broker of a cluster by its number. Empty if there is one broker."""

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
    """How many lines of the data set are not sales, by reason; see `orders.SkippedLines`."""
    duration_s: float
    takeover: Takeover | None = None
    """With several brokers: the consequences of the kill of one broker."""
    longest_waits_s: dict[str, float] = {}  # noqa: RUF012
    """For each kind of record ("order", "event"): the longest wait for an acknowledgement, in seconds."""


class Display(Protocol):
    """A display of the sale's progress."""

    def show(self, sample: Sample, expected: int) -> None:
        """Show a sample; `expected` is the number of all orders."""

    def event(self, text: str) -> None:
        """Show a line that stays on the display."""

    def phase(self, name: str) -> None:
        """Show the name of the current phase, for example "stopping workers". Called repeatedly during the phase."""


class Stage:
    """The processes of one sale. At the end of the `with` block, the processes that still run are killed."""

    def __init__(self, plan: Plan, bootstrap: str, display: Display) -> None:
        self.plan = plan
        self._display = display
        self.bootstrap = bootstrap
        self.workers: dict[str, str] = {}
        self.longest_waits_s: dict[str, float] = {}
        """For each kind of record, the longest wait (see `Result`). The parts report it when they end."""
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
        log = open(self._log(name), "w")  # noqa: SIM115 - closed by __exit__
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
        """Send SIGTERM to all these parts, then wait for each part. Raises SaleFailed if a part ends with an error."""
        for name in names:
            self._processes[name].send_signal(signal.SIGTERM)
        for name in names:
            out, _ = self._processes[name].communicate(timeout=30)
            self.check_exit_code(name, self._processes[name].returncode)
            self.read_report(out)

    def read_report(self, out: str) -> None:
        """Read a part's stdout: one line of JSON with its longest waits, or nothing."""
        for kind, seconds in (json.loads(out) if out else {}).items():
            self.longest_waits_s[kind] = max(seconds, self.longest_waits_s.get(kind, 0.0))

    def check_exit_code(self, name: str, code: int | None) -> None:
        """Raise SaleFailed if the part ended with an error. A `code` of None means that it still runs."""
        if code not in (None, 0):
            raise SaleFailed(f"{name} ended with exit code {code}: see {self._log(name)}")

    def finish(self, name: str, phase: str, line: str = "", *, codes: tuple[int, ...] = (0,)) -> str:
        """Write a line to the part's stdin, wait until the part ends, and return its stdout. During the wait, show
        `phase`.

        Raises SaleFailed if the exit code is not one of `codes`, or if the part takes longer than PART_TIMEOUT_S.
        """
        process = self._processes[name]
        deadline = time.monotonic() + PART_TIMEOUT_S
        input_line: str | None = line
        while True:
            self._display.phase(phase)
            try:
                out, _ = process.communicate(input_line, timeout=SAMPLE_S)
                break
            except subprocess.TimeoutExpired:
                input_line = None  # later calls of communicate() still send the input of the first call
                if time.monotonic() > deadline:
                    raise SaleFailed(f"{name} took more than {PART_TIMEOUT_S} s: see {self._log(name)}") from None
        if process.returncode not in codes:
            self.check_exit_code(name, process.returncode)
        return out

    def _log(self, name: str) -> Path:
        return self.plan.directory / "logs" / f"{name}.log"

    def check_all(self) -> None:
        """Raise SaleFailed if a part ended with an error, except a worker that was killed on purpose."""
        for name, process in self._processes.items():
            if self.workers.get(name) != "killed":
                self.check_exit_code(name, process.poll())

    def has_ended(self, name: str) -> bool:
        return self._processes[name].poll() is not None


class Observer:
    """Reads the state of topics, ledger and readers, without disturbing them."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "observer"})
        self._ledger = Ledger(directory / "ledger.sqlite")
        self._directory = directory
        self._ends = [0] * PARTITIONS
        """The newest known end of each partition of the orders."""

    def sample(self, at_s: float, workers: dict[str, str], brokers: dict[str, str]) -> Sample:
        self._update_ends()
        files = {name: self._directory / f"{name}.sqlite" for name in READERS}
        return Sample(
            at_s=at_s,
            sent=sum(self._ends),
            counts=self._ledger.counts(),
            unpublished=self._ledger.unpublished_count(),
            seen={name: _events_seen(file) for name, file in files.items()},
            workers=dict(workers),
            brokers=brokers,
        )

    def _update_ends(self) -> None:
        """Read the ends of the partitions. If the leader of a partition does not answer, the last known end is
        retained.
        """
        for partition in range(PARTITIONS):
            try:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(ORDERS, partition), timeout=10)
            except KafkaException:
                continue
            self._ends[partition] = end

    def close(self) -> None:
        self._consumer.close()
        self._ledger.close()


def _events_seen(file: Path) -> int:
    import sqlite3

    try:
        return read_events_seen(file)[0]
    except sqlite3.OperationalError:  # the reader has not created its file yet
        return 0


def run(plan: Plan, display: Display) -> Result:
    """Run the whole sale. Raises SaleFailed."""
    began = time.monotonic()
    display.phase(f"reading the orders and starting {'a broker' if plan.brokers == 1 else f'{plan.brokers} brokers'}")
    orders, left_out = read_orders()
    plan.directory.mkdir(parents=True, exist_ok=True)
    Ledger.create(plan.directory / "ledger.sqlite", opening_stock(orders)).close()
    with (
        brokers_of(plan.brokers, plan.directory, SETTINGS) as brokers,
        Stage(plan, brokers.bootstrap, display) as stage,
    ):
        make_topics(brokers.bootstrap, min(plan.brokers, REPLICAS_MAX))
        if plan.spark:
            stage.start("pipeline", "pipeline", plan.directory)
        for name in READERS:
            stage.start(name, "readers", name, plan.directory / f"{name}.sqlite")
        stage.start_worker("worker-1")
        stage.start_worker("worker-2")
        stage.start("gateway", "gateway", plan.expiry_ms, plan.bursts, plan.pause_s)
        fault = BrokerFault(brokers, QUIET)
        samples = _watch(stage, fault, len(orders), display)
        stage.read_report(stage.finish("gateway", "stopping workers and readers"))
        stage.stop(*(name for name, state in stage.workers.items() if state == "works"), *READERS)
        if plan.spark:
            stage.finish("pipeline", "Spark writes the events to Parquet", "go\n")
        verdict = _run_checker(stage)
    seconds = time.monotonic() - began
    return Result(samples, verdict, left_out, seconds, fault.takeover, dict(stage.longest_waits_s))


def make_topics(bootstrap: str, replicas: int = 1) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    sizes = {ORDERS: PARTITIONS, EVENTS: PARTITIONS, REORDERS: 1}
    topics = [NewTopic(topic, partitions, replicas) for topic, partitions in sizes.items()]
    for future in admin.create_topics(topics).values():
        future.result(30)


def _watch(stage: Stage, fault: BrokerFault, expected: int, display: Display) -> list[Sample]:
    """Take samples until the gateway has ended, every order is settled, all readers have processed all events, and
    `fault` is over.

    When KILL_AT_PERCENT of the orders are settled, kill worker-1 and start another worker. If there are several
    brokers, `fault` kills one of them and starts it again. Raises SaleFailed.
    """
    observer = Observer(stage.bootstrap, stage.plan.directory)
    samples: list[Sample] = []
    began = time.monotonic()
    try:
        while True:
            at_s = time.monotonic() - began
            sample = observer.sample(at_s, stage.workers, fault.states())
            samples.append(sample)
            display.show(sample, expected)
            stage.check_all()
            if stage.workers["worker-1"] == "works" and sample.settled * 100 >= expected * KILL_AT_PERCENT:
                stage.kill_worker("worker-1")
                stage.start_worker("worker-3")
            _step(fault, 100 * sample.settled / expected, display)
            all_readers_done = all(count == sample.settled for count in sample.seen.values())
            is_settled = sample.queue == 0 and sample.unpublished == 0 and all_readers_done
            if stage.has_ended("gateway") and is_settled and fault.is_over:
                return samples
            if at_s > SALE_TIMEOUT_S:
                raise SaleFailed(
                    f"the sale has not ended after {SALE_TIMEOUT_S} s, and {sample.queue} orders are not settled; "
                    f"see {stage.plan.directory}"
                )
            time.sleep(SAMPLE_S)
    finally:
        observer.close()


def _step(fault: BrokerFault, settled_percent: float, display: Display) -> None:
    try:
        line = fault.step(settled_percent)
    except (TimeoutError, BrokerFailedError) as error:
        raise SaleFailed(str(error)) from None
    if line:
        display.event(line)


def _run_checker(stage: Stage) -> dict[str, Any]:
    stage.start("checker", "checker", stage.plan.directory)
    out = stage.finish("checker", "the checker compares topics, ledger and files", codes=(0, 1))
    try:
        verdict: dict[str, Any] = json.loads(out)
    except ValueError:
        raise SaleFailed(
            f"the checker printed no verdict: see {stage.plan.directory / 'logs' / 'checker.log'}"
        ) from None
    return verdict
