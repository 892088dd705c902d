"""`tidelog group`: list, describe, lag; what changes groups is in `group_offsets`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, ConnectionOptions, connect, reach
from tidelog.cli.group_offsets import copy_offsets, delete, delete_offsets, reset_offsets
from tidelog.cli.groups import describe_groups, existing, group_names, reads, state
from tidelog.cli.lag import NO_LAG, Ages, Lag, Total, all_lags, lag_json, lag_table, total
from tidelog.cli.lag_watch import watch_lag
from tidelog.cli.offline import (
    GROUPS_TOPIC,
    look_for_offline,
    tell_of_groups,
    warn_of_groups,
)
from tidelog.cli.tables import Column, Table, cell, heading, print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberDescription

app = typer.Typer(add_completion=False, no_args_is_help=True)

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False, help="One group or several.")]


@app.callback()
def group() -> None:
    """Show consumer groups and their lag; set their offsets; delete them.

    Examples:

    $ tidelog group list
    $ tidelog group describe billing
    $ tidelog group lag --watch
    $ tidelog group reset-offsets billing --to-datetime "1 hour ago"
    """


@app.command("list")
def list_groups(
    names: Annotated[bool, typer.Option("--names", help="Print names only, one per line.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006 - typer copies it
) -> None:
    """List the consumer groups.

    Lag is - where nothing has been committed yet. 12+ means at least 12:
    it leaves out partitions that have records and no commit, or that are
    offline.

    Examples:

    $ tidelog group list
    $ tidelog group list --json | jq -r '.[].group'
    """
    admin = connect(bootstrap, client).admin()
    known = group_names(admin)
    if names:
        for name in known:
            print(name)
        sys.stdout.flush()
        warn_of_groups(admin, ())
        return
    described = describe_groups(admin, known)
    lags = all_lags(admin, described)
    totals = {name: total([lag for lag in lags if lag.group == name]) for name in known}
    if json:
        print_json([group_json(group) | total_json(totals[group.group_id]) for group in described])
    elif described:
        print_table(groups_table(described, totals))
    sys.stdout.flush()
    missing = warn_of_groups(admin, [lag.topic for lag in lags])
    if not described and not json and GROUPS_TOPIC not in missing:
        print("No consumer groups yet. One begins with: tidelog consume TOPIC --group NAME", file=sys.stderr)


def groups_table(described: Sequence["ConsumerGroupDescription"], totals: dict[str, Total]) -> Table:
    columns = [Column("Group"), Column("State"), Column("Members", True), Column("Lag", True, spare=-1)]
    rows = [(g.group_id, state(g), cell(len(g.members)), totals[g.group_id].text()) for g in described]
    return Table(columns, rows)


@app.command()
def describe(
    groups: Groups,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show a group's state, its members and what each of them reads.

    Examples:

    $ tidelog group describe billing
    $ tidelog group describe billing --json
    """
    admin = connect(bootstrap, client).admin()
    described = describe_groups(admin, existing(admin, groups))
    if json:
        print_json([group_json(group) | {"members": members_json(group)} for group in described])
        return
    for number, group in enumerate(described):
        print("\n" * bool(number), end="")
        facts = [f"state {state(group)}", f"protocol {group.type.name.lower()}"]
        if group.partition_assignor:
            facts.append(f"assignor {group.partition_assignor}")
        if group.coordinator is not None:
            facts.append(f"coordinator {group.coordinator.id}")
        heading(group.group_id, *facts)
        if not group.members:
            print("No members.")
            continue
        print_table(members_table(group.members))


def members_table(members: Sequence["MemberDescription"]) -> Table:
    columns = [Column("Member"), Column("Client", spare=1), Column("Host", spare=2), Column("Reads")]
    return Table(columns, [(m.member_id, m.client_id, m.host.lstrip("/"), reads(m)) for m in members])


