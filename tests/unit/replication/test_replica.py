"""What comes back late, twice or from another epoch changes nothing. The rest is in tests/scenarios/replication."""

from typing import Any

import pytest

from tidelog.log.leader_epochs import EpochEnd
from tidelog.replication.isr import bounded_min_isr
from tidelog.replication.replica import (
    AskForIsr,
    BecameFollower,
    BecameLeader,
    BrokersChanged,
    CutEnded,
    CutTo,
    Diverged,
    Effect,
    Event,
    FetchFrom,
    FollowerFetched,
    IsrAnswered,
    LeaderHighWatermark,
    LogAppended,
    LogSynced,
    MarksMoved,
    Replica,
    Role,
    Tick,
    WentOffline,
)
from tidelog.wire.errors import ErrorCode


def leader(
    epoch: int = 5, *, isr: tuple[int, ...] = (1, 2), replicas: tuple[int, ...] = (1, 2), end: int = 3
) -> Replica:
    replica = Replica(1, end, 0)
    step(replica, BrokersChanged({1: 10, 2: 20, 3: 30}), BecameLeader(epoch, 0, isr, replicas, 1))
    return replica


def follower(epoch: int = 5, *, end: int = 8, high_watermark: int = 4) -> Replica:
    replica = Replica(1, end, high_watermark)
    step(replica, BecameFollower(epoch, 2))
    return replica


def step(replica: Replica, *events: Event, now_ms: int = 0) -> list[Effect]:
    return [effect for event in events for effect in replica.step(event, now_ms)]


def state(replica: Replica) -> dict[str, Any]:
    found = {name: getattr(replica, name) for name in Replica.__slots__ if not name.startswith("_")}
    isr = replica.isr
    if isr is not None:
        found["isr"] = (isr.committed, isr.proposed, isr.awaits_answer, isr.partition_epoch, isr.replicas)
        found["followers"] = {broker: (known.end_offset, known.broker_epoch) for broker, known in isr.followers.items()}
    return found


@pytest.mark.parametrize(
    "late",
    [
        FollowerFetched(4, 2, 20, 3),
        FollowerFetched(5, 7, 20, 3),  # it has no replica
        FollowerFetched(5, 2, 20, 4),  # past the leader's end
        IsrAnswered(4, 0, ErrorCode.NONE, 1, (1,)),
        IsrAnswered(5, 0, ErrorCode.NONE, 1, (1,)),  # nothing was asked
        LeaderHighWatermark(5, 3),
        Diverged(5, EpochEnd(4, 1), EpochEnd(4, 3)),
        BecameLeader(4, 9, (1,), (1,), 1),
        BecameLeader(5, 0, (1,), (1,), 1),  # the same partition epoch again
        BecameFollower(4, 2),
        BecameFollower(5, 2),  # a leader epoch has one leader
        WentOffline(4),
        LogSynced(2),
        Tick(),
    ],
)
def test_what_does_not_concern_a_leader_changes_nothing(late: Event) -> None:
    replica = leader()
    before = state(replica)
    assert step(replica, late) == []
    assert state(replica) == before


@pytest.mark.parametrize(
    "late",
    [
        FollowerFetched(5, 2, 20, 8),
        IsrAnswered(5, 0, ErrorCode.NONE, 1, (1,)),
        LeaderHighWatermark(4, 8),
        LeaderHighWatermark(5, 3),  # a new leader that knows less: what was committed remains so
        Diverged(4, EpochEnd(3, 1), EpochEnd(3, 8)),
        BecameFollower(5, 2),
        BecameLeader(4, 0, (1,), (1,), 1),
        Tick(),
    ],
)
def test_what_does_not_concern_a_follower_changes_nothing(late: Event) -> None:
    replica = follower()
    before = state(replica)
    assert step(replica, late) == []
    assert state(replica) == before


def test_a_fetch_in_an_old_broker_epoch_does_not_count() -> None:
    replica = leader()
    assert step(replica, FollowerFetched(5, 2, 20, 1)) == [MarksMoved()]
    assert step(replica, FollowerFetched(5, 2, 21, 0), FollowerFetched(5, 2, 20, 3)) == []
    assert replica.high_watermark == 1, "it never goes back, though the follower has lost its log"


