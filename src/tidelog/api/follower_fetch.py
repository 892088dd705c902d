"""The leader's side of Fetch requests from followers: read up to the end of the log, and report the followers' offsets
to this broker's replicas of the partitions.

While `Services.followers` is None, the broker has no followers and refuses such requests.
"""

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.api.fetch import WIDE_ITEMS, Fetch
from tidelog.api.fetch_sessions import FetchContext, FetchItem, items_in_steps
from tidelog.api.idle_partitions import IdlePartitions
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.api.wide_fetch import ITEMS_PER_STEP, WideFetch
from tidelog.model.steps import Steps, run_all
from tidelog.replication.followers import EndWatcher, Follower
from tidelog.replication.partition import READ_UNCOMMITTED
from tidelog.wire.errors import ApiError, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidelog.api.fetch_sessions import FetchItems, TopicKey
    from tidelog.api.pending import Outcome
    from tidelog.replication.partition import Partition
    from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData


class Followers(Protocol):
    """The methods of `PartitionFollowers` that handlers use. That class documents them."""

    def fetched(
        self, partition: "Partition", follower: Follower, fetch_offset: int, log_start_offset: int, proved_ms: int
    ) -> None: ...
    async def wait_for_log_start(
        self, partition: "Partition", offset: int, is_online: "Callable[[int], bool]", timeout_s: float
    ) -> int: ...
    def must_wait(self, partition: "Partition", broker: int) -> bool: ...
    def sent(self, partition: "Partition", broker: int, byte_count: int) -> None: ...
    def watch_ends(self, watcher: EndWatcher) -> None: ...
    def unwatch_ends(self, watcher: EndWatcher) -> None: ...


def is_peer(services: Services, context: RequestContext, broker_id: int) -> bool:
    """Return whether another broker, with the id `broker_id`, has sent the request. The sender is recognised by its
    connection, since every client can write any broker id into a request. If `services.peer_brokers` is None, every id
    except this broker's own id is accepted.
    """
    if services.peer_brokers is None:
        return broker_id != services.config.node_id
    return services.peer_brokers.sender(context.peer) == broker_id


class FollowerItem(FetchItem):
    """One partition that a follower fetches."""

    __slots__ = ("follower_start_offset",)

    def __init__(self, topic: "TopicKey", requested: "FetchPartition") -> None:
        super().__init__(topic, requested)
        self.follower_start_offset = requested.log_start_offset

    def update_request(self, newer: FetchItem) -> None:
        super().update_request(newer)
        if isinstance(newer, FollowerItem):
            self.follower_start_offset = newer.follower_start_offset


def handle(
    services: Services,
    followers: Followers,
    context: RequestContext,
    request: "FetchRequest",
    requested_items: "FetchItems | None",
) -> "Outcome[FetchResponse] | None":
    """Answer a follower's request, as `fetch.handle` answers a consumer's request.

    Returns None if the follower's id is not the id of a registered broker, if the request was not sent by that broker,
    or if the request names an older registration of that broker. The caller then answers every partition with an error.
    Raises the session errors of KIP-227.
    """
    state = request.replica_state
    follower = Follower(request.replica_id, -1) if state is None else Follower(state.replica_id, state.replica_epoch)
    registration = services.metadata.newest.brokers.get(follower.broker_id)
    if registration is None or not is_peer(services, context, follower.broker_id):
        return None
    # A newer epoch than the known one is accepted: this broker has not received the newer registration yet.
    if 0 <= follower.broker_epoch < registration.epoch:
        return None
    if requested_items is None:
        requested_items = run_all(items_in_steps(request, context.api_version >= 13, FollowerItem))
    fetch_context = services.fetch_sessions.context(request, context.api_version, requested_items, of_follower=True)
    idle = None
    session = fetch_context.session
    if session is not None:
        if session.idle is None:
            session.idle = IdlePartitions(session, follower, followers)
        idle = session.idle
        idle.begin(follower, int(services.runtime.clock.monotonic() * 1000))
        fetch_context.items = session.active_items()
    # The quotas of clients do not apply to replication.
    peer = context.peer
    context = RequestContext(context.api_key, context.api_version, context.correlation_id, context.client_id, peer)
    request.isolation_level = READ_UNCOMMITTED
    if len(fetch_context.items) > WIDE_ITEMS:
        return WideFollowerFetch(services, context, request, fetch_context, followers, follower, idle).steps()
    fetch = FollowerFetch(services, context, request, fetch_context, followers, follower, idle)
    cold = fetch.cold_reads()
    return fetch.begin_warmed(cold) if cold else fetch.begin()


