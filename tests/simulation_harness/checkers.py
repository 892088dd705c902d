"""What must hold after a power cut, each invariant by its name. They stand outside the product: all that they know is
what clients were told before the cut and what a client finds after it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

TopicPartition = tuple[str, int]


class Acknowledged(NamedTuple):
    """A record that a producer was told is there."""

    at: float
    offset: int
    value: bytes


class Promises:
    """What clients were told, in virtual time, as far as they know it at this moment."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        """Partitions by name of those whose creation was confirmed."""
        self.records: dict[TopicPartition, list[Acknowledged]] = {}
        self.watermarks: dict[TopicPartition, list[tuple[float, int]]] = {}
        """High watermarks that fetches answered, in their order."""
        self.commits: dict[TopicPartition, tuple[float, int]] = {}
        """The last confirmed commit."""
        self.tried: dict[TopicPartition, int] = {}
        """The highest offset that a commit was asked for."""

    def copy(self) -> "Promises":
        copied = Promises()
        copied.topics = dict(self.topics)
        copied.records = {key: list(records) for key, records in self.records.items()}
        copied.watermarks = {key: list(seen) for key, seen in self.watermarks.items()}
        copied.commits = dict(self.commits)
        return copied


class Found(NamedTuple):
    """What a client finds after the recovery. Offsets without a gap from 0 on were checked in reading."""

    topics: dict[str, list[int]]
    """Error codes of the partitions."""
    values: dict[TopicPartition, list[bytes]]
    high_watermarks: dict[TopicPartition, int]
    committed: dict[TopicPartition, int]


class Checker(Protocol):
    def check(self, promised: Promises, found: Found) -> None:
        """Raises AssertionError."""


class TopicsStay:
    """A topic whose creation was confirmed is there, and every partition is online."""

    def check(self, promised: Promises, found: Found) -> None:
        for name, partitions in promised.topics.items():
            assert name in found.topics, f"TopicsStay: {name} is lost"
            assert found.topics[name] == [0] * partitions, f"TopicsStay: {name} has errors {found.topics[name]}"


class NoAckedLoss:
    """A record that was acknowledged before `safe_until` is there, at its offset; a later one or nothing is."""

    def __init__(self, safe_until: float) -> None:
        self._safe_until = safe_until

    def check(self, promised: Promises, found: Found) -> None:
        for key, records in promised.records.items():
            values = found.values[key]
            for record in records:
                if record.offset < len(values):
                    other = values[record.offset]
                    assert other == record.value, f"NoAckedLoss: {key} {record} became {other!r}"
                else:
                    assert record.at >= self._safe_until, f"NoAckedLoss: {key} ends at {len(values)}, {record} is lost"


class InOrderOnce:
    """What each client wrote to a partition is there in its order, each once, none left out before the end.

    Values are `CLIENT:NUMBER:...`; numbers count from 0 by client and partition.
    """

    def check(self, promised: Promises, found: Found) -> None:
        for key, values in found.values.items():
            following: dict[bytes, int] = {}
            for value in values:
                client, number, _ = value.split(b":", 2)
                expected = following.get(client, 0)
                assert int(number) == expected, f"InOrderOnce: {key} has {value[:20]!r} in place of number {expected}"
                following[client] = expected + 1


class CommitsStay:
    """A commit that was confirmed before `safe_until`, or a later one that was asked for, is there."""

    def __init__(self, safe_until: float) -> None:
        self._safe_until = safe_until

    def check(self, promised: Promises, found: Found) -> None:
        for key, (at, offset) in promised.commits.items():
            committed = found.committed[key]
            assert committed >= offset or at >= self._safe_until, f"CommitsStay: {key} at {offset} became {committed}"


class CommitsNotAhead:
    """No committed offset lies past the end of its log, and none was never asked for."""

    def __init__(self, tried: dict[TopicPartition, int]) -> None:
        self._tried = tried

    def check(self, promised: Promises, found: Found) -> None:
        for key, committed in found.committed.items():
            asked = self._tried.get(key, -1)
            assert committed <= asked, f"CommitsNotAhead: {key} has {committed}, {asked} was the highest asked for"
            end = len(found.values[key])
            assert committed <= end, f"CommitsNotAhead: {key} ends at {end}, committed is {committed}"


class MonotonicHighWatermark:
    """The high watermark that clients saw never goes back, over a recovery neither if it is older than `safe_until`."""

    def __init__(self, safe_until: float) -> None:
        self._safe_until = safe_until

    def check(self, promised: Promises, found: Found) -> None:
        for key, seen in promised.watermarks.items():
            watermarks = [watermark for _, watermark in seen]
            assert watermarks == sorted(watermarks), f"MonotonicHighWatermark: {key} went {watermarks}"
            safe = max((watermark for at, watermark in seen if at < self._safe_until), default=0)
            now = found.high_watermarks[key]
            assert now >= safe, f"MonotonicHighWatermark: {key} was at {safe}, and is at {now} after the recovery"


def check_all(checkers: Sequence[Checker], promised: Promises, found: Found) -> None:
    for checker in checkers:
        checker.check(promised, found)
