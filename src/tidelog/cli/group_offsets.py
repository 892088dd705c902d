"""`tidelog group reset-offsets`, `copy-offsets`, `delete`, `delete-offsets`: the commands that change groups.

A group that is changed must have no members. Only `delete-offsets` accepts a group with members, if none of them
reads the topic.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import cluster
from tidelog.cli.cluster import Offsets, TopicAndPartition
from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, client_error, connect
from tidelog.cli.errors import CommandError, UsageError, raise_together
from tidelog.cli.groups import (
    describe_one,
    find_group,
    find_groups,
    group_error,
    list_groups,
    members_text,
    parse_group_names,
    readers_of,
)
from tidelog.cli.lag import read_commits
from tidelog.cli.offline import partitions_text
from tidelog.cli.offset_plan import (
    OffsetChange,
    changes_json,
    changes_table,
    omitted_partitions,
    plan,
    read_offsets,
    topics_and_partitions,
)
from tidelog.cli.tables import counted, name_text, print_json, print_table, printable, ranges
from tidelog.cli.when import NotATimeError, parse_time_ms
from tidelog.model.ids import indexes_by_topic

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
Topics = Annotated[
    list[str],
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITIONS]",
        show_default=False,
        help="Only these partitions, e.g. orders:0,3-5; repeatable.",
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Make the changes; without this, only show them.")]
Escaped = Annotated[
    bool,
    typer.Option(
        "--escaped", help=r"You write names as tables show them: \n, \x00, \xff; a backslash is written twice."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TARGETS = "--to-earliest, --to-latest, --to-datetime, --to-offset, --shift-by or --from-file"


def reset_offsets(
    group: Group,
    topic: Topics = [],  # noqa: B006 - typer copies it
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Set to the first record in the log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Set to the end: read only new records.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help='Set to the first record since TIME, e.g. "1 hour ago" or 2026-03-01T12:00.',
        ),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="OFFSET", min=0, help="Set to this offset in each partition.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Move each offset forward by N; with -N: back.")
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="Set to the offsets in a CSV or JSON file."),
    ] = None,
    execute: Execute = False,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Set the committed offsets of a group: where it continues to read.

    Shows the changes; with --execute, also makes them. Without --topic and
    --from-file, only partitions in which the group has committed are
    changed; a message names the other partitions of the same topics. The
    group must have no members, because members would overwrite the new
    offsets with their own positions.

    An offset outside the log is replaced by the nearest offset in the log.

    A FILE has lines "topic,partition,offset", or is JSON as --json prints it.

    Examples:

    $ tidelog group reset-offsets billing --to-earliest
    $ tidelog group reset-offsets billing --topic orders:0,3-5 --to-datetime "1 hour ago" --execute
    $ tidelog group reset-offsets billing --shift-by -100 --execute
    """
    (group,) = parse_group_names([group], escaped)
    target = ResetTarget(to_earliest, to_latest, to_datetime, to_offset, shift_by, from_file)
    target.check()
    wanted = topics_and_partitions(topic)
    file_offsets = read_offsets(from_file, group) if from_file is not None else None
    with connect(bootstrap, client).open() as cluster_client:
        reset(cluster_client, group, target, wanted, file_offsets, execute=execute, json=json)


