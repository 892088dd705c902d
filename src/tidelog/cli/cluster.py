"""What commands ask of a cluster, as plain values: partitions with their offsets, settings with their origins.

Where many are asked about, each has its own answer: what fails is told beside what there is.
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
"""Origins of settings; the others are a broker's."""
START = "broker's start settings"
"""A file, the environment or the command line: the protocol does not tell which."""

Place = tuple[str, int]
"""Topic, partition."""
TOPIC_RESOURCE = 2
SET, DELETE = 0, 1


class PartitionState(NamedTuple):
    partition: int
    leader: int
    """-1 while there is none."""
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
    """Exclusive: the offset of the next record."""

    @property
    def records(self) -> int:
        """At most so many: compaction and transaction markers leave holes."""
        return self.latest - self.earliest


class KnownOffsets(NamedTuple):
    """Offsets of the partitions that can tell, and why the others cannot."""

    offsets: dict[Place, Offsets]
    failures: dict[Place, CommandError]


class Setting(NamedTuple):
    name: str
    value: str
    origin: str
    """topic, broker, default ..."""
    sensitive: bool
    effect: bool
    """False when the broker stores it and does nothing with it yet."""


class Described(NamedTuple):
    """Topics in the order in which they were asked for, and why there is nothing to say of the others."""

    topics: list[TopicState]
    failures: dict[str, CommandError]


# Topics


def topic_names(client: "Client") -> list[str]:
    return sorted(topic.name or "" for topic in _metadata(client, None).topics)


def describe(client: "Client", names: Sequence[str], *, missing_too: bool = False) -> list[TopicState]:
    """The topics in the order of `names`. Raises CommandError for one that is not there, with the nearest name; with
    `missing_too` it is left out.
    """
    found = describe_each(client, names, missing_too=missing_too)
    for failure in found.failures.values():
        raise failure
    return found.topics


