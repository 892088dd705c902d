"""The checks after a round: records against acknowledgements, replicas against each other, commits, log lines."""

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from rounds_harness.brokers import NUMBERS, PARTITIONS, TOPIC, Brokers, quiet_logger
from rounds_harness.clients import CLIENT_SETTINGS
from rounds_harness.ledger import Ledger

T = TypeVar("T")

SHOWN = 5
"""The number of violations of one kind that are reported."""
TRIES_S = 30.0


class LogReader:
    """Reads the topic's partitions once from their start, in parts, and compares them with the ledger."""

    def __init__(self, brokers: Brokers, ledger: Ledger, idempotent: Iterable[str]) -> None:
        self._ledger = ledger
        self._idempotent = tuple(f"{name}-".encode() for name in idempotent)
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._last_number: dict[bytes, int] = {}
        self._repeatable: set[tuple[bytes, int]] = set()
        """Keys and numbers of the records of producers that are not idempotent."""
        self.repeated: list[tuple[bytes, int]] = []
        """Keys and numbers of records that such a producer has written again."""
        self._may_repeat: tuple[bytes, ...] = ()
        self.repeated_in_epochs = 0
        """The number of records that idempotent producers have written again in a new epoch."""
        settings = CLIENT_SETTINGS | {"group.id": "reader of the log", "check.crcs": True, "enable.auto.commit": False}
        self._consumer = Consumer(brokers.client_settings(**settings), logger=quiet_logger())

    def close(self) -> None:
        self._consumer.close()

    def read_on(self, timeout_s: float, may_repeat: Iterable[str] = ()) -> list[str]:
        """Read from where the last call ended to the high watermarks. Return the violations.

        `may_repeat` names idempotent producers whose repetitions are only counted.
        """
        self._may_repeat = tuple(f"{name}-".encode() for name in may_repeat)
        violations: list[str] = []
        latest_s = time.monotonic() + timeout_s
        ends = {}
        for partition in self._next:
            ends[partition] = self._end(partition)
            last = max(self._ledger.records[partition], default=-1)
            if ends[partition] <= last:
                violations.append(f"lost: {partition}@{last} was acknowledged, the log ends at {ends[partition]}")
        self._consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in self._next.items()])
        while any(self._next[partition] < end for partition, end in ends.items()):
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is not None:
                    violations.append(f"reading: {message.error()}")
                    continue
                partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
                assert partition is not None
                assert offset is not None
                assert key is not None
                assert value is not None
                violations += self._check(partition, offset, key, value)
            if time.monotonic() > latest_s:
                violations.append(f"reading: not at the end {ends} after {timeout_s:g} s, but at {self._next}")
                break
        self._consumer.unassign()
        for key, number in self._ledger.without_offset.items():
            if self._last_number.get(key, -1) < number:
                violations.append(f"lost: {key!r} number {number} was acknowledged without an offset, and is not there")
        return violations

    def _end(self, partition: int) -> int:
        """Return the high watermark. The client does not ask again by itself if the leader has just changed."""
        _, end = try_until_done(lambda: self._consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), 10))
        return int(end)

    def _check(self, partition: int, offset: int, key: bytes, value: bytes) -> list[str]:
        violations = []
        if offset < self._next[partition]:
            return []
        if offset != self._next[partition]:
            violations.append(f"gap: {partition}@{offset} follows {partition}@{self._next[partition] - 1}")
        self._next[partition] = offset + 1
        expected = self._ledger.records[partition].get(offset)
        if expected is not None and expected != (key, value):
            violations.append(f"lost: {partition}@{offset} was acknowledged for {expected}, and is {(key, value)}")
        number, last = int(value), self._last_number.get(key, -1)
        if not key.startswith(self._idempotent):
            # The client changes the order when the leader changes while a request is under way.
            if (key, number) in self._repeatable:
                self.repeated.append((key, number))
            self._repeatable.add((key, number))
        elif number <= last and key.startswith(self._may_repeat):
            self.repeated_in_epochs += 1
        elif number <= last:
            kind = "duplicate" if number == last else "order"
            violations.append(f"{kind}: {partition}@{offset} is {key!r} number {number}, after number {last}")
        elif number > last + 1:
            violations.append(f"order: {partition}@{offset} is {key!r} number {number}, after number {last}")
        self._last_number[key] = max(number, last)
        return violations


def check_deliveries(ledger: Ledger, timeout_s: float) -> list[str]:
    """Wait until each group has received every acknowledged record. Return the violations."""
    violations = []
    latest_s = time.monotonic() + timeout_s
    for group in ledger.groups.values():
        for partition, records in ledger.records.items():
            missing = set(records) - group.delivered[partition]
            while missing and time.monotonic() < latest_s:
                time.sleep(0.05)
                missing -= group.delivered[partition]
            if missing:
                violations.append(
                    f"group {group.name}: {len(missing)} acknowledged records of partition {partition} were not "
                    f"delivered, the first one is at {min(missing)}"
                )
        violations += group.violations
        group.violations = []
    return violations


def check_commits(brokers: Brokers, ledger: Ledger) -> list[str]:
    """Compare the committed offsets with what was acknowledged and tried. The members must not commit meanwhile."""
    violations = []
    for group in ledger.groups.values():
        found = committed(brokers, group.name)
        for partition in range(PARTITIONS):
            least, most = group.committed[partition], group.attempted[partition]
            if not least <= max(found[partition], 0) <= most:
                violations.append(
                    f"group {group.name}: the committed offset of partition {partition} is {found[partition]}; "
                    f"acknowledged were commits up to {least}, tried up to {most}"
                )
    return violations


