"""Find partitions without a leader and report them on stderr.

A partition has no leader if its log cannot be used, or if no broker that may lead the partition is running. A broker
answers `LEADER_NOT_AVAILABLE` for such a partition. The partition may contain records, so no command may report it as
empty.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.cli import cluster
from tidelog.cli.errors import CommandError
from tidelog.cli.tables import counted, name_text, ranges

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

GROUPS_TOPIC = "__consumer_offsets"
SHOWN_TOPICS = 5
"""Upper bound on the topics that a text names."""
REMEDY = (
    "If a broker is down (tidelog cluster status shows all brokers), start it. Otherwise a broker cannot use its\n"
    'files of a partition, and its log lines with "offline" say why: stop this broker, and find the damage with\n'
    "tidelog log verify DIRECTORY. After a repair, the next start of the broker opens the partition again."
)

Offline = Mapping[str, Sequence[int]]
"""Offline partitions by topic. Topics without offline partitions have no entry."""


def offline_partitions_of(topics: Iterable[cluster.TopicState]) -> dict[str, list[int]]:
    """Return the partitions without a leader, by topic."""
    by_topic = {topic.name: [part.partition for part in topic.partitions if part.leader < 0] for topic in topics}
    return {name: partitions for name, partitions in by_topic.items() if partitions}


def find_offline_partitions(client: "Client", topics: Sequence[str]) -> dict[str, list[int]]:
    """Return the offline partitions of these topics. Topics that do not exist are skipped."""
    return offline_partitions_of(
        cluster.describe_each(client, [name for name in topics if name], skip_missing=True).topics
    )


def coordinator_failure(client: "Client", group: str) -> CommandError | None:
    """Return an error if the partition of `__consumer_offsets` where the group is stored has no leader; else None."""
    from tidelog.coordinator.group.hashing import partition_of

    described = cluster.describe(client, [GROUPS_TOPIC], skip_missing=True)
    if not described:
        return None
    as_java_reads_it = group.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    partition = partition_of(as_java_reads_it, len(described[0].partitions))
    if partition not in offline_partitions_of(described).get(GROUPS_TOPIC, ()):
        return None
    return offline_error(
        {GROUPS_TOPIC: [partition]}, f"Group {name_text(group)} is stored there and therefore has no coordinator."
    )


def warn_of_groups(client: "Client", topics: Iterable[str]) -> dict[str, list[int]]:
    """Find the offline partitions of these topics and of `__consumer_offsets`, print a warning about them, and return
    them.
    """
    offline_partitions = find_offline_partitions(client, [*dict.fromkeys(topics), GROUPS_TOPIC])
    warn_of_hidden_groups(offline_partitions)
    return offline_partitions


def warn_of_hidden_groups(offline_partitions: Offline) -> None:
    """Warn about groups that are missing in a list of groups, and about unknown lags."""
    warn(
        {name: parts for name, parts in offline_partitions.items() if name == GROUPS_TOPIC},
        "Groups that are stored there are not shown.",
    )
    warn(
        {name: parts for name, parts in offline_partitions.items() if name != GROUPS_TOPIC},
        "The lag of groups in these partitions is unknown.",
    )


def partitions_text(offline: Offline) -> str:
    """Return a text for people: `partitions 1-3,7 of orders`. At most SHOWN_TOPICS topics are named, separated by
    commas.
    """
    parts = [
        f"partition{'s' * (len(partitions) > 1)} {ranges(partitions)} of {topic}"
        for topic, partitions in offline.items()
    ]
    more = len(parts) - SHOWN_TOPICS
    return ", ".join(parts[:SHOWN_TOPICS]) + (f" and {counted(more, 'more topic')}" if more > 0 else "")


def warn(offline: Offline, consequence: str) -> None:
    """Print a warning on stderr, so that the user sees it even if stdout is redirected.

    Nothing is printed if no partition is offline.
    """
    if offline:
        print(f"Offline: {partitions_text(offline)}. {consequence}\n{REMEDY}", file=sys.stderr)


def offline_error(offline: Offline, consequence: str) -> CommandError:
    return CommandError(f"offline: {partitions_text(offline)}. {consequence}\n{REMEDY}")
