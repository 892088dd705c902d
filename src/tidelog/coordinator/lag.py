"""Warn about groups that are far behind. The broker checks all groups in rounds, at a bounded cost.

Here the lag of a group is a time: the age of the oldest record that the group has not committed. The age is measured
from the first timestamp of the record's batch, if the record can have been appended at that time. Some producers write
no timestamp, or one that is not the time of the append: seconds instead of milliseconds, or the time of an event that
happened last year. Therefore the rounds also store samples of the partitions' high watermarks, at intervals of at least
BEHIND_MS. A record with an offset below a sampled high watermark was appended before the time of the sample. All other
records are assumed to have been appended after that time.
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

ROUND_INTERVAL_MIN_S = 5.0
"""Minimum pause between two rounds over all groups, in seconds."""
PAUSE_FACTOR = 20
"""The pause after a round, as a multiple of the round's duration. The factor 20 limits the rounds to 5 % of the time of
the broker's thread, even with a million committed offsets."""
HEADER_READS_MAX = 200
"""Upper bound on the batch headers that one round reads. The next rounds read the remaining headers."""
OFFSETS_PER_TURN = 200
"""Committed offsets that a round checks in one turn of the event loop."""
BEHIND_MS = 600_000
"""A group is far behind if its lag is at least this long, in milliseconds. The broker then logs a warning."""
UNUSED_MS = 86_400_000
"""If a group has no members, and its last commit and last change of state are at least this old, in milliseconds, it
is probably no longer used. The broker does not warn about such a group."""
EARLIEST_APPEND_MS = 1_293_840_000_000
"""The beginning of 2011, the year of Kafka's first release. No record can have been appended earlier."""
LINES_PER_ROUND_MAX = 20
"""Upper bound on the warnings of one round."""

PartitionId = tuple[str, int]
"""Topic and partition index."""
Position = tuple[str, int, int]
"""Topic, partition index, and the first offset in the log that the group has not committed."""


class HighWatermark(NamedTuple):
    """The high watermark of a partition, and when it was read."""

    read_ms: int
    offset: int


class HighWatermarks(NamedTuple):
    """Two stored samples of the high watermark of one partition.

    The first sample of a partition is stored as both. When BEHIND_MS have passed since the `last` stored sample, the
    next sample becomes `last`, and the sample that was `last` becomes `previous`.
    """

    previous: HighWatermark
    last: HighWatermark

    def with_sample(self, sample: HighWatermark) -> "HighWatermarks":
        """Return the samples with the new one, or the same samples if `last` is not yet BEHIND_MS old."""
        return HighWatermarks(self.last, sample) if sample.read_ms - self.last.read_ms >= BEHIND_MS else self

    def estimate_append_time(self, offset: int, timestamp_ms: int, now_ms: int) -> int:
        """Return the time at which the record at `offset` was appended, in milliseconds since the epoch.

        The samples show the earliest and the latest time at which the record can have been appended. The result is the
        record's timestamp if it lies between these two times, else the latest time.
        """
        earliest_ms, latest_ms = EARLIEST_APPEND_MS, now_ms
        for sample in (self.last, self.previous):
            if offset < sample.offset:
                latest_ms = sample.read_ms
            else:
                earliest_ms = max(earliest_ms, sample.read_ms)
        return timestamp_ms if earliest_ms <= timestamp_ms <= latest_ms else latest_ms