def test_an_answer_to_an_earlier_question_is_dropped() -> None:
    replica = leader(isr=(1,), replicas=(1, 2, 3))
    [asked] = [e for e in step(replica, FollowerFetched(5, 2, 20, 3)) if isinstance(e, AskForIsr)]
    assert (asked.partition_epoch, asked.isr) == (0, ((1, 10), (2, 20)))
    # the metadata says the outcome first, and the next question is asked
    step(replica, BecameLeader(5, 1, (1, 2), (1, 2, 3), 1))
    [asked] = [e for e in step(replica, FollowerFetched(5, 3, 30, 3, proved_ms=1)) if isinstance(e, AskForIsr)]
    assert asked.partition_epoch == 1
    before = state(replica)
    assert step(replica, IsrAnswered(5, 0, ErrorCode.NONE, 1, (1, 2))) == []
    assert state(replica) == before
    step(replica, IsrAnswered(5, 1, ErrorCode.NONE, 2, (1, 2, 3)))
    assert replica.isr is not None
    assert (replica.isr.committed, replica.isr.proposed) == ((1, 2, 3), None)


@pytest.mark.parametrize(
    ("error", "asks_again", "remains_asked"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.REQUEST_TIMED_OUT, True, True),
        (ErrorCode.NETWORK_EXCEPTION, True, True),
        (ErrorCode.INVALID_UPDATE_VERSION, False, True),
        (ErrorCode.NEW_LEADER_ELECTED, False, True),
    ],
)
def test_until_the_outcome_is_known_the_new_member_counts(
    error: ErrorCode, asks_again: bool, remains_asked: bool
) -> None:
    replica = leader(isr=(1,))
    step(replica, FollowerFetched(5, 2, 20, 3), IsrAnswered(5, 0, error))
    assert replica.isr is not None
    assert (replica.isr.maximal == (1, 2)) is remains_asked
    assert bool(step(replica, Tick())) is asks_again


@pytest.mark.parametrize(
    ("answer", "committed", "proposed", "asks_again", "high_watermark"),
    [
        (None, (1, 2), (1, 2, 3), False, 0),
        (IsrAnswered(5, 0, ErrorCode.NETWORK_EXCEPTION), (1, 2), (1, 2, 3), True, 0),
        (IsrAnswered(5, 0, ErrorCode.INVALID_UPDATE_VERSION), (1, 2), (1, 2, 3), False, 0),
        (IsrAnswered(5, 0, ErrorCode.INELIGIBLE_REPLICA), (1, 2), None, False, 5),
        (IsrAnswered(5, 0, ErrorCode.NONE, 1, (1, 2, 3)), (1, 2, 3), None, False, 0),
    ],
)
@pytest.mark.parametrize("arrives_late", [False, True])
def test_a_leader_that_resumes_its_epoch_keeps_its_proposal(
    answer: IsrAnswered | None,
    committed: tuple[int, ...],
    proposed: tuple[int, ...] | None,
    *,
    asks_again: bool,
    high_watermark: int,
    arrives_late: bool,
) -> None:
    """The lease ends while the controller has a proposal, and is regained with the same metadata. The controller may
    accept the proposal at any time, so its member counts. Otherwise the controller could elect a member of the ISR that
    lacks committed records.
    """
    replica = leader(isr=(1, 2), replicas=(1, 2, 3))
    assert [e for e in step(replica, FollowerFetched(5, 3, 30, 3)) if isinstance(e, AskForIsr)]
    step(replica, WentOffline(5))
    resumes = BecameLeader(5, 0, (1, 2), (1, 2, 3), 1)
    events: list[Event] = [resumes] if answer is None else [answer, resumes]
    step(replica, *(reversed(events) if arrives_late else events), LogAppended(5, True), FollowerFetched(5, 2, 20, 5))
    assert replica.isr is not None
    assert (replica.isr.committed, replica.isr.proposed) == (committed, proposed)
    assert replica.high_watermark == high_watermark, "the follower 3 has not fetched since the leader resumed"
    assert any(isinstance(effect, AskForIsr) for effect in step(replica, Tick())) is asks_again


def test_newer_metadata_ends_the_proposal_of_a_leader_that_resigned() -> None:
    replica = leader(isr=(1, 2), replicas=(1, 2, 3))
    step(replica, FollowerFetched(5, 3, 30, 3), WentOffline(5), BecameLeader(5, 1, (1, 2), (1, 2, 3), 1))
    assert replica.isr is not None
    assert (replica.isr.proposed, replica.isr.partition_epoch) == (None, 1)
    step(replica, FollowerFetched(5, 3, 30, 3), WentOffline(5), BecameLeader(6, 1, (1, 2), (1, 2, 3), 1))
    assert replica.isr is not None
    assert replica.isr.proposed is None, "a proposal belongs to a leader epoch"


def _asks(replica: Replica, offset: int, proved_ms: int, now_ms: int) -> bool:
    """Return whether a fetch of broker 3 lets the leader propose it for the ISR."""
    effects = step(replica, FollowerFetched(5, 3, 30, offset, proved_ms=proved_ms), now_ms=now_ms)
    return any(isinstance(effect, AskForIsr) for effect in effects)


