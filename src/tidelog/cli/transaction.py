"""`tidelog transaction`: the commands `list`, `describe` and `describe-producers`. The commands `abort` and
`find-hanging` are in `transaction_abort`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, connect
from tidelog.cli.errors import UsageError, raise_together, refuse_names_with_json
from tidelog.cli.groups import parse_group_names, state_text
from tidelog.cli.offset_plan import topics_and_partitions
from tidelog.cli.tables import (
    Column,
    Table,
    name_text,
    print_heading,
    print_json,
    print_notes,
    print_table,
    printable,
    ranges,
)
from tidelog.cli.transaction_abort import BrokerId, Escaped, Topics, abort, find_hanging_transactions
from tidelog.cli.transactions import (
    OPEN_STATES,
    age_ms,
    describe_transactions,
    list_transactions,
    listed_json,
    listing_problems,
    names_of_producers,
    parse_states,
    partitions_of_topics,
    producer_json,
    producers_of,
    time_text,
    transaction_json,
    warn_of_hidden_transactions,
)
from tidelog.cli.when import NotATimeError, duration_text, parse_duration_s
from tidelog.model.ids import indexes_by_topic

if TYPE_CHECKING:
    from tidelog.client.transactions import ActiveProducer, Transaction
    from tidelog.model.ids import TopicPartition

app = typer.Typer(add_completion=False, no_args_is_help=True)

NO_TRANSACTIONS = "No transactional ids yet. A producer creates one if its setting transactional.id is set."


@app.callback()
def transaction() -> None:
    """Show and abort transactions, and find those that hang.

    A producer that uses transactions names itself with a transactional id
    (transactional.id). One broker, the coordinator of this id, ends the
    producer's transactions.

    A consumer with isolation.level=read_committed waits at the first open
    transaction of a partition. describe-producers shows the producer of this
    transaction. abort ends it, for example if the producer has died.

    A transaction hangs if no coordinator knows it. Such a transaction never
    ends by itself. find-hanging shows the hanging transactions, and the
    command that ends the first one.

    Examples:

    $ tidelog transaction list --state ongoing
    $ tidelog transaction describe payments-1
    $ tidelog transaction describe-producers --topic orders:0 --open
    $ tidelog transaction abort payments-1
    $ tidelog transaction find-hanging
    """


@app.command("list")
def list_all(
    state: Annotated[
        list[str],
        typer.Option("--state", metavar="STATE", show_default=False, help="Only this state, e.g. ongoing; repeatable."),
    ] = [],  # noqa: B006 - typer copies it
    producer_id: Annotated[
        list[int],
        typer.Option("--producer-id", metavar="ID", show_default=False, help="Only this producer id; repeatable."),
    ] = [],  # noqa: B006
    longer_than: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="DURATION", help="Only transactions open longer than this, e.g. 5m."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only transactional ids that REGEX matches completely."),
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Print transactional ids only, one per line.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """List the transactional ids of all brokers.

    The states are: empty (no transaction since the producer was started, or
    since an administrator aborted one), ongoing (a transaction is open),
    prepare-commit and prepare-abort (the end is decided, and its markers are
    being written), complete-commit and complete-abort (the transaction has
    ended), dead (the id is being forgotten).

    With several filters, a transactional id must satisfy each of them. If
    --state or --producer-id is repeated, one of its values must match.

    Examples:

    $ tidelog transaction list
    $ tidelog transaction list --state ongoing --longer-than 5m
    $ tidelog transaction list --pattern "payments-.*" --json
    """
    from tidelog.client.transactions import TransactionFilter

    refuse_names_with_json(names, json)
    states, duration_ms = parse_states(state), -1
    if longer_than is not None:
        duration_ms = parse_duration_option("--longer-than", longer_than)
        # The broker's filter also selects ids whose last transaction began long ago but has ended, and all ids that
        # have had no transaction. So only ids in the states of open transactions are requested.
        states = states or list(OPEN_STATES)
    wanted = TransactionFilter(states, producer_id, duration_ms, pattern)
    with connect(bootstrap, client).open() as cluster_client:
        listing = list_transactions(cluster_client, wanted)
        if names:
            for each in listing.transactions:
                print(printable(each.transactional_id))
        elif json:
            print_json([listed_json(each) for each in listing.transactions])
        elif listing.transactions:
            columns = [Column("Transactional ID"), Column("State", spare=-1), Column("Producer ID", True, spare=2)]
            rows = [
                (name_text(each.transactional_id), state_text(each.state), str(each.producer_id), str(each.coordinator))
                for each in listing.transactions
            ]
            print_table(Table([*columns, Column("Coordinator", True, spare=1)], rows))
        problems = listing_problems(listing, cluster_client)
        print_notes(problems)
        is_incomplete = warn_of_hidden_transactions(cluster_client) or bool(problems)
    if not listing.transactions and not names and not json and not is_incomplete:
        is_filtered = wanted != TransactionFilter([], [])
        print("No transactional id matches the filters." if is_filtered else NO_TRANSACTIONS, file=sys.stderr)


def parse_duration_option(option: str, text: str) -> int:
    """Return the duration in ms. Raises UsageError."""
    try:
        return round(parse_duration_s(text) * 1000)
    except NotATimeError as error:
        raise UsageError(f"{option}: {error}") from None


@app.command()
def describe(
    transactional_ids: Annotated[
        list[str], typer.Argument(metavar="TRANSACTIONAL_ID...", show_default=False, help="One id or several.")
    ],
    escaped: Escaped = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show a transactional id: its state, its producer and its partitions.

    The partitions are those of the open transaction. While the end of the
    transaction is being written (prepare commit, prepare abort), only the
    partitions that do not have the marker of the end yet are shown.

    A transaction that is open for longer than the timeout is aborted. The
    producer sets this timeout (transaction.timeout.ms).

    Examples:

    $ tidelog transaction describe payments-1
    $ tidelog transaction describe payments-1 --json | jq .[].open_for_ms
    """
    names = parse_group_names(transactional_ids, escaped)
    with connect(bootstrap, client).open() as cluster_client:
        described = describe_transactions(cluster_client, names)
    if json:
        print_json([transaction_json(each) for each in described.transactions.values()])
    else:
        for number, each in enumerate(described.transactions.values()):
            print("\n" * bool(number), end="")
            show_transaction(each)
    sys.stdout.flush()
    raise_together(described.failures.values())


