"""Decisions of the controller about topics and brokers. The functions are pure: they compute records and a reply from
the image and the request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.endpoints import Endpoint
from tidelog.config.topic_config import InvalidTopicConfig, check_topic_config
from tidelog.metadata.image import CLUSTER_METADATA, MetadataImage, TopicImage
from tidelog.metadata.placement import check_assignment, first_isr, place_in_steps
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
"""Maximum number of partitions that one CreateTopics request may create, or a CreatePartitions request may add to one
topic."""
NAMED_PARTITIONS_MAX = 100_000
"""Maximum number of partitions that one request for elections or reassignments may name. A request for the election of
all partitions names no partition, so this limit does not apply to it."""
SETTINGS_MAX = 10_000
"""Maximum number of settings of one new topic in a request. A topic has fewer settings than this, so a request with
more settings repeats names or contains unknown names."""
PRODUCER_ID_BLOCK = 1000
"""Number of producer ids that a broker gets in one allocation."""
REPEATED_TOPIC = "the request has this topic more than once"


ReservePartitions = Callable[[int], bool]
"""A function that is called with a number of partitions. If this number of partitions may be created or deleted now,
the function counts them towards the quota (KIP-599) and returns True. Otherwise it returns False."""


def unlimited(count: int) -> bool:
    return True


class JournalDecision(NamedTuple, Generic[R]):
    """The result of one decision of the controller."""

    records: list[JournalRecord]
    """Records to append to the journal, as one entry. If they are too large for one entry, see `Journal.append`."""
    reply: R
    """The reply to the request. It is valid after the records were appended."""


class NewTopic(NamedTuple):
    name: str
    partitions: int = -1
    """Number of partitions; -1 means the broker's default, or the number of `assignments` if there are any."""
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """For each partition, its index and the ids of its replicas."""
    config: Sequence[tuple[str, str | None]] = ()


class TopicResult(NamedTuple):
    """The result of creating or deleting one topic, or of adding partitions to it."""

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
    """The topic's number of partitions after the change."""
    assignments: Sequence[Sequence[int]] | None = None
    """The replicas of each new partition."""


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
    reserve: ReservePartitions = unlimited,
) -> Steps[JournalDecision[list[TopicResult]]]:
    """Create topics. Each topic succeeds or fails on its own.

    Results are in the order of the request. Topics that are repeated in the request fail, and their results come
    last.
    """
    unique: dict[str, NewTopic] = {}
    partition_count = 0
    for topic in topics:
        unique[topic.name] = topic
        yield
    for topic in unique.values():
        partition_count += max(topic.partitions, len(topic.assignments), 1)
        yield
    repeated = yield from _find_repeated(topic.name for topic in topics)
    if partition_count > PARTITIONS_PER_REQUEST_MAX:
        message = f"the request creates more than {PARTITIONS_PER_REQUEST_MAX} partitions, which is the limit"
        return JournalDecision([], (yield from _refuse_all(unique, ErrorCode.POLICY_VIOLATION, message)))
    records: list[JournalRecord] = []
    results: list[TopicResult] = []
    names_by_flat_name = yield from _names_by_flat_name(image, unique)
    for topic in unique.values():
        yield
        if topic.name in repeated:
            continue
        try:
            created = yield from _new_topic(image, topic, config, new_id, len(records), names_by_flat_name)
            _reserve_partitions(reserve, len(created.partitions))
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
    results += yield from _refuse_all(repeated, ErrorCode.INVALID_REQUEST, REPEATED_TOPIC)
    return JournalDecision([] if validate_only else records, results)


def _reserve_partitions(reserve: ReservePartitions, count: int) -> None:
    if not reserve(count):
        raise ApiError("", ErrorCode.THROTTLING_QUOTA_EXCEEDED)


def _refuse_all(names: Iterable[str], error: ErrorCode, message: str | None) -> Steps[list[TopicResult]]:
    results = []
    for name in names:
        results.append(TopicResult(name, error=error, message=message))
        yield
    return results


