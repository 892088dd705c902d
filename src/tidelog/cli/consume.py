"""`tidelog consume`: the records of a topic on stdout."""

import re
import select
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidelog.cli import cluster, offline
from tidelog.cli.connection import (
    ANSWER_S,
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    ConnectionOptions,
    Outage,
    connect,
    kafka_error,
)
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.interrupts import interrupts_noted
from tidelog.cli.records import RenderRecord, TemplateError, template, to_json
from tidelog.cli.when import NotATimeError, parse_time_ms

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

app = typer.Typer(add_completion=False)

BATCH_RECORDS = 2000
WAIT_S = 0.1
QUIET_S = 2.0
LOOK_S = 5.0
"""Silence after which it is looked whether partitions have gone offline."""
JOINING_S = 0.5
"""After so long a terminal is told what is being waited for: records, or partitions of a group."""
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
    try:
        # A terminal gets the line with control characters escaped; whoever reads a pipe gets the bytes as they are.
        render = to_json if json else template(format, null_marker.encode())
    except TemplateError as error:
        raise UsageError(f"--format: {error}") from None
    reader = Reader(connect(bootstrap, client), topic, Sink(render), records, until_end)
    with interrupts_noted() as interrupted:
        try:
            if group is None:
                reader.assign(where, partition)
            else:
                reader.join(group, from_beginning)
            reader.run(interrupted)
        finally:
            reader.close()


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

    def write(self, messages: Sequence["Message"]) -> None:
        """One line each, flushed: whoever reads a pipe sees a record when it comes. Raises BrokenPipeError."""
        lines = [self.render(message) for message in messages]
        if self.tty:
            lines = [visible(line) for line in lines]
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        sys.stdout.buffer.flush()


def visible(line: bytes) -> bytes:
    """For a terminal: what would steer it, and what is not UTF-8, escaped. Tabs and line breaks stay."""
    text = line.decode(errors="backslashreplace")
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\t\n" else c.encode("unicode_escape").decode() for c in text)
    return text.encode()


