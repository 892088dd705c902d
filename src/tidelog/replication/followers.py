"""The followers of the partitions that this broker leads. Their fetch requests report the ends of their logs."""

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

ONLINE_CHECK_S: Final = 0.5
"""Interval, in seconds, at which a request that waits for followers checks which of them are online."""


class Follower(NamedTuple):
    """The broker that sent a fetch request as a follower."""

    broker_id: int
    broker_epoch: int
    """The epoch of its registration (KIP-903); -1 in requests before version 15."""


class EndWatcher(Protocol):
    """A follower's fetch that waits for records."""

    def moved(self, partition: "Partition") -> None:
        """Called when the log of a partition has a new end or a new start, when the ISR of a partition has changed, or
        when a partition is deleted or goes offline. Since it may be called during an append, it must only record the
        event. It may be called for any partition.
        """


class PartitionFollowers:
    """Receives the offsets that followers report, and passes them to the replicas of the partitions."""

    def __init__(self, partitions: "Partitions", runtime: "Runtime", throttle: LeaderThrottle) -> None:
        self._throttle = throttle
        self._watchers = partitions.shared.end_watchers
        self._tasks = runtime.tasks
        self._monotonic = runtime.clock.monotonic
        self._awaited_starts: dict[Partition, asyncio.Future[None]] = {}
        """Partitions with requests that wait for the log start offsets of their followers."""

    def fetched(
        self, partition: "Partition", follower: Follower, fetch_offset: int, log_start_offset: int, proved_ms: int
    ) -> None:
        """Process a follower's fetch from the partition. The fetch shows that the follower has all records below
        `fetch_offset`, and that the follower's log begins at `log_start_offset` (-1 if the request does not name this
        offset). The follower sent the request after `proved_ms` (see `isr.FetchTime`).

        This may move the high watermark. Raises NotLeaderOrFollower if this broker does not lead the partition, or
        if the follower is not one of its replicas or names a stale broker epoch.
        """
        broker, broker_epoch = follower
        isr = partition.replica.isr
        last_state = None if isr is None else isr.followers.get(broker)
        if last_state is None or broker_epoch < last_state.broker_epoch:
            raise NotLeaderOrFollower(
                f"broker {broker} with epoch {broker_epoch} is no follower of {partition.topic}-{partition.index}"
            )
        partition.step(
            FollowerFetched(partition.leader_epoch, broker, broker_epoch, fetch_offset, log_start_offset, proved_ms)
        )
        awaited = self._awaited_starts.get(partition)
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    async def wait_for_log_start(
        self, partition: "Partition", offset: int, is_online: Callable[[int], bool], timeout_s: float
    ) -> int:
        """Wait until the log start offsets of all online followers are at least `offset`, and return the lowest of
        these offsets. If no follower is online, the leader's log start offset is used instead. Raises
        NotLeaderOrFollower, StorageError and RequestTimedOut.
        """
        deadline_s = self._monotonic() + timeout_s
        while True:
            partition.check_online()
            low_watermark = _low_watermark(partition, is_online)
            if low_watermark >= offset:
                return low_watermark
            remaining_s = deadline_s - self._monotonic()
            if remaining_s <= 0:
                raise RequestTimedOut(
                    f"a follower's log of {partition.topic}-{partition.index} still begins at offset {low_watermark}"
                )
            awaited = self._awaited_starts.get(partition)
            if awaited is None or awaited.done():
                awaited = self._awaited_starts[partition] = self._tasks.future()
            await asyncio.wait([awaited], timeout=min(remaining_s, ONLINE_CHECK_S))
            if self._awaited_starts.get(partition) is awaited:
                del self._awaited_starts[partition]

    def must_wait(self, partition: "Partition", broker: int) -> bool:
        """Return whether the throttle forbids sending records of the partition to this follower now."""
        return self._throttle.must_wait(partition, broker)

    def sent(self, partition: "Partition", broker: int, byte_count: int) -> None:
        """Count bytes of the partition's records that were sent to this follower."""
        self._throttle.record(partition, broker, byte_count)

    def watch_ends(self, watcher: EndWatcher) -> None:
        """Call `watcher.moved` from now on; see `EndWatcher.moved`."""
        self._watchers[watcher] = None

    def unwatch_ends(self, watcher: EndWatcher) -> None:
        """Stop calling `watcher`. Nothing happens if it is not registered."""
        self._watchers.pop(watcher, None)


def _low_watermark(partition: "Partition", is_online: Callable[[int], bool]) -> int:
    isr = partition.replica.isr
    assert isr is not None
    starts = [f.log_start_offset for broker, f in isr.followers.items() if is_online(broker)]
    return min(starts, default=partition.log_start_offset)
