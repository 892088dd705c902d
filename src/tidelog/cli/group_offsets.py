"""`tidelog group reset-offsets`, `copy-offsets`, `delete`, `delete-offsets`: what changes a group without members."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import cluster
from tidelog.cli.cluster import Offsets
from tidelog.cli.connection import (
    ANSWER_S,
    LOCALHOST,
    AsJson,
    Bootstrap,
    ClientSettings,
    ConnectionOptions,
    answer,
    connect,
)
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.groups import describe_groups, existing, group_names, members_text
from tidelog.cli.lag import commits
from tidelog.cli.offline import named
from tidelog.cli.offset_plan import (
    Move,
    Place,
    left_out,
    moves_json,
    moves_table,
    plan,
    read_offsets,
    topics_and_partitions,
)
from tidelog.cli.own_client import in_one_line, open_client
from tidelog.cli.tables import counted, print_json, print_table
from tidelog.cli.when import NotATimeError, parse_time_ms

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
Topics = Annotated[
    list[str],
    typer.Option(
        "--topic", "-t", metavar="TOPIC[:PARTITIONS]", show_default=False, help="orders, or orders:0,3-5; repeatable."
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this, only show what would change.")]
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
    target = Target(to_earliest, to_latest, to_datetime, to_offset, shift_by, from_file)
    target.check()
    wanted = topics_and_partitions(topic)
    given = read_offsets(from_file, group) if from_file is not None else None
    admin = connect(bootstrap, client).admin()
    is_new = group not in group_names(admin)
    if is_new and not wanted and given is None:
        existing(admin, [group])  # says that there is none, with the nearest name
    committed = {} if is_new else committed_offsets(admin, group)
    places = places_of(admin, group, wanted, given, committed)
    logs = log_ends(admin, places)
    moves = plan(places, target.offsets(admin, places, committed, logs, given), committed, logs)
    others = [] if wanted or given is not None else left_out(places, partitions_of(admin, places))
    carry_out(admin, group, moves, others, is_new=is_new, execute=execute, json=json)
    if others and not json:
        # --shift-by has nothing to count from there; and a --topic alone would leave the other topics out.
        topics = " ".join(f"--topic {name}" for name in dict.fromkeys(name for name, _ in places))
        how = "set them with --topic, and another target than --shift-by" if shift_by is not None else f"add {topics}"
        tell_left_out(others, group, f"{how} to set them, too" if shift_by is None else how)


def copy_offsets(
    source: Annotated[str, typer.Argument(metavar="FROM", show_default=False)],
    group: Annotated[str, typer.Argument(metavar="TO", show_default=False)],
    topic: Topics = [],  # noqa: B006
    execute: Execute = False,
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
    if source == group:
        raise UsageError("FROM and TO are the same group")
    wanted = topics_and_partitions(topic)
    admin = connect(bootstrap, client).admin()
    existing(admin, [source])
    found = committed_offsets(admin, source)
    is_new = group not in group_names(admin)
    committed = {} if is_new else committed_offsets(admin, group)
    places = [place for place in sorted(found) if not wanted or _is_wanted(place, wanted)]
    if not places:
        raise CommandError(f"group {source} has committed nothing" + (" in these topics" if wanted else ""))
    logs = log_ends(admin, places)
    there = partitions_of(admin, [*places, *((name, 0) for name in wanted)])
    others = [place for place in left_out(places, there) if not wanted or _is_wanted(place, wanted)]
    carry_out(admin, group, plan(places, found, committed, logs), others, is_new=is_new, execute=execute, json=json)
    if others and not json:
        tell_left_out(others, source, f"set them with tidelog group reset-offsets {group} --topic TOPIC")


def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    yes: Yes = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Delete groups, with all that they have committed.

    A group must have no members. One that comes back under the name begins
    where its consumers' auto.offset.reset says.

    Examples:

    $ tidelog group delete billing
    $ tidelog group delete billing-v1 billing-v2 --yes
    """
    admin = connect(bootstrap, client).admin()
    names = existing(admin, groups)
    for name in names:
        check_no_members(admin, name, "delete it")
    for name in names:
        confirm(f"Delete group {name} with {counted(len(committed_offsets(admin, name)), 'committed offset')}?", yes)
    for name, future in admin.delete_consumer_groups(names, request_timeout=ANSWER_S).items():
        answer(future, f"group {name}")
    if json:
        print_json([{"group": name, "deleted": True} for name in names])
    else:
        for name in names:
            print(f"Deleted group {name}.")