class _ReadsForFollower(Fetch):
    """Reads partitions up to the ends of their logs. Until the fetch begins to wait, each read also reports the
    follower's offsets to this broker's replica of the partition.
    """

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        request: "FetchRequest",
        fetch_context: FetchContext,
        followers: Followers,
        follower: Follower,
        idle: IdlePartitions | None,
    ) -> None:
        """`idle`: the idle partitions of the session; they are not among the items of `fetch_context`."""
        super().__init__(services, context, request, fetch_context, from_follower=True)
        self._followers = followers
        self._follower = follower
        self._idle = idle
        self._proved_ms = 0 if idle is None else idle.proved_ms
        self._reports_offsets = True
        if idle is not None:
            idle.current = self

    def add(self, item: FetchItem, partition: "Partition", *, wakes: bool) -> None:
        """See `CurrentFetch`."""
        raise NotImplementedError

    @property
    def is_satisfied(self) -> bool:
        # While there are idle partitions, the fetch waits for their records, even if all other partitions are
        # unknown.
        all_unknown = len(self._unknown_ranks) == len(self._fetch_context.items) and not self._idle
        return self._readable_bytes >= self._min_bytes or self._failed or all_unknown

    def _wake_later(self) -> None:
        self._services.partitions.wake_follower_later(self)

    def _settle_items(self, items: "Sequence[FetchItem]") -> None:
        """Let partitions without news become idle. This is called when the response has been built."""
        if self._idle is not None:
            self._idle.settle([i for i in items if i not in self._slices and i not in self._special_data])

    def _end(self) -> None:
        """Stop `IdlePartitions` from adding items to this fetch."""
        if self._idle is not None and self._idle.current is self:
            self._idle.current = None

    def _read(self, item: FetchItem) -> None:
        cached_partition = item.partition
        for results in (self._special_data, self._unknown_ranks):
            results.pop(item, None)
        try:
            partition = self._partition(item)
            partition.check_leader_epoch(item.current_leader_epoch)
            partition.check_online()
            if item.last_fetched_epoch >= 0:
                if self._report_divergence(partition, item):
                    return
                _check_has_common_records(partition, item)
            bytes_left = min(item.bytes_max, self._bytes_max - self.found_bytes)
            log = partition.log
            batches = log.read(item.fetch_offset, bytes_left, log.log_end_offset)
            if self._reports_offsets:
                start = item.follower_start_offset if isinstance(item, FollowerItem) else -1
                self._followers.fetched(partition, self._follower, item.fetch_offset, start, self._proved_ms)
        except ApiError as error:
            self._add_error(item, error, item.partition or cached_partition)
            return
        size = batches.size
        if size and self._followers.must_wait(partition, self._follower.broker_id):
            return
        # The first batch may be larger than every limit (KIP-74), but only for the first partition with data.
        if size > 0 and (size <= bytes_left or not self.found_bytes):
            self._slices[item] = batches
            self.found_bytes += size
            self._readable_bytes += batches.readable
        elif size:
            self._readable_bytes = self._min_bytes  # the response is full, so there is nothing to wait for

    def _record_sent(self, sent: "list[tuple[FetchItem, PartitionData]]") -> None:
        super()._record_sent(sent)
        for item, _ in sent:
            batches = self._slices.get(item)
            if batches is not None and item.partition is not None:
                self._followers.sent(item.partition, self._follower.broker_id, batches.size)


def _check_has_common_records(partition: "Partition", item: FetchItem) -> None:
    """Raise OffsetOutOfRange if the follower's log is not empty and ends where this log begins, and the last leader
    epoch of the follower is older than every leader epoch of this log.

    This broker has deleted the records before its log start offset, so it cannot check whether the follower's records
    are the committed records. The error makes the follower delete its log and begin at the start of this log.
    Otherwise the follower could retain records that were never committed. If it then lost its log start offset in a
    crash, consumers could read these records.
    """
    log = partition.log
    if (
        isinstance(item, FollowerItem)
        and item.follower_start_offset < item.fetch_offset == log.log_start_offset
        and log.epochs.precedes_all(item.last_fetched_epoch)
    ):
        raise OffsetOutOfRange(
            f"{partition.topic}-{partition.index} begins at {log.log_start_offset}, and leader epoch "
            f"{item.last_fetched_epoch} ended before this offset"
        )


class FollowerFetch(_ReadsForFollower):
    """A follower's fetch in progress."""

    _watched: "dict[Partition, FetchItem]"

    def begin(self) -> "FetchResponse | Pending[FetchResponse]":
        """Read all partitions. Returns the response, or a pending response."""
        for item in self._fetch_context.items:
            self._read(item)
        self._reports_offsets = False
        if self.is_satisfied or self._max_wait_ms <= 0:
            return self._answer()
        self._watched = {item.partition: item for item in self._fetch_context.items if item.partition is not None}
        pending = self._park()
        self._followers.watch_ends(self)
        return pending

    def moved(self, partition: "Partition") -> None:
        item = self._watched.get(partition)
        # A new high watermark alone is no reason to answer: the next answer contains it.
        if item is not None and (not partition.is_served or partition.log.log_end_offset != item.fetch_offset):
            super().moved(partition)

    def add(self, item: FetchItem, partition: "Partition", *, wakes: bool) -> None:
        self._fetch_context.items.append(item)
        if self._pending is not None:  # if the fetch is not parked yet, `begin` reads this item
            self._watched[partition] = item
            partition.watch(self)
            if wakes:
                self.moved(partition)

    def _answer(self) -> "FetchResponse":
        self._end()
        response = super()._answer()
        self._settle_items(self._fetch_context.items)
        return response

    def abandon(self) -> None:
        """Stop waiting without a response."""
        self._end()
        self._followers.unwatch_ends(self)
        super().abandon()


class WideFollowerFetch(_ReadsForFollower, WideFetch):
    """A follower's fetch of very many partitions."""

    def _read_all(self) -> "Steps[Outcome[FetchResponse]]":
        self._followers.watch_ends(self)  # before the first partition is read, so that no append is missed
        return (yield from super()._read_all())

    def add(self, item: FetchItem, partition: "Partition", *, wakes: bool) -> None:
        self._fetch_context.items.append(item)
        self._by_partition.setdefault(partition, []).append(item)
        partition.watch(self)
        if wakes:
            self.moved(partition)

    def moved(self, partition: "Partition") -> None:
        if partition in self._by_partition:
            super().moved(partition)

    def _wait(self) -> "Pending[Any]":
        self._reports_offsets = False
        return super()._wait()

    def _build_response(self) -> "Steps[FetchResponse]":
        response = yield from super()._build_response()
        items = iter(self._fetch_context.items)
        while chunk := list(islice(items, ITEMS_PER_STEP)):
            self._settle_items(chunk)
            yield
        return response

    def _unwatch(self) -> None:
        self._end()
        self._followers.unwatch_ends(self)
        super()._unwatch()
