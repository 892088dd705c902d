"""The confirmations that clients of a simulated cluster have received, and the checks that run while the cluster
runs. Each invariant has a name.

The checks use the responses that clients received and the records that they read. `cluster_checks` checks the state of
the brokers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidelog.model.ids import TopicPartition
from tidelog.wire.message import Message
from tidelog.wire.records import Record


class Violation(AssertionError):
    """An invariant was violated. `partition` is the affected partition, or None."""

    def __init__(self, invariant: str, text: str, partition: TopicPartition | None = None) -> None:
        super().__init__(f"{invariant}: {text}")
        self.partition = partition


class Batch(NamedTuple):
    """One batch that a consumer received, with its records."""

    base_offset: int
    last_offset: int
    crc: int
    records: list[Record]


UNORDERED = "/"
"""A writer with this character in its name is not idempotent: its records may be repeated, and in any order."""


class RecordSource(NamedTuple):
    """The writer and the number in a value. Numbers of a `writer` count from 0 in each partition, and no number is
    sent twice.
    """

    writer: str
    number: int

    @property
    def is_ordered(self) -> bool:
        return UNORDERED not in self.writer

    @classmethod
    def of(cls, value: bytes) -> "RecordSource":
        writer, number, _ = value.split(b":", 2)
        return cls(writer.decode(), int(number))


class CommittedOffset:
    """The values that the committed offset of one partition may have. None means that there is no committed offset.

    An attempt without an answer may be executed later, also after the attempts that follow it.
    """

    def __init__(self) -> None:
        self._confirmed: int | None = None
        self._possible: dict[int | None, None] = {None: None}
        """The last confirmed value, and the values of later attempts."""
        self._late: dict[int | None, None] = {}
        """Values of attempts without an answer, or with repeated requests."""

    def attempt(self, offset: int | None) -> None:
        self._possible[offset] = None

    def confirm(self, offset: int | None, *, repeated: bool) -> None:
        if repeated:
            self._late[offset] = None
        self._confirmed = offset
        self._possible = {offset: None}

    def give_up(self, offset: int | None) -> None:
        self._late[offset] = None

    def may_be(self, offset: int | None) -> bool:
        return offset in self._possible or offset in self._late

    def __str__(self) -> str:
        others = [offset for offset in (*self._possible, *self._late) if offset != self._confirmed]
        return f"{self._confirmed} was confirmed, {others} were attempted"


class Ledger:
    """Acknowledged records, records that were read, and commits. Each is checked when it is added."""

    def __init__(self, note: Callable[[str, str, str], None] = lambda _host, _what, _details: None) -> None:
        self.coverage: Counter[str] = Counter()
        """Number of events of each kind."""
        self.topics: dict[str, int] = {}
        """Number of partitions by name, for the topics whose creation was confirmed."""
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.on_promise: dict[str, Callable[[], None]] = {}
        """Functions that are called once, when a client receives the confirmation of "records" or of a "commit". At
        this moment a fault has the worst effect."""
        self.has_been_committed: Callable[[TopicPartition, int], bool] = lambda _partition, _end_offset: True
        """Returns whether the high watermark of any replica has reached an offset."""
        self.expiring_topics: dict[str, None] = {}
        """The topics whose records retention may have deleted."""
        self._deletable: dict[TopicPartition, float] = {}
        """The end of the records that an administrator has asked to delete, by partition."""
        self.deleted_before: Callable[[TopicPartition], int] = lambda _partition: 0
        """Returns the offset below which records of a partition were deleted."""
        self.repeated_markers: dict[tuple[int, int], None] = {}
        """Producer ids and epochs with a marker that was sent again, so that the first request may arrive late."""
        self.on_markers: Callable[[Message], None] | None = None
        """Called with each request for markers that a coordinator has sent."""
        self._note = note
        self._acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self._values: dict[TopicPartition, dict[int, bytes]] = {}
        """Every value that was acknowledged or read, by its offset."""
        self._offsets: dict[tuple[TopicPartition, str], dict[int, int]] = {}
        """The offset of each record, by its number, for each writer and partition."""
        self._watermarks: dict[tuple[str, TopicPartition, int], int] = {}
        self._checked: dict[tuple[TopicPartition, int], int] = {}
        """The checksum of each batch whose records were checked, by its base offset."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, index) for name, count in self.topics.items() for index in range(count)]

    def acknowledge(self, partition: TopicPartition, base_offset: int, values: Sequence[bytes]) -> None:
        """Add the acknowledgement, with acks=all, of `values`, which are in the log from `base_offset` on.

        `AcknowledgedWhenCommitted`: a high watermark has reached their end.
        """
        end = base_offset + len(values)
        source = RecordSource.of(values[0])
        self._note("client", "acknowledged", f"{partition} {base_offset}..{end} to {source.writer} no {source.number}")
        if not self.has_been_committed(partition, end):
            text = f"{partition} at {end - 1} was acknowledged, and is above every high watermark"
            raise Violation("AcknowledgedWhenCommitted", text, partition)
        for offset, value in enumerate(values, base_offset):
            self._add_value(partition, offset, value)
            self._acknowledged.setdefault(partition, {})[offset] = value
        self.coverage["records acknowledged"] += len(values)
        self.call_listener("records")

    def acknowledge_by_leader(self, count: int) -> None:
        """Count records that were acknowledged with acks=1. They may be lost when the leader changes."""
        self.coverage["records acknowledged by the leader"] += count

    def read(
        self, reader: str, partition: TopicPartition, leader_epoch: int, high_watermark: int, batches: Sequence[Batch]
    ) -> None:
        """Add `batches` that a consumer received from the leader; `leader_epoch` is the epoch in the consumer's
        metadata.
        """
        before = self._watermarks.get((reader, partition, leader_epoch), 0)
        if high_watermark < before:
            text = f"{partition} was at {before} for {reader}, and is at {high_watermark} in epoch {leader_epoch}"
            raise Violation("MonotonicHighWatermark", text, partition)
        self._watermarks[reader, partition, leader_epoch] = high_watermark
        for batch in batches:
            end = batch.last_offset + 1
            if end > high_watermark or not self.has_been_committed(partition, end):
                text = f"{partition} at {batch.last_offset}, the high watermark in the answer is {high_watermark}"
                raise Violation("NotAboveHighWatermark", text, partition)
            self.coverage["records read"] += len(batch.records)
            if self._checked.get((partition, batch.base_offset)) != batch.crc:
                for record in batch.records:
                    self._add_value(partition, record.offset, record.value or b"")
                self._checked[partition, batch.base_offset] = batch.crc

    def attempt_deletion(self, partition: TopicPartition, offset: float) -> None:
        """Add the attempt to delete the records below `offset`. Infinite: all records that are committed then."""
        self._deletable[partition] = max(self._deletable.get(partition, 0), offset)

    def may_lack_records(self, partition: TopicPartition) -> bool:
        """Return whether records of the partition may have been deleted at its start."""
        return partition.topic in self.expiring_topics or partition in self._deletable

    def attempt_commit(self, partition: TopicPartition, offset: int | None) -> None:
        """Add the attempt to commit `offset`, or to delete the committed offset (None)."""
        self.committed.setdefault(partition, CommittedOffset()).attempt(offset)

    def confirm_commit(self, partition: TopicPartition, offset: int | None, *, repeated: bool) -> None:
        """Add the confirmation of a commit. `repeated`: requests without an answer were sent again, so one of them may
        still arrive.
        """
        self.committed[partition].confirm(offset, repeated=repeated)
        self.coverage["commits" if offset is not None else "deleted commits"] += 1
        self._note("client", "committed", f"{partition} at {offset}")
        self.call_listener("commit")

    def check_commits(self, found: Mapping[TopicPartition, int]) -> None:
        """Check the committed offsets `found`, which the coordinator returned while no commit was in progress."""
        for partition in {**self.committed, **found}:
            now = found.get(partition, -1)
            known = self.committed.get(partition, CommittedOffset())
            if not known.may_be(now if now >= 0 else None):
                raise Violation("CommitsStay", f"{partition} is at {now}: {known}", partition)
        self.coverage["commits read"] += 1

    def check_log(self, partition: TopicPartition, records: Sequence[Record], start_offset: int) -> None:
        """Check a partition at the end of the run: `records` are all records that a consumer finds in it.

        `NothingDeletedUnasked`: the log begins at 0, unless retention or an administrator has deleted records.
        """
        deletable = self._deletable.get(partition, 0)
        if start_offset > deletable and partition.topic not in self.expiring_topics:
            text = f"{partition} begins at {start_offset}, only the records below {deletable} were to be deleted"
            raise Violation("NothingDeletedUnasked", text, partition)
        found = {record.offset: record.value or b"" for record in records}
        for offset, value in self._acknowledged.get(partition, {}).items():
            if offset >= start_offset and found.get(offset) != value:
                there = found.get(offset, b"nothing")
                text = f"{partition} at {offset}: {value[:30]!r} was acknowledged, {there[:30]!r} is there"
                raise Violation("NoAckedLoss", text, partition)
        following: dict[str, int] = {}
        for record in records:
            source = RecordSource.of(record.value or b"")
            if not source.is_ordered:
                continue
            writer, number = source
            expected = following.get(writer, 0)
            if number != expected and start_offset == 0:
                text = f"{partition} at {record.offset} has number {number} of {writer} in place of {expected}"
                raise Violation("InOrderOnce", text, partition)
            following[writer] = number + 1

    def call_listener(self, what: str) -> None:
        listener = self.on_promise.pop(what, None)
        if listener is not None:
            listener()

    def _add_value(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Check that nobody has seen another value at this offset, and that the record of its writer is in order and
        at one offset only.
        """
        values = self._values.setdefault(partition, {})
        known = values.get(offset)
        if known is not None:
            if known != value:
                text = f"{partition} at {offset} was {known[:30]!r}, and is {value[:30]!r}"
                raise Violation("OneValueForAnOffset", text, partition)
            return
        values[offset] = value
        source = RecordSource.of(value)
        if not source.is_ordered:
            return
        writer, number = source
        offsets = self._offsets.setdefault((partition, writer), {})
        if not _is_in_order(offsets, number, offset):
            # A replica that begins after deleted records does not know them, so it appends a repeated batch of them.
            start_offset = self.deleted_before(partition)
            for deleted in [other for other, at in offsets.items() if at < min(start_offset, offset)]:
                del offsets[deleted]
            if not _is_in_order(offsets, number, offset):
                other = offsets.get(number, offset)
                text = f"{partition} has number {number} of {writer} at {offset}, and other records of it at {other}"
                raise Violation("InOrderOnce", text, partition)
            self.coverage["repeats of deleted records"] += 1
        offsets[number] = offset


def _is_in_order(offsets: Mapping[int, int], number: int, offset: int) -> bool:
    """Return whether a writer's record `number` may be at `offset`; `offsets` are those of its records by number."""
    return (
        offsets.get(number, offset) == offset
        and offsets.get(number - 1, -1) < offset
        and offsets.get(number + 1, offset + 1) > offset
    )
