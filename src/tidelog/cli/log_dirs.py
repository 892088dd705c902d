"""`tidelog log dirs`: the data directories of brokers, what lies in them, and moves between them."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, key_value
from tidelog.cli.errors import CommandError, UsageError, raise_together
from tidelog.cli.own_client import ask, ask_each, broker_of, brokers, connected
from tidelog.cli.tables import Column, Table, cell, print_json, print_notes, print_table, size

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsResponse
    from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsResponse

POLL_S = 0.2
UNKNOWN_BYTES = -1
EXAMPLE = "orders-0=/disk2/tidelog"

Moves = Annotated[
    list[str],
    typer.Option(
        "--move", metavar="PARTITION=DIR", show_default=False, help=f"Move a partition, as {EXAMPLE}; repeatable."
    ),
]


class Replica(NamedTuple):
    """A partition's log in one directory."""

    topic: str
    partition: int
    bytes: int
    offset_lag: int
    future: bool
    """A copy that is being made: the partition moves here."""


class Directory(NamedTuple):
    broker: int
    path: str | None
    """None for a broker that does not say which directories it has."""
    error: str
    """Empty when it can be used."""
    total_bytes: int
    """Of the file system, as `usable_bytes`; -1 when the broker does not tell."""
    usable_bytes: int
    cordoned: bool
    replicas: list[Replica]


