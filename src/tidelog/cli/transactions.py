"""List and describe transactions for commands, decide which of them hang, and format them as text."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.connection import client_error
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.groups import state_text
from tidelog.cli.offline import find_offline_partitions, warn
from tidelog.cli.own_client import broker_address, broker_addresses
from tidelog.cli.tables import counted, is_terminal, name_text, ranges
from tidelog.cli.when import duration_text, iso_time

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.each import Failure
    from tidelog.client.transactions import (
        ActiveProducer,
        ListedTransaction,
        Transaction,
        TransactionFilter,
        TransactionListing,
    )
    from tidelog.model.ids import TopicPartition

TRANSACTIONS_TOPIC = "__transaction_state"
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
"""The states of a transactional id, in the spelling of brokers."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The states in which a transaction has not ended."""
PARTITIONS_PER_CALL = 1_000
"""Upper bound on the partitions whose producers are requested in one call."""


class DescribedTransactions(NamedTuple):
    """Transactions by transactional id, and the errors for the ids whose transactions are not known."""

    transactions: "dict[str, Transaction]"
    failures: dict[str, CommandError]


class OpenTransaction(NamedTuple):
    """A transaction that is open in one partition."""

    partition: "TopicPartition"
    producer: "ActiveProducer"
    transactional_id: str | None = None
    """Set by `filter_hanging`; None if no coordinator knows the producer id."""

    @property
    def start_offset(self) -> int:
        assert self.producer.start_offset is not None
        return self.producer.start_offset


class HangingTransactions(NamedTuple):
    hanging: list[OpenTransaction]
    problems: list[str]
    """Lines about brokers that did not answer, and about transactions that may or may not hang."""
    failures: "dict[TopicPartition, CommandError]"
    """Partitions whose producers could not be read."""
    open_count: int
    """Number of all open transactions in the searched partitions, hanging or not."""
    young_count: int
    """Number of open transactions that were not examined, because their producers have written within the timeout."""


def parse_states(texts: Iterable[str]) -> list[str]:
    """Return the states in the spelling of brokers. Capital letters, spaces, hyphens and underscores in `texts` make no
    difference: `prepare-commit` and `PrepareCommit` are the same state.

    Raises UsageError for an unknown state.
    """
    by_letters = {_letters(state): state for state in STATES}
    states = []
    for text in texts:
        state = by_letters.get(_letters(text))
        if state is None:
            raise UsageError(f"--state takes one of {', '.join(map(state_option, STATES))}, not {text!r}")
        states.append(state)
    return list(dict.fromkeys(states))


def state_option(state: str) -> str:
    """Return the state as a value of --state: `prepare-commit`."""
    return state_text(state).replace(" ", "-")


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character not in " -_")


# The cluster


def list_transactions(client: "Client", wanted: "TransactionFilter") -> "TransactionListing":
    """Request the transactional ids from every broker. Raises CommandError if every broker refuses, or if a broker
    cannot read the regular expression.
    """
    from tidelog.wire.errors import ApiError, ErrorCode

    listing = client.list_transactions(wanted)
    for failure in listing.failures.values():
        if isinstance(failure, ApiError) and failure.code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise CommandError(f"the broker cannot read the regular expression {wanted.pattern!r} of --pattern")
    if listing.failures and not listing.transactions:
        failures = list(listing.failures.values())
        if all(isinstance(each, Exception) for each in failures) and len(failures) == len(client.cluster.brokers):
            raise client_error(failures[0], "transactions cannot be listed")
    return listing


def listing_problems(listing: "TransactionListing", client: "Client") -> list[str]:
    """Return the lines about transactional ids that may be missing in the list: a line for each broker that did not
    list its transactions, and a line for each requested state that a broker does not know.
    """
    problems = [
        f"broker {_broker_text(client, number)} did not list its transactions, so they are not shown: {failure}"
        for number, failure in listing.failures.items()
    ]
    return problems + [
        f"the state {state_option(state)} is not known to {counted(brokers, 'broker')}, so transactional ids in this"
        " state may be missing"
        for state, brokers in sorted(Counter(listing.unknown_states).items())
    ]


def _broker_text(client: "Client", number: int) -> str:
    address = client.cluster.brokers.get(number)
    return f"{number} ({address})" if address else str(number)


def warn_of_hidden_transactions(client: "Client") -> bool:
    """Warn about partitions of TRANSACTIONS_TOPIC without a leader: no list shows the transactional ids in them. Return
    whether there are such partitions.
    """
    offline = find_offline_partitions(client, [TRANSACTIONS_TOPIC])
    warn(offline, "Transactional ids that are stored there are not shown.")
    return bool(offline)


