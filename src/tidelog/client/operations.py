"""The client's operations as plans for the owner of the sockets. A plan says which request to send to which broker,
when to pause, and when to stop.

An operation is a generator: it yields `AskAny`, `Ask` and `Pause`, receives the responses, and returns its result.
It does no I/O. Therefore a test can simulate the brokers. A blocking program and an asynchronous program can use the
same operations, which make the decisions about metadata, leaders and retries.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from tidelog.client.cluster import Address, Cluster, Topic
from tidelog.client.connection import NEWEST
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ClientError, Unreachable
from tidelog.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    LeaderNotAvailable,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    error_for,
)
from tidelog.wire.message import Message
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.primitives import Buffer

EARLIEST = -2
LATEST = -1
"""Timestamps for `list_offsets`: EARLIEST is the log start offset; LATEST is the high watermark or, with
READ_COMMITTED, the last stable offset."""

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

ACKS_ALL = -1

FETCH_BY_NAME = 12
PRODUCE_BY_NAME = 12
"""The last versions of Fetch and Produce that identify topics by name. Later versions use topic ids (KIP-516)."""

UNKNOWN_TOPIC_ATTEMPTS = 5
"""Number of attempts while a topic is unknown. The first attempts may fail, because not every broker knows a new
topic immediately. After the last attempt the topic is assumed not to exist."""


class AskAny(NamedTuple):
    """Send the request to any broker that can be reached. The response is sent into the generator. If no broker can be
    reached, NoBrokerReachable is thrown into it.
    """

    request: Message


class Request(NamedTuple):
    address: Address
    message: Message
    version_max: int = NEWEST
    """The highest version to use; later versions cannot express the request."""


class Ask(NamedTuple):
    """Send each request to its broker. All requests are sent before the first response is awaited.

    A list is sent into the generator. It is in the order of the requests. Each element is the response, or the
    ClientError that explains why there is no response.
    """

    requests: list[Request]


class Pause(NamedTuple):
    """Wait before the next attempt. If the call would time out during the pause, GaveUp is thrown into the generator
    instead, with `because` as its cause.
    """

    delay_ms: int
    because: Exception


T = TypeVar("T")
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=ApiError | ClientError)
Effect: TypeAlias = AskAny | Ask | Pause
Answer: TypeAlias = Message | Sequence[Message | ClientError] | None
Operation: TypeAlias = Generator[Effect, Answer, T]


class Backoff(NamedTuple):
    """The pauses between attempts. They double from `first_ms` (`retry.backoff.ms`) up to `max_ms`
    (`retry.backoff.max.ms`).
    """

    first_ms: int = 100
    max_ms: int = 1_000

    def delay_ms(self, attempt: int) -> int:
        return min(self.max_ms, self.first_ms << min(attempt, 16))


class FetchLimits(NamedTuple):
    """The limits of a fetch: fields of the Fetch request. `isolation` is its isolation level."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_max_bytes: int = 16 << 20
    isolation: int = READ_UNCOMMITTED


class Fetched(NamedTuple):
    """The result of a fetch from one partition."""

    records: memoryview
    """Record batches, beginning with the batch that contains the requested offset; the last batch may be truncated.
    Empty if the broker had no new records within `max_wait_ms`."""
    high_watermark: int
    """-1 if the client is over its quota, because the response then omits the partition. In this case the other
    offsets are -1, too."""
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    """The aborted transactions as (producer id, first offset), sorted by first offset. Empty unless `isolation` is
    READ_COMMITTED."""


THROTTLED = Fetched(memoryview(b""), -1, -1, -1, [])
"""The result of a fetch while the client is over its quota: the response contains no partitions."""


class ListedOffset(NamedTuple):
    """The result of ListOffsets. `offset` is -1 if no record of the partition has the requested timestamp or a later
    one.
    """

    offset: int
    timestamp_ms: int


