"""OffsetCommit (key 8), v2-10. v2-4: retention time; v6: leader epoch (KIP-320); v7: group instance id (KIP-345);
v9: GROUP_ID_NOT_FOUND (KIP-848); v10: topic ids in place of names.
"""

from itertools import repeat
from typing import TYPE_CHECKING

from tidelog.api.group_reply import GroupReply
from tidelog.api.repeats import join_by_topic
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.group.offsets import OffsetCommit, OffsetToCommit
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome
    from tidelog.metadata.image import MetadataImage, TopicImage

TOPIC_IDS_VERSION = 10

_ResponseSteps = Steps[OffsetCommitResponse]
_TopicKey = tuple[str, bytes]
"""A topic's name and id."""


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> "Steps[Outcome[OffsetCommitResponse]]":
    """Refuse partitions that do not exist, and ask the coordinator to commit the offsets of all other partitions.

    Topics with refused partitions come first in the response, and within each topic its refused partitions. If a
    partition is named more than once, its last offset is committed, and each entry of the request gets its own answer.
    """
    version = context.api_version
    refused: dict[_TopicKey, OffsetCommitResponseTopic] = {}
    accepted: list[tuple[_TopicKey, OffsetCommitResponseTopic]] = []
    offsets: list[OffsetToCommit] = []
    image = services.metadata.image
    for requested in request.topics:
        topic = _topic(image, requested, version)
        key = (requested.name, requested.topic_id) if topic is None else (topic.name, topic.topic_id)
        error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            refused.setdefault(key, OffsetCommitResponseTopic(*key))
            if version >= TOPIC_IDS_VERSION:
                error_code = ErrorCode.UNKNOWN_TOPIC_ID
        accepted_topic = OffsetCommitResponseTopic(*key)
        for partition in requested.partitions:
            answer = OffsetCommitResponsePartition(partition.partition_index)
            if topic is None or not 0 <= answer.partition_index < len(topic.partitions):
                answer.error_code = error_code
                refused.setdefault(key, OffsetCommitResponseTopic(*key)).partitions.append(answer)
            else:
                accepted_topic.partitions.append(answer)
                offsets.append(
                    OffsetToCommit(
                        *key,
                        partition.partition_index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata or "",
                    )
                )
            yield
        if accepted_topic.partitions:
            accepted.append((key, accepted_topic))
        yield
    if not offsets:
        return OffsetCommitResponse(topics=list(refused.values()))

    def build(result: list[ErrorCode] | ApiError) -> _ResponseSteps:
        codes = repeat(result.code) if isinstance(result, ApiError) else iter(result)
        for _, answered_topic in accepted:
            for partition_answer in answered_topic.partitions:
                partition_answer.error_code = next(codes)
                yield
        return OffsetCommitResponse(topics=(yield from join_by_topic(refused, accepted)))

    commit = OffsetCommit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        request.retention_time_ms,
        version,
        offsets,
    )
    reply = GroupReply(build)
    try:
        yield from services.groups.commit(commit, reply)
    except ApiError as error:
        return build(error)
    return reply.outcome()


def _topic(image: "MetadataImage", requested: OffsetCommitRequestTopic, version: int) -> "TopicImage | None":
    if version >= TOPIC_IDS_VERSION:
        return image.topics_by_id.get(TopicId(requested.topic_id))
    return image.topics.get(requested.name)
