"""OffsetDelete (key 47), v0 (KIP-496): removes committed offsets of topics that no member of the group reads."""

from typing import TYPE_CHECKING

from tidelog.api.pending import Gathering
from tidelog.api.repeats import joined_by_topic
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
    """Partitions that do not exist come first in the answer, then those that the coordinator decides on, in the order
    of the request. A partition that is named more than once has as many answers.

    An error of the whole request names no topics, though they were looked up before.
    """
    unknown: dict[str, OffsetDeleteResponseTopic] = {}
    known: list[tuple[str, OffsetDeleteResponseTopic]] = []
    wanted: list[tuple[str, int]] = []
    image = services.metadata.image
    for asked in request.topics:
        topic = image.topics.get(asked.name)
        if topic is None:
            unknown.setdefault(asked.name, OffsetDeleteResponseTopic(asked.name))
        there = OffsetDeleteResponseTopic(asked.name)
        for partition in asked.partitions:
            told = OffsetDeleteResponsePartition(partition.partition_index)
            if topic is None or not 0 <= told.partition_index < len(topic.partitions):
                told.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                unknown.setdefault(asked.name, OffsetDeleteResponseTopic(asked.name)).partitions.append(told)
            else:
                there.partitions.append(told)
                wanted.append((asked.name, told.partition_index))
            yield
        if there.partitions:
            known.append((asked.name, there))
        yield

    deleting: Gathering[list[ErrorCode] | ErrorCode] = Gathering(lambda answers: _response(unknown, known, answers))
    for start in range(0, max(len(wanted), 1), OFFSETS_PER_STEP):
        reply = _reply(deleting)
        try:
            services.groups.delete_offsets(request.group_id, wanted[start : start + OFFSETS_PER_STEP], reply)
        except ApiError as error:
            reply(error)
        yield
    return deleting.returned()


def _reply(deleting: Gathering[list[ErrorCode] | ErrorCode]) -> Reply:
    take = deleting.reply()

    def reply(answer: list[ErrorCode] | ApiError) -> None:
        # Not the error itself: its traceback leads back to the request, and there may be thousands.
        take(answer.code if isinstance(answer, ApiError) else answer)

    return reply


def _response(
    unknown: dict[str, OffsetDeleteResponseTopic],
    known: list[tuple[str, OffsetDeleteResponseTopic]],
    answers: list[list[ErrorCode] | ErrorCode],
) -> Steps[OffsetDeleteResponse]:
    codes: list[ErrorCode] = []
    for answer in answers:
        if isinstance(answer, ErrorCode):
            return OffsetDeleteResponse(error_code=answer)
        codes += answer
        yield
    for told, code in zip((p for _, topic in known for p in topic.partitions), codes, strict=True):
        told.error_code = code
        yield
    return OffsetDeleteResponse(topics=(yield from joined_by_topic(unknown, known)))
