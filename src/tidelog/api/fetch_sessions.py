"""Incremental fetch sessions (KIP-227). The broker remembers the partitions that each client fetches, so that a
request needs to name only changes.

Every client that sends the id of a session may use the session. The cache of sessions is bounded. If it is full, a new
session of a consumer replaces the least recently used session of a consumer, provided that the old session was not used
for two minutes. Otherwise the client gets no session and continues with full requests.

A follower always gets a session, and a consumer's session never replaces it. Without sessions, replication would name
every partition in each request, and a leader that has lost its lease could not know when its followers sent their
requests. If the cache is full, the follower's session replaces the least recently used session of a consumer, even if
the consumer has used its session just now.
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
    from tidelog.api.idle_partitions import IdlePartitions
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Clock, Random
    from tidelog.runtime.turns import Turns
    from tidelog.wire.messages.fetch import FetchPartition, FetchRequest

NO_SESSION = 0
"""The session id of a request or response without a session."""
INITIAL_EPOCH = 0
"""A request with this epoch asks for a new session."""
FINAL_EPOCH = -1
"""A request with this epoch ends its session."""
EVICTABLE_AFTER_S = 120.0
"""A session that was not used for this time, in seconds, may be replaced by a new session."""
PARTITIONS_MAX = 1_000_000
"""Bound on the partitions of all sessions together, which limits their memory to a few hundred MB."""
INT32_MAX = 2**31 - 1
LARGE_SESSION = 1000
"""A session with more partitions than this is freed in steps."""

CHANGES_MAX = 20_000
"""Bound on the partitions that one request may add to a session, change in it or remove from it, since all changes
are made without a pause. After a request with more changes, the client must send a full request."""

TopicKey = str | bytes
"""The topic's name before v13; its id since v13."""


class FetchItem:
    """One partition that a client fetches, with the state that the last response reported to the client."""

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

    def __init__(self, topic: TopicKey, requested: "FetchPartition") -> None:
        self.topic = topic
        self.index = requested.partition
        self.partition = None
        # The state in the last response. Before the first response the offsets are -1, so that the first response
        # always contains the partition.
        self.high_watermark = -1
        self.log_start_offset = -1
        self.error_code = 0
        self.current_leader_epoch = requested.current_leader_epoch
        self.fetch_offset = requested.fetch_offset
        self.last_fetched_epoch = requested.last_fetched_epoch
        self.bytes_max = requested.partition_max_bytes

    def is_up_to_date(self, partition: "Partition") -> bool:
        """Return whether the client knows the current state of `partition`, apart from its records."""
        return (
            self.high_watermark == partition.high_watermark
            and self.log_start_offset == partition.log.log_start_offset
            and self.error_code == 0
        )

    def update_request(self, newer: "FetchItem") -> None:
        """Copy the fields of a newer request for the same partition. The state of the last response is retained."""
        self.current_leader_epoch = newer.current_leader_epoch
        self.fetch_offset = newer.fetch_offset
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.bytes_max = newer.bytes_max


FetchItems = dict[tuple[TopicKey, int], FetchItem]


class FetchSession:
    """The partitions that a client fetches, in the order in which they are served."""

    __slots__ = ("epoch", "idle", "items", "of_follower", "session_id", "used_at", "uses_topic_ids")

    def __init__(
        self, session_id: int, uses_topic_ids: bool, items: "FetchItems", now_s: float, *, of_follower: bool = False
    ) -> None:
        self.session_id = session_id
        self.of_follower = of_follower
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.items = items
        self.used_at = now_s
        self.idle: IdlePartitions | None = None
        """The partitions that have no news for the follower; None unless a follower uses the session."""

    def active_items(self) -> list[FetchItem]:
        """Return the partitions that an incremental request has to serve."""
        return list(self.items.values() if self.idle is None else self.idle.active)

    def update(self, request: "FetchRequest", items: Iterable[FetchItem]) -> None:
        """Add and change the partitions that the request names, then remove the partitions that it forgets."""
        for item in items:
            existing = self.items.setdefault((item.topic, item.index), item)
            if existing is not item:
                existing.update_request(item)
            if self.idle is not None:
                self.idle.use(existing)
        for topic in request.forgotten_topics_data:
            key: TopicKey = topic.topic_id if self.uses_topic_ids else topic.topic
            for index in topic.partitions:
                removed = self.items.pop((key, index), None)
                if removed is not None and self.idle is not None:
                    self.idle.remove(removed)

    def serve_last(self, item: FetchItem) -> None:
        """Move a partition that returned data to the end of the order, so that no partition starves."""
        if self.items.pop((item.topic, item.index), None) is not None:
            self.items[item.topic, item.index] = item
            if self.idle is not None:
                self.idle.serve_last(item)


