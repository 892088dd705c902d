"""`tidelog consume`: the records of a topic on stdout."""

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
from tidelog.cli.interrupts import interrupts_noted
from tidelog.cli.reading import TopicReader
from tidelog.cli.records import IncomingRecord, RenderRecord, TemplateError, template, to_json
from tidelog.cli.tables import print_notes
from tidelog.cli.when import NotATimeError, parse_time_ms

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

app = typer.Typer(add_completion=False)

BEGINNING, END = ("beginning", "earliest"), ("end", "latest")
"""What --offset takes instead of a number, by the names that Kafka's tools and clients have for it."""


class Where(NamedTuple):
    """Where reading begins; at most one of these is set. None of them: with the next record that is written."""

    from_beginning: bool
    offset: int | None
    """Negative: so many records before the end of each partition."""
    since_ms: int | None


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="What to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", "-B", help="Everything that is there, then on.")
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", metavar="N", help="From here on; -N: the last N; or beginning, end."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", "-s", metavar="TIME", help='"10 minutes ago", 1h, yesterday, an ISO time.')
    ] = None,
    partition: Annotated[
        list[int], typer.Option("--partition", "-p", min=0, metavar="N", help="Only this one; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Join this group and commit.")
    ] = None,
    records: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Stop after N records.")] = None,
    until_end: Annotated[bool, typer.Option("--until-end", "-e", help="Stop at the end as it is now.")] = False,
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="TEXT", help="How to print a record, see above.")
    ] = "{value}",
    null_marker: Annotated[str, typer.Option("--null-marker", metavar="TEXT", help="Printed for a null.")] = "null",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    r"""Print the records of a topic, one per line: new ones, or from where you say.

    A format has the fields {topic} {partition} {offset} {timestamp}
    {timestamp_ms} {key} {value} {headers}, and \t and \n and %%.

    Bytes go to a pipe as they are; a terminal gets control characters
    escaped. In JSON, what is not UTF-8 has base64: key_base64, value_base64,
    also in headers; produce --json takes it back.

    Without --group nothing is committed, and no other reader is affected.
    Ctrl-C stops, and so does the end of what reads the output.

    Examples:

    $ tidelog consume orders
    $ tidelog consume orders --from-beginning --until-end
    $ tidelog consume orders --since "10 minutes ago" -f "{key}\t{value}"
    $ tidelog consume orders --offset -5 --partition 0 -n 5
    $ tidelog consume orders --group audit --json | jq .value
    """
    where = beginning(from_beginning, offset, since)
    explicit = offset is not None or since is not None
    if group is not None:
        check_group(group, explicit or bool(partition))
    elif until_end and not explicit and not from_beginning:
        raise UsageError(
            "--until-end without a beginning reads nothing, since reading begins at the end:"
            " add --from-beginning, --offset N or --since TIME"
        )
    if json and format != "{value}":
        raise UsageError("--json and --format do not go together")
    render = to_json if json else template_of(format, null_marker)
    connection = connect(bootstrap, client)
    with connection.open() as cluster_client, interrupts_noted() as interrupted:
        reader = TopicReader(connection, cluster_client, topic, Sink(render), records, until_end)
        with closing(reader):
            if group is None:
                assign(reader, where, partition)
            else:
                reader.join(group, "earliest" if from_beginning else "latest")
            reader.run(interrupted)


def template_of(format: str, null_marker: str) -> RenderRecord:
    """Raises UsageError."""
    try:
        return template(format, null_marker.encode())
    except TemplateError as error:
        raise UsageError(f"--format: {error}") from None


def check_group(group: str, elsewhere: bool) -> None:
    """`elsewhere`: whether it is said where to read, too. Raises UsageError."""
    if group == "":
        raise UsageError("--group takes the name of a group, which is not empty")
    if elsewhere:
        raise UsageError("--group continues from the group's commits: leave out --offset, --since and --partition")


