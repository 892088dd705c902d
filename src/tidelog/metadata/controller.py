"""The controller's decisions about topics and brokers: image and request in, records and reply out. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.endpoints import Endpoint
from tidelog.config.topic_config import InvalidTopicConfig, check_topic_config
from tidelog.metadata.image import CLUSTER_METADATA, MetadataImage, TopicImage
from tidelog.metadata.placement import place
from tidelog.metadata.records import (
    BrokerRegistered,
    JournalRecord,
    LeadershipRenewed,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    new_partitions,
)
from tidelog.metadata.topic_names import FILE_NAME_MAX, flat_name, name_refusal
from tidelog.model.ids import NO_TOPIC_ID, TopicId
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

PARTITIONS_PER_REQUEST_MAX = 10_000
SETTINGS_MAX = 10_000
"""Of one new topic in a request. A topic has fewer: more name one again, or one that nobody has."""
PRODUCER_ID_BLOCK = 1000
MORE_THAN_ONCE = "the request has this topic more than once"


TakePartitions = Callable[[int], bool]
"""Whether so many partitions may be made or deleted now; whoever asks has them counted (KIP-599)."""


def unlimited(count: int) -> bool:
    return True


class JournalDecision(NamedTuple, Generic[R]):
    records: list[JournalRecord]
    """Appended first, whole or not at all."""
    reply: R
    """Holds once they are."""


class NewTopic(NamedTuple):
    name: str
    partitions: int = -1
    """-1: the broker's default, or as `assignments` say."""
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Partition and its replicas."""
    config: Sequence[tuple[str, str | None]] = ()


class TopicResult(NamedTuple):
    """What became of one topic that was to be made or deleted."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = {}


class MorePartitions(NamedTuple):
    topic: str
    total: int
    """Of all its partitions, afterwards."""
    assignments: Sequence[Sequence[int]] | None = None
    """Replicas of each new one."""