class FetchContext:
    """The items and the session of one request, and whether the response contains only changes."""

    __slots__ = ("incremental", "items", "session")

    def __init__(self, items: list[FetchItem], session: FetchSession | None, incremental: bool) -> None:
        self.items = items
        self.session = session
        self.incremental = incremental

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else NO_SESSION


class FetchSessions:
    """The cache of sessions. Both the sessions and their partitions are bounded."""

    def __init__(
        self,
        clock: "Clock",
        random: "Random",
        sessions_max: int,
        *,
        partitions_max: int = PARTITIONS_MAX,
        turns: "Turns | None" = None,
    ) -> None:
        """`turns` frees large sessions in steps. Without it, all sessions are freed immediately."""
        self._clock = clock
        self._random = random
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._turns = turns
        self._of_consumers: OrderedDict[int, FetchSession] = OrderedDict()
        self._of_followers: OrderedDict[int, FetchSession] = OrderedDict()
        """Both dicts contain sessions by their ids, the least recently used session first."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._of_consumers) + len(self._of_followers)

    def context(
        self,
        request: "FetchRequest",
        version: int,
        requested_items: "FetchItems | None" = None,
        *,
        of_follower: bool = False,
    ) -> FetchContext:
        """Return the context of a request, and create, update or end its session.

        `requested_items` are the partitions that the request names, if the caller has collected them already.
        `of_follower` says that another broker has sent the request; the caller has verified this. Raises the session
        errors of KIP-227. After such an error, a client sends a full request.
        """
        uses_topic_ids = version >= 13
        items = items_of(request, uses_topic_ids) if requested_items is None else list(requested_items.values())
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self.forget(request.session_id)
            return FetchContext(items, None, incremental=False)
        if request.session_epoch == INITIAL_EPOCH:
            self.forget(request.session_id)
            if requested_items is None:
                requested_items = {(item.topic, item.index): item for item in items}
            session = self._create(requested_items, uses_topic_ids, of_follower=of_follower)
            return FetchContext(items, session, incremental=False)
        session = self._find(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"fetch session {request.session_id} is not known")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"the request has fetch session epoch {request.session_epoch}, but epoch {session.epoch} was expected"
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError("a fetch session must use either topic names or topic ids in all requests")
        if requested_items is not None and _exceeds_changes_max(requested_items, request):
            self.forget(session.session_id)
            raise FetchSessionIdNotFound(f"the request changes more than {CHANGES_MAX} partitions of its fetch session")
        session.used_at = self._clock.monotonic()
        self._sessions_like(session).move_to_end(session.session_id)
        count_before = len(session.items)
        session.update(request, items)
        self._partitions += len(session.items) - count_before
        if session.of_follower:
            self._make_room_for_follower(0)
        elif self._partitions > self._partitions_max:
            self.forget(session.session_id)
            message = f"all fetch sessions of this broker together have more than {self._partitions_max} partitions"
            raise FetchSessionIdNotFound(message)
        if not session.items:
            # The session is empty: the request is answered without a session, as in Kafka.
            self.forget(session.session_id)
            return FetchContext(items, None, incremental=False)
        session.epoch = session.epoch % INT32_MAX + 1
        return FetchContext(session.active_items(), session, incremental=True)

    def _create(self, items: "FetchItems", uses_topic_ids: bool, *, of_follower: bool) -> FetchSession | None:
        """Return a new session. A follower always gets one; other clients get None if no room can be made."""
        now_s = self._clock.monotonic()
        if of_follower:
            self._make_room_for_follower(len(items), new_sessions=1)
        elif not self._has_room(len(items), new_sessions=1):
            oldest = _oldest_of(self._of_consumers)
            if oldest is None or now_s - oldest.used_at < EVICTABLE_AFTER_S:
                return None
            self.forget(oldest.session_id)
            if not self._has_room(len(items), new_sessions=1):
                return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or self._find(session_id) is not None:
            session_id = self._random.randrange(1, INT32_MAX)
        session = FetchSession(session_id, uses_topic_ids, items, now_s, of_follower=of_follower)
        self._sessions_like(session)[session_id] = session
        self._partitions += len(session.items)
        return session

    def _has_room(self, new_partitions: int, *, new_sessions: int = 0) -> bool:
        return (
            len(self) + new_sessions <= self._sessions_max and self._partitions + new_partitions <= self._partitions_max
        )

    def _make_room_for_follower(self, new_partitions: int, *, new_sessions: int = 0) -> None:
        """End sessions until there is room: first sessions of consumers, then sessions that a follower has not used for
        EVICTABLE_AFTER_S, for example because it was restarted. If this is not enough, the follower gets its session
        nevertheless: the numbers of brokers and replicas limit how much room all followers together need.
        """
        while not self._has_room(new_partitions, new_sessions=new_sessions):
            oldest = _oldest_of(self._of_consumers)
            if oldest is None:
                oldest = _oldest_of(self._of_followers)
                if oldest is None or self._clock.monotonic() - oldest.used_at < EVICTABLE_AFTER_S:
                    return
            self.forget(oldest.session_id)

    def _find(self, session_id: int) -> FetchSession | None:
        return self._of_consumers.get(session_id) or self._of_followers.get(session_id)

    def _sessions_like(self, session: FetchSession) -> "OrderedDict[int, FetchSession]":
        return self._of_followers if session.of_follower else self._of_consumers

    def forget(self, session_id: int) -> None:
        """End the session with this id, if it exists."""
        session = self._find(session_id)
        if session is not None:
            del self._sessions_like(session)[session_id]
            self._partitions -= len(session.items)
            if session.idle is not None:
                session.idle.close()
            if self._turns is not None and len(session.items) > LARGE_SESSION:
                items = [*session.items.values()]
                del session  # now only `items` refers to the items, unless a fetch still uses the session
                self._turns.free_in_steps([items])


def _oldest_of(sessions: "OrderedDict[int, FetchSession]") -> FetchSession | None:
    """Return the least recently used session."""
    return next(iter(sessions.values()), None)


def items_of(request: "FetchRequest", uses_topic_ids: bool) -> list[FetchItem]:
    """Return the partitions that the request names. If one is named more than once, its last entry is used."""
    if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
        topic = request.topics[0]
        return [FetchItem(topic.topic_id if uses_topic_ids else topic.topic, topic.partitions[0])]
    items = {}
    for topic in request.topics:
        key: TopicKey = topic.topic_id if uses_topic_ids else topic.topic
        for requested in topic.partitions:
            items[key, requested.partition] = FetchItem(key, requested)
    return list(items.values())


def _exceeds_changes_max(requested_items: FetchItems, request: "FetchRequest") -> bool:
    forgotten = request.forgotten_topics_data
    if len(requested_items) + len(forgotten) > CHANGES_MAX:
        return True
    return len(requested_items) + sum(len(topic.partitions) for topic in forgotten) > CHANGES_MAX


def items_in_steps(
    request: "FetchRequest", uses_topic_ids: bool, item_class: type[FetchItem] = FetchItem
) -> Steps[FetchItems]:
    """Return the same partitions as `items_of`, by topic and index, in steps."""
    items: FetchItems = {}
    for topic in request.topics:
        key: TopicKey = topic.topic_id if uses_topic_ids else topic.topic
        for requested in topic.partitions:
            items[key, requested.partition] = item_class(key, requested)
            yield
        yield
    return items