class Produced(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    """-1 unless the topic uses LogAppendTime."""


class Retries:
    """Decides, within one operation, whether an error is final, and how long to pause before the next attempt."""

    def __init__(self, cluster: Cluster, backoff: Backoff, topics: Collection[str]) -> None:
        self._cluster = cluster
        self._backoff = backoff
        self._topics = topics
        self._attempts = 0
        self._unknown_topic_attempts = 0

    def after(self, error: ApiError | Unreachable) -> Pause:
        """Return the pause before the next attempt. Raises `error` if it is final.

        The topics are removed from the cache, so that the next attempt requests their metadata again.
        """
        self._attempts += 1
        if isinstance(error, ApiError):
            if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                self._unknown_topic_attempts += 1
            if not error.retriable or self._unknown_topic_attempts >= UNKNOWN_TOPIC_ATTEMPTS:
                raise error
        self._cluster.forget(self._topics)
        return Pause(self._backoff.delay_ms(self._attempts - 1), error)


def topics(cluster: Cluster, backoff: Backoff, names: Sequence[str], *, create: bool) -> Operation[dict[str, Topic]]:
    """Request the metadata of these topics from the cluster, and return it.

    Raises UnknownTopicOrPartition only after UNKNOWN_TOPIC_ATTEMPTS attempts, because not every broker knows a new
    topic immediately. Raises any other final error without a further attempt. With `create`, missing topics are
    created, if the broker creates topics on demand.
    """
    retries = Retries(cluster, backoff, names)
    while True:
        try:
            topic_errors = yield from refresh(cluster, names, create=create)
            if not topic_errors:
                return {name: cluster.topics[name] for name in names}
            pause = retries.after(_first_final(topic_errors.values()))
        except Unreachable as error:
            pause = retries.after(error)
        yield pause


def all_topics(cluster: Cluster, backoff: Backoff) -> Operation[dict[str, Topic]]:
    """Request every topic of the cluster. Topics for which the broker answers with an error are not returned."""
    retries = Retries(cluster, backoff, ())
    while True:
        cluster.topics.clear()
        try:
            yield from refresh(cluster, None)
            return dict(cluster.topics)
        except Unreachable as error:
            pause = retries.after(error)
        yield pause


def list_offsets(
    cluster: Cluster, backoff: Backoff, timestamps: Mapping[TopicPartition, int], isolation: int
) -> Operation[dict[TopicPartition, ListedOffset]]:
    """Return one offset for each partition: the first offset whose timestamp is at least the requested timestamp (in
    ms), or the offset that EARLIEST or LATEST means.
    """
    offsets: dict[TopicPartition, ListedOffset] = {}

    def attempt() -> Operation[None]:
        remaining = {tp: timestamp for tp, timestamp in timestamps.items() if tp not in offsets}
        leaders = yield from _by_leader(cluster, remaining)
        requests = [
            Request(address, list_offsets_request(cluster, {tp: remaining[tp] for tp in partitions}, isolation))
            for address, partitions in leaders.items()
        ]
        failures = _Failures()
        for response in failures.responses_of((yield Ask(requests)), ListOffsetsResponse):
            for topic in response.topics:
                for item in topic.partitions:
                    tp = TopicPartition(topic.name, item.partition_index)
                    if not failures.add_if_error(tp, item.error_code):
                        offsets[tp] = ListedOffset(item.offset, item.timestamp)
        failures.raise_first()

    yield from _retrying(cluster, backoff, timestamps, attempt)
    return offsets


def fetch(
    cluster: Cluster, backoff: Backoff, partition: TopicPartition, offset: int, limits: FetchLimits
) -> Operation[Fetched]:
    """Return record batches of one partition, from `offset` on. Returns THROTTLED if the client is over its quota.

    Raises OffsetOutOfRange if `offset` is not in the log.
    """
    fetched: list[Fetched] = []

    def attempt() -> Operation[None]:
        leaders = yield from _by_leader(cluster, [partition])
        request = _fetch_request(cluster, partition, offset, limits)
        version_max = NEWEST if cluster.topic_id(partition.topic) != NO_TOPIC_ID else FETCH_BY_NAME
        failures = _Failures()
        ask = Ask([Request(address, request, version_max) for address in leaders])
        for response in failures.responses_of((yield ask), FetchResponse):
            if response.error_code == ErrorCode.NONE and not response.responses:
                fetched.append(THROTTLED)  # the owner of the sockets waits for `throttle_time_ms` (KIP-219)
                continue
            item = _fetched_partition(response)
            if item.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRange(f"{partition}: offset {offset} is not in the log")
            if not failures.add_if_error(partition, item.error_code):
                fetched.append(fetched_from(item))
        failures.raise_first()

    yield from _retrying(cluster, backoff, [partition], attempt)
    return fetched[0]


def produce(
    cluster: Cluster,
    backoff: Backoff,
    batches: Mapping[TopicPartition, Buffer],
    acks: int,
    timeout_ms: int,
    *,
    transactional_id: str | None = None,
    version_max: int = NEWEST,
) -> Operation[dict[TopicPartition, Produced]]:
    """Append one record batch to each partition. A batch whose response is lost is sent again, so it may be appended
    more than once, unless its header has a producer id and a sequence number.
    """
    produced: dict[TopicPartition, Produced] = {}

    def attempt() -> Operation[None]:
        remaining = [tp for tp in batches if tp not in produced]
        leaders = yield from _by_leader(cluster, remaining)
        names = {cluster.topic_id(tp.topic): tp.topic for tp in remaining}
        by_id_or_name_max = NEWEST if NO_TOPIC_ID not in names else PRODUCE_BY_NAME
        requests = [
            Request(
                address,
                _produce_request(cluster, {tp: batches[tp] for tp in partitions}, acks, timeout_ms, transactional_id),
                min(version_max, by_id_or_name_max),
            )
            for address, partitions in leaders.items()
        ]
        failures = _Failures()
        for response in failures.responses_of((yield Ask(requests)), ProduceResponse):
            for topic in response.responses:
                for item in topic.partition_responses:
                    tp = TopicPartition(topic.name or names[TopicId(topic.topic_id)], item.index)
                    if not failures.add_if_error(tp, item.error_code, _produce_message(item)):
                        produced[tp] = Produced(item.base_offset, item.log_append_time_ms)
        failures.raise_first()

    yield from _retrying(cluster, backoff, batches, attempt)
    return produced


def init_producer_id(cluster: Cluster, backoff: Backoff) -> Operation[tuple[int, int]]:
    """Return a new producer id and its epoch, for idempotent writes without transactions. Raises ApiError."""
    request = InitProducerIdRequest(transactional_id=None)
    retries = Retries(cluster, backoff, [])
    while True:
        try:
            response = yield AskAny(request)
            assert isinstance(response, InitProducerIdResponse)
            if response.error_code:
                raise error_for(response.error_code, f"no producer id: {error_name(response.error_code)}")
            return response.producer_id, response.producer_epoch
        except (ApiError, Unreachable) as error:
            pause = retries.after(error)
        yield pause


class _Failures:
    """Collects the errors of one round of responses. A final error takes precedence over retriable errors."""

    def __init__(self) -> None:
        self._errors: list[ApiError | ClientError] = []

    def responses_of(self, answers: Answer, response_class: type[M]) -> list[M]:
        """Return the responses among `answers`, and store the errors among `answers`."""
        assert isinstance(answers, list)
        self._errors += [a for a in answers if isinstance(a, ClientError)]
        return [cast(M, a) for a in answers if not isinstance(a, ClientError)]

    def add_if_error(self, partition: TopicPartition, code: int, message: str | None = None) -> bool:
        """If `code` is the code of an error, store the error of the partition, and return True."""
        if code == ErrorCode.NONE:
            return False
        self._errors.append(error_for(code, f"{partition}: {message or error_name(code)}"))
        return True

    def raise_first(self) -> None:
        if self._errors:
            raise _first_final(self._errors)


def _first_final(errors: Iterable[E]) -> E:
    """Return the first error that another attempt cannot solve. If there is no such error, return the first error."""
    ranked = sorted(errors, key=lambda e: e.retriable if isinstance(e, ApiError) else isinstance(e, Unreachable))
    return ranked[0]


def _retrying(
    cluster: Cluster, backoff: Backoff, partitions: Iterable[TopicPartition], attempt: Callable[[], Operation[None]]
) -> Operation[None]:
    retries = Retries(cluster, backoff, list(dict.fromkeys(tp.topic for tp in partitions)))
    while True:
        try:
            return (yield from attempt())
        except (ApiError, Unreachable) as error:
            pause = retries.after(error)
        yield pause


def refresh(cluster: Cluster, names: Sequence[str] | None, *, create: bool = False) -> Operation[dict[str, ApiError]]:
    """Request topics by name, or all topics if `names` is None, and update the cache. Return the error of each topic
    for which the broker answered with an error.
    """
    requested_topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    response = yield AskAny(MetadataRequest(topics=requested_topics, allow_auto_topic_creation=create))
    assert isinstance(response, MetadataResponse)
    return cluster.update(response)


def _by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> Operation[dict[Address, list[TopicPartition]]]:
    """Return the partitions grouped by their leaders' addresses. Metadata is requested only for the topics of
    the partitions whose leader is unknown.
    """
    requested = list(partitions)
    unknown = list(dict.fromkeys(tp.topic for tp in requested if cluster.leader(tp) is None))
    if unknown:
        topic_errors = yield from refresh(cluster, unknown)
        if topic_errors:
            raise _first_final(topic_errors.values())
    grouped: dict[Address, list[TopicPartition]] = {}
    for tp in requested:
        leader = cluster.leader(tp)
        if leader is None:
            raise no_leader(cluster, tp)
        grouped.setdefault(leader[0], []).append(tp)
    return grouped


def no_leader(cluster: Cluster, partition: TopicPartition) -> ApiError:
    """Return the error for a partition whose leader the cache does not know."""
    topic = cluster.topics.get(partition.topic)
    if topic is None or partition.partition in topic.leaders:
        return LeaderNotAvailable(f"{partition} has no leader at present")
    return UnknownTopicOrPartition(f"{partition}: the topic has {len(topic.leaders)} partitions")


def list_offsets_request(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], isolation: int
) -> ListOffsetsRequest:
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation)
    by_topic: dict[str, ListOffsetsTopic] = {}
    for tp, timestamp in timestamps.items():
        topic = by_topic.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=tp.partition, current_leader_epoch=_epoch(cluster, tp), timestamp=timestamp
            )
        )
    request.topics = list(by_topic.values())
    return request


