"""OffsetFetch (key 9), v1-10. v2: null for all topics, top-level error; v5: leader epoch (KIP-320); v7: require_stable
(KIP-447); v8: several groups (KIP-709); v9: member id and epoch (KIP-848), which groups of the consumer protocol look
at; v10: topic ids in place of names."""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.api.pending import Pending
from tidelog.api.repeats import Repeats
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.group.durable import DurableGroup
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps
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
    from tidelog.api.pending import Outcome
    from tidelog.metadata.image import MetadataImage

GROUP_ERROR_VERSION = 2
SEVERAL_GROUPS_VERSION = 8
TOPIC_IDS_VERSION = 10
NOT_COMMITTED = OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="")


class Wanted(NamedTuple):
    """One group of a request. Topics are None for all of them."""

    group_id: str
    topics: "list[Asked] | None"
    member_id: str | None = None
    member_epoch: int = -1


class Asked(NamedTuple):
    """One topic of a request."""

    name: str
    topic_id: bytes
    partitions: list[int]
    error: ErrorCode


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> "Steps[Outcome[OffsetFetchResponse]]":
    version = context.api_version
    image = services.metadata.image
    fetch = _Fetch(version, image)
    if version >= SEVERAL_GROUPS_VERSION:
        repeats = Repeats()
        for group in request.groups:
            if repeats.is_one_too_many(group.group_id):
                fetch.refuse(group.group_id, ErrorCode.INVALID_REQUEST)
                yield
                continue
            several: list[Asked] | None = None
            if group.topics is not None:
                several = []
                for t in group.topics:
                    several.append(_asked(image, t.name, t.topic_id, t.partition_indexes, version))
                    yield
            fetch.ask(services, Wanted(group.group_id, several, group.member_id, group.member_epoch))
            yield
    else:
        asked: list[Asked] | None = None
        if request.topics is not None:
            asked = []
            for topic in request.topics:
                asked.append(_asked(image, topic.name, NO_UUID, topic.partition_indexes, version))
                yield
        fetch.ask(services, Wanted(request.group_id, asked))
    if fetch.is_waiting:
        return fetch.pending()
    return (yield from fetch.response())


_Offsets = dict[str, dict[int, OffsetCommitValue]]


class _Fetch:
    """Collects the groups' offsets, which their coordinators may give at different times; then tells of them."""

    def __init__(self, version: int, image: "MetadataImage") -> None:
        self._version = version
        self._image = image
        self._asked: list[tuple[str, list[Asked] | None]] = []
        self._found: list[_Offsets | ErrorCode] = []
        self._left = 0
        self._pending: Pending[Steps[OffsetFetchResponse]] | None = None

    @property
    def is_waiting(self) -> bool:
        return self._left > 0

    def pending(self) -> Pending[Steps[OffsetFetchResponse]]:
        """What stands for the response until every coordinator has answered."""
        self._pending = Pending()
        return self._pending

    def ask(self, services: Services, wanted: Wanted) -> None:
        asked = wanted.topics
        place = len(self._asked)
        self._asked.append((wanted.group_id, asked))
        self._found.append({})
        self._left += 1

        def reply(answer: _Offsets | ApiError) -> None:
            # Not the error itself: its traceback leads back here, and would keep all of the request.
            self._found[place] = answer.code if isinstance(answer, ApiError) else answer
            self._left -= 1
            if not self._left and self._pending is not None:
                self._pending.complete(self.response())

        try:
            services.groups.committed(
                wanted.group_id,
                lambda durable: _copied(durable, asked),
                reply,
                wanted.member_id,
                wanted.member_epoch,
            )
        except ApiError as error:
            reply(error)

    def refuse(self, group_id: str, code: ErrorCode) -> None:
        """Tell of it without asking."""
        self._asked.append((group_id, []))
        self._found.append(code)

    def response(self) -> Steps[OffsetFetchResponse]:
        groups = []
        for (group_id, asked), found in zip(self._asked, self._found, strict=True):
            group = OffsetFetchResponseGroup(group_id=group_id)
            if isinstance(found, ErrorCode):
                group.error_code = found
                if self._version < GROUP_ERROR_VERSION:
                    group.topics = yield from _topics(asked or [], {}, found)
            elif asked is None:
                group.topics = yield from _all_topics(self._image, found)
            else:
                group.topics = yield from _topics(asked, found, ErrorCode.NONE)
            groups.append(group)
            yield
        if self._version >= SEVERAL_GROUPS_VERSION:
            return OffsetFetchResponse(groups=groups)
        (group,) = groups
        topics = []
        for topic in group.topics:
            partitions = []
            for partition in topic.partitions:
                partitions.append(_older(partition))
                yield
            topics.append(OffsetFetchResponseTopic(topic.name, partitions))
            yield
        return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _copied(durable: DurableGroup | None, asked: list[Asked] | None) -> _Offsets:
    """The group's offsets of one moment; what is told of them is made later, in steps."""
    if durable is None:
        return {}
    offsets = durable.offsets
    if asked is None or len(asked) > len(offsets):
        return {name: dict(committed) for name, committed in offsets.items()}
    names = dict.fromkeys(topic.name for topic in asked)
    return {name: dict(offsets[name]) for name in names if name in offsets}