def reset(
    client: "Client",
    group: str,
    target: "ResetTarget",
    wanted: Mapping[str, list[int] | None],
    file_offsets: Mapping[TopicAndPartition, int] | None,
    *,
    execute: bool,
    json: bool,
) -> None:
    """Plan the reset and show it. With `execute`, commit the offsets.

    `wanted` contains the requested partitions of each topic, or None for all partitions of a topic. It is empty
    without --topic. `file_offsets` are the offsets of --from-file.
    """
    is_new = group not in group_names(client)
    if is_new and not wanted and file_offsets is None:
        find_group(client, group)  # raises: no such group
    committed = {} if is_new else committed_offsets(client, group)
    partitions = partitions_to_reset(client, group, wanted, file_offsets, committed)
    logs = log_ends(client, partitions)
    changes = plan(partitions, target.offsets(client, partitions, committed, logs, file_offsets), committed, logs)
    omitted = (
        [] if wanted or file_offsets is not None else omitted_partitions(partitions, partitions_of(client, partitions))
    )
    apply_plan(client, group, changes, omitted, is_new=is_new, execute=execute, json=json)
    if omitted and not json:
        # --shift-by cannot set the omitted partitions, because it needs a committed offset. For other targets, the
        # remedy names every topic of the plan, because --topic excludes the topics that are not named.
        topics = " ".join(f"--topic {name}" for name in dict.fromkeys(name for name, _ in partitions))
        if target.shift is not None:
            remedy = "set them with --topic, and another target than --shift-by"
        else:
            remedy = f"add {topics} to set them, too"
        report_omitted_partitions(omitted, group, remedy)


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
    """Copy the committed offsets of a group to another group.

    Shows the changes; with --execute, also makes them. FROM may have active
    members. TO must have no members; it is created if it does not exist. In
    partitions that are not copied, the offsets of TO do not change.

    Examples:

    $ tidelog group copy-offsets billing billing-v2
    $ tidelog group copy-offsets billing billing-v2 --topic orders --execute
    """
    source, group = parse_group_names([source, group], escaped)
    if source == group:
        raise UsageError("FROM and TO are the same group")
    wanted = topics_and_partitions(topic)
    with connect(bootstrap, client).open() as cluster_client:
        find_group(cluster_client, source)
        source_offsets = committed_offsets(cluster_client, source)
        is_new = group not in group_names(cluster_client)
        committed = {} if is_new else committed_offsets(cluster_client, group)
        partitions = [tp for tp in sorted(source_offsets) if not wanted or _is_wanted(tp, wanted)]
        if not partitions:
            raise CommandError(
                f"group {name_text(source)} has no committed offsets" + (" in these topics" if wanted else "")
            )
        logs = log_ends(cluster_client, partitions)
        existing = partitions_of(cluster_client, [*partitions, *((name, 0) for name in wanted)])
        omitted = [tp for tp in omitted_partitions(partitions, existing) if not wanted or _is_wanted(tp, wanted)]
        changes = plan(partitions, source_offsets, committed, logs)
        apply_plan(cluster_client, group, changes, omitted, is_new=is_new, execute=execute, json=json)
    if omitted and not json:
        # The remedy names the partitions, because it must not change the offsets that were copied.
        topics = " ".join(f"--topic {name}:{ranges(parts)}" for name, parts in indexes_by_topic(omitted).items())
        command = f"tidelog group reset-offsets {name_text(group)} {topics}"
        report_omitted_partitions(omitted, source, f"set them with {command} and a target, such as --to-earliest")


