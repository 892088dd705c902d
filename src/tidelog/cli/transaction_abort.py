"""`tidelog transaction abort` and `find-hanging`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, client_error, connect
from tidelog.cli.errors import CommandError, UsageError, raise_together
from tidelog.cli.group_offsets import Yes, confirm
from tidelog.cli.groups import parse_group_names, partition_list_text, state_text
from tidelog.cli.offset_plan import topics_and_partitions
from tidelog.cli.tables import (
    Column,
    Table,
    counted,
    name_text,
    paragraph,
    print_json,
    print_notes,
    print_table,
    printable,
)
from tidelog.cli.transactions import (
    HangingTransactions,
    OpenTransaction,
    age_ms,
    describe_one,
    filter_hanging,
    find_hanging,
    partitions_of_topics,
    producer_json,
    producers_of,
    time_text,
    transaction_error,
)
from tidelog.cli.when import NotATimeError, duration_text, parse_duration_s

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

Topics = Annotated[
    list[str],
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:NUMBERS]",
        show_default=False,
        help="Only these partitions, e.g. orders:0,3-5; repeatable.",
    ),
]
BrokerId = Annotated[
    int | None,
    typer.Option("--broker-id", metavar="ID", show_default=False, help="Only the replicas on this broker."),
]
Escaped = Annotated[
    bool,
    typer.Option("--escaped", help=r"You write ids as tables show them: \n, \x00, \xff; a backslash is written twice."),
]
DECIDED = ("PrepareCommit", "PrepareAbort")
"""States in which the end of a transaction is decided, and its markers are being written."""


def find_hanging_transactions(
    topic: Topics = [],  # noqa: B006 - typer copies it
    broker: BrokerId = None,
    max_transaction_timeout: Annotated[
        str,
        typer.Option(
            "--max-transaction-timeout",
            metavar="DURATION",
            help="Examine only transactions without a write in the last DURATION.",
        ),
    ] = "15m",
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Find transactions that are open in a partition although no coordinator will ever end them.

    Consumers with isolation.level=read_committed wait at such a transaction
    forever. An open transaction hangs if its producer has not written for
    longer than --max-transaction-timeout, and no coordinator will end it:
    either no coordinator knows the producer, or the producer's coordinator
    knows only a transaction that does not contain the partition.

    Without --topic and --broker-id, all partitions are searched.

    Examples:

    $ tidelog transaction find-hanging
    $ tidelog transaction find-hanging --topic orders:0 --max-transaction-timeout 1h
    $ tidelog transaction find-hanging --broker-id 2 --json
    """
    try:
        timeout_max_ms = round(parse_duration_s(max_transaction_timeout) * 1000)
    except NotATimeError as error:
        raise UsageError(f"--max-transaction-timeout: {error}") from None
    wanted = topics_and_partitions(topic)
    with connect(bootstrap, client).open() as cluster_client:
        partitions, not_found = partitions_of_topics(cluster_client, wanted, broker)
        found = find_hanging(cluster_client, partitions, broker, timeout_max_ms)
    failures = [*not_found, *found.failures.values()]
    show_hanging(found, failures, max_transaction_timeout, json=json)
    if wanted:
        raise_together(failures)


def show_hanging(
    found: HangingTransactions, failures: Sequence[CommandError], max_transaction_timeout: str, *, json: bool
) -> None:
    """Print the hanging transactions, notes about transactions that may or may not hang and about searches that
    failed, and the command that ends the first hanging transaction. If no transaction hangs, say how many
    transactions are open. `failures` are the errors of topics and partitions that could not be searched.
    """
    if json:
        print_json(
            [
                producer_json(each.partition, each.producer) | {"transactional_id": each.transactional_id}
                for each in found.hanging
            ]
        )
    elif found.hanging:
        columns = [
            Column("Topic"),
            Column("Partition", True, spare=-1),
            Column("Start offset", True, style="yellow", spare=-1),
            Column("Producer ID", True, spare=-1),
            Column("Epoch", True, spare=2),
            Column("Last write", spare=1),
            Column("Transactional ID", spare=3),
        ]
        rows = [
            (
                each.partition.topic,
                str(each.partition.partition),
                str(each.start_offset),
                str(each.producer.producer_id),
                str(each.producer.producer_epoch),
                time_text(each.producer.last_timestamp_ms),
                "-" if each.transactional_id is None else name_text(each.transactional_id),
            )
            for each in found.hanging
        ]
        print_table(Table(columns, rows, name_columns=3))
    print_notes([*found.problems, *map(str, failures)])
    if json:
        return
    sys.stdout.flush()
    if found.hanging:
        first = found.hanging[0]
        print(
            f"To end one: tidelog transaction abort --topic {first.partition.topic}"
            f" --partition {first.partition.partition} --start-offset {first.start_offset}",
            file=sys.stderr,
        )
    elif not found.problems and not failures:
        print(paragraph(none_hangs_text(found, max_transaction_timeout)), file=sys.stderr)


