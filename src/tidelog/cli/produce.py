"""`tidelog produce`: the lines of stdin become records."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidelog.cli.connection import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Connection,
    Outage,
    connect,
    kafka_error,
    key_value,
)
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.records import Headers, RecordJsonError, record_from_json
from tidelog.cli.tables import count, counted, size

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

app = typer.Typer(add_completion=False)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("all", "1", "0")
PROGRESS_EVERY_S = 0.5


class Line(NamedTuple):
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: Headers


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Where to write.")],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Separates key and value in a line.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="The key of every record.")] = None,
    header: Annotated[
        list[str], typer.Option("--header", "-H", metavar="KEY=VALUE", show_default=False, help="Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Default: by the key's hash.")
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="This text as key or value means null.")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Lines are JSON, as from consume --json.")] = False,
    acks: Annotated[
        str, typer.Option("--acks", "-a", metavar="|".join(ACKS), help="Which replicas must have a record.")
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    r"""Write the lines of stdin to a topic, one record per line.

    Records are sent as you type; a summary is printed to stderr at the
    end. A key goes to the partition that Kafka's Java client would choose.

    Examples:

    $ echo hello | tidelog produce greetings
    $ printf '42:paid\n43:sent\n' | tidelog produce orders -K :
    $ tidelog produce logs --compression zstd < access.log
    $ tidelog consume orders --from-beginning --until-end --json \
        | tidelog produce copy --json
    """
    if acks not in ACKS:
        raise UsageError(f"--acks is one of {', '.join(ACKS)}, not {acks!r}")
    if compression not in CODECS:
        raise UsageError(f"--compression is one of {', '.join(CODECS)}, not {compression!r}")
    if key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator do not go together: every record has one key")
    if json_lines and (key_separator is not None or null_marker is not None):
        raise UsageError("--json lines have their own keys and nulls: leave out --key-separator and --null-marker")
    headers: Headers = [*(key_value(text, "--header", "source=import") for text in header)]
    if json_lines:
        parse = json_parser(key, headers)
    else:
        parse = text_parser(key_separator, key, headers, null_marker)
    connection = connect(bootstrap, client)
    Writer(connection, topic, -1 if partition is None else partition, acks, compression).write_all(
        parse(number, line) for number, line in enumerate(lines(), 1)
    )


def lines() -> Iterator[bytes]:
    """The lines of stdin without their ends."""
    if sys.stdin.isatty():
        print("Type one record per line; Ctrl-D ends.", file=sys.stderr)
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


Parser = Callable[[int, bytes], Line]


def text_parser(separator: str | None, key: str | None, headers: Headers, null_marker: str | None) -> Parser:
    """Makes a record of a line's number and bytes. The parser raises CommandError for a line without separator."""
    split = separator.encode() if separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    fixed_key = key.encode() if key is not None else None

    def parse(number: int, line: bytes) -> Line:
        found: bytes | None = fixed_key
        value: bytes | None = line
        if split is not None:
            found, middle, value = line.partition(split)
            if not middle:
                raise CommandError(f"line {number} has no separator {separator!r} between key and value")
        if null is not None:
            found = None if found == null else found
            value = None if value == null else value
        return Line(found, value, headers)

    if split == b"":
        raise UsageError("--key-separator must not be empty")
    return parse


def json_parser(key: str | None, headers: Headers) -> Parser:
    fixed_key = key.encode() if key is not None else None

    def parse(number: int, line: bytes) -> Line:
        try:
            found, value, own_headers = record_from_json(json.loads(line))
        except (ValueError, RecordJsonError) as error:
            raise CommandError(f"line {number} is not a JSON record: {error}") from None
        return Line(fixed_key if fixed_key is not None else found, value, [*own_headers, *headers])

    return parse


class Writer:
    """Hands records to librdkafka, counts what the broker acknowledged, and shows both."""

    def __init__(self, connection: Connection, topic: str, partition: int, acks: str, compression: str) -> None:
        self.topic = topic
        self.partition = partition
        self.read = 0
        self.written = 0
        self.written_bytes = 0
        self.failed: dict[str, int] = {}
        self.started = time.monotonic()
        self.shown = self.started
        self.live = sys.stderr.isatty() and not sys.stdin.isatty()
        self.outage = Outage()
        self.producer: Producer = connection.producer(
            {
                "error_cb": self.outage,
                "acks": acks,
                "enable.idempotence": acks == "all",  # no gaps and no repeats where the broker can promise it
                "compression.type": compression,
                "partitioner": "murmur2_random",  # as the Java client does, so that tools agree on a key's partition
                "message.max.bytes": 100 << 20,  # the broker decides what is too large
                "linger.ms": 5,
            }
        )

    def write_all(self, records: Iterable[Line]) -> None:
        """Write them; print the summary. Raises CommandError when a record was not written."""
        try:
            for record in records:
                self.write(record)
                if self.live:
                    self.show_progress()
            self.finish()
        except KeyboardInterrupt:
            self.finish()
            raise
        except CommandError:
            self.finish()
            raise
        if self.failed:
            raise CommandError("; ".join(f"{count(n)} not written: {why}" for why, n in self.failed.items()))

    def write(self, record: Line) -> None:
        from confluent_kafka import KafkaException

        self.read += 1
        while True:
            try:
                self.producer.produce(
                    self.topic,
                    record.value,
                    record.key,
                    self.partition,
                    on_delivery=self.delivered,
                    headers=record.headers or None,
                )
            except BufferError:
                self.producer.poll(0.1)  # librdkafka's queue is full: let acknowledgements make room
                continue
            except KafkaException as error:
                raise kafka_error(error, f"record {self.read}") from error
            self.producer.poll(0)
            self.outage.tell()
            return

    def delivered(self, error: "KafkaError | None", message: "Message") -> None:
        if error is None:
            self.written += 1
            self.written_bytes += len(message.value() or b"") + len(message.key() or b"")
            return
        why = str(kafka_error(error, f"topic {self.topic}"))
        self.failed[why] = self.failed.get(why, 0) + 1

    def finish(self) -> None:
        while self.producer.flush(0.2):
            self.outage.tell()
            if self.live:
                self.show_progress()
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr)
        seconds = max(time.monotonic() - self.started, 1e-6)
        if self.failed and not self.written:
            return
        rate = f" in {seconds:.1f} s ({count(round(self.written / seconds))}/s)" if self.written >= 1000 else ""
        print(f"{counted(self.written, 'record')}, {size(self.written_bytes)}, to {self.topic}{rate}", file=sys.stderr)

    def show_progress(self) -> None:
        now = time.monotonic()
        if now - self.shown < PROGRESS_EVERY_S:
            return
        self.shown = now
        rate = self.written / (now - self.started)
        waiting = self.read - self.written
        line = f"{counted(self.written, 'record')} written, {count(waiting)} waiting, {count(round(rate))}/s"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
