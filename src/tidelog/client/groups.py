"""What a client asks of a group's coordinator, as plans like those of `operations`."""

from collections.abc import Iterable

from tidelog.client.cluster import Address, Cluster
from tidelog.client.error_codes import name_of
from tidelog.client.errors import BrokerUnreachable, Unreachable
from tidelog.client.operations import Ask, AskAny, Backoff, Operation, Request, Retries
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, error_for
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)


def delete_offsets(
    cluster: Cluster, backoff: Backoff, group_id: str, partitions: Iterable[TopicPartition]
) -> Operation[dict[TopicPartition, int]]:
    """Each partition's error code, 0 where the offset is deleted. Raises ApiError when the whole group is refused."""
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, OffsetDeleteRequestTopic(name))
        topic.partitions.append(OffsetDeleteRequestPartition(index))
    request = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
    retries = Retries(cluster, backoff, ())
    while True:
        try:
            address = yield from _coordinator(group_id)
            answers = yield Ask([Request(address, request)])
            assert isinstance(answers, list)
            (answer,) = answers
            if isinstance(answer, BrokerUnreachable):
                raise answer
            assert isinstance(answer, OffsetDeleteResponse)
            _check(answer.error_code, f"group {group_id!r}")
            return {
                TopicPartition(topic.name, part.partition_index): part.error_code
                for topic in answer.topics
                for part in topic.partitions
            }
        except (ApiError, Unreachable) as error:
            pause = retries.after(error)
        yield pause


def _coordinator(group_id: str) -> Operation[Address]:
    """Where the group lives. Raises ApiError."""
    answer = yield AskAny(FindCoordinatorRequest(coordinator_keys=[group_id]))
    assert isinstance(answer, FindCoordinatorResponse)
    (found,) = answer.coordinators
    _check(found.error_code, f"the coordinator of group {group_id!r}")
    return Address(found.host, found.port)


def _check(code: int, subject: str) -> None:
    if code:
        raise error_for(code, f"{subject}: {name_of(code)}")
