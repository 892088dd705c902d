"""`tidelog log dirs`: show brokers' data directories with their partitions, and move partitions between directories."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, key_value
from tidelog.cli.errors import CommandError, UsageError, raise_together
from tidelog.cli.own_client import ask, ask_each, broker_address, broker_addresses, connected
from tidelog.cli.tables import Column, Table, cell, print_json, print_notes, print_table, size

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsResponse
    from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsResponse

POLL_S = 0.2
"""With --wait, the time between two checks of the moves, in seconds."""
UNKNOWN_BYTES = -1
"""Value of a size that the broker does not report."""
EXAMPLE = "orders-0=/disk2/tidelog"

Moves = Annotated[
    list[str],
    typer.Option(
        "--move",
        metavar="PARTITION=DIR",
        show_default=False,
        help=f"Move a partition, for example {EXAMPLE}; repeatable.",
    ),
]


class Replica(NamedTuple):
    """A partition's log in one directory. The names of the fields are keys of the JSON output."""

    topic: str
    partition: int
    bytes: int
    offset_lag: int
    """Number of offsets by which an unfinished copy is behind the log that is being copied."""
    future: bool
    """Whether this is the unfinished copy of a partition that is being moved to this directory."""


class LogDirectory(NamedTuple):
    """A data directory of a broker. The names of the fields are keys of the JSON output."""

    broker: int
    path: str | None
    """None for a broker that did not report its directories."""
    error: str
    """The reason why the directory is out of use, or why the broker did not answer; empty if the directory is in
    use."""
    total_bytes: int
    """Size of the file system; UNKNOWN_BYTES if the broker does not report it."""
    usable_bytes: int
    """Free space of the file system; UNKNOWN_BYTES if the broker does not report it."""
    cordoned: bool
    """Whether the directory accepts no new partitions."""
    replicas: list[Replica]