def beginning(from_beginning: bool, offset: str | None, since: str | None) -> Where:
    """Raises UsageError for options that contradict each other or cannot be read."""
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
    return Where(from_beginning, number, since_ms)


class Sink:
    """Writes records to stdout."""

    def __init__(self, render: RenderRecord) -> None:
        self.render = render
        self.tty = sys.stdout.isatty()
        self.reader = select.poll()
        self.reader.register(sys.stdout.fileno(), 0)  # no event is asked for: the end of a pipe is always told

    def check(self) -> None:
        """Raise BrokenPipeError when whoever reads a pipe has gone, as `head` does: no record may come to tell it."""
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in self.reader.poll(0)):
            raise BrokenPipeError

    def write(self, records: Sequence[IncomingRecord]) -> None:
        """One line each, flushed: whoever reads a pipe sees a record when it comes. Raises BrokenPipeError."""
        lines = [self.render(record) for record in records]
        if self.tty:
            lines = [visible(line, sys.stdout.encoding or "utf-8") for line in lines]
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        sys.stdout.buffer.flush()


def visible(line: bytes, encoding: str = "utf-8") -> bytes:
    """For a terminal: what would steer it, what is not UTF-8 and what it has no character for are escaped. Tabs and
    line breaks stay.
    """
    text = line.decode(errors="backslashreplace")
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\t\n" else c.encode("unicode_escape").decode() for c in text)
    return text.encode(encoding, "backslashreplace")


def assign(reader: TopicReader, where: Where, wanted: Sequence[int]) -> None:
    """Read these partitions (all when none is named), outside any group. Raises CommandError for an unknown one."""
    from tidelog.model.ids import TopicPartition

    name = reader.topic
    (topic,) = cluster.describe(reader.client, [name])
    count = len(topic.partitions)
    for index in wanted:
        if index >= count:
            raise CommandError(f"topic {name} has no partition {index}: it has 0 to {count - 1}")
    parts = [part for part in topic.partitions if not wanted or part.partition in wanted]
    asked = [topic._replace(partitions=parts)]
    known = cluster.offsets(reader.client, asked, committed=reader.committed_only)
    offsets = {index: found for (_, index), found in known.offsets.items()}
    refused = [failure for place, failure in known.failures.items() if not wanted or place[1] in wanted]
    gone = [part.partition for part in parts if part.leader < 0]
    if gone and (wanted or not offsets):
        raise offline.refuse({name: gone}, "Nobody can read there.")
    if refused and (wanted or not offsets):
        raise refused[0]
    reader.note_offline(gone)
    reader.failures += [str(failure) for failure in refused]
    print_notes(reader.failures)
    starts = starting_offsets(reader.client, name, where, offsets)
    latest = max((found.latest for found in offsets.values()), default=0)
    if where.offset is not None and where.offset > latest:
        print(f"{name} ends at offset {latest}: reading from there.", file=sys.stderr)
    elif where == Where(False, None, None):
        reader.hint += " (-B shows those that are there.)"
    if reader.until_end:
        reader.pending_ends = {index: found.latest for index, found in offsets.items() if starts[index] < found.latest}
    reader.reader.positions = {TopicPartition(name, index): start for index, start in starts.items()}


def starting_offsets(client: "Client", topic: str, where: Where, offsets: dict[int, cluster.Offsets]) -> dict[int, int]:
    """The first offset to read of each partition."""
    if where.since_ms is not None:
        asked = {(topic, index): where.since_ms for index in offsets}
        found = cluster.all_or_nothing(cluster.list_offsets(client, asked))
        # A negative offset says that no record is so young: begin at the end.
        return {index: offset if offset >= 0 else offsets[index].latest for (_, index), offset in found.items()}
    if where.from_beginning:
        return {index: known.earliest for index, known in offsets.items()}
    if where.offset is None:
        return {index: known.latest for index, known in offsets.items()}
    wanted = where.offset
    return {
        index: min(max(known.latest + wanted if wanted < 0 else wanted, known.earliest), known.latest)
        for index, known in offsets.items()
    }
