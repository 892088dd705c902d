"""Fetch (key 1), v4-18. v7: sessions (KIP-227); v9: leader epochs (KIP-320); v11: rack; v12: flexible, diverging
epochs (KIP-595); v13: topic ids (KIP-516); v15: replica state (KIP-903); v16: leader hints (KIP-951).

Whole batches are sent as file regions and never decoded. A fetch that finds too few bytes is parked until enough
bytes are appended or its wait time has passed. Fetches by followers are refused unless `Services.followers` is set; see
`follower_fetch.py`. Consumers may fetch from followers since v11 (KIP-392); see `preferred_replica.py`.
"""

import logging
from typing import TYPE_CHECKING, Final

from tidelog.api.fetch_sessions import FetchContext, FetchItem, items_in_steps
from tidelog.api.leader_hints import FETCH_SINCE, fetch_endpoints, leader_of
from tidelog.api.pending import Pending
from tidelog.api.preferred_replica import RACK_SINCE, preferred_replica
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.replication.partition import READ_COMMITTED, READ_UNCOMMITTED, Partition
from tidelog.runtime.interfaces import FileRegion
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.api.fetch_sessions import FetchItems
    from tidelog.api.pending import Outcome
    from tidelog.log.reader import ColdRead, Slice
    from tidelog.runtime.interfaces import Piece

logger = logging.getLogger("tidelog.fetch")

_EMPTY: Final = b""
WIDE_ITEMS = 200
"""A fetch of more partitions than this, including the partitions of its session, is processed in steps."""
SKIPPED_PER_STEP = 32
"""In a woken fetch, skipping this many unchanged partitions takes about as long as reading one partition."""
READS_PER_ENCODING = 4
"""Encoding one partition takes about as long as reading this many partitions."""


def handle(
    services: Services, context: RequestContext, request: FetchRequest, requested_items: "FetchItems | None" = None
) -> "Outcome[FetchResponse]":
    """Respond immediately if there is enough data, if the request does not allow a wait, or if there is an error.
    Otherwise park the fetch.
    """
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _unknown_isolation(context, request)
    replica_id = request.replica_id  # since v15 the id is in the tagged field replica_state, which consumers omit
    if request.replica_state is not None:
        replica_id = request.replica_state.replica_id
    try:
        if replica_id >= 0 and services.followers is not None:
            from tidelog.api import follower_fetch

            answer = follower_fetch.handle(services, services.followers, context, request, requested_items)
            if answer is not None:
                return answer
        fetch_context = services.fetch_sessions.context(request, context.api_version, requested_items)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    if len(fetch_context.items) > WIDE_ITEMS:
        from tidelog.api.wide_fetch import WideFetch

        return WideFetch(services, context, request, fetch_context, from_follower=replica_id >= 0).steps()
    fetch = Fetch(services, context, request, fetch_context, from_follower=replica_id >= 0)
    cold = fetch.cold_reads()
    return fetch.begin_warmed(cold) if cold else fetch.begin()


def handle_wide(services: Services, context: RequestContext, request: FetchRequest) -> "Steps[Outcome[FetchResponse]]":
    """Collect the partitions of the request, which may be very many, in steps. Then call `handle`."""
    item_class = FetchItem
    if services.followers is not None and (request.replica_state is not None or request.replica_id >= 0):
        from tidelog.api.follower_fetch import FollowerItem

        item_class = FollowerItem
    requested_items = yield from items_in_steps(request, context.api_version >= 13, item_class)
    return handle(services, context, request, requested_items)


def _unknown_isolation(context: RequestContext, request: FetchRequest) -> Steps[FetchResponse]:
    """Return Kafka's response to an isolation level that is neither 0 nor 1."""
    response = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    if context.api_version < 13:
        for topic in request.topics:
            refused = []
            for requested in topic.partitions:
                data = PartitionData(requested.partition, ErrorCode.UNKNOWN_SERVER_ERROR, -1, records=_EMPTY)
                refused.append(data)
                yield
            response.responses.append(FetchableTopicResponse(topic=topic.topic, partitions=refused))
    return response


