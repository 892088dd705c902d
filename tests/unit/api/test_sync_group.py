from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

VERSIONS = range(6)
NOTHING: Mapping[str, bytes] = MappingProxyType({})


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def joined(broker: VirtualBroker, count: int = 1) -> list[str]:
    """Members of generation 1, the leader first."""
    request = JoinGroupRequest("g", 5000, 5000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"m")])
    sent = [broker.send("JoinGroup", 3, request) for _ in range(count)]
    broker.advance(1)
    return [one.response.member_id for one in sent]


def sync(
    version: int, member: str, assign: Mapping[str, bytes] = MappingProxyType({}), **fields: object
) -> SyncGroupRequest:
    if version >= 5:
        fields = {"protocol_type": "consumer", "protocol_name": "range", **fields}
    assignments = [SyncGroupRequestAssignment(one, data) for one, data in assign.items()]
    return SyncGroupRequest(group_id="g", generation_id=1, member_id=member, assignments=assignments, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_waits_for_the_leader(broker: VirtualBroker, version: int) -> None:
    leader, follower = joined(broker, 2)
    parked = broker.send("SyncGroup", version, sync(version, follower))
    assert not parked.answered
    led = broker.call("SyncGroup", version, sync(version, leader, {leader: b"L", follower: b"F"}))
    assert (led.error_code, bytes(led.assignment)) == (ErrorCode.NONE, b"L")
    assert bytes(parked.response.assignment) == b"F"
    assert led.protocol_type == ("consumer" if version >= 5 else None)
    assert led.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_errors(broker: VirtualBroker, version: int) -> None:
    joined(broker)
    refused = broker.call("SyncGroup", version, sync(version, "nobody"))
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (refused.protocol_type, refused.protocol_name, bytes(refused.assignment)) == (None, None, b"")


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_version_5_must_name_the_protocol(broker: VirtualBroker, missing: str) -> None:
    (member,) = joined(broker)
    refused = broker.call("SyncGroup", 5, sync(5, member, **{missing: None}))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_needs_a_name(broker: VirtualBroker) -> None:
    assert broker.call("SyncGroup", 3, SyncGroupRequest("", 1, "m")).error_code == ErrorCode.INVALID_GROUP_ID


def test_the_assignment_is_told_once_it_is_committed(broker: VirtualBroker) -> None:
    leader, follower = joined(broker, 2)
    broker.offsets_log("g").hold_commits = True
    one = broker.send("SyncGroup", 3, sync(3, leader, {leader: b"L", follower: b"F"}))
    other = broker.send("SyncGroup", 3, sync(3, follower))
    assert not one.answered
    assert not other.answered, "stable, but its assignment could still be lost"
    broker.offsets_log("g").commit_all()
    assert bytes(one.response.assignment) == b"L"
    assert bytes(other.response.assignment) == b"F"


def test_a_parked_sync_is_refused_when_the_coordinator_goes(broker: VirtualBroker) -> None:
    _, follower = joined(broker, 2)
    parked = broker.send("SyncGroup", 3, sync(3, follower))
    broker.groups.close()
    assert parked.response.error_code == ErrorCode.NOT_COORDINATOR
