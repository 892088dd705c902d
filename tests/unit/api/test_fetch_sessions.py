"""KIP-227 in the broker: which clients get a session, what it stores, when it is refused."""

import random

import pytest

from tidelog.api.fetch_sessions import FetchSessions
from tidelog.wire.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

VERSION = 12


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> FetchSessions:
    return FetchSessions(clock, random.Random(1), sessions_max=2)


def asking(epoch: int, session_id: int = 0, forget: dict[str, list[int]] | None = None, **offsets: int) -> FetchRequest:
    """Partition 0 of each named topic, from its offset."""
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=9)])
            for name, offset in offsets.items()
        ],
        forgotten_topics_data=[ForgottenTopic(topic=n, partitions=p) for n, p in (forget or {}).items()],
    )


def test_a_full_fetch_gets_a_session_and_increments_name_only_changes(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=1, b=2), VERSION)
    assert not full.incremental
    assert full.session_id > 0
    again = sessions.context(asking(1, full.session_id, b=7, c=3), VERSION)
    assert again.incremental
    assert [(i.topic, i.fetch_offset) for i in again.items] == [("a", 1), ("b", 7), ("c", 3)]
    third = sessions.context(asking(2, full.session_id, forget={"a": [0]}), VERSION)
    assert [i.topic for i in third.items] == ["b", "c"]


def test_served_partitions_go_behind_the_others(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=0, b=0, c=0), VERSION)
    assert full.session is not None
    full.session.serve_last(full.items[0])
    assert [i.topic for i in sessions.context(asking(1, full.session_id), VERSION).items] == ["b", "c", "a"]


def test_sessionless_requests_get_none_and_end_one(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=0), VERSION)
    final = sessions.context(asking(-1, full.session_id, a=0), VERSION)
    assert final.session_id == 0
    assert len(sessions) == 0
    assert sessions.context(asking(-1, a=0), VERSION).session_id == 0
    assert sessions.context(asking(0, a=0), 6).session_id == 0  # before v7 there are no sessions


def test_wrong_ids_epochs_and_kinds_are_refused(sessions: FetchSessions) -> None:
    with pytest.raises(FetchSessionIdNotFound):
        sessions.context(asking(1, 99), VERSION)
    full = sessions.context(asking(0, a=0), VERSION)
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.context(asking(2, full.session_id), VERSION)
    with pytest.raises(FetchSessionTopicIdError):
        sessions.context(asking(1, full.session_id), 13)


def test_forgetting_everything_ends_the_session(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=0), VERSION)
    empty = sessions.context(asking(1, full.session_id, forget={"a": [0]}), VERSION)
    assert (empty.session_id, empty.items, len(sessions)) == (0, [], 0)


def test_what_is_named_and_forgotten_is_forgotten(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=0, b=0), VERSION)
    again = sessions.context(asking(1, full.session_id, forget={"b": [0], "c": [0, 0]}, b=3, c=0), VERSION)
    assert [i.topic for i in again.items] == ["a"]
    assert [i.topic for i in sessions.context(asking(2, full.session_id), VERSION).items] == ["a"]


def test_a_request_that_leaves_a_session_empty_is_answered_without_one(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=0, b=0), VERSION)
    last = sessions.context(asking(1, full.session_id, forget={"a": [0], "b": [0], "c": [0]}, b=3, c=4), VERSION)
    assert (last.session_id, last.incremental, len(sessions)) == (0, False, 0)
    assert [(i.topic, i.fetch_offset) for i in last.items] == [("b", 3), ("c", 4)]


def test_a_partition_that_is_named_twice_is_fetched_as_it_is_named_last(sessions: FetchSessions) -> None:
    def twice(epoch: int, session_id: int, *offsets: int) -> FetchRequest:
        request = asking(epoch, session_id, a=offsets[0], b=0)
        request.topics += asking(0, a=offsets[1]).topics
        return request

    full = sessions.context(twice(0, 0, 1, 2), VERSION)
    assert [(i.topic, i.fetch_offset) for i in full.items] == [("a", 2), ("b", 0)]
    again = sessions.context(twice(1, full.session_id, 4, 3), VERSION)
    assert [(i.topic, i.fetch_offset) for i in again.items] == [("a", 3), ("b", 0)]


