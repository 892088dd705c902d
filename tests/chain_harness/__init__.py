"""A chain of two hops: workers read a topic and write the next one in transactions. Workers and brokers are killed.

first -> (workers of hop 1) -> middle -> (workers of hop 2) -> last. The workers are examples/exactly_once.py, or the
program of another client, each in a process of its own. In the end, a read_committed consumer must find every record
exactly once in the last topic.
"""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.testing import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
TOPICS = ("first", "middle", "last")
PARTITIONS = 3
CHUNKS = 30
"""Transactions of the writer. Between two of them it waits, so that the faults happen while records arrive."""
SETTINGS = {
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


class Options(NamedTuple):
    records: int
    brokers: int
    seed: int
    fault_every_s: float
    """Mean time between two faults, in seconds."""
    faults_max: int
    """After this many faults nothing is killed any more."""
    limit_s: float
    """Upper bound on the whole time, in seconds: only a chain that is stuck reaches it."""
    program: str = "exactly_once.py"
    """The worker: a file in examples/. Its last argument is the number of the worker."""
    workers: int = 2
    """Workers of each hop. They have the numbers from 0 on."""


class Result(NamedTuple):
    lost: list[int]
    duplicated: list[int]
    strange: list[bytes]
    """Values that no worker writes."""
    faults: Counter[str]
    seconds: float

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.duplicated or self.strange)


class Workers:
    """The processes of the workers. A worker that has ended is started again."""

    def __init__(self, bootstrap: str, directory: Path, options: Options) -> None:
        self._bootstrap, self._directory, self._options = bootstrap, directory, options
        self._processes: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        self.restarts = 0

    def run(self) -> None:
        """Start the workers that do not run."""
        for hop in range(len(TOPICS) - 1):
            for number in range(self._options.workers):
                process = self._processes.get((hop, number))
                if process is None or process.poll() is not None:
                    self.restarts += process is not None
                    arguments = [self._bootstrap, TOPICS[hop], TOPICS[hop + 1], str(number)]
                    with open(self._directory / f"worker-{hop}-{number}.log", "ab") as log:
                        self._processes[hop, number] = subprocess.Popen(
                            [sys.executable, str(EXAMPLES / self._options.program), *arguments],
                            stdout=log,
                            stderr=log,
                        )

    def kill(self, chance: random.Random) -> None:
        process = self._processes[chance.choice(sorted(self._processes))]
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(options: Options, directory: Path, report: Callable[[str], None]) -> Result:
    """Run the chain until all records have arrived, or until the limit. `report` is called with lines for people."""
    chance = random.Random(options.seed)
    faults: Counter[str] = Counter()
    began = time.monotonic()
    with Cluster(options.brokers, settings=cluster_settings(options.brokers)) as cluster:
        create_topics(cluster, min(options.brokers, 3))
        workers = Workers(cluster.bootstrap, directory, options)
        values: list[bytes] = []
        reader = last_reader(cluster.bootstrap)
        try:
            workers.run()
            writer = Writer(cluster.bootstrap, options.records, options.fault_every_s / 3)
            next_fault = time.monotonic() + options.fault_every_s
            restarts: dict[int, float] = {}
            while len(values) < options.records and time.monotonic() - began < options.limit_s:
                values += [record.value() or b"" for record in reader.consume(1000, 0.5) if record.error() is None]
                if writer.failure is not None:
                    raise writer.failure
                workers.run()
                for broker in [each for each, at in restarts.items() if at <= time.monotonic()]:
                    del restarts[broker]
                    cluster.start(broker)
                if time.monotonic() >= next_fault and sum(faults.values()) < options.faults_max:
                    next_fault = time.monotonic() + chance.expovariate(1 / options.fault_every_s)
                    if chance.random() < 0.6 or restarts:
                        workers.kill(chance)
                        faults["worker killed"] += 1
                    else:
                        broker = chance.choice(cluster.numbers)
                        cluster.kill(broker)
                        restarts[broker] = time.monotonic() + chance.uniform(0, 5)
                        faults["broker killed"] += 1
                    report(f"{len(values)} of {options.records} records have arrived; {dict(faults)}")
            for broker in restarts:
                cluster.start(broker)
            workers.stop()
            # Records that arrive too often come after the others: read to the end of every partition.
            values += read_to_end(reader)
        finally:
            workers.stop()
            reader.close()
        faults["worker ended by itself"] = workers.restarts - faults["worker killed"]
    return judge(values, options.records, faults, time.monotonic() - began)