def none_hangs_text(found: HangingTransactions, max_transaction_timeout: str) -> str:
    sentences = ["No transaction hangs."]
    if found.open_count > found.young_count:
        number = found.open_count - found.young_count
        sentences.append(
            f"{counted(number, 'open transaction')} had no write in the last {max_transaction_timeout}, but"
            f" {'its coordinator' if number == 1 else 'their coordinators'} will end {'it' if number == 1 else 'them'}."
        )
    if found.young_count:
        it = "it" if found.young_count == 1 else "them"
        sentences.append(
            f"{counted(found.young_count, 'open transaction')} with a write in the last {max_transaction_timeout}"
            f" {'was' if found.young_count == 1 else 'were'} not examined; a shorter --max-transaction-timeout"
            f" examines {it}, too."
        )
    if found.open_count:
        sentences.append("tidelog transaction list --state ongoing shows open transactions.")
    return " ".join(sentences)


def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="[TRANSACTIONAL_ID]", show_default=False, help="Abort its open transaction as a whole."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", show_default=False, help="The topic of a hanging transaction."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", metavar="N", min=0, show_default=False, help="Partition of a hanging transaction."
        ),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset",
            metavar="OFFSET",
            min=0,
            show_default=False,
            help="The first offset of the transaction in the partition.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Abort in the partition even if a coordinator can still end the transaction."),
    ] = False,
    yes: Yes = False,
    escaped: Escaped = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Abort an open transaction.

    With a transactional id: its coordinator aborts the open transaction in
    all partitions, and fences the producer: the broker refuses the producer's
    next request, and the application must be started again. If the producer
    has died, this lets waiting consumers continue at once.

    With --topic, --partition and --start-offset: an abort marker is written
    to this partition only. This is for hanging transactions, which no
    coordinator ends; find-hanging shows all three values.

    Consumers with isolation.level=read_committed skip the records of an
    aborted transaction. An abort cannot be undone.

    Examples:

    $ tidelog transaction abort payments-1
    $ tidelog transaction abort --topic orders --partition 0 --start-offset 4711
    """
    place = (topic, partition, start_offset)
    if transactional_id is not None and any(value is not None for value in place):
        raise UsageError("a transactional id and --topic, --partition, --start-offset cannot be used together")
    with connect(bootstrap, client).open() as cluster_client:
        if transactional_id is not None:
            if force:
                raise UsageError("--force is used only with --topic, --partition and --start-offset")
            (name,) = parse_group_names([transactional_id], escaped)
            abort_transaction(cluster_client, name, yes)
        elif topic is not None and partition is not None and start_offset is not None:
            abort_in_partition(cluster_client, topic, partition, start_offset, force=force, yes=yes)
        else:
            raise UsageError(
                "a transactional id, or --topic, --partition and --start-offset together, must be given; tidelog"
                " transaction list --state ongoing and tidelog transaction find-hanging show these values"
            )


def print_explanation(*paragraphs: str) -> None:
    """Print on stderr what an abort will do, in lines that fit the width of the terminal."""
    print("\n".join(map(paragraph, paragraphs)), file=sys.stderr)


def abort_transaction(client: "Client", name: str, yes: bool) -> None:
    """Explain the abort, ask for confirmation, and let the coordinator abort the transactional id's transaction."""
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    transaction = describe_one(client, name)
    state = state_text(transaction.state)
    if transaction.state in DECIDED:
        if transaction.partitions:
            rest = (
                f"its markers are still missing in {partition_list_text(transaction.partitions)}; the coordinator sends"
                " them again until the leaders of these partitions answer"
            )
        else:
            rest = "all its markers are written, and the coordinator will record the end of the transaction in a moment"
        raise CommandError(
            f"the end of the transaction of {name_text(name)} is decided already (state {state}): {rest}"
        )
    if transaction.state != "Ongoing":
        raise CommandError(f"transactional id {name_text(name)} has no open transaction (state {state})")
    age = "" if transaction.started_ms is None else f", open for {duration_text(age_ms(transaction.started_ms) / 1000)}"
    print_explanation(
        f"The transaction of {name_text(name)} (producer {transaction.producer_id},"
        f" epoch {transaction.producer_epoch}{age}) has records or offsets in:"
        f" {printable(partition_list_text(transaction.partitions))}.",
        "Its coordinator will abort it in all of them: read_committed consumers skip its records, and its offsets"
        " are not committed. The producer is fenced: its next request fails with PRODUCER_FENCED or"
        " INVALID_PRODUCER_EPOCH, and the application must be started again.",
    )
    confirm(f"Abort the transaction of {name_text(name)}?", yes, "abort")
    try:
        client.fence(name, transaction.timeout_ms)
    except (ApiError, ClientError) as error:
        raise transaction_error(error, name) from error
    print(f"Aborted the transaction of {name_text(name)}, and fenced its producer.")