def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    yes: Yes = False,
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Delete groups and their committed offsets.

    A group must have no members. If a consumer later uses the same name, it
    begins where its setting auto.offset.reset says. If some groups cannot be
    deleted, they are reported, and all others are deleted.

    Examples:

    $ tidelog group delete billing
    $ tidelog group delete billing-v1 billing-v2 --yes
    """
    with connect(bootstrap, client).open() as cluster_client:
        requested = find_groups(cluster_client, parse_group_names(groups, escaped))
        failures = dict(requested.failures)
        names = []
        for group in requested.listed:
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
            rows + [{"group": n, "deleted": False, "problem": printable(str(error))} for n, error in failures.items()]
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
    """Delete a group's committed offsets in a topic.

    The group may have members, but no member may read the topic. The lag of
    a partition without a committed offset is unknown.

    Examples:

    $ tidelog group delete-offsets billing --topic orders
    $ tidelog group delete-offsets billing --topic orders:0,3-5 --yes
    """
    wanted = topics_and_partitions(topic)
    if not wanted:
        raise UsageError("no topic is named: add --topic TOPIC; examples: --topic orders, --topic orders:0,3-5")
    (group,) = parse_group_names([group], escaped)
    group_text = name_text(group)
    with connect(bootstrap, client).open() as cluster_client:
        find_group(cluster_client, group)
        partitions = sorted(tp for tp in committed_offsets(cluster_client, group) if _is_wanted(tp, wanted))
        if not partitions:
            raise CommandError(
                f"group {group_text} has no committed offsets in these partitions;"
                f" tidelog group lag {group_text} shows its committed offsets"
            )
        confirm(f"Delete {counted(len(partitions), 'committed offset')} of group {group_text}?", yes)
        partitions_in_use = delete_committed(cluster_client, group, partitions)
        if partitions_in_use:
            topics = ", ".join(sorted({topic for topic, _ in partitions_in_use}))
            members = members_text(readers_of(describe_one(cluster_client, group), partitions_in_use))
            raise CommandError(f"members of group {group_text} read {topics}: {members}; stop them first")
    if json:
        print_json([{"group": group, "topic": name, "partition": partition} for name, partition in partitions])
    else:
        print(f"Deleted {counted(len(partitions), 'committed offset')} of group {group_text}.")


class ResetTarget:
    """The option of reset-offsets that says where to set the offsets."""

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
        """Raise UsageError unless exactly one option was used."""
        with_values = (self._when, self._offset, self.shift, self._file)
        if self._earliest + self._latest + sum(value is not None for value in with_values) != 1:
            raise UsageError(f"exactly one target must be given: {TARGETS}")

    def offsets(
        self,
        client: "Client",
        partitions: Sequence[TopicAndPartition],
        committed: Mapping[TopicAndPartition, int],
        logs: Mapping[TopicAndPartition, Offsets],
        file_offsets: Mapping[TopicAndPartition, int] | None,
    ) -> Mapping[TopicAndPartition, int]:
        """Return the new offset of each partition. An offset may be outside the log. With --from-file, the result may
        also contain partitions that are not in `partitions`.

        Raises CommandError if --shift-by is used and a partition has no committed offset.
        """
        if file_offsets is not None:
            return file_offsets
        if self._earliest:
            return {tp: logs[tp].earliest for tp in partitions}
        if self._latest:
            return {tp: logs[tp].latest for tp in partitions}
        if self._offset is not None:
            return dict.fromkeys(partitions, self._offset)
        if self.shift is not None:
            missing = [f"{topic}-{partition}" for topic, partition in partitions if (topic, partition) not in committed]
            if missing:
                raise CommandError(
                    f"--shift-by needs a committed offset: none is committed in {', '.join(missing[:5])}"
                )
            return {tp: max(committed[tp] + self.shift, 0) for tp in partitions}
        assert self._when is not None
        return offsets_at_time(client, partitions, self._when, logs)


def offsets_at_time(
    client: "Client", partitions: Sequence[TopicAndPartition], when: str, logs: Mapping[TopicAndPartition, Offsets]
) -> dict[TopicAndPartition, int]:
    """Return, for each partition, the offset of the first record whose timestamp is at or after `when`.

    If there is no such record, the result is the log's end. Raises UsageError if `when` is not a time.
    """
    try:
        timestamp_ms = parse_time_ms(when, datetime.now())
    except NotATimeError as error:
        raise UsageError(f"--to-datetime: {error}") from error
    listed = cluster.offsets_or_raise(cluster.list_offsets(client, dict.fromkeys(partitions, timestamp_ms)))
    return {tp: listed[tp] if listed[tp] >= 0 else logs[tp].latest for tp in partitions}


def partitions_to_reset(
    client: "Client",
    group: str,
    wanted: Mapping[str, list[int] | None],
    file_offsets: Mapping[TopicAndPartition, int] | None,
    committed: Mapping[TopicAndPartition, int],
) -> list[TopicAndPartition]:
    """Return the partitions to set, sorted.

    With `file_offsets`, these are the partitions in the file, or, if `wanted` is not empty, the partitions that are
    both in the file and in `wanted`. Without `file_offsets`, these are the partitions in `wanted`, or, if `wanted`
    is empty, the partitions in which the group has committed.

    Raises CommandError if the result would be empty. Without `file_offsets`, it is also raised if a topic or
    partition in `wanted` does not exist.
    """
    if file_offsets is not None:
        in_file = sorted(tp for tp in file_offsets if not wanted or _is_wanted(tp, wanted))
        if not in_file:
            raise CommandError(
                f"the file has no offsets for {', '.join(wanted)}: leave out --topic, or name other topics"
            )
        return in_file
    if not wanted:
        if not committed:
            raise CommandError(f"group {name_text(group)} has no committed offsets: name the topics with --topic")
        return sorted(committed)
    partitions = []
    for topic in cluster.describe(client, list(wanted)):
        existing = [part.partition for part in topic.partitions]
        numbers = wanted[topic.name]
        unknown = [number for number in numbers or () if number not in existing]
        if unknown:
            raise CommandError(
                f"topic {topic.name} has {counted(len(existing), 'partition')}: there is no partition {unknown[0]}"
            )
        partitions += [(topic.name, number) for number in (existing if numbers is None else numbers)]
    return sorted(partitions)


def _is_wanted(tp: TopicAndPartition, wanted: Mapping[str, list[int] | None]) -> bool:
    topic, partition = tp
    numbers = wanted.get(topic, [])
    return numbers is None or partition in numbers


def log_ends(client: "Client", partitions: Sequence[TopicAndPartition]) -> dict[TopicAndPartition, Offsets]:
    """Return the earliest and the latest offset of each partition.

    Raises CommandError for a topic or partition that does not exist, or whose offsets cannot be read.
    """
    from tidelog.client.operations import EARLIEST, LATEST

    topics = {
        topic.name: topic for topic in cluster.describe(client, list(dict.fromkeys(topic for topic, _ in partitions)))
    }
    for topic, partition in partitions:
        count = len(topics[topic].partitions)
        if partition >= count:
            raise CommandError(f"topic {topic} has {counted(count, 'partition')}: there is no partition {partition}")
    earliest = cluster.offsets_or_raise(cluster.list_offsets(client, dict.fromkeys(partitions, EARLIEST)))
    latest = cluster.offsets_or_raise(cluster.list_offsets(client, dict.fromkeys(partitions, LATEST)))
    return {tp: Offsets(earliest[tp], latest[tp]) for tp in partitions}


def partitions_of(client: "Client", partitions: Iterable[TopicAndPartition]) -> list[TopicAndPartition]:
    """Return every partition of the topics that occur in `partitions`."""
    topics = cluster.describe(client, list(dict.fromkeys(topic for topic, _ in partitions)))
    return [(topic.name, part.partition) for topic in topics for part in topic.partitions]


def report_omitted_partitions(omitted: Sequence[TopicAndPartition], group: str, remedy: str) -> None:
    """Print on stderr which partitions a plan leaves out because the group has not committed in them."""
    count = counted(len(omitted), "partition")
    print(
        f"Left out: {count} without a committed offset of group {name_text(group)} "
        f"({partitions_text(indexes_by_topic(omitted))}); {remedy}.",
        file=sys.stderr,
    )


def group_names(client: "Client") -> list[str]:
    return [group.group_id for group in list_groups(client).listed]


def committed_offsets(client: "Client", group: str) -> dict[TopicAndPartition, int]:
    """Return the committed offsets of the group, by partition.

    Raises CommandError if one of them cannot be read, because a plan without that offset would be incomplete.
    """
    result = read_commits(client, [group])
    for failure in result.failures.values():
        raise failure
    for reason in result.unknown.values():
        raise CommandError(reason)
    return {(topic, partition): offset for (_, topic, partition), offset in result.offsets.items()}


def check_no_members(client: "Client", group: str, remedy: str) -> None:
    """Raise CommandError if the group has members. The error names the members, and `remedy` as the next step."""
    described = describe_one(client, group)
    if described.members:
        count = counted(len(described.members), "member")
        raise CommandError(
            f"group {name_text(group)} has {count}: {members_text(described)}; stop them first, then {remedy}"
        )


def apply_plan(
    client: "Client",
    group: str,
    changes: Sequence[OffsetChange],
    omitted: Sequence[TopicAndPartition],
    *,
    is_new: bool,
    execute: bool,
    json: bool,
) -> None:
    """Show the plan. With `execute`, commit its offsets first.

    `omitted` are partitions that the plan leaves out; the JSON document lists them. Raises CommandError if the group
    has members, or if an offset cannot be committed.
    """
    if not is_new:
        check_no_members(client, group, "set its offsets")
    if execute:
        commit(client, group, changes)
    if json:
        left_out_json = [{"topic": topic, "partition": partition} for topic, partition in omitted]
        print_json({"group": group, "executed": execute, "offsets": changes_json(changes), "left_out": left_out_json})
        return
    print_table(changes_table(changes))
    sys.stdout.flush()
    if execute:
        verb = "is" if len(changes) == 1 else "are"
        print(f"{counted(len(changes), 'offset')} of group {name_text(group)} {verb} now set.", file=sys.stderr)
    else:
        note = f" There is no group {name_text(group)} yet; --execute also creates it." if is_new else ""
        print(f"Nothing was changed. To make these changes, add --execute.{note}", file=sys.stderr)


def commit(client: "Client", group: str, changes: Iterable[OffsetChange]) -> None:
    """Commit the new offsets.

    Raises CommandError for the first partition that fails. Offsets of other partitions may have been committed.
    """
    from tidelog.model.ids import TopicPartition

    offsets = {TopicPartition(change.topic, change.partition): change.after for change in changes}
    for tp, result in client.commit(group, offsets).items():
        if isinstance(result, Exception):
            raise CommandError(
                f"{client_error(result, f'group {name_text(group)}, {tp}')}; other offsets may have been set"
            )


def confirm(question: str, yes: bool, verb: str = "delete") -> None:
    """Ask the user, unless `yes` is true. If the user answers "no", print that nothing was changed, and raise
    typer.Exit. Raises UsageError if the user must be asked, but stdin is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        noun = {"delete": "deletion"}.get(verb, verb)
        raise UsageError(f"the {noun} cannot be confirmed, because stdin is not a terminal: add --yes to {verb}")
    if not typer.confirm(question):
        print("Nothing was changed.")
        raise typer.Exit


def delete_committed(client: "Client", group: str, partitions: Sequence[TopicAndPartition]) -> list[TopicAndPartition]:
    """Delete the committed offsets of these partitions. Return the partitions whose offsets cannot be deleted,
    because members read their topics.

    Raises CommandError for any other failure. Some offsets may have been deleted before the failure.
    """
    from tidelog.client.error_codes import error_name
    from tidelog.model.ids import TopicPartition
    from tidelog.wire.errors import ErrorCode, InvalidGroupId

    try:
        codes = client.delete_offsets(group, [TopicPartition(*tp) for tp in partitions])
    except InvalidGroupId as error:
        raise CommandError(
            f"single offsets of group {name_text(group)} cannot be deleted (INVALID_GROUP_ID); tidelog group delete"
            " deletes the group with all its offsets"
        ) from error
    for tp, code in codes.items():
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise CommandError(
                f"group {name_text(group)}, {tp}: {error_name(code)}; other offsets may have been deleted"
            )
    return [(tp.topic, tp.partition) for tp, code in codes.items() if code]