@pytest.mark.parametrize("resigns", [False, True])
def test_a_fetch_from_before_a_new_partition_epoch_adds_nobody_to_the_isr(resigns: bool) -> None:
    """The new partition epoch may mean that the replica has lost its log. A fetch that it had sent before may arrive
    late, even after fetches that were sent later.
    """
    replica = leader(isr=(1, 2), replicas=(1, 2, 3))
    assert _asks(replica, 3, 0, 100), "there was no news yet in this leader epoch"
    step(replica, *([WentOffline(5)] if resigns else []), BecameLeader(5, 1, (1, 2), (1, 2, 3), 1), now_ms=200)
    assert replica.isr is not None
    assert replica.isr.proposed is None
    assert not _asks(replica, 3, 100, 200)
    assert not _asks(replica, 3, 200, 300), "both happened in the same millisecond"
    assert not _asks(replica, 0, 300, 400)
    assert not _asks(replica, 3, 150, 500)
    assert _asks(replica, 3, 400, 600)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_fetch_from_before_a_leader_knew_of_its_epoch_adds_nobody_if_the_partition_has_changed_since(
    is_late: bool,
) -> None:
    replica = Replica(1, 3, 0)
    begins = BecameLeader(5, 8, (1, 2), (1, 2, 3), 1, is_late)
    step(replica, BrokersChanged({1: 10, 2: 20, 3: 30}), begins, now_ms=100)
    assert _asks(replica, 3, 0, 200) is not is_late
    assert _asks(replica, 3, 200, 300) is is_late


def test_the_metadata_may_change_while_a_promotion_waits_for_a_cut() -> None:
    replica = follower(end=8)
    begins = BecameLeader(6, 8, (1, 2), (1, 2, 3), 1)
    step(replica, BrokersChanged({1: 10, 2: 20, 3: 30}), Diverged(5, EpochEnd(3, 5), EpochEnd(3, 7)), begins)
    step(replica, begins._replace(partition_epoch=9), now_ms=100)
    step(replica, CutEnded(5), now_ms=200)
    assert replica.leads
    late, new = (FollowerFetched(6, 3, 30, 5, proved_ms=proved_ms) for proved_ms in (150, 250))
    assert not any(isinstance(effect, AskForIsr) for effect in step(replica, late, now_ms=300))
    assert any(isinstance(effect, AskForIsr) for effect in step(replica, new, now_ms=400))


def test_a_follower_never_goes_past_its_own_end() -> None:
    replica = follower(end=8)
    step(replica, LeaderHighWatermark(5, 12))
    assert replica.high_watermark == 8
    step(replica, LogAppended(10, True), LeaderHighWatermark(5, 12))
    assert replica.high_watermark == 10


def test_one_cut_at_a_time_and_its_end_counts_in_every_epoch() -> None:
    replica = follower(end=8, high_watermark=6)
    diverged = Diverged(5, EpochEnd(3, 5), EpochEnd(3, 7))
    assert step(replica, diverged) == [CutTo(5, 6)]
    assert step(replica, diverged) == []
    assert step(replica, BecameFollower(6, 3)) == [], "it fetches again after the cut"
    assert step(replica, CutEnded(5)) == [FetchFrom(3, 6)]
    assert (replica.end_offset, replica.local_mark, replica.high_watermark) == (5, 5, 5)


@pytest.mark.parametrize(
    ("leader_end", "own_end", "offset"),
    [
        ((3, 5), (3, 7), 5),
        ((3, 7), (3, 5), 5),
        ((3, 7), (2, 4), 4),  # it has nothing of epoch 3: cut to the end of its older one, and ask again (KIP-279)
        ((3, 5), (-1, -1), 5),
        ((3, 20), (3, 20), 8),  # nothing to cut but epochs without records
    ],
)
def test_where_a_follower_is_cut(leader_end: tuple[int, int], own_end: tuple[int, int], offset: int) -> None:
    assert step(follower(end=8), Diverged(5, EpochEnd(*leader_end), EpochEnd(*own_end))) == [CutTo(offset, 4)]


def test_a_promotion_that_waits_for_a_cut_gives_way_to_a_newer_role() -> None:
    replica = follower()
    step(replica, Diverged(5, EpochEnd(3, 5), EpochEnd(3, 7)), BecameLeader(6, 1, (1,), (1,), 1))
    assert (replica.leads, replica.role) == (False, Role.FOLLOWER)
    step(replica, WentOffline(7), CutEnded(5))
    assert (replica.leads, replica.role, replica.leader_epoch) == (False, Role.OFFLINE, 7)


def test_the_bound_of_min_insync_replicas() -> None:
    assert [bounded_min_isr(2, replicas) for replicas in (1, 2, 3)] == [1, 2, 2]
