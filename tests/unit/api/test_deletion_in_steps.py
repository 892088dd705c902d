"""DeleteGroups in several steps, and other requests between two of them."""

from collections.abc import Iterator
from typing import Any

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.coordinator.group.core import DELETE_RECORDS_MAX
from tidelog.model.steps import Steps
from tidelog.wire.errors import CoordinatorLoadInProgress, ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

OFFSETS = 2 * DELETE_RECORDS_MAX + 1


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker(topics={"t": OFFSETS})
    broker.start_coordinators()
    partitions = [OffsetCommitRequestPartition(index, 5) for index in range(OFFSETS)]
    broker.call(
        "OffsetCommit", 8, OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
    )
    yield broker
    broker.groups.close()
    broker.loop.close()


def join(broker: VirtualBroker, group_id: str = "g") -> ErrorCode:
    protocols = [JoinGroupRequestProtocol("range", b"")]
    sent = broker.send("JoinGroup", 3, JoinGroupRequest(group_id, 5000, 5000, "", None, "consumer", protocols))
    broker.advance(1)
    return ErrorCode(sent.response.error_code)


def heartbeat(broker: VirtualBroker) -> ErrorCode:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=5000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    return ErrorCode(broker.call("ConsumerGroupHeartbeat", 1, request).error_code)


def begun(broker: VirtualBroker, answers: list[Any]) -> Steps[None]:
    deleting = broker.groups.delete("g", answers.append)
    next(deleting)
    return deleting


def test_nobody_joins_a_group_that_is_half_deleted(broker: VirtualBroker) -> None:
    """Else it would stay, without the offsets that are gone by then, and the deletion be refused."""
    answers: list[Any] = []
    deleting = begun(broker, answers)
    assert join(broker) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert heartbeat(broker) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(CoordinatorLoadInProgress):
        next(broker.groups.delete("g", answers.append))
    assert join(broker, "other") is ErrorCode.NONE
    for _ in deleting:
        pass
    assert answers == [None]
    assert [group.group_id for group in broker.groups.listing()] == ["other"]
    assert join(broker) is ErrorCode.NONE


def test_a_deletion_that_ends_early_keeps_nobody_out(broker: VirtualBroker) -> None:
    deleting = begun(broker, [])
    deleting.close()
    assert heartbeat(broker) is ErrorCode.NONE