def _fetch_request(cluster: Cluster, partition: TopicPartition, offset: int, limits: FetchLimits) -> FetchRequest:
    fetch_partition = FetchPartition(
        partition=partition.partition,
        current_leader_epoch=_epoch(cluster, partition),
        fetch_offset=offset,
        partition_max_bytes=limits.partition_max_bytes,
    )
    topic = FetchTopic(topic=partition.topic, topic_id=cluster.topic_id(partition.topic), partitions=[fetch_partition])
    return FetchRequest(
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation,
        topics=[topic],
    )


def fetched_from(item: PartitionData) -> Fetched:
    """Convert one partition of a response. The partition must not have an error."""
    aborted = [(a.producer_id, a.first_offset) for a in item.aborted_transactions or ()]
    records = memoryview(item.records or b"")  # type: ignore[arg-type]  # decoded: always a view
    return Fetched(records, item.high_watermark, item.last_stable_offset, item.log_start_offset, aborted)


def _fetched_partition(response: FetchResponse) -> PartitionData:
    """Return the only partition of a response. An error of the whole request becomes the partition's error."""
    if response.error_code != ErrorCode.NONE:
        return PartitionData(error_code=response.error_code)
    return response.responses[0].partitions[0]


def _produce_request(
    cluster: Cluster,
    batches: Mapping[TopicPartition, Buffer],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> ProduceRequest:
    by_topic: dict[str, TopicProduceData] = {}
    for tp, batch in batches.items():
        data = TopicProduceData(name=tp.topic, topic_id=cluster.topic_id(tp.topic))
        topic = by_topic.setdefault(tp.topic, data)
        topic.partition_data.append(PartitionProduceData(index=tp.partition, records=batch))
    return ProduceRequest(transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=list(by_topic.values()))


def _produce_message(item: PartitionProduceResponse) -> str | None:
    """Return the broker's message about the batch and about the first rejected record; None if the broker sent no
    message.
    """
    details = [item.error_message, *(e.batch_index_error_message for e in item.record_errors[:1])]
    return "; ".join(filter(None, details)) or None


def _epoch(cluster: Cluster, partition: TopicPartition) -> int:
    leader = cluster.leader(partition)
    return leader[1].epoch if leader else -1
