"""A partition that this broker follows: apply the leader's answers to the log and the replica of the partition."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.replication.replica import Diverged, LeaderHighWatermark, LeftBehind, Role
from tidelog.wire.errors import NotLeaderOrFollower, StorageError

if TYPE_CHECKING:
    from tidelog.log.leader_epochs import EpochEnd
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.wire.errors import ApiError

logger = logging.getLogger("tidelog.fetcher")

EndListener = Callable[["Partition", int, "ApiError"], None]
"""Called when the fetcher has stopped fetching a partition. The arguments are the partition, the leader epoch in which
it was fetched, and the error."""


class FollowedReplica:
    """Implements `FollowedPartition` for one partition."""

    __slots__ = ("_leader_high_watermark", "_on_ended", "_partitions", "index", "partition", "topic", "topic_id")

    def __init__(self, partition: "Partition", partitions: "Partitions", on_ended: EndListener) -> None:
        self.partition = partition
        self.topic = partition.topic
        self.topic_id = partition.topic_id
        self.index = partition.index
        self._partitions = partitions
        self._on_ended = on_ended
        self._leader_high_watermark: int | None = None

    @property
    def log_start_offset(self) -> int:
        return self.partition.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self.partition.log.epochs.latest

    @property
    def is_in_sync(self) -> bool:
        """Whether this log has all records below the high watermark in the leader's last answer."""
        return self._leader_high_watermark is not None and self._leader_high_watermark <= self.log_end_offset

    @property
    def must_sync(self) -> bool:
        log = self.partition.log
        return self.partition.config.durability == "fsync" and log.durable_offset < log.log_end_offset

    @property
    def is_frozen(self) -> bool:
        return self.partition.frozen

    async def wait_until_thawed(self) -> None:
        await self.partition.wait_until_thawed()

    def append_as_follower(self, data: memoryview, leader_epoch: int) -> None:
        self.partition.append_as_follower(data, leader_epoch)

    def follow_log_start(self, offset: int) -> None:
        partition = self.partition
        start_offset = min(offset, partition.high_watermark)
        if start_offset > partition.log.log_start_offset:
            partition.log.delete_before(start_offset)
            self._partitions.update_offsets(partition)

    def set_high_watermark(self, offset: int) -> None:
        self._leader_high_watermark = offset
        self.partition.step(LeaderHighWatermark(self.partition.leader_epoch, offset))

    async def remove_diverging(self, leader_end: "EpochEnd", leader_epoch: int) -> None:
        log = self.partition.log
        own_end = log.epochs.end_offset_for(leader_end.leader_epoch, log.log_end_offset)
        await self._change_log(Diverged(leader_epoch, leader_end, own_end))

    async def restart_at(self, offset: int, leader_epoch: int) -> None:
        await self._change_log(LeftBehind(leader_epoch, offset))

    async def _change_log(self, event: Diverged | LeftBehind) -> None:
        """Start a cut of the replica's log, and wait until the cut has ended."""
        partition, replica = self.partition, self.partition.replica
        if replica.role is not Role.FOLLOWER or replica.leader_epoch != event.leader_epoch:
            raise NotLeaderOrFollower(
                f"this broker does not follow {self.topic}-{self.index} in leader epoch {event.leader_epoch}"
            )
        partition.step(event)
        await self._partitions.cuts.wait(partition)
        if partition.deleted or partition.log.failure is not None:
            raise StorageError(f"{self.topic}-{self.index} is offline or deleted")

    def following_ended(self, error: "ApiError", leader_epoch: int) -> None:
        self._on_ended(self.partition, leader_epoch, error)
