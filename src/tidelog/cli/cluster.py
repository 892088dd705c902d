"""Requests that commands send to a cluster, with plain values as results: topics, offsets, settings.

Functions for several topics or partitions return a result or a failure for each of them, so that a failure does not
hide the other results. `describe` and `offsets_or_raise` raise the first failure instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidelog.cli.connection import ANSWER_MS, client_error
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.own_client import ask, ask_any

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.wire.message import Message
    from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseTopic


M = TypeVar("M", bound="Message")

TOPIC, DEFAULT = "topic", "default"
"""Origins of a setting's value: it was set on the topic itself, or it is the default. The function `origin` can
return further origins."""
START = "broker's start settings"
"""Origin of a value from the broker's settings file, environment or command line: the protocol has one number for all
three."""

TopicAndPartition = tuple[str, int]
"""A topic's name and a partition's number."""
TOPIC_RESOURCE = 2
"""Type of a topic resource in DescribeConfigs and IncrementalAlterConfigs."""
SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""


class PartitionState(NamedTuple):
    partition: int
    leader: int
    """A broker's id; -1 while the partition has no leader."""
    replicas: list[int]
    isr: list[int]


class TopicState(NamedTuple):
    name: str
    topic_id: str
    internal: bool
    partitions: list[PartitionState]


class Offsets(NamedTuple):
    earliest: int
    latest: int
    """The end of the partition (exclusive): the offset of the next record, or the last stable offset (see
    `offsets`)."""

    @property
    def records(self) -> int:
        """Upper bound on the number of records: compaction and transaction markers leave gaps between offsets."""
        return self.latest - self.earliest


class KnownOffsets(NamedTuple):
    """Offsets of partitions, and the error of each partition whose offsets could not be read.

    Partitions without a leader are in neither map.
    """

    offsets: dict[TopicAndPartition, Offsets]
    failures: dict[TopicAndPartition, CommandError]


class Setting(NamedTuple):
    name: str
    value: str
    origin: str
    """One of the texts that the function `origin` returns: topic, broker, default ..."""
    sensitive: bool
    effect: bool
    """False when the broker stores the setting but does not use it yet."""


class DescribedTopics(NamedTuple):
    """Topics in the order of the request, and the error of each topic that could not be described."""

    topics: list[TopicState]
    failures: dict[str, CommandError]


# Topics


def topic_names(client: "Client") -> list[str]:
    return sorted(topic.name or "" for topic in _metadata(client, None).topics)


def describe(client: "Client", names: Sequence[str], *, skip_missing: bool = False) -> list[TopicState]:
    """Return the topics in the order of `names`.

    Raises CommandError for a topic that does not exist (the error suggests the most similar name), and for a topic that
    the broker refuses to describe. With `skip_missing`, a topic that does not exist is left out instead.
    """
    described = describe_each(client, names, skip_missing=skip_missing)
    for failure in described.failures.values():
        raise failure
    return described.topics