def dirs(
    topics: Annotated[
        list[str], typer.Option("--topic", metavar="TOPIC", show_default=False, help="Only this topic; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    partitions: Annotated[
        bool, typer.Option("--partitions", "-p", help="Show each partition, not only totals.")
    ] = False,
    move: Moves = [],  # noqa: B006
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", show_default=False, help="Only this broker.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the moves are done.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Show data directories of brokers; move partitions between directories.

    A broker with several directories (log.dirs) puts a new partition into
    the directory with the fewest partitions. A move copies the partition's
    log while clients write and read it. --partitions shows the progress. To
    cancel a move, move the partition to the directory where it still is.

    Examples:

    $ tidelog log dirs
    $ tidelog log dirs --topic orders --partitions
    $ tidelog log dirs --move orders-0=/disk2/tidelog --wait
    """
    check_options(topics, partitions, move, wait, json)
    with connected(bootstrap) as client:
        if move:
            start_moves(client, [parse_move(text) for text in move], broker, wait=wait)
            return
        directories = describe_directories(client, topics, broker)
    failures = [no_answer_error(directory) for directory in directories if directory.path is None]
    if json:
        print_json([directory_json(directory) for directory in directories])
    elif partitions:
        print_table(partition_table(directories))
    else:
        print_table(directory_table(directories))
    missing = [str(error) for error in missing_topic_errors(directories, topics)]
    if missing and failures:
        missing += map(str, failures)  # a missing topic may be on a broker that failed
    sys.stdout.flush()
    raise_together(CommandError(line) for line in missing)
    if broker is not None:
        raise_together(failures)
    print_notes([str(error) for error in failures])


def check_options(topics: list[str], partitions: bool, move: list[str], wait: bool, json: bool) -> None:
    """Raise UsageError for an option that would have no effect."""
    if wait and not move:
        raise UsageError("--wait waits for the end of moves, and there are none: add --move PARTITION=DIR")
    for option, is_used in (("--topic", bool(topics)), ("--partitions", partitions), ("--json", json)):
        if is_used and move:
            raise UsageError(f"{option} cannot be used with --move, because --move shows no directories")


def no_answer_error(directory: LogDirectory) -> CommandError:
    """Return the error for a broker that did not answer. `directory` is its entry, which has no path."""
    return CommandError(f"broker {directory.broker} does not show its directories: {directory.error}")


def missing_topic_errors(directories: Sequence[LogDirectory], topics: Sequence[str]) -> list[CommandError]:
    """Return an error for each of `topics` that has no partition in these directories."""
    topics_with_replicas = {replica.topic for directory in directories for replica in directory.replicas}
    return [
        CommandError(f"no directory has a partition of {topic}; tidelog topic list shows the topics")
        for topic in dict.fromkeys(topics)
        if topic not in topics_with_replicas
    ]


def describe_directories(client: "Client", topics: Sequence[str], broker: int | None = None) -> list[LogDirectory]:
    """Request the directories of one broker, or of all brokers, and return them with their replicas of `topics`.

    If `topics` is empty, the replicas of all topics are returned. A broker that does not answer has one entry without a
    path. Raises CommandError for an unknown broker.
    """
    from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

    addresses = broker_addresses(client)
    if broker is not None:
        addresses = {broker: broker_address(addresses, broker)}
    requests = [(address, DescribeLogDirsRequest(topics=None)) for address in addresses.values()]
    answers = ask_each(client, requests, DescribeLogDirsResponse)
    wanted = set(topics)
    return [
        directory
        for number, answer in zip(addresses, answers, strict=True)
        for directory in directories_from(number, answer, wanted)
    ]


def directories_from(
    broker: int, answer: "DescribeLogDirsResponse | CommandError", topics: set[str]
) -> Iterator[LogDirectory]:
    """Decode the answer of one broker."""
    from tidelog.client.error_codes import error_name

    if isinstance(answer, CommandError) or answer.error_code:
        error = str(answer) if isinstance(answer, CommandError) else error_name(answer.error_code)
        yield LogDirectory(broker, None, error, UNKNOWN_BYTES, UNKNOWN_BYTES, False, [])
        return
    for result in sorted(answer.results, key=lambda r: r.log_dir):
        replicas = [
            Replica(topic.name, p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
            for topic in result.topics
            if not topics or topic.name in topics
            for p in topic.partitions
        ]
        error = "" if not result.error_code else error_name(result.error_code)
        yield LogDirectory(
            broker, result.log_dir, error, result.total_bytes, result.usable_bytes, result.is_cordoned, sorted(replicas)
        )


# Moving


class LogDirMove(NamedTuple):
    topic: str
    partition: int
    path: str
    """The directory to which the partition moves."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def parse_move(text: str) -> LogDirMove:
    """Parse a value of --move. Raises UsageError if it is malformed."""
    name, path = key_value(text, "--move", EXAMPLE)
    topic, dash, number = name.rpartition("-")
    if not path or not dash or not topic or not number.isascii() or not number.isdigit():
        raise UsageError(f"--move takes PARTITION=DIR, for example --move {EXAMPLE}, not {text!r}")
    return LogDirMove(topic, int(number), path.rstrip("/") or "/")


def start_moves(client: "Client", moves: list[LogDirMove], broker: int | None, *, wait: bool) -> None:
    """Send each move to all brokers that have the partition, or only to `broker`.

    With `wait`, return only when the moves are done. Raises CommandError for the first move that a broker refuses, and
    for a partition that is in no usable directory.
    """
    from tidelog.wire.messages.alter_replica_log_dirs import (
        AlterReplicaLogDir,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirsResponse,
        AlterReplicaLogDirTopic,
    )

    addresses = broker_addresses(client)
    before = describe_directories(client, [])
    holders = {}
    for move in moves:
        holders[move] = [d.broker for d in directories_with(before, move) if broker in (None, d.broker)]
        if not holders[move]:
            where = "on any broker" if broker is None else f"on broker {broker}"
            unanswered = "".join(
                f"; {no_answer_error(d)}" for d in before if d.path is None and broker in (None, d.broker)
            )
            raise CommandError(f"{move.name} is in no usable data directory {where}{unanswered}")
    for number, address in addresses.items():
        broker_moves = [move for move in moves if number in holders[move]]
        if broker_moves:
            dirs = [AlterReplicaLogDir(m.path, [AlterReplicaLogDirTopic(m.topic, [m.partition])]) for m in broker_moves]
            [answer] = ask(client, [(address, AlterReplicaLogDirsRequest(dirs))], AlterReplicaLogDirsResponse)
            check_move_results(answer, number, broker_moves, before)
    for move in moves:
        if not wait:
            print(f"Moving {move.name} to {move.path}.")
    if wait:
        wait_for_moves(client, holders)


def directories_with(directories: Iterable[LogDirectory], move: LogDirMove) -> list[LogDirectory]:
    """Return the directories that contain the partition's log. Directories with only an unfinished copy are not
    returned.
    """
    return [
        directory
        for directory in directories
        if any((r.topic, r.partition, r.future) == (move.topic, move.partition, False) for r in directory.replicas)
    ]


def check_move_results(
    answer: "AlterReplicaLogDirsResponse", broker: int, moves: list[LogDirMove], before: list[LogDirectory]
) -> None:
    """Raise CommandError for the first move that the broker refused. `before` are the directories before the moves."""
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import ErrorCode

    codes = {(t.topic_name, p.partition_index): p.error_code for t in answer.results for p in t.partitions}
    for move in moves:
        code = codes.get((move.topic, move.partition), 0)
        if code == ErrorCode.LOG_DIR_NOT_FOUND:
            existing = ", ".join(d.path for d in before if d.broker == broker and d.path is not None)
            raise CommandError(
                f"{move.path} is not a data directory of broker {broker}; its data directories are {existing}"
            )
        if code == ErrorCode.INVALID_REPLICA_ASSIGNMENT:
            raise CommandError(
                f"{move.path} on broker {broker} is cordoned (cordoned.log.dirs): it accepts no new partitions"
            )
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            raise CommandError(
                f"broker {broker}: either {move.path} or the current directory of {move.name} is out of use"
            )
        if code:
            raise CommandError(f"{move.name}: {error_name(code)}")


def wait_for_moves(client: "Client", holders: dict[LogDirMove, list[int]]) -> None:
    """Wait until each partition is in its new directory on the brokers in `holders`.

    Raises CommandError when a move has failed, or a broker does not answer.
    """
    pending = [(move, broker) for move, numbers in holders.items() for broker in numbers]
    while pending:
        directories = describe_directories(client, [])
        raise_together(
            no_answer_error(d)
            for d in directories
            if d.path is None and any(d.broker == number for _, number in pending)
        )
        for move, broker in list(pending):
            paths = [d.path for d in directories_with(directories, move) if d.broker == broker]
            copies = [d for d in directories if d.broker == broker and any(_is_copy(r, move) for r in d.replicas)]
            if not copies:
                if not paths:
                    # Brokers list no replicas of a directory that is out of use.
                    reason = "its topic was deleted, or its directory is out of use"
                    raise CommandError(f"{move.name} is in no data directory any more: {reason}")
                if paths != [move.path]:
                    raise CommandError(
                        f"{move.name} is still in {paths[0]}, because the move failed; the broker's log says why"
                    )
                print(f"Moved {move.name} to {move.path}.")
                pending.remove((move, broker))
        if pending:
            time.sleep(POLL_S)


def _is_copy(replica: Replica, move: LogDirMove) -> bool:
    """Return whether the replica is the unfinished copy that the move creates."""
    return (replica.topic, replica.partition, replica.future) == (move.topic, move.partition, True)


# Showing


def directory_table(directories: Sequence[LogDirectory]) -> Table:
    columns = [
        Column("broker", right=True),
        Column("directory"),
        Column("state"),
        *(Column(title, right=True) for title in ("partitions", "size", "free")),
        Column("of", right=True, spare=1),
    ]
    return Table(
        columns,
        [
            [
                str(d.broker),
                d.path or "?",
                directory_state(d),
                cell(len(d.replicas)) if d.path is not None else "-",
                size(sum(r.bytes for r in d.replicas)) if d.path is not None else "-",
                "-" if d.usable_bytes == UNKNOWN_BYTES else size(d.usable_bytes),
                "-" if d.total_bytes == UNKNOWN_BYTES else size(d.total_bytes),
            ]
            for d in directories
        ],
        name_columns=2,
    )


def partition_table(directories: Sequence[LogDirectory]) -> Table:
    columns = [
        Column("broker", right=True, spare=1),
        Column("directory", spare=1),
        Column("partition"),
        Column("size", right=True),
        Column("state"),
    ]
    rows = [
        [str(d.broker), d.path or "?", f"{r.topic}-{r.partition}", size(r.bytes), replica_state(r)]
        for d in directories
        for r in d.replicas
    ]
    return Table(columns, rows, name_columns=2)


def directory_state(directory: LogDirectory) -> str:
    if directory.path is None:
        return "no answer"
    if directory.error:
        return f"out of use ({directory.error})"
    return "cordoned" if directory.cordoned else "in use"


def replica_state(replica: Replica) -> str:
    if replica.future:
        return f"moving here, {cell(replica.offset_lag)} offset{'s' * (replica.offset_lag != 1)} behind"
    return "in use"


def directory_json(directory: LogDirectory) -> dict[str, object]:
    document = directory._asdict()
    document["replicas"] = [replica._asdict() for replica in directory.replicas]
    return document
