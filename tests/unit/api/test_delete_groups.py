import gc
from collections.abc import Iterator
from typing import Any

import pytest

from group_harness.virtual_broker import VirtualBroker
from tidelog.api import delete_groups, offset_delete
from tidelog.api.services import RequestContext
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

MANY = 1000


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def commit(broker: VirtualBroker, group: str) -> None:
    partition = OffsetCommitRequestPartition(0, 7, -1, "")
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic("t", partitions=[partition])])
    broker.call("OffsetCommit", 8, request)


def errors_alive() -> int:
    gc.collect()
    return sum(isinstance(thing, ApiError) for thing in gc.get_objects())


def steps_of(handler: Any, broker: VirtualBroker, request: Any) -> tuple[int, int]:
    """In how many steps the request was handled, and how many errors were kept on the way."""
    before = errors_alive()
    context = RequestContext(request.api_key, request.max_version, 1, "client", broker.peer)
    count = kept = 0
    for _ in handler.handle(broker.services, context, request):
        count += 1
        if count >= MANY and count % 2:
            kept = max(kept, errors_alive() - before)
    return count, kept


def offsets(topic: str = "t", count: int = 1) -> list[OffsetDeleteRequestTopic]:
    return [OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(0)] * count)]


@pytest.mark.parametrize("version", range(3))
def test_each_group_is_answered_once(broker: VirtualBroker, version: int) -> None:
    commit(broker, "g")
    response = broker.call("DeleteGroups", version, DeleteGroupsRequest(["never", "g", "g", "never", "other"]))
    assert [(result.group_id, result.error_code) for result in response.results] == [
        ("never", ErrorCode.GROUP_ID_NOT_FOUND),
        ("g", ErrorCode.NONE),
        ("other", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    (again,) = broker.call("DeleteGroups", version, DeleteGroupsRequest(["g"])).results
    assert again.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_that_may_not_be_deleted_take_a_step_each_and_their_errors_are_not_kept(broker: VirtualBroker) -> None:
    count, kept = steps_of(delete_groups, broker, DeleteGroupsRequest([f"never-{i}" for i in range(MANY)]))
    assert count >= MANY
    assert kept == 0


def test_errors_of_offsets_in_a_group_that_is_not_there_are_not_kept(broker: VirtualBroker) -> None:
    request = OffsetDeleteRequest("never", offsets(count=MANY))
    count, kept = steps_of(offset_delete, broker, request)
    assert count >= MANY
    assert kept == 0
    refused = broker.call("OffsetDelete", 0, request)
    assert (refused.error_code, refused.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_offsets_are_answered_in_the_order_of_the_request(broker: VirtualBroker) -> None:
    commit(broker, "g")
    response = broker.call("OffsetDelete", 0, OffsetDeleteRequest("g", [*offsets(), *offsets("never")]))
    assert response.error_code == ErrorCode.NONE
    assert [(topic.name, [p.error_code for p in topic.partitions]) for topic in response.topics] == [
        ("never", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ("t", [ErrorCode.NONE]),
    ]
