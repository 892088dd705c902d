"""OffsetFetch (key 9), v1-10. v2: top-level error, and null asks for all topics; v5: leader epoch (KIP-320); v7:
require_stable (KIP-447); v8: several groups (KIP-709); v9: member id and epoch (KIP-848), which are checked only for
groups of the consumer protocol; v10: topic ids in place of names.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.api.pending import Pending
from tidelog.api.repeats import REPEATS_REFUSED, Repeats
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
    from tidelog.coordinator.group.pending_offsets import OffsetKey
    from tidelog.metadata.image import MetadataImage

GROUP_ERROR_SINCE = 2
SEVERAL_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10
TOPIC_BYTES, OFFSET_BYTES = 20, 30
"""Approximate bytes of a topic and of an offset in a response, without names and metadata."""
NOT_COMMITTED = OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="")
UNSTABLE = OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="")
"""Stands for an offset that is answered with UNSTABLE_OFFSET_COMMIT. The code recognises this object by its identity,
since it equals NOT_COMMITTED."""


class GroupQuery(NamedTuple):
    """One group of a request. `topics` is None if the request asks for all topics."""

    group_id: str
    topics: "list[TopicQuery] | None"
    member_id: str | None = None
    member_epoch: int = -1


class TopicQuery(NamedTuple):
    """One topic of a request. `error` is UNKNOWN_TOPIC_ID if the topic id is unknown, otherwise NONE."""

    name: str
    topic_id: bytes
    partitions: list[int]
    error: ErrorCode


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> "Steps[Outcome[OffsetFetchResponse]]":
    """Answer groups, topics and partitions in the order of the request, but in each group, unknown topic ids come last.
    Entries that the request repeats are repeated in the response.
    """
    version = context.api_version
    image = services.metadata.image
    fetch = _Fetch(version, image, require_stable=request.require_stable)
    if version >= SEVERAL_GROUPS_SINCE:
        for group in request.groups:
            topics: list[TopicQuery] | None = None
            if group.topics is not None:
                topics = []
                for group_topic in group.topics:
                    topics.append(
                        _topic_query(
                            image, group_topic.name, group_topic.topic_id, group_topic.partition_indexes, version
                        )
                    )
                    yield
            fetch.query_group(services, GroupQuery(group.group_id, topics, group.member_id, group.member_epoch))
            yield
    else:
        old_topics: list[TopicQuery] | None = None
        if request.topics is not None:
            old_topics = []
            for topic in request.topics:
                old_topics.append(_topic_query(image, topic.name, NO_UUID, topic.partition_indexes, version))
                yield
        fetch.query_group(services, GroupQuery(request.group_id, old_topics))
    if fetch.is_waiting:
        return fetch.pending()
    return (yield from fetch.response())


_Offsets = dict[str, dict[int, OffsetCommitValue]]
_Topics = list[OffsetFetchResponseTopics]


class _Fetch:
    """Collects the offsets of all groups of one request, then builds the response. Coordinators may answer at
    different times.

    The offsets of a group are copied once, however often the request names the group.
    """

    def __init__(self, version: int, image: "MetadataImage", *, require_stable: bool) -> None:
        """`require_stable`: an offset that an open transaction may change is answered with an error (KIP-447)."""
        self._version = version
        self._require_stable = require_stable
        self._image = image
        self._queries: list[tuple[str, list[TopicQuery] | None]] = []
        self._results: list[_Offsets | ErrorCode] = []
        self._unanswered = 0
        self._pending: Pending[Steps[OffsetFetchResponse]] | None = None
        self._copies: dict[str, _Offsets] = {}
        """The copied offsets of each group."""
        self._fully_copied: dict[str, None] = {}
        """The groups whose copies contain the offsets of all topics."""
        self._all_topics_answers: dict[str, tuple[_Topics, int]] = {}
        """For each group for which the request asks for all topics: the topics in the response, and their approximate
        bytes."""
        self._repeats: Repeats[tuple[str | int, ...]] = Repeats()

    @property
    def is_waiting(self) -> bool:
        return self._unanswered > 0

    def pending(self) -> Pending[Steps[OffsetFetchResponse]]:
        """Return the pending response. It is completed when every coordinator has answered."""
        self._pending = Pending()
        return self._pending

    def query_group(self, services: Services, query: GroupQuery) -> None:
        """Ask the coordinator of one group for the offsets. The coordinator may answer later."""
        number = len(self._queries)
        self._queries.append((query.group_id, query.topics))
        self._results.append({})
        self._unanswered += 1

        def reply(answer: _Offsets | ApiError) -> None:
            # Store only the error code. The error's traceback refers to the frame of `query_group`, so a stored error
            # would keep the whole request in memory.
            self._results[number] = answer.code if isinstance(answer, ApiError) else answer
            self._unanswered -= 1
            if not self._unanswered and self._pending is not None:
                self._pending.complete(self.response())

        try:
            services.groups.read_offsets(
                query.group_id,
                lambda durable, pending: self._copy_offsets(query.group_id, query.topics, durable, pending),
                reply,
                query.member_id,
                query.member_epoch,
            )
        except ApiError as error:
            reply(error)

    def _copy_offsets(
        self,
        group_id: str,
        queries: list[TopicQuery] | None,
        durable: DurableGroup | None,
        pending: "list[OffsetKey]",
    ) -> _Offsets:
        """Copy the group's offsets of the requested topics, or of all topics if `queries` is None. Return all copied
        offsets of the group. `pending` are the offsets in open transactions.

        The copy is necessary, since the response is built later, in steps.
        """
        copied = self._copies.setdefault(group_id, {})
        if durable is None or group_id in self._fully_copied:
            return copied
        offsets = durable.offsets
        names: Iterable[str] = offsets
        if queries is None:
            self._fully_copied[group_id] = None
        elif len(queries) <= len(offsets):  # otherwise it is cheaper to copy all topics of the group
            names = (topic.name for topic in queries)
        for name in names:
            if name in offsets and name not in copied:
                copied[name] = dict(offsets[name])
        if self._require_stable:
            for _, name, index in pending:
                # If the request asks for all topics, a partition whose only offset is in an open transaction is left
                # out.
                if queries is not None or index in copied.get(name, ()):
                    copied.setdefault(name, {})[index] = UNSTABLE
        return copied

    def response(self) -> Steps[OffsetFetchResponse]:
        """Build the response. Every coordinator must have answered."""
        groups = []
        for (group_id, queries), result in zip(self._queries, self._results, strict=True):
            group = OffsetFetchResponseGroup(group_id=group_id)
            try:
                if isinstance(result, ErrorCode):
                    raise ApiError("", result)
                if queries is None:
                    group.topics = yield from self._every_topic(group_id, result)
                else:
                    group.topics = yield from self._topics(group_id, queries, result)
            except ApiError as error:
                group.error_code = error.code
                if self._version < GROUP_ERROR_SINCE:
                    group.topics = yield from _error_topics(queries or [], error.code)
            groups.append(group)
            yield
        if self._version >= SEVERAL_GROUPS_SINCE:
            return OffsetFetchResponse(groups=groups)
        (group,) = groups
        topics = []
        for topic in group.topics:
            partitions = []
            for partition in topic.partitions:
                partitions.append(_old_partition(partition))
                yield
            topics.append(OffsetFetchResponseTopic(topic.name, partitions))
            yield
        return OffsetFetchResponse(topics=topics, error_code=group.error_code)

    def _topics(self, group_id: str, queries: list[TopicQuery], offsets: _Offsets) -> Steps[_Topics]:
        """Return the requested topics with the group's offsets. Raises ApiError if repeated metadata exceeds its
        limit.
        """
        topics: _Topics = []
        unknown_topics: _Topics = []  # after the known topics of the group, as in Kafka
        for query in queries:
            if query.error:
                unknown_topics += yield from _error_topics([query], query.error)
                continue
            committed = offsets.get(query.name, {})
            partitions = []
            for index in query.partitions:
                value = committed.get(index, NOT_COMMITTED)
                if _belongs_to_older_topic(value, query.topic_id):
                    value = NOT_COMMITTED
                # Only metadata can make an entry large, so entries without metadata may be repeated without a bound.
                if value.metadata and not self._repeats.allow((group_id, query.name, index), len(value.metadata)):
                    raise ApiError(REPEATS_REFUSED, ErrorCode.INVALID_REQUEST)
                partitions.append(_partition(index, value))
                yield
            topics.append(OffsetFetchResponseTopics(query.name, query.topic_id, partitions))
            yield
        return topics + unknown_topics

    def _every_topic(self, group_id: str, offsets: _Offsets) -> Steps[_Topics]:
        """Return all topics of the group. Raises ApiError if the request has named the group before and the repeated
        topics exceed the limit.
        """
        if group_id not in self._all_topics_answers:
            self._all_topics_answers[group_id] = yield from _all_topics_answer(self._image, offsets)
        topics, size = self._all_topics_answers[group_id]
        if not self._repeats.allow((group_id,), size):
            raise ApiError(REPEATS_REFUSED, ErrorCode.INVALID_REQUEST)
        return topics


def _topic_query(image: "MetadataImage", name: str, topic_id: bytes, partitions: list[int], version: int) -> TopicQuery:
    """Return the query for one topic. A topic that the request identifies by its name need not exist, since the group
    may still have offsets of a deleted topic.
    """
    if version >= TOPIC_IDS_SINCE:
        topic = image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return TopicQuery("", topic_id, partitions, ErrorCode.UNKNOWN_TOPIC_ID)
        return TopicQuery(topic.name, topic_id, partitions, ErrorCode.NONE)
    topic = image.topics.get(name)
    return TopicQuery(name, NO_UUID if topic is None else topic.topic_id, partitions, ErrorCode.NONE)


def _error_topics(queries: list[TopicQuery], error: ErrorCode) -> Steps[_Topics]:
    topics = []
    for query in queries:
        partitions = []
        for index in query.partitions:
            partitions.append(OffsetFetchResponsePartitions(index, -1, -1, "", error))
            yield
        topics.append(OffsetFetchResponseTopics(query.name, query.topic_id, partitions))
        yield
    return topics


def _all_topics_answer(image: "MetadataImage", offsets: _Offsets) -> Steps[tuple[_Topics, int]]:
    """Return all topics with committed offsets, and the approximate bytes that they take in a response."""
    topics = []
    size = 0
    for name, committed in offsets.items():
        topic = image.topics.get(name)
        topic_id = NO_UUID if topic is None else topic.topic_id
        partitions = []
        for index, value in committed.items():
            if not _belongs_to_older_topic(value, topic_id):
                partitions.append(_partition(index, value))
                size += OFFSET_BYTES + len(value.metadata)
            yield
        if partitions:
            topics.append(OffsetFetchResponseTopics(name, topic_id, partitions))
            size += TOPIC_BYTES + len(name)
    return topics, size


def _belongs_to_older_topic(value: OffsetCommitValue, topic_id: bytes) -> bool:
    """Return whether the offset was committed for an earlier topic of the same name, which was deleted."""
    return value.topic_id not in (topic_id, NO_UUID) and topic_id != NO_UUID


def _partition(index: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT if value is UNSTABLE else ErrorCode.NONE
    return OffsetFetchResponsePartitions(index, value.offset, value.leader_epoch, value.metadata, code)


def _old_partition(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.metadata,
        partition.error_code,
    )
