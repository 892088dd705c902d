"""OffsetFetch (key 9), v1-10. v2: null for all topics, top-level error; v5: leader epoch (KIP-320); v7: require_stable
(KIP-447); v8: several groups (KIP-709); v9: member id and epoch (KIP-848), which groups of the consumer protocol look
at; v10: topic ids in place of names."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.api.pending import Pending
from tidelog.api.repeats import REFUSED, Repeats
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
TOPIC_BYTES, OFFSET_BYTES = 20, 30
"""Of a topic and of an offset in an answer, without names and metadata."""
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
    """Groups, topics and partitions are answered as they are named, also those that are named more than once."""
    version = context.api_version
    image = services.metadata.image
    fetch = _Fetch(version, image)
    if version >= SEVERAL_GROUPS_VERSION:
        for group in request.groups:
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
_Topics = list[OffsetFetchResponseTopics]


class _Fetch:
    """Collects the groups' offsets, which their coordinators may give at different times; then answers with them.

    The offsets of a group are copied once, however often the request names it.
    """

    def __init__(self, version: int, image: "MetadataImage") -> None:
        self._version = version
        self._image = image
        self._asked: list[tuple[str, list[Asked] | None]] = []
        self._found: list[_Offsets | ErrorCode] = []
        self._left = 0
        self._pending: Pending[Steps[OffsetFetchResponse]] | None = None
        self._copies: dict[str, _Offsets] = {}
        """What has been copied of each group."""
        self._copied_whole: dict[str, None] = {}
        self._whole: dict[str, tuple[_Topics, int]] = {}
        """All topics of a group as they are answered, and the bytes that they take there."""
        self._repeats: Repeats[tuple[str | int, ...]] = Repeats()

    @property
    def is_waiting(self) -> bool:
        return self._left > 0

    def pending(self) -> Pending[Steps[OffsetFetchResponse]]:
        """What stands for the response until every coordinator has answered."""
        self._pending = Pending()
        return self._pending

    def ask(self, services: Services, wanted: Wanted) -> None:
        place = len(self._asked)
        self._asked.append((wanted.group_id, wanted.topics))
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
                lambda durable: self._copied(wanted.group_id, wanted.topics, durable),
                reply,
                wanted.member_id,
                wanted.member_epoch,
            )
        except ApiError as error:
            reply(error)

    def _copied(self, group_id: str, asked: list[Asked] | None, durable: DurableGroup | None) -> _Offsets:
        """The group's offsets in these topics, or in all, as they are now: the answer is made later, in steps."""
        copied = self._copies.setdefault(group_id, {})
        if durable is None or group_id in self._copied_whole:
            return copied
        offsets = durable.offsets
        names: Iterable[str] = offsets
        if asked is None:
            self._copied_whole[group_id] = None
        elif len(asked) <= len(offsets):
            names = (topic.name for topic in asked)
        for name in names:
            if name in offsets and name not in copied:
                copied[name] = dict(offsets[name])
        return copied

    def response(self) -> Steps[OffsetFetchResponse]:
        groups = []
        for (group_id, asked), found in zip(self._asked, self._found, strict=True):
            group = OffsetFetchResponseGroup(group_id=group_id)
            try:
                if isinstance(found, ErrorCode):
                    raise ApiError("", found)
                if asked is None:
                    group.topics = yield from self._all_topics(group_id, found)
                else:
                    group.topics = yield from self._topics(group_id, asked, found)
            except ApiError as error:
                group.error_code = error.code
                if self._version < GROUP_ERROR_VERSION:
                    group.topics = yield from _refused(asked or [], error.code)
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

    def _topics(self, group_id: str, asked: list[Asked], offsets: _Offsets) -> Steps[_Topics]:
        """The group's offsets as they are asked for. Raises ApiError where they say too much again."""
        topics: _Topics = []
        wrong: _Topics = []  # behind the others, as Kafka has it
        for topic in asked:
            if topic.error:
                wrong += yield from _refused([topic], topic.error)
                continue
            committed = offsets.get(topic.name, {})
            partitions = []
            for index in topic.partitions:
                value = committed.get(index, NOT_COMMITTED)
                if _is_of_another(value, topic.topic_id):
                    value = NOT_COMMITTED
                # An offset without metadata takes as much as one that was not committed.
                if value.metadata and not self._repeats.allow((group_id, topic.name, index), len(value.metadata)):
                    raise ApiError(REFUSED, ErrorCode.INVALID_REQUEST)
                partitions.append(_partition(index, value))
                yield
            topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
            yield
        return topics + wrong

    def _all_topics(self, group_id: str, offsets: _Offsets) -> Steps[_Topics]:
        """All offsets of the group. Raises ApiError where they were told before, and are too many to be told again."""
        if group_id not in self._whole:
            self._whole[group_id] = yield from _whole(self._image, offsets)
        topics, size = self._whole[group_id]
        if not self._repeats.allow((group_id,), size):
            raise ApiError(REFUSED, ErrorCode.INVALID_REQUEST)
        return topics


def _asked(image: "MetadataImage", name: str, topic_id: bytes, partitions: list[int], version: int) -> Asked:
    """By name, a topic need not exist: offsets may be there all the same."""
    if version >= TOPIC_IDS_VERSION:
        topic = image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return Asked("", topic_id, partitions, ErrorCode.UNKNOWN_TOPIC_ID)
        return Asked(topic.name, topic_id, partitions, ErrorCode.NONE)
    topic = image.topics.get(name)
    return Asked(name, NO_UUID if topic is None else topic.topic_id, partitions, ErrorCode.NONE)


def _refused(asked: list[Asked], error: ErrorCode) -> Steps[_Topics]:
    topics = []
    for topic in asked:
        partitions = []
        for index in topic.partitions:
            partitions.append(OffsetFetchResponsePartitions(index, -1, -1, "", error))
            yield
        topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
        yield
    return topics


def _whole(image: "MetadataImage", offsets: _Offsets) -> Steps[tuple[_Topics, int]]:
    """All topics of a group, and the bytes that they take in an answer, roughly."""
    topics = []
    size = 0
    for name, committed in offsets.items():
        topic = image.topics.get(name)
        topic_id = NO_UUID if topic is None else topic.topic_id
        partitions = []
        for index, value in committed.items():
            if not _is_of_another(value, topic_id):
                partitions.append(_partition(index, value))
                size += OFFSET_BYTES + len(value.metadata)
            yield
        if partitions:
            topics.append(OffsetFetchResponseTopics(name, topic_id, partitions))
            size += TOPIC_BYTES + len(name)
    return topics, size


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
