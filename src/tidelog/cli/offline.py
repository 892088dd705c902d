"""Partitions that nobody leads: how commands find them, and what they say of them.

A broker answers `LEADER_NOT_AVAILABLE` for a log that cannot be used, and so does a cluster for a broker that is away.
There may be records, so nobody may be told that there are none.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.cli import cluster
from tidelog.cli.errors import CommandError
from tidelog.cli.tables import name_text, ranges

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

GROUPS_TOPIC = "__consumer_offsets"
SHOWN_TOPICS = 5
REMEDY = (
    'Its broker\'s log says why (look for "offline"). Stop the broker and find the damage with\n'
    "tidelog log verify DIRECTORY; the next start opens what has been mended."
)

Offline = Mapping[str, Sequence[int]]
"""Partitions by topic; topics without any are left out."""


def offline_of(topics: Iterable[cluster.TopicState]) -> dict[str, list[int]]:
    found = {topic.name: [part.partition for part in topic.partitions if part.leader < 0] for topic in topics}
    return {name: partitions for name, partitions in found.items() if partitions}


def look_for_offline(client: "Client", topics: Sequence[str]) -> dict[str, list[int]]:
    """Those of these topics as far as the topics exist."""
    return offline_of(cluster.describe_each(client, [name for name in topics if name], missing_too=True).topics)


def coordinator_is_offline(client: "Client", group: str) -> CommandError | None:
    """What to say of a group whose commits and members no broker has now; None where one has."""
    from tidelog.coordinator.group.hashing import partition_of

    found = cluster.describe(client, [GROUPS_TOPIC], missing_too=True)
    if not found:
        return None
    as_java_reads_it = group.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    partition = partition_of(as_java_reads_it, len(found[0].partitions))
    if partition not in offline_of(found).get(GROUPS_TOPIC, ()):
        return None
    return refuse({GROUPS_TOPIC: [partition]}, f"Group {name_text(group)} is kept there, and has no coordinator.")


def warn_of_groups(client: "Client", topics: Iterable[str]) -> dict[str, list[int]]:
    """Say what a list of groups that read these topics leaves out; the partitions that are the reason."""
    found = look_for_offline(client, [*dict.fromkeys(topics), GROUPS_TOPIC])
    tell_of_groups(found)
    return found


def tell_of_groups(found: Offline) -> None:
    warn(
        {name: parts for name, parts in found.items() if name == GROUPS_TOPIC},
        "Groups that are kept there are not shown.",
    )
    warn({name: parts for name, parts in found.items() if name != GROUPS_TOPIC}, "What is to be read there is unknown.")


def named(offline: Offline) -> str:
    """For people: `partitions 1-3,7 of orders`, topics separated by commas."""
    parts = [
        f"partition{'s' * (len(partitions) > 1)} {ranges(partitions)} of {topic}"
        for topic, partitions in offline.items()
    ]
    more = len(parts) - SHOWN_TOPICS
    return ", ".join(parts[:SHOWN_TOPICS]) + (f" and {more} more topics" if more > 0 else "")


def warn(offline: Offline, consequence: str) -> None:
    """On stderr, so that it is seen wherever stdout goes. Nothing if none is offline."""
    if offline:
        print(f"Offline: {named(offline)}. {consequence}\n{REMEDY}", file=sys.stderr)


def refuse(offline: Offline, consequence: str) -> CommandError:
    return CommandError(f"offline: {named(offline)}. {consequence}\n{REMEDY}")
