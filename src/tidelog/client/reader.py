"""Read many partitions continuously. The reader decides which partitions to fetch next, from which offsets, and how
to handle a failure.

A partition that fails does not stop the other partitions. The caller supplies the time and the client.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from tidelog.client.each import Failure, Results, is_retriable
from tidelog.client.errors import Unreachable
from tidelog.client.operations import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    UNKNOWN_TOPIC_ATTEMPTS,
    Backoff,
    Fetched,
    FetchLimits,
    ListedOffset,
)
from tidelog.client.visible import visible_batches
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, MAGIC, MIN_LENGTH, BatchHeader
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, decode_records


class Chunk(NamedTuple):
    """The records of one partition from one fetch. Reading continues at `next_offset`."""

    partition: TopicPartition
    records: list[Record]
    next_offset: int
    end_offset: int
    """The current end of the partition (exclusive) for the reader's isolation level."""


class Skipped(NamedTuple):
    """Offsets that cannot be read: from `first` up to `next_offset` (exclusive). Reading continues at `next_offset`,
    or at `first` if the log ends there.
    """

    partition: TopicPartition
    first: int
    next_offset: int
    reason: str


class Stopped(NamedTuple):
    """The partition is no longer read, because its failure is permanent."""

    partition: TopicPartition
    offset: int
    reason: Failure | MalformedMessage


Event: TypeAlias = Chunk | Skipped | Stopped


class PartitionsClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that a reader needs."""

    def fetch_each(
        self, positions: Mapping[TopicPartition, int], limits: FetchLimits
    ) -> Results[TopicPartition, Fetched]: ...
    def list_offsets_each(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> Results[TopicPartition, ListedOffset]: ...


class Reader:
    """Reads the partitions in `positions`. The caller may change `positions` between two polls."""

    def __init__(self, client: PartitionsClient, limits: FetchLimits, backoff: Backoff, *, check_crcs: bool) -> None:
        self._client = client
        self._limits = limits
        self._backoff = backoff
        self._check_crcs = check_crcs
        self.positions: dict[TopicPartition, int] = {}
        """Offset of the next record to read, by partition."""
        self.failures: dict[TopicPartition, Failure] = {}
        """By partition: the failure of its last fetch. Contains only partitions whose fetch will be repeated."""
        self._attempts: dict[TopicPartition, int] = {}
        self._not_before_s: dict[TopicPartition, float] = {}

    def unreachable(self) -> bool:
        """Return whether the last fetch of every partition failed because brokers were unreachable."""
        return bool(self.positions) and all(isinstance(self.failures.get(tp), Unreachable) for tp in self.positions)

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `poll` may fetch at least one partition. If every partition waits after a failure,
        this is the shortest remaining wait, otherwise 0.
        """
        return max(0.0, min((self._not_before_s.get(tp, now_s) for tp in self.positions), default=now_s) - now_s)

    def poll(self, now_s: float) -> list[Event]:
        """Fetch once and return the events. The fetch waits at most `max_wait_ms` (one of the limits) for records. If
        every partition waits after a failure, this method does not fetch and returns no events.

        The records of a partition are in the order of their offsets.
        """
        due = {tp: offset for tp, offset in self.positions.items() if self._not_before_s.get(tp, now_s) <= now_s}
        if not due:
            return []
        events: list[Event] = []
        answers = self._client.fetch_each(due, self._limits)
        # Fetched records are processed first, because the client's next call invalidates the views of them.
        for tp, answer in answers.items():
            if isinstance(answer, Fetched):
                self._forget_failure(tp)
                events += self._process_fetched(tp, answer)
        for tp, answer in answers.items():
            if isinstance(answer, Fetched):
                continue
            if isinstance(answer, ApiError) and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                events += self._reset_position(tp, now_s)
            else:
                events += self._record_failure(tp, answer, now_s)
        # Brokers prefer the partitions that a request lists first. Therefore the next poll lists another partition
        # first.
        for tp in due:
            if tp in self.positions:
                self.positions[tp] = self.positions.pop(tp)
                break
        return events

    def _process_fetched(self, tp: TopicPartition, fetched: Fetched) -> list[Event]:
        position = self.positions[tp]
        records: list[Record] = []
        events: list[Event] = []
        end_offset = fetched.last_stable_offset if self._limits.isolation == READ_COMMITTED else fetched.high_watermark
        if end_offset < 0:  # the response has no last stable offset
            end_offset = fetched.high_watermark
        headers, damage = whole_batches(fetched.records, self._check_crcs)
        for header in visible_batches(headers, fetched, self._limits.isolation):
            try:
                decoded = decode_records(header.buffer, header.position)
            except MalformedMessage as error:
                if records:
                    events.append(Chunk(tp, records, header.base_offset, end_offset))
                    records = []
                events.append(Skipped(tp, max(position, header.base_offset), header.next_offset, str(error)))
                continue
            records += [record for record in decoded if record.offset >= position]
        if headers:
            position = max(position, headers[-1].next_offset)
            self.positions[tp] = position
        events.append(Chunk(tp, records, position, end_offset))
        if damage is not None:  # the batches before the damage have been read
            events.append(self._stop(tp, damage))
        return events

    def _reset_position(self, tp: TopicPartition, now_s: float) -> list[Event]:
        """Set a position that is out of range to the nearest offset of the log, and return the event. If the log's
        offsets cannot be listed, handle the error like a failed fetch.

        There are two cases. Either the log starts after the position, because old records were deleted. Or it ends
        before the position, for example because records were lost in an unclean leader election.
        """
        position = self.positions[tp]
        target = position
        for timestamp in (EARLIEST, LATEST):
            listed = self._client.list_offsets_each({tp: timestamp}, self._limits.isolation)[tp]
            if not isinstance(listed, ListedOffset):
                return self._record_failure(tp, listed, now_s)
            target = max(target, listed.offset) if timestamp == EARLIEST else min(target, listed.offset)
        self.positions[tp] = target
        if target > position:
            return [Skipped(tp, position, target, f"the log starts at {target}")]
        if target < position:
            return [Skipped(tp, target, position, f"the log ends at {target}")]
        return []

    def _record_failure(self, tp: TopicPartition, failure: Failure, now_s: float) -> list[Event]:
        """Store a temporary failure, and the time of the next attempt. After any other failure, stop reading the
        partition.
        """
        attempts = self._attempts[tp] = self._attempts.get(tp, 0) + 1
        is_unknown = isinstance(failure, ApiError) and failure.code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        )
        if not is_retriable(failure) or (is_unknown and attempts >= UNKNOWN_TOPIC_ATTEMPTS):
            return [self._stop(tp, failure)]
        self.failures[tp] = failure
        self._not_before_s[tp] = now_s + self._backoff.delay_ms(attempts - 1) / 1000
        return []

    def _stop(self, tp: TopicPartition, reason: Failure | MalformedMessage) -> Stopped:
        self._forget_failure(tp)
        return Stopped(tp, self.positions.pop(tp), reason)

    def _forget_failure(self, tp: TopicPartition) -> None:
        """Remove the failure of a partition whose fetch has succeeded, or that is no longer read."""
        for state in (self.failures, self._attempts, self._not_before_s):
            state.pop(tp, None)


def whole_batches(records: memoryview, check_crcs: bool) -> tuple[list[BatchHeader], MalformedMessage | None]:
    """Return the headers of the complete batches before the first damage, and an error that describes the damage;
    None if there is no damage.

    If the last batch of a fetch is truncated, it is omitted. There is damage if the bytes are not a sequence of batches
    in the supported format, or, with `check_crcs`, if a checksum is wrong.
    """
    headers: list[BatchHeader] = []
    position = expected_offset = 0
    while position + HEADER_BYTES <= len(records):
        header = BatchHeader(records, position)
        damage = ""
        if header.magic != MAGIC:
            damage = f"message format {header.magic} is not supported, only {MAGIC}"
        elif header.length < MIN_LENGTH or header.last_offset_delta < 0 or header.base_offset < expected_offset:
            damage = f"the bytes are not a valid record batch with offset {expected_offset} or above"
        elif position + header.size > len(records):
            break
        elif check_crcs and not header.crc_ok():
            offsets = f"offsets {header.base_offset} to {header.last_offset}"
            damage = f"{offsets}: the CRC-32C is not the stated {header.crc:#010x}"
        if damage:
            return headers, MalformedMessage(damage)
        headers.append(header)
        position += header.size
        expected_offset = header.next_offset
    return headers, None
