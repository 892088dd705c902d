"""The state of a cluster as its brokers report it: brokers, partitions with their replicas, and unfinished moves.

The requests work with Tidelog and with Apache Kafka. If the brokers are too old for some of the requests, the state
has fewer details.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.cluster import TOPIC_RESOURCE, code_error
from tidelog.cli.connection import ANSWER_MS
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import ask_any, raise_for_code
from tidelog.model.addresses import host_port_text

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.wire.messages.describe_cluster import DescribeClusterResponse
    from tidelog.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsResponseTopic

MIN_ISR = "min.insync.replicas"
TOPICS_PER_REQUEST = 500
"""Upper bound on the topics in one DescribeConfigs request."""


UNKNOWN = -1


class ClusterBroker(NamedTuple):
    number: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    """Whether the controller considers the broker as dead or not ready. A fenced broker leads no partitions."""

    @property
    def address(self) -> str:
        return host_port_text(self.host, self.port)


class Move(NamedTuple):
    """An unfinished reassignment of one partition."""

    adding: list[int]
    removing: list[int]


class PartitionReplicas(NamedTuple):
    """One partition, its replicas, and their state."""

    topic: str
    partition: int
    leader: int
    """A broker's number; -1 while the partition has no leader."""
    replicas: list[int]
    """The first one is the preferred leader."""
    isr: list[int]
    eligible: list[int] | None = None
    """The eligible leader replicas (KIP-966): they are not in the ISR, but certainly have all records below the high
    watermark. None if the broker does not report them."""
    offline: list[int] = []  # noqa: RUF012 - never changed
    """Replicas on brokers that are down, or in directories that failed."""
    min_isr: int = 1
    """The smaller one of `min.insync.replicas` and the number of replicas."""
    move: Move | None = None

    @property
    def has_no_leader(self) -> bool:
        return self.leader < 0

    @property
    def is_under_min_isr(self) -> bool:
        """Whether producers with acks=all are refused."""
        return len(self.isr) < self.min_isr

    @property
    def out_of_sync(self) -> list[int]:
        """The replicas that are not in sync. Replicas that a move is adding are left out."""
        adding = self.move.adding if self.move is not None else ()
        return [replica for replica in self.replicas if replica not in self.isr and replica not in adding]

    @property
    def is_led_by_other(self) -> bool:
        """Whether the leader is not the preferred leader, which is the first replica."""
        return self.leader >= 0 and bool(self.replicas) and self.leader != self.replicas[0]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ClusterState(NamedTuple):
    cluster_id: str
    controller: int
    """A broker's number; UNKNOWN if the brokers do not report it."""
    brokers: list[ClusterBroker]
    partitions: list[PartitionReplicas]
    problems: list[str] = []  # noqa: RUF012 - never changed
    """A text for each topic that the brokers refuse to describe, and for each detail that cannot be read, with the
    reason. `partitions` does not contain these topics."""
    unread_topics: int = 0
    """The number of topics that are not in `partitions`."""
    warnings: list[str] = []  # noqa: RUF012 - never changed
    """What still has to be done after brokers were added to the cluster, with commands. Only
    `cluster_growth.with_warnings` fills this list."""

    @property
    def fenced(self) -> list[int]:
        return [broker.number for broker in self.brokers if broker.is_fenced]

    @property
    def missing(self) -> list[int]:
        """The brokers that have replicas, but are not in `brokers`: they are not registered, or were not reported."""
        reported = {broker.number for broker in self.brokers}
        return sorted({number for part in self.partitions for number in part.replicas} - reported)


def read_state(client: "Client") -> ClusterState:
    """Request the state of the whole cluster. The `problems` of the result contain a text for each topic
    and each detail that the brokers refuse to report.

    Raises CommandError, ApiError and ClientError if the request for the brokers or for the topics fails as a whole.
    """
    cluster_id, controller, brokers = read_brokers(client)
    partitions, failures = _describe_partitions(client, ())
    problems = [str(failure) for failure in failures.values()]
    partitions = _with_details(client, partitions, problems)
    return ClusterState(cluster_id, controller, brokers, partitions, problems, len(failures))


