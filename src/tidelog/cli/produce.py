"""`tidelog produce`: write the lines of stdin to a topic as records."""

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
from tidelog.cli.interrupts import Interrupts, record_interrupts
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
"""After this many seconds without an acknowledgement, the command looks for the reason and prints a message."""
OFFLINE_TIMEOUT_MS = 10_000
"""Time in milliseconds for which librdkafka tries to write a record if a partition was offline at the start.
librdkafka's default is five minutes."""
INTERRUPT_GRACE_S = 2.0
"""Time in seconds for which the command waits after Ctrl-C for acknowledgements of records that were sent."""


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Topic to write to.")],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Text between key and value in a line.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="The key of every record.")] = None,
    header: Annotated[
        list[str],
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", show_default=False, help="A header of every record; repeatable."
        ),
    ] = [],  # noqa: B006 - typer copies it
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, max=PARTITION_MAX, metavar="N", help="Partition; default: by the key's hash."
        ),
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="This text as a key or value means null.")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Read lines as consume --json prints them.")] = False,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="With --json: write to the partitions that the lines name.")
    ] = False,
    acks: Annotated[
        str, typer.Option("--acks", "-a", metavar="|".join(ACKS), help="Replicas that must acknowledge a record.")
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    r"""Write the lines of stdin to a topic, one record per line.

    Records are sent as you type. A summary is printed to stderr at the end.
    A record with a key is written to the partition that Kafka's Java client
    would choose.

    With --json, a line has the key, value, headers and timestamp of a
    record; each of them may be null. The fields key_base64 and value_base64
    are for bytes that are not UTF-8, also in headers. The key decides the
    partition if --partition is not given. With --keep-partitions, the line's
    field "partition" decides it. A line with unknown fields is an error.

    Examples:

    $ echo hello | tidelog produce greetings
    $ printf '42:paid\n43:sent\n' | tidelog produce orders -K :
    $ tidelog produce logs --compression zstd < access.log
    $ tidelog consume orders --from-beginning --until-end --json \
        | tidelog produce copy --json
    """
    if acks not in ACKS:
        raise UsageError(f"--acks must be one of {', '.join(ACKS)}, not {acks!r}")
    if compression not in CODECS:
        raise UsageError(f"--compression must be one of {', '.join(CODECS)}, not {compression!r}")
    check_line_options(key, key_separator, null_marker, json_lines, keep_partitions, partition)
    pairs = (key_value(each, "--header", "source=import") for each in header)
    headers = [(name, text.encode()) for name, text in pairs]
    if json_lines:
        parse = json_parser(key, headers, keep_partitions)
    else:
        parse = text_parser(key_separator, key, headers, null_marker)
    connection = connect(bootstrap, client)
    settings = {"acks": acks, "compression.type": compression}
    with connection.open() as cluster_client, record_interrupts(second_raises=False) as interrupts:
        writer = Writer(connection, cluster_client, topic, partition, settings, interrupts)
        writer.write_all(parse(number, line) for number, line in enumerate(stdin_lines(interrupts), 1))


def check_line_options(
    key: str | None,
    key_separator: str | None,
    null_marker: str | None,
    json_lines: bool,
    keep_partitions: bool,
    partition: int | None,
) -> None:
    """Raise UsageError if these options cannot be used together."""
    if key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator cannot be used together, because a record has only one key")
    if json_lines and (key_separator is not None or null_marker is not None):
        raise UsageError("--json lines have their own keys and nulls: leave out --key-separator and --null-marker")
    if keep_partitions and (not json_lines or partition is not None):
        raise UsageError("--keep-partitions uses the partitions in --json lines: add --json, leave out --partition")


def stdin_lines(interrupts: Interrupts) -> Iterator[bytes]:
    """Yield the lines of stdin without their line ends. Raises KeyboardInterrupt at a signal."""
    if sys.stdin.isatty():
        print("Type one record per line; Ctrl-D ends.", file=sys.stderr)
    read = sys.stdin.buffer.readline
    while line := interrupts.call_interruptibly(read):
        yield line.removesuffix(b"\n").removesuffix(b"\r")


Parser = Callable[[int, bytes], OutgoingRecord]


def text_parser(separator: str | None, key: str | None, headers: Headers, null_marker: str | None) -> Parser:
    """Return a function that makes a record from a line's number and bytes.

    The function raises CommandError for a line without the separator. `text_parser` itself raises UsageError if the
    separator is empty.
    """
    split = separator.encode() if separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    fixed_key = key.encode() if key is not None else None

    def parse(number: int, line: bytes) -> OutgoingRecord:
        record_key: bytes | None = fixed_key
        value: bytes | None = line
        if split is not None:
            record_key, middle, value = line.partition(split)
            if not middle:
                raise CommandError(f"line {number} has no separator {separator!r} between key and value")
        if null is not None:
            record_key = None if record_key == null else record_key
            value = None if value == null else value
        return OutgoingRecord(record_key, value, headers)

    if split == b"":
        raise UsageError("--key-separator must not be empty")
    return parse


def json_parser(key: str | None, headers: Headers, keep_partitions: bool) -> Parser:
    """Return a function that makes a record from a line's number and its JSON.

    The function raises CommandError for a line that is not a record and, with `keep_partitions`, for a line without a
    partition.
    """
    fixed_key = key.encode() if key is not None else None

    def parse(number: int, line: bytes) -> OutgoingRecord:
        try:
            record = record_from_line(line)
        except RecordJsonError as error:
            raise CommandError(f"line {number} is not a record: {error}") from None
        except json.JSONDecodeError as error:
            reason = error.msg.removesuffix(" starting at")
            raise CommandError(f"line {number} is not JSON: {reason}, at column {error.pos + 1}") from None
        if keep_partitions and record.partition is None:
            raise CommandError(f'line {number} has no "partition", which --keep-partitions needs')
        return record._replace(
            key=fixed_key if fixed_key is not None else record.key,
            headers=[*record.headers, *headers],
            partition=record.partition if keep_partitions else None,
        )

    return parse


class Writer:
    """Passes records to librdkafka, counts the acknowledged records, and shows the progress."""

    def __init__(
        self,
        connection: ConnectionOptions,
        client: "Client",
        topic: str,
        partition: int | None,
        settings: dict[str, str],
        interrupts: Interrupts,
    ) -> None:
        """Raises CommandError for an illegal topic name, and if every partition that could get records is offline."""
        self.topic = topic
        self.partition = partition
        self.interrupts = interrupts
        self.read_records = 0
        self.written_records = 0
        self.written_bytes = 0
        self.failed: dict[str, int] = {}
        """Number of records that were not written, by the reason."""
        self.keyless_rejected = False
        """Whether the broker rejected a record without a key as invalid. The missing key may or may not be the
        reason."""
        self.started_s = time.monotonic()
        self.progress_shown_s = self.started_s
        self.last_change = (self.started_s, 0)
        """The last time at which a record was finished (written or failed) or no record was waiting, and the number of
        finished records at this time. After the message that no record was acknowledged for STUCK_S, the time is
        infinity."""
        self.shows_progress = sys.stderr.isatty() and not sys.stdin.isatty()
        self.outage = Outage()
        self.client = client
        self.direct_writer = DirectWriter(client, topic, settings["acks"])
        self.offline_partitions: list[int] = []
        self.online_partitions: Iterator[int] | None = None
        """Yields the online partitions one after another, for records without a key. Used if a partition is offline
        and `partition` is None, because librdkafka also chooses offline partitions. Otherwise None."""
        self.find_offline_partitions()
        self.producer: Producer = connection.producer(
            {
                "error_cb": self.outage,
                "enable.idempotence": settings["acks"] == "all",  # prevents gaps and repeats, if the broker supports it
                "partitioner": "murmur2_random",  # the Java client's, so that all tools agree on a key's partition
                "message.max.bytes": 100 << 20,  # high, so that the broker decides what is too large
                "linger.ms": 5,
                **({"message.timeout.ms": OFFLINE_TIMEOUT_MS} if self.offline_partitions else {}),
                **settings,
            }
        )

    def find_offline_partitions(self) -> None:
        """Find offline partitions, warn about them, and exclude them for records without a key.

        A topic that does not exist is not an error, because brokers may create it when the first record is written.
        Raises the errors of `__init__`.
        """
        described = cluster.describe(self.client, [self.topic], skip_missing=True)
        offline_by_topic = offline.offline_partitions_of(described)
        if not offline_by_topic:
            return
        self.offline_partitions = offline_by_topic[self.topic]
        online = [part.partition for part in described[0].partitions if part.partition not in self.offline_partitions]
        if not online or self.partition in self.offline_partitions:
            raise offline.offline_error(offline_by_topic, "No records can be written there.")
        if self.partition is None:
            self.online_partitions = cycle(online)
            offline.warn(
                offline_by_topic,
                "Records whose key or line selects an offline partition cannot be written; all other records can.",
            )

    def write_all(self, records: Iterable[OutgoingRecord]) -> None:
        """Write the records and print the summary.

        Raises CommandError when a record was not written, and KeyboardInterrupt at a signal.
        """
        try:
            for record in records:
                self.write(record)
                if self.shows_progress:
                    self.show_progress()
        except (KeyboardInterrupt, CommandError):
            self.finish()
            raise
        self.finish()
        if self.interrupts():
            raise KeyboardInterrupt
        if self.failed:
            reasons = "; ".join(f"{count(number)} not written: {reason}" for reason, number in self.failed.items())
            raise CommandError(reasons + (self.missing_key_advice() if self.keyless_rejected else ""))

    def missing_key_advice(self) -> str:
        """Return advice if the topic is compacted, because the broker's error for a missing key does not mention
        compaction.

        Return "" for any other topic, and if the topic's settings cannot be read.
        """
        try:
            topic_settings = cluster.settings(self.client, self.topic)
        except CommandError:
            return ""
        policy = next((setting.value for setting in topic_settings if setting.name == "cleanup.policy"), "")
        if "compact" not in policy:
            return ""
        return (
            f"; topic {self.topic} is compacted (cleanup.policy={policy}), so each record needs a key:"
            " use --key-separator TEXT to read the key from each line, --key TEXT for the same key in all records,"
            ' or "key" in the lines of --json'
        )

    def write(self, record: OutgoingRecord) -> None:
        from confluent_kafka import KafkaException

        self.read_records += 1
        partition = record.partition if record.partition is not None else self.partition
        if partition is None:
            partition = (
                next(self.online_partitions) if self.online_partitions is not None and record.key is None else -1
            )
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
                    on_delivery=self.on_delivery,
                    timestamp=record.timestamp_ms or 0,
                    headers=headers or None,
                )
            except BufferError:
                if self.interrupts():
                    raise KeyboardInterrupt from None
                self.producer.poll(0.1)  # librdkafka's queue is full: wait until acknowledgements free space in it
                self.report_trouble()
                continue
            except KafkaException as error:
                raise kafka_error(error, f"record {self.read_records}") from error
            self.producer.poll(0)
            self.report_trouble()
            return

    def write_directly(self, record: OutgoingRecord, partition: int) -> None:
        """Write one record with Tidelog's own client.

        First wait until librdkafka has written all its records, so that the order of the records is preserved.
        """
        from tidelog.client.errors import ClientError
        from tidelog.wire.errors import ApiError, ErrorCode

        while self.producer.flush(0.2):
            if self.interrupts():
                raise KeyboardInterrupt
            self.report_trouble()
        try:
            self.interrupts.call_interruptibly(lambda: self.direct_writer.write(record, partition))
        except (ApiError, ClientError) as error:
            reason = str(client_error(error, topic=self.topic))
            is_refused = isinstance(error, ApiError) and error.code == ErrorCode.INVALID_RECORD
            self.keyless_rejected = self.keyless_rejected or (record.key is None and is_refused)
            self.failed[reason] = self.failed.get(reason, 0) + 1
        else:
            self.written_records += 1
            self.written_bytes += len(record.value or b"") + len(record.key or b"")

    def on_delivery(self, error: "KafkaError | None", message: "Message") -> None:
        if error is None:
            self.written_records += 1
            self.written_bytes += len(message.value() or b"") + len(message.key() or b"")
            return
        from confluent_kafka import KafkaError

        if message.partition() in self.offline_partitions:
            reason = offline.partitions_text({self.topic: [message.partition() or 0]}) + " is offline"
        else:
            reason = str(kafka_error(error, topic=self.topic))
            self.keyless_rejected = self.keyless_rejected or (
                message.key() is None and error.code() == KafkaError.INVALID_RECORD
            )
        self.failed[reason] = self.failed.get(reason, 0) + 1

    def report_trouble(self) -> None:
        """Print one message if no broker can be reached, and another one if no record was acknowledged for STUCK_S.

        librdkafka continues to try. The first message is printed at most once. The second message is not repeated
        until another record is finished.
        """
        self.outage.report()
        now, finished = time.monotonic(), self.finished_records
        changed_s, finished_before = self.last_change
        if finished != finished_before or finished == self.read_records:
            self.last_change = now, finished
        elif now - changed_s > STUCK_S and not self.outage.all_brokers_down:
            self.last_change = float("inf"), finished  # no further message until another record is finished
            newly_offline = set(offline.find_offline_partitions(self.client, [self.topic]).get(self.topic, ())) - set(
                self.offline_partitions
            )
            self.offline_partitions = sorted({*self.offline_partitions, *newly_offline})
            if newly_offline:
                offline.warn({self.topic: sorted(newly_offline)}, "Records for these partitions wait; Ctrl-C stops.")
            else:
                print(
                    f"No record was acknowledged for {STUCK_S:.0f} s; still trying, Ctrl-C stops. The broker's log may"
                    " say why.",
                    file=sys.stderr,
                )

    def finish(self) -> None:
        """Wait for the acknowledgements, and print how many records were written. After Ctrl-C, wait at most
        INTERRUPT_GRACE_S.
        """
        deadline: float | None = None
        while self.producer.flush(0.2):
            if self.interrupts():
                # A user who saw the message that no broker answers, or who pressed Ctrl-C again, does not want to
                # wait longer.
                grace_s = 0 if self.outage.all_brokers_down or self.interrupts.count > 1 else INTERRUPT_GRACE_S
                deadline = min(deadline or float("inf"), time.monotonic() + grace_s)
                if time.monotonic() >= deadline:
                    break
            self.report_trouble()
            if self.shows_progress:
                self.show_progress()
        if self.shows_progress:
            print("\r\x1b[K", end="", file=sys.stderr)
        unknown = len(self.producer)
        if unknown:
            self.producer.purge()
            print(f"{counted(unknown, 'record')} not acknowledged, but possibly written.", file=sys.stderr)
        seconds = max(time.monotonic() - self.started_s, 1e-6)
        if (self.failed or unknown) and not self.written_records:
            return
        rate = (
            f" in {seconds:.1f} s ({count(round(self.written_records / seconds))}/s)"
            if self.written_records >= 1000
            else ""
        )
        print(
            f"{counted(self.written_records, 'record')}, {size(self.written_bytes)}, to {self.topic}{rate}",
            file=sys.stderr,
        )

    @property
    def finished_records(self) -> int:
        """Number of records that were written or have failed."""
        return self.written_records + sum(self.failed.values())

    def show_progress(self) -> None:
        now = time.monotonic()
        if now - self.progress_shown_s < PROGRESS_EVERY_S:
            return
        self.progress_shown_s = now
        rate = self.written_records / (now - self.started_s)
        waiting = self.read_records - self.finished_records
        line = f"{counted(self.written_records, 'record')} written, {count(waiting)} waiting, {count(round(rate))}/s"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
