"""OffsetFetch (key 9), v1-10. v2: null for all topics, top-level error; v5: leader epoch (KIP-320); v7: require_stable
(KIP-447); v8: several groups (KIP-709); v9: member id and epoch (KIP-848), which say nothing of a classic group; v10:
topic ids in place of names."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.group.durable import DurableGroup
from tidelog.model.ids import TopicId
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.wire.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.metadata.image import MetadataImage

GROUP_ERROR_VERSION = 2
SEVERAL_GROUPS_VERSION = 8
TOPIC_IDS_VERSION = 10
NOT_COMMITTED = OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="")


class Asked(NamedTuple):
    """One topic of a request."""

    name: str
    topic_id: bytes
    partitions: list[int]
    error: ErrorCode


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
    version = context.api_version
    image = services.metadata.image
    if version >= SEVERAL_GROUPS_VERSION:
        wanted = [
            (
                group.group_id,
                None
                if group.topics is None
                else [_asked(image, t.name, t.topic_id, t.partition_indexes, version) for t in group.topics],
            )
            for group in request.groups
        ]
    else:
        topics = request.topics
        wanted = [
            (
                request.group_id,
                None
                if topics is None
                else [_asked(image, t.name, NO_UUID, t.partition_indexes, version) for t in topics],
            )
        ]
    return _Fetch(services, version, wanted).returned()


class _Fetch:
    """Collects the groups' answers, which their coordinators may give at different times."""

    def __init__(self, services: Services, version: int, wanted: list[tuple[str, list[Asked] | None]]) -> None:
        self._version = version
        self._left = len(wanted)
        self._pending: Pending[OffsetFetchResponse] | None = None
        self._groups: list[OffsetFetchResponseGroup] = [OffsetFetchResponseGroup(group_id=name) for name, _ in wanted]
        self._image = services.metadata.image
        for place, (group_id, asked) in enumerate(wanted):
            self._ask(services, place, group_id, asked)

    def returned(self) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
        if not self._left:
            return self._response()
        self._pending = Pending()
        return self._pending

    def _ask(self, services: Services, place: int, group_id: str, asked: list[Asked] | None) -> None:
        def read(durable: DurableGroup | None) -> list[OffsetFetchResponseTopics]:
            if asked is None:
                return _all_topics(self._image, durable)
            known_first = sorted(asked, key=lambda topic: topic.error != ErrorCode.NONE)  # as Kafka has it
            return [_topic(topic, durable) for topic in known_first]

        def reply(answer: list[OffsetFetchResponseTopics] | ApiError) -> None:
            group = self._groups[place]
            if isinstance(answer, ApiError):
                group.error_code = answer.code
                if self._version < GROUP_ERROR_VERSION:
                    group.topics = [_failed(topic, answer.code) for topic in asked or []]
            else:
                group.topics = answer
            self._left -= 1
            if not self._left and self._pending is not None:
                self._pending.complete(self._response())

        try:
            services.groups.committed(group_id, read, reply)
        except ApiError as error:
            reply(error)

    def _response(self) -> OffsetFetchResponse:
        if self._version >= SEVERAL_GROUPS_VERSION:
            return OffsetFetchResponse(groups=self._groups)
        (group,) = self._groups
        topics = [OffsetFetchResponseTopic(topic.name, [_older(p) for p in topic.partitions]) for topic in group.topics]
        return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _asked(image: "MetadataImage", name: str, topic_id: bytes, partitions: list[int], version: int) -> Asked:
    """By name, a topic need not exist: offsets may be there all the same."""
    if version >= TOPIC_IDS_VERSION:
        topic = image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return Asked("", topic_id, partitions, ErrorCode.UNKNOWN_TOPIC_ID)
        return Asked(topic.name, topic_id, partitions, ErrorCode.NONE)
    topic = image.topics.get(name)
    return Asked(name, NO_UUID if topic is None else topic.topic_id, partitions, ErrorCode.NONE)


def _topic(asked: Asked, durable: DurableGroup | None) -> OffsetFetchResponseTopics:
    if asked.error:
        return _failed(asked, asked.error)
    committed = {} if durable is None else durable.offsets.get(asked.name, {})
    partitions = []
    for index in asked.partitions:
        value = committed.get(index, NOT_COMMITTED)
        if _is_of_another(value, asked.topic_id):
            value = NOT_COMMITTED
        partitions.append(_partition(index, value))
    return OffsetFetchResponseTopics(asked.name, asked.topic_id, partitions)


def _all_topics(image: "MetadataImage", durable: DurableGroup | None) -> list[OffsetFetchResponseTopics]:
    return list(_each_topic(image, durable)) if durable is not None else []


def _each_topic(image: "MetadataImage", durable: DurableGroup) -> Iterator[OffsetFetchResponseTopics]:
    for name, committed in durable.offsets.items():
        topic = image.topics.get(name)
        topic_id = NO_UUID if topic is None else topic.topic_id
        partitions = [
            _partition(index, value) for index, value in committed.items() if not _is_of_another(value, topic_id)
        ]
        if partitions:
            yield OffsetFetchResponseTopics(name, topic_id, partitions)


def _is_of_another(value: OffsetCommitValue, topic_id: bytes) -> bool:
    """Whether it was committed for an earlier topic of the name: the present one was made after that was deleted."""
    return value.topic_id not in (topic_id, NO_UUID) and topic_id != NO_UUID


def _partition(index: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(index, value.offset, value.leader_epoch, value.metadata)


def _failed(asked: Asked, error: ErrorCode) -> OffsetFetchResponseTopics:
    partitions = [OffsetFetchResponsePartitions(index, -1, -1, "", error) for index in asked.partitions]
    return OffsetFetchResponseTopics(asked.name, asked.topic_id, partitions)


def _older(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.metadata,
        partition.error_code,
    )
