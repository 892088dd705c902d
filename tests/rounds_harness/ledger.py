"""What the clients know: which records and commits were acknowledged, and when."""

import itertools
import threading
import time
from collections import defaultdict


class Ledger:
    """Written by the threads of the clients, read by the checks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[int, dict[int, tuple[bytes, bytes]]] = defaultdict(dict)
        """By partition and offset: key and value of each acknowledged record."""
        self.without_offset: dict[bytes, int] = defaultdict(lambda: -1)
        """By key: the largest number of a record that was acknowledged without an offset."""
        self.contradictions: list[str] = []
        """Offsets that were acknowledged for two records."""
        self.acknowledged_s: dict[int, list[float]] = defaultdict(list)
        """By partition: when records were acknowledged, on the monotonic clock."""
        self.failures: list[str] = []
        """Records that their producer gave up, and other errors that a client does not survive."""
        self.last_number: dict[bytes, int] = defaultdict(lambda: -1)
        """By key: the number of the last record that was passed to its producer."""
        self.groups: dict[str, GroupLedger] = {}

    def acknowledge(self, partition: int, offset: int | None, key: bytes, value: bytes) -> None:
        """Without an offset, the broker has said only that it has the record already, since an answer was lost."""
        with self.lock:
            if offset is None:
                self.without_offset[key] = max(self.without_offset[key], int(value))
            elif (before := self.records[partition].setdefault(offset, (key, value))) != (key, value):
                self.contradictions.append(f"{partition}@{offset} was acknowledged for {before[1]!r} and for {value!r}")
            self.acknowledged_s[partition].append(time.monotonic())

    def fail(self, text: str) -> None:
        with self.lock:
            self.failures.append(text)

    def count(self) -> int:
        return sum(len(records) for records in self.records.values())

    def longest_gaps_s(self, since_s: float, until_s: float) -> dict[int, float]:
        """Return the longest time without an acknowledgement of each partition, from `since_s` to `until_s`."""
        gaps = {}
        with self.lock:
            for partition, times in self.acknowledged_s.items():
                inside = [since_s, *(each for each in times if since_s <= each <= until_s), until_s]
                gaps[partition] = max(late - early for early, late in itertools.pairwise(inside))
        return gaps

    def forget_times(self) -> None:
        with self.lock:
            self.acknowledged_s.clear()


class GroupLedger:
    """The commits and deliveries of one group, by partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.committed: dict[int, int] = defaultdict(int)
        """The largest offset whose commit was acknowledged."""
        self.attempted: dict[int, int] = defaultdict(int)
        """The largest offset that a member has tried to commit."""
        self.delivered: dict[int, set[int]] = defaultdict(set)
        self.violations: list[str] = []
        self.commits = 0

    def attempt(self, offsets: dict[int, int]) -> None:
        with self.lock:
            for partition, offset in offsets.items():
                self.attempted[partition] = max(self.attempted[partition], offset)

    def commit(self, offsets: dict[int, int]) -> None:
        with self.lock:
            self.commits += 1
            for partition, offset in offsets.items():
                self.committed[partition] = max(self.committed[partition], offset)

    def floor(self) -> dict[int, int]:
        """Return the offsets below which no member may start from now on."""
        with self.lock:
            return dict(self.committed)

    def check_start(self, partition: int, offset: int, floor: int) -> None:
        """A member has started to read at `offset`. When it was assigned the partition, `floor` was committed."""
        with self.lock:
            if offset < floor:
                self.violations.append(
                    f"group {self.name}: partition {partition} was read from {offset}, although {floor} was committed"
                )
            if offset > self.attempted[partition]:
                self.violations.append(
                    f"group {self.name}: partition {partition} was read from {offset}, and nobody has committed more "
                    f"than {self.attempted[partition]}"
                )