class Marks:
    """Groups without members: offsets that were committed once, and groups that were deleted."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._kept: dict[str, int] = {}
        self._deleted: list[str] = []

    def make(self, number: int) -> None:
        """Commit for two groups, and delete one of them. Raises TimeoutError unless everything is acknowledged."""
        kept, deleted = f"kept-{number}", f"deleted-{number}"
        try_until_done(lambda: self._commit(kept, number))
        try_until_done(lambda: self._commit(deleted, number))
        try_until_done(lambda: self._brokers.admin.delete_consumer_groups([deleted])[deleted].result(10))
        self._kept[kept] = number
        self._deleted.append(deleted)

    def _commit(self, group: str, offset: int) -> None:
        consumer = _member(self._brokers, group)
        try:
            offsets = [TopicPartition(TOPIC, partition, offset) for partition in range(PARTITIONS)]
            for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
                if each.error is not None:
                    raise KafkaException(each.error)
        finally:
            consumer.close()

    def check(self, latest: int | None = None) -> list[str]:
        """Return the commits that are lost or have returned, of the `latest` rounds or of all."""
        violations = []
        for group in list(self._kept)[-latest if latest else None :]:
            found = committed(self._brokers, group)
            if set(found.values()) != {self._kept[group]}:
                violations.append(f"lost: group {group} committed {self._kept[group]} and now has {found}")
        for group in self._deleted[-latest if latest else None :]:
            found = committed(self._brokers, group)
            if any(offset >= 0 for offset in found.values()):
                violations.append(f"resurrected: group {group} was deleted and now has {found}")
        return violations


def committed(brokers: Brokers, group: str) -> dict[int, int]:
    """Return the committed offset of each partition; a negative number if there is none. Raises TimeoutError."""
    consumer = _member(brokers, group)
    found: dict[int, int] = {}

    def ask() -> None:
        for each in consumer.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=10):
            if each.error is not None:
                raise KafkaException(each.error)
            found[each.partition] = each.offset

    try:
        try_until_done(ask)
    finally:
        consumer.close()
    return found


def _member(brokers: Brokers, group: str) -> Consumer:
    settings = CLIENT_SETTINGS | {"group.id": group, "enable.auto.commit": False}
    return Consumer(brokers.client_settings(**settings), logger=quiet_logger())


def try_until_done(action: Callable[[], T]) -> T:
    """Call `action` until it raises no KafkaException, and return its result. Raises TimeoutError."""
    latest_s = time.monotonic() + TRIES_S
    while True:
        try:
            return action()
        except KafkaException as error:
            if time.monotonic() > latest_s:
                raise TimeoutError(f"the cluster has refused a request for {TRIES_S:g} s: {error}") from error
            time.sleep(0.1)


def check_replicas(brokers: Brokers, timeout_s: float) -> list[str]:
    """Wait until the replicas of each partition have the same bytes. Return those that do not."""
    latest_s = time.monotonic() + timeout_s
    names = sorted(path.name for path in brokers[1].data.iterdir() if re.fullmatch(r".+-\d+", path.name))
    violations = []
    for name in names:
        while True:
            contents = {number: log_bytes(brokers[number].data / name) for number in NUMBERS}
            if len(set(contents.values())) == 1:
                break
            if time.monotonic() > latest_s:
                sizes = {number: len(content) for number, content in contents.items()}
                same = next(
                    (at for at, octets in enumerate(zip(*contents.values(), strict=False)) if len(set(octets)) > 1),
                    min(sizes.values()),
                )
                violations.append(f"replicas: {name} differs from byte {same} on; bytes by broker: {sizes}")
                break
            time.sleep(0.1)
    return violations


def log_bytes(directory: Path) -> bytes:
    """Return the bytes of all segments of a log."""
    try:
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    except FileNotFoundError:
        return b""


LINE = re.compile(r"^\S+Z (?P<level>[A-Z]+) +(?P<logger>\S+) (?P<message>.*)$")
FAULTS_OF_TIDELOG = re.compile(
    r"request failed|response cannot be encoded|task failed|metadata journal failed|parked fetch failed|"
    r"fetch failed after a cold read|listener failed|a receiver failed|upkeep of the cluster failed|"
    r"listener of the broker's lease failed|fetcher failed|followers not checked|batch not appended|compaction failed|"
    r"group lag check failed|start=failed|resources of the start not released|committed records truncated|"
    r"metadata read-only until restart|housekeeping failed|coordinator role change failed|answer failed|step failed"
)
"""The lines that docs/log-lines.md calls a fault in Tidelog, and those that mean that something was lost."""
LEASE_LOST = "broker lease lost"
"""The broker goes on by itself, and a line says when it has the lease again."""


def check_log_lines(text: str, allowed: re.Pattern[str] | None) -> list[str]:
    """Return the lines of a broker's log that no fault explains. `allowed` matches messages of level ERROR."""
    violations = []
    for line in text.splitlines():
        found = LINE.match(line)
        if found is None:
            if line.strip():
                violations.append(f"not a line of the log: {line}")
        elif FAULTS_OF_TIDELOG.match(found["message"]) or (
            found["level"] in ("ERROR", "CRITICAL")
            and not found["message"].startswith(LEASE_LOST)
            and not (allowed and allowed.match(found["message"]))
        ):
            violations.append(line)
    return violations


def leases_lost(text: str) -> int:
    """Return how often a broker has lost its lease. Without a fault this happens if the machine is too busy."""
    return text.count(f" {LEASE_LOST} ")


def shortened(violations: list[str], number: int = SHOWN) -> list[str]:
    if len(violations) <= number:
        return violations
    return [*violations[:number], f"... and {len(violations) - number} more"]