class Fetch:
    """One fetch in progress: the data found for each partition, and its size."""

    __slots__ = (
        "_aborted",
        "_bytes_max",
        "_context",
        "_expired",
        "_failed",
        "_fetch_context",
        "_from_follower",
        "_isolation",
        "_max_wait_ms",
        "_min_bytes",
        "_moved_partitions",
        "_pending",
        "_rack",
        "_readable_bytes",
        "_services",
        "_slices",
        "_special_data",
        "_timer",
        "_unknown_ranks",
        "found_bytes",
    )

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        request: FetchRequest,
        fetch_context: FetchContext,
        *,
        from_follower: bool,
    ) -> None:
        self._services = services
        self._context = context
        self._fetch_context = fetch_context
        self._from_follower = from_follower
        self._isolation = request.isolation_level
        self._rack = request.rack_id if services.selects_replicas else ""
        self._max_wait_ms = request.max_wait_ms
        self._min_bytes = request.min_bytes
        self._bytes_max = min(request.max_bytes, services.config.fetch_max_bytes)
        quota_bytes_max = None if context.meter is None or from_follower else context.meter.fetch_bytes_max
        if quota_bytes_max is not None:
            self._bytes_max = min(self._bytes_max, quota_bytes_max)
            self._min_bytes = min(self._min_bytes, self._bytes_max)
        # The answers for partitions with an error, a diverging epoch or a preferred replica.
        self._special_data: dict[FetchItem, PartitionData] = {}
        self._slices: dict[FetchItem, Slice] = {}
        self._aborted: dict[FetchItem, list[AbortedTransaction]] = {}
        self._moved_partitions: dict[Partition, None] = {}
        self._unknown_ranks: dict[FetchItem, int] = {}  # 1: unknown topic id; 2: unknown topic or partition
        # True if the fetch must not wait: a partition has a diverging epoch, a preferred replica, or an error (except
        # the errors of `_unknown_ranks`), or a partition was deleted after an earlier read.
        self._failed = False
        self._expired = False
        self._pending: Pending[FetchResponse] | None = None
        # The size of the batches that were found, and the number of bytes to compare with min_bytes (`Slice.readable`).
        self.found_bytes = 0
        self._readable_bytes = 0

    def begin(self) -> FetchResponse | Pending[FetchResponse]:
        """Read all partitions. Returns the response, or a pending response."""
        for item in self._fetch_context.items:
            self._read(item)
        if self.is_satisfied or self._max_wait_ms <= 0:
            return self._answer()
        return self._park()

    # Reading

    def cold_reads(self, items: "Sequence[FetchItem] | None" = None, bytes_left: int | None = None) -> list["ColdRead"]:
        """Return the disk reads that a thread must run before the event loop reads `items` (default: all). Without
        these disk reads, the event loop would wait for the disk. Together they have about `bytes_left` bytes (default:
        the size limit of the response). When this limit is reached, only the first bytes of each further item are read:
        `_read` needs the header of the item's first batch even if the response is full.
        """
        reads = []
        if bytes_left is None:
            bytes_left = self._bytes_max
        for item in self._fetch_context.items if items is None else items:
            try:
                log = self._partition(item).log
                if item.fetch_offset == log.log_end_offset:
                    continue
                read = log.cold_read(item.fetch_offset, min(item.bytes_max, bytes_left))
            except ApiError:
                continue  # `_read` gets the same error and adds it to the response
            if read is not None:
                reads.append(read)
                bytes_left = max(bytes_left - read.size, 0)
        return reads

    def begin_warmed(self, cold: list["ColdRead"]) -> Pending[FetchResponse]:
        """Run `cold`, the disk reads that `cold_reads` returned, on a thread. Then run `begin`."""
        pending: Pending[FetchResponse] = Pending(on_abandon=self.abandon)
        self._services.runtime.tasks.spawn(self._warm(cold, pending), name="fetch-cold-read")
        return pending

    async def _warm(self, cold: list["ColdRead"], pending: Pending[FetchResponse]) -> None:
        """Fill the page cache with the disk reads `cold`, on a thread. Then run the fetch and complete `pending`."""
        await read_ahead(self._services, cold)
        if pending.abandoned:
            return
        try:
            answer = self.begin()
        except Exception:
            logger.exception("fetch failed after a cold read")
            answer = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        if isinstance(answer, Pending):
            answer.listen(pending.complete)
        else:
            pending.complete(answer)

    @property
    def is_satisfied(self) -> bool:
        # As in Kafka, unknown partitions do not prevent a wait for known partitions. If all partitions are unknown, the
        # response is sent immediately.
        return (
            self._readable_bytes >= self._min_bytes
            or self._failed
            or len(self._unknown_ranks) == len(self._fetch_context.items)
        )

    def _read(self, item: FetchItem) -> None:
        """Read `item` within the remaining limits of the request. If `item` was read before, the caller must have
        discarded its data; this method replaces all other results of the earlier read.
        """
        cached_partition = item.partition
        for results in (self._special_data, self._aborted, self._unknown_ranks):
            results.pop(item, None)
        try:
            partition = self._partition(item)
            if item.current_leader_epoch >= 0:
                partition.check_leader_epoch(item.current_leader_epoch)
            if self._from_follower:
                raise NotLeaderOrFollower("this broker does not serve this follower")
            if item.last_fetched_epoch >= 0 and self._report_divergence(partition, item):
                return
            if self._rack and self._name_preferred_replica(partition, item):
                return
            bytes_left = min(item.bytes_max, self._bytes_max - self.found_bytes)
            allows_follower = self._context.api_version >= RACK_SINCE
            batches = partition.read(item.fetch_offset, bytes_left, self._isolation, allows_follower)
            # The first batch may be larger than every limit (KIP-74), but only for the first partition with data.
            size = batches.size
            fits = size > 0 and (size <= bytes_left or not self.found_bytes)
            if self._isolation == READ_COMMITTED and fits:
                self._aborted[item] = [
                    AbortedTransaction(producer_id=t.producer_id, first_offset=t.first_offset)
                    for t in partition.log.aborted_transactions(
                        item.fetch_offset, partition.last_stable_offset, batches
                    )
                ]
        except ApiError as error:
            self._add_error(item, error, item.partition or cached_partition)
            return
        if fits:
            self._slices[item] = batches
            self.found_bytes += size
            self._readable_bytes += batches.readable
        elif size:
            self._readable_bytes = self._min_bytes  # the response is full, so there is nothing to wait for

    def _partition(self, item: FetchItem) -> Partition:
        partition = item.partition
        if partition is None:
            partitions = self._services.partitions
            topic = item.topic
            name = topic if isinstance(topic, str) else partitions.topic_name(topic)
            partition = item.partition = partitions.get(name, item.index)
        elif partition.deleted or partition.topic_deleted:
            item.partition = None
            self._failed = True  # the wait ends immediately, even if the error is that the partition is unknown
            raise self._services.partitions.missing(partition.topic, partition.index)
        return partition

    def _add_error(self, item: FetchItem, error: ApiError, partition: Partition | None) -> None:
        data = self._special_data[item] = PartitionData(item.index, error.code, -1, records=_EMPTY)
        # As in Kafka, the list of aborted transactions is null if the partition is known and the isolation level is
        # READ_UNCOMMITTED. Otherwise it is empty.
        is_known = partition is not None or isinstance(error, NotLeaderOrFollower)
        if is_known and self._isolation == READ_UNCOMMITTED:
            data.aborted_transactions = None
        if isinstance(error, UnknownTopicOrPartition | UnknownTopicId):
            self._unknown_ranks[item] = 1 if isinstance(error, UnknownTopicId) else 2
            return
        self._failed = True
        leader_changed = isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch)
        if leader_changed and self._context.api_version >= FETCH_SINCE:
            topic = item.topic
            name = topic if isinstance(topic, str) else self._services.partitions.topic_names.get(topic)
            data.current_leader = LeaderIdAndEpoch(*leader_of(self._services, name, item.index))

    def _name_preferred_replica(self, partition: Partition, item: FetchItem) -> bool:
        """Return whether the consumer should fetch from a follower in its rack. If so, let the response name this
        follower instead of containing records.
        """
        preferred = preferred_replica(self._services.metadata.image, partition, self._rack, item.fetch_offset)
        if preferred is None:
            return False
        data = self._special_data[item] = self._data(item, partition, None)
        data.preferred_read_replica = preferred
        self._failed = True
        return True

    def _report_divergence(self, partition: Partition, item: FetchItem) -> bool:
        """Return whether the client's log differs from this log before the fetch offset. If so, let the response
        contain the epoch and the end offset up to which both logs may be the same (KIP-595).
        """
        epoch, end_offset = partition.end_offset_for(item.last_fetched_epoch)
        if end_offset < 0:
            raise OffsetOutOfRange(f"leader epoch {item.last_fetched_epoch} is not known in this log")
        if epoch >= item.last_fetched_epoch and end_offset >= item.fetch_offset:
            return False
        data = self._special_data[item] = self._data(item, partition, None)
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        self._failed = True
        return True

    # Parking

    def _park(self) -> Pending[FetchResponse]:
        """Wait until enough data has arrived, at most for the client's `max_wait_ms`."""
        pending = self._pending = Pending(on_abandon=self.abandon)
        for item in self._fetch_context.items:
            if item.partition is not None:
                item.partition.watch(self)
        self._timer = self._services.runtime.tasks.call_later(self._max_wait_ms / 1000, self._expire)
        self._services.partitions.park(self)
        return pending

    def moved(self, partition: Partition) -> None:
        """Remember that the high watermark of `partition` has moved, or that this broker does not serve the partition
        any more. The fetch is not answered in this call, since an answer during an append could contain only a part of
        the records of a produce request.
        """
        if not self._moved_partitions:
            self._wake_later()
        self._moved_partitions[partition] = None

    def _wake_later(self) -> None:
        self._services.partitions.wake_later(self)

    def _expire(self) -> None:
        self._expired = True
        self._services.partitions.wake_expired(self)

    def wake(self) -> int:
        """Read the partitions that changed. Respond if there is enough data now, or if the wait time has passed.

        Returns the cost of the call. The cost of reading one partition is 1.
        """
        moved_partitions, self._moved_partitions = self._moved_partitions, {}
        if self._pending is None:
            return 0
        items = self._fetch_context.items
        if moved_partitions:
            for item in items:
                if item.partition in moved_partitions:
                    self._discard_result(item)
                    self._read(item)
        if self.is_satisfied:
            self._complete()
        elif self._expired:
            self.finish()
        else:
            return len(moved_partitions) + len(items) // SKIPPED_PER_STEP
        return len(moved_partitions) + len(items) * READS_PER_ENCODING

    def _discard_result(self, item: FetchItem) -> None:
        """Discard the data that was read for `item`."""
        batches = self._slices.pop(item, None)
        if batches is not None:
            self.found_bytes -= batches.size
            self._readable_bytes -= batches.readable

    def finish(self) -> None:
        """Respond to a parked fetch with the data that is available now. Partitions with data are read again, since
        earlier results may be stale.
        """
        if self._pending is not None:
            items_with_data, self._slices = self._slices, {}
            self.found_bytes = self._readable_bytes = 0
            for item in items_with_data:
                self._read(item)
            self._complete()

    def _complete(self) -> None:
        """Respond to the parked fetch, unless it has been answered already."""
        pending = self._pending
        if pending is not None:
            self.abandon()
            pending.complete(self._answer())

    def abandon(self) -> None:
        """Stop waiting. This method sends no response."""
        if self._pending is None:
            return
        self._pending = None
        self._timer.cancel()
        self._services.partitions.unpark(self)
        for item in self._fetch_context.items:
            if item.partition is not None:
                item.partition.unwatch(self)

    # Responses

    def _answer(self) -> FetchResponse:
        response, sent = self._response()
        meter = self._context.meter
        if meter is not None:
            pieces = FetchResponse.pieces_encoder(self._context.api_version)(response)
            if meter.record_fetch(encoded_size(pieces)):
                return self._empty_response()
        self._record_sent(sent)
        return response

    def _empty_response(self) -> FetchResponse:
        """Return an empty response for a client that is over a quota. The client repeats its fetch later."""
        fetch_context = self._fetch_context
        if fetch_context.session is not None and not fetch_context.incremental:
            # The client does not know this new session, since the empty response does not contain its id.
            self._services.fetch_sessions.forget(fetch_context.session.session_id)
            return FetchResponse()
        return FetchResponse(session_id=fetch_context.session_id)

    def _record_sent(self, sent: "list[tuple[FetchItem, PartitionData]]") -> None:
        """Store in the session the state that the response reports to the client."""
        fetch_context = self._fetch_context
        session = fetch_context.session
        if session is None:
            return
        for item, data in sent:
            item.high_watermark = data.high_watermark
            item.log_start_offset = data.log_start_offset
            item.error_code = data.error_code
            if fetch_context.incremental and item in self._slices:
                session.serve_last(item)

    def _response(
        self, items: "Sequence[FetchItem] | None" = None
    ) -> "tuple[FetchResponse, list[tuple[FetchItem, PartitionData]]]":
        """Build the response for `items` (default: all)."""
        fetch_context = self._fetch_context
        sent: list[tuple[FetchItem, PartitionData]] = []
        by_id = self._context.api_version >= 13
        topics: list[FetchableTopicResponse] = []
        last_topic: str | bytes | None = None
        if items is None:
            items = fetch_context.items
        if self._unknown_ranks:  # unknown topics come after all other topics, as in Kafka
            items = sorted(items, key=lambda item: self._unknown_ranks.get(item, 0))
        for item in items:
            data = self._special_data.get(item)
            if data is None:
                partition = item.partition
                assert partition is not None
                batches = self._slices.get(item)
                if fetch_context.incremental and batches is None and item.is_up_to_date(partition):
                    continue
                data = self._data(item, partition, batches)
            elif fetch_context.incremental and not _has_changes(item, data):
                continue
            if item.topic != last_topic:
                last_topic = item.topic
                topic = FetchableTopicResponse("", last_topic) if by_id else FetchableTopicResponse(last_topic)  # type: ignore[arg-type]  # v13: ids
                topics.append(topic)
            topic.partitions.append(data)
            sent.append((item, data))
        response = FetchResponse(session_id=fetch_context.session_id, responses=topics)
        if self._failed and not self._from_follower and self._context.api_version >= FETCH_SINCE:
            response.node_endpoints = fetch_endpoints(self._services, topics, self._context.peer.listener)
        return response, sent

    def _data(self, item: FetchItem, partition: Partition, batches: "Slice | None") -> PartitionData:
        high_watermark = partition.high_watermark
        return PartitionData(
            item.index,
            0,
            high_watermark,
            partition.log.last_stable_offset_below(high_watermark),
            partition.log.log_start_offset,
            None,
            None,
            None,
            None if self._isolation == READ_UNCOMMITTED else self._aborted.get(item, []),
            -1,
            _EMPTY if batches is None else FileRegion(batches.file, batches.position, batches.size),  # type: ignore[arg-type]  # a region has a size
        )


def encoded_size(pieces: "Sequence[Piece]") -> int:
    """Return the size in bytes of the encoded message that `pieces` form, including its length field of four bytes."""
    return 4 + sum(piece.size if isinstance(piece, FileRegion) else len(piece) for piece in pieces)


def _has_changes(item: FetchItem, data: PartitionData) -> bool:
    """Return whether an incremental response must include the partition."""
    return (
        data.error_code != item.error_code
        or data.error_code != 0
        or data.high_watermark != item.high_watermark
        or data.log_start_offset != item.log_start_offset
        or data.diverging_epoch is not None
        or data.preferred_read_replica >= 0
    )


async def read_ahead(services: Services, cold: list["ColdRead"], lane: str = "") -> None:
    """Read the bytes of the `cold` reads into the page cache, on a thread. Calls with the same `lane` run one at a
    time; calls without a lane run in parallel.
    """
    try:
        await services.runtime.tasks.run_blocking(_run_reads, cold, lane=lane)
    except OSError as error:
        logger.error("read ahead failed reason=%s", error)  # if `_read` fails too, it takes the partition offline


def _run_reads(cold: list["ColdRead"]) -> None:
    for read in cold:
        read.run()
