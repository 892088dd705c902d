"""The followers of the partitions that this broker leads: their fetches say how far their logs reach."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.replication.replica import FollowerFetched
from tidelog.replication.throttles import LeaderThrottle
from tidelog.wire.errors import NotLeaderOrFollower, RequestTimedOut

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

LOOK_S: Final = 0.5
"""A request that waits for followers sees after this time, in seconds, that one of them is offline now."""


class Follower(NamedTuple):
    """The broker that sent a request."""

    broker_id: int
    broker_epoch: int
    """The epoch of its registration (KIP-903); -1 before v15."""


class EndWatcher(Protocol):
    """A follower's fetch that waits for records."""

    def moved(self, partition: "Partition") -> None:
        """The log of this partition has a new end, or the partition is deleted or offline. This is called during an
        append, so it only records the event. It may be called for any partition.
        """


class PartitionFollowers:
    """Passes what followers report to the replicas of the partitions."""

    def __init__(self, partitions: "Partitions", runtime: "Runtime", throttle: LeaderThrottle) -> None:
        self._throttle = throttle
        self._watchers = partitions.shared.end_watchers
        self._tasks = runtime.tasks
        self._monotonic = runtime.clock.monotonic
        self._awaited_starts: dict[Partition, asyncio.Future[None]] = {}
        """Partitions with requests that wait for the log start offsets of their followers."""

    def fetched(self, partition: "Partition", follower: Follower, fetch_offset: int, log_start_offset: int) -> None:
        """A follower has everything below `fetch_offset`, and its log begins at `log_start_offset` (-1: not said).

        This may move the high watermark. Raises NotLeaderOrFollower if the broker is not a replica of the partition or
        its epoch is stale.
        """
        broker, broker_epoch = follower
        isr = partition.replica.isr
        known = None if isr is None else isr.followers.get(broker)
        if known is None or broker_epoch < known.broker_epoch:
            raise NotLeaderOrFollower(
                f"broker {broker} with epoch {broker_epoch} is no follower of {partition.topic}-{partition.index}"
            )
        partition.step(FollowerFetched(partition.leader_epoch, broker, broker_epoch, fetch_offset, log_start_offset))
        awaited = self._awaited_starts.get(partition)
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    async def wait_for_log_start(
        self, partition: "Partition", offset: int, is_online: Callable[[int], bool], timeout_s: float
    ) -> int:
        """Wait until the logs of all online replicas begin at `offset` or behind it, and return the lowest of their
        log start offsets. Raises NotLeaderOrFollower, StorageError and RequestTimedOut.
        """
        ends_s = self._monotonic() + timeout_s
        while True:
            partition.check_online()
            low_watermark = _low_watermark(partition, is_online)
            if low_watermark >= offset:
                return low_watermark
            remaining_s = ends_s - self._monotonic()
            if remaining_s <= 0:
                raise RequestTimedOut(f"a follower of {partition.topic}-{partition.index} begins at {low_watermark}")
            awaited = self._awaited_starts.get(partition)
            if awaited is None or awaited.done():
                awaited = self._awaited_starts[partition] = self._tasks.future()
            await asyncio.wait([awaited], timeout=min(remaining_s, LOOK_S))
            if self._awaited_starts.get(partition) is awaited:
                del self._awaited_starts[partition]

    def must_wait(self, partition: "Partition", broker: int) -> bool:
        """Return whether the limit on replication forbids to send records of the partition to this follower now."""
        return self._throttle.must_wait(partition, broker)

    def sent(self, partition: "Partition", broker: int, byte_count: int) -> None:
        """Records of the partition were sent to this follower."""
        self._throttle.record(partition, broker, byte_count)

    def watch_ends(self, watcher: EndWatcher) -> None:
        """Call `watcher.moved` whenever the log of a partition with followers has a new end."""
        self._watchers[watcher] = None

    def unwatch_ends(self, watcher: EndWatcher) -> None:
        """Stop the calls. Nothing happens if `watcher` does not watch."""
        self._watchers.pop(watcher, None)


def _low_watermark(partition: "Partition", is_online: Callable[[int], bool]) -> int:
    isr = partition.replica.isr
    assert isr is not None
    starts = [f.log_start_offset for broker, f in isr.followers.items() if is_online(broker)]
    return min(starts, default=partition.log_start_offset)
