from collections.abc import Iterator

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def joined(broker: VirtualBroker, instance: str | None = None) -> str:
    protocols = [JoinGroupRequestProtocol("range", b"m")]
    sent = broker.send("JoinGroup", 5, JoinGroupRequest("g", 5000, 5000, "", instance, "consumer", protocols))
    if instance is None:
        member = sent.response.member_id
        sent = broker.send("JoinGroup", 5, JoinGroupRequest("g", 5000, 5000, member, None, "consumer", protocols))
    broker.advance(0.3)
    return sent.response.member_id  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", range(3))
def test_one_member_up_to_version_2(broker: VirtualBroker, version: int) -> None:
    member = joined(broker)
    request = LeaveGroupRequest(group_id="g", member_id=member)
    assert broker.call("LeaveGroup", version, request).error_code == ErrorCode.NONE
    assert broker.call("LeaveGroup", version, request).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3, 6))
def test_several_members_from_version_3(broker: VirtualBroker, version: int) -> None:
    member = joined(broker, "i")
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity("nobody"), MemberIdentity(member, "i")])
    response = broker.call("LeaveGroup", version, request)
    assert response.error_code == ErrorCode.NONE
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in response.members] == [
        ("nobody", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (member, "i", ErrorCode.NONE),
    ]


def test_by_instance_id(broker: VirtualBroker) -> None:
    joined(broker, "i")
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity("", "i"), MemberIdentity("", "j")])
    response = broker.call("LeaveGroup", 5, request)
    assert [m.error_code for m in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", range(6))
def test_a_group_needs_a_name(broker: VirtualBroker, version: int) -> None:
    request = LeaveGroupRequest() if version >= 3 else LeaveGroupRequest(member_id="m")
    response = broker.call("LeaveGroup", version, request)
    assert response.error_code == ErrorCode.INVALID_GROUP_ID
    assert response.members == []


def test_the_leave_of_the_last_is_told_once_the_empty_group_is_committed(broker: VirtualBroker) -> None:
    member = joined(broker)
    broker.offsets_log("g").hold_commits = True
    sent = broker.send("LeaveGroup", 1, LeaveGroupRequest(group_id="g", member_id=member))
    assert not sent.answered
    broker.offsets_log("g").commit_all()
    assert sent.response.error_code == ErrorCode.NONE
