"""`tidelog group`: list, describe, lag; what changes groups is in `group_offsets`."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, ConnectionOptions, connect, reach
from tidelog.cli.errors import CommandError, raise_together
from tidelog.cli.group_offsets import Escaped, copy_offsets, delete, delete_offsets, reset_offsets
from tidelog.cli.groups import (
    DescribedGroups,
    Groups,
    choose,
    describe_groups,
    group_problem,
    host_text,
    list_groups,
    member_problems,
    names_from,
    other_protocol,
    reads,
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
from tidelog.cli.tables import Column, Table, cell, heading, name_text, print_json, print_notes, print_table, printable

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.groups import Group, ListedGroup, Member

app = typer.Typer(add_completion=False, no_args_is_help=True)

GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False, help="One group or several.")]


@app.callback()
def group() -> None:
    """Show consumer groups and their lag; set their offsets; delete them.

    Names that are not UTF-8 have base64 in JSON (group_base64), escapes in
    tables. What cannot be shown of a group is marked, and a Note says why.

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

    Lag is - where nothing has been committed yet. 12+ means at least 12:
    it leaves out partitions that have records and no commit, or that are
    offline. A Note says what is not known of a group.

    Examples:

    $ tidelog group list
    $ tidelog group list --json | jq -r '.[].group'
    """
    with connect(bootstrap, client).open() as cluster_client:
        found = list_groups(cluster_client)
        if names:
            for group in found.listed:
                print(printable(group.group_id))
            print_notes(found.problems)
            warn_of_groups(cluster_client, ())
            return
        show_groups(cluster_client, found, json)


def show_groups(client: "Client", found: Groups, json: bool) -> None:
    """All that is known of each group; notes say what is not."""
    described = describe_groups(client, found.listed)
    listed = [group for group in found.listed if group.group_id not in described.gone]
    known = all_lags(client, [group.group_id for group in listed], described.groups)
    of_group: dict[str, list[Lag]] = {}
    for lag in known.lags:
        of_group.setdefault(lag.group, []).append(lag)
    totals = {group.group_id: total(of_group.get(group.group_id, ())) for group in listed}
    notes = {group.group_id: note(group, described, known.failures) for group in listed}
    if json:
        rows = [group_json(group, described.groups.get(group.group_id), notes[group.group_id]) for group in listed]
        print_json([row | total_json(totals[group.group_id]) for row, group in zip(rows, listed, strict=True)])
    elif listed:
        print_table(groups_table(listed, described.groups, totals, notes))
    print_notes(found.problems + known.problems)
    missing = warn_of_groups(client, [lag.topic for lag in known.lags])
    if not listed and not json and GROUPS_TOPIC not in missing:
        print("No consumer groups yet. One begins with: tidelog consume TOPIC --group NAME", file=sys.stderr)


def note(group: "ListedGroup", described: DescribedGroups, failures: Mapping[str, CommandError]) -> str:
    """What is not known of a group, in short; empty where all is known."""
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
        known = described.get(group.group_id)
        state = state_text(known.state if known else group.state)
        members = cell(len(known.members)) if known else "?"
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
    """Show a group's state, its members and what each of them reads.

    A ? means that it is not known what a member reads: its assignment cannot
    be decoded (a Note says why), or is that of another protocol, as Connect's.

    Examples:

    $ tidelog group describe billing
    $ tidelog group describe billing --json
    """
    with connect(bootstrap, client).open() as cluster_client:
        chosen = choose(cluster_client, names_from(groups, escaped))
        described = describe_groups(cluster_client, chosen.listed)
    listed = [group for group in chosen.listed if group.group_id in described.groups]
    if json:
        documents = []
        for each in listed:
            group = described.groups[each.group_id]
            documents.append(group_json(each, group, group_problem(group)) | {"members": members_json(group)})
        print_json(documents)
    else:
        for number, each in enumerate(listed):
            print("\n" * bool(number), end="")
            show_group(described.groups[each.group_id])
        print_notes([line for group in described.groups.values() for line in member_problems(group)])
    sys.stdout.flush()
    raise_together((chosen.failures | described.failures).values())


def show_group(group: "Group") -> None:
    facts = [f"state {state_text(group.state)}", f"protocol {group.type.lower()}"]
    if protocol_type := other_protocol(group.protocol_type):
        facts.append(f"protocol type {protocol_type}")
    if group.assignor:
        facts.append(f"assignor {group.assignor}")
    facts.append(f"coordinator {group.coordinator}")
    heading(name_text(group.group_id), *facts)
    if group.members:
        print_table(members_table(group.members))
    else:
        print("No members.")


def members_table(members: "Sequence[Member]") -> Table:
    columns = [Column("Member"), Column("Client", spare=1), Column("Host", spare=2), Column("Reads")]
    return Table(columns, [(m.member_id, m.client_id, host_text(m), reads(m)) for m in members])


@app.command()
def lag(
    groups: Annotated[
        list[str], typer.Argument(metavar="[GROUP...]", show_default=False, help="Default: every group.")
    ] = [],  # noqa: B006
    escaped: Escaped = False,
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
    with ExitStack() as stack:
        look = Look(stack, connect(bootstrap, client), names_from(groups, escaped), topic)
        if watch:
            watch_lag(look, interval_s, json, bootstrap)
            return
        lags = look()
    if json:
        print_json([lag_json(lag) for lag in lags])
    elif lags:
        print_table(lag_table(lags))
    print_notes(look.problems)
    warn_of_hidden_groups(look.offline)
    raise_together(look.failures.values())
    if not lags and not json and GROUPS_TOPIC not in look.offline:
        if groups:
            of_topic = f" in topic {topic}" if topic is not None else ""
            print(f"Nothing is committed{of_topic} by {', '.join(map(name_text, look.groups or ()))}.", file=sys.stderr)
        else:
            print(f"No group reads topic {topic}." if topic is not None else f"{NO_LAG} yet.", file=sys.stderr)


for command in (reset_offsets, copy_offsets, delete, delete_offsets):
    app.command(command.__name__.replace("_", "-"))(command)


class Look:
    """Measures the lag of the chosen groups: those named, or whatever groups there are by then."""

    def __init__(
        self, stack: ExitStack, connection: ConnectionOptions, groups: Sequence[str], topic: str | None
    ) -> None:
        """Raises CommandError where none of the groups that are named is there."""
        self.connection = connection
        self.client = stack.enter_context(connection.open())
        self.ages = Ages(self.client)
        self.topic = topic
        self.offline: dict[str, list[int]] = {}
        """What the last look could not see, if it can matter to it."""
        self.problems: list[str] = []
        """What else it could not see."""
        self.failures: dict[str, CommandError] = {}
        """Of groups that are named."""
        self.missing: dict[str, CommandError] = {}
        self.groups: list[str] | None = None
        if groups:
            chosen = choose(self.client, groups)
            self.missing = chosen.failures
            self.groups = [group.group_id for group in chosen.listed]
            if not self.groups:
                raise_together(chosen.failures.values())
        self.is_lost = False

    def __call__(self) -> list[Lag]:
        if self.is_lost:
            reach(self.connection.bootstrap)  # at once while nobody listens
        self.is_lost = True
        found = list_groups(self.client)
        wanted = [group for group in found.listed if self.groups is None or group.group_id in self.groups]
        described = describe_groups(self.client, wanted)
        names = [group.group_id for group in wanted if group.group_id not in described.gone]
        known = all_lags(self.client, names, described.groups, self.ages)
        failures = known.failures | described.failures
        if self.groups is not None:
            there = {group.group_id for group in wanted}
            gone = [name for name in self.groups if name not in there]
            failures |= {name: CommandError(f"group {name_text(name)} is not there any more") for name in gone}
            self.failures = self.missing | failures
        lags = [lag for lag in known.lags if self.topic is None or lag.topic == self.topic]
        # Of a group that is named, what fails is told at the end, or in a watch as a note.
        others = [
            str(failure) for name, failure in failures.items() if self.groups is None and name not in described.gone
        ]
        self.problems = found.problems + known.problems + others
        every = [] if self.groups is not None else [GROUPS_TOPIC]
        self.offline = find_offline_partitions(self.client, [*dict.fromkeys(lag.topic for lag in lags), *every])
        self.is_lost = False
        return lags


def total_json(total: Total) -> dict[str, Any]:
    """`lag` is null while nothing is known; partitions that it leaves out are counted."""
    return {"lag": total.records, "partitions_without_lag": total.unknown}


def group_json(listed: "ListedGroup", group: "Group | None", problem: str) -> dict[str, Any]:
    """`members` and `coordinator` are null where the group cannot be described; `problem` says why."""
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
    """`partitions` is null where they are not known; `problem` says why."""
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