def show_transaction(transaction: "Transaction") -> None:
    details = [
        f"state {state_text(transaction.state)}",
        f"producer id {transaction.producer_id}",
        f"epoch {transaction.producer_epoch}",
        f"coordinator {transaction.coordinator}",
        f"timeout {duration_text(transaction.timeout_ms / 1000)}",
    ]
    if transaction.started_ms is not None and transaction.state in OPEN_STATES:
        details.append(f"open for {duration_text(age_ms(transaction.started_ms) / 1000)}")
    print_heading(name_text(transaction.transactional_id), *details)
    if not transaction.partitions:
        print("No partitions.")
        return
    rows = [(topic, ranges(numbers)) for topic, numbers in indexes_by_topic(sorted(transaction.partitions)).items()]
    print_table(Table([Column("Topic"), Column("Partitions", breaks=True)], rows))


@app.command("describe-producers")
def describe_producers(
    topic: Topics,
    only_open: Annotated[bool, typer.Option("--open", help="Only producers with an open transaction.")] = False,
    broker: BrokerId = None,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show the producers that a partition remembers, and where their open transactions begin.

    Start offset is the first offset of the producer's open transaction, or
    "-" if none is open. Consumers with isolation.level=read_committed wait
    at the lowest of these offsets. Transactional ID is "-" for a producer
    without transactions, and for one that no coordinator knows (see
    find-hanging).

    The leaders of the partitions are asked. With --broker-id, the replicas
    on this broker are asked instead.

    Examples:

    $ tidelog transaction describe-producers --topic orders:0
    $ tidelog transaction describe-producers --topic orders --open
    $ tidelog transaction describe-producers --topic orders:0 --broker-id 2 --json
    """
    wanted = topics_and_partitions(topic)
    with connect(bootstrap, client).open() as cluster_client:
        partitions, not_found = partitions_of_topics(cluster_client, wanted, broker)
        producers, unread = producers_of(cluster_client, partitions, broker)
        rows = [
            (tp, each)
            for tp, own in sorted(producers.items())
            for each in own
            if each.start_offset is not None or not only_open
        ]
        names, problems = names_of_producers(cluster_client, [each.producer_id for _, each in rows])
    failures = [*not_found, *unread.values()]
    if json:
        print_json([producer_json(tp, each) | {"transactional_id": names.get(each.producer_id)} for tp, each in rows])
    elif rows:
        print_table(producers_table(rows, names))
    elif not failures:
        kind = "No transaction is open" if only_open else "No producer id is known"
        place = f" on broker {broker}" if broker is not None else ""
        print(f"{kind} in {', '.join(wanted)}{place}.", file=sys.stderr)
    sys.stdout.flush()
    print_notes(problems)
    raise_together(failures)


def producers_table(rows: "Sequence[tuple[TopicPartition, ActiveProducer]]", names: Mapping[int, str]) -> Table:
    """Return the table of producers. `names` has their transactional ids by producer id."""
    columns = [
        Column("Topic"),
        Column("Partition", True, spare=-1),
        Column("Producer ID", True, spare=-1),
        Column("Epoch", True, spare=1),
        Column("Last sequence", True, spare=3),
        Column("Last write", spare=2),
        Column("Coordinator epoch", True, spare=4),
        Column("Start offset", True, style="yellow", spare=-1),
        Column("Transactional ID"),
    ]
    cells = [
        (
            tp.topic,
            str(tp.partition),
            str(each.producer_id),
            str(each.producer_epoch),
            str(each.last_sequence),
            time_text(each.last_timestamp_ms),
            str(each.coordinator_epoch),
            "-" if each.start_offset is None else str(each.start_offset),
            name_text(names[each.producer_id]) if each.producer_id in names else "-",
        )
        for tp, each in rows
    ]
    return Table(columns, cells, name_columns=3)


app.command("abort")(abort)
app.command("find-hanging")(find_hanging_transactions)
