"""The parts of a broker that a fetcher uses: the followed partition, syncs and the throttle. Pure."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from tidelog.log.leader_epochs import UNDEFINED_EPOCH

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.log.leader_epochs import EpochEnd
    from tidelog.wire.errors import ApiError
    from tidelog.wire.messages.fetch import EpochEndOffset


class FollowedPartition(Protocol):
    """A replica that follows a leader. All methods are called on the event loop.

    Methods with a `leader_epoch` get the epoch in which their work began. They do nothing, or raise
    NotLeaderOrFollower, if the replica is no longer a follower in this epoch.
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
        """The latest leader epoch of the log, even if it has no record yet; -1 if the log has no epoch."""

    @property
    def must_sync(self) -> bool:
        """Whether fetched records must be durable before a request names an offset behind them
        (`durability=fsync`).
        """

    def end_offset_for(self, leader_epoch: int) -> "EpochEnd":
        """Return the last epoch of this log up to `leader_epoch`, and its exclusive end offset; (-1, -1) if
        unknown.
        """

    def append_as_follower(self, data: memoryview, leader_epoch: int) -> None:
        """Append whole batches unchanged. `data` is valid only during the call.

        Raises CorruptMessage for the first batch that is damaged or that does not follow the log's end (the batches
        before it are appended), and StorageError if the log is offline.
        """

    def follow_log_start(self, offset: int) -> None:
        """Take over the leader's log start offset, as far as this replica's high watermark allows."""

    def set_high_watermark(self, offset: int) -> None:
        """Take over the leader's high watermark, as far as this log reaches."""

    async def cut(self, offset: int, leader_epoch: int) -> None:
        """Remove every record from `offset` on, and every leader epoch that begins there or later, durably.

        `offset` may be the log's end: a replica that led without appending a record has such an epoch. Raises
        StorageError if the log is or goes offline.
        """

    async def restart_at(self, offset: int, leader_epoch: int) -> None:
        """Make the log empty and forget its leader epochs, durably, and let it begin at `offset`. Raises
        StorageError.
        """

    def following_ended(self, error: "ApiError", leader_epoch: int) -> None:
        """The partition is no longer fetched, until it is followed in a new epoch: FencedLeaderEpoch or StorageError
        is the reason.
        """


Syncs: TypeAlias = Callable[[Sequence[FollowedPartition]], Awaitable[Sequence[FollowedPartition]]]
"""Syncs the logs of some partitions in one group. Returns the partitions whose sync failed; their logs are offline."""


class FollowerThrottle(Protocol):
    """Limits the rate of replication (`follower.replication.throttled.rate`)."""

    def pause_s(self, partition: FollowedPartition) -> float:
        """Return the seconds until this partition may be fetched; 0 if it may be fetched now."""

    def record(self, partition: FollowedPartition, byte_count: int) -> None:
        """Count fetched bytes."""


class FetchSettings(NamedTuple):
    """The settings of a fetcher. The defaults are those of Kafka."""

    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1_000
    timeout_ms: int = 30_000
    """Limit for an answer, in addition to `wait_max_ms`."""

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


def cut_offset(partition: FollowedPartition, diverging: "EpochEndOffset") -> int:
    """Return the offset from which the follower must remove its records (KIP-101, KIP-279).

    `diverging` is the leader's answer: the last of its epochs up to the follower's last one, and where that epoch ends
    in its log. If the follower's log does not have this epoch, the epoch before it ends the common part, as far as the
    follower can tell; the next answer of the leader shows whether more must be removed.
    """
    own = partition.end_offset_for(diverging.epoch)
    if own.leader_epoch == UNDEFINED_EPOCH:
        offset = diverging.end_offset
    elif own.leader_epoch == diverging.epoch:
        offset = min(own.end_offset, diverging.end_offset)
    else:
        offset = own.end_offset
    return min(offset, partition.log_end_offset)
