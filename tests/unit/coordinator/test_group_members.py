import pytest

from group_harness.invariants import check_members
from tidelog.coordinator.deadlines import Deadline
from tidelog.coordinator.group.members import ClassicMember, ClassicMembers, Protocols


def member(name: str, *protocols: str, instance: str | None = None, rebalance_timeout_ms: int = 1000) -> ClassicMember:
    told: Protocols = [(protocol, f"{name}:{protocol}".encode()) for protocol in protocols or ("range",)]
    return ClassicMember(
        member_id=name,
        instance_id=instance,
        client_id="client",
        client_host="/host",
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=1000,
        protocols=told,
        session=Deadline(lambda *_: None),
    )


def group(*them: ClassicMember) -> ClassicMembers:
    members = ClassicMembers()
    for one in them:
        members.add(one)
        check_members(members)
    return members


def test_the_protocol_that_most_prefer_among_those_that_all_know() -> None:
    members = group(member("a", "x", "range", "rr"), member("b", "rr", "range"), member("c", "range", "rr"))
    assert members.select_protocol() == "range"


def test_a_tie_ends_as_in_kafka() -> None:
    assert group(member("a", "range", "rr"), member("b", "rr", "range")).select_protocol() == "rr"
    assert group(member("b", "rr", "range"), member("a", "range", "rr")).select_protocol() == "rr"


def test_support_asks_for_one_protocol_of_all_members() -> None:
    members = group(member("a", "x", "range"), member("b", "range", "y"))
    assert members.supports([("z", b""), ("range", b"")])
    assert not members.supports([("x", b""), ("y", b"")])
    assert ClassicMembers().supports([("anything", b"")])


def test_votes_follow_those_who_leave_and_change() -> None:
    a, b = member("a", "x"), member("b", "x", "y")
    members = group(a, b)
    members.set_protocols(b, [("y", b"")])
    assert not members.supports([("x", b"")])
    members.remove(a)
    check_members(members)
    assert members.supports([("y", b"")])
    assert members.select_protocol() == "y"


def test_the_first_leads_and_after_it_the_next() -> None:
    a, b, c = member("a"), member("b"), member("c")
    members = group(a, b, c)
    assert members.leader_id == "a"
    members.remove(b)
    assert members.leader_id == "a"
    members.remove(a)
    assert members.leader_id == "c"
    members.remove(c)
    assert members.leader_id is None


def test_a_leader_that_did_not_join_is_replaced_by_one_that_did() -> None:
    a, b, c = member("a"), member("b"), member("c")
    members = group(a, b, c)
    assert not members.elect_joined_leader()
    members.park_join(c, print)
    assert members.elect_joined_leader()
    assert members.leader_id == "c"
    members.park_join(b, print)
    assert members.elect_joined_leader()
    assert members.leader_id == "c"
    assert not ClassicMembers().elect_joined_leader()


def test_joins_are_counted_once_a_member() -> None:
    a = member("a")
    members = group(a)
    assert members.park_join(a, print) is None
    assert members.all_joined
    assert members.park_join(a, repr) is print
    check_members(members)
    assert members.unpark_join(a) is repr
    assert members.unpark_join(a) is None
    assert members.parked_join_count == 0


def test_a_pending_id_keeps_the_group_from_being_complete() -> None:
    members = ClassicMembers()
    assert members.all_joined
    members.pending["p"] = Deadline(lambda *_: None)
    assert not members.all_joined


def test_a_renamed_member_keeps_its_place() -> None:
    a, b = member("a", instance="i"), member("b")
    members = group(a, b)
    members.unsynced["a"] = None
    members.rename(a, "a2")
    check_members(members)
    assert members.leader_id == "a2"
    assert members.static_ids == {"i": "a2"}
    assert members.unsynced == {"a2": None}
    assert "a" not in members


def test_the_longest_rebalance_timeout_counts() -> None:
    assert group(member("a", rebalance_timeout_ms=5), member("b", rebalance_timeout_ms=9)).rebalance_timeout_ms == 9
    assert ClassicMembers().rebalance_timeout_ms == 0


def test_metadata_of_a_protocol() -> None:
    assert member("a", "x", "y").metadata_for("y") == b"a:y"
    assert member("a", "x").metadata_for("z") == b""
    assert member("a", "x").metadata_for(None) == b""


def test_a_member_is_not_removed_with_a_request_parked() -> None:
    a = member("a")
    members = group(a)
    members.park_join(a, print)
    with pytest.raises(AssertionError):
        members.remove(a)
