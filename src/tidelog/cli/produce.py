"""`tidelog produce`: the lines of stdin become records."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import cluster, offline
from tidelog.cli.connection import (
    LOCALHOST,
    PARTITION_MAX,
    Bootstrap,
    ClientSettings,
    ConnectionOptions,
    Outage,
    client_error,
    connect,
    kafka_error,
    key_value,
)
from tidelog.cli.direct import DirectWriter, needs_our_client
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.interrupts import Interrupts, interrupts_noted
from tidelog.cli.record_json import RecordJsonError, record_from_line
from tidelog.cli.records import Headers, OutgoingRecord
from tidelog.cli.tables import count, counted, size

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from tidelog.client.blocking import Client

app = typer.Typer(add_completion=False)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("all", "1", "0")
PROGRESS_EVERY_S = 0.5
STUCK_S = 5.0
"""After so long without an acknowledgement it is looked for the reason."""
OFFLINE_TIMEOUT_MS = 10_000
"""How long librdkafka tries to write a record while a partition is known to be offline; else it is five minutes."""
PARTING_S = 2.0
"""How long Ctrl-C waits for acknowledgements that are on their way."""


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
        int | None,
        typer.Option("--partition", "-p", min=0, max=PARTITION_MAX, metavar="N", help="Default: by the key's hash."),
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="This text as key or value means null.")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Lines are JSON, as from consume --json.")] = False,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="With --json: into the partitions that the lines name.")
    ] = False,
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

    With --json a record keeps key, value, headers and timestamp; nulls
    stay nulls. key_base64 and value_base64 take bytes that are no text,
    also in headers. It goes by its key, or with --keep-partitions to where
    it was. A line with a field that is unknown is refused.

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
    if keep_partitions and (not json_lines or partition is not None):
        raise UsageError("--keep-partitions takes the partitions of --json lines: give --json, and no --partition")
    headers = [
        (key, value.encode()) for key, value in (key_value(each, "--header", "source=import") for each in header)
    ]
    if json_lines:
        parse = json_parser(key, headers, keep_partitions)
    else:
        parse = text_parser(key_separator, key, headers, null_marker)
    connection = connect(bootstrap, client)
    settings = {"acks": acks, "compression.type": compression}
    with connection.open() as cluster_client, interrupts_noted(second_raises=False) as interrupts:
        writer = Writer(connection, cluster_client, topic, partition, settings, interrupts)
        writer.write_all(parse(number, line) for number, line in enumerate(lines(interrupts), 1))


def lines(interrupts: Interrupts) -> Iterator[bytes]:
    """The lines of stdin without their ends. Raises KeyboardInterrupt."""
    if sys.stdin.isatty():
        print("Type one record per line; Ctrl-D ends.", file=sys.stderr)
    read = sys.stdin.buffer.readline
    while line := interrupts.during(read):
        yield line.removesuffix(b"\n").removesuffix(b"\r")


Parser = Callable[[int, bytes], OutgoingRecord]


def text_parser(separator: str | None, key: str | None, headers: Headers, null_marker: str | None) -> Parser:
    """Makes a record of a line's number and bytes. The parser raises CommandError for a line without separator."""
    split = separator.encode() if separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    fixed_key = key.encode() if key is not None else None

    def parse(number: int, line: bytes) -> OutgoingRecord:
        found: bytes | None = fixed_key
        value: bytes | None = line
        if split is not None:
            found, middle, value = line.partition(split)
            if not middle:
                raise CommandError(f"line {number} has no separator {separator!r} between key and value")
        if null is not None:
            found = None if found == null else found
            value = None if value == null else value
        return OutgoingRecord(found, value, headers)

    if split == b"":
        raise UsageError("--key-separator must not be empty")
    return parse