def read_brokers(client: "Client") -> tuple[str, int, list[ClusterBroker]]:
    """Return the cluster's id, its controller (it may be UNKNOWN), and its brokers, including fenced brokers."""
    answer = _describe_cluster(client)
    raise_for_code(answer.error_code, answer.error_message)
    brokers = [
        ClusterBroker(broker.broker_id, broker.host, broker.port, broker.rack or None, broker.is_fenced)
        for broker in sorted(answer.brokers, key=lambda broker: broker.broker_id)
    ]
    return answer.cluster_id, _quorum_leader(client), brokers


def _describe_cluster(client: "Client") -> "DescribeClusterResponse":
    from tidelog.client.errors import ClientError
    from tidelog.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

    try:
        return ask_any(client, DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    except (ClientError, ValueError):
        # A broker of Kafka 3 cannot report fenced brokers: its requests have no field `include_fenced_brokers`.
        return ask_any(client, DescribeClusterRequest(), DescribeClusterResponse)


def _quorum_leader(client: "Client") -> int:
    """Return the controller's number; UNKNOWN if the brokers do not report it.

    Only DescribeQuorum names the real controller. In DescribeCluster, a broker of Kafka names an arbitrary broker.
    A broker of Tidelog names itself there, because it forwards requests to the controller.
    """
    from tidelog.client.errors import ClientError
    from tidelog.metadata.image import CLUSTER_METADATA
    from tidelog.wire.messages.describe_quorum import (
        DescribeQuorumRequest,
        DescribeQuorumResponse,
        PartitionData,
        TopicData,
    )

    request = DescribeQuorumRequest(topics=[TopicData(CLUSTER_METADATA, [PartitionData(0)])])
    try:
        answer = ask_any(client, request, DescribeQuorumResponse)
    except ClientError:
        return UNKNOWN
    leaders = [part.leader_id for topic in answer.topics for part in topic.partitions if not part.error_code]
    return leaders[0] if leaders and not answer.error_code else UNKNOWN


def read_partitions(
    client: "Client", topics: Sequence[str] = (), problems: list[str] | None = None
) -> list[PartitionReplicas]:
    """Return the partitions of these topics, or of all topics, with their moves and `min.insync.replicas`.

    If `problems` is a list, topics and details that the brokers refuse to report are left out, and the reasons are
    appended to the list. If `problems` is None, raises CommandError, ClientError or ApiError instead, but not if only
    the settings of single topics cannot be read. A topic in `topics` that does not exist is treated like a topic that
    the brokers refuse to report.
    """
    partitions, failures = _describe_partitions(client, topics)
    if problems is None:
        for failure in failures.values():
            raise failure
    else:
        problems += map(str, failures.values())
    return _with_details(client, partitions, problems)


def _with_details(
    client: "Client", partitions: list[PartitionReplicas], problems: list[str] | None = None
) -> list[PartitionReplicas]:
    """Return the partitions with their moves and `min.insync.replicas`. If the brokers refuse to report the moves, the
    partitions have none. If they refuse to report `min.insync.replicas`, it is taken to be 1. The reasons are appended
    to `problems`. If `problems` is None, raises CommandError, ClientError or ApiError instead, but not if only the
    settings of single topics cannot be read.
    """
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    min_isr: Mapping[str, int] = {}
    refusals: Mapping[str, CommandError] = {}
    moves: Mapping[tuple[str, int], Move] = {}
    try:
        min_isr, refusals = _min_isr(client, dict.fromkeys(part.topic for part in partitions))
    except (CommandError, ClientError, ApiError) as error:
        if problems is None:
            raise
        problems.append(f"{MIN_ISR} of the topics cannot be read, and is taken to be 1: {error}")
    if problems is not None:
        problems += [
            f"{MIN_ISR} of topic {topic} cannot be read, and is taken to be 1: {refusal}"
            for topic, refusal in refusals.items()
        ]
    try:
        moves = read_moves(client)
    except (CommandError, ClientError, ApiError) as error:
        if problems is None:
            raise
        problems.append(f"unfinished moves cannot be read, and are not shown: {error}")
    return [
        part._replace(
            min_isr=min(min_isr.get(part.topic, 1), len(part.replicas)), move=moves.get((part.topic, part.partition))
        )
        for part in partitions
    ]


def _describe_partitions(
    client: "Client", topics: Sequence[str]
) -> tuple[list[PartitionReplicas], dict[str, CommandError]]:
    """Return the partitions of these topics, or of all topics, and the failures by topic. If all topics are requested,
    a topic that was deleted in the meantime is left out and is not a failure.
    """
    from tidelog.client.errors import ApiNotSupported
    from tidelog.wire.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        TopicRequest,
    )

    partitions: list[PartitionReplicas] = []
    failures: dict[str, CommandError] = {}
    cursor: Cursor | None = None
    names = [TopicRequest(name) for name in sorted(set(topics))]
    while True:
        request = DescribeTopicPartitionsRequest(topics=names, cursor=cursor)
        try:
            answer = ask_any(client, request, DescribeTopicPartitionsResponse)
        except ApiNotSupported:
            return _from_metadata(client, topics)
        for topic in answer.topics:
            if not _has_failed(client, topic.name or "", topic.error_code, topics, failures):
                partitions += _partitions_of(topic)
        cursor = answer.next_cursor
        if cursor is None:
            return sorted(partitions, key=lambda part: (part.topic, part.partition)), failures


