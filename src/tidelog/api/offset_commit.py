"""OffsetCommit (key 8), v2-10. v2-4: retention time; v6: leader epoch (KIP-320); v7: group instance id (KIP-345);
v9: GROUP_ID_NOT_FOUND (KIP-848); v10: topic ids in place of names."""

from typing import TYPE_CHECKING

from tidelog.api.group_reply import GroupReply
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


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> "Steps[Outcome[OffsetCommitResponse]]":
    version = context.api_version
    answers = _Answers()
    offsets: list[OffsetToCommit] = []
    image = services.metadata.image
    for asked in request.topics:
        topic = _topic(image, asked, version)
        name, topic_id = (asked.name, asked.topic_id) if topic is None else (topic.name, topic.topic_id)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None and version >= TOPIC_IDS_VERSION:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        for partition in asked.partitions:
            if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
                answers.add(name, topic_id, partition.partition_index, unknown)
            else:
                offsets.append(
                    OffsetToCommit(
                        name,
                        topic_id,
                        partition.partition_index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata or "",
                    )
                )
            yield
        yield
    if not offsets:
        return answers.response

    def build(answer: list[ErrorCode] | ApiError) -> _Answer:
        codes = [answer.code] * len(offsets) if isinstance(answer, ApiError) else answer
        for offset, code in zip(offsets, codes, strict=True):
            answers.add(offset.topic, offset.topic_id, offset.partition, code)
            yield
        return answers.response

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


class _Answers:
    """The response, a topic's partitions together however the request named them. What is refused at once comes first,
    as from Kafka."""

    def __init__(self) -> None:
        self.response = OffsetCommitResponse()
        self._topics: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}

    def add(self, name: str, topic_id: bytes, partition: int, code: ErrorCode) -> None:
        topic = self._topics.get((name, topic_id))
        if topic is None:
            topic = self._topics[name, topic_id] = OffsetCommitResponseTopic(name=name, topic_id=topic_id)
            self.response.topics.append(topic)
        topic.partitions.append(OffsetCommitResponsePartition(partition, code))