def describe_transactions(client: "Client", names: Sequence[str]) -> DescribedTransactions:
    """Describe the transactional ids, each of them once, in the order of `names`. The error for an unknown id suggests
    the most similar one.
    """
    import difflib

    from tidelog.client.transactions import TransactionFilter
    from tidelog.wire.errors import ApiError, ErrorCode

    transactions: dict[str, Transaction] = {}
    failures: dict[str, CommandError] = {}
    existing: list[str] | None = None
    unique_names = list(dict.fromkeys(names))
    answers = client.describe_transactions(unique_names)
    for name in unique_names:
        answer = answers[name]
        if not isinstance(answer, Exception):
            transactions[name] = answer
        elif isinstance(answer, ApiError) and answer.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            if existing is None:
                listing = client.list_transactions(TransactionFilter())
                existing = [each.transactional_id for each in listing.transactions]
            similar = difflib.get_close_matches(name, existing, n=1) if name else []
            remedy = f"did you mean {name_text(similar[0])}?" if similar else "tidelog transaction list shows all"
            failures[name] = CommandError(f"no such transactional id: {name_text(name)}; {remedy}")
        else:
            failures[name] = transaction_error(answer, name)
    return DescribedTransactions(transactions, failures)


def describe_one(client: "Client", name: str) -> "Transaction":
    described = describe_transactions(client, [name])
    for failure in described.failures.values():
        raise failure
    return described.transactions[name]


def transaction_error(failure: "Failure", name: str) -> CommandError:
    return client_error(failure, f"transactional id {name_text(name)}")


def partitions_of_topics(
    client: "Client", wanted: Mapping[str, Sequence[int] | None], broker: int | None
) -> "tuple[list[TopicPartition], list[CommandError]]":
    """Return the wanted partitions. `wanted` has the partition numbers of each topic, or None for all partitions of the
    topic. If `wanted` is empty, return the partitions of all topics. With `broker`, return only partitions that have a
    replica on this broker. Also return the failures: wanted topics and partitions that do not exist, and topics that
    cannot be described.

    Raises CommandError for a broker that does not exist, and if the broker has no replica of the wanted partitions.
    """
    from tidelog.model.ids import TopicPartition

    if broker is not None:
        broker_address(broker_addresses(client), broker)
    described = cluster.describe_each(client, list(wanted) or cluster.topic_names(client), skip_missing=not wanted)
    failures = list(described.failures.values())
    partitions = []
    for topic in described.topics:
        numbers = wanted.get(topic.name)
        missing = sorted(set(numbers or ()) - {part.partition for part in topic.partitions})
        if missing:
            failures.append(
                CommandError(
                    f"topic {topic.name} has {counted(len(topic.partitions), 'partition')}:"
                    f" there is no partition {ranges(missing)}"
                )
            )
        partitions += [
            TopicPartition(topic.name, part.partition)
            for part in topic.partitions
            if (numbers is None or part.partition in numbers) and (broker is None or broker in part.replicas)
        ]
    if wanted and broker is not None and not partitions and not failures:
        raise CommandError(f"broker {broker} has no replica of the requested partitions of {', '.join(wanted)}")
    return partitions, failures


def producers_of(
    client: "Client", partitions: "Sequence[TopicPartition]", broker: int | None
) -> "tuple[dict[TopicPartition, list[ActiveProducer]], dict[TopicPartition, CommandError]]":
    """Return two maps by partition: the producers, sorted by producer id, and the errors."""
    producers: dict[TopicPartition, list[ActiveProducer]] = {}
    failures: dict[TopicPartition, CommandError] = {}
    for begin in range(0, len(partitions), PARTITIONS_PER_CALL):
        chunk = partitions[begin : begin + PARTITIONS_PER_CALL]
        for tp, answer in client.describe_producers(chunk, broker).items():
            if isinstance(answer, Exception):
                failures[tp] = client_error(answer, str(tp))
            else:
                producers[tp] = sorted(answer)
    return producers, failures


def find_hanging(
    client: "Client", partitions: "Sequence[TopicPartition]", broker: int | None, timeout_max_ms: int
) -> HangingTransactions:
    """Find the transactions that are open in a partition and that no coordinator will ever end.

    As in Kafka, a transaction hangs if the producer's last record is older than `timeout_max_ms`, and if either no
    coordinator knows the producer id, or the last transaction of the producer's transactional id does not contain the
    partition. A transaction that ended while the coordinators were asked is not returned.
    """
    oldest_ms = time.time_ns() // 1_000_000 - timeout_max_ms
    producers, failures = producers_of(client, partitions, broker)
    open_transactions = [
        OpenTransaction(tp, each) for tp, own in producers.items() for each in own if each.start_offset is not None
    ]
    candidates = [each for each in open_transactions if each.producer.last_timestamp_ms < oldest_ms]
    open_count = len({each.producer.producer_id for each in open_transactions})
    young_count = open_count - len({each.producer.producer_id for each in candidates})
    found, problems = filter_hanging(client, candidates)
    if not found:
        return HangingTransactions([], problems, failures, open_count, young_count)
    producers, more_failures = producers_of(client, list(dict.fromkeys(each.partition for each in found)), broker)
    failures |= more_failures
    still_open = {
        (tp, each.producer_id, each.start_offset)
        for tp, own in producers.items()
        for each in own
        if each.start_offset is not None
    }
    hanging = [each for each in found if (each.partition, each.producer.producer_id, each.start_offset) in still_open]
    return HangingTransactions(hanging, problems, failures, open_count, young_count)


