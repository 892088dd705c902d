"""Steps of a classic group that the transcripts in tests/scenarios/groups do not show."""

import pytest
from classic_world import World

from group_harness.invariants import check_classic_group
from tidelog.coordinator.deadlines import Deadlines
from tidelog.coordinator.decision import Decision
from tidelog.coordinator.group import core, rebalance
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.settings import METADATA_BYTES_MAX, PENDING_MEMBERS_MAX, GroupSettings
from tidelog.coordinator.group.state import NEXT_STATE, GroupEvent, GroupState
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    world = World()
    world.stable()
    with pytest.raises(KeyError):
        world.group.delete(world.now)
    assert (GroupState.DEAD, GroupEvent.REBALANCE_NEEDED) not in NEXT_STATE


def test_no_state_but_dead_is_without_a_way_out() -> None:
    assert {state for state, _ in NEXT_STATE} == set(GroupState) - {GroupState.DEAD}
    assert set(NEXT_STATE.values()) == set(GroupState)


def test_a_second_join_of_a_member_takes_the_place_of_the_first() -> None:
    world = World()
    a, b = world.stable()
    first = world.join(a)
    second = world.join(a)
    assert first.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.answers
    world.join(b)
    assert second.only.generation_id == 2


def test_a_second_sync_of_a_member_takes_the_place_of_the_first() -> None:
    world = World()
    a, b = world.stable()
    world.join(a)
    world.join(b)
    first = world.sync(b, 2)
    second = world.sync(b, 2)
    assert first.error == ErrorCode.REBALANCE_IN_PROGRESS
    world.sync(a, 2, **{b.replace("-", "_"): b"x"})
    assert second.only.assignment == b"x"


def test_a_protocol_that_is_named_twice_is_not_chosen() -> None:
    world = World()
    first = world.join(protocols=[("range", b"1"), ("sticky", b"2"), ("range", b"3")])
    world.wait(300)
    assert (first.only.protocol_name, first.only.members[0].metadata) == ("sticky", b"2")
    assert world.join(protocols=[("range", b"4")]).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocols=[("sticky", b"4"), ("sticky", b"4")]).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    world.join(protocols=[("range", b"4"), ("sticky", b"5")])
    again = world.join(first.only.member_id, protocols=[("range", b"1"), ("sticky", b"2"), ("range", b"3")])
    assert (again.only.protocol_name, [member.metadata for member in again.only.members]) == ("sticky", [b"2", b"5"])


def test_a_member_whose_only_protocol_is_named_twice_is_refused() -> None:
    twice = [("range", b"1"), ("range", b"1")]
    world = World()
    assert world.join(protocols=twice).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.core.groups == {}
    member = world.join(protocols=[("range", b"1")])
    world.wait(300)
    assert world.join(member.only.member_id, protocols=twice).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_id_is_given_before_protocols_are_looked_at() -> None:
    """As in Kafka; the second request, which brings the id, is refused."""
    world = World()
    twice = [("range", b"1"), ("range", b"1")]
    given = world.join(version=4, protocols=twice)
    assert given.error == ErrorCode.MEMBER_ID_REQUIRED
    joined = world.join(given.only.member_id, version=4, protocols=twice)
    assert joined.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_new_group_begins_with_a_record_and_a_refused_join_makes_none() -> None:
    world = World()
    refused = world.join(protocols=[])
    assert refused.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.records == []
    assert world.core.groups == {}
    world.join()
    (record,) = world.records
    assert record.value == GroupMetadataValue("", 0, None, None, world.now.wall_ms, [])


def test_a_group_that_committed_before_needs_no_first_record() -> None:
    world = World()
    world.commit((0, 1, ""))
    world.join()
    assert len(world.records) == 1


