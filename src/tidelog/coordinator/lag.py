"""How far every group is behind, kept by the broker itself: for groups with members and for those that nobody runs.

Records behind are the log's end minus the committed offset, at the moment when it is asked for. Time behind is the age
of the oldest record that is not committed; its timestamp is that of the batch in which it stands, read from the log
now and then, at a bounded pace, and kept for as long as it counts.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.wire.batches import HEADER_BYTES, BatchHeader
from tidelog.wire.errors import ApiError, CorruptMessage
from tidelog.wire.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.coordinator.group.durable import DurableGroup
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Clock, Tasks

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
LINES_MAX = 20
"""Of one round."""

UNKNOWN_MS = -1

Place = tuple[str, int]
"""Topic, partition."""
Start = tuple[str, int, int]
"""Topic, partition, and the first offset that is not committed and still in the log."""


class PartitionLag(NamedTuple):
    records: int
    """Between what is committed, or the log's start where that is later, and the high watermark."""
    oldest_ms: int
    """Timestamp of the oldest of them (its batch's first); UNKNOWN_MS when there is none, or it is not known yet."""


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
        self._times: dict[Start, int | None] = {}
        self._behind: dict[str, None] = {}

    def of(self, durable: "DurableGroup") -> dict[Place, PartitionLag]:
        """Every partition in which the group has committed and that is there."""
        lags = {}
        for topic, partitions in durable.offsets.items():
            for index, value in partitions.items():
                partition = self._find(topic, index, value.topic_id)
                if partition is None:
                    continue
                start = max(value.offset, partition.log_start_offset)
                records = max(partition.high_watermark - start, 0)
                time_ms = self._times.get((topic, index, start)) if records else None
                lags[topic, index] = PartitionLag(records, UNKNOWN_MS if time_ms is None else time_ms)
        return lags

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
        """One round: find the timestamps that are missing, forget those that do not count any more."""
        times: dict[Start, int | None] = {}
        behind: dict[str, None] = {}
        reads = looked = lines = 0
        for group_id, durable in self._groups():
            oldest: tuple[Start, PartitionLag] | None = None
            for topic, index, offset, topic_id in _committed(durable):
                looked += 1
                if looked % PLACES_PER_TURN == 0:
                    await self._tasks.sleep(0)
                partition = self._find(topic, index, topic_id)
                if partition is None:
                    continue
                start = (topic, index, max(offset, partition.log_start_offset))
                if start[2] >= partition.high_watermark:
                    continue
                if start not in times:
                    if start in self._times:
                        times[start] = self._times[start]
                    elif reads < READS_MAX:
                        reads += 1
                        try:
                            times[start] = await _timestamp_at(partition, start[2], self._tasks)
                        except (ApiError, CorruptMessage, OSError):
                            continue  # who reads it as a consumer is told why; the next round tries again
                    else:
                        continue
                time_ms = times[start]
                if time_ms is not None and (oldest is None or time_ms < oldest[1].oldest_ms):
                    oldest = start, PartitionLag(partition.high_watermark - start[2], time_ms)
            if oldest is not None and self._clock.now_ms() - oldest[1].oldest_ms >= BEHIND_MS:
                if group_id in self._behind or lines < LINES_MAX:
                    behind[group_id] = None
                if group_id not in self._behind and lines < LINES_MAX:
                    lines += 1
                    _tell(group_id, *oldest, self._clock.now_ms())
        self._times = times
        self._behind = behind

    def _find(self, topic: str, index: int, topic_id: bytes) -> "Partition | None":
        """None for a partition that is gone, is offline, or was made anew since the commit."""
        partition = self._partitions.find(topic, index)
        if partition is None or partition.log.failure is not None:
            return None
        return partition if topic_id in (NO_UUID, partition.topic_id) else None


def _committed(durable: "DurableGroup") -> Iterator[tuple[str, int, int, bytes]]:
    """Topic, partition, offset and topic id; commits may come in between."""
    for topic, partitions in list(durable.offsets.items()):
        for index, value in list(partitions.items()):
            yield topic, index, value.offset, value.topic_id


async def _timestamp_at(partition: "Partition", offset: int, tasks: "Tasks") -> int | None:
    """The first timestamp of the batch that holds `offset`; None if it has none. Raises ApiError, CorruptMessage,
    OSError.
    """
    cold = partition.log.cold_read(offset, HEADER_BYTES)
    if cold is not None:
        await tasks.run_blocking(cold.run)
    piece = partition.log.read(offset, HEADER_BYTES, partition.high_watermark)
    if piece.file is None:
        return None
    return BatchHeader(piece.file.pread(HEADER_BYTES, piece.position)).first_timestamp_ms


def _tell(group_id: str, start: Start, behind: PartitionLag, now_ms: int) -> None:
    topic, index, offset = start
    seconds = (now_ms - behind.oldest_ms) // 1000
    told = (group_id, topic, index, offset, behind.records, seconds)
    logger.warning("group is behind group=%s partition=%s-%d offset=%d records=%d seconds=%d", *told)
