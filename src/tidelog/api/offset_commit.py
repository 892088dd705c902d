"""OffsetCommit (key 8), v2-10. v2-4: retention time; v6: leader epoch (KIP-320); v7: group instance id (KIP-345);
v9: GROUP_ID_NOT_FOUND (KIP-848); v10: topic ids in place of names.
"""

from itertools import repeat
from typing import TYPE_CHECKING

from tidelog.api.coordinator_reply import CoordinatorReply
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

TOPIC_IDS_SINCE = 10

_TopicKey = tuple[str, bytes]
"""A topic's name and id."""


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> "Steps[Outcome[OffsetCommitResponse]]":
    """Refuse partitions that do not exist, and ask the coordinator to commit the offsets of all other partitions.

    In the response, topics with refused partitions come first. Within each topic, the refused partitions come first.
    If several entries of the request name the same partition, each entry gets its own answer, and the offset of the
    last accepted entry is committed.
    """
    entries = yield from collect(services.metadata.image, request.topics, context.api_version)
    if not entries.offsets:
        return OffsetCommitResponse(topics=list(entries.refused.values()))
    commit = OffsetCommit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        request.retention_time_ms,
        context.api_version,
        entries.offsets,
    )

    def build(result: list[ErrorCode] | ApiError) -> Steps[OffsetCommitResponse]:
        return OffsetCommitResponse(topics=(yield from entries.answer(result)))

    reply = CoordinatorReply(build)
    try:
        yield from services.groups.commit(commit, reply)
    except ApiError as error:
        return build(error)
    return reply.outcome()


class Entries:
    """The entries of a request, and the part of the response that is known already."""

    def __init__(self) -> None:
        self.refused: dict[_TopicKey, OffsetCommitResponseTopic] = {}
        self.offsets: list[OffsetToCommit] = []
        """The offsets that the coordinator is asked to commit."""
        self._accepted: list[tuple[_TopicKey, OffsetCommitResponseTopic]] = []

    def add(self, topic: OffsetCommitRequestTopic, image: "MetadataImage", version: int) -> Steps[None]:
        """Add one topic of the request."""
        existing = _topic(image, topic, version)
        key = (topic.name, topic.topic_id) if existing is None else (existing.name, existing.topic_id)
        error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if existing is None:
            self.refused.setdefault(key, OffsetCommitResponseTopic(*key))
            if version >= TOPIC_IDS_SINCE:
                error_code = ErrorCode.UNKNOWN_TOPIC_ID
        accepted_topic = OffsetCommitResponseTopic(*key)
        for partition in topic.partitions:
            answer = OffsetCommitResponsePartition(partition.partition_index)
            if existing is None or not 0 <= answer.partition_index < len(existing.partitions):
                answer.error_code = error_code
                self.refused.setdefault(key, OffsetCommitResponseTopic(*key)).partitions.append(answer)
            else:
                accepted_topic.partitions.append(answer)
                self.offsets.append(
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
            self._accepted.append((key, accepted_topic))

    def answer(self, result: list[ErrorCode] | ApiError) -> Steps[list[OffsetCommitResponseTopic]]:
        """Return the topics of the response. `result` is a list of one code for each offset, or one error for all."""
        codes = repeat(result.code) if isinstance(result, ApiError) else iter(result)
        for _, answered_topic in self._accepted:
            for partition_answer in answered_topic.partitions:
                partition_answer.error_code = next(codes)
                yield
        return (yield from join_by_topic(self.refused, self._accepted))


def collect(image: "MetadataImage", topics: list[OffsetCommitRequestTopic], version: int) -> Steps[Entries]:
    """Divide the entries of a request into refused entries and entries that the coordinator is asked to commit."""
    entries = Entries()
    for topic in topics:
        yield from entries.add(topic, image, version)
        yield
    return entries


def _topic(image: "MetadataImage", requested: OffsetCommitRequestTopic, version: int) -> "TopicImage | None":
    if version >= TOPIC_IDS_SINCE:
        return image.topics_by_id.get(TopicId(requested.topic_id))
    return image.topics.get(requested.name)