def json_parser(key: str | None, headers: Headers, keep_partitions: bool) -> Parser:
    fixed_key = key.encode() if key is not None else None

    def parse(number: int, line: bytes) -> OutgoingRecord:
        try:
            record = record_from_line(line)
        except RecordJsonError as error:
            raise CommandError(f"line {number} is not a record: {error}") from None
        except json.JSONDecodeError as error:
            why = error.msg.removesuffix(" starting at")
            raise CommandError(f"line {number} is not JSON: {why}, at column {error.pos + 1}") from None
        if keep_partitions and record.partition is None:
            raise CommandError(f'line {number} has no "partition", which --keep-partitions needs')
        return record._replace(
            key=fixed_key if fixed_key is not None else record.key,
            headers=[*record.headers, *headers],
            partition=record.partition if keep_partitions else None,
        )

    return parse


class Writer:
    """Hands records to librdkafka, counts what the broker acknowledged, and shows both."""

    def __init__(
        self,
        connection: ConnectionOptions,
        client: "Client",
        topic: str,
        partition: int | None,
        settings: dict[str, str],
        interrupts: Interrupts,
    ) -> None:
        """Raises CommandError for a name that is none, and where no partition that can be meant takes records."""
        self.topic = topic
        self.partition = partition
        self.interrupts = interrupts
        self.read = 0
        self.written = 0
        self.written_bytes = 0
        self.failed: dict[str, int] = {}
        """Reasons, and how many records were not written for each."""
        self.keyless = False
        """Whether the broker refused records without keys, for that or another reason."""
        self.started = time.monotonic()
        self.shown = self.started
        self.moved = (self.started, 0)
        """When it was seen last that something had become of a record, and of how many by then."""
        self.live = sys.stderr.isatty() and not sys.stdin.isatty()
        self.outage = Outage()
        self.client = client
        self.direct = DirectWriter(client, topic, settings["acks"])
        self.offline: list[int] = []
        self.online: Iterator[int] | None = None
        """Partitions for records without a key, in turn; None to leave that to librdkafka, which knows no better."""
        self.look_at_partitions()
        self.producer: Producer = connection.producer(
            {
                "error_cb": self.outage,
                "enable.idempotence": settings["acks"] == "all",  # no gaps, no repeats where the broker can promise it
                "partitioner": "murmur2_random",  # as the Java client does, so that tools agree on a key's partition
                "message.max.bytes": 100 << 20,  # the broker decides what is too large
                "linger.ms": 5,
                **({"message.timeout.ms": OFFLINE_TIMEOUT_MS} if self.offline else {}),
                **settings,
            }
        )

    def look_at_partitions(self) -> None:
        """A topic that is not there yet is made by the first record, where the broker lets it."""
        found = cluster.describe(self.client, [self.topic], missing_too=True)
        gone = offline.offline_of(found)
        if not gone:
            return
        self.offline = gone[self.topic]
        online = [part.partition for part in found[0].partitions if part.partition not in self.offline]
        if not online or self.partition in self.offline:
            raise offline.refuse(gone, "Nobody can write there.")
        if self.partition is None:
            self.online = cycle(online)
            offline.warn(gone, "Records whose key belongs there cannot be written, all others are.")

    def write_all(self, records: Iterable[OutgoingRecord]) -> None:
        """Write them; print the summary. Raises CommandError when a record was not written, and KeyboardInterrupt."""
        try:
            for record in records:
                self.write(record)
                if self.live:
                    self.show_progress()
        except (KeyboardInterrupt, CommandError):
            self.finish()
            raise
        self.finish()
        if self.interrupts():
            raise KeyboardInterrupt
        if self.failed:
            reasons = "; ".join(f"{count(n)} not written: {why}" for why, n in self.failed.items())
            raise CommandError(reasons + (self.want_of_keys() if self.keyless else ""))

    def want_of_keys(self) -> str:
        """What to do where the broker's reason is that the topic is compacted, which its error does not say."""
        try:
            found = cluster.settings(self.client, self.topic)
        except CommandError:
            return ""
        policy = next((setting.value for setting in found if setting.name == "cleanup.policy"), "")
        if "compact" not in policy:
            return ""
        return (
            f"; topic {self.topic} is compacted (cleanup.policy={policy}), so each record needs a key:"
            ' --key-separator TEXT splits it off the line, --key TEXT gives one to all, a line of --json has "key"'
        )

    def write(self, record: OutgoingRecord) -> None:
        from confluent_kafka import KafkaException

        self.read += 1
        partition = record.partition if record.partition is not None else self.partition
        if partition is None:
            partition = next(self.online) if self.online is not None and record.key is None else -1
        if needs_our_client(record):
            self.write_directly(record, partition)
            return
        headers: list[tuple[str, str | bytes | None]] = [*record.headers]
        while True:
            try:
                self.producer.produce(
                    self.topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=self.delivered,
                    timestamp=record.timestamp_ms or 0,
                    headers=headers or None,
                )
            except BufferError:
                if self.interrupts():
                    raise KeyboardInterrupt from None
                self.producer.poll(0.1)  # librdkafka's queue is full: let acknowledgements make room
                self.tell_trouble()
                continue
            except KafkaException as error:
                raise kafka_error(error, f"record {self.read}") from error
            self.producer.poll(0)
            self.tell_trouble()
            return

    def write_directly(self, record: OutgoingRecord, partition: int) -> None:
        """Behind all that librdkafka has by now, so that a partition's records keep their order."""
        from tidelog.client.errors import ClientError
        from tidelog.wire.errors import ApiError, ErrorCode

        while self.producer.flush(0.2):
            if self.interrupts():
                raise KeyboardInterrupt
            self.tell_trouble()
        try:
            self.interrupts.during(lambda: self.direct.write(record, partition))
        except (ApiError, ClientError) as error:
            why = str(client_error(error, f"topic {self.topic}"))
            is_refused = isinstance(error, ApiError) and error.code == ErrorCode.INVALID_RECORD
            self.keyless = self.keyless or (record.key is None and is_refused)
            self.failed[why] = self.failed.get(why, 0) + 1
        else:
            self.written += 1
            self.written_bytes += len(record.value or b"") + len(record.key or b"")

    def delivered(self, error: "KafkaError | None", message: "Message") -> None:
        if error is None:
            self.written += 1
            self.written_bytes += len(message.value() or b"") + len(message.key() or b"")
            return
        from confluent_kafka import KafkaError

        if message.partition() in self.offline:
            why = offline.named({self.topic: [message.partition() or 0]}) + " is offline"
        else:
            why = str(kafka_error(error, f"topic {self.topic}"))
            self.keyless = self.keyless or (message.key() is None and error.code() == KafkaError.INVALID_RECORD)
        self.failed[why] = self.failed.get(why, 0) + 1

    def tell_trouble(self) -> None:
        """Say, once, why librdkafka goes on trying."""
        self.outage.tell()
        now, done = time.monotonic(), self.written + sum(self.failed.values())
        since, then = self.moved
        if done != then or done == self.read:
            self.moved = now, done
        elif now - since > STUCK_S and not self.outage.noted:
            self.moved = float("inf"), done  # it is said again only if something has moved meanwhile
            new = set(offline.look_for_offline(self.client, [self.topic]).get(self.topic, ())) - set(self.offline)
            self.offline = sorted({*self.offline, *new})
            if new:
                offline.warn({self.topic: sorted(new)}, "Records for it wait; Ctrl-C stops.")
            else:
                print(
                    f"No record was acknowledged for {STUCK_S:.0f} s; still trying, Ctrl-C stops. The broker's log may"
                    " say why.",
                    file=sys.stderr,
                )

    def finish(self) -> None:
        """Wait for the acknowledgements, not for long after Ctrl-C; print what was written."""
        deadline: float | None = None
        while self.producer.flush(0.2):
            if self.interrupts():
                # Who is told that it goes on trying, and stops it, has waited enough. So has who insists.
                patience = 0 if self.outage.noted or self.interrupts.count > 1 else PARTING_S
                deadline = min(deadline or float("inf"), time.monotonic() + patience)
                if time.monotonic() >= deadline:
                    break
            self.tell_trouble()
            if self.live:
                self.show_progress()
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr)
        unknown = len(self.producer)
        if unknown:
            self.producer.purge()
            print(f"{counted(unknown, 'record')} not acknowledged, and written or not.", file=sys.stderr)
        seconds = max(time.monotonic() - self.started, 1e-6)
        if (self.failed or unknown) and not self.written:
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