class GroupLags:
    """The lags of all groups that this broker coordinates."""

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
        self._append_times_ms: dict[Position, int] = {}
        """For each position of a group, the time at which the record at this position was appended. It is estimated
        only once."""
        self._high_watermarks: dict[PartitionId, HighWatermarks] = {}
        """The samples of each partition in which groups have committed offsets."""
        self._warned_groups: dict[str, None] = {}
        """Ids of the groups that are far behind and for which a warning has already been logged."""

    async def run(self) -> None:
        """Run rounds until the task is cancelled."""
        duration_s = 0.0
        while True:
            await self._tasks.sleep(max(ROUND_INTERVAL_MIN_S, PAUSE_FACTOR * duration_s))
            began_s = self._clock.monotonic()
            try:
                await self.run_round()
            except Exception:
                logger.exception("group lag check failed")  # the next round tries again
            duration_s = self._clock.monotonic() - began_s

    async def run_round(self) -> None:
        """Run one round: estimate missing append times, discard the append times of positions that no group has any
        more, and log warnings.
        """
        lag_round = LagRound(self._clock.now_ms(), self._high_watermarks)
        checked_count = line_count = 0
        warned_groups: dict[str, None] = {}
        for group_id, durable in self._groups():
            oldest: tuple[int, Position] | None = None
            last_use_ms = last_change_ms(durable)
            for topic, index, commit in _committed_offsets(durable):
                checked_count += 1
                if checked_count % OFFSETS_PER_TURN == 0:
                    await self._tasks.sleep(0)
                last_use_ms = max(last_use_ms, commit.commit_timestamp)
                partition = self._find_partition(topic, index, commit.topic_id)
                if partition is None:
                    continue
                lag_round.add_sample((topic, index), HighWatermark(self._clock.now_ms(), partition.high_watermark))
                offset = max(commit.offset, partition.log_start_offset)
                if offset >= partition.high_watermark:
                    continue
                position = (topic, index, offset)
                appended_ms = await self._find_append_time(position, partition, lag_round)
                if appended_ms is not None and (oldest is None or appended_ms < oldest[0]):
                    oldest = appended_ms, position
            if oldest is None or lag_round.now_ms - oldest[0] < BEHIND_MS:
                continue
            if not has_members(durable) and lag_round.now_ms - last_use_ms >= UNUSED_MS:
                continue
            if group_id in self._warned_groups:
                warned_groups[group_id] = None
            elif line_count < LINES_PER_ROUND_MAX:
                warned_groups[group_id] = None
                line_count += 1
                self._warn(group_id, oldest[1], (lag_round.now_ms - oldest[0]) // 1000)
        self._append_times_ms = lag_round.append_times_ms
        self._high_watermarks = lag_round.high_watermarks
        self._warned_groups = warned_groups

    async def _find_append_time(self, position: Position, partition: "Partition", lag_round: "LagRound") -> int | None:
        """Return the time at which the record at `position` was appended, in milliseconds; None if it cannot be
        estimated in this round.
        """
        appended_ms = lag_round.append_times_ms.get(position, self._append_times_ms.get(position))
        if appended_ms is None:
            if lag_round.header_reads == HEADER_READS_MAX:
                return None
            lag_round.header_reads += 1
            topic, index, offset = position
            try:
                timestamp_ms = await _timestamp_at(partition, offset, self._tasks)
            except (ApiError, CorruptMessage, OSError):
                return None  # a consumer that reads the record gets the error; the next round tries again
            if timestamp_ms is None:
                return None
            samples = lag_round.high_watermarks[topic, index]
            appended_ms = samples.estimate_append_time(offset, timestamp_ms, self._clock.now_ms())
        lag_round.append_times_ms[position] = appended_ms
        return appended_ms

    def _warn(self, group_id: str, position: Position, seconds: int) -> None:
        topic, index, offset = position
        partition = self._partitions.find(topic, index)
        records = 0 if partition is None else partition.high_watermark - offset
        arguments = (group_id, topic, index, offset, records, seconds)
        logger.warning("group has a long lag group=%s partition=%s-%d offset=%d records=%d seconds=%d", *arguments)

    def _find_partition(self, topic: str, index: int, topic_id: bytes) -> "Partition | None":
        """Return the partition in which a group committed an offset while the topic had the id `topic_id`.

        Returns None if the partition is offline, if the topic was deleted, or if the topic was deleted and created
        again after the commit.
        """
        partition = self._partitions.find(topic, index)
        if partition is None or partition.log.failure is not None:
            return None
        # Commits that are stored in an older version of OffsetCommitValue have no topic id. They are assumed to belong
        # to the present topic.
        return partition if topic_id in (NO_UUID, partition.topic_id) else None


class LagRound:
    """The results of one round so far."""

    def __init__(self, now_ms: int, high_watermarks: dict[PartitionId, HighWatermarks]) -> None:
        self.now_ms = now_ms
        self.header_reads = 0
        """Number of batch headers that the round has read."""
        self.append_times_ms: dict[Position, int] = {}
        """The append time of each position that the round has checked. See `GroupLags._append_times_ms`."""
        self.high_watermarks: dict[PartitionId, HighWatermarks] = {}
        """The samples of each partition that the round has checked."""
        self._samples_before = high_watermarks

    def add_sample(self, partition_id: PartitionId, sample: HighWatermark) -> None:
        """Add a sample of a partition. Only the first sample of each partition in this round has an effect."""
        if partition_id not in self.high_watermarks:
            samples_before = self._samples_before.get(partition_id)
            self.high_watermarks[partition_id] = (
                HighWatermarks(sample, sample) if samples_before is None else samples_before.with_sample(sample)
            )


def has_members(durable: "DurableGroup") -> bool:
    if durable.consumer is not None and durable.consumer.members:
        return True
    return durable.metadata is not None and bool(durable.metadata.members)


def last_change_ms(durable: "DurableGroup") -> int:
    """Return the time at which a classic group last changed its state, for example when its last member left; 0 if
    no record states the time.
    """
    return 0 if durable.metadata is None else max(durable.metadata.current_state_timestamp, 0)


def _committed_offsets(durable: "DurableGroup") -> "Iterator[tuple[str, int, OffsetCommitValue]]":
    """Yield topic, partition index and committed offset. New commits during the iteration are allowed."""
    for topic, partitions in list(durable.offsets.items()):
        for index, commit in list(partitions.items()):
            yield topic, index, commit


async def _timestamp_at(partition: "Partition", offset: int, tasks: "Tasks") -> int | None:
    """Return the first timestamp of the batch that contains `offset`; NO_TIMESTAMP if the producer set none.

    Returns None if the batch cannot be read now. Raises ApiError, CorruptMessage or OSError.
    """
    cold_read = partition.log.cold_read(offset, HEADER_BYTES)
    if cold_read is not None:
        # The header is not in the page cache. A thread reads it into the cache, so that the read below does not make
        # the event loop wait for the disk. The result of the thread's read is not used.
        await tasks.run_blocking(cold_read.run)
    piece = partition.log.read(offset, HEADER_BYTES, partition.high_watermark)
    if piece.file is None:
        return None
    timestamp_ms = BatchHeader(piece.file.pread(HEADER_BYTES, piece.position)).first_timestamp_ms
    return NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
