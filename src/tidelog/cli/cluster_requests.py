"""The requests of `tidelog cluster` that change something: elections, reassignments, the removal of a broker's
registration, throttles of replication.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.cluster import DELETE, SET, TOPIC_RESOURCE, ask_controller, code_error
from tidelog.cli.connection import ANSWER_MS
from tidelog.cli.errors import CommandError, raise_together
from tidelog.cli.own_client import ask_any, raise_for_code

if TYPE_CHECKING:
    from tidelog.cli.reassignment_plan import PlannedMove
    from tidelog.client.blocking import Client

BROKER_RESOURCE = 4
"""Type of a broker resource in IncrementalAlterConfigs."""
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Broker settings that limit the traffic of throttled replicas, in bytes per second: the first setting limits the
bytes that a broker sends as a leader, the second one limits the bytes that it receives as a follower."""
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Topic settings that say which replicas are throttled, as PARTITION:BROKER,..."""


class Election(NamedTuple):
    topic: str
    partition: int
    error: str
    """The reason why no leader was elected; empty if a leader was elected, or if no election was needed."""
    is_new: bool
    """Whether a leader was elected."""


def elect_leaders(client: "Client", partitions: Mapping[str, Sequence[int]] | None, *, unclean: bool) -> list[Election]:
    """Elect leaders. `partitions` contains the partitions by topic; None means all partitions. Raises CommandError.

    With None, the result contains only the partitions that needed an election.
    """
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import ErrorCode
    from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions

    wanted = None
    if partitions is not None:
        wanted = [TopicPartitions(topic, list(numbers)) for topic, numbers in partitions.items()]
    request = ElectLeadersRequest(int(unclean), wanted, ANSWER_MS)
    answer = ask_controller(client, request, ElectLeadersResponse)
    raise_for_code(answer.error_code, None)
    elections = []
    for topic in answer.replica_election_results:
        for part in topic.partition_result:
            code = part.error_code
            is_unneeded = code == ErrorCode.ELECTION_NOT_NEEDED
            error = "" if is_unneeded or not code else f"{part.error_message or error_name(code)}"
            elections.append(Election(topic.topic, part.partition_id, error, is_new=not code))
    return sorted(elections, key=lambda election: (election.topic, election.partition))


def alter_reassignments(
    client: "Client", replicas: Mapping[tuple[str, int], list[int] | None]
) -> dict[tuple[str, int], CommandError]:
    """Begin to give each partition its new replicas. None cancels the partition's move. Return the errors by partition.

    Raises CommandError if the whole request is refused.
    """
    from tidelog.wire.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        ReassignablePartition,
        ReassignableTopic,
    )

    topics: dict[str, ReassignableTopic] = {}
    for (topic, partition), wanted in replicas.items():
        topics.setdefault(topic, ReassignableTopic(topic)).partitions.append(ReassignablePartition(partition, wanted))
    request = AlterPartitionReassignmentsRequest(timeout_ms=ANSWER_MS, topics=list(topics.values()))
    answer = ask_controller(client, request, AlterPartitionReassignmentsResponse)
    raise_for_code(answer.error_code, answer.error_message)
    return {
        (topic_answer.name, part.partition_index): code_error(part.error_code, part.error_message, topic_answer.name)
        for topic_answer in answer.responses
        for part in topic_answer.partitions
        if part.error_code
    }


def unregister_broker(client: "Client", broker: int) -> None:
    """Remove the registration of a broker that does not run. Raises CommandError."""
    from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

    answer = ask_controller(client, UnregisterBrokerRequest(broker), UnregisterBrokerResponse)
    raise_for_code(answer.error_code, answer.error_message)


# Throttles


def set_throttle(client: "Client", moves: Sequence["PlannedMove"], bytes_per_second: int) -> None:
    """Limit the traffic that the moves cause, as kafka-reassign-partitions does (KIP-73). Raises CommandError.

    The current replicas of a moved partition are throttled as leaders, and the added replicas as followers.
    """
    changes: dict[tuple[int, str], dict[str, str | None]] = {}
    for broker in sorted({broker for move in moves for broker in [*move.before, *move.after]}):
        changes[BROKER_RESOURCE, str(broker)] = dict.fromkeys(RATES, str(bytes_per_second))
    for topic in dict.fromkeys(move.topic for move in moves):
        topic_moves = [move for move in moves if move.topic == topic]
        sources = ",".join(f"{move.partition}:{broker}" for move in topic_moves for broker in move.before)
        targets = ",".join(f"{move.partition}:{broker}" for move in topic_moves for broker in move.adding)
        changes[TOPIC_RESOURCE, topic] = {REPLICAS[0]: sources, REPLICAS[1]: targets}
    _alter_settings(client, changes)


def clear_throttle(client: "Client", brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Remove the throttles of these brokers and topics. Raises CommandError."""
    changes: dict[tuple[int, str], dict[str, str | None]] = {}
    changes.update({(BROKER_RESOURCE, str(broker)): dict.fromkeys(RATES) for broker in brokers})
    changes.update({(TOPIC_RESOURCE, topic): dict.fromkeys(REPLICAS) for topic in topics})
    _alter_settings(client, changes)


def _alter_settings(client: "Client", changes: Mapping[tuple[int, str], Mapping[str, str | None]]) -> None:
    """Set the settings of brokers and topics; None removes a setting. The request that changes a broker's settings is
    sent to this broker.

    If a request fails, the others are still sent, and CommandError is raised at the end. The error names every resource
    whose change was refused, and every broker that did not answer.
    """
    from tidelog.cli.own_client import ask_each, broker_addresses
    from tidelog.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    addresses = broker_addresses(client)
    failures: list[CommandError] = []
    for (kind, name), settings in changes.items():
        configs = [
            AlterableConfig(setting, DELETE if value is None else SET, value) for setting, value in settings.items()
        ]
        request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(kind, name, configs)])
        try:
            if kind == BROKER_RESOURCE:
                if int(name) not in addresses:
                    continue  # a broker that is down needs no throttle: it sends and receives no records
                [answer] = ask_each(client, [(addresses[int(name)], request)], IncrementalAlterConfigsResponse)
                if isinstance(answer, CommandError):
                    raise answer
            else:
                answer = ask_any(client, request, IncrementalAlterConfigsResponse)
            for result in answer.responses:
                raise_for_code(result.error_code, result.error_message)
        except CommandError as error:
            failures.append(CommandError(f"{'broker' if kind == BROKER_RESOURCE else 'topic'} {name}: {error}"))
    raise_together(failures)
