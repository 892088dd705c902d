"""A fetch of very many partitions: read, watched and encoded in steps."""

import logging
from collections.abc import Coroutine, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.api.fetch import Fetch, encoded_size, read_ahead
from tidelog.api.fetch_sessions import FetchItem
from tidelog.api.pending import Pending
from tidelog.model.steps import Steps
from tidelog.replication.partition import Partition
from tidelog.wire.errors import UnknownTopicOrPartition
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome
    from tidelog.log.reader import ColdRead

logger = logging.getLogger("tidelog.fetch")

T = TypeVar("T")
R = TypeVar("R")

ITEMS_PER_STEP = 16
COLD_LANE: Final = "wide-cold-reads"
"""Only one wide fetch at a time reads from the disk, so that other calls find a free thread."""
COLD_READS_MAX = 1000
"""Most cold reads for one response. Further cold partitions are read on the loop and make it wait; more would cost
memory."""


class WideFetch(Fetch):
    """A fetch in steps. Appends may happen between two steps: partitions that change after they were read are noted
    and read again.
    """

    __slots__ = ("_by_partition", "_looking", "_reading")

    def steps(self) -> "Steps[Outcome[FetchResponse]]":
        """Run the fetch. Returns the response, or a pending one."""
        self._by_partition: dict[Partition, list[FetchItem]] = {}
        self._reading = True
        self._looking = False
        return self._ending(self._begun())

    def _begun(self) -> "Steps[Outcome[FetchResponse]]":
        cold: list[ColdRead] = []
        for items in _parted(self._fetching.items):
            cold += self.cold_reads(items)
            if len(cold) >= COLD_READS_MAX:
                break
            yield
        if cold:
            return self._warmed(cold)
        return (yield from self._read_all())

    async def _warmed(self, cold: list["ColdRead"]) -> "Steps[Outcome[FetchResponse]]":
        await read_ahead(self._services, cold, COLD_LANE)
        return self._ending(self._read_all())

    def _ending(self, steps: Steps[R]) -> Steps[R]:
        """Run `steps`. When they end with the response, fail or are cancelled, all found data is freed in steps."""

        def ending() -> Steps[R]:
            answer = None
            try:
                yield
                answer = yield from steps
                return answer
            finally:
                if not isinstance(answer, Pending | Coroutine):
                    self._let_go()

        begun = ending()
        next(begun)  # a generator that has not begun would not notice its cancellation
        return begun

    def _let_go(self) -> None:
        items, self._fetching.items = self._fetching.items, []
        left: list[list[Any]] = [items, [*self._special.values()], [*self._slices.values()]]
        # Dictionaries with these keys are freed first; the last reference frees the objects.
        self._special, self._slices, self._aborted, self._unknown = {}, {}, {}, {}
        self._services.turns.free_in_steps(left)

    def _read_all(self) -> "Steps[Outcome[FetchResponse]]":
        watched = self._max_wait_ms > 0
        try:
            for items in _parted(self._fetching.items):
                for item in items:
                    self._read(item)
                    partition = item.partition
                    if watched and partition is not None:
                        self._by_partition.setdefault(partition, []).append(item)
                        partition.watch(self)
                yield
            yield from self._read_moved()
        except BaseException:  # GeneratorExit: the client has disconnected
            self._unwatch()
            raise
        self._reading = False
        if not watched or self.satisfied:
            return (yield from self._told())
        return self._wait()

    def _wait(self) -> Pending[Any]:
        pending: Pending[Any] = Pending(on_abandon=self.abandon)
        self._pending = pending
        self._timer = self._services.runtime.tasks.call_later(self._max_wait_ms / 1000, self.finish)
        self._services.partitions.park(self)
        self.wake()  # for partitions that changed while others were read
        return pending

    def wake(self) -> int:
        """Read changed partitions in steps, unless such steps are running or scheduled."""
        if self._pending is None:
            if not self._reading:
                self._moved = {}
        elif self._moved and not self._looking:
            self._looking = True
            self._services.turns.begin(self._look(), self._looked)
        return 0

    def _look(self) -> Steps[None]:
        while self._moved and self._pending is not None and not self.satisfied:
            yield from self._read_moved()

    def _looked(self, _: None, error: Exception | None) -> None:
        self._looking = False
        if error is not None:
            logger.error("parked fetch failed", exc_info=error)
        if self._pending is None:
            self._moved = {}
        elif error is not None or self.satisfied:
            self._settle(self._told())

    def _read_moved(self) -> Steps[None]:
        """Read the partitions that have changed until now."""
        moved, self._moved = self._moved, {}
        for partitions in _parted(moved):
            for partition in partitions:
                for item in self._by_partition.get(partition, ()):
                    self._drop(item)
                    self._read(item)
            yield

    def finish(self) -> None:
        """Respond with the data there is now."""
        if self._pending is not None:
            self._settle(self._read_again())

    def abandon(self) -> None:
        """Stop waiting without a response."""
        if self._pending is not None:
            self._unpark()
            self._unwatch()
            self._let_go()

    def _settle(self, steps: Steps[FetchResponse]) -> None:
        pending: Any = self._pending
        self._unpark()
        self._unwatch()  # now, since the client may disconnect before it is notified
        pending.complete(self._ending(steps))

    def _unpark(self) -> None:
        self._pending = None
        self._timer.cancel()
        self._services.partitions.unpark(self)

    def _unwatch(self) -> None:
        """Stop watching, in separate steps, since nothing waits for that."""
        self._reading = False
        watched, self._by_partition = self._by_partition, {}
        if not watched:
            return

        def steps() -> Steps[None]:
            for partitions in _parted(watched):
                for partition in partitions:
                    partition.unwatch(self)
                yield

        self._services.turns.begin(steps(), lambda _, error: None)

    def _read_again(self) -> Steps[FetchResponse]:
        """Read all partitions again, since earlier results may be stale."""
        found, self._slices = self._slices, {}
        self.found_bytes = self._readable_bytes = 0
        for items in _parted(found):
            for item in items:
                self._read(item)
            yield
        return (yield from self._told())

    def _told(self) -> Steps[FetchResponse]:
        self._unwatch()
        topics: list[FetchableTopicResponse] = []
        told = []
        for items in _parted((yield from self._in_order())):
            self._forget_deleted(items)
            response, told_now = self._response(items)
            told += told_now
            for topic in response.responses:
                last = topics[-1] if topics else None
                if last is not None and last.topic == topic.topic and last.topic_id == topic.topic_id:
                    last.partitions += topic.partitions
                else:
                    topics.append(topic)
            yield
        response = FetchResponse(session_id=self._fetching.session_id, responses=topics)
        meter = self._context.meter
        if meter is not None:
            pieces = yield from FetchResponse.stepwise_encoder(self._context.api_version)(response)
            if meter.fetched(encoded_size(pieces)):
                return self._emptied()
        for some in _parted(told):
            self._note(some)
            yield
        return response

    def _forget_deleted(self, items: list[FetchItem]) -> None:
        """Discard results of topics that were deleted meanwhile, since their files may be removed before they are
        sent.
        """
        for item in items:
            partition = item.partition
            if partition is not None and partition.deleted:
                self._slices.pop(item, None)
                self._refuse(item, UnknownTopicOrPartition("the topic was deleted"), partition)

    def _in_order(self) -> Steps[list[FetchItem]]:
        """Return the items in the response's order: unknown topics and partitions come last."""
        ranks: list[list[FetchItem]] = [[], [], []]
        for items in _parted(self._fetching.items):
            for item in items:
                ranks[self._unknown.get(item, 0)].append(item)
            yield
        return [*ranks[0], *ranks[1], *ranks[2]]


def _parted(things: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(things)
    while part := list(islice(rest, ITEMS_PER_STEP)):
        yield part
