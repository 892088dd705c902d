"""Which groups have fallen far behind: the broker looks now and then, at a bounded pace, and says so in its log.

Time behind is the age of the oldest record that the group has not committed. The first timestamp of the record's batch
counts as the time when it was appended, if the record can have been appended then. Producers also write timestamps
that are no such time: none at all, seconds where milliseconds are asked for, or the time of events of last year. Each
round notes where the logs end, so that for most records it is known between which rounds they were appended.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.wire.batches import HEADER_BYTES, BatchHeader
from tidelog.wire.errors import ApiError, CorruptMessage
from tidelog.wire.primitives import NO_UUID
from tidelog.wire.records import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.coordinator.group.durable import DurableGroup
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Clock, Tasks
    from tidelog.wire.messages.group_records import OffsetCommitValue

logger = logging.getLogger("tidelog.coordinator")

LOOK_S = 5.0
"""Between two rounds over all groups, at the least."""
REST_TIMES = 20
"""A rest is so many times as long as the round before it, so that a million committed offsets cost no more than 5 % of
the broker's thread."""
READS_MAX = 200
"""Batches of which a round reads the header; what is left has to wait for the next one."""
PLACES_PER_TURN = 200
"""Committed offsets that a round looks at in one turn of the loop."""
BEHIND_MS = 600_000
"""A group that is so far behind is worth a line."""
UNUSED_MS = 86_400_000
"""A group that has no members and has not committed for so long is not worth one any more: nobody waits for it."""
EARLIEST_MS = 1_293_840_000_000
"""The beginning of 2011, the year of Kafka's first release: no record was appended before."""
LINES_MAX = 20
"""Of one round."""

Place = tuple[str, int]
"""Topic, partition."""
Start = tuple[str, int, int]
"""Topic, partition, and the first offset that is not committed and still in the log."""


class LogEnd(NamedTuple):
    """A high watermark, and when it was seen."""

    seen_ms: int
    offset: int


class LogEnds(NamedTuple):
    """Two high watermarks of one partition. `later` is up to BEHIND_MS old, `earlier` was seen as long before it."""

    earlier: LogEnd
    later: LogEnd

    def after(self, end: LogEnd) -> "LogEnds":
        return LogEnds(self.later, end) if end.seen_ms - self.later.seen_ms >= BEHIND_MS else self

    def appended_ms(self, offset: int, timestamp_ms: int, now_ms: int) -> int:
        """When the record was appended: its timestamp, if that can be, or the latest time that can be."""
        begin_ms, end_ms = EARLIEST_MS, now_ms
        for end in (self.later, self.earlier):
            if offset < end.offset:
                end_ms = end.seen_ms
            else:
                begin_ms = max(begin_ms, end.seen_ms)
        return timestamp_ms if begin_ms <= timestamp_ms <= end_ms else end_ms


