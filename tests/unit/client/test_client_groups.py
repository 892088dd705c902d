"""Deletion of offsets: the client finds the coordinator, and finds it again after it has moved."""

import pytest

from tidelog.client.cluster import Address, Cluster
from tidelog.client.errors import BrokerUnreachable
from tidelog.client.groups import delete_offsets
from tidelog.client.operations import Ask, AskAny, Backoff, Pause
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

ONE = Address("one", 9092)
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def found(code: int = ErrorCode.NONE) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(coordinators=[Coordinator("g", 1, "one", 9092, code)])


def told(*codes: int) -> OffsetDeleteResponse:
    parts = [OffsetDeleteResponsePartition(index, code) for index, code in enumerate(codes)]
    return OffsetDeleteResponse(topics=[OffsetDeleteResponseTopic("t", parts)])


def played(*answers: object) -> tuple[object, list[object]]:
    """The operation's result, and what it asked, with these answers in order."""
    operation = delete_offsets(Cluster([ONE]), Backoff(), "g", [T0, U0, T1])
    effects: list[object] = []
    answer = None
    left = list(answers)
    try:
        while True:
            effect = operation.send(answer)  # type: ignore[arg-type]
            effects.append(effect)
            answer = None if isinstance(effect, Pause) else left.pop(0)  # type: ignore[assignment]
            if isinstance(effect, Ask):
                answer = [answer]  # type: ignore[assignment]
    except StopIteration as stop:
        assert not left
        return stop.value, effects


def test_the_coordinator_is_asked_once_for_all_topics() -> None:
    codes, effects = played(found(), told(ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC))
    assert codes == {T0: ErrorCode.NONE, T1: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    first, second = effects
    assert isinstance(first, AskAny)
    assert isinstance(first.request, FindCoordinatorRequest)
    first.request.encode(6)
    assert isinstance(second, Ask)
    (request,) = second.requests
    assert request.address == ONE
    assert isinstance(request.message, OffsetDeleteRequest)
    asked = [(topic.name, [p.partition_index for p in topic.partitions]) for topic in request.message.topics]
    assert asked == [("t", [0, 1]), ("u", [0])]


@pytest.mark.parametrize(
    "answers",
    [
        [found(ErrorCode.COORDINATOR_NOT_AVAILABLE)],
        [found(), OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR)],
        [found(), OffsetDeleteResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)],
        [found(), BrokerUnreachable(ONE, "gone")],
    ],
)
def test_a_coordinator_that_has_moved_is_looked_for_again(answers: list[object]) -> None:
    codes, effects = played(*answers, found(), told(ErrorCode.NONE))
    assert codes == {T0: ErrorCode.NONE}
    assert sum(isinstance(effect, Pause) for effect in effects) == 1


def test_a_group_that_is_refused() -> None:
    with pytest.raises(ApiError, match="group 'g': GROUP_ID_NOT_FOUND"):
        played(found(), OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))


def test_codes_that_this_release_does_not_know() -> None:
    assert played(found(), told(9999))[0] == {T0: 9999}
    for answers in ([found(9999)], [found(), OffsetDeleteResponse(error_code=9999)]):
        with pytest.raises(ApiError, match="group 'g': error code 9999"):
            played(*answers)
