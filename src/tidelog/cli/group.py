"""`tidelog group`: the commands `list`, `describe` and `lag`. `group_offsets` has the commands that change groups."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import (
    LOCALHOST,
    AsJson,
    Bootstrap,
    ClientSettings,
    ConnectionOptions,
    check_reachable,
    connect,
)
from tidelog.cli.errors import CommandError, UsageError, raise_together, refuse_names_with_json
from tidelog.cli.group_offsets import Escaped, copy_offsets, delete, delete_offsets, reset_offsets
from tidelog.cli.groups import (
    DescribedGroups,
    ListedGroups,
    describe_groups,
    find_groups,
    foreign_protocol_type,
    group_problem,
    host_text,
    list_groups,
    member_problems,
    parse_group_names,
    partitions_text,
    state_text,
)
from tidelog.cli.lag import NO_LAG, Ages, Lag, Total, all_lags, lag_json, lag_table, total
from tidelog.cli.lag_watch import watch_lag
from tidelog.cli.offline import (
    GROUPS_TOPIC,
    find_offline_partitions,
    warn_of_groups,
    warn_of_hidden_groups,
)
from tidelog.cli.tables import (
    Column,
    Table,
    cell,
    name_text,
    print_heading,
    print_json,
    print_notes,
    print_table,
    printable,
)

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.groups import Group, ListedGroup, Member

app = typer.Typer(add_completion=False, no_args_is_help=True)

WATCH_INTERVAL_S = 2.0
"""Default time between two measurements of `lag --watch`, in seconds."""
GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False, help="One group or several.")]


@app.callback()
def group() -> None:
    """Show consumer groups and their lag; set their offsets; delete them.

    A group name that is not UTF-8 is base64 in JSON (group_base64) and
    escaped in tables. If something about a group is not known, a Note says
    why.

    Examples:

    $ tidelog group list
    $ tidelog group describe billing
    $ tidelog group lag --watch
    $ tidelog group reset-offsets billing --to-datetime "1 hour ago"
    """


@app.command("list")
def list_all(
    names: Annotated[bool, typer.Option("--names", help="Print names only, one per line.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006 - typer copies it
) -> None:
    """List the groups.

    A - means that the lag is unknown, for example because nothing has been
    committed yet. 12+ means at least 12, because some partitions are not
    included: they are offline, or their topic was deleted, or they have
    records but no commit. A Note says what is not known about a group.

    Examples:

    $ tidelog group list
    $ tidelog group list --json | jq -r '.[].group'
    """
    refuse_names_with_json(names, json)
    with connect(bootstrap, client).open() as cluster_client:
        groups = list_groups(cluster_client)
        if names:
            for group in groups.listed:
                print(printable(group.group_id))
            print_notes(groups.problems)
            warn_of_groups(cluster_client, ())
            return
        show_groups(cluster_client, groups, json)


def show_groups(client: "Client", groups: ListedGroups, json: bool) -> None:
    """Print state, members and lag of each group, and notes about all unknown properties."""
    described = describe_groups(client, groups.listed)
    listed = [group for group in groups.listed if group.group_id not in described.vanished]
    measured = all_lags(client, [group.group_id for group in listed], described.groups)
    lags_by_group: dict[str, list[Lag]] = {}
    for lag in measured.lags:
        lags_by_group.setdefault(lag.group, []).append(lag)
    totals = {group.group_id: total(lags_by_group.get(group.group_id, ())) for group in listed}
    notes = {group.group_id: note(group, described, measured.failures) for group in listed}
    if json:
        rows = [group_json(group, described.groups.get(group.group_id), notes[group.group_id]) for group in listed]
        print_json([row | total_json(totals[group.group_id]) for row, group in zip(rows, listed, strict=True)])
    elif listed:
        print_table(groups_table(listed, described.groups, totals, notes))
    print_notes(groups.problems + measured.problems)
    offline = warn_of_groups(client, [lag.topic for lag in measured.lags])
    if not listed and not json and not groups.problems and GROUPS_TOPIC not in offline:
        print("No consumer groups yet. To begin one: tidelog consume TOPIC --group NAME", file=sys.stderr)


def note(group: "ListedGroup", described: DescribedGroups, failures: Mapping[str, CommandError]) -> str:
    """Return a short text about the unknown properties of a group; empty if everything is known."""
    name = group.group_id
    if name in described.failures:
        return str(described.failures[name])
    if name in failures:
        return str(failures[name])
    return group_problem(described.groups[name])


def groups_table(
    listed: "Sequence[ListedGroup]", described: "Mapping[str, Group]", totals: dict[str, Total], notes: dict[str, str]
) -> Table:
    columns = [Column("Group"), Column("State"), Column("Members", True), Column("Lag", True, spare=-1)]
    rows = []
    for group in listed:
        description = described.get(group.group_id)
        state = state_text(description.state if description else group.state)
        members = cell(len(description.members)) if description else "?"
        rows.append([name_text(group.group_id), state, members, totals[group.group_id].text()])
    if any(notes.values()):
        columns.append(Column("Note", style="yellow"))
        for group, row in zip(listed, rows, strict=True):
            row.append(notes[group.group_id])
    return Table(columns, rows)


@app.command()
def describe(
    groups: GroupNames,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show a group's state, its members and the partitions of each member.

    A ? means that a member's partitions are not known. Either its assignment
    cannot be decoded (a Note says why), or the group's protocol type is not
    consumer, as in Kafka Connect.

    Examples:

    $ tidelog group describe billing
    $ tidelog group describe billing --json
    """
    with connect(bootstrap, client).open() as cluster_client:
        requested = find_groups(cluster_client, parse_group_names(groups, escaped))
        described = describe_groups(cluster_client, requested.listed)
    listed = [group for group in requested.listed if group.group_id in described.groups]
    if json:
        documents = []
        for listing in listed:
            group = described.groups[listing.group_id]
            documents.append(group_json(listing, group, group_problem(group)) | {"members": members_json(group)})
        print_json(documents)
    else:
        for number, listing in enumerate(listed):
            print("\n" * bool(number), end="")
            show_group(described.groups[listing.group_id])
        print_notes([line for group in described.groups.values() for line in member_problems(group)])
    sys.stdout.flush()
    raise_together((requested.failures | described.failures).values())