def describe_each(client: "Client", names: Sequence[str], *, missing_too: bool = False) -> Described:
    """As `describe`, but one that is not there, or that the broker refuses, does not hide the others."""
    from tidelog.wire.errors import ErrorCode

    if not names:
        return Described([], {})
    if "" in names:
        raise UsageError("a topic's name is empty")
    topics: dict[str, TopicState] = {}
    failures: dict[str, CommandError] = {}
    answers = {topic.name or "": topic for topic in _metadata(client, list(dict.fromkeys(names))).topics}
    for name in dict.fromkeys(names):
        answer = answers.get(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if answer is None else answer.error_code
        # A topic that was made a moment ago may have no leaders yet: they are shown as missing.
        if answer is not None and code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            topics[name] = _topic_state(answer)
        elif code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            failures[name] = code_error(code, None, f"topic {name}")
        elif not missing_too:
            failures[name] = no_such_topic(name, topic_names(client))
    return Described(list(topics.values()), failures)


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


def no_such_topic(name: str, known: Iterable[str]) -> CommandError:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {near[0]}?" if near else "tidelog topic list shows all"
    return CommandError(f"no such topic: {name}; {remedy}")


def topic_id_text(topic_id: bytes) -> str:
    """As Kafka and the files write it."""
    import base64

    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def code_error(code: int, message: str | None, subject: str) -> CommandError:
    """What a broker answered about `subject`, in one line."""
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import error_for

    return client_error(error_for(code, message or error_name(code)), subject)


def create_topic(
    client: "Client", name: str, partitions: int | None, replicas: int | None, settings: Mapping[str, str]
) -> bool:
    """Whether it was made: False where there was one of that name. Raises CommandError."""
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
    (result,) = _ask_controller(client, request, CreateTopicsResponse).topics
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    if result.error_code:
        raise code_error(result.error_code, result.error_message, f"topic {name}")
    return True


def delete_topics(client: "Client", names: Sequence[str]) -> dict[str, CommandError | None]:
    """Each topic's failure; None where it is deleted."""
    from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

    request = DeleteTopicsRequest(topics=[DeleteTopicState(name) for name in names], timeout_ms=ANSWER_MS)
    results = {each.name: each for each in _ask_controller(client, request, DeleteTopicsResponse).responses}
    return {
        name: code_error(results[name].error_code, results[name].error_message, f"topic {name}")
        if results[name].error_code
        else None
        for name in names
    }


def set_partitions(client: "Client", topic: str, count: int) -> None:
    """Raises CommandError."""
    from tidelog.wire.messages.create_partitions import (
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreatePartitionsTopic,
    )

    wanted = CreatePartitionsTopic(topic, count, None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=ANSWER_MS)
    (result,) = _ask_controller(client, request, CreatePartitionsResponse).results
    if result.error_code:
        raise code_error(result.error_code, result.error_message, f"topic {topic}")


def _ask_controller(client: "Client", request: "Message", kind: type[M]) -> M:
    """Ask the broker that the cluster names as its controller, which may hand the request on to the real one."""
    from tidelog.client.cluster import Address

    metadata = _metadata(client, [])
    addresses = {broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers}
    address = addresses.get(metadata.controller_id)
    if address is None:
        return ask_any(client, request, kind)
    (answer,) = ask(client, [(address, request)], kind)
    return answer


# Offsets


def offsets(client: "Client", topics: Iterable[TopicState], *, committed: bool = False) -> KnownOffsets:
    """Earliest and latest offset of every partition that has a leader and can tell.

    `committed`: the latest is where a consumer that reads committed records ends, before the first open transaction.
    """
    from tidelog.client.operations import EARLIEST, LATEST

    wanted = [(topic.name, part.partition) for topic in topics for part in topic.partitions if part.leader >= 0]
    earliest, failures = list_offsets(client, dict.fromkeys(wanted, EARLIEST))
    latest, more_failures = list_offsets(client, dict.fromkeys(earliest, LATEST), committed=committed)
    known = {place: Offsets(earliest[place], latest[place]) for place in latest}
    return KnownOffsets(known, failures | more_failures)


def list_offsets(
    client: "Client", timestamps: Mapping[Place, int], *, committed: bool = False
) -> tuple[dict[Place, int], dict[Place, CommandError]]:
    """One offset for each partition by its timestamp (or EARLIEST, LATEST), and why others have none."""
    from tidelog.client.operations import READ_COMMITTED, READ_UNCOMMITTED, ListedOffset
    from tidelog.model.ids import TopicPartition

    if not timestamps:
        return {}, {}
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    wanted = {TopicPartition(*place): timestamp for place, timestamp in timestamps.items()}
    found: dict[Place, int] = {}
    failures: dict[Place, CommandError] = {}
    for place, answer in client.list_offsets_each(wanted, isolation).items():
        if isinstance(answer, ListedOffset):
            found[place.topic, place.partition] = answer.offset
        else:
            failures[place.topic, place.partition] = client_error(answer, str(place))
    return found, failures


def all_or_nothing(found: tuple[dict[Place, int], dict[Place, CommandError]]) -> dict[Place, int]:
    """What `list_offsets` found. Raises the first failure: for a plan that must not leave out a partition."""
    known, failures = found
    for failure in failures.values():
        raise failure
    return known


# Settings


def settings(client: "Client", topic: str) -> list[Setting]:
    """All settings of a topic, sorted by name. Raises CommandError."""
    from tidelog.wire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(TOPIC_RESOURCE, topic, None)])
    (result,) = ask_any(client, request, DescribeConfigsResponse).results
    if result.error_code:
        raise code_error(result.error_code, result.error_message, f"topic {topic}")
    idle = settings_without_effect() if is_tidelog(entry.name for entry in result.configs) else ()
    return [
        Setting(entry.name, entry.value or "", origin(entry.config_source), entry.is_sensitive, entry.name not in idle)
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def change_settings(client: "Client", topic: str, changes: Mapping[str, str], unset: Iterable[str]) -> None:
    """Raises CommandError."""
    from tidelog.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    configs = [AlterableConfig(key, SET, value) for key, value in changes.items()]
    configs += [AlterableConfig(key, DELETE, None) for key in unset]
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(TOPIC_RESOURCE, topic, configs)])
    (result,) = _ask_controller(client, request, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        raise code_error(result.error_code, result.error_message, f"topic {topic}")


def is_tidelog(entries: Iterable[str]) -> bool:
    """Whether these setting names come from Tidelog, which alone has `durability`."""
    return "durability" in entries


def settings_without_effect() -> dict[str, None]:
    """Names of settings that Tidelog stores and does nothing with yet."""
    from tidelog.config.keys import TOPIC_KEYS

    return {key.name: None for key in TOPIC_KEYS.values() if not key.effect}


def origin(source: int) -> str:
    """Where a value comes from, as DescribeConfigs numbers it (KIP-226)."""
    names = {1: TOPIC, 2: "broker", 3: "all brokers", 4: START, 5: DEFAULT, 6: "broker logger"}
    return names.get(int(source), "unknown")
