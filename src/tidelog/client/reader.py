"""Reads many partitions on and on: whose turn it is, from which offset, and what becomes of a failure.

A partition that fails does not stop the others. Its caller brings the time and the client.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from tidelog.client.each import Each, Failure
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
from tidelog.client.visible import visible
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, MAGIC, MIN_LENGTH, BatchHeader
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, decode_records


class Chunk(NamedTuple):
    """What one partition gave; the reader goes on at `next_offset`."""

    partition: TopicPartition
    records: list[Record]
    next_offset: int
    end_offset: int
    """Exclusive: where a reader of this isolation ends at present."""


class Skipped(NamedTuple):
    """Offsets that cannot be read; reading goes on behind them."""

    partition: TopicPartition
    first: int
    next_offset: int
    reason: str


class Stopped(NamedTuple):
    """The partition is not read any more: its failure lasts."""

    partition: TopicPartition
    offset: int
    reason: Failure | MalformedMessage


Event: TypeAlias = Chunk | Skipped | Stopped


class PartitionsClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that a reader needs."""

    def fetch_each(
        self, positions: Mapping[TopicPartition, int], limits: FetchLimits
    ) -> Each[TopicPartition, Fetched]: ...
    def list_offsets_each(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> Each[TopicPartition, ListedOffset]: ...


class Reader:
    """`positions` may be changed between two polls: partitions come, go and are moved."""

    def __init__(self, client: PartitionsClient, limits: FetchLimits, backoff: Backoff, *, check_crcs: bool) -> None:
        self._client = client
        self._limits = limits
        self._backoff = backoff
        self._check_crcs = check_crcs
        self.positions: dict[TopicPartition, int] = {}
        """The offset of the next record to read."""
        self.failures: dict[TopicPartition, Failure] = {}
        """Of those partitions whose last attempt failed, and that are tried again."""
        self._attempts: dict[TopicPartition, int] = {}
        self._not_before_s: dict[TopicPartition, float] = {}

    def unreachable(self) -> bool:
        """Whether the last attempt reached no broker for any partition."""
        return bool(self.positions) and all(
            isinstance(self.failures.get(place), Unreachable) for place in self.positions
        )

    def due_in_s(self, now_s: float) -> float:
        """How long `poll` has nothing to ask, since every partition failed a moment ago."""
        return max(0.0, min((self._not_before_s.get(place, now_s) for place in self.positions), default=now_s) - now_s)

    def poll(self, now_s: float) -> list[Event]:
        """What has come by the limits' `max_wait_ms`; records are in the order of their partition's offsets."""
        due = {
            place: offset for place, offset in self.positions.items() if self._not_before_s.get(place, now_s) <= now_s
        }
        if not due:
            return []
        events: list[Event] = []
        answers = self._client.fetch_each(due, self._limits)
        for place, answer in answers.items():  # first, since the records' views end with the client's next call
            if isinstance(answer, Fetched):
                self._forget(place)
                events += self._taken(place, answer)
        for place, answer in answers.items():
            if isinstance(answer, Fetched):
                continue
            if isinstance(answer, ApiError) and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                events += self._moved_into_the_log(place, now_s)
            else:
                events += self._failed(place, answer, now_s)
        for place in due:  # each has its turn to come first where the limits leave no room for all
            if place in self.positions:
                self.positions[place] = self.positions.pop(place)
                break
        return events

    def _taken(self, place: TopicPartition, fetched: Fetched) -> list[Event]:
        position = self.positions[place]
        records: list[Record] = []
        events: list[Event] = []
        try:
            headers = whole_batches(fetched.records, self._check_crcs)
        except MalformedMessage as error:
            return [self._stopped(place, error)]
        for header in visible(headers, fetched, self._limits.isolation):
            try:
                decoded = decode_records(header.buffer, header.position)
            except MalformedMessage as error:
                if records:
                    events.append(Chunk(place, records, header.base_offset, fetched.high_watermark))
                    records = []
                events.append(Skipped(place, max(position, header.base_offset), header.next_offset, str(error)))
                continue
            records += [record for record in decoded if record.offset >= position]
        if headers:
            position = max(position, headers[-1].next_offset)
            self.positions[place] = position
        end = fetched.last_stable_offset if self._limits.isolation == READ_COMMITTED else fetched.high_watermark
        return [*events, Chunk(place, records, position, end if end >= 0 else fetched.high_watermark)]

    def _moved_into_the_log(self, place: TopicPartition, now_s: float) -> list[Event]:
        """The log begins behind the position (retention), or ends before it (an unclean election)."""
        position = self.positions[place]
        target = position
        for timestamp in (EARLIEST, LATEST):
            found = self._client.list_offsets_each({place: timestamp}, self._limits.isolation)[place]
            if not isinstance(found, ListedOffset):
                return self._failed(place, found, now_s)
            target = max(target, found.offset) if timestamp == EARLIEST else min(target, found.offset)
        self.positions[place] = target
        if target > position:
            return [Skipped(place, position, target, "they are not in the log any more")]
        if target < position:
            return [Skipped(place, target, position, f"the log ends at {target}")]
        return []

    def _failed(self, place: TopicPartition, failure: Failure, now_s: float) -> list[Event]:
        attempts = self._attempts[place] = self._attempts.get(place, 0) + 1
        passes = isinstance(failure, Unreachable) or (isinstance(failure, ApiError) and failure.retriable)
        is_unknown = isinstance(failure, ApiError) and failure.code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        )
        if not passes or (is_unknown and attempts >= UNKNOWN_TOPIC_ATTEMPTS):
            return [self._stopped(place, failure)]
        self.failures[place] = failure
        self._not_before_s[place] = now_s + self._backoff.delay_ms(attempts - 1) / 1000
        return []

    def _stopped(self, place: TopicPartition, reason: Failure | MalformedMessage) -> Stopped:
        self._forget(place)
        return Stopped(place, self.positions.pop(place), reason)

    def _forget(self, place: TopicPartition) -> None:
        """All is well again, or over."""
        for kept in (self.failures, self._attempts, self._not_before_s):
            kept.pop(place, None)


def whole_batches(records: memoryview, check_crcs: bool) -> list[BatchHeader]:
    """The headers of the batches that are whole; the last of a fetch may be cut, and is left out.

    Raises MalformedMessage, which names the offset, where the chain of batches breaks or a checksum does not hold.
    """
    headers: list[BatchHeader] = []
    at = expected = 0
    while at + HEADER_BYTES <= len(records):
        header = BatchHeader(records, at)
        if header.magic != MAGIC:
            raise MalformedMessage(f"message format {header.magic} is not supported, only {MAGIC}")
        if header.length < MIN_LENGTH or header.last_offset_delta < 0 or header.base_offset < expected:
            raise MalformedMessage(f"behind offset {expected} is no record batch")
        if at + header.size > len(records):
            break
        if check_crcs and not header.crc_ok():
            raise MalformedMessage(
                f"offsets {header.base_offset} to {header.last_offset}: the CRC-32C is not {header.crc:#010x} as stated"
            )
        headers.append(header)
        at += header.size
        expected = header.next_offset
    return headers
