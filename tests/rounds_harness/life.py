"""The life of one cluster: it starts, has some rounds with a fault each, and is checked after each round."""

import os
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from rounds_harness.brokers import NUMBERS, PARTITIONS, TOPIC, Brokers
from rounds_harness.checks import (
    LogReader,
    Marks,
    check_commits,
    check_deliveries,
    check_log_lines,
    check_replicas,
    leases_lost,
    shortened,
    try_until_done,
)
from rounds_harness.clients import Reader, Writer
from rounds_harness.faults import Fault
from rounds_harness.ledger import GroupLedger, Ledger
from rounds_harness.namespaces import Network

WARM_S = 1.0
"""How long clients work before the fault, and after the cluster has recovered."""
IN_SYNC_S = 60.0
"""On a machine with idle cores, all replicas are in sync again at most this long after the end of a fault."""
BUSY_PROCESSES = 4
"""Up to so many processes that want to run for each core, limits of time are not extended."""
FLUSH_S = 60.0
READ_S = 60.0
GROUPS = {"readers-classic": "classic", "readers-consumer": "consumer"}
WRITERS = {"writer-1": (True, 5), "writer-2": (True, 1), "writer-plain": (False, 1)}
"""By name: whether the producer is idempotent, and how many requests to a broker may be under way at once.

With several, librdkafka can begin a new epoch when a leader changes, and write records again that a broker has already:
https://github.com/confluentinc/librdkafka/issues/4953. Such repetitions are counted and are no violations.
"""
IDEMPOTENT = [name for name, (is_idempotent, _) in WRITERS.items() if is_idempotent]


def patient(limit_s: float) -> float:
    """Return a limit of time for this machine: longer, at most eight times, if it is busy, since brokers then lose
    their leases again and again.
    """
    processes = os.getloadavg()[0] / (os.cpu_count() or 1)
    return limit_s * min(max(processes / BUSY_PROCESSES, 1.0), 8.0)


class Result(NamedTuple):
    number: int
    store: str
    fault: str
    victims: list[int]
    lasted_s: float
    led_gap_s: float
    """The longest time without an acknowledgement of a partition that a victim led when the fault began."""
    other_gap_s: float
    in_sync_s: float
    """From the end of the fault until all replicas were in sync."""
    records: int
    commits: int
    duplicates: int
    """Of the producer that is not idempotent."""
    seconds: float
    violations: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


