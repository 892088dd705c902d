"""Invariants that must hold after a power cut; each has a name. The checkers do not use the broker's state: they
only compare the responses that clients received before the cut with the data that a client finds after it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

TopicPartition = tuple[str, int]


class AcknowledgedRecord(NamedTuple):
    """A record that was acknowledged to its producer, with the virtual time (s) of the acknowledgement."""

    at: float
    offset: int
    value: bytes


class Promises:
    """The confirmations that clients have received until now, with their virtual times (s)."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        """Number of partitions by name, for the topics whose creation was confirmed."""
        self.records: dict[TopicPartition, list[AcknowledgedRecord]] = {}
        self.watermarks: dict[TopicPartition, list[tuple[float, int]]] = {}
        """High watermarks in the responses to fetches, in order, with their times."""
        self.commits: dict[TopicPartition, tuple[float, int]] = {}
        """The last confirmed commit: its time and its offset."""
        self.tried: dict[TopicPartition, int] = {}
        """The highest offset that a client has tried to commit, confirmed or not."""

    def copy(self) -> "Promises":
        copied = Promises()
        copied.topics = dict(self.topics)
        copied.records = {key: list(records) for key, records in self.records.items()}
        copied.watermarks = {key: list(seen) for key, seen in self.watermarks.items()}
        copied.commits = dict(self.commits)
        return copied


class SurvivingData(NamedTuple):
    """The data that a client finds after the recovery. The reader has checked that offsets begin at 0 and have no
    gaps.
    """

    topics: dict[str, list[int]]
    """Error codes of the partitions, by topic."""
    values: dict[TopicPartition, list[bytes]]
    high_watermarks: dict[TopicPartition, int]
    committed: dict[TopicPartition, int]


class Checker(Protocol):
    def check(self, promised: Promises, found: SurvivingData) -> None:
        """Raise AssertionError if the invariant is violated."""


class TopicsStay:
    """A topic whose creation was confirmed exists, and every partition is online."""

    def check(self, promised: Promises, found: SurvivingData) -> None:
        for name, partitions in promised.topics.items():
            assert name in found.topics, f"TopicsStay: {name} is lost"
            assert found.topics[name] == [0] * partitions, f"TopicsStay: {name} has errors {found.topics[name]}"


class NoAckedLoss:
    """A record that was acknowledged before `safe_until` exists at its offset. A later record may be lost, but no
    other record may have its offset.
    """

    def __init__(self, safe_until: float) -> None:
        self._safe_until = safe_until

    def check(self, promised: Promises, found: SurvivingData) -> None:
        for key, records in promised.records.items():
            values = found.values[key]
            for record in records:
                if record.offset < len(values):
                    other = values[record.offset]
                    assert other == record.value, f"NoAckedLoss: {key} {record} became {other!r}"
                else:
                    assert record.at >= self._safe_until, f"NoAckedLoss: {key} ends at {len(values)}, {record} is lost"


class InOrderOnce:
    """The records of each client in a partition are in the order in which they were written, each exists once, and
    none is missing before the last one.

    Values are `CLIENT:NUMBER:...`; numbers count from 0 for each client and partition.
    """

    def check(self, promised: Promises, found: SurvivingData) -> None:
        for key, values in found.values.items():
            following: dict[bytes, int] = {}
            for value in values:
                client, number, _ = value.split(b":", 2)
                expected = following.get(client, 0)
                assert int(number) == expected, f"InOrderOnce: {key} has {value[:20]!r} in place of number {expected}"
                following[client] = expected + 1


class CommitsStay:
    """If a commit was confirmed before `safe_until`, the committed offset is at least its offset."""

    def __init__(self, safe_until: float) -> None:
        self._safe_until = safe_until

    def check(self, promised: Promises, found: SurvivingData) -> None:
        for key, (at, offset) in promised.commits.items():
            committed = found.committed[key]
            assert committed >= offset or at >= self._safe_until, f"CommitsStay: {key} at {offset} became {committed}"


class CommitsNotAhead:
    """No committed offset is above the end of its log, or above every offset that a client has tried to commit."""

    def __init__(self, tried: dict[TopicPartition, int]) -> None:
        self._tried = tried

    def check(self, promised: Promises, found: SurvivingData) -> None:
        for key, committed in found.committed.items():
            asked = self._tried.get(key, -1)
            assert committed <= asked, f"CommitsNotAhead: {key} has {committed}, {asked} was the highest asked for"
            end = len(found.values[key])
            assert committed <= end, f"CommitsNotAhead: {key} ends at {end}, committed is {committed}"


class MonotonicHighWatermark:
    """The high watermark that clients see never decreases. After a recovery it is not below a value that clients saw
    before `safe_until`.
    """

    def __init__(self, safe_until: float) -> None:
        self._safe_until = safe_until

    def check(self, promised: Promises, found: SurvivingData) -> None:
        for key, seen in promised.watermarks.items():
            watermarks = [watermark for _, watermark in seen]
            assert watermarks == sorted(watermarks), f"MonotonicHighWatermark: {key} went {watermarks}"
            safe = max((watermark for at, watermark in seen if at < self._safe_until), default=0)
            now = found.high_watermarks[key]
            assert now >= safe, f"MonotonicHighWatermark: {key} was at {safe}, and is at {now} after the recovery"


def check_all(checkers: Sequence[Checker], promised: Promises, found: SurvivingData) -> None:
    for checker in checkers:
        checker.check(promised, found)
