"""The state of a cluster as its brokers report it: brokers, partitions with their replicas, and unfinished moves.

The requests work with Tidelog and with Apache Kafka. Older brokers do not support some of them. Then the state has
fewer details.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.cluster import TOPIC_RESOURCE, code_error
from tidelog.cli.connection import ANSWER_MS
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
        """The replicas that are not in sync. Replicas that a move is adding are not counted."""
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

    @property
    def fenced(self) -> list[int]:
        return [broker.number for broker in self.brokers if broker.is_fenced]

    @property
    def missing(self) -> list[int]:
        """The brokers that have replicas, but are not in `brokers`: they are not registered, or were not reported."""
        reported = {broker.number for broker in self.brokers}
        return sorted({number for part in self.partitions for number in part.replicas} - reported)


def read_state(client: "Client") -> ClusterState:
    """Request the state of the whole cluster. Raises CommandError, ApiError and ClientError."""
    cluster_id, controller, brokers = read_brokers(client)
    return ClusterState(cluster_id, controller, brokers, read_partitions(client))


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
        # A broker of Kafka 3 cannot report fenced brokers: in its version of the API, the request lacks this field.
        return ask_any(client, DescribeClusterRequest(), DescribeClusterResponse)


def _quorum_leader(client: "Client") -> int:
    """Return the controller's number; UNKNOWN if the brokers do not report it.

    Only DescribeQuorum names the real controller. In DescribeCluster, a broker of Kafka names any broker as the
    controller. A broker of Tidelog names itself there, because it forwards requests to the controller.
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


def read_partitions(client: "Client", topics: Sequence[str] = ()) -> list[PartitionReplicas]:
    """Return the partitions of these topics, or of all topics, with their moves and `min.insync.replicas`.

    Raises CommandError for a topic that does not exist.
    """
    partitions = _describe_partitions(client, topics)
    min_isr = _min_isr(client, dict.fromkeys(part.topic for part in partitions))
    moves = read_moves(client)
    return [
        part._replace(
            min_isr=min(min_isr.get(part.topic, 1), len(part.replicas)), move=moves.get((part.topic, part.partition))
        )
        for part in partitions
    ]


def _describe_partitions(client: "Client", topics: Sequence[str]) -> list[PartitionReplicas]:
    from tidelog.client.errors import ApiNotSupported
    from tidelog.wire.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        TopicRequest,
    )

    partitions: list[PartitionReplicas] = []
    cursor: Cursor | None = None
    names = [TopicRequest(name) for name in sorted(set(topics))]
    while True:
        request = DescribeTopicPartitionsRequest(topics=names, cursor=cursor)
        try:
            answer = ask_any(client, request, DescribeTopicPartitionsResponse)
        except ApiNotSupported:
            return _from_metadata(client, topics)
        for topic in answer.topics:
            partitions += _partitions_of(client, topic)
        cursor = answer.next_cursor
        if cursor is None:
            return sorted(partitions, key=lambda part: (part.topic, part.partition))


def _partitions_of(client: "Client", topic: "DescribeTopicPartitionsResponseTopic") -> list[PartitionReplicas]:
    name = topic.name or ""
    _check_topic(client, name, topic.error_code)
    return [
        PartitionReplicas(
            name,
            part.partition_index,
            part.leader_id,
            part.replica_nodes,
            part.isr_nodes,
            part.eligible_leader_replicas,
            part.offline_replicas,
        )
        for part in topic.partitions
    ]


def _from_metadata(client: "Client", topics: Sequence[str]) -> list[PartitionReplicas]:
    """Return the partitions from a Metadata response, which has no eligible leader replicas."""
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

    names = [MetadataRequestTopic(name=name) for name in sorted(set(topics))] or None
    answer = ask_any(client, MetadataRequest(topics=names, allow_auto_topic_creation=False), MetadataResponse)
    partitions = []
    for topic in answer.topics:
        _check_topic(client, topic.name or "", topic.error_code)
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
    return sorted(partitions, key=lambda part: (part.topic, part.partition))


def _check_topic(client: "Client", name: str, code: int) -> None:
    from tidelog.cli.cluster import no_such_topic, topic_names
    from tidelog.wire.errors import ErrorCode

    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise no_such_topic(name, topic_names(client))
    if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
        raise code_error(code, None, name)


def _min_isr(client: "Client", topics: Iterable[str]) -> dict[str, int]:
    """Return `min.insync.replicas` by topic. Topics whose settings cannot be read are left out."""
    from tidelog.wire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    names = list(topics)
    values: dict[str, int] = {}
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        wanted = names[start : start + TOPICS_PER_REQUEST]
        resources = [DescribeConfigsResource(TOPIC_RESOURCE, name, [MIN_ISR]) for name in wanted]
        answer = ask_any(client, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        for result in answer.results:
            for entry in result.configs:
                if entry.name == MIN_ISR and (entry.value or "").isdigit():
                    values[result.resource_name] = int(entry.value or "1")
    return values


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
