"""A fetch of very many partitions. The partitions are read, watched and encoded in steps."""

import logging
from collections.abc import Coroutine, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.api.fetch import Fetch, encoded_size, read_ahead
from tidelog.api.fetch_sessions import FetchItem
from tidelog.api.pending import Pending
from tidelog.model.steps import Steps
from tidelog.replication.partition import Partition
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, NodeEndpoint

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome
    from tidelog.log.reader import ColdRead

logger = logging.getLogger("tidelog.fetch")

T = TypeVar("T")
R = TypeVar("R")

ITEMS_PER_STEP = 16
COLD_LANE: Final = "wide-cold-reads"
"""Name of the lane (see `Tasks.run_blocking`) for the cold reads of all wide fetches. A lane has one thread. So the
cold reads of only one wide fetch run at a time, and they do not use the threads that calls without a lane share."""
COLD_READS_MAX = 1000
"""When a fetch has prepared this many cold reads, it prepares no more, since each of them takes memory. Further cold
partitions are read on the event loop, which waits for the disk during such a read."""


class WideFetch(Fetch):
    """A fetch in steps. Between two steps, other requests may append records. If the client allows this fetch to wait,
    a partition that changes after it was read is read again.
    """

    __slots__ = ("_by_partition", "_is_first_reading", "_is_rereading")

    def steps(self) -> "Steps[Outcome[FetchResponse]]":
        """Run the fetch. Returns the response, or a pending response."""
        self._by_partition: dict[Partition, list[FetchItem]] = {}
        self._is_first_reading = True
        self._is_rereading = False
        return self._free_at_end(self._begin_steps())

    def _begin_steps(self) -> "Steps[Outcome[FetchResponse]]":
        cold: list[ColdRead] = []
        bytes_left = self._bytes_max
        for items in _chunks(self._fetch_context.items):
            reads = self.cold_reads(items, bytes_left)
            cold += reads
            bytes_left = max(bytes_left - sum(read.size for read in reads), 0)
            if len(cold) >= COLD_READS_MAX:
                break
            yield
        if cold:
            return self._read_cold_data(cold)
        return (yield from self._read_all())

    async def _read_cold_data(self, cold: list["ColdRead"]) -> "Steps[Outcome[FetchResponse]]":
        await read_ahead(self._services, cold, COLD_LANE)
        return self._free_at_end(self._read_all())

    def _free_at_end(self, steps: Steps[R]) -> Steps[R]:
        """Run `steps`, then free the results of the reads, also in steps. If `steps` return a Pending or a coroutine,
        free nothing, since this answer still needs the results.
        """

        def run_and_free() -> Steps[R]:
            answer = None
            try:
                yield
                answer = yield from steps
                return answer
            finally:
                if not isinstance(answer, Pending | Coroutine):
                    self._free_results()

        started = run_and_free()
        next(started)  # a generator that was not started does not run its `finally` when it is closed
        return started

    def _free_results(self) -> None:
        items, self._fetch_context.items = self._fetch_context.items, []
        parts: list[list[Any]] = [items, [*self._special_data.values()], [*self._slices.values()]]
        # Drop the dictionaries first, so that only `parts` refers to the objects and they can be freed in steps.
        self._special_data, self._slices, self._aborted, self._unknown_ranks = {}, {}, {}, {}
        self._services.turns.free_in_steps(parts)

    def _read_all(self) -> "Steps[Outcome[FetchResponse]]":
        may_wait = self._max_wait_ms > 0
        try:
            for items in _chunks(self._fetch_context.items):
                for item in items:
                    self._read(item)
                    partition = item.partition
                    if may_wait and partition is not None:
                        self._by_partition.setdefault(partition, []).append(item)
                        partition.watch(self)
                yield
            yield from self._read_moved()
        except BaseException:  # GeneratorExit: the client has disconnected
            self._unwatch()
            raise
        self._is_first_reading = False
        if not may_wait or self.is_satisfied:
            return (yield from self._build_response())
        return self._wait()

    def _wait(self) -> Pending[Any]:
        pending: Pending[Any] = Pending(on_abandon=self.abandon)
        self._pending = pending
        self._timer = self._services.runtime.tasks.call_later(self._max_wait_ms / 1000, self.finish)
        self._services.partitions.park(self)
        self.wake()  # some partitions may have changed while other partitions were read
        return pending

    def wake(self) -> int:
        """Read changed partitions in steps, unless such steps are running or scheduled. Returns 0 as the cost
        (see `Fetch.wake`), since the steps use the time of `Turns` and not the caller's time.
        """
        if self._pending is None:
            if not self._is_first_reading:  # the fetch has been answered, so nobody reads the partitions again
                self._moved_partitions = {}
        elif self._moved_partitions and not self._is_rereading:
            self._is_rereading = True
            self._services.turns.begin(self._reread(), self._reread_ended)
        return 0

    def _reread(self) -> Steps[None]:
        while self._moved_partitions and self._pending is not None and not self.is_satisfied:
            yield from self._read_moved()

    def _reread_ended(self, _: None, error: Exception | None) -> None:
        self._is_rereading = False
        if error is not None:
            logger.error("parked fetch failed", exc_info=error)
        if self._pending is None:
            self._moved_partitions = {}
        elif error is not None or self.is_satisfied:
            self._settle(self._build_response())

    def _read_moved(self) -> Steps[None]:
        """Read the partitions that have changed since they were last read."""
        moved_partitions, self._moved_partitions = self._moved_partitions, {}
        for partitions in _chunks(moved_partitions):
            for partition in partitions:
                for item in self._by_partition.get(partition, ()):
                    self._discard_result(item)
                    self._read(item)
            yield

    def finish(self) -> None:
        """Respond with the data that is available now."""
        if self._pending is not None:
            self._settle(self._read_again())

    def abandon(self) -> None:
        """Stop waiting. This method sends no response."""
        if self._pending is not None:
            self._unpark()
            self._unwatch()
            self._free_results()

    def _settle(self, steps: Steps[FetchResponse]) -> None:
        pending: Any = self._pending
        self._unpark()
        self._unwatch()  # not only in `steps`, which do not run if the client disconnects now
        pending.complete(self._free_at_end(steps))

    def _unpark(self) -> None:
        self._pending = None
        self._timer.cancel()
        self._services.partitions.unpark(self)

    def _unwatch(self) -> None:
        """Stop watching the partitions. This happens in separate steps, since no response needs to wait for it."""
        self._is_first_reading = False
        watched, self._by_partition = self._by_partition, {}
        if not watched:
            return

        def steps() -> Steps[None]:
            for partitions in _chunks(watched):
                for partition in partitions:
                    partition.unwatch(self)
                yield

        self._services.turns.begin(steps(), lambda _, error: None)

    def _read_again(self) -> Steps[FetchResponse]:
        """Repeat the reads that found data, since their results may be stale, and build the response."""
        items_with_data, self._slices = self._slices, {}
        self.found_bytes = self._readable_bytes = 0
        for items in _chunks(items_with_data):
            for item in items:
                self._read(item)
            yield
        return (yield from self._build_response())

    def _build_response(self) -> Steps[FetchResponse]:
        self._unwatch()
        topics: list[FetchableTopicResponse] = []
        sent = []
        endpoints: dict[int, NodeEndpoint] = {}
        for items in _chunks((yield from self._in_order())):
            self._forget_deleted(items)
            response, sent_now = self._response(items)
            sent += sent_now
            endpoints.update((endpoint.node_id, endpoint) for endpoint in response.node_endpoints)
            for topic in response.responses:
                last = topics[-1] if topics else None
                if last is not None and last.topic == topic.topic and last.topic_id == topic.topic_id:
                    last.partitions += topic.partitions
                else:
                    topics.append(topic)
            yield
        response = FetchResponse(
            session_id=self._fetch_context.session_id, responses=topics, node_endpoints=list(endpoints.values())
        )
        meter = self._context.meter
        if meter is not None:
            pieces = yield from FetchResponse.stepwise_encoder(self._context.api_version)(response)
            if meter.record_fetch(encoded_size(pieces)):
                return self._empty_response()
        for chunk in _chunks(sent):
            self._record_sent(chunk)
            yield
        return response

    def _forget_deleted(self, items: list[FetchItem]) -> None:
        """If a topic was deleted after it was read, replace its results by an error, since its files may be removed
        before the response is sent.
        """
        for item in items:
            partition = item.partition
            if partition is not None and (partition.deleted or partition.topic_deleted):
                self._slices.pop(item, None)
                self._add_error(item, self._services.partitions.missing(partition.topic, partition.index), partition)

    def _in_order(self) -> Steps[list[FetchItem]]:
        """Return the items in the response's order: unknown topics and partitions come last."""
        ranks: list[list[FetchItem]] = [[], [], []]
        for items in _chunks(self._fetch_context.items):
            for item in items:
                ranks[self._unknown_ranks.get(item, 0)].append(item)
            yield
        return [*ranks[0], *ranks[1], *ranks[2]]


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, ITEMS_PER_STEP)):
        yield chunk
