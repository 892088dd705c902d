"""`tidelog consume`: print the records of a topic on stdout."""

import re
import select
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidelog.cli import cluster, offline
from tidelog.cli.connection import LOCALHOST, Bootstrap, ClientSettings, connect
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.escapes import escape_unprintable
from tidelog.cli.interrupts import record_interrupts
from tidelog.cli.reading import TopicReader
from tidelog.cli.records import IncomingRecord, RenderRecord, TemplateError, parse_template, to_json
from tidelog.cli.tables import print_notes
from tidelog.cli.when import NotATimeError, parse_time_ms

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

app = typer.Typer(add_completion=False)

BEGINNING, END = ("beginning", "earliest"), ("end", "latest")
"""Words that --offset accepts instead of a number. kcat uses the first word of each pair. Kafka's tools and clients use
the second word."""


class Start(NamedTuple):
    """The position where reading begins. At most one field is set. If no field is set, reading begins at the end,
    and only records that are written later are read.
    """

    from_beginning: bool
    offset: int | None
    """The first offset to read; -N means N offsets before the end of each partition."""
    since_ms: int | None
    """Reading begins at the first record with this timestamp or a later one. In milliseconds since 1970."""


VALUE_ONLY, NULL = "{value}", "null"
"""Defaults of --format and --null-marker."""

Offset = Annotated[
    str | None,
    typer.Option("--offset", "-o", metavar="N", help="First offset: N, -N (N before the end), beginning or end."),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", "-s", metavar="TIME", help='Start at a time: "10 minutes ago", 1h, yesterday, an ISO time.'
    ),
]


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Topic to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", "-B", help="Print existing records, then new ones.")
    ] = False,
    offset: Offset = None,
    since: Since = None,
    partition: Annotated[
        list[int], typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Join this group and commit offsets.")
    ] = None,
    records: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Stop after N records.")] = None,
    until_end: Annotated[bool, typer.Option("--until-end", "-e", help="Stop at the current end of the topic.")] = False,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="TEXT", help="How a record is printed; see above.")
    ] = VALUE_ONLY,
    null_marker: Annotated[
        str, typer.Option("--null-marker", metavar="TEXT", help="The text that is printed for null.")
    ] = NULL,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    r"""Print new records of a topic, or all records from a given start, one per line.

    A format has the fields {topic} {partition} {offset} {timestamp}
    {timestamp_ms} {key} {value} {headers}, and the escapes \t and \n;
    %% prints a percent sign.

    In a pipe, bytes are printed unchanged; at a terminal, control characters
    are escaped. --json writes keys and values that are not UTF-8 as base64,
    in the fields key_base64 and value_base64; produce --json reads them.

    Records of open and aborted transactions are not printed, nor are the
    records after the start of an open transaction. With
    -X isolation.level=read_uncommitted, all records are printed.

    Without --group nothing is committed, and no other reader is affected.
    The command stops at Ctrl-C, or when the reader of its output exits.

    Examples:

    $ tidelog consume orders
    $ tidelog consume orders --from-beginning --until-end
    $ tidelog consume orders --since "10 minutes ago" -f "{key}\t{value}"
    $ tidelog consume orders --offset -5 --partition 0 -n 5
    $ tidelog consume orders --group audit --json | jq .value
    """
    start = start_from(from_beginning, offset, since)
    check_start(group, offset is not None or since is not None, bool(partition), from_beginning or not until_end)
    if json and format != VALUE_ONLY:
        raise UsageError("--json and --format cannot be used together")
    if json and null_marker != NULL:
        raise UsageError("--json prints null as in JSON: leave out --null-marker")
    render = to_json if json else format_renderer(format, null_marker)
    connection = connect(bootstrap, client)
    with connection.open() as cluster_client, record_interrupts() as interrupted:
        reader = TopicReader(connection, cluster_client, topic, Sink(render), records, until_end)
        with closing(reader):
            if group is None:
                assign(reader, start, partition)
            else:
                reader.join(group, "earliest" if from_beginning else "latest")
            reader.run(interrupted)


def check_start(group: str | None, has_explicit_start: bool, has_partitions: bool, reads_by_default: bool) -> None:
    """Raise UsageError if the start contradicts the other options. `reads_by_default` says whether the command reads
    any records without --offset and --since.
    """
    if group is not None:
        check_group(group, has_explicit_start or has_partitions)
    elif not has_explicit_start and not reads_by_default:
        raise UsageError(
            "--until-end without a start reads nothing, because reading begins at the end:"
            " add --from-beginning, --offset N or --since TIME"
        )


def format_renderer(format: str, null_marker: str) -> RenderRecord:
    """Parse the value of --format. Raises UsageError if it is malformed."""
    try:
        return parse_template(format, null_marker.encode())
    except TemplateError as error:
        raise UsageError(f"--format: {error}") from None


def check_group(group: str, has_position_options: bool) -> None:
    """Raise UsageError for an empty group name, or if other options also say where to read (`has_position_options`)."""
    if group == "":
        raise UsageError("--group takes the name of a group; the name cannot be empty")
    if has_position_options:
        raise UsageError("--group continues from the group's commits: leave out --offset, --since and --partition")


