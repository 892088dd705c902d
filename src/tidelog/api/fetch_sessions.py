"""Incremental fetch sessions (KIP-227): what each client watches, so that a request names only what changed.

A session belongs to whoever knows its id. The cache is bounded; a session that was not used for two minutes makes
room for a new one, else the client is simply not given one and goes on with full requests.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.model.steps import Steps
from tidelog.wire.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Clock, Random
    from tidelog.runtime.turns import Turns
    from tidelog.wire.messages.fetch import FetchPartition, FetchRequest

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTABLE_AFTER_S = 120.0
PARTITIONS_MAX = 1_000_000
"""In all sessions together: some hundred MB at the most, whatever clients name."""
INT32_MAX = 2**31 - 1
LARGE = 1000
"""More partitions than that of a session that ends are freed a little at a time."""

CHANGES_MAX = 20_000
"""Of a session by one request, which makes them at once; a client with more is better off with full requests."""

TopicKey = str | bytes
"""The topic's name before v13, its id from v13 on."""


class FetchItem:
    """One partition that a client fetches, with what it was last told."""

    __slots__ = (
        "bytes_max",
        "current_leader_epoch",
        "error_code",
        "fetch_offset",
        "high_watermark",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "topic",
    )

    partition: "Partition | None"

    def __init__(self, topic: TopicKey, asked: "FetchPartition") -> None:
        self.topic = topic
        self.index = asked.partition
        self.partition = None
        # What the last response said; -1 is nothing, so the first one always tells.
        self.high_watermark = -1
        self.log_start_offset = -1
        self.error_code = 0
        self.current_leader_epoch = asked.current_leader_epoch
        self.fetch_offset = asked.fetch_offset
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.bytes_max = asked.partition_max_bytes

    def knows(self, partition: "Partition") -> bool:
        """Whether the client was told all there is to tell of `partition` but its records."""
        return (
            self.high_watermark == partition.high_watermark
            and self.log_start_offset == partition.log.log_start_offset
            and self.error_code == 0
        )

    def ask_as(self, newer: "FetchItem") -> None:
        """Take what a newer request asks of the same partition; what the client was told stays."""
        self.current_leader_epoch = newer.current_leader_epoch
        self.fetch_offset = newer.fetch_offset
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.bytes_max = newer.bytes_max


FetchItems = dict[tuple[TopicKey, int], FetchItem]


class FetchSession:
    """A client's standing set of partitions, in the order in which they are served."""

    __slots__ = ("epoch", "items", "session_id", "used_at", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, items: "FetchItems", now_s: float) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.items = items
        self.used_at = now_s

    def update(self, request: "FetchRequest", items: Iterable[FetchItem]) -> None:
        """Add and change the partitions that the request names, then remove those that it forgets."""
        for item in items:
            known = self.items.setdefault((item.topic, item.index), item)
            if known is not item:
                known.ask_as(item)
        for topic in request.forgotten_topics_data:
            key: TopicKey = topic.topic_id if self.uses_topic_ids else topic.topic
            for index in topic.partitions:
                self.items.pop((key, index), None)

    def serve_last(self, item: FetchItem) -> None:
        """Move a partition that got data behind the others, so that none starves."""
        if self.items.pop((item.topic, item.index), None) is not None:
            self.items[item.topic, item.index] = item


class FetchContext:
    """How one request is to be answered: which items, under which session, everything or only what changed."""

    __slots__ = ("incremental", "items", "session")

    def __init__(self, items: list[FetchItem], session: FetchSession | None, incremental: bool) -> None:
        self.items = items
        self.session = session
        self.incremental = incremental

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else NO_SESSION


