"""The parts of a broker that a fetcher uses: the followed partition, syncs and the throttle. Pure."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from tidelog.wire.batches import HEADER_BYTES, BatchHeader
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.log.leader_epochs import EpochEnd
    from tidelog.wire.errors import ApiError
    from tidelog.wire.messages.fetch import PartitionData


class FollowedPartition(Protocol):
    """A replica that follows a leader. All methods are called on the event loop.

    The parameter `leader_epoch` is the leader epoch in which the work began. If the replica is no longer a follower in
    this epoch, a method with this parameter does nothing or raises NotLeaderOrFollower.
    """

    topic: str
    topic_id: bytes
    index: int

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int:
        """The latest leader epoch of the log, even if no record has this epoch yet; -1 if the log has no epoch."""

    @property
    def must_sync(self) -> bool:
        """Whether the log must be synced before a fetch request names the log's end. True if the topic has
        `durability=fsync` and some records of the log are not durable yet.
        """

    @property
    def is_frozen(self) -> bool:
        """Whether a fetch request must not name the log's end yet. At the end of a move to another data directory, new
        records are only in the copy, and a start after a crash would use the old log.
        """

    async def wait_until_thawed(self) -> None:
        """Wait until the partition is not frozen."""

    def append_as_follower(self, data: memoryview, leader_epoch: int) -> None:
        """Append whole batches unchanged. `data` is valid only during the call.

        Raises CorruptMessage for the first batch that is damaged or does not begin at the log's end; the batches before
        it are appended. Raises StorageError if the log is offline.
        """

    def follow_log_start(self, offset: int) -> None:
        """Raise the log start offset to the leader's, but not above this replica's high watermark."""

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark to the leader's, but not above the end of this log."""

    async def remove_diverging(self, leader_end: "EpochEnd", leader_epoch: int) -> None:
        """Remove the records that the leader does not have, and the leader epochs that begin at or after the first
        removed offset. The removal is durable when this returns.

        `leader_end` is the leader's answer (KIP-595): the latest leader epoch in the leader's log that is not above
        `latest_epoch`, and the offset at which this epoch ends in the leader's log. The epoch is -1 if only the end of
        the leader's log is known. After the cut, the next answer shows whether more must be removed (KIP-279). Raises
        StorageError if the log is offline or goes offline.
        """

    async def restart_at(self, offset: int, leader_epoch: int) -> None:
        """Make the log empty, remove its leader epochs, and let the log begin at `offset`. The change is durable when
        this returns. Raises StorageError.
        """

    def following_ended(self, error: "ApiError", leader_epoch: int) -> None:
        """Called when the fetcher has stopped fetching the partition because of `error`, which is FencedLeaderEpoch or
        StorageError. Fetching begins again only when the partition is followed again.
        """


Syncs: TypeAlias = Callable[[Sequence[FollowedPartition]], Awaitable[Sequence[FollowedPartition]]]
"""Syncs the logs of some partitions together. Returns the partitions whose sync failed; their logs are offline."""


class FollowerThrottle(Protocol):
    """Limits the rate of replication (`follower.replication.throttled.rate`)."""

    def pause_s(self, partition: FollowedPartition) -> float:
        """Return the seconds until this partition may be fetched; 0 if it may be fetched now."""

    def record(self, partition: FollowedPartition, byte_count: int) -> None:
        """Count fetched bytes."""


class FetchSettings(NamedTuple):
    """The settings of a fetcher. The defaults are Kafka's defaults."""

    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1_000
    timeout_ms: int = 30_000
    """Longest time to wait for an answer, in addition to `wait_max_ms`."""

    @classmethod
    def of(cls, config: "BrokerConfig") -> "FetchSettings":
        return cls(
            partition_bytes_max=config.get("replica.fetch.max.bytes"),
            response_bytes_max=config.get("replica.fetch.response.max.bytes"),
            min_bytes=config.get("replica.fetch.min.bytes"),
            wait_max_ms=config.get("replica.fetch.wait.max.ms"),
            backoff_ms=config.get("replica.fetch.backoff.ms"),
            timeout_ms=config.get("replica.socket.timeout.ms"),
        )


def offset_within_batch(partition: FollowedPartition, data: "PartitionData") -> int | None:
    """Return the first offset of the leader's first batch, if the follower's log is empty and its start offset lies
    within this batch. Return None otherwise. After DeleteRecords, the leader's log start offset may lie within a batch,
    and the leader still sends this whole batch.
    """
    start: int = partition.log_start_offset
    records: Any = data.records
    if partition.log_end_offset != start or records is None or len(records) < HEADER_BYTES:
        return None
    header = BatchHeader(records)
    return header.base_offset if header.base_offset < start <= header.last_offset else None


def has_news(data: "PartitionData") -> bool:
    """Return whether the answer for a partition has records, an error or a diverging epoch. A leader sends such an
    answer immediately.
    """
    return bool(data.records) or data.error_code != ErrorCode.NONE or data.diverging_epoch is not None
