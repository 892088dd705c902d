"""OffsetDelete (key 47), v0 (KIP-496): delete committed offsets of topics that no member of the group reads."""

from typing import TYPE_CHECKING

from tidelog.api.pending import Gathering
from tidelog.api.repeats import join_by_topic
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.decision import Reply
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

OFFSETS_PER_STEP = 200


def handle(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> "Steps[Outcome[OffsetDeleteResponse]]":
    """Ask the coordinator to delete the offsets of the partitions that exist. The coordinator may refuse some of these
    partitions.

    In the response, topics with partitions that do not exist come first. Within each topic, these partitions come
    first. Apart from this, topics and partitions have the order of the request. A partition that is named several
    times is answered several times. If the whole request gets an error, the response contains no topics.
    """
    unknown: dict[str, OffsetDeleteResponseTopic] = {}
    existing: list[tuple[str, OffsetDeleteResponseTopic]] = []
    offsets_to_delete: list[tuple[str, int]] = []
    image = services.metadata.image
    for requested in request.topics:
        topic = image.topics.get(requested.name)
        if topic is None:
            unknown.setdefault(requested.name, OffsetDeleteResponseTopic(requested.name))
        existing_topic = OffsetDeleteResponseTopic(requested.name)
        for partition in requested.partitions:
            answer = OffsetDeleteResponsePartition(partition.partition_index)
            if topic is None or not 0 <= answer.partition_index < len(topic.partitions):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                unknown.setdefault(requested.name, OffsetDeleteResponseTopic(requested.name)).partitions.append(answer)
            else:
                existing_topic.partitions.append(answer)
                offsets_to_delete.append((requested.name, answer.partition_index))
            yield
        if existing_topic.partitions:
            existing.append((requested.name, existing_topic))
        yield

    deleting: Gathering[list[ErrorCode] | ErrorCode] = Gathering(lambda answers: _response(unknown, existing, answers))
    # Without offsets to delete, the coordinator is still called once, since it checks the group.
    for start in range(0, max(len(offsets_to_delete), 1), OFFSETS_PER_STEP):
        reply = _reply(deleting)
        try:
            services.groups.delete_offsets(request.group_id, offsets_to_delete[start : start + OFFSETS_PER_STEP], reply)
        except ApiError as error:
            reply(error)
        yield
    return deleting.finish()


def _reply(deleting: Gathering[list[ErrorCode] | ErrorCode]) -> Reply:
    accept = deleting.reply()

    def reply(answer: list[ErrorCode] | ApiError) -> None:
        # Store only the code: there may be thousands of errors, and the traceback of each keeps objects of the request
        # in memory.
        accept(answer.code if isinstance(answer, ApiError) else answer)

    return reply


def _response(
    unknown: dict[str, OffsetDeleteResponseTopic],
    existing: list[tuple[str, OffsetDeleteResponseTopic]],
    answers: list[list[ErrorCode] | ErrorCode],
) -> Steps[OffsetDeleteResponse]:
    codes: list[ErrorCode] = []
    for answer in answers:
        if isinstance(answer, ErrorCode):
            return OffsetDeleteResponse(error_code=answer)
        codes += answer
        yield
    for partition, code in zip((p for _, topic in existing for p in topic.partitions), codes, strict=True):
        partition.error_code = code
        yield
    return OffsetDeleteResponse(topics=(yield from join_by_topic(unknown, existing)))
