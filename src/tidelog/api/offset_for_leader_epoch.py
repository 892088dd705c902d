"""OffsetForLeaderEpoch (key 23), v2-4: end offsets of leader epochs, to detect truncation (KIP-101, KIP-320)."""

from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    topics = []
    for topic in request.topics:
        answers = []
        for partition in topic.partitions:
            answers.append(_answer(services, topic.topic, partition))
            yield
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        yield
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(services: Services, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=requested.partition)
    try:
        partition = services.partitions.leader(topic, requested.partition, requested.current_leader_epoch)
        epoch, end_offset = partition.end_offset_for(requested.leader_epoch)
        answer.leader_epoch = epoch
        answer.end_offset = end_offset
    except ApiError as error:
        answer.error_code = error.code
    return answer