def cluster_settings(brokers: int) -> dict[str, object]:
    replicas = min(brokers, 3)
    return SETTINGS | {
        "transaction.state.log.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.min.isr": max(replicas - 1, 1),
        "min.insync.replicas": max(replicas - 1, 1),
    }


def create_topics(cluster: Cluster, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, replicas) for name in TOPICS]).values():
        created.result(60)


class Writer:
    """A thread that writes the numbers from 0 on to the first topic, some in each transaction; every fifth transaction
    is first aborted and then repeated.
    """

    def __init__(self, bootstrap: str, records: int, pause_s: float) -> None:
        self._records, self._pause_s = records, pause_s
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer", "log_level": 0})
        self._thread = threading.Thread(target=self._run, name="chain-writer", daemon=True)
        self.failure: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self._producer.init_transactions(60)
            chunk = max(self._records // CHUNKS, 1)
            for count, begin in enumerate(range(0, self._records, chunk)):
                numbers = range(begin, min(begin + chunk, self._records))
                if count % 5 == 0:
                    self._attempt(numbers, is_committed=False)
                while not self._attempt(numbers, is_committed=True):
                    pass
                time.sleep(self._pause_s)
        except BaseException as error:
            self.failure = error

    def _attempt(self, numbers: range, *, is_committed: bool) -> bool:
        """Write the numbers in one transaction, and end it. Return whether it is committed."""
        self._producer.begin_transaction()
        try:
            for number in numbers:
                self._producer.produce(TOPICS[0], key=str(number), value=str(number))
            if is_committed:
                commit(self._producer)
                return True
            self._producer.flush(60)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._producer.abort_transaction(60)
        return False


def commit(producer: Producer) -> None:
    """Commit the transaction, and repeat the commit while its result is not known."""
    while True:
        try:
            producer.commit_transaction(30)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def last_reader(bootstrap: str) -> Consumer:
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(TOPICS[-1], partition, 0) for partition in range(PARTITIONS)])
    return reader


def read_to_end(reader: Consumer) -> list[bytes]:
    """Return the records between the reader's position and the last stable offset of each partition."""
    ends = {
        partition: reader.get_watermark_offsets(TopicPartition(TOPICS[-1], partition), timeout=60)[1]
        for partition in range(PARTITIONS)
    }
    values = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        consumed = reader.consume(1000, 1.0)
        values += [record.value() or b"" for record in consumed if record.error() is None]
        positions = reader.position([TopicPartition(TOPICS[-1], partition) for partition in range(PARTITIONS)])
        # The marker of the last transaction has an offset, too, which is not a record.
        if not consumed and all(at.offset >= ends[at.partition] - 1 or at.offset < 0 for at in positions):
            break
    return values


def judge(values: Sequence[bytes], records: int, faults: Counter[str], seconds: float) -> Result:
    """Compare the values of the last topic with the numbers that were written."""
    prefix = b"booked " * (len(TOPICS) - 1)
    counts: Counter[int] = Counter()
    strange = []
    for value in values:
        number = value.removeprefix(prefix)
        if value.startswith(prefix) and number.isdigit() and int(number) < records:
            counts[int(number)] += 1
        else:
            strange.append(value)
    lost = [number for number in range(records) if number not in counts]
    return Result(lost, sorted(number for number, count in counts.items() if count > 1), strange, faults, seconds)