def test_an_assignment_that_no_record_can_hold_is_refused_and_the_group_rebalances() -> None:
    world = World(record_bytes_max=10_000)
    a, b = world.stable()
    world.join(a)
    world.join(b)
    follower = world.sync(b, 2)
    leader = world.sync(a, 2, **{a.replace("-", "_"): bytes(10_000)})
    assert leader.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert follower.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.heartbeat(a, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.core.durable.by_id["g"].metadata.generation == 1  # type: ignore[union-attr]


def test_the_size_that_is_checked_is_not_below_that_of_the_batch() -> None:
    for name in ("range", "\U0001f600" * 2000):
        world = World()
        world.stable(5, protocols=[(name, b"m")])
        key, value = world.group.record().encode()
        assert value is not None
        tight = World(record_bytes_max=len(key) + len(value) + 60)
        tight.stable(5, protocols=[(name, b"m")])
        assert tight.group.state is not world.group.state


def test_a_static_member_with_metadata_too_large_for_the_record_makes_the_group_rebalance() -> None:
    world = World(record_bytes_max=10_000)
    first = world.join(instance="i", version=5)
    world.wait(300)
    member = first.only.member_id
    world.sync(member, 1, instance="i", **{member.replace("-", "_"): b"x"})
    back = world.join(instance="i", version=9, protocols=[("range", bytes(10_000))])
    assert back.only.generation_id == 2


def test_metadata_of_all_members_together_is_bounded() -> None:
    world = World()
    world.join(protocols=[("range", bytes(METADATA_BYTES_MAX // 2))])
    refused = world.join(protocols=[("range", bytes(METADATA_BYTES_MAX // 2))])
    assert refused.error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_only_the_growth_of_a_member_counts_for_the_bound_of_all_metadata() -> None:
    """A member that joins again replaces its own metadata, and so does a static member that starts again."""
    world = World()
    half = [("range", bytes(METADATA_BYTES_MAX // 2))]
    first = world.join(instance="i", version=5, protocols=half)
    world.wait(300)
    member = first.only.member_id
    again = world.join(member, instance="i", version=5, protocols=half)
    assert again.only.error_code == ErrorCode.NONE
    back = world.join(instance="i", version=5, protocols=half)
    assert back.only.error_code == ErrorCode.NONE
    refused = world.join(protocols=half)
    assert refused.error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_ids_handed_out_are_bounded() -> None:
    world = World(checked=False)
    for _ in range(PENDING_MEMBERS_MAX):
        assert world.join(version=4).error == ErrorCode.MEMBER_ID_REQUIRED
    assert world.join(version=4).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.wait(1000)
    assert world.join(version=4).error == ErrorCode.MEMBER_ID_REQUIRED


def test_the_groups_of_one_partition_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "GROUPS_MAX", 3)
    world = World()
    for number in range(3):
        assert world.commit((0, 1, ""), group=f"g{number}") == [ErrorCode.NONE]
    assert world.join(group="one-more").error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.refusal(group="one-more") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.commit((0, 2, ""), group="g0") == [ErrorCode.NONE]
    assert not world.join(group="g1").answers


def test_many_protocols_are_counted_by_what_they_take_in_memory() -> None:
    world = World()
    refused = world.join(protocols=[(str(number), b"") for number in range(400_000)])
    assert refused.error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_first_join_is_parked_for_five_minutes_at_most() -> None:
    world = World()
    joins = [world.join(session_ms=1_500_000, rebalance_ms=600_000) for _ in range(2)]
    world.wait(600)
    a, b = (join.only.member_id for join in joins)
    newcomer = world.join(rebalance_ms=600_000)
    other = world.join(a, session_ms=1000, rebalance_ms=600_000)
    world.wait(299_999)
    assert not newcomer.answers
    world.wait(1)
    assert newcomer.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert not other.answers, "an old member may wait for as long as the rebalance lasts"
    world.join(b)
    assert other.only.generation_id == 2


def test_a_member_that_waits_for_its_assignment_does_not_time_out() -> None:
    world = World()
    a, b = world.stable()
    world.join(a, session_ms=60_000, rebalance_ms=60_000)
    world.join(b, session_ms=1000, rebalance_ms=60_000)
    parked = world.sync(b, 2)
    world.wait(30_000)
    assert not parked.answers
    world.sync(a, 2, **{b.replace("-", "_"): b"late"})
    assert parked.only.assignment == b"late"
    world.wait(999)
    assert world.heartbeat(b, 2) == ErrorCode.NONE


def test_loaded_members_have_new_sessions_and_their_assignments() -> None:
    before = World()
    a, b = before.stable()
    after = World()
    after.core.durable = before.core.durable
    after.apply(after.core.loaded(after.now))
    assert after.group.state is GroupState.STABLE
    assert after.sync(b, 1).only.assignment == b.encode()
    after.wait(900)
    assert after.heartbeat(a, 1) == ErrorCode.NONE
    after.wait(900)
    assert after.heartbeat(b, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert after.heartbeat(a, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert after.join(a).only.members[0].metadata == b"m"


def test_the_first_rebalance_never_waits_longer_than_the_rebalance_timeout() -> None:
    world = World()
    first = world.join(rebalance_ms=1000, session_ms=60_000)
    for _ in range(20):
        world.wait(90)
        world.join(rebalance_ms=1000, session_ms=60_000)
        if first.answers:
            break
    assert world.time_ms < 1100
    assert first.only.generation_id == 1


def test_static_members_that_are_all_away_keep_their_group_until_a_session_ends() -> None:
    world = World()
    static = world.join(instance="i", version=5, session_ms=9000, rebalance_ms=1000)
    world.wait(300)
    member = static.only.member_id
    world.sync(member, 1, instance="i")
    world.join(rebalance_ms=1000)
    (passer_by,) = (one for one in world.group.members.by_id if one != member)
    world.leave((passer_by, None))
    world.wait(3000)
    assert world.group.state is GroupState.PREPARING_REBALANCE, "nobody has joined, so nobody can lead"
    assert world.heartbeat(member, 1, "i") == ErrorCode.REBALANCE_IN_PROGRESS
    world.wait(9000)
    assert world.group.state is GroupState.EMPTY


def test_a_member_that_left_is_not_waited_for() -> None:
    world = World()
    a, b = world.stable()
    world.join(a)
    world.join(b)
    world.leave((b, None))
    assert list(world.group.members.unsynced) == [a]


def test_a_loaded_group_that_is_too_large_rebalances() -> None:
    before = World()
    a, _, _ = before.stable(3)
    after = World(group_max_size=2)
    after.core.durable = before.core.durable
    after.apply(after.core.loaded(after.now))
    assert after.heartbeat(a, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_record_with_a_member_twice_is_read_all_the_same() -> None:
    """Bytes from the disk are never asserted on."""
    twice = MemberMetadata("m", "i", "c", "/h", -1, 1000, b"s", b"a")
    value = GroupMetadataValue("consumer", 3, "range", "gone", 7, [twice, twice])
    group = ClassicGroup.from_record("g", value, GroupSettings(), Deadlines(), World().now)
    check_classic_group(group)
    assert len(group.members) == 1
    assert group.members.leader_id == "m"
    assert group.members.by_id["m"].rebalance_timeout_ms == 1000


def test_a_record_without_a_time_counts_from_the_load() -> None:
    world = World()
    value = GroupMetadataValue("consumer", 3, None, None, -1, [])
    assert ClassicGroup.from_record("g", value, GroupSettings(), Deadlines(), world.now).state_since_ms > 0


def test_joining_costs_no_more_in_a_large_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 members, not one step over all of them until the join phase ends."""
    world = World(checked=False)
    walks = 0
    iterate = rebalance.ClassicMembers.__iter__

    def counted(self: rebalance.ClassicMembers) -> object:
        nonlocal walks
        walks += 1
        return iterate(self)

    monkeypatch.setattr(rebalance.ClassicMembers, "__iter__", counted)
    joins = [world.join() for _ in range(500)]
    assert walks == 0
    world.wait(600)
    assert walks <= 5
    assert len(joins[0].only.members) == 500


def test_nothing_is_decided_for_a_group_that_is_not_there() -> None:
    world = World()
    assert world.sync("m", 1).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave(("m", None)).only.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("m").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.core.groups == {}


def test_whoever_waits_is_known() -> None:
    world = World()
    a, b = world.stable()
    first = world.join(a)
    assert world.core.abandon() == [first]
    world.join(b)
    parked = world.sync(b, 2)
    assert world.core.abandon() == [parked]


def test_a_deleted_group_forgets_the_ids_that_it_handed_out() -> None:
    world = World()
    pending = world.join(version=4).only.member_id
    world.sweep()
    assert world.core.groups == {}
    assert world.join(pending).error == ErrorCode.UNKNOWN_MEMBER_ID
    world.wait(5000)
    assert world.core.next_deadline_ms() is None


def test_a_decision_is_empty_at_first() -> None:
    decision = Decision()
    assert (decision.records, decision.replies, decision.awaited_offset) == ([], [], 0)


# What the log says of members whose time is up


def removed(member_id: str, reason: str) -> str:
    return f"member removed group=g member={member_id} reason={reason}"


SESSION = "no heartbeat came within the session timeout"
JOIN = "a classic member did not join within the rebalance timeout"
SYNC = "a classic member did not sync within the rebalance timeout"


def test_a_member_whose_session_expires_leaves_a_line() -> None:
    world = World()
    a, b = world.stable()
    world.wait(600)
    world.heartbeat(a, 1)
    world.wait(600)
    assert world.lines == [removed(b, SESSION)]
    world.wait(10_000)
    assert world.lines == [removed(b, SESSION), removed(a, SESSION)]


def test_a_static_member_whose_session_expires_leaves_a_line() -> None:
    world = World()
    member = world.join(instance="i")
    world.wait(600)
    world.sync(member.only.member_id, 1, instance="i")
    world.wait(2000)
    assert world.lines == [removed(member.only.member_id, SESSION)]


def test_members_that_do_not_rejoin_in_time_leave_a_line_each() -> None:
    world = World()
    a, b, c = world.stable(3)
    world.join(a)
    for _ in range(4):
        world.wait(490)
        world.heartbeat(b, 1)
        world.heartbeat(c, 1)
    assert world.lines == []
    world.wait(100)
    assert world.lines == [removed(b, JOIN), removed(c, JOIN)]


def test_members_that_do_not_ask_for_their_assignment_leave_a_line_each() -> None:
    world = World()
    joins = [world.join(session_ms=30_000) for _ in range(3)]
    world.wait(600)
    a, b, c = (join.only.member_id for join in joins)
    world.sync(b, 1)
    world.wait(3000)
    assert world.lines[:2] == [removed(a, SYNC), removed(c, SYNC)]


def test_a_new_member_that_waits_too_long_leaves_a_line() -> None:
    """It holds up no rebalance for ever, however long the others may take."""
    world = World()
    (a,) = world.stable(1)
    world.join(a, rebalance_ms=2_000_000_000)
    world.sync(a, 2, **{a.replace("-", "_"): b"x"})
    world.join()
    for _ in range(1000):
        world.heartbeat(a, 2)
        world.wait(500)
    assert [line for line in world.lines if "did not end in time" in line] == [
        removed("c-3", "the rebalance that the new member waited for did not end in time")
    ]


def test_members_that_leave_or_are_asked_to_leave_no_line() -> None:
    world = World()
    a, b = world.stable()
    world.leave((a, None))
    world.join(b)
    world.wait(100)
    assert world.lines == []