class TopicChoice(NamedTuple):
    """A topic to delete, by name or by id."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID


def create_topics(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    config: BrokerConfig,
    new_id: Callable[[], TopicId],
    *,
    validate_only: bool = False,
    take: TakePartitions = unlimited,
) -> Steps[JournalDecision[list[TopicResult]]]:
    """Each topic succeeds or fails alone. Results are in the order of the request, names that came twice at the end."""
    unique: dict[str, NewTopic] = {}
    asked = 0
    for topic in topics:
        unique[topic.name] = topic
        yield
    for topic in unique.values():
        asked += max(topic.partitions, len(topic.assignments), 1)
        yield
    repeated = yield from _repeated(topic.name for topic in topics)
    if asked > PARTITIONS_PER_REQUEST_MAX:
        message = f"one request makes at most {PARTITIONS_PER_REQUEST_MAX} partitions, and this one asks for more"
        return JournalDecision([], (yield from _refused(unique, ErrorCode.POLICY_VIOLATION, message)))
    records: list[JournalRecord] = []
    results: list[TopicResult] = []
    flat = yield from _flat_names(image, unique)
    for topic in unique.values():
        yield
        if topic.name in repeated:
            continue
        try:
            created = _new_topic(image, topic, config, new_id, len(records), flat)
            _take(take, len(created.partitions))
        except ApiError as error:
            results.append(TopicResult(topic.name, error=error.code, message=error.message or None))
            continue
        factor = len(created.partitions[0].replicas)
        results.append(
            TopicResult(
                topic.name,
                created.topic_id,
                partitions=len(created.partitions),
                replication_factor=factor,
                config=created.config,
            )
        )
        records.append(created)
    results += yield from _refused(repeated, ErrorCode.INVALID_REQUEST, MORE_THAN_ONCE)
    return JournalDecision([] if validate_only else records, results)


def _take(take: TakePartitions, count: int) -> None:
    if not take(count):
        raise ApiError("", ErrorCode.THROTTLING_QUOTA_EXCEEDED)


def _refused(names: Iterable[str], error: ErrorCode, message: str | None) -> Steps[list[TopicResult]]:
    results = []
    for name in names:
        results.append(TopicResult(name, error=error, message=message))
        yield
    return results


def _flat_names(image: MetadataImage, wanted: Iterable[str]) -> Steps[dict[str, str]]:
    """The topics there are, by `flat_name`; empty where nothing of `wanted` could collide."""
    found: dict[str, str] = {}
    for name in wanted:
        if "." in name or "_" in name:
            break
        yield
    else:
        return found
    for name in image.topics:
        found.setdefault(flat_name(name), name)
        yield
    return found


def _new_topic(
    image: MetadataImage,
    topic: NewTopic,
    config: BrokerConfig,
    new_id: Callable[[], TopicId],
    made_before: int,
    flat: Mapping[str, str],
) -> TopicCreated:
    """Raises ApiError, in the order in which Kafka looks: name, settings, then partitions."""
    if topic.name == CLUSTER_METADATA:
        raise ApiError(f"{CLUSTER_METADATA} is not a topic that can be made", ErrorCode.INVALID_REQUEST)
    refusal = name_refusal(topic.name)
    if refusal is not None:
        raise ApiError(refusal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if topic.name in image.topics:
        raise ApiError(f"Topic '{topic.name}' already exists.", ErrorCode.TOPIC_ALREADY_EXISTS)
    other = flat.get(flat_name(topic.name))
    if other is not None:
        raise ApiError(f"{topic.name!r} differs from {other!r} in '.' and '_' only", ErrorCode.INVALID_TOPIC_EXCEPTION)
    settings = _settings(topic, config)
    if topic.assignments:
        replicas = _assigned(image, topic)
    else:
        replicas = _placed(image, topic, config, made_before)
    return TopicCreated(topic.name, new_id(), new_partitions(replicas), settings)


def _settings(topic: NewTopic, config: BrokerConfig) -> dict[str, str]:
    if len(topic.config) > SETTINGS_MAX:
        raise ApiError(f"a topic is given at most {SETTINGS_MAX} settings", ErrorCode.INVALID_CONFIG)
    settings: dict[str, str] = {}
    for name, value in topic.config:
        if value is None:
            raise ApiError(f"{name} has no value", ErrorCode.INVALID_CONFIG)
        settings[name] = value
    try:
        check_topic_config(settings, config)
    except InvalidTopicConfig as error:
        raise ApiError(str(error), ErrorCode.INVALID_CONFIG) from None
    return settings


def _assigned(image: MetadataImage, topic: NewTopic) -> list[tuple[int, ...]]:
    if topic.replication_factor != -1:
        raise ApiError("with assignments, the replication factor is -1", ErrorCode.INVALID_REQUEST)
    if topic.partitions != -1:
        raise ApiError("with assignments, the number of partitions is -1", ErrorCode.INVALID_REQUEST)
    by_partition: dict[int, tuple[int, ...]] = {}
    factor = len(topic.assignments[0][1])
    for partition, replicas in topic.assignments:
        if partition in by_partition:
            raise ApiError(f"partition {partition} is assigned twice", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        by_partition[partition] = check_replicas(image, replicas, factor)
    if sorted(by_partition) != list(range(len(by_partition))):
        raise ApiError("partitions are numbered from 0 without gaps", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return [by_partition[i] for i in range(len(by_partition))]


def check_replicas(image: MetadataImage, replicas: Sequence[int], replication_factor: int) -> tuple[int, ...]:
    """Raises ApiError unless these can hold a partition."""
    if not replicas:
        raise ApiError("an assignment names no broker", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if len(replicas) > len(image.brokers):
        message = "an assignment names a broker twice, or one that is not registered"
        raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    for broker in replicas:
        if broker not in image.brokers:
            raise ApiError(f"broker {broker} is not registered", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if len(dict.fromkeys(replicas)) != len(replicas):
        raise ApiError("an assignment names a broker twice", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if len(replicas) != replication_factor:
        raise ApiError("every partition has as many replicas", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return tuple(replicas)


def _placed(image: MetadataImage, topic: NewTopic, config: BrokerConfig, made_before: int) -> list[tuple[int, ...]]:
    factor = topic.replication_factor
    if factor < -1 or factor == 0:
        raise ApiError("the replication factor is at least 1, or -1", ErrorCode.INVALID_REPLICATION_FACTOR)
    partitions = topic.partitions
    if partitions < -1 or partitions == 0:
        raise ApiError("the number of partitions is at least 1, or -1", ErrorCode.INVALID_PARTITIONS)
    partitions = config.num_partitions if partitions == -1 else partitions
    factor = config.default_replication_factor if factor == -1 else factor
    _check_brokers(image, factor)
    _check_directories(config.takes_no_partitions)
    return place(image, partitions, factor, made_before)


def _check_brokers(image: MetadataImage, replication_factor: int) -> None:
    if replication_factor > len(image.brokers):
        raise ApiError(
            f"{replication_factor} replicas need as many brokers, and {len(image.brokers)} are registered",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def delete_topics(
    image: MetadataImage, choices: Sequence[TopicChoice], *, take: TakePartitions = unlimited
) -> Steps[JournalDecision[list[TopicResult]]]:
    """Each choice succeeds or fails alone; a topic that is chosen more than once is answered once, and stays."""
    repeated = yield from _repeated(c for c in choices if (c.name is None) != (c.topic_id == NO_TOPIC_ID))
    results: list[TopicResult] = []
    for choice in repeated:
        results.append(TopicResult(*choice, ErrorCode.INVALID_REQUEST, MORE_THAN_ONCE))
        yield
    times: dict[TopicId, int] = {}
    for choice in choices:
        yield
        if choice in repeated:
            continue
        try:
            topic_id = _chosen(image, choice).topic_id
        except ApiError as error:
            results.append(TopicResult(*choice, error.code, error.message))
        else:
            times[topic_id] = times.get(topic_id, 0) + 1
    records: list[JournalRecord] = []
    for topic_id, count in times.items():
        yield
        topic = image.topics_by_id[topic_id]
        name = topic.name
        if count > 1:
            results.append(TopicResult(name, topic_id, ErrorCode.INVALID_REQUEST, MORE_THAN_ONCE))
        elif not take(len(topic.partitions)):
            results.append(TopicResult(name, topic_id, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
        else:
            results.append(TopicResult(name, topic_id))
            records.append(TopicDeleted(topic_id))
    return JournalDecision(records, results)


def _chosen(image: MetadataImage, choice: TopicChoice) -> TopicImage:
    if choice.name is None:
        if choice.topic_id == NO_TOPIC_ID:
            raise ApiError("neither a name nor an id is given", ErrorCode.INVALID_REQUEST)
        found = image.topics_by_id.get(choice.topic_id)
        if found is None:
            raise ApiError("no topic has this id", ErrorCode.UNKNOWN_TOPIC_ID)
        return found
    if choice.topic_id != NO_TOPIC_ID:
        raise ApiError("a topic is chosen by its name or its id, not by both", ErrorCode.INVALID_REQUEST)
    found = image.topics.get(choice.name)
    if found is None:
        raise ApiError("there is no such topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return found


def _check_directories(cordoned: bool) -> None:
    if cordoned:
        raise ApiError(
            "every data directory is cordoned (cordoned.log.dirs) and takes no new partitions",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def create_partitions(
    image: MetadataImage,
    requests: Sequence[MorePartitions],
    *,
    validate_only: bool = False,
    cordoned: bool = False,
    take: TakePartitions = unlimited,
) -> Steps[JournalDecision[list[TopicResult]]]:
    """Each topic succeeds or fails alone; one that came twice is answered once. Unknown ones are answered first.

    `cordoned`: no data directory takes new partitions.
    """
    repeated = yield from _repeated(request.topic for request in requests)
    results = yield from _refused(repeated, ErrorCode.INVALID_REQUEST, MORE_THAN_ONCE)
    known: list[tuple[TopicImage, MorePartitions]] = []
    for request in requests:
        yield
        if request.topic in repeated:
            continue
        topic = image.topics.get(request.topic)
        if topic is None:
            results.append(TopicResult(request.topic, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            known.append((topic, request))
    records: list[JournalRecord] = []
    for topic, request in known:
        yield
        try:
            added = _more_partitions(image, topic, request, len(records))
            _check_directories(cordoned)
            _take(take, len(added.replicas))
            records.append(added)
        except ApiError as error:
            results.append(TopicResult(topic.name, error=error.code, message=error.message or None))
        else:
            results.append(TopicResult(topic.name))
    return JournalDecision([] if validate_only else records, results)


def _more_partitions(
    image: MetadataImage, topic: TopicImage, request: MorePartitions, made_before: int
) -> PartitionsAdded:
    present = len(topic.partitions)
    added = request.total - present
    if added <= 0:
        raise ApiError(
            f"{topic.name} has {present} partitions, {request.total} would not be more", ErrorCode.INVALID_PARTITIONS
        )
    last = f"{topic.name}-{request.total - 1}"
    if len(last) > FILE_NAME_MAX:
        raise ApiError(f"{last} is too long for a directory's name", ErrorCode.INVALID_PARTITIONS)
    if added > PARTITIONS_PER_REQUEST_MAX:
        message = f"one request adds at most {PARTITIONS_PER_REQUEST_MAX} partitions, not {added}"
        raise ApiError(message, ErrorCode.INVALID_PARTITIONS)
    factor = topic.replication_factor
    if request.assignments is None:
        _check_brokers(image, factor)
        replicas = place(image, added, factor, made_before)
    else:
        if len(request.assignments) != added:
            message = f"{added} partitions are to be added, and {len(request.assignments)} are assigned"
            raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        replicas = [check_replicas(image, each, factor) for each in request.assignments]
    return PartitionsAdded(topic.topic_id, present, tuple(replicas))


def register_broker(
    image: MetadataImage, broker_id: int, incarnation: str, endpoints: Sequence[Endpoint], rack: str | None
) -> JournalDecision[None]:
    """The journal's position is the broker epoch, as it grows with everything that is appended."""
    return JournalDecision([BrokerRegistered(broker_id, image.position, incarnation, tuple(endpoints), rack)], None)


def renew_leadership(image: MetadataImage, broker_id: int) -> list[JournalRecord]:
    """What a restarted broker's partitions need; nothing if it leads none."""
    leads = any(p.leader == broker_id for topic in image.topics.values() for p in topic.partitions)
    return [LeadershipRenewed(broker_id)] if leads else []


def allocate_producer_ids(image: MetadataImage, broker_id: int) -> JournalDecision[range]:
    first = image.producer_ids_next
    block = range(first, first + PRODUCER_ID_BLOCK)
    return JournalDecision([ProducerIdsAllocated(broker_id, block.stop)], block)


T = TypeVar("T")


def _repeated(items: Iterable[T]) -> Steps[dict[T, None]]:
    """What comes more than once, in the order of the first."""
    counts: dict[T, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
        yield
    repeated: dict[T, None] = {}
    for item, count in counts.items():
        if count > 1:
            repeated[item] = None
        yield
    return repeated