class Reader:
    """Reads until Ctrl-C, the limit of records, or the ends that were there when it began."""

    def __init__(
        self, connection: ConnectionOptions, topic: str, sink: Sink, records_max: int | None, until_end: bool
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.sink = sink
        self.left = records_max
        self.until_end = until_end
        self.open: dict[int, int] = {}
        """Partitions whose end (exclusive) has not been reached yet. Only with `until_end`."""
        self.assigned = False
        self.commits = False
        self.consumer: Consumer | None = None
        self.outage = Outage()
        self.admin = connection.admin()
        self.missing: dict[str, list[int]] = {}
        """Partitions that should be read, and are offline."""
        self.looked_s = 0.0
        self.joining: str | None = None
        """The group, until it has given us partitions."""
        self.told_joining = not sys.stderr.isatty()
        self.hint = f"Waiting for new records in {topic}; Ctrl-C stops."
        self.hinted = not (sys.stderr.isatty() and sys.stdout.isatty())

    def assign(self, where: Where, wanted: Sequence[int]) -> None:
        """Read these partitions (all when none is named), outside any group. Raises CommandError for an unknown one."""
        from confluent_kafka import TopicPartition

        (topic,) = cluster.describe(self.admin, [self.topic])
        count = len(topic.partitions)
        for index in wanted:
            if index >= count:
                raise CommandError(f"topic {self.topic} has no partition {index}: it has 0 to {count - 1}")
        parts = [part for part in topic.partitions if not wanted or part.partition in wanted]
        committed = self.connection.settings.get("isolation.level", "read_committed") == "read_committed"
        offsets = cluster.offsets(self.admin, [topic._replace(partitions=parts)], committed=committed)
        gone = [part.partition for part in parts if (self.topic, part.partition) not in offsets]
        if gone and (wanted or not offsets):
            raise offline.refuse({self.topic: gone}, "Nobody can read there.")
        self.note_offline(gone)
        self.consumer = self.connection.consumer(self.settings("tidelog-cli", "latest"))
        starts = self.starts(where, {index: known for (_, index), known in offsets.items()})
        latest = max((known.latest for known in offsets.values()), default=0)
        if where.offset is not None and where.offset > latest:
            print(f"{self.topic} ends at offset {latest}: reading from there.", file=sys.stderr)
        elif where == Where(False, None, None):
            self.hint += " (-B shows those that are there.)"
        if self.until_end:
            ends = {index: known.latest for (_, index), known in offsets.items()}
            self.open = {index: end for index, end in ends.items() if starts[index] < end}
        self.assigned = True
        self.consumer.assign([TopicPartition(self.topic, index, start) for index, start in starts.items()])

    def starts(self, where: Where, offsets: dict[int, cluster.Offsets]) -> dict[int, int]:
        """The first offset to read of each partition."""
        from confluent_kafka import TopicPartition

        if where.since_ms is not None:
            assert self.consumer is not None
            asked = [TopicPartition(self.topic, index, where.since_ms) for index in offsets]
            found = self.consumer.offsets_for_times(asked, timeout=ANSWER_S)
            # A negative offset says that no record is so young: begin at the end.
            return {p.partition: p.offset if p.offset >= 0 else offsets[p.partition].latest for p in found}
        if where.from_beginning:
            return {index: known.earliest for index, known in offsets.items()}
        if where.offset is None:
            return {index: known.latest for index, known in offsets.items()}
        wanted = where.offset
        return {
            index: min(max(known.latest + wanted if wanted < 0 else wanted, known.earliest), known.latest)
            for index, known in offsets.items()
        }

    def join(self, group: str, from_beginning: bool) -> None:
        """Read as a member of `group`; where it has no commit yet, from the beginning or from now on."""
        gone = offline.offline_of(cluster.describe(self.admin, [self.topic]))
        if lost := offline.coordinator_is_offline(self.admin, group):
            raise lost
        self.note_offline(gone.get(self.topic, []))
        self.commits = True
        self.joining = group
        self.consumer = self.connection.consumer(self.settings(group, "earliest" if from_beginning else "latest"))
        self.consumer.subscribe([self.topic], on_assign=self.on_assign, on_revoke=self.on_revoke)

    def settings(self, group: str, reset: str) -> dict[str, Any]:
        return {
            "group.id": group,
            "error_cb": self.outage,
            "auto.offset.reset": reset,
            "enable.auto.commit": self.commits,
            "enable.auto.offset.store": False,  # what is committed has been printed
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        }

    def on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self.assigned = True
        if self.joining is not None and not partitions:
            self.hint = f"Group {self.joining} has a member for every partition; waiting for one to leave."
        self.joining = None
        if self.until_end:
            for part in partitions:
                if part.partition in self.missing.get(self.topic, ()):
                    continue
                _, end = consumer.get_watermark_offsets(part, timeout=ANSWER_S)
                self.open[part.partition] = end

    def on_revoke(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        for part in partitions:
            self.open.pop(part.partition, None)

    def note_offline(self, gone: Sequence[int]) -> None:
        """Say once of each partition that it cannot be read, and do not wait for its end."""
        known = self.missing.setdefault(self.topic, []) if gone else []
        new = [index for index in gone if index not in known]
        known += new
        for index in new:
            self.open.pop(index, None)
        offline.warn({self.topic: new} if new else {}, "What is there is not read, what the others have is.")

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Print records until there is a reason to stop. Raises KeyboardInterrupt, and CommandError when the end that
        was asked for could not be reached everywhere.
        """
        assert self.consumer is not None
        began = time.monotonic()
        while not self.finished():
            if interrupted():
                raise KeyboardInterrupt
            self.step(self.consumer, time.monotonic() - began)
        if self.until_end and self.missing and self.left != 0:
            raise CommandError(f"{offline.named(self.missing)} could not be read to the end")

    def step(self, consumer: "Consumer", seconds: float) -> None:
        """Print what has come, `seconds` after the beginning, or say why nothing has."""
        batch = consumer.consume(min(BATCH_RECORDS, self.left or BATCH_RECORDS), WAIT_S)
        self.outage.tell()
        messages = [message for message in batch if message.error() is None]
        if messages:
            self.take(messages)
            self.hinted = True
            self.looked_s = seconds
        else:
            self.sink.check()
            self.say_what_it_waits_for(seconds)
            if self.open and seconds - self.looked_s > LOOK_S and not self.outage.noted:
                self.looked_s = seconds
                gone = offline.look_for_offline(self.admin, [self.topic]).get(self.topic, [])
                self.note_offline([index for index in gone if index in self.open])
        for message in batch:
            if message.error() is not None:
                self.note(message)

    def say_what_it_waits_for(self, seconds: float) -> None:
        """Each reason once, and to a terminal only; records that come make it plain that all is well."""
        if self.joining is not None:
            if not self.told_joining and seconds > JOINING_S:
                self.told_joining = True
                print(f"Joining {self.joining}: a new group waits a few seconds for more members.", file=sys.stderr)
        elif not self.hinted and seconds > QUIET_S:
            self.hinted = True
            print(self.hint, file=sys.stderr)

    def finished(self) -> bool:
        return self.left == 0 or (self.until_end and self.assigned and not self.open)

    def note(self, message: "Message") -> None:
        """An event that stands among the records: the end of a partition, or an error. Raises CommandError for that."""
        from confluent_kafka import KafkaError

        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            # Markers of transactions take offsets without being records: then only this tells of the end.
            partition, offset = message.partition(), message.offset()
            if partition in self.open and offset is not None and offset >= self.open[partition]:
                del self.open[partition]
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise kafka_error(error, f"topic {self.topic}")

    def take(self, messages: "list[Message]") -> None:
        """Print, then remember how far."""
        assert self.consumer is not None
        if self.until_end:
            # What was written after we began is beyond the end that was asked for.
            messages = [m for m in messages if (m.offset() or 0) < self.open.get(m.partition() or 0, 0)]
        if not messages:
            return
        self.sink.write(messages)
        last: dict[int, Message] = {message.partition() or 0: message for message in messages}
        for partition, message in last.items():
            if self.commits:
                self.consumer.store_offsets(message)
            if self.until_end and (message.offset() or 0) + 1 >= self.open.get(partition, 1 << 63):
                del self.open[partition]
        if self.left is not None:
            self.left -= len(messages)

    def close(self) -> None:
        """Leave the group, committing what was printed."""
        if self.consumer is not None:
            self.consumer.close()