class FetchSessions:
    """The cache, least recently used first; bounded in sessions and in their partitions."""

    def __init__(
        self,
        clock: "Clock",
        random: "Random",
        sessions_max: int,
        *,
        partitions_max: int = PARTITIONS_MAX,
        turns: "Turns | None" = None,
    ) -> None:
        """`turns`: where large sessions are freed, if not at once."""
        self._clock = clock
        self._random = random
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._turns = turns
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def context(self, request: "FetchRequest", version: int, named: "FetchItems | None" = None) -> FetchContext:
        """What the request asks for; `named` is what it names, where that was found out in steps before.

        Raises KIP-227's session errors, which clients answer with a full request.
        """
        uses_topic_ids = version >= 13
        items = items_of(request, uses_topic_ids) if named is None else list(named.values())
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self.forget(request.session_id)
            return FetchContext(items, None, incremental=False)
        if request.session_epoch == INITIAL_EPOCH:
            self.forget(request.session_id)
            if named is None:
                named = {(item.topic, item.index): item for item in items}
            return FetchContext(items, self._create(named, uses_topic_ids), incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"fetch session {request.session_id} is not known")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(f"fetch session epoch {request.session_epoch} is not {session.epoch}")
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError("the fetch session was begun with topic names, or now is")
        if named is not None and _are_too_many(named, request):
            self.forget(session.session_id)
            raise FetchSessionIdNotFound(f"a request changes at most {CHANGES_MAX} partitions of a fetch session")
        before = len(session.items)
        session.update(request, items)
        self._partitions += len(session.items) - before
        if self._partitions > self._partitions_max:
            self.forget(session.session_id)
            raise FetchSessionIdNotFound(f"fetch sessions hold more than {self._partitions_max} partitions")
        if not session.items:
            # Nothing is left of it: the request is answered as one without a session, as in Kafka.
            self.forget(session.session_id)
            return FetchContext(items, None, incremental=False)
        session.epoch = session.epoch % INT32_MAX + 1
        session.used_at = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        return FetchContext(list(session.items.values()), session, incremental=True)

    def _create(self, items: "FetchItems", uses_topic_ids: bool) -> FetchSession | None:
        now_s = self._clock.monotonic()
        if len(self._sessions) >= self._sessions_max or self._partitions + len(items) > self._partitions_max:
            if not self._sessions:
                return None
            oldest = next(iter(self._sessions.values()))
            if now_s - oldest.used_at < EVICTABLE_AFTER_S:
                return None
            self.forget(oldest.session_id)
            if self._partitions + len(items) > self._partitions_max:
                return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randrange(1, INT32_MAX)
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, items, now_s)
        self._partitions += len(session.items)
        return session

    def forget(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.items)
            if self._turns is not None and len(session.items) > LARGE:
                items = [*session.items.values()]
                del session  # unless a fetch goes on with it, only the list holds them now
                self._turns.free_in_steps([items])


def items_of(request: "FetchRequest", uses_topic_ids: bool) -> list[FetchItem]:
    """What the request names, each partition once: as it is named last."""
    if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
        topic = request.topics[0]
        return [FetchItem(topic.topic_id if uses_topic_ids else topic.topic, topic.partitions[0])]
    found = {}
    for topic in request.topics:
        key: TopicKey = topic.topic_id if uses_topic_ids else topic.topic
        for asked in topic.partitions:
            found[key, asked.partition] = FetchItem(key, asked)
    return list(found.values())


def _are_too_many(named: FetchItems, request: "FetchRequest") -> bool:
    forgotten = request.forgotten_topics_data
    if len(named) + len(forgotten) > CHANGES_MAX:
        return True
    return len(named) + sum(len(topic.partitions) for topic in forgotten) > CHANGES_MAX


def items_in_steps(request: "FetchRequest", uses_topic_ids: bool) -> Steps[FetchItems]:
    """As `items_of`."""
    found: FetchItems = {}
    for topic in request.topics:
        key: TopicKey = topic.topic_id if uses_topic_ids else topic.topic
        for asked in topic.partitions:
            found[key, asked.partition] = FetchItem(key, asked)
            yield
        yield
    return found
