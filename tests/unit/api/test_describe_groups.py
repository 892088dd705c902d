from collections.abc import Iterator

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.api.describe_groups import MEMBER_BYTES
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

VERSIONS = range(7)
NOT_ASKED = -(2**31)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def stable(broker: VirtualBroker) -> str:
    protocols = [JoinGroupRequestProtocol("range", b"metadata")]
    sent = broker.send("JoinGroup", 5, JoinGroupRequest("g", 5000, 5000, "", "i", "consumer", protocols), "me")
    broker.advance(0.3)
    member: str = sent.response.member_id
    assignments = [SyncGroupRequestAssignment(member, b"assignment")]
    broker.call("SyncGroup", 3, SyncGroupRequest("g", 1, member, "i", assignments=assignments))
    return member


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stable_group(broker: VirtualBroker, version: int) -> None:
    member = stable(broker)
    (group,) = broker.call("DescribeGroups", version, DescribeGroupsRequest(["g"])).groups
    assert (group.error_code, group.error_message, group.group_id) == (ErrorCode.NONE, None, "g")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert group.authorized_operations == NOT_ASKED
    (one,) = group.members
    assert (one.member_id, one.client_id, one.client_host) == (member, "me", "/127.0.0.1")
    assert one.group_instance_id == ("i" if version >= 4 else None)
    assert (bytes(one.member_metadata), bytes(one.member_assignment)) == (b"metadata", b"assignment")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_that_does_not_exist(broker: VirtualBroker, version: int) -> None:
    request = DescribeGroupsRequest(["none"], include_authorized_operations=version >= 3)
    (group,) = broker.call("DescribeGroups", version, request).groups
    assert group.group_state == "Dead"
    assert group.members == []
    if version >= 6:
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.error_message == "Group none not found."
        assert group.authorized_operations == NOT_ASKED
    else:
        assert group.error_code == ErrorCode.NONE
        assert group.authorized_operations == (3400 if version >= 3 else NOT_ASKED)


@pytest.mark.parametrize("version", range(3, 7))
def test_authorized_operations(broker: VirtualBroker, version: int) -> None:
    stable(broker)
    request = DescribeGroupsRequest(["g"], include_authorized_operations=True)
    assert broker.call("DescribeGroups", version, request).groups[0].authorized_operations == 3400


def test_a_coordinator_that_is_not_here() -> None:
    broker = VirtualBroker()
    (group,) = broker.call("DescribeGroups", 5, DescribeGroupsRequest(["g"])).groups
    assert (group.error_code, group.group_id, group.group_state) == (ErrorCode.NOT_COORDINATOR, "g", "")
    broker.loop.close()


def test_an_answer_waits_until_what_it_tells_is_committed(broker: VirtualBroker) -> None:
    stable(broker)
    broker.offsets_log("g").high_watermark = 1
    sent = broker.send("DescribeGroups", 5, DescribeGroupsRequest(["g", "h"]))
    assert not sent.answered
    broker.offsets_log("g").commit_all()
    assert [group.group_state for group in sent.response.groups] == ["Stable", "Dead"]


def test_no_groups(broker: VirtualBroker) -> None:
    assert broker.call("DescribeGroups", 5, DescribeGroupsRequest([])).groups == []


def test_a_group_is_described_again_while_there_is_room(broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large group that a small request names a thousand times would fill the memory."""
    stable(broker)
    names = ["g"] * 100
    groups = broker.call("DescribeGroups", 6, DescribeGroupsRequest(names)).groups
    assert [(group.error_code, len(group.members)) for group in groups] == [(ErrorCode.NONE, 1)] * 100
    size = MEMBER_BYTES + len(b"metadata") + len(b"assignment")
    monkeypatch.setattr("tidelog.api.repeats.REPEATED_BYTES_MAX", 2 * size)
    *told, other, refused, more = broker.call(
        "DescribeGroups", 6, DescribeGroupsRequest(["g", "g", "g", "x", "g", "y"])
    ).groups
    assert [(group.error_code, len(group.members)) for group in told] == [(ErrorCode.NONE, 1)] * 3
    assert (refused.group_id, refused.error_code, refused.members) == ("g", ErrorCode.INVALID_REQUEST, [])
    assert other.error_code == more.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_that_does_not_exist_is_described_as_often_as_it_is_named(broker: VirtualBroker) -> None:
    names = ["no"] * 1000
    groups = broker.call("DescribeGroups", 6, DescribeGroupsRequest(names)).groups
    assert [group.error_code for group in groups] == [ErrorCode.GROUP_ID_NOT_FOUND] * 1000
    groups = broker.call("ConsumerGroupDescribe", 1, ConsumerGroupDescribeRequest(names)).groups
    assert [group.error_code for group in groups] == [ErrorCode.GROUP_ID_NOT_FOUND] * 1000


def test_a_consumer_group_is_described_again_while_there_is_room(
    broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=30_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert broker.call("ConsumerGroupHeartbeat", 1, beat).error_code == ErrorCode.NONE
    groups = broker.call("ConsumerGroupDescribe", 1, ConsumerGroupDescribeRequest(["g"] * 100)).groups
    assert [(group.error_code, len(group.members)) for group in groups] == [(ErrorCode.NONE, 1)] * 100
    monkeypatch.setattr("tidelog.api.repeats.REPEATED_BYTES_MAX", 3 * MEMBER_BYTES)
    groups = broker.call("ConsumerGroupDescribe", 1, ConsumerGroupDescribeRequest(["g"] * 4 + ["no"])).groups
    codes = [group.error_code for group in groups]
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.INVALID_REQUEST, ErrorCode.GROUP_ID_NOT_FOUND]
    assert groups[3].members == []
