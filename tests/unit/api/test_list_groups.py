from collections.abc import Iterator

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    """With a group that rebalances and one that only commits."""
    broker = VirtualBroker()
    broker.start_coordinators()
    request = JoinGroupRequest("joining", 5000, 5000, "", None, "connect", [JoinGroupRequestProtocol("eager", b"m")])
    broker.send("JoinGroup", 3, request)
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1, -1, "")])
    broker.call("OffsetCommit", 8, OffsetCommitRequest(group_id="simple", topics=[topic]))
    yield broker
    broker.groups.close()
    broker.loop.close()


def names(broker: VirtualBroker, version: int, **filters: list[str]) -> list[str]:
    response = broker.call("ListGroups", version, ListGroupsRequest(**filters))
    assert response.error_code == ErrorCode.NONE
    return sorted(group.group_id for group in response.groups)


@pytest.mark.parametrize("version", range(6))
def test_every_group(broker: VirtualBroker, version: int) -> None:
    groups = {group.group_id: group for group in broker.call("ListGroups", version, ListGroupsRequest()).groups}
    assert groups.keys() == {"joining", "simple"}
    assert groups["joining"].protocol_type == "connect"
    assert groups["simple"].protocol_type == ""
    assert groups["joining"].group_state == ("PreparingRebalance" if version >= 4 else "")
    assert groups["simple"].group_state == ("Empty" if version >= 4 else "")
    assert groups["simple"].group_type == ("classic" if version >= 5 else "")


def test_filters_do_not_look_at_case(broker: VirtualBroker) -> None:
    assert names(broker, 4, states_filter=["empty"]) == ["simple"]
    assert names(broker, 4, states_filter=["EMPTY", "preparingRebalance"]) == ["joining", "simple"]
    assert names(broker, 4, states_filter=["nonsense", ""]) == []
    assert names(broker, 5, types_filter=["Classic"]) == ["joining", "simple"]
    assert names(broker, 5, types_filter=["consumer"]) == []
    assert names(broker, 5, types_filter=["classic", "share"], states_filter=["stable"]) == []


def test_while_a_part_is_being_loaded(broker: VirtualBroker) -> None:
    broker.groups.host.coordinator("simple")._core = None
    response = broker.call("ListGroups", 5, ListGroupsRequest())
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert response.groups == []


def test_without_the_topic() -> None:
    broker = VirtualBroker()
    assert names(broker, 5) == []
    broker.loop.close()