def describe_each(client: "Client", names: Sequence[str], *, skip_missing: bool = False) -> DescribedTopics:
    """Return the topics as `describe` does, but return the errors in `failures` instead of raising the first one.

    Raises UsageError for an empty name.
    """
    from tidelog.wire.errors import ErrorCode

    if not names:
        return DescribedTopics([], {})
    if "" in names:
        raise UsageError("a topic's name is empty")
    topics: dict[str, TopicState] = {}
    failures: dict[str, CommandError] = {}
    answers = {topic.name or "": topic for topic in _metadata(client, list(dict.fromkeys(names))).topics}
    for name in dict.fromkeys(names):
        answer = answers.get(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if answer is None else answer.error_code
        # A topic that was created a moment ago may have no leaders yet. It is then described without leaders.
        if answer is not None and code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            topics[name] = _topic_state(answer)
        elif code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            failures[name] = code_error(code, None, name)
        elif not skip_missing:
            failures[name] = no_such_topic(name, topic_names(client))
    return DescribedTopics(list(topics.values()), failures)


def _metadata(client: "Client", names: list[str] | None) -> "MetadataResponse":
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    return ask_any(client, MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse)


def _topic_state(answer: "MetadataResponseTopic") -> TopicState:
    partitions = [
        PartitionState(part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes)
        for part in sorted(answer.partitions, key=lambda part: part.partition_index)
    ]
    return TopicState(answer.name or "", topic_id_text(answer.topic_id), answer.is_internal, partitions)


def no_such_topic(name: str, existing: Iterable[str]) -> CommandError:
    """Return the error for an unknown topic; it suggests the most similar of the `existing` names."""
    import difflib

    similar_names = difflib.get_close_matches(name, existing, n=1)
    remedy = f"did you mean {similar_names[0]}?" if similar_names else "tidelog topic list shows all"
    return CommandError(f"no such topic: {name}; {remedy}")


def topic_id_text(topic_id: bytes) -> str:
    """Return the id in URL-safe base64 without padding, as Kafka's tools and `partition.metadata` files write it."""
    import base64

    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def code_error(code: int, message: str | None, topic: str) -> CommandError:
    """Return an error of one line, made from the error code and message that a broker's response has for a topic."""
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import error_for

    return client_error(error_for(code, message or error_name(code)), topic=topic)


def create_topic(
    client: "Client", name: str, partitions: int | None, replicas: int | None, settings: Mapping[str, str]
) -> bool:
    """Create a topic. Return True, or False if a topic with this name already exists. Raises CommandError.

    None for `partitions` or `replicas` means the cluster's default.
    """
    from tidelog.wire.errors import ErrorCode
    from tidelog.wire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
        CreateTopicsResponse,
    )

    configs = [CreatableTopicConfig(key, value) for key, value in settings.items()]
    topic = CreatableTopic(name, partitions or -1, replicas or -1, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=ANSWER_MS)
    (result,) = ask_controller(client, request, CreateTopicsResponse).topics
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    if result.error_code:
        raise code_error(result.error_code, result.error_message, name)
    return True


def delete_topics(client: "Client", names: Sequence[str]) -> dict[str, CommandError | None]:
    """Delete the topics and return the error of each topic; None if the topic was deleted."""
    from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

    request = DeleteTopicsRequest(topics=[DeleteTopicState(name) for name in names], timeout_ms=ANSWER_MS)
    results = {result.name: result for result in ask_controller(client, request, DeleteTopicsResponse).responses}
    return {
        name: code_error(results[name].error_code, results[name].error_message, name)
        if results[name].error_code
        else None
        for name in names
    }


def set_partitions(client: "Client", topic: str, count: int) -> None:
    """Increase the topic's number of partitions to `count`. Raises CommandError."""
    from tidelog.wire.messages.create_partitions import (
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreatePartitionsTopic,
    )

    wanted = CreatePartitionsTopic(topic, count, None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=ANSWER_MS)
    (result,) = ask_controller(client, request, CreatePartitionsResponse).results
    if result.error_code:
        raise code_error(result.error_code, result.error_message, topic)


def ask_controller(client: "Client", request: "Message", response_class: type[M]) -> M:
    """Send the request to the broker that the cluster reports as its controller. If the cluster reports no controller,
    send it to any broker.

    In a cluster with separate controllers, the reported broker forwards the request to the controller.
    """
    from tidelog.client.cluster import Address

    metadata = _metadata(client, [])
    addresses = {broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers}
    address = addresses.get(metadata.controller_id)
    if address is None:
        return ask_any(client, request, response_class)
    (answer,) = ask(client, [(address, request)], response_class)
    return answer


# Offsets


def offsets(client: "Client", topics: Iterable[TopicState], *, committed: bool = False) -> KnownOffsets:
    """Return the earliest and the latest offset of every partition that has a leader, or an error if these offsets
    cannot be read.

    With `committed`, the latest offset is the last stable offset, where the first open transaction begins. For
    consumers with isolation.level read_committed, the log ends at this offset.
    """
    from tidelog.client.operations import EARLIEST, LATEST

    wanted = [(topic.name, part.partition) for topic in topics for part in topic.partitions if part.leader >= 0]
    earliest, failures = list_offsets(client, dict.fromkeys(wanted, EARLIEST))
    latest, more_failures = list_offsets(client, dict.fromkeys(earliest, LATEST), committed=committed)
    known = {tp: Offsets(earliest[tp], latest[tp]) for tp in latest}
    return KnownOffsets(known, failures | more_failures)