def test_the_cache_is_bounded_and_only_stale_sessions_make_room(sessions: FetchSessions, clock: Clock) -> None:
    first = sessions.context(asking(0, a=0), VERSION)
    second = sessions.context(asking(0, a=0), VERSION)
    assert sessions.context(asking(0, a=0), VERSION).session_id == 0
    clock.now_s = 100.0
    sessions.context(asking(1, first.session_id), VERSION)
    clock.now_s = 130.0
    assert sessions.context(asking(0, a=0), VERSION).session_id > 0
    with pytest.raises(FetchSessionIdNotFound):
        sessions.context(asking(1, second.session_id), VERSION)
    sessions.context(asking(2, first.session_id), VERSION)


def test_a_follower_always_gets_a_session_and_no_consumer_ends_it(clock: Clock) -> None:
    sessions = FetchSessions(clock, random.Random(1), sessions_max=3)
    consumers = [sessions.context(asking(0, a=0), VERSION).session_id for _ in range(3)]
    clock.now_s = 1.0
    follower = sessions.context(asking(0, a=0), VERSION, of_follower=True).session_id
    assert follower > 0
    assert len(sessions) == 3
    with pytest.raises(FetchSessionIdNotFound):
        sessions.context(asking(1, consumers[0]), VERSION)  # the least recently used one
    clock.now_s = 1000.0
    newer = [sessions.context(asking(0, a=0), VERSION).session_id for _ in range(3)]
    assert [session_id > 0 for session_id in newer] == [True, True, False]
    assert sessions.context(asking(1, follower), VERSION, of_follower=True).incremental
    more = [sessions.context(asking(0, a=0), VERSION, of_follower=True).session_id for _ in range(4)]
    assert all(more), "more followers than the limit"
    assert sessions.context(asking(0, a=0), VERSION).session_id == 0
    clock.now_s = 1121.0
    for session_id in more[1:]:
        sessions.context(asking(1, session_id), VERSION, of_follower=True)
    assert sessions.context(asking(0, a=0), VERSION, of_follower=True).session_id > 0
    with pytest.raises(FetchSessionIdNotFound):
        sessions.context(asking(2, follower), VERSION, of_follower=True)  # this follower has ended
    assert len(sessions) == 4


@pytest.mark.parametrize("sessions_max", [0, 9])
def test_the_partitions_of_followers_have_precedence(clock: Clock, sessions_max: int) -> None:
    sessions = FetchSessions(clock, random.Random(1), sessions_max=sessions_max, partitions_max=4)
    consumer = sessions.context(asking(0, a=0), VERSION).session_id
    follower = sessions.context(asking(0, a=0, b=0, c=0), VERSION, of_follower=True).session_id
    assert follower > 0
    assert len(sessions) == (2 if sessions_max else 1)
    assert sessions.context(asking(1, follower, d=0), VERSION, of_follower=True).incremental
    assert len(sessions) == 1
    with pytest.raises(FetchSessionIdNotFound):
        sessions.context(asking(1, consumer), VERSION)
    assert sessions.context(asking(2, follower, e=0), VERSION, of_follower=True).incremental
    assert sessions.context(asking(0, a=0), VERSION).session_id == 0


def test_a_session_may_begin_without_partitions(sessions: FetchSessions) -> None:
    assert sessions.context(asking(0), VERSION).session_id > 0


def test_epochs_wrap_to_one(sessions: FetchSessions) -> None:
    full = sessions.context(asking(0, a=0), VERSION)
    assert full.session is not None
    full.session.epoch = 2**31 - 1
    sessions.context(asking(2**31 - 1, full.session_id), VERSION)
    assert full.session.epoch == 1


def test_partitions_of_all_sessions_together_are_bounded(clock: Clock) -> None:
    sessions = FetchSessions(clock, random.Random(1), sessions_max=9, partitions_max=3)
    first = sessions.context(asking(0, a=0, b=0), VERSION)
    assert sessions.context(asking(0, c=0, d=0), VERSION).session is None
    assert sessions.context(asking(1, first.session_id, c=0), VERSION).incremental
    with pytest.raises(FetchSessionIdNotFound, match="more than 3 partitions"):
        sessions.context(asking(2, first.session_id, d=0), VERSION)
    assert len(sessions) == 0
    assert sessions.context(asking(0, a=0, b=0, c=0), VERSION).session is not None
    assert sessions.context(asking(0, d=0), VERSION).session is None
    clock.now_s += 121
    assert sessions.context(asking(0, d=0), VERSION).session is not None
    assert sessions.context(asking(0, e=0, f=0, g=0), VERSION).session is None
