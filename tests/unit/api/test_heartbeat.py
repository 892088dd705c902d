import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


@pytest.mark.parametrize("version", range(5))
def test_every_version(version: int) -> None:
    broker = VirtualBroker()
    broker.start_coordinators()
    request = JoinGroupRequest("g", 5000, 5000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"m")])
    sent = broker.send("JoinGroup", 3, request)
    broker.advance(0.3)
    member = sent.response.member_id
    for group, generation, name, error in (
        ("g", 1, member, ErrorCode.NONE),
        ("g", 0, member, ErrorCode.ILLEGAL_GENERATION),
        ("g", 1, "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        ("h", 1, member, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 1, member, ErrorCode.INVALID_GROUP_ID),
    ):
        assert broker.call("Heartbeat", version, HeartbeatRequest(group, generation, name)).error_code == error
    broker.groups.close()
    broker.loop.close()


def test_an_instance_id_of_nobody() -> None:
    broker = VirtualBroker()
    broker.start_coordinators()
    request = HeartbeatRequest("g", 1, "m", "instance")
    assert broker.call("Heartbeat", 3, request).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    broker.groups.close()
    broker.loop.close()


def test_not_here() -> None:
    broker = VirtualBroker()
    assert broker.call("Heartbeat", 4, HeartbeatRequest("g", 1, "m")).error_code == ErrorCode.NOT_COORDINATOR
    broker.loop.close()
