"""Warnings of `tidelog cluster status`: what still has to be done after brokers were added to a cluster."""

from typing import TYPE_CHECKING

from tidelog.cli.cluster_features import read_levels
from tidelog.cli.cluster_requests import BROKER_RESOURCE
from tidelog.cli.cluster_state import ClusterState
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import ask, broker_addresses, raise_for_code
from tidelog.cli.tables import counted

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

METADATA_FEATURE = "tidelog.metadata.version"
FACTORS = {
    "__consumer_offsets": ("offsets.topic.replication.factor", "groups"),
    "__transaction_state": ("transaction.state.log.replication.factor", "transactions"),
}
"""For each internal topic: the setting for the topic's number of replicas, and what cannot work without the topic."""


def with_warnings(client: "Client", state: ClusterState) -> ClusterState:
    """Return the state with its warnings. If the brokers refuse to report what is needed, the reason is added to
    `problems`.
    """
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    try:
        return state._replace(warnings=growth_warnings(client, state))
    except (CommandError, ClientError, ApiError) as error:
        return state._replace(
            problems=[*state.problems, f"it is not known whether the cluster lacks replicas: {error}"]
        )


def growth_warnings(client: "Client", state: ClusterState) -> list[str]:
    """Return a warning for each step of growth that is not done; empty while fewer than two brokers are active.

    There are two steps. The first raises the level of the metadata: at level 0, no other broker becomes the leader
    when a broker fails. The second adds replicas to the internal topics. Raises CommandError and ClientError if the
    brokers refuse to answer.
    """
    active_count = len(state.brokers) - len(state.fenced)
    if active_count < 2:
        return []
    warnings = []
    if any(each.feature == METADATA_FEATURE and not each.level for each in read_levels(client)):
        warnings.append(
            f"{METADATA_FEATURE} has level 0: if a broker fails, no other broker becomes the leader of its partitions. "
            "When no broker runs an older version of Tidelog any more: tidelog cluster upgrade --execute"
        )
    fewest: dict[str, int] = {}
    for part in state.partitions:
        if part.topic in FACTORS:
            fewest[part.topic] = min(len(part.replicas), fewest.get(part.topic, len(part.replicas)))
    small = [topic for topic, replicas in fewest.items() if replicas < active_count]
    factors = _replication_factors(client) if small else {}
    for topic in small:
        possible = min(factors.get(FACTORS[topic][0], 1), active_count)
        if fewest[topic] < possible:
            setting, users = FACTORS[topic]
            remedy = f"tidelog cluster reassign --topics {topic} --replicas {possible} --execute"
            warnings.append(
                f"{topic} has {counted(fewest[topic], 'replica')}, but could have {possible} ({setting}): if its "
                f"brokers fail, {users} cannot work. Add replicas: {remedy}"
            )
    return warnings


def _replication_factors(client: "Client") -> dict[str, int]:
    """Return the settings of `FACTORS` as one broker has them, since they are the same for all brokers."""
    from tidelog.wire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    addresses = broker_addresses(client)
    if not addresses:
        raise CommandError("no broker is reported")
    number, address = next(iter(addresses.items()))
    wanted = DescribeConfigsResource(BROKER_RESOURCE, str(number), [setting for setting, _ in FACTORS.values()])
    (answer,) = ask(client, [(address, DescribeConfigsRequest(resources=[wanted]))], DescribeConfigsResponse)
    factors = {}
    for result in answer.results:
        raise_for_code(result.error_code, result.error_message)
        for entry in result.configs:
            if entry.value and entry.value.isdecimal():
                factors[entry.name] = int(entry.value)
    return factors