def _asked(image: "MetadataImage", name: str, topic_id: bytes, partitions: list[int], version: int) -> Asked:
    """By name, a topic need not exist: offsets may be there all the same."""
    if version >= TOPIC_IDS_VERSION:
        topic = image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return Asked("", topic_id, partitions, ErrorCode.UNKNOWN_TOPIC_ID)
        return Asked(topic.name, topic_id, partitions, ErrorCode.NONE)
    topic = image.topics.get(name)
    return Asked(name, NO_UUID if topic is None else topic.topic_id, partitions, ErrorCode.NONE)


def _topics(asked: list[Asked], offsets: _Offsets, error: ErrorCode) -> Steps[list[OffsetFetchResponseTopics]]:
    """What was committed of these; `error`, or its own, of a topic in error."""
    topics: list[OffsetFetchResponseTopics] = []
    wrong: list[OffsetFetchResponseTopics] = []  # behind the others, as Kafka has it
    # Each offset once: four bytes of a request are KB of metadata.
    told_of: dict[tuple[str, bytes], dict[int, None]] = {}
    for topic in asked:
        code = error or topic.error
        committed = offsets.get(topic.name, {})
        partitions = []
        before = told_of.setdefault((topic.name, topic.topic_id), {})
        for index in topic.partitions:
            if index in before:
                yield
                continue
            before[index] = None
            if code:
                partitions.append(OffsetFetchResponsePartitions(index, -1, -1, "", code))
            else:
                value = committed.get(index, NOT_COMMITTED)
                partitions.append(_partition(index, NOT_COMMITTED if _is_of_another(value, topic.topic_id) else value))
            yield
        told = OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions)
        (wrong if topic.error else topics).append(told)
        yield
    return topics + wrong


def _all_topics(image: "MetadataImage", offsets: _Offsets) -> Steps[list[OffsetFetchResponseTopics]]:
    topics = []
    for name, committed in offsets.items():
        topic = image.topics.get(name)
        topic_id = NO_UUID if topic is None else topic.topic_id
        partitions = []
        for index, value in committed.items():
            if not _is_of_another(value, topic_id):
                partitions.append(_partition(index, value))
            yield
        if partitions:
            topics.append(OffsetFetchResponseTopics(name, topic_id, partitions))
    return topics


def _is_of_another(value: OffsetCommitValue, topic_id: bytes) -> bool:
    """Whether it was committed for an earlier topic of the name: the present one was made after that was deleted."""
    return value.topic_id not in (topic_id, NO_UUID) and topic_id != NO_UUID


def _partition(index: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(index, value.offset, value.leader_epoch, value.metadata)


def _older(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.metadata,
        partition.error_code,
    )
