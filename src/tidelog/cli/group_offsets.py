"""`tidelog group reset-offsets`, `copy-offsets`, `delete`, `delete-offsets`: what changes a group without members."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import cluster
from tidelog.cli.cluster import Offsets
from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, client_error, connect
from tidelog.cli.errors import CommandError, UsageError, raise_together
from tidelog.cli.groups import choose, describe_one, group_error, list_groups, members_text, names_from, the_group
from tidelog.cli.lag import commits
from tidelog.cli.offline import partitions_text
from tidelog.cli.offset_plan import (
    OffsetChange,
    Place,
    left_out,
    moves_json,
    moves_table,
    plan,
    read_offsets,
    topics_and_partitions,
)
from tidelog.cli.tables import counted, name_text, print_json, print_table, printable
from tidelog.cli.when import NotATimeError, parse_time_ms

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
Topics = Annotated[
    list[str],
    typer.Option(
        "--topic", "-t", metavar="TOPIC[:PARTITIONS]", show_default=False, help="orders, or orders:0,3-5; repeatable."
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this, only show what would change.")]
Escaped = Annotated[
    bool,
    typer.Option("--escaped", help=r"Names are as tables show them: \n, \x00, \xff; a backslash is written twice."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TARGETS = "--to-earliest, --to-latest, --to-datetime, --to-offset, --shift-by or --from-file"


def reset_offsets(
    group: Group,
    topic: Topics = [],  # noqa: B006 - typer copies it
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is there.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only what comes from now on.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="WHEN", help='To the first record since then: "1 hour ago", 2026-03-01T12:00 ...'
        ),
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="OFFSET", min=0)] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="So many records on, or back with -N.")
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="Offsets from CSV or JSON, partition by partition."),
    ] = None,
    execute: Execute = False,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Set where a group reads on.

    Shows what would change; --execute does it. Without --topic, every
    partition that the group has committed in is set; others of the same
    topics are named. The group must have no members: they would go on from
    where they are, and commit that.

    An offset that the log does not have becomes the nearest that it has.

    A FILE has lines "topic,partition,offset", or is JSON as --json prints it.

    Examples:

    $ tidelog group reset-offsets billing --to-earliest
    $ tidelog group reset-offsets billing --topic orders:0,3-5 --to-datetime "1 hour ago" --execute
    $ tidelog group reset-offsets billing --shift-by -100 --execute
    """
    (group,) = names_from([group], escaped)
    target = Target(to_earliest, to_latest, to_datetime, to_offset, shift_by, from_file)
    target.check()
    wanted = topics_and_partitions(topic)
    given = read_offsets(from_file, group) if from_file is not None else None
    with connect(bootstrap, client).open() as cluster_client:
        reset(cluster_client, group, target, wanted, given, execute=execute, json=json)


def reset(
    client: "Client",
    group: str,
    target: "Target",
    wanted: Mapping[str, list[int] | None],
    given: Mapping[Place, int] | None,
    *,
    execute: bool,
    json: bool,
) -> None:
    is_new = group not in group_names(client)
    if is_new and not wanted and given is None:
        the_group(client, group)  # says that there is none, with the nearest name
    committed = {} if is_new else committed_offsets(client, group)
    places = places_of(client, group, wanted, given, committed)
    logs = log_ends(client, places)
    moves = plan(places, target.offsets(client, places, committed, logs, given), committed, logs)
    others = [] if wanted or given is not None else left_out(places, partitions_of(client, places))
    carry_out(client, group, moves, others, is_new=is_new, execute=execute, json=json)
    if others and not json:
        # --shift-by has nothing to count from there; and a --topic alone would leave the other topics out.
        topics = " ".join(f"--topic {name}" for name in dict.fromkeys(name for name, _ in places))
        is_shift = target.shift is not None
        how = "set them with --topic, and another target than --shift-by" if is_shift else f"add {topics}"
        tell_left_out(others, group, how if is_shift else f"{how} to set them, too")