def abort_in_partition(
    client: "Client", topic: str, partition: int, start_offset: int, *, force: bool, yes: bool
) -> None:
    """Explain the abort, ask for confirmation, and write an abort marker to one partition."""
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    partitions, not_found = partitions_of_topics(client, {topic: [partition]}, None)
    raise_together(not_found)
    (tp,) = partitions
    producers, failures = producers_of(client, [tp], None)
    raise_together(failures.values())
    by_offset = {each.start_offset: each for each in producers[tp] if each.start_offset is not None}
    producer = by_offset.get(start_offset)
    if producer is None:
        offsets = ", ".join(map(str, sorted(by_offset)))
        existing = f"open transactions begin at {offsets}" if by_offset else "the partition has no open transaction"
        raise CommandError(f"no open transaction of {tp} begins at offset {start_offset}: {existing}")
    candidate = OpenTransaction(tp, producer)
    hanging, problems = filter_hanging(client, [candidate])
    if not hanging and not force:
        raise CommandError(not_hanging_text(candidate, problems))
    print_explanation(
        f"Producer {producer.producer_id} (epoch {producer.producer_epoch}) began a transaction at offset"
        f" {start_offset} of {tp}. " + ("No coordinator knows it." if hanging else "A coordinator may still know it."),
        "An abort marker will be written to this partition only: read_committed consumers skip the records of"
        " the transaction, and read the records after it. Other partitions of the transaction are not changed.",
    )
    confirm(f"Abort this transaction in {tp}?", yes, "abort")
    try:
        client.abort_in_partition(tp, producer)
    except (ApiError, ClientError) as error:
        raise client_error(error, str(tp)) from error
    print(f"Aborted the transaction in {tp} that producer {producer.producer_id} began at offset {start_offset}.")


def not_hanging_text(candidate: OpenTransaction, problems: list[str]) -> str:
    """Return the reason why the abort of a transaction in a single partition is refused."""
    if problems:
        return f"it is not known whether the transaction hangs (--force aborts it anyway): {'; '.join(problems)}"
    return (
        f"the transaction of producer {candidate.producer.producer_id} in {candidate.partition} does not hang: its"
        " coordinator knows it, and can still commit it in other partitions. To abort it as a whole, use tidelog"
        " transaction abort TRANSACTIONAL_ID; the id is shown by tidelog transaction list --producer-id"
        f" {candidate.producer.producer_id}. To abort it in this partition only, add --force"
    )