def _names_by_flat_name(image: MetadataImage, new_names: Iterable[str]) -> Steps[dict[str, str]]:
    """Return the names of existing topics by `flat_name`. The result is empty if no new name contains a dot or an
    underscore, because only such names can collide with others.
    """
    names: dict[str, str] = {}
    for name in new_names:
        if "." in name or "_" in name:
            break
        yield
    else:
        return names
    for name in image.topics:
        names.setdefault(flat_name(name), name)
        yield
    return names


def _new_topic(
    image: MetadataImage,
    topic: NewTopic,
    config: BrokerConfig,
    new_id: Callable[[], TopicId],
    created_before: int,
    names_by_flat_name: Mapping[str, str],
) -> Steps[TopicCreated]:
    """Return the record that creates the topic. Raises ApiError.

    The checks are in Kafka's order: name, settings, then partitions.
    """
    if topic.name == CLUSTER_METADATA:
        raise ApiError(f"{CLUSTER_METADATA} is not a topic that can be created", ErrorCode.INVALID_REQUEST)
    refusal = name_refusal(topic.name)
    if refusal is not None:
        raise ApiError(refusal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if topic.name in image.topics:
        raise ApiError(f"Topic '{topic.name}' already exists.", ErrorCode.TOPIC_ALREADY_EXISTS)
    similar_name = names_by_flat_name.get(flat_name(topic.name))
    if similar_name is not None:
        message = f"{topic.name!r} and the topic {similar_name!r} differ only in '.' and '_'"
        raise ApiError(message, ErrorCode.INVALID_TOPIC_EXCEPTION)
    settings = _checked_settings(topic, config)
    if topic.assignments:
        replicas = _assigned_replicas(image, topic)
    else:
        replicas = yield from _placed_replicas(image, topic, config, created_before)
    isrs = _first_isrs(image, 0, replicas)
    return TopicCreated(topic.name, new_id(), new_partitions(replicas, isrs), settings)


def _first_isrs(image: MetadataImage, first: int, replicas: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the ISRs of new partitions, which are numbered from `first`. The result is empty if all brokers are
    active, since every ISR then contains all replicas. Raises ApiError if a partition has no active replica.
    """
    if all(broker.active for broker in image.brokers.values()):
        return ()
    return tuple(first_isr(image, number, assigned) for number, assigned in enumerate(replicas, first))


def _checked_settings(topic: NewTopic, config: BrokerConfig) -> dict[str, str]:
    if len(topic.config) > SETTINGS_MAX:
        raise ApiError(f"the request has more than {SETTINGS_MAX} settings of this topic", ErrorCode.INVALID_CONFIG)
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


def _assigned_replicas(image: MetadataImage, topic: NewTopic) -> list[tuple[int, ...]]:
    if topic.replication_factor != -1:
        raise ApiError("with assignments, the replication factor must be -1", ErrorCode.INVALID_REQUEST)
    if topic.partitions != -1:
        raise ApiError("with assignments, the number of partitions must be -1", ErrorCode.INVALID_REQUEST)
    by_partition: dict[int, tuple[int, ...]] = {}
    factor = len(topic.assignments[0][1])
    for partition, replicas in topic.assignments:
        if partition in by_partition:
            raise ApiError(f"partition {partition} is assigned twice", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        by_partition[partition] = check_assignment(image, replicas, factor)
    if sorted(by_partition) != list(range(len(by_partition))):
        raise ApiError("partitions must be numbered from 0 without gaps", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return [by_partition[i] for i in range(len(by_partition))]


def _placed_replicas(
    image: MetadataImage, topic: NewTopic, config: BrokerConfig, created_before: int
) -> Steps[list[tuple[int, ...]]]:
    """Choose the replicas of a new topic without assignments. See `place_in_steps` for `created_before`."""
    factor = topic.replication_factor
    if factor < -1 or factor == 0:
        raise ApiError(
            "the replication factor must be at least 1, or -1 for the default", ErrorCode.INVALID_REPLICATION_FACTOR
        )
    partitions = topic.partitions
    if partitions < -1 or partitions == 0:
        raise ApiError(
            "the number of partitions must be at least 1, or -1 for the default", ErrorCode.INVALID_PARTITIONS
        )
    partitions = config.num_partitions if partitions == -1 else partitions
    factor = config.default_replication_factor if factor == -1 else factor
    _check_replication_factor(image, factor)
    _check_not_cordoned(config.is_cordoned)
    return (yield from place_in_steps(image, partitions, factor, created_before))


def _check_replication_factor(image: MetadataImage, replication_factor: int) -> None:
    if replication_factor > len(image.brokers):
        raise ApiError(
            f"{replication_factor} replicas need as many brokers; registered brokers: {len(image.brokers)}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if not any(broker.active for broker in image.brokers.values()):
        message = "all registered brokers are fenced or in controlled shutdown; try again when one is active"
        raise ApiError(message, ErrorCode.INVALID_REPLICATION_FACTOR)


def delete_topics(
    image: MetadataImage, choices: Sequence[TopicChoice], *, reserve: ReservePartitions = unlimited
) -> Steps[JournalDecision[list[TopicResult]]]:
    """Delete topics. Each choice succeeds or fails on its own. If a valid choice occurs more than once, it fails, and
    all its occurrences have one result. If one choice is the name of a topic, another choice is its id, and neither is
    repeated, the topic is not deleted, and both choices have one result.
    """
    # A choice with both a name and an id, or with neither, is not valid. `_find_topic` refuses each of them.
    repeated = yield from _find_repeated(c for c in choices if (c.name is None) != (c.topic_id == NO_TOPIC_ID))
    results: list[TopicResult] = []
    for choice in repeated:
        results.append(TopicResult(*choice, ErrorCode.INVALID_REQUEST, REPEATED_TOPIC))
        yield
    choice_counts: dict[TopicId, int] = {}
    for choice in choices:
        yield
        if choice in repeated:
            continue
        try:
            topic_id = _find_topic(image, choice).topic_id
        except ApiError as error:
            results.append(TopicResult(*choice, error.code, error.message))
        else:
            choice_counts[topic_id] = choice_counts.get(topic_id, 0) + 1
    records: list[JournalRecord] = []
    for topic_id, count in choice_counts.items():
        yield
        topic = image.topics_by_id[topic_id]
        name = topic.name
        if count > 1:
            results.append(TopicResult(name, topic_id, ErrorCode.INVALID_REQUEST, REPEATED_TOPIC))
        elif not reserve(len(topic.partitions)):
            results.append(TopicResult(name, topic_id, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
        else:
            results.append(TopicResult(name, topic_id))
            records.append(TopicDeleted(topic_id))
    return JournalDecision(records, results)


def _find_topic(image: MetadataImage, choice: TopicChoice) -> TopicImage:
    if choice.name is None:
        if choice.topic_id == NO_TOPIC_ID:
            raise ApiError("neither a name nor an id is given", ErrorCode.INVALID_REQUEST)
        topic = image.topics_by_id.get(choice.topic_id)
        if topic is None:
            raise ApiError("no topic has this id", ErrorCode.UNKNOWN_TOPIC_ID)
        return topic
    if choice.topic_id != NO_TOPIC_ID:
        raise ApiError("a topic must be named by its name or its id, not by both", ErrorCode.INVALID_REQUEST)
    topic = image.topics.get(choice.name)
    if topic is None:
        raise ApiError("there is no such topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _check_not_cordoned(cordoned: bool) -> None:
    if cordoned:
        raise ApiError(
            "every data directory is cordoned (cordoned.log.dirs) and accepts no new partitions",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def create_partitions(
    image: MetadataImage,
    requests: Sequence[MorePartitions],
    *,
    validate_only: bool = False,
    cordoned: bool = False,
    reserve: ReservePartitions = unlimited,
) -> Steps[JournalDecision[list[TopicResult]]]:
    """Add partitions to topics. Each topic succeeds or fails on its own. A topic that is repeated in the request fails.

    The results of repeated topics come first, then the results of unknown topics, then all others. `cordoned` says that
    no data directory accepts new partitions. As in Kafka, an administrator who names the replicas gets the partitions
    nevertheless.
    """
    repeated = yield from _find_repeated(request.topic for request in requests)
    results = yield from _refuse_all(repeated, ErrorCode.INVALID_REQUEST, REPEATED_TOPIC)
    found_topics: list[tuple[TopicImage, MorePartitions]] = []
    for request in requests:
        yield
        if request.topic in repeated:
            continue
        topic = image.topics.get(request.topic)
        if topic is None:
            results.append(TopicResult(request.topic, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            found_topics.append((topic, request))
    records: list[JournalRecord] = []
    for topic, request in found_topics:
        yield
        try:
            added = yield from _add_partitions(image, topic, request, len(records))
            if request.assignments is None:
                _check_not_cordoned(cordoned)
            _reserve_partitions(reserve, len(added.replicas))
            records.append(added)
        except ApiError as error:
            results.append(TopicResult(topic.name, error=error.code, message=error.message or None))
        else:
            results.append(TopicResult(topic.name))
    return JournalDecision([] if validate_only else records, results)


def _add_partitions(
    image: MetadataImage, topic: TopicImage, request: MorePartitions, created_before: int
) -> Steps[PartitionsAdded]:
    """Return the record that adds partitions to a topic. Raises ApiError. See `place_in_steps` for `created_before`."""
    count_before = len(topic.partitions)
    added = request.total - count_before
    if added <= 0:
        raise ApiError(
            f"{topic.name} has {count_before} partitions already; the new total {request.total} is not larger",
            ErrorCode.INVALID_PARTITIONS,
        )
    last_directory = f"{topic.name}-{request.total - 1}"
    if len(last_directory) > FILE_NAME_MAX:
        raise ApiError(f"{last_directory} is too long for a directory's name", ErrorCode.INVALID_PARTITIONS)
    if added > PARTITIONS_PER_REQUEST_MAX:
        message = f"the request adds {added} partitions to a topic, but can add at most {PARTITIONS_PER_REQUEST_MAX}"
        raise ApiError(message, ErrorCode.INVALID_PARTITIONS)
    factor = topic.replication_factor
    if request.assignments is None:
        _check_replication_factor(image, factor)
        replicas = yield from place_in_steps(image, added, factor, created_before)
    else:
        if len(request.assignments) != added:
            message = f"the request adds {added} partitions but has {len(request.assignments)} assignments"
            raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        replicas = [check_assignment(image, assigned, factor) for assigned in request.assignments]
    return PartitionsAdded(topic.topic_id, count_before, tuple(replicas), _first_isrs(image, count_before, replicas))


def register_broker(
    image: MetadataImage, broker_id: int, incarnation: str, endpoints: Sequence[Endpoint], rack: str | None
) -> JournalDecision[None]:
    """Register a broker. The broker's epoch is the journal's end position, which grows with every appended entry."""
    return JournalDecision([BrokerRegistered(broker_id, image.position, incarnation, tuple(endpoints), rack)], None)


def renew_leadership(image: MetadataImage, broker_id: int) -> list[JournalRecord]:
    """Return the record that renews the leadership of a restarted broker; an empty list if it leads no partition."""
    is_leader = any(p.leader == broker_id for topic in image.topics.values() for p in topic.partitions)
    return [LeadershipRenewed(broker_id)] if is_leader else []


def allocate_producer_ids(image: MetadataImage, broker_id: int) -> JournalDecision[range]:
    first = image.producer_ids_next
    block = range(first, first + PRODUCER_ID_BLOCK)
    return JournalDecision([ProducerIdsAllocated(broker_id, block.stop)], block)


T = TypeVar("T")


def _find_repeated(items: Iterable[T]) -> Steps[dict[T, None]]:
    """Return the items that occur more than once, ordered by first occurrence."""
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