def names_of_producers(client: "Client", producer_ids: Iterable[int]) -> tuple[dict[int, str], list[str]]:
    """Return a dict and a list. The dict has the transactional id of each producer id that has one. The list has a line
    for each broker that did not list its transactional ids.
    """
    from tidelog.client.transactions import TransactionFilter

    wanted = list(dict.fromkeys(producer_ids))
    if not wanted:
        return {}, []
    listing = client.list_transactions(TransactionFilter(producer_ids=wanted))
    problems = [
        f"broker {_broker_text(client, number)} did not list its transactional ids: {failure}"
        for number, failure in listing.failures.items()
    ]
    return {each.producer_id: each.transactional_id for each in listing.transactions}, problems


def filter_hanging(client: "Client", candidates: Sequence[OpenTransaction]) -> tuple[list[OpenTransaction], list[str]]:
    """Return the candidates that hang: no coordinator has a transaction of their producer that contains their
    partition. Also return lines about brokers that did not answer, and about candidates that may or may not hang.
    """
    from tidelog.client.transactions import TransactionFilter

    if not candidates:
        return [], []
    producer_ids = list(dict.fromkeys(each.producer.producer_id for each in candidates))
    listing = client.list_transactions(TransactionFilter(producer_ids=producer_ids))
    by_producer = {each.producer_id: each.transactional_id for each in listing.transactions}
    described = client.describe_transactions(list(by_producer.values())) if by_producer else {}
    hanging: list[OpenTransaction] = []
    problems = [
        f"broker {_broker_text(client, number)} did not list its transactions: {failure}"
        for number, failure in listing.failures.items()
    ]
    for each in candidates:
        name = by_producer.get(each.producer.producer_id)
        if name is None and listing.failures:
            problems.append(
                f"{each.partition}: it is not known whether the transaction that producer {each.producer.producer_id}"
                f" began at offset {each.start_offset} hangs: a broker that may be its coordinator did not answer"
            )
            continue
        answer = described.get(name) if name is not None else None
        if isinstance(answer, Exception) and not _is_not_found(answer):
            assert name is not None
            problems.append(f"{each.partition}: {transaction_error(answer, name)}")
            continue
        if answer is None or isinstance(answer, Exception) or each.partition not in answer.partitions:
            hanging.append(each._replace(transactional_id=name))
    return hanging, problems


def _is_not_found(failure: "Failure") -> bool:
    from tidelog.wire.errors import ApiError, ErrorCode

    return isinstance(failure, ApiError) and failure.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# Output


def age_ms(then_ms: int) -> int:
    """Return how long ago this time was; 0 if it is in the future (the broker's clock may be ahead of this one)."""
    return max(time.time_ns() // 1_000_000 - then_ms, 0)


def time_text(then_ms: int) -> str:
    """Return a time as text for a table: at a terminal, how long ago it was, in the largest unit (`3 min ago`); in a
    pipe, the time in ISO 8601. A negative number means that there is no time; the text is then `-`.
    """
    if then_ms < 0:
        return "-"
    if not is_terminal():
        return iso_time(then_ms)
    number, unit, *_ = duration_text(age_ms(then_ms) // 1000).split()
    return f"{number} {unit} ago"


def listed_json(listed: "ListedTransaction") -> dict[str, Any]:
    return {
        "transactional_id": listed.transactional_id,
        "state": state_text(listed.state),
        "producer_id": listed.producer_id,
        "coordinator": listed.coordinator,
    }


def transaction_json(transaction: "Transaction") -> dict[str, Any]:
    """Return the transaction as JSON. `started_ms` and `open_for_ms` are null if no transaction is open.

    These fields depend on the state, because a broker still reports the start of a transaction after its end.
    """
    started_ms = transaction.started_ms if transaction.state in OPEN_STATES else None
    return {
        "transactional_id": transaction.transactional_id,
        "state": state_text(transaction.state),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "coordinator": transaction.coordinator,
        "timeout_ms": transaction.timeout_ms,
        "started_ms": started_ms,
        "open_for_ms": None if started_ms is None else age_ms(started_ms),
        "partitions": [{"topic": topic, "partition": number} for topic, number in sorted(transaction.partitions)],
    }


def producer_json(tp: "TopicPartition", producer: "ActiveProducer") -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "start_offset": producer.start_offset,
    }