def _partitions_of(topic: "DescribeTopicPartitionsResponseTopic") -> list[PartitionReplicas]:
    return [
        PartitionReplicas(
            topic.name or "",
            part.partition_index,
            part.leader_id,
            part.replica_nodes,
            part.isr_nodes,
            part.eligible_leader_replicas,
            part.offline_replicas,
        )
        for part in topic.partitions
    ]


def _from_metadata(client: "Client", topics: Sequence[str]) -> tuple[list[PartitionReplicas], dict[str, CommandError]]:
    """Return the same as `_describe_partitions`, from a Metadata response, which has no eligible leader replicas."""
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

    names = [MetadataRequestTopic(name=name) for name in sorted(set(topics))] or None
    answer = ask_any(client, MetadataRequest(topics=names, allow_auto_topic_creation=False), MetadataResponse)
    partitions: list[PartitionReplicas] = []
    failures: dict[str, CommandError] = {}
    for topic in answer.topics:
        if _has_failed(client, topic.name or "", topic.error_code, topics, failures):
            continue
        for part in topic.partitions:
            partitions.append(
                PartitionReplicas(
                    topic.name or "",
                    part.partition_index,
                    part.leader_id,
                    part.replica_nodes,
                    part.isr_nodes,
                    offline=part.offline_replicas,
                )
            )
    return sorted(partitions, key=lambda part: (part.topic, part.partition)), failures


def _has_failed(
    client: "Client", name: str, code: int, wanted: Sequence[str], failures: dict[str, CommandError]
) -> bool:
    """Return whether the answer for a topic is an error, and add the error to `failures`. If `wanted` is empty, all
    topics were requested: then the error that a topic does not exist is not added.
    """
    from tidelog.cli.cluster import no_such_topic, topic_names
    from tidelog.wire.errors import ErrorCode

    if code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
        return False
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        failures[name] = code_error(code, None, name)
    elif wanted:
        failures[name] = no_such_topic(name, topic_names(client))
    return True


def _min_isr(client: "Client", topics: Iterable[str]) -> tuple[dict[str, int], dict[str, CommandError]]:
    """Return `min.insync.replicas` by topic, and an error for each topic whose settings cannot be read. Topics that
    were deleted in the meantime are left out.
    """
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import ErrorCode
    from tidelog.wire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    names = list(topics)
    values: dict[str, int] = {}
    refusals: dict[str, CommandError] = {}
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        wanted = names[start : start + TOPICS_PER_REQUEST]
        resources = [DescribeConfigsResource(TOPIC_RESOURCE, name, [MIN_ISR]) for name in wanted]
        answer = ask_any(client, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        for result in answer.results:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                refusals[result.resource_name] = CommandError(result.error_message or error_name(result.error_code))
            for entry in result.configs:
                if entry.name == MIN_ISR:
                    with suppress(ValueError):
                        values[result.resource_name] = int(entry.value or "1")
    return values, refusals


def read_moves(client: "Client") -> dict[tuple[str, int], Move]:
    """Return the unfinished reassignments by topic and partition. Raises CommandError."""
    from tidelog.client.errors import ApiNotSupported
    from tidelog.wire.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )

    request = ListPartitionReassignmentsRequest(timeout_ms=ANSWER_MS, topics=None)
    try:
        answer = ask_any(client, request, ListPartitionReassignmentsResponse)
    except ApiNotSupported:
        return {}
    raise_for_code(answer.error_code, answer.error_message)
    return {
        (topic.name, part.partition_index): Move(part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
    }


def racks_of(brokers: Iterable[ClusterBroker]) -> Mapping[int, str | None]:
    return {broker.number: broker.rack for broker in brokers}