def copy_offsets(
    source: Annotated[str, typer.Argument(metavar="FROM", show_default=False)],
    group: Annotated[str, typer.Argument(metavar="TO", show_default=False)],
    topic: Topics = [],  # noqa: B006
    execute: Execute = False,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Let a group begin where another one stands.

    Shows what would change; --execute does it. FROM may be at work meanwhile;
    TO must have no members, and need not exist yet. What TO has committed
    elsewhere stays as it is.

    Examples:

    $ tidelog group copy-offsets billing billing-v2
    $ tidelog group copy-offsets billing billing-v2 --topic orders --execute
    """
    source, group = names_from([source, group], escaped)
    if source == group:
        raise UsageError("FROM and TO are the same group")
    wanted = topics_and_partitions(topic)
    with connect(bootstrap, client).open() as cluster_client:
        the_group(cluster_client, source)
        found = committed_offsets(cluster_client, source)
        is_new = group not in group_names(cluster_client)
        committed = {} if is_new else committed_offsets(cluster_client, group)
        places = [place for place in sorted(found) if not wanted or _is_wanted(place, wanted)]
        if not places:
            raise CommandError(
                f"group {name_text(source)} has committed nothing" + (" in these topics" if wanted else "")
            )
        logs = log_ends(cluster_client, places)
        there = partitions_of(cluster_client, [*places, *((name, 0) for name in wanted)])
        others = [place for place in left_out(places, there) if not wanted or _is_wanted(place, wanted)]
        moves = plan(places, found, committed, logs)
        carry_out(cluster_client, group, moves, others, is_new=is_new, execute=execute, json=json)
    if others and not json:
        tell_left_out(others, source, f"set them with tidelog group reset-offsets {name_text(group)} --topic TOPIC")


def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    yes: Yes = False,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Delete groups, with all that they have committed.

    A group must have no members. One that comes back under the name begins
    where its consumers' auto.offset.reset says. Groups that cannot be deleted
    are named, the others are deleted.

    Examples:

    $ tidelog group delete billing
    $ tidelog group delete billing-v1 billing-v2 --yes
    """
    with connect(bootstrap, client).open() as cluster_client:
        chosen = choose(cluster_client, names_from(groups, escaped))
        failures = dict(chosen.failures)
        names = []
        for group in chosen.listed:
            name = group.group_id
            try:
                check_no_members(cluster_client, name, "delete it")
                committed = counted(len(committed_offsets(cluster_client, name)), "committed offset")
            except CommandError as error:
                failures[name] = error
                continue
            confirm(f"Delete group {name_text(name)} with {committed}?", yes)
            names.append(name)
        results = cluster_client.delete_groups(names) if names else {}
    failures |= {name: group_error(failure, name) for name, failure in results.items() if failure is not None}
    deleted = [name for name in names if name not in failures]
    if json:
        rows = [{"group": name, "deleted": True, "problem": None} for name in deleted]
        print_json(
            rows + [{"group": n, "deleted": False, "problem": printable(str(why))} for n, why in failures.items()]
        )
    else:
        for name in deleted:
            print(f"Deleted group {name_text(name)}.")
        sys.stdout.flush()
    raise_together(failures.values())


def delete_offsets(
    group: Group,
    topic: Topics = [],  # noqa: B006
    yes: Yes = False,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Delete what a group has committed in a topic.

    Its members may be at work, as long as none of them reads the topic. There
    is no lag any more where nothing is committed.

    Examples:

    $ tidelog group delete-offsets billing --topic orders
    $ tidelog group delete-offsets billing --topic orders:0,3-5 --yes
    """
    wanted = topics_and_partitions(topic)
    if not wanted:
        raise UsageError("say which topic: --topic orders, or --topic orders:0,3-5")
    (group,) = names_from([group], escaped)
    shown = name_text(group)
    with connect(bootstrap, client).open() as cluster_client:
        the_group(cluster_client, group)
        places = sorted(place for place in committed_offsets(cluster_client, group) if _is_wanted(place, wanted))
        if not places:
            raise CommandError(
                f"group {shown} has committed nothing there (tidelog group lag {shown} shows where it has)"
            )
        confirm(f"Delete {counted(len(places), 'committed offset')} of group {shown}?", yes)
        refused = remove(cluster_client, group, places)
        if refused:
            topics = ", ".join(sorted({topic for topic, _ in refused}))
            members = members_text(describe_one(cluster_client, group))
            raise CommandError(f"members of group {shown} read {topics}: {members}; stop them first")
    if json:
        print_json([{"group": group, "topic": name, "partition": partition} for name, partition in places])
    else:
        print(f"Deleted {counted(len(places), 'committed offset')} of group {shown}.")


class Target:
    """Which of the ways to say where to go was chosen."""

    def __init__(
        self,
        earliest: bool,
        latest: bool,
        when: str | None,
        offset: int | None,
        shift: int | None,
        file: str | None,
    ) -> None:
        self._earliest, self._latest, self._when = earliest, latest, when
        self._offset, self.shift, self._file = offset, shift, file

    def check(self) -> None:
        """Raises UsageError unless there is exactly one."""
        others = (self._when, self._offset, self.shift, self._file)
        if self._earliest + self._latest + sum(other is not None for other in others) != 1:
            raise UsageError(f"say where to, in one way: {TARGETS}")

    def offsets(
        self,
        client: "Client",
        places: Sequence[Place],
        committed: Mapping[Place, int],
        logs: Mapping[Place, Offsets],
        given: Mapping[Place, int] | None,
    ) -> Mapping[Place, int]:
        if given is not None:
            return given
        if self._earliest:
            return {place: logs[place].earliest for place in places}
        if self._latest:
            return {place: logs[place].latest for place in places}
        if self._offset is not None:
            return dict.fromkeys(places, self._offset)
        if self.shift is not None:
            missing = [f"{topic}-{partition}" for topic, partition in places if (topic, partition) not in committed]
            if missing:
                raise CommandError(f"--shift-by needs a committed offset; there is none in {', '.join(missing[:5])}")
            return {place: max(committed[place] + self.shift, 0) for place in places}
        assert self._when is not None
        return since(client, places, self._when, logs)


def since(client: "Client", places: Sequence[Place], when: str, logs: Mapping[Place, Offsets]) -> dict[Place, int]:
    """The first offset of a record that is not older; the end where there is none."""
    try:
        timestamp_ms = parse_time_ms(when, datetime.now())
    except NotATimeError as error:
        raise UsageError(f"--to-datetime: {error}") from error
    found = cluster.all_or_nothing(cluster.list_offsets(client, dict.fromkeys(places, timestamp_ms)))
    return {place: found[place] if found[place] >= 0 else logs[place].latest for place in places}


def places_of(
    client: "Client",
    group: str,
    wanted: Mapping[str, list[int] | None],
    given: Mapping[Place, int] | None,
    committed: Mapping[Place, int],
) -> list[Place]:
    """The partitions that are meant, in order. Raises CommandError for one that there is not."""
    if given is not None:
        found = sorted(place for place in given if not wanted or _is_wanted(place, wanted))
        if not found:
            raise CommandError(f"the file has no offsets for {', '.join(wanted)}: leave out --topic, or name others")
        return found
    if not wanted:
        if not committed:
            raise CommandError(f"group {name_text(group)} has committed nothing: say where to set it, with --topic")
        return sorted(committed)
    places = []
    for topic in cluster.describe(client, list(wanted)):
        there = [part.partition for part in topic.partitions]
        asked = wanted[topic.name]
        unknown = [number for number in asked or () if number not in there]
        if unknown:
            raise CommandError(f"topic {topic.name} has {counted(len(there), 'partition')}: there is no {unknown[0]}")
        places += [(topic.name, number) for number in (there if asked is None else asked)]
    return sorted(places)


def _is_wanted(place: Place, wanted: Mapping[str, list[int] | None]) -> bool:
    topic, partition = place
    numbers = wanted.get(topic, [])
    return numbers is None or partition in numbers


def log_ends(client: "Client", places: Sequence[Place]) -> dict[Place, Offsets]:
    """Raises CommandError for a topic or a partition that there is not."""
    from tidelog.client.operations import EARLIEST, LATEST

    topics = {
        topic.name: topic for topic in cluster.describe(client, list(dict.fromkeys(topic for topic, _ in places)))
    }
    for topic, partition in places:
        count = len(topics[topic].partitions)
        if partition >= count:
            raise CommandError(f"topic {topic} has {counted(count, 'partition')}: there is no {partition}")
    earliest = cluster.all_or_nothing(cluster.list_offsets(client, dict.fromkeys(places, EARLIEST)))
    latest = cluster.all_or_nothing(cluster.list_offsets(client, dict.fromkeys(places, LATEST)))
    return {place: Offsets(earliest[place], latest[place]) for place in places}


def partitions_of(client: "Client", places: Iterable[Place]) -> list[Place]:
    """Every partition of the topics that these are of."""
    topics = cluster.describe(client, list(dict.fromkeys(topic for topic, _ in places)))
    return [(topic.name, part.partition) for topic in topics for part in topic.partitions]


def tell_left_out(others: Sequence[Place], group: str, remedy: str) -> None:
    """On stderr: what a plan does not set, since a group has no commit there."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in others:
        by_topic.setdefault(topic, []).append(partition)
    count = counted(len(others), "partition")
    print(
        f"Left out: {count} without a commit of {name_text(group)} ({partitions_text(by_topic)}); {remedy}.",
        file=sys.stderr,
    )


def group_names(client: "Client") -> list[str]:
    return [group.group_id for group in list_groups(client).listed]


def committed_offsets(client: "Client", group: str) -> dict[Place, int]:
    """Raises CommandError where they cannot be read: a plan must not leave out a partition."""
    found = commits(client, [group])
    for failure in found.failures.values():
        raise failure
    for why in found.unknown.values():
        raise CommandError(why)
    return {(topic, partition): offset for (_, topic, partition), offset in found.offsets.items()}


def check_no_members(client: "Client", group: str, remedy: str) -> None:
    described = describe_one(client, group)
    if described.members:
        count = counted(len(described.members), "member")
        raise CommandError(
            f"group {name_text(group)} has {count}: {members_text(described)}; stop them first, then {remedy}"
        )


def carry_out(
    client: "Client",
    group: str,
    moves: Sequence[OffsetChange],
    others: Sequence[Place],
    *,
    is_new: bool,
    execute: bool,
    json: bool,
) -> None:
    """Show the moves, and do them if that is wanted; `others` are left out. Raises CommandError while the group has
    members.
    """
    if not is_new:
        check_no_members(client, group, "set its offsets")
    if execute:
        commit(client, group, moves)
    if json:
        missing = [{"topic": topic, "partition": partition} for topic, partition in others]
        print_json({"group": group, "executed": execute, "offsets": moves_json(moves), "left_out": missing})
        return
    print_table(moves_table(moves))
    sys.stdout.flush()
    if execute:
        print(f"Set {counted(len(moves), 'offset')} of group {name_text(group)}.", file=sys.stderr)
    else:
        makes = f" There is no group {name_text(group)} yet: it will be made." if is_new else ""
        print(f"Nothing was changed: --execute does it.{makes}", file=sys.stderr)


def commit(client: "Client", group: str, moves: Iterable[OffsetChange]) -> None:
    from tidelog.model.ids import TopicPartition

    offsets = {TopicPartition(move.topic, move.partition): move.after for move in moves}
    for place, result in client.commit(group, offsets).items():
        if isinstance(result, Exception):
            raise CommandError(f"{client_error(result, f'group {name_text(group)}, {place}')}; others may be set")


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal, so nobody can confirm this: add --yes to delete")
    typer.confirm(question, abort=True)


def remove(client: "Client", group: str, places: Sequence[Place]) -> list[Place]:
    """Delete these offsets; those that members read are returned."""
    from tidelog.client.error_codes import error_name
    from tidelog.model.ids import TopicPartition
    from tidelog.wire.errors import ErrorCode, InvalidGroupId

    try:
        codes = client.delete_offsets(group, [TopicPartition(*place) for place in places])
    except InvalidGroupId as error:
        raise CommandError(
            f"brokers delete no single offsets of group {name_text(group)} (INVALID_GROUP_ID); tidelog group delete"
            " deletes it with all that it has committed"
        ) from error
    for place, code in codes.items():
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise CommandError(f"group {name_text(group)}, {place}: {error_name(code)}; others may be deleted")
    return [(place.topic, place.partition) for place, code in codes.items() if code]
