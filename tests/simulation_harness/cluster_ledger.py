"""The confirmations that clients of a simulated cluster have received, and the checks that run while the cluster
runs. Each invariant has a name.

The checks do not use the broker's state: they only use the responses that clients received and the records that they
read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.model.ids import TopicPartition
from tidelog.wire.records import Record


class Violation(AssertionError):
    """An invariant was violated. `partition` is the affected partition, or None."""

    def __init__(self, invariant: str, text: str, partition: TopicPartition | None = None) -> None:
        super().__init__(f"{invariant}: {text}")
        self.partition = partition


class RecordSource(NamedTuple):
    """The writer and the number in a value. Numbers of a `writer` count from 0 in each partition, and no number is
    sent twice.
    """

    writer: str
    number: int

    @classmethod
    def of(cls, value: bytes) -> "RecordSource":
        writer, number, _ = value.split(b":", 2)
        return cls(writer.decode(), int(number))


class Ledger:
    """Acknowledged records, records that were read, and commits. Each is checked when it is added."""

    def __init__(self) -> None:
        self.coverage: Counter[str] = Counter()
        """Number of events of each kind."""
        self.topics: dict[str, int] = {}
        """Number of partitions by name, for the topics whose creation was confirmed."""
        self.committed: dict[TopicPartition, int] = {}
        self.commit_attempts: dict[TopicPartition, int] = {}
        self.on_promise: dict[str, Callable[[], None]] = {}
        """Functions that are called once, when a client receives the confirmation of "records" or of a "commit". At
        this moment a fault has the worst effect."""
        self._acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self._values: dict[TopicPartition, dict[int, bytes]] = {}
        """Every value that was acknowledged or read, by its offset."""
        self._watermarks: dict[tuple[str, TopicPartition, int], int] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, index) for name, count in self.topics.items() for index in range(count)]

    def acknowledge(self, partition: TopicPartition, base_offset: int, values: Sequence[bytes]) -> None:
        """Add the acknowledgement of `values`, which are in the log from `base_offset` on."""
        for offset, value in enumerate(values, base_offset):
            self._add_value(partition, offset, value)
            self._acknowledged.setdefault(partition, {})[offset] = value
        self.coverage["records acknowledged"] += len(values)
        self._call_listener("records")

    def read(
        self, reader: str, partition: TopicPartition, leader_epoch: int, high_watermark: int, records: Iterable[Record]
    ) -> None:
        """Add `records` that a consumer received from the leader; `leader_epoch` is the epoch in the consumer's
        metadata.
        """
        before = self._watermarks.get((reader, partition, leader_epoch), 0)
        if high_watermark < before:
            text = f"{partition} was at {before} for {reader}, and is at {high_watermark} in epoch {leader_epoch}"
            raise Violation("MonotonicHighWatermark", text, partition)
        self._watermarks[reader, partition, leader_epoch] = high_watermark
        for record in records:
            if record.offset >= high_watermark:
                text = f"{partition} at {record.offset}, the high watermark is {high_watermark}"
                raise Violation("NotAboveHighWatermark", text, partition)
            self._add_value(partition, record.offset, record.value or b"")
            self.coverage["records read"] += 1

    def confirm_commit(self, partition: TopicPartition, offset: int) -> None:
        self.committed[partition] = offset
        self.coverage["commits"] += 1
        self._call_listener("commit")

    def check_commits(self, found: Mapping[TopicPartition, int]) -> None:
        """Check the committed offsets `found`, which the coordinator returned while no commit was in progress."""
        for partition, offset in self.committed.items():
            now = found.get(partition, -1)
            if now < offset:
                raise Violation("CommitsStay", f"{partition} was at {offset}, and is at {now}", partition)
        for partition, now in found.items():
            tried = self.commit_attempts.get(partition, -1)
            if now > tried:
                raise Violation(
                    "CommitsNotAhead", f"{partition} is at {now}, nobody asked for more than {tried}", partition
                )
        self.coverage["commits read"] += 1

    def check_log(self, partition: TopicPartition, records: Sequence[Record], start_offset: int) -> None:
        """Check a partition at the end of the run: `records` are all records that a consumer finds in it."""
        found = {record.offset: record.value or b"" for record in records}
        for offset, value in self._acknowledged.get(partition, {}).items():
            if offset >= start_offset and found.get(offset) != value:
                there = found.get(offset, b"nothing")
                text = f"{partition} at {offset}: {value[:30]!r} was acknowledged, {there[:30]!r} is there"
                raise Violation("NoAckedLoss", text, partition)
        following: dict[str, int] = {}
        for record in records:
            writer, number = RecordSource.of(record.value or b"")
            expected = following.get(writer, 0)
            if number != expected and start_offset == 0:
                text = f"{partition} at {record.offset} has number {number} of {writer} in place of {expected}"
                raise Violation("InOrderOnce", text, partition)
            following[writer] = number + 1

    def _call_listener(self, what: str) -> None:
        listener = self.on_promise.pop(what, None)
        if listener is not None:
            listener()

    def _add_value(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        known = self._values.setdefault(partition, {}).setdefault(offset, value)
        if known != value:
            text = f"{partition} at {offset} was {known[:30]!r}, and is {value[:30]!r}"
            raise Violation("OneValueForAnOffset", text, partition)