class Life:
    """Raises an exception in the constructor if the cluster does not start."""

    def __init__(self, kind: str, directory: Path, network: Network | None) -> None:
        self._kind = kind
        self.ledger = Ledger()
        self.brokers = Brokers(kind, directory, network)
        self.brokers.start()
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        self.brokers.admin.create_topics([topic])[TOPIC].result(30)
        self.marks = Marks(self.brokers)
        self._log_ends = dict.fromkeys(NUMBERS, 0)
        bootstrap = self.brokers.bootstrap
        self._writers = [
            Writer(name, bootstrap, self.ledger, directory, is_idempotent=is_idempotent, in_flight_max=in_flight_max)
            for name, (is_idempotent, in_flight_max) in WRITERS.items()
        ]
        self._epochs: dict[str, int] = {}
        """By producer: how often it had begun a new epoch when the last round was checked."""
        self._readers: list[Reader] = []
        for group, protocol in GROUPS.items():
            ledger = self.ledger.groups[group] = GroupLedger(group)
            self._readers += [
                Reader(f"{group}-{number}", bootstrap, ledger, directory, protocol=protocol) for number in (1, 2)
            ]
        self.log_reader = self._new_log_reader()
        for client in (*self._writers, *self._readers):
            client.start()

    @property
    def abilities(self) -> set[str]:
        network, disk = self.brokers.network, self.brokers.disk_kind
        return {name for name, is_there in (("network", network), ("disks", disk)) if is_there}

    def round(self, number: int, fault: Fault, random: Random) -> Result:
        """Let the clients work, inject the fault, undo it, and check everything."""
        began_s = time.monotonic()
        records, commits, duplicates = self.ledger.count(), self._commits(), len(self.log_reader.repeated)
        violations: list[str] = []
        notes: list[str] = []
        victims: set[int] = set()
        led_gap_s = other_gap_s = in_sync_s = lasted_s = -1.0
        self.ledger.forget_times()
        try:
            self.marks.make(number)
            try_until_done(self.brokers.elect_preferred_leaders)  # so that each broker leads something
            self._let_work()
            self._wait_for_acknowledgements(patient(IN_SYNC_S))
            time.sleep(WARM_S)
            leaders = try_until_done(self.brokers.leaders)
            last_numbers = dict(self.ledger.last_number)
            fault_s = time.monotonic()
            victims = fault.inject(self.brokers, random)
            time.sleep(random.uniform(*fault.lasts_s))
            if ended := [each for each in NUMBERS if self.brokers[each].has_ended_by_itself]:
                notes.append(f"brokers {ended} have ended by themselves")
            lasted_s = time.monotonic() - fault_s
            self.brokers.heal()
            self.brokers.start_brokers()
            healed_s = time.monotonic()
            self.brokers.wait_until_in_sync(patient(IN_SYNC_S))
            in_sync_s = time.monotonic() - healed_s
            self._wait_for_acknowledgements(patient(IN_SYNC_S))
            time.sleep(WARM_S)
            gaps = self.ledger.longest_gaps_s(fault_s, time.monotonic())
            led = {partition for partition, leader in leaders.items() if leader in victims}
            led_gap_s = max((gap for partition, gap in gaps.items() if partition in led), default=0.0)
            other_gap_s = max((gap for partition, gap in gaps.items() if partition not in led), default=0.0)
            violations += self._let_rest()
            violations += self._check(fault, notes, last_numbers)
        except (TimeoutError, KafkaException, RuntimeError, OSError) as error:
            violations.append(f"{type(error).__name__}: {error}")
            violations += shortened(self._log_violations(fault))
        return Result(
            number, self._kind, fault.name, sorted(victims), lasted_s, led_gap_s, other_gap_s, in_sync_s,
            self.ledger.count() - records, self._commits() - commits, len(self.log_reader.repeated) - duplicates,
            time.monotonic() - began_s, violations, notes,
        )  # fmt: skip

    def end(self) -> list[str]:
        """Check everything since the cluster's start once more, and stop it in order. Return the violations."""
        violations = []
        try:
            again = self._new_log_reader()
            violations += shortened(again.read_on(READ_S, self._may_repeat()))
            again.close()
            violations += shortened(self.marks.check())
        except (TimeoutError, KafkaException) as error:
            violations.append(f"{type(error).__name__}: {error}")
        self.stop_clients()
        violations += self.brokers.stop()
        violations += shortened(self._log_violations(None))
        return violations

    def stop_clients(self) -> None:
        for client in (*self._writers, *self._readers):
            client.stop()
        for client in (*self._writers, *self._readers):
            client.join(30)
        self.log_reader.close()

    def _new_log_reader(self) -> LogReader:
        return LogReader(self.brokers, self.ledger, IDEMPOTENT)

    def _may_repeat(self, since: dict[str, int] | None = None) -> set[str]:
        """Return the idempotent producers that have begun a new epoch, at all or since these numbers of epochs."""
        return {
            writer.name
            for writer in self._writers
            if WRITERS[writer.name][1] > 1 and writer.new_epochs > (since or {}).get(writer.name, 0)
        }

    def _commits(self) -> int:
        return sum(group.commits for group in self.ledger.groups.values())

    def _let_work(self) -> None:
        for client in (*self._writers, *self._readers):
            client.is_working.set()

    def _let_rest(self) -> list[str]:
        """Wait until the producers have all acknowledgements and the groups all records. Then no member commits."""
        violations = []
        for writer in self._writers:
            writer.is_working.clear()
        latest_s = time.monotonic() + patient(FLUSH_S)
        for writer in self._writers:
            if not writer.wait_until_empty(max(latest_s - time.monotonic(), 0)):
                violations.append(f"{writer.name} has records without an answer after the limit of {FLUSH_S:g} s")
        violations += self.ledger.failures + self.ledger.contradictions
        self.ledger.failures, self.ledger.contradictions = [], []
        violations += check_deliveries(self.ledger, patient(READ_S))
        for reader in self._readers:
            reader.rest()
        return violations

    def _wait_for_acknowledgements(self, timeout_s: float) -> None:
        """Wait until every partition has acknowledged a record from now on. Raises TimeoutError."""
        since_s = time.monotonic()
        while True:
            with self.ledger.lock:
                times = {partition: each[-1] for partition, each in self.ledger.acknowledged_s.items() if each}
            missing = [number for number in range(PARTITIONS) if times.get(number, 0) <= since_s]
            if not missing:
                return
            if time.monotonic() > since_s + timeout_s:
                raise TimeoutError(f"partitions {missing} have acknowledged nothing for {timeout_s:g} s")
            time.sleep(0.05)

    def _check(self, fault: Fault, notes: list[str], last_numbers: dict[bytes, int]) -> list[str]:
        """`last_numbers` are those of the ledger at the time of the fault."""
        known = len(self.log_reader.repeated)
        may_repeat = self._may_repeat(self._epochs)
        self._epochs = {writer.name: writer.new_epochs for writer in self._writers}
        repeated_in_epochs = self.log_reader.repeated_in_epochs
        violations = shortened(self.log_reader.read_on(READ_S, may_repeat))
        if may_repeat:
            count = self.log_reader.repeated_in_epochs - repeated_in_epochs
            notes.append(f"{sorted(may_repeat)} began a new epoch and repeated {count} records")
        log_violations = shortened(self._log_violations(fault, notes))
        repeated = [key for key, number in self.log_reader.repeated[known:] if number > last_numbers.get(key, -1)]
        # A machine that is too busy is a fault, too: brokers lose their leases then.
        if fault.name == "none" and not notes and repeated:
            violations.append(f"without a fault, a producer that is not idempotent has repeated records of {repeated}")
        violations += check_commits(self.brokers, self.ledger)
        violations += shortened(self.marks.check(latest=3))
        violations += shortened(check_replicas(self.brokers, 15))
        return violations + log_violations

    def _log_violations(self, fault: Fault | None, notes: list[str] | None = None) -> list[str]:
        """Check the lines since the last call."""
        violations, leases = [], 0
        for number in NUMBERS:
            with open(self.brokers[number].log_path, errors="replace") as log:
                log.seek(self._log_ends[number])
                text = log.read()
                self._log_ends[number] = log.tell()
            found = check_log_lines(text, fault.allowed_errors if fault else None)
            violations += [f"broker {number}: {line}" for line in found]
            leases += leases_lost(text)
        if leases and notes is not None:
            notes.append(f"leases of brokers lost: {leases}")
        return violations