class GroupLags:
    """`groups` gives the groups of this broker with what they have committed."""

    def __init__(
        self,
        partitions: "Partitions",
        clock: "Clock",
        tasks: "Tasks",
        groups: "Callable[[], Iterable[tuple[str, DurableGroup]]]",
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._tasks = tasks
        self._groups = groups
        self._appended_ms: dict[Start, int] = {}
        """When the records were appended at which groups stand. Looked up once for as long as a group stands there."""
        self._ends: dict[Place, LogEnds] = {}
        """Of the partitions in which groups have committed."""
        self._behind: dict[str, None] = {}
        """Groups that are far behind, and that has been said."""

    async def keep(self) -> None:
        """Round after round, until it is cancelled."""
        seconds = 0.0
        while True:
            await self._tasks.sleep(max(LOOK_S, REST_TIMES * seconds))
            began = self._clock.monotonic()
            try:
                await self.look()
            except Exception:
                logger.exception("lag is not known")  # and is looked for again the next time
            seconds = self._clock.monotonic() - began

    async def look(self) -> None:
        """One round: find the times that are missing, forget those that do not count any more."""
        round_ = Round(self._clock.now_ms(), self._ends)
        looked = lines = 0
        behind: dict[str, None] = {}
        for group_id, durable in self._groups():
            oldest: tuple[int, Start] | None = None
            used_ms = last_change_ms(durable)
            for topic, index, value in _committed(durable):
                looked += 1
                if looked % PLACES_PER_TURN == 0:
                    await self._tasks.sleep(0)
                used_ms = max(used_ms, value.commit_timestamp)
                partition = self._find(topic, index, value.topic_id)
                if partition is None:
                    continue
                round_.note_end((topic, index), LogEnd(self._clock.now_ms(), partition.high_watermark))
                start = (topic, index, max(value.offset, partition.log_start_offset))
                if start[2] >= partition.high_watermark:
                    continue
                appended_ms = await self._appended(start, partition, round_)
                if appended_ms is not None and (oldest is None or appended_ms < oldest[0]):
                    oldest = appended_ms, start
            if oldest is None or round_.now_ms - oldest[0] < BEHIND_MS:
                continue
            if not has_members(durable) and round_.now_ms - used_ms >= UNUSED_MS:
                continue
            if group_id in self._behind:
                behind[group_id] = None
            elif lines < LINES_MAX:
                behind[group_id] = None
                lines += 1
                self._say(group_id, oldest[1], (round_.now_ms - oldest[0]) // 1000)
        self._appended_ms = round_.appended_ms
        self._ends = round_.ends
        self._behind = behind

    async def _appended(self, start: Start, partition: "Partition", round_: "Round") -> int | None:
        """When the record at `start` was appended; None while that is not known."""
        appended_ms = round_.appended_ms.get(start, self._appended_ms.get(start))
        if appended_ms is None:
            if round_.reads == READS_MAX:
                return None
            round_.reads += 1
            topic, index, offset = start
            try:
                timestamp_ms = await _timestamp_at(partition, offset, self._tasks)
            except (ApiError, CorruptMessage, OSError):
                return None  # who reads it as a consumer is told why; the next round tries again
            if timestamp_ms is None:
                return None
            appended_ms = round_.ends[topic, index].appended_ms(offset, timestamp_ms, self._clock.now_ms())
        round_.appended_ms[start] = appended_ms
        return appended_ms

    def _say(self, group_id: str, start: Start, seconds: int) -> None:
        topic, index, offset = start
        partition = self._partitions.find(topic, index)
        records = 0 if partition is None else partition.high_watermark - offset
        line = (group_id, topic, index, offset, records, seconds)
        logger.warning("group is behind group=%s partition=%s-%d offset=%d records=%d seconds=%d", *line)

    def _find(self, topic: str, index: int, topic_id: bytes) -> "Partition | None":
        """None for a partition that is gone, is offline, or was made anew since the commit."""
        partition = self._partitions.find(topic, index)
        if partition is None or partition.log.failure is not None:
            return None
        return partition if topic_id in (NO_UUID, partition.topic_id) else None


class Round:
    """What one look over all groups has found so far."""

    def __init__(self, now_ms: int, ends: dict[Place, LogEnds]) -> None:
        self.now_ms = now_ms
        self.reads = 0
        """Batches of which it has read the header."""
        self.appended_ms: dict[Start, int] = {}
        self.ends: dict[Place, LogEnds] = {}
        self._ends_before = ends

    def note_end(self, place: Place, end: LogEnd) -> None:
        if place not in self.ends:
            before = self._ends_before.get(place)
            self.ends[place] = LogEnds(end, end) if before is None else before.after(end)


def has_members(durable: "DurableGroup") -> bool:
    if durable.consumer is not None and durable.consumer.members:
        return True
    return durable.metadata is not None and bool(durable.metadata.members)


def last_change_ms(durable: "DurableGroup") -> int:
    """When a classic group last changed: its last member left, say. 0 where that is not written."""
    return 0 if durable.metadata is None else max(durable.metadata.current_state_timestamp, 0)


def _committed(durable: "DurableGroup") -> "Iterator[tuple[str, int, OffsetCommitValue]]":
    """Topic, partition, and what was committed; commits may come in between."""
    for topic, partitions in list(durable.offsets.items()):
        for index, value in list(partitions.items()):
            yield topic, index, value


async def _timestamp_at(partition: "Partition", offset: int, tasks: "Tasks") -> int | None:
    """The first timestamp of the batch that holds `offset`; NO_TIMESTAMP where the producer gave none, None if it
    cannot be read now. Raises ApiError, CorruptMessage, OSError.
    """
    cold = partition.log.cold_read(offset, HEADER_BYTES)
    if cold is not None:
        await tasks.run_blocking(cold.run)
    piece = partition.log.read(offset, HEADER_BYTES, partition.high_watermark)
    if piece.file is None:
        return None
    timestamp_ms = BatchHeader(piece.file.pread(HEADER_BYTES, piece.position)).first_timestamp_ms
    return NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
