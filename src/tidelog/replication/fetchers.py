"""All fetchers of this broker: up to `num.replica.fetchers` for each leader from which this broker fetches."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from tidelog.replication.fetcher import Fetcher
from tidelog.replication.followed_replica import FollowedReplica
from tidelog.replication.replica import FetchFrom, Role
from tidelog.wire.errors import FencedLeaderEpoch

if TYPE_CHECKING:
    from tidelog.client.channel import Channel
    from tidelog.replication.followed import FetchSettings, FollowedPartition, FollowerThrottle
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime
    from tidelog.wire.errors import ApiError

logger = logging.getLogger("tidelog.fetcher")

FOLLOW_AGAIN_S: Final = 1.0
"""Pause, in seconds, until a partition is followed again after its log had an error. The error may be temporary."""

Connect = Callable[[int, int], "Channel | None"]
"""Called with a broker's id and the number of the fetcher. Returns a new channel, or None if the broker's address is
not known."""


class _FetcherKey(NamedTuple):
    leader: int
    number: int


class _Followed(NamedTuple):
    fetcher: Fetcher
    replica: FollowedReplica
    leader_epoch: int


class Fetchers:
    """Fetches each followed partition from its leader. All methods are called on the event loop."""

    def __init__(
        self,
        runtime: "Runtime",
        partitions: "Partitions",
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        connect: Connect,
        settings: "FetchSettings",
        fetchers_per_leader: Callable[[], int],
        throttle: "FollowerThrottle | None" = None,
    ) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._connect = connect
        self._settings = settings
        self._fetchers_per_leader = fetchers_per_leader
        self._throttle = throttle
        self._fetchers: dict[_FetcherKey, Fetcher] = {}
        self._followed: dict[Partition, _Followed] = {}
        self._waiting: dict[Partition, FetchFrom] = {}
        """Partitions to follow when `start` is called, or when the address of their leader becomes known."""
        self._stop_tasks: dict[asyncio.Task[None], None] = {}
        self._started = False
        self._stopped = False

    def start(self) -> None:
        """Start fetching. This broker must be registered already."""
        self._started = True
        self._follow_waiting()

    async def stop(self) -> None:
        """Stop all fetchers, and wait for their running syncs and cuts of logs."""
        self._stopped = True
        for key in list(self._fetchers):
            self._stop_fetcher(key)
        while self._stop_tasks:
            await asyncio.wait([*self._stop_tasks])

    def follow(self, partition: "Partition", effect: FetchFrom) -> None:
        """Fetch the partition from its leader, in its leader epoch."""
        if self._stopped:
            return
        fetcher = None
        if self._started:
            number = (crc32(partition.topic.encode()) + partition.index) % max(self._fetchers_per_leader(), 1)
            fetcher = self._fetcher(_FetcherKey(effect.leader, number))
        earlier = self._followed.get(partition)
        if earlier is not None and earlier.fetcher is fetcher and earlier.leader_epoch == effect.leader_epoch:
            # This method is also called after each cut of the log. The fetcher counts the cuts, so it must not forget
            # the partition here.
            earlier.fetcher.follow(earlier.replica, effect.leader_epoch)
            return
        self.unfollow(partition)
        if fetcher is None:
            self._waiting[partition] = effect
            return
        replica = FollowedReplica(partition, self._partitions, self._following_ended)
        self._followed[partition] = _Followed(fetcher, replica, effect.leader_epoch)
        fetcher.follow(replica, effect.leader_epoch)

    def unfollow(self, partition: "Partition") -> None:
        """Stop fetching the partition. From now on, no answer changes its log. Nothing happens if it is not fetched."""
        self._waiting.pop(partition, None)
        followed = self._followed.pop(partition, None)
        if followed is not None:
            followed.fetcher.unfollow(followed.replica)

    def _fetcher(self, key: _FetcherKey) -> Fetcher | None:
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            channel = self._connect(*key)
            if channel is None:
                return None
            fetcher = self._fetchers[key] = Fetcher(
                self._runtime,
                channel,
                leader_id=key.leader,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                sync=self._sync,
                settings=self._settings,
                throttle=self._throttle,
            )
            fetcher.start()
        return fetcher

    def _stop_fetcher(self, key: _FetcherKey) -> None:
        task = self._runtime.tasks.spawn(self._fetchers.pop(key).stop(), name="fetcher-stop")
        self._stop_tasks[task] = None
        task.add_done_callback(lambda ended: self._stop_tasks.pop(ended, None))

    def stop_idle(self) -> None:
        """Stop the fetchers that have no partition."""
        for key, fetcher in list(self._fetchers.items()):
            if not len(fetcher):
                self._stop_fetcher(key)

    def addresses_changed(self, broker_ids: Sequence[int]) -> None:
        """Connect again to the leaders among these brokers, whose addresses have changed. Also follow the partitions
        that waited for an address.
        """
        for key in list(self._fetchers):
            if key.leader in broker_ids:
                fetcher = self._fetchers[key]
                self._stop_fetcher(key)
                for partition, followed in list(self._followed.items()):
                    if followed.fetcher is fetcher:
                        self._follow_again(partition)
        self._follow_waiting()

    def _follow_waiting(self) -> None:
        if self._started:
            waiting, self._waiting = self._waiting, {}
            for partition, effect in waiting.items():
                self.follow(partition, effect)

    def _follow_again(self, partition: "Partition") -> None:
        replica = partition.replica
        if replica.role is Role.FOLLOWER and not partition.deleted and partition.log.failure is None:
            self.follow(partition, FetchFrom(replica.leader, replica.leader_epoch))

    async def _sync(self, followed: "Sequence[FollowedPartition]") -> "Sequence[FollowedPartition]":
        replicas = [item for item in followed if isinstance(item, FollowedReplica)]
        await self._partitions.flusher.sync_to_ends([replica.partition for replica in replicas])
        return [replica for replica in replicas if replica.must_sync]  # their sync has failed

    def _following_ended(self, partition: "Partition", leader_epoch: int, error: "ApiError") -> None:
        """Follow the partition again later, since the error of its log may be temporary. After FencedLeaderEpoch, no
        new attempt is planned here: the metadata will name a newer epoch, and then `follow` is called.
        """
        self.unfollow(partition)
        if isinstance(error, FencedLeaderEpoch) or self._stopped:
            return
        self._runtime.tasks.call_later(FOLLOW_AGAIN_S, self._follow_in_epoch, partition, leader_epoch)

    def _follow_in_epoch(self, partition: "Partition", leader_epoch: int) -> None:
        if partition.leader_epoch == leader_epoch and partition not in self._followed:
            self._follow_again(partition)
