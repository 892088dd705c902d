"""The followers of the partitions that this broker leads: their fetches say how far their logs reach."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.replication.replica import FollowerFetched
from tidelog.wire.errors import NotLeaderOrFollower

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions


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

    def __init__(self, partitions: "Partitions") -> None:
        self._watchers = partitions.shared.end_watchers

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

    def watch_ends(self, watcher: EndWatcher) -> None:
        """Call `watcher.moved` whenever the log of a partition with followers has a new end."""
        self._watchers[watcher] = None

    def unwatch_ends(self, watcher: EndWatcher) -> None:
        """Stop the calls. Nothing happens if `watcher` does not watch."""
        self._watchers.pop(watcher, None)
