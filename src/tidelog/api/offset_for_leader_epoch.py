"""OffsetForLeaderEpoch (key 23), v2-4: where a leader epoch ends, to find out about truncation (KIP-101, KIP-320)."""

from tidelog.api.services import RequestContext, Services
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
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_answer(services, topic.topic, p) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer(services: Services, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    try:
        partition = services.partitions.get(topic, asked.partition)
        partition.check_leader_epoch(asked.current_leader_epoch)
        epoch, end_offset = partition.end_offset_for(asked.leader_epoch)
        answer.leader_epoch = epoch
        answer.end_offset = end_offset
    except ApiError as error:
        answer.error_code = error.code
    return answer