def dirs(
    topics: Annotated[
        list[str], typer.Option("--topic", metavar="TOPIC", show_default=False, help="Only this topic; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="Each partition, not only sums.")] = False,
    move: Moves = [],  # noqa: B006
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", show_default=False, help="Only this broker.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the moves are done.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Show the data directories of brokers; move partitions between them.

    A broker with several directories (log.dirs) puts a new partition where
    the fewest are. A move copies the partition's log while it is written
    and read; --partitions shows how far it is, and a move to where the
    partition lies gives it up.

    Examples:

    $ tidelog log dirs
    $ tidelog log dirs --topic orders --partitions
    $ tidelog log dirs --move orders-0=/disk2/tidelog --wait
    """
    with connected(bootstrap) as client:
        if move:
            begin(client, [parsed(text) for text in move], broker, wait=wait)
            return
        found = directories(client, topics, broker)
    failures = [failure(each) for each in found if each.path is None]
    if json:
        print_json([directory_json(directory) for directory in found])
    elif partitions:
        print_table(partition_table(found))
    else:
        print_table(directory_table(found))
    missing = [str(error) for error in missing_topics(found, topics)]
    if missing and failures:
        missing += map(str, failures)  # they may hold it
    sys.stdout.flush()
    raise_together(CommandError(line) for line in missing)
    if broker is not None:
        raise_together(failures)
    print_notes([str(error) for error in failures])


def failure(directory: Directory) -> CommandError:
    return CommandError(f"broker {directory.broker} does not show its directories: {directory.error}")


def missing_topics(found: Sequence[Directory], topics: Sequence[str]) -> list[CommandError]:
    known = {replica.topic for directory in found for replica in directory.replicas}
    return [
        CommandError(f"no directory holds a partition of {topic} (tidelog topic list shows the topics)")
        for topic in dict.fromkeys(topics)
        if topic not in known
    ]


def directories(client: "Client", topics: Sequence[str], broker: int | None = None) -> list[Directory]:
    """Every directory of one broker, or of all, with the replicas of `topics`, or of all when there are none; and a
    line for each broker that does not answer.
    """
    from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

    addresses = brokers(client)
    if broker is not None:
        addresses = {broker: broker_of(addresses, broker)}
    requests = [(address, DescribeLogDirsRequest(topics=None)) for address in addresses.values()]
    answers = ask_each(client, requests, DescribeLogDirsResponse)
    wanted = set(topics)
    return [
        directory
        for number, answer in zip(addresses, answers, strict=True)
        for directory in of_answer(number, answer, wanted)
    ]


def of_answer(broker: int, answer: "DescribeLogDirsResponse | CommandError", topics: set[str]) -> Iterator[Directory]:
    from tidelog.client.error_codes import error_name

    if isinstance(answer, CommandError) or answer.error_code:
        error = str(answer) if isinstance(answer, CommandError) else error_name(answer.error_code)
        yield Directory(broker, None, error, UNKNOWN_BYTES, UNKNOWN_BYTES, False, [])
        return
    for result in sorted(answer.results, key=lambda r: r.log_dir):
        replicas = [
            Replica(topic.name, p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
            for topic in result.topics
            if not topics or topic.name in topics
            for p in topic.partitions
        ]
        error = "" if not result.error_code else error_name(result.error_code)
        yield Directory(
            broker, result.log_dir, error, result.total_bytes, result.usable_bytes, result.is_cordoned, sorted(replicas)
        )


# Moving


class Move(NamedTuple):
    topic: str
    partition: int
    path: str

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def parsed(text: str) -> Move:
    name, path = key_value(text, "--move", EXAMPLE)
    topic, dash, number = name.rpartition("-")
    if not path or not dash or not topic or not number.isascii() or not number.isdigit():
        raise UsageError(f"--move takes PARTITION=DIR, for example --move {EXAMPLE}, not {text!r}")
    return Move(topic, int(number), path.rstrip("/") or "/")


def begin(client: "Client", moves: list[Move], broker: int | None, *, wait: bool) -> None:
    """Ask each broker that holds one of the partitions. Raises CommandError for the first that is refused."""
    from tidelog.wire.messages.alter_replica_log_dirs import (
        AlterReplicaLogDir,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirsResponse,
        AlterReplicaLogDirTopic,
    )

    addresses = brokers(client)
    before = directories(client, [])
    holders = {}
    for move in moves:
        holders[move] = [d.broker for d in holding(before, move) if broker in (None, d.broker)]
        if not holders[move]:
            where = "on any broker" if broker is None else f"on broker {broker}"
            silent = "".join(f"; {failure(d)}" for d in before if d.path is None and broker in (None, d.broker))
            raise CommandError(f"{move.name} is in no data directory {where} that can be used{silent}")
    for number, address in addresses.items():
        own = [move for move in moves if number in holders[move]]
        if own:
            dirs = [AlterReplicaLogDir(m.path, [AlterReplicaLogDirTopic(m.topic, [m.partition])]) for m in own]
            [answer] = ask(client, [(address, AlterReplicaLogDirsRequest(dirs))], AlterReplicaLogDirsResponse)
            check(answer, number, own, before)
    for move in moves:
        if not wait:
            print(f"Moving {move.name} to {move.path}.")
    if wait:
        done(client, holders)


def holding(found: Iterable[Directory], move: Move) -> list[Directory]:
    return [
        directory
        for directory in found
        if any((r.topic, r.partition, r.future) == (move.topic, move.partition, False) for r in directory.replicas)
    ]


def check(answer: "AlterReplicaLogDirsResponse", broker: int, moves: list[Move], before: list[Directory]) -> None:
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import ErrorCode

    codes = {(t.topic_name, p.partition_index): p.error_code for t in answer.results for p in t.partitions}
    for move in moves:
        code = codes.get((move.topic, move.partition), 0)
        if code == ErrorCode.LOG_DIR_NOT_FOUND:
            there = ", ".join(d.path for d in before if d.broker == broker and d.path is not None)
            raise CommandError(f"{move.path} is no data directory of broker {broker}: it has {there}")
        if code == ErrorCode.INVALID_REPLICA_ASSIGNMENT:
            raise CommandError(f"{move.path} on broker {broker} is cordoned (cordoned.log.dirs): it takes nothing new")
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            raise CommandError(f"{move.path} on broker {broker}, or where {move.name} lies, is out of use")
        if code:
            raise CommandError(f"{move.name}: {error_name(code)}")


def done(client: "Client", holders: dict[Move, list[int]]) -> None:
    """Wait until each is where it was to go. Raises CommandError when one will not be there."""
    left = [(move, broker) for move, numbers in holders.items() for broker in numbers]
    while left:
        found = directories(client, [])
        raise_together(failure(d) for d in found if d.path is None and any(d.broker == number for _, number in left))
        for move, broker in list(left):
            here = [d.path for d in holding(found, move) if d.broker == broker]
            copies = [d for d in found if d.broker == broker and any(_is_copy(r, move) for r in d.replicas)]
            if not copies:
                if not here:
                    # A directory that is out of use shows none of what lies in it.
                    why = "its topic was deleted, or its directory is out of use"
                    raise CommandError(f"{move.name} is not there any more: {why}")
                if here != [move.path]:
                    raise CommandError(f"{move.name} is still in {here[0]}: the broker's log says why")
                print(f"Moved {move.name} to {move.path}.")
                left.remove((move, broker))
        if left:
            time.sleep(POLL_S)


def _is_copy(replica: Replica, move: Move) -> bool:
    return (replica.topic, replica.partition, replica.future) == (move.topic, move.partition, True)


# Showing


def directory_table(found: Sequence[Directory]) -> Table:
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
                state(d),
                cell(len(d.replicas)) if d.path is not None else "-",
                size(sum(r.bytes for r in d.replicas)) if d.path is not None else "-",
                "-" if d.usable_bytes == UNKNOWN_BYTES else size(d.usable_bytes),
                "-" if d.total_bytes == UNKNOWN_BYTES else size(d.total_bytes),
            ]
            for d in found
        ],
    )


def partition_table(found: Sequence[Directory]) -> Table:
    columns = [
        Column("broker", right=True, spare=1),
        Column("directory", spare=1),
        Column("partition"),
        Column("size", right=True),
        Column("state"),
    ]
    rows = [
        [str(d.broker), d.path or "?", f"{r.topic}-{r.partition}", size(r.bytes), replica_state(r)]
        for d in found
        for r in d.replicas
    ]
    return Table(columns, rows)


def state(directory: Directory) -> str:
    if directory.path is None:
        return "no answer"
    if directory.error:
        return f"out of use ({directory.error})"
    return "cordoned" if directory.cordoned else "in use"


def replica_state(replica: Replica) -> str:
    if replica.future:
        return f"moving here, {cell(replica.offset_lag)} offsets behind"
    return "in use"


def directory_json(directory: Directory) -> dict[str, object]:
    document = directory._asdict()
    document["replicas"] = [replica._asdict() for replica in directory.replicas]
    return document