@app.command()
def lag(
    groups: Annotated[
        list[str], typer.Argument(metavar="[GROUP...]", show_default=False, help="Default: every group.")
    ] = [],  # noqa: B006
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often --watch refreshes.")
    ] = 2.0,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show how far a group is behind, partition by partition.

    Lag is how many records it has yet to read; Behind is the age of the
    oldest of them (in a pipe: seconds), by the first time of its batch. A
    group need not have members.

    --watch adds how fast it reads and how long it needs to catch up, and
    stays while the broker is away. With --watch --json every refresh is one
    JSON object on one line.

    A - means that the group has not committed there yet, that the topic
    is gone, or that the partition is offline. A total of 12+ means at least
    12: it leaves out partitions like that.

    Examples:

    $ tidelog group lag billing
    $ tidelog group lag --watch
    $ tidelog group lag --json | jq '[.[].lag] | add'
    """
    connection = connect(bootstrap, client)
    look = Look(connection, groups, topic, SOON if watch else {})
    if watch:
        watch_lag(look, interval_s, json, bootstrap)
        return
    lags = look()
    if json:
        print_json([lag_json(lag) for lag in lags])
    elif lags:
        print_table(lag_table(lags))
    sys.stdout.flush()
    tell_of_groups(look.offline)
    if not lags and not json and GROUPS_TOPIC not in look.offline:
        if groups:
            of_topic = f" in topic {topic}" if topic is not None else ""
            print(f"Nothing is committed{of_topic} by {', '.join(groups)}.", file=sys.stderr)
        else:
            print(f"No group reads topic {topic}." if topic is not None else f"{NO_LAG} yet.", file=sys.stderr)


for command in (reset_offsets, copy_offsets, delete, delete_offsets):
    app.command(command.__name__.replace("_", "-"))(command)


SOON = {"reconnect.backoff.max.ms": 1000}
"""librdkafka's settings: a broker that comes back is found within a second, where it would take up to ten."""


class Look:
    """Measures the lag of the chosen groups: those named, or whatever groups there are by then."""

    def __init__(
        self, connection: ConnectionOptions, groups: Sequence[str], topic: str | None, settings: dict[str, int]
    ) -> None:
        self.connection = connection
        self.settings = settings
        self.admin = connection.admin(settings)
        self.ages = Ages(connection)
        self.topic = topic
        self.groups = existing(self.admin, groups) if groups else None
        self.offline: dict[str, list[int]] = {}
        """What the last look could not see, if it can matter to it."""
        self.failed: list[AdminClient] = []
        """Kept: librdkafka waits for its requests when a client goes, and some never end."""
        self.is_lost = False

    def __call__(self) -> list[Lag]:
        """After one that failed: at once while nobody listens, and with a client that knows nothing of the outage."""
        if self.is_lost:
            reach(self.connection.bootstrap)
            self.failed.append(self.admin)
            self.admin = self.connection.admin(self.settings)
            self.ages = Ages(self.connection)
        self.is_lost = True
        names = self.groups if self.groups is not None else group_names(self.admin)
        lags = all_lags(self.admin, describe_groups(self.admin, names), self.ages)
        lags = [lag for lag in lags if self.topic is None or lag.topic == self.topic]
        every = [] if self.groups is not None else [GROUPS_TOPIC]
        self.offline = look_for_offline(self.admin, [*dict.fromkeys(lag.topic for lag in lags), *every])
        self.is_lost = False
        return lags


def total_json(total: Total) -> dict[str, Any]:
    """`lag` is null while nothing is known; partitions that it leaves out are counted."""
    return {"lag": total.records, "partitions_without_lag": total.unknown}


def group_json(group: "ConsumerGroupDescription") -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": state(group),
        "protocol": group.type.name.lower(),
        "assignor": group.partition_assignor or None,
        "coordinator": group.coordinator.id if group.coordinator is not None else None,
        "members": len(group.members),
    }


def members_json(group: "ConsumerGroupDescription") -> list[dict[str, Any]]:
    return [
        {
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.host.lstrip("/"),
            "partitions": [
                {"topic": part.topic, "partition": part.partition}
                for part in (member.assignment.topic_partitions if member.assignment else ())
            ],
        }
        for member in group.members
    ]