def list_offsets(
    client: "Client", timestamps: Mapping[TopicAndPartition, int], *, committed: bool = False
) -> tuple[dict[TopicAndPartition, int], dict[TopicAndPartition, CommandError]]:
    """Return two maps by partition: the offsets of the requested timestamps, and the errors.

    `timestamps` has a timestamp, EARLIEST or LATEST for each partition. For a timestamp, the result is the offset of
    the first record with this timestamp or a later one; it is -1 if there is no such record. With `committed`, LATEST
    means the last stable offset.
    """
    from tidelog.client.operations import READ_COMMITTED, READ_UNCOMMITTED, ListedOffset
    from tidelog.model.ids import TopicPartition

    if not timestamps:
        return {}, {}
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    wanted = {TopicPartition(*tp): timestamp for tp, timestamp in timestamps.items()}
    listed: dict[TopicAndPartition, int] = {}
    failures: dict[TopicAndPartition, CommandError] = {}
    for tp, answer in client.list_offsets_each(wanted, isolation).items():
        if isinstance(answer, ListedOffset):
            listed[tp.topic, tp.partition] = answer.offset
        else:
            failures[tp.topic, tp.partition] = client_error(answer, str(tp))
    return listed, failures


def offsets_or_raise(
    result: tuple[dict[TopicAndPartition, int], dict[TopicAndPartition, CommandError]],
) -> dict[TopicAndPartition, int]:
    """Return the offsets from a result of `list_offsets`. Raises its first failure, if there is one.

    This function is for callers that need the offsets of all partitions, for example to reset the offsets of a group.
    """
    listed, failures = result
    for failure in failures.values():
        raise failure
    return listed


# Settings


def settings(client: "Client", topic: str) -> list[Setting]:
    """Return the settings that the broker reports for a topic, sorted by name. Raises CommandError.

    Tidelog reports every setting. Kafka omits some settings that are not set.
    """
    from tidelog.wire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(TOPIC_RESOURCE, topic, None)])
    (result,) = ask_any(client, request, DescribeConfigsResponse).results
    if result.error_code:
        raise code_error(result.error_code, result.error_message, topic)
    unused = settings_without_effect() if is_tidelog(entry.name for entry in result.configs) else ()
    return [
        Setting(
            entry.name, entry.value or "", origin(entry.config_source), entry.is_sensitive, entry.name not in unused
        )
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def change_settings(client: "Client", topic: str, changes: Mapping[str, str], unset: Iterable[str]) -> None:
    """Set the settings in `changes` and remove the settings in `unset`.

    Raises CommandError if the broker refuses one of these changes. In this case, nothing is changed.
    """
    from tidelog.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    configs = [AlterableConfig(key, SET, value) for key, value in changes.items()]
    configs += [AlterableConfig(key, DELETE, None) for key in unset]
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(TOPIC_RESOURCE, topic, configs)])
    (result,) = ask_controller(client, request, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        raise code_error(result.error_code, result.error_message, topic)


def is_tidelog(setting_names: Iterable[str]) -> bool:
    """Return whether a Tidelog broker reported these settings: only Tidelog has the setting `durability`."""
    return "durability" in setting_names


def settings_without_effect() -> dict[str, None]:
    """Return the names of topic settings that Tidelog stores but does not use yet."""
    from tidelog.config.keys import TOPIC_KEYS

    return {key.name: None for key in TOPIC_KEYS.values() if not key.effect}


def origin(source: int) -> str:
    """Return the origin of a value, in words. `source` is the source number in DescribeConfigs (KIP-226)."""
    names = {1: TOPIC, 2: "broker", 3: "all brokers", 4: START, 5: DEFAULT, 6: "broker logger"}
    return names.get(int(source), "unknown")
