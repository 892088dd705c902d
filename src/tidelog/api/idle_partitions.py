"""The partitions of a follower's fetch session that have no news. A fetch reads only the partitions that may have
news.

A partition is idle while the follower has the whole log and knows the state of the partition. The follower's requests
do not name an idle partition. Each of these events makes the partition active again:

    - an append, a new high watermark, or a new log start offset
    - a new ISR, a new leader epoch, or a new broker epoch of the follower
    - a log that goes offline or is deleted
    - a request that names the partition
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.replication.isr import FetchTime

if TYPE_CHECKING:
    from tidelog.api.fetch_sessions import FetchItem, FetchSession
    from tidelog.replication.followers import EndWatcher, Follower
    from tidelog.replication.partition import Partition

ABANDONED_MS: Final = 60_000
"""A follower abandons its session when it restarts, for example. If a session has had no request for this time, in
milliseconds, the next event in an idle partition makes all partitions of the session active, so that none of them is
watched any more."""


class CurrentFetch(Protocol):
    """The session's fetch that is not answered yet."""

    def add(self, item: "FetchItem", partition: "Partition", *, wakes: bool) -> None:
        """Remember that this partition has news. If `wakes` is true, a parked fetch must read the partition,
        because this may complete the fetch.
        """


class EndWatchers(Protocol):
    """The part of `PartitionFollowers` that this module uses."""

    def watch_ends(self, watcher: "EndWatcher") -> None: ...
    def unwatch_ends(self, watcher: "EndWatcher") -> None: ...


class IdlePartitions:
    """The idle and the active partitions of one session. The idle partitions are watched."""

    def __init__(self, session: "FetchSession", follower: "Follower", watchers: EndWatchers) -> None:
        self.active: dict[FetchItem, None] = dict.fromkeys(session.items.values())
        """The active partitions, in the order in which they are served."""
        self.current: CurrentFetch | None = None
        self._idle: dict[Partition, FetchItem] = {}
        self._fetch_time = FetchTime()
        """The times of the session's last two requests. Each idle partition's replica has a reference to this object,
        so that a request counts as the follower's fetch of all idle partitions."""
        self._follower = follower
        self._watchers = watchers

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def proved_ms(self) -> int:
        """See `FetchTime.proved_ms`."""
        return self._fetch_time.proved_ms

    def begin(self, follower: "Follower", now_ms: int) -> None:
        """Remember that a request of the session was received. If the follower has a new broker epoch, make all
        partitions active, since its earlier reports are no longer valid.
        """
        self._fetch_time.begin(now_ms)
        if follower != self._follower:
            self._follower = follower
            self._activate_all()

    def use(self, item: "FetchItem") -> None:
        """Make a partition active, because a request has named it."""
        if item.partition is not None and self._idle.get(item.partition) is item:
            self._stop_watching(item.partition)
        self.active.setdefault(item)

    def remove(self, item: "FetchItem") -> None:
        """Remove a partition that a request has removed from the session."""
        if item.partition is not None and self._idle.get(item.partition) is item:
            self._stop_watching(item.partition)
        self.active.pop(item, None)

    def serve_last(self, item: "FetchItem") -> None:
        if item in self.active:
            del self.active[item]
            self.active[item] = None

    def settle(self, items: "Sequence[FetchItem]") -> None:
        """After an answer in which these partitions have no records and no error, make each of them idle if it still
        has no news.
        """
        broker = self._follower.broker_id
        for item in items:
            partition = item.partition
            if partition is None or item not in self.active:
                continue
            isr = partition.replica.isr
            if (
                isr is not None
                and partition.is_served
                and broker in isr.committed
                and isr.proposed is None
                and item.fetch_offset == partition.log.log_end_offset == isr.followers[broker].end_offset
                and item.is_up_to_date(partition)
                and partition not in self._idle
            ):
                if not self._idle:
                    self._watchers.watch_ends(self)
                del self.active[item]
                self._idle[partition] = item
                isr.followers[broker].session = self._fetch_time
                partition.watch(self)

    def moved(self, partition: "Partition") -> None:
        """Make the partition active if it is idle. This may be called within an append."""
        item = self._idle.get(partition)
        if item is None:
            return
        last_request_ms = self._fetch_time.ms
        self._stop_watching(partition)
        self.active[item] = None
        if self.current is not None:
            wakes = not partition.is_served or partition.log.log_end_offset != item.fetch_offset
            self.current.add(item, partition, wakes=wakes)
        if partition.monotonic_ms() - last_request_ms > ABANDONED_MS:
            self._activate_all()

    def close(self) -> None:
        """Stop watching, because the session has ended."""
        self._activate_all()
        self.current = None

    def _activate_all(self) -> None:
        for partition, item in list(self._idle.items()):
            self._stop_watching(partition)
            self.active[item] = None

    def _stop_watching(self, partition: "Partition") -> None:
        del self._idle[partition]
        partition.unwatch(self)
        isr = partition.replica.isr
        follower = None if isr is None else isr.followers.get(self._follower.broker_id)
        if follower is not None and follower.session is self._fetch_time:
            follower.leave_session()
        if not self._idle:
            self._watchers.unwatch_ends(self)