def start_from(from_beginning: bool, offset: str | None, since: str | None) -> Start:
    """Parse the options that say where to begin. Raises UsageError if they are malformed or contradict each other."""
    if from_beginning + (offset is not None) + (since is not None) > 1:
        raise UsageError("only one of --from-beginning, --offset and --since can say where to begin")
    number = None
    if offset in BEGINNING:
        from_beginning = True
    elif offset is not None and offset not in END:
        if not re.fullmatch(r"-?[0-9]{1,19}", offset):
            raise UsageError(f"--offset takes a number, {BEGINNING[0]} or {END[0]}, not {offset!r}")
        number = int(offset)
    since_ms = None
    if since is not None:
        try:
            since_ms = parse_time_ms(since, datetime.now())
        except NotATimeError as error:
            raise UsageError(f"--since: {error}") from None
    return Start(from_beginning, number, since_ms)


class Sink:
    """Writes records to stdout."""

    def __init__(self, render: RenderRecord) -> None:
        self.render = render
        self.tty = sys.stdout.isatty()
        self.poll = select.poll()
        self.poll.register(sys.stdout.fileno(), 0)  # no events requested: POLLERR and POLLHUP are always reported

    def check(self) -> None:
        """Raise BrokenPipeError if stdout is a pipe whose reader has exited, as `head` does.

        A write would also raise it, but there may be no further record to write.
        """
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in self.poll.poll(0)):
            raise BrokenPipeError

    def write(self, records: Sequence[IncomingRecord]) -> None:
        """Write one line per record and flush, so that the reader of a pipe sees records immediately.

        Raises BrokenPipeError.
        """
        lines = [self.render(record) for record in records]
        if self.tty:
            lines = [escape_for_terminal(line, sys.stdout.encoding or "utf-8") for line in lines]
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        sys.stdout.buffer.flush()


def escape_for_terminal(line: bytes, encoding: str = "utf-8") -> bytes:
    """Escape control characters, bytes that are not UTF-8, and characters that the terminal's encoding lacks.

    Tabs and line breaks are not changed.
    """
    return escape_unprintable(line.decode("utf-8", "surrogateescape"), encoding, "\t\n").encode(encoding)


def assign(reader: TopicReader, start: Start, wanted: Sequence[int]) -> None:
    """Make `reader` read the partitions `wanted`, without a group. If `wanted` is empty, all partitions are read.

    Raises CommandError if one of `wanted` is unknown or cannot be read. If `wanted` is empty, partitions that cannot be
    read are only reported; CommandError is raised if no partition can be read.
    """
    from tidelog.model.ids import TopicPartition

    name = reader.topic
    (topic,) = cluster.describe(reader.client, [name])
    count = len(topic.partitions)
    for index in wanted:
        if index >= count:
            existing = f"its partitions are 0 to {count - 1}" if count > 1 else "its only partition is 0"
            raise CommandError(f"topic {name} has no partition {index}: {existing}")
    parts = [part for part in topic.partitions if not wanted or part.partition in wanted]
    wanted_topics = [topic._replace(partitions=parts)]
    uncommitted_ends = {}
    if reader.until_end and reader.committed_only:
        uncommitted_ends = reader.end_offsets(part.partition for part in parts if part.leader >= 0)
    known = cluster.offsets(reader.client, wanted_topics, committed=reader.committed_only)
    offsets = {index: ends for (_, index), ends in known.offsets.items()}
    failures = [failure for place, failure in known.failures.items() if not wanted or place[1] in wanted]
    leaderless = [part.partition for part in parts if part.leader < 0]
    if leaderless and (wanted or not offsets):
        raise offline.offline_error({name: leaderless}, "No records can be read there.")
    if failures and (wanted or not offsets):
        raise failures[0]
    reader.report_offline(leaderless)
    reader.failures += [str(failure) for failure in failures]
    print_notes(reader.failures)
    reader.record_open_transactions(uncommitted_ends, {index: ends.latest for index, ends in offsets.items()})
    positions = start_offsets(reader.client, name, start, offsets)
    latest = max((ends.latest for ends in offsets.values()), default=0)
    if start.offset is not None and start.offset > latest:
        print(
            f"Topic {name} ends before offset {start.offset}; reading starts at the end of each partition.",
            file=sys.stderr,
        )
    elif start == Start(False, None, None):
        reader.hint += " (-B also prints existing records.)"
    if reader.until_end:
        reader.pending_ends = {index: ends.latest for index, ends in offsets.items() if positions[index] < ends.latest}
    reader.reader.positions = {TopicPartition(name, index): position for index, position in positions.items()}


def start_offsets(client: "Client", topic: str, start: Start, offsets: dict[int, cluster.Offsets]) -> dict[int, int]:
    """Return the first offset to read, by partition."""
    if start.since_ms is not None:
        timestamps = {(topic, index): start.since_ms for index in offsets}
        listed = cluster.offsets_or_raise(cluster.list_offsets(client, timestamps))
        # A negative offset means that all records are earlier than this timestamp. Reading then begins at the end.
        return {index: offset if offset >= 0 else offsets[index].latest for (_, index), offset in listed.items()}
    if start.from_beginning:
        return {index: ends.earliest for index, ends in offsets.items()}
    if start.offset is None:
        return {index: ends.latest for index, ends in offsets.items()}
    wanted = start.offset
    return {
        index: min(max(ends.latest + wanted if wanted < 0 else wanted, ends.earliest), ends.latest)
        for index, ends in offsets.items()
    }
