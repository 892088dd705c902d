"""Limits on the bytes per second of replication (KIP-73): one limit for the records that this broker sends to
followers, and one limit for the records that it fetches.

The limit on sent records applies to a partition if the topic setting `leader.replication.throttled.replicas` names
this broker's replica, and only to followers outside the ISR. The limit on fetched records applies if
`follower.replication.throttled.replicas` names this broker's replica, and delays fetches only while this replica is
not in sync. So a limit delays moves and recoveries, but never an acknowledgement.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidelog.quotas.windows import Rate, Window
from tidelog.replication.followed_replica import FollowedReplica

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.replication.followed import FollowedPartition
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Clock

PAUSE_S_MAX: Final = 1.0
"""Longest pause of a throttled partition, in seconds. After the pause the limit is read again, since it may have been
raised."""


@lru_cache(maxsize=1024)
def names_replica(setting: str, partition: int, broker_id: int) -> bool:
    """Return whether a topic's setting names the replica of `partition` on the broker `broker_id`. The value `setting`
    is `*`, or a list of PARTITION:BROKER.
    """
    entries = [entry.strip() for entry in setting.split(",")]
    return entries == ["*"] or f"{partition}:{broker_id}" in entries


class ReplicationRate:
    """The bytes per second of throttled replicas in one direction, and their limit."""

    def __init__(self, clock: "Clock", window: Window, limit: Callable[[], int | None]) -> None:
        """`limit` returns the bytes per second; None for no limit."""
        self._clock = clock
        self._window = window
        self._limit = limit
        self._rate = Rate()

    @property
    def has_limit(self) -> bool:
        return self._limit() is not None

    def record(self, byte_count: int) -> None:
        self._rate.record(byte_count, self._window, self._now_ms())

    def pause_s(self) -> float:
        """Return the seconds until the rate is below the limit, at most PAUSE_S_MAX; 0 if the limit is not exceeded."""
        limit = self._limit()
        if limit is None:
            return 0.0
        if not limit:
            return PAUSE_S_MAX
        return min(self._rate.throttle_ms(limit, self._window, self._now_ms()) / 1000, PAUSE_S_MAX)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def replication_rate(clock: "Clock", config: "BrokerConfig", limit: Callable[[], int | None]) -> ReplicationRate:
    samples, seconds = config.get("replication.quota.window.num"), config.get("replication.quota.window.size.seconds")
    return ReplicationRate(clock, Window(samples, seconds * 1000), limit)


class LeaderThrottle:
    """Limits the bytes that are sent to followers outside the ISR (`leader.replication.throttled.rate`)."""

    def __init__(self, clock: "Clock", config: "BrokerConfig") -> None:
        self._node_id = config.node_id
        self._rate = replication_rate(clock, config, lambda: config.get("leader.replication.throttled.rate"))

    def must_wait(self, partition: "Partition", follower: int) -> bool:
        """Return whether the follower gets no records of the partition now."""
        return self._is_throttled(partition, follower) and self._rate.pause_s() > 0

    def record(self, partition: "Partition", follower: int, byte_count: int) -> None:
        """Count bytes that are sent to a follower."""
        if self._is_throttled(partition, follower):
            self._rate.record(byte_count)

    def _is_throttled(self, partition: "Partition", follower: int) -> bool:
        if not self._rate.has_limit:
            return False
        isr = partition.replica.isr
        setting = partition.config.leader_replication_throttled_replicas
        return (isr is None or follower not in isr.committed) and names_replica(setting, partition.index, self._node_id)


class FollowerThrottle:
    """Limits the bytes that this broker fetches (`follower.replication.throttled.rate`)."""

    def __init__(self, clock: "Clock", config: "BrokerConfig") -> None:
        self._node_id = config.node_id
        self._rate = replication_rate(clock, config, lambda: config.get("follower.replication.throttled.rate"))

    def pause_s(self, partition: "FollowedPartition") -> float:
        if not self._is_throttled(partition) or (isinstance(partition, FollowedReplica) and partition.is_in_sync):
            return 0.0
        return self._rate.pause_s()

    def record(self, partition: "FollowedPartition", byte_count: int) -> None:
        """Count bytes that were fetched. The bytes of in-sync replicas are counted, too, although such replicas do not
        wait.
        """
        if self._is_throttled(partition):
            self._rate.record(byte_count)

    def _is_throttled(self, partition: "FollowedPartition") -> bool:
        if not self._rate.has_limit or not isinstance(partition, FollowedReplica):
            return False
        setting = partition.partition.config.follower_replication_throttled_replicas
        return names_replica(setting, partition.index, self._node_id)
