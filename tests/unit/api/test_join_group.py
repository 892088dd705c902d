from collections.abc import Iterator
from typing import Any

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.sync_group import SyncGroupRequest

VERSIONS = range(10)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def request(version: int, group: str = "g", **fields: Any) -> JoinGroupRequest:
    if version >= 1:
        fields.setdefault("rebalance_timeout_ms", 3000)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=fields.pop("session_timeout_ms", 1000),
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"metadata")],
        **fields,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_joins(broker: VirtualBroker, version: int) -> None:
    sent = broker.send("JoinGroup", version, request(version), "me")
    if version >= 4:
        first = sent.response
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert first.protocol_name == (None if version >= 7 else "")
        sent = broker.send("JoinGroup", version, request(version, member_id=first.member_id), "me")
    assert not sent.answered
    broker.advance(0.3)
    joined = sent.response
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1
    assert joined.protocol_name == "range"
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert joined.member_id == joined.leader
    assert joined.member_id.startswith("me-")
    assert len(joined.member_id) == len("me-") + 36
    (member,) = joined.members
    assert (member.member_id, bytes(member.metadata)) == (joined.member_id, b"metadata")
    assert joined.skip_assignment is False


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_echo_the_member_id(broker: VirtualBroker, version: int) -> None:
    for group, session_ms, error in (
        ("", 1000, ErrorCode.INVALID_GROUP_ID),
        ("g", 99, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("g", 1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("g", 1000, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        asked = request(version, group, session_timeout_ms=session_ms, member_id="nobody")
        refused = broker.call("JoinGroup", version, asked)
        assert (refused.error_code, refused.member_id) == (error, "nobody")
        assert refused.protocol_name == (None if version >= 7 else "")
        assert refused.generation_id == -1


def test_a_client_without_an_id(broker: VirtualBroker) -> None:
    assert broker.call("JoinGroup", 9, request(9), None).member_id.startswith("-")


def test_the_host_is_written_as_kafka_does(broker: VirtualBroker) -> None:
    broker.send("JoinGroup", 3, request(3))
    (member,) = broker.groups.host.coordinator("g").core.groups["g"].members
    assert member.client_host == "/127.0.0.1"


def test_a_static_leader_that_comes_back_may_skip_the_assignment(broker: VirtualBroker) -> None:
    sent = broker.send("JoinGroup", 9, request(9, group_instance_id="i"))
    broker.advance(0.3)
    member = sent.response.member_id
    broker.call("SyncGroup", 3, SyncGroupRequest("g", 1, member, "i"))
    back = broker.call("JoinGroup", 9, request(9, group_instance_id="i"))
    assert back.skip_assignment is True
    assert back.member_id == back.leader != member


def test_a_parked_join_is_refused_when_the_coordinator_goes(broker: VirtualBroker) -> None:
    sent = broker.send("JoinGroup", 3, request(3))
    broker.groups.close()
    assert sent.response.error_code == ErrorCode.NOT_COORDINATOR


def test_the_first_join_waits_for_its_groups_record(broker: VirtualBroker) -> None:
    broker.offsets_log("g").hold_commits = True
    sent = broker.send("JoinGroup", 9, request(9))
    assert not sent.answered
    broker.offsets_log("g").commit_all()
    assert sent.response.error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_generation_is_told_once_its_record_is_committed(broker: VirtualBroker) -> None:
    sent = [broker.send("JoinGroup", 3, request(3)) for _ in range(2)]
    broker.advance(0.6)
    leader, follower = (one.response.member_id for one in sent)
    broker.offsets_log("g").hold_commits = True
    broker.send("SyncGroup", 3, SyncGroupRequest("g", 1, leader))
    again = broker.send("JoinGroup", 3, request(3, member_id=follower))
    assert not again.answered, "of a stable generation that could still be lost"
    broker.offsets_log("g").commit_all()
    assert again.response.generation_id == 1


def test_nobody_listens_any_more(broker: VirtualBroker) -> None:
    sent = broker.send("JoinGroup", 3, request(3))
    assert sent.pending is not None
    sent.pending.abandon()
    broker.advance(0.3)
    assert broker.groups.host.coordinator("g").core.groups["g"].generation == 1