def show_group(group: "Group") -> None:
    details = [f"state {state_text(group.state)}", f"protocol {group.type.lower()}"]
    if protocol_type := foreign_protocol_type(group.protocol_type):
        details.append(f"protocol type {protocol_type}")
    if group.assignor:
        details.append(f"assignor {group.assignor}")
    details.append(f"coordinator {group.coordinator}")
    print_heading(name_text(group.group_id), *details)
    if group.members:
        print_table(members_table(group.members))
    else:
        print("No members.")


def members_table(members: "Sequence[Member]") -> Table:
    columns = [Column("Member"), Column("Client", spare=1), Column("Host", spare=2), Column("Reads")]
    return Table(columns, [(m.member_id, m.client_id, host_text(m), partitions_text(m)) for m in members])


@app.command()
def lag(
    groups: Annotated[
        list[str], typer.Argument(metavar="[GROUP...]", show_default=False, help="Default: every group.")
    ] = [],  # noqa: B006
    escaped: Escaped = False,
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            min=0.1,
            show_default=False,
            help=f"How often --watch refreshes; default: {WATCH_INTERVAL_S:g}.",
        ),
    ] = None,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show how far a group is behind, partition by partition.

    Lag is the number of records that the group has not read yet. The column
    Behind shows the age of the oldest of these records, by the first
    timestamp of its batch. The age is in seconds if the output is not a
    terminal. A group without members also has a lag.

    --watch also shows how fast the group reads and how long it needs to
    catch up, and continues when no broker answers for a while. With --watch
    --json, every refresh is one JSON object on one line.

    A - means that the group has not committed in this partition yet, that
    the topic was deleted, or that the partition is offline. A total of 12+
    means at least 12: such partitions are not included. A partition that
    contains no records counts as 0.

    Examples:

    $ tidelog group lag billing
    $ tidelog group lag --watch
    $ tidelog group lag --json | jq '[.[].lag] | add'
    """
    if interval_s is not None and not watch:
        raise UsageError("--interval says how often --watch refreshes: add --watch")
    with ExitStack() as stack:
        query = LagQuery(stack, connect(bootstrap, client), parse_group_names(groups, escaped), topic)
        if watch:
            watch_lag(query, interval_s or WATCH_INTERVAL_S, json, bootstrap)
            return
        lags = query()
    if json:
        print_json([lag_json(lag) for lag in lags])
    elif lags:
        print_table(lag_table(lags))
    print_notes(query.problems)
    warn_of_hidden_groups(query.offline)
    raise_together(query.failures.values())
    if not lags and not json and not query.problems and GROUPS_TOPIC not in query.offline:
        if groups:
            in_topic = f" in topic {topic}" if topic is not None else ""
            names = ", ".join(map(name_text, query.groups or ()))
            print(f"No offsets are committed{in_topic} by {names}.", file=sys.stderr)
        else:
            print(f"No group reads topic {topic}." if topic is not None else f"{NO_LAG} yet.", file=sys.stderr)


for command in (reset_offsets, copy_offsets, delete, delete_offsets):
    app.command(command.__name__.replace("_", "-"))(command)


class LagQuery:
    """At each call, measures the lag of the named groups. If no group is named, measures all groups that exist at
    that time.
    """

    def __init__(
        self, stack: ExitStack, connection: ConnectionOptions, groups: Sequence[str], topic: str | None
    ) -> None:
        """Open a client that `stack` closes. Raises CommandError if groups are named and none of them exists."""
        self.connection = connection
        self.client = stack.enter_context(connection.open())
        self.ages = Ages(self.client)
        self.topic = topic
        self.offline: dict[str, list[int]] = {}
        """Offline partitions that the last call could not read, by topic. Only topics that can affect its result are
        included."""
        self.problems: list[str] = []
        """Failures of the last call, as text: all except offline partitions and failures of named groups."""
        self.failures: dict[str, CommandError] = {}
        """Failures of named groups, by group."""
        self.unknown_groups: dict[str, CommandError] = {}
        """Failures of named groups that did not exist at the start."""
        self.groups: list[str] | None = None
        """The named groups that existed at the start; None if no group is named."""
        if groups:
            requested = find_groups(self.client, groups)
            self.unknown_groups = requested.failures
            self.groups = [group.group_id for group in requested.listed]
            if not self.groups:
                raise_together(requested.failures.values())
        self.last_call_failed = False

    def __call__(self) -> list[Lag]:
        if self.last_call_failed:
            # Raises immediately if no broker listens. Without this check, the client would retry.
            check_reachable(self.connection.bootstrap)
        self.last_call_failed = True
        groups = list_groups(self.client)
        wanted = [group for group in groups.listed if self.groups is None or group.group_id in self.groups]
        described = describe_groups(self.client, wanted)
        names = [group.group_id for group in wanted if group.group_id not in described.vanished]
        measured = all_lags(self.client, names, described.groups, self.ages)
        failures = measured.failures | described.failures
        if self.groups is not None:
            existing = {group.group_id for group in wanted}
            deleted = [name for name in self.groups if name not in existing]
            failures |= {name: CommandError(f"group {name_text(name)} does not exist any more") for name in deleted}
            self.failures = self.unknown_groups | failures
        lags = [lag for lag in measured.lags if self.topic is None or lag.topic == self.topic]
        # Failures of named groups are reported through `self.failures`.
        unnamed_failures = [
            str(failure) for name, failure in failures.items() if self.groups is None and name not in described.vanished
        ]
        self.problems = groups.problems + measured.problems + unnamed_failures
        groups_topic = [] if self.groups is not None else [GROUPS_TOPIC]
        self.offline = find_offline_partitions(self.client, [*dict.fromkeys(lag.topic for lag in lags), *groups_topic])
        self.last_call_failed = False
        return lags


def total_json(total: Total) -> dict[str, Any]:
    """Return the total as JSON fields. `lag` is null if the sum is not known (see `Total.records`).

    `partitions_without_lag` is the number of partitions that are not included in `lag`.
    """
    return {"lag": total.records, "partitions_without_lag": total.unknown}


def group_json(listed: "ListedGroup", group: "Group | None", problem: str) -> dict[str, Any]:
    """Return the group as JSON. If it cannot be described, `members` and `coordinator` are null, and `problem` says
    why.
    """
    return {
        "group": listed.group_id,
        "state": state_text(group.state if group else listed.state),
        "protocol": (group.type if group else listed.type).lower() or "classic",
        "protocol_type": (group.protocol_type if group else listed.protocol_type) or None,
        "assignor": (group.assignor if group else "") or None,
        "coordinator": group.coordinator if group else None,
        "members": len(group.members) if group else None,
        "problem": printable(problem) or None,
    }


def members_json(group: "Group") -> list[dict[str, Any]]:
    """Return the members as JSON. If a member's partitions are not known, `partitions` is null, and `problem` says
    why.
    """
    return [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": host_text(member),
            "partitions": None
            if member.problem
            else [{"topic": part.topic, "partition": part.partition} for part in member.partitions],
            "problem": printable(member.problem) or None,
        }
        for member in group.members
    ]