def delete_offsets(
    group: Group,
    topic: Topics = [],  # noqa: B006
    yes: Yes = False,
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
    connection = connect(bootstrap, client)
    admin = connection.admin()
    existing(admin, [group])
    places = sorted(place for place in committed_offsets(admin, group) if _is_wanted(place, wanted))
    if not places:
        raise CommandError(f"group {group} has committed nothing there (tidelog group lag {group} shows where it has)")
    confirm(f"Delete {counted(len(places), 'committed offset')} of group {group}?", yes)
    refused = remove(connection, group, places)
    if refused:
        (described,) = describe_groups(admin, [group])
        raise CommandError(
            f"members of group {group} read {', '.join(sorted({t for t, _ in refused}))}: {members_text(described)}; "
            "stop them first"
        )
    if json:
        print_json([{"group": group, "topic": name, "partition": partition} for name, partition in places])
    else:
        print(f"Deleted {counted(len(places), 'committed offset')} of group {group}.")


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
        self._offset, self._shift, self._file = offset, shift, file

    def check(self) -> None:
        """Raises UsageError unless there is exactly one."""
        others = (self._when, self._offset, self._shift, self._file)
        if self._earliest + self._latest + sum(other is not None for other in others) != 1:
            raise UsageError(f"say where to, in one way: {TARGETS}")

    def offsets(
        self,
        admin: "AdminClient",
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
        if self._shift is not None:
            missing = [f"{topic}-{partition}" for topic, partition in places if (topic, partition) not in committed]
            if missing:
                raise CommandError(f"--shift-by needs a committed offset; there is none in {', '.join(missing[:5])}")
            return {place: max(committed[place] + self._shift, 0) for place in places}
        assert self._when is not None
        return since(admin, places, self._when, logs)


def since(admin: "AdminClient", places: Sequence[Place], when: str, logs: Mapping[Place, Offsets]) -> dict[Place, int]:
    """The first offset of a record that is not older; the end where there is none."""
    from confluent_kafka.admin import OffsetSpec

    try:
        timestamp_ms = parse_time_ms(when, datetime.now())
    except NotATimeError as error:
        raise UsageError(f"--to-datetime: {error}") from error
    found = cluster.list_offsets(admin, places, OffsetSpec.for_timestamp(timestamp_ms))
    return {place: found[place] if found[place] >= 0 else logs[place].latest for place in places}


def places_of(
    admin: "AdminClient",
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
            raise CommandError(f"group {group} has committed nothing: say where to set it, with --topic")
        return sorted(committed)
    places = []
    for topic in cluster.describe(admin, list(wanted)):
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


def log_ends(admin: "AdminClient", places: Sequence[Place]) -> dict[Place, Offsets]:
    """Raises CommandError for a topic or a partition that there is not."""
    from confluent_kafka.admin import OffsetSpec

    topics = {topic.name: topic for topic in cluster.describe(admin, list(dict.fromkeys(topic for topic, _ in places)))}
    for topic, partition in places:
        count = len(topics[topic].partitions)
        if partition >= count:
            raise CommandError(f"topic {topic} has {counted(count, 'partition')}: there is no {partition}")
    earliest = cluster.list_offsets(admin, places, OffsetSpec.earliest())
    latest = cluster.list_offsets(admin, places, OffsetSpec.latest())
    return {place: Offsets(earliest[place], latest[place]) for place in places}


def partitions_of(admin: "AdminClient", places: Iterable[Place]) -> list[Place]:
    """Every partition of the topics that these are of."""
    topics = cluster.describe(admin, list(dict.fromkeys(topic for topic, _ in places)))
    return [(topic.name, part.partition) for topic in topics for part in topic.partitions]


def tell_left_out(others: Sequence[Place], group: str, remedy: str) -> None:
    """On stderr: what a plan does not set, since a group has no commit there."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in others:
        by_topic.setdefault(topic, []).append(partition)
    count = counted(len(others), "partition")
    print(f"Left out: {count} without a commit of {group} ({named(by_topic)}); {remedy}.", file=sys.stderr)


def committed_offsets(admin: "AdminClient", group: str) -> dict[Place, int]:
    return {(topic, partition): offset for (_, topic, partition), offset in commits(admin, [group]).items()}


def check_no_members(admin: "AdminClient", group: str, remedy: str) -> None:
    (described,) = describe_groups(admin, [group])
    if described.members:
        count = counted(len(described.members), "member")
        raise CommandError(f"group {group} has {count}: {members_text(described)}; stop them first, then {remedy}")


def carry_out(
    admin: "AdminClient",
    group: str,
    moves: Sequence[Move],
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
        check_no_members(admin, group, "set its offsets")
    if execute:
        commit(admin, group, moves)
    if json:
        missing = [{"topic": topic, "partition": partition} for topic, partition in others]
        print_json({"group": group, "executed": execute, "offsets": moves_json(moves), "left_out": missing})
        return
    print_table(moves_table(moves))
    sys.stdout.flush()
    if execute:
        print(f"Set {counted(len(moves), 'offset')} of group {group}.", file=sys.stderr)
    else:
        makes = f" There is no group {group} yet: it will be made." if is_new else ""
        print(f"Nothing was changed: --execute does it.{makes}", file=sys.stderr)


def commit(admin: "AdminClient", group: str, moves: Iterable[Move]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    parts = [TopicPartition(move.topic, move.partition, move.after) for move in moves]
    request = ConsumerGroupTopicPartitions(group, parts)
    set_to = answer(admin.alter_consumer_group_offsets([request], request_timeout=ANSWER_S)[group], f"group {group}")
    for part in set_to.topic_partitions:
        if part.error is not None:
            raise CommandError(f"group {group}, {part.topic}-{part.partition}: {part.error.str()}; others may be set")


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal, so nobody can confirm this: add --yes to delete")
    typer.confirm(question, abort=True)


def remove(connection: ConnectionOptions, group: str, places: Sequence[Place]) -> list[Place]:
    """Delete these offsets; those that members read are returned. librdkafka's Python client has no call for it."""
    from tidelog.client.error_codes import name_of
    from tidelog.model.ids import TopicPartition
    from tidelog.wire.errors import ErrorCode

    if not connection.is_plaintext:
        raise CommandError("this needs a PLAINTEXT listener yet: name one with --bootstrap, without -X security.*")
    with in_one_line(), open_client(connection.bootstrap) as client:
        codes = client.delete_offsets(group, [TopicPartition(*place) for place in places])
    for place, code in codes.items():
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise CommandError(f"group {group}, {place}: {name_of(code)}; others may be deleted")
    return [(place.topic, place.partition) for place, code in codes.items() if code]
