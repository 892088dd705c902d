"""OffsetCommit (key 8), v2-10. v2-4: retention time; v6: leader epoch (KIP-320); v7: group instance id (KIP-345);
v9: GROUP_ID_NOT_FOUND (KIP-848); v10: topic ids in place of names."""

from itertools import repeat
from typing import TYPE_CHECKING

from tidelog.api.group_reply import GroupReply
from tidelog.api.repeats import joined_by_topic
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

_Answer = Steps[OffsetCommitResponse]
_TopicKey = tuple[str, bytes]
"""Name and id."""


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> "Steps[Outcome[OffsetCommitResponse]]":
    """Partitions that do not exist are refused here, and come first in the answer; the coordinator decides on the
    others. Of a partition that is named more than once the last offset counts, and each entry has its answer.
    """
    version = context.api_version
    refused: dict[_TopicKey, OffsetCommitResponseTopic] = {}
    known: list[tuple[_TopicKey, OffsetCommitResponseTopic]] = []
    offsets: list[OffsetToCommit] = []
    image = services.metadata.image
    for asked in request.topics:
        topic = _topic(image, asked, version)
        key = (asked.name, asked.topic_id) if topic is None else (topic.name, topic.topic_id)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            refused.setdefault(key, OffsetCommitResponseTopic(*key))
            if version >= TOPIC_IDS_VERSION:
                unknown = ErrorCode.UNKNOWN_TOPIC_ID
        there = OffsetCommitResponseTopic(*key)
        for partition in asked.partitions:
            told = OffsetCommitResponsePartition(partition.partition_index)
            if topic is None or not 0 <= told.partition_index < len(topic.partitions):
                told.error_code = unknown
                refused.setdefault(key, OffsetCommitResponseTopic(*key)).partitions.append(told)
            else:
                there.partitions.append(told)
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
        if there.partitions:
            known.append((key, there))
        yield
    if not offsets:
        return OffsetCommitResponse(topics=list(refused.values()))

    def build(answer: list[ErrorCode] | ApiError) -> _Answer:
        codes = repeat(answer.code) if isinstance(answer, ApiError) else iter(answer)
        for _, topic in known:
            for told in topic.partitions:
                told.error_code = next(codes)
                yield
        return OffsetCommitResponse(topics=(yield from joined_by_topic(refused, known)))

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
    return reply.returned()


def _topic(image: "MetadataImage", asked: OffsetCommitRequestTopic, version: int) -> "TopicImage | None":
    if version >= TOPIC_IDS_VERSION:
        return image.topics_by_id.get(TopicId(asked.topic_id))
    return image.topics.get(asked.name)
