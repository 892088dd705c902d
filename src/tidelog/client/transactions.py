"""Operations on transactions (see `operations`). Each transactional id, partition and broker has its own result or
failure.

A transactional id may be any string that a broker sends: empty, with a NUL, or not UTF-8 (see
`ClientConnection.answer`).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.coordinators import TRANSACTIONS, ask_coordinator, ask_coordinators
from tidelog.client.each import Failure, Results, ask_each, brokers, retry_temporary_failures
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ClientError, Unreachable
from tidelog.client.operations import Ask, Backoff, Operation, Request, Retries
from tidelog.client.partitions import complete, leaders
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, error_for
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from tidelog.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from tidelog.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class TransactionFilter(NamedTuple):
    """Conditions for transactional ids. A broker lists only the ids that satisfy all conditions."""

    states: Sequence[str] = ()
    """States in the spelling of brokers (`PrepareCommit`); empty for all states."""
    producer_ids: Sequence[int] = ()
    """Empty for all producer ids."""
    duration_ms: int = -1
    """Only ids whose last transaction began longer ago than this, even if that transaction has ended; -1 for all."""
    pattern: str | None = None
    """A regular expression that the whole transactional id must match (KIP-1152); None for all."""


class ListedTransaction(NamedTuple):
    transactional_id: str
    coordinator: int
    """The broker id of the coordinator."""
    producer_id: int
    state: str


class TransactionListing(NamedTuple):
    transactions: list[ListedTransaction]
    failures: dict[int, Failure]
    """The brokers that did not list their transactions, each with the reason."""
    unknown_states: list[str]
    """The filter's states that at least one broker does not know."""


class Transaction(NamedTuple):
    """The transactional id's last transaction, as its coordinator describes it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    """Time at which the last transaction began, even if it has ended; None if there was no transaction."""
    partitions: list[TopicPartition]
    """Partitions of the transaction whose markers are not written yet."""


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    """Epoch of the coordinator that wrote the last marker for the producer; -1 if the partition has no such marker."""
    start_offset: int | None
    """First offset of the producer's open transaction in this partition; None if there is no such transaction."""


class ProducerIdAndEpoch(NamedTuple):
    """The producer id and the producer epoch of a transactional id, for example as `fence` returns them."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = ProducerIdAndEpoch(-1, -1)


def list_transactions(cluster: Cluster, backoff: Backoff, wanted: TransactionFilter) -> Operation[TransactionListing]:
    """Ask each broker for the transactional ids that it coordinates. Return all these transactional ids, sorted. Raises
    GaveUp when no broker answers in time.

    A broker whose version cannot express the filter has an entry in `failures`.
    """
    addresses = yield from brokers(cluster, backoff)
    request = ListTransactionsRequest(
        list(wanted.states), list(wanted.producer_ids), wanted.duration_ms, wanted.pattern
    )

    def attempt(numbers: list[int]) -> Operation[Results[int, ListTransactionsResponse]]:
        requests = [(addresses[number], request) for number in numbers]
        answers = yield from ask_each(requests, ListTransactionsResponse, NEWEST)
        return dict(zip(numbers, map(_listed, answers), strict=True))

    results = yield from retry_temporary_failures(backoff, addresses, attempt)
    listing = TransactionListing([], {}, [])
    for number, result in results.items():
        if isinstance(result, ListTransactionsResponse):
            listing.unknown_states.extend(result.unknown_state_filters)
            for each in result.transaction_states:
                listing.transactions.append(
                    ListedTransaction(each.transactional_id, number, each.producer_id, each.transaction_state)
                )
        else:
            listing.failures[number] = result
    listing.transactions.sort()
    return listing


def _listed(answer: ListTransactionsResponse | ClientError) -> ListTransactionsResponse | Failure:
    if isinstance(answer, ListTransactionsResponse) and answer.error_code:
        return error_for(answer.error_code, error_name(answer.error_code))
    return answer


def describe_transactions(
    cluster: Cluster, backoff: Backoff, transactional_ids: Iterable[str], *, until_timeout: bool = False
) -> Operation[Results[str, Transaction]]:
    """Return the state of each transactional id. An unknown id fails with TRANSACTIONAL_ID_NOT_FOUND.

    `until_timeout` is for callers that cannot continue without the states: see `each.retry_temporary_failures`.
    """

    def attempt(names: list[str]) -> Operation[Results[str, Transaction]]:
        return (
            yield from ask_coordinators(
                names,
                lambda ids: DescribeTransactionsRequest(transactional_ids=ids),
                DescribeTransactionsResponse,
                _described,
                key_type=TRANSACTIONS,
            )
        )

    return (yield from retry_temporary_failures(backoff, transactional_ids, attempt, until_timeout=until_timeout))


def _described(answer: DescribeTransactionsResponse, coordinator: int) -> Results[str, Transaction]:
    return {each.transactional_id: _transaction(each, coordinator) for each in answer.transaction_states}


def _transaction(state: DescribedTransaction, coordinator: int) -> Transaction | ApiError:
    if state.error_code:
        return error_for(state.error_code, error_name(state.error_code))
    return Transaction(
        state.transactional_id,
        coordinator,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        [TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions],
    )


def describe_producers(
    cluster: Cluster, backoff: Backoff, partitions: Iterable[TopicPartition], broker_id: int | None = None
) -> Operation[Results[TopicPartition, list[ActiveProducer]]]:
    """Return the producers that each partition remembers: at its leader, or at its replica on the given broker."""

    def attempt(remaining: list[TopicPartition]) -> Operation[Results[TopicPartition, list[ActiveProducer]]]:
        results: Results[TopicPartition, list[ActiveProducer]] = {}
        if broker_id is None:
            by_broker = yield from leaders(cluster, remaining, results)
        else:
            by_broker = {(yield from _address(cluster, backoff, broker_id)): remaining}
        requests = [(address, _producers_request(own)) for address, own in by_broker.items()]
        answers = yield from ask_each(requests, DescribeProducersResponse, NEWEST)
        for own, answer in zip(by_broker.values(), answers, strict=True):
            if isinstance(answer, ClientError):
                results |= dict.fromkeys(own, answer)
                continue
            for topic in answer.topics:
                for part in topic.partitions:
                    results[TopicPartition(topic.name, part.partition_index)] = _producers(part)
        return complete(cluster, remaining, results)

    return (yield from retry_temporary_failures(backoff, partitions, attempt))


def _address(cluster: Cluster, backoff: Backoff, broker_id: int) -> Operation[Address]:
    addresses = yield from brokers(cluster, backoff)
    if broker_id not in addresses:
        raise ApiError(f"there is no broker {broker_id}; the cluster has {', '.join(map(str, addresses))}")
    return addresses[broker_id]


def _producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, TopicRequest] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, TopicRequest(tp.topic)).partition_indexes.append(tp.partition)
    return DescribeProducersRequest(topics=list(topics.values()))


def _producers(part: PartitionResponse) -> list[ActiveProducer] | ApiError:
    if part.error_code:
        return error_for(part.error_code, part.error_message or error_name(part.error_code))
    return [
        ActiveProducer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
        )
        for each in part.active_producers
    ]


def abort_in_partition(
    cluster: Cluster, backoff: Backoff, partition: TopicPartition, producer: ActiveProducer
) -> Operation[None]:
    """Write an abort marker for the producer to one partition, without the transaction's coordinator.

    Raises ApiError if the leader refuses the marker.
    """
    topics = [WritableTxnMarkerTopic(partition.topic, [partition.partition])]
    marker = WritableTxnMarker(
        producer.producer_id, producer.producer_epoch, False, topics, max(producer.coordinator_epoch, 0)
    )
    retries = Retries(cluster, backoff, [partition.topic])
    while True:
        try:
            unreachable: Results[TopicPartition, None] = {}
            by_leader = yield from leaders(cluster, [partition], unreachable)
            for failure in unreachable.values():
                assert failure is not None
                raise failure
            answers = yield Ask([Request(address, WriteTxnMarkersRequest([marker])) for address in by_leader])
            assert isinstance(answers, list)
            (answer,) = answers
            if isinstance(answer, ClientError):
                raise answer
            assert isinstance(answer, WriteTxnMarkersResponse)
            for code in (p.error_code for m in answer.markers for t in m.topics for p in t.partitions):
                if code:
                    raise error_for(code, f"{partition}: {error_name(code)}")
            return
        except (ApiError, Unreachable) as error:
            pause = retries.after(error)
        yield pause


def fence(
    cluster: Cluster,
    backoff: Backoff,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch = NO_PRODUCER,
) -> Operation[ProducerIdAndEpoch]:
    """Fence the producers of a transactional id, and abort its open transaction, as a new producer does when it begins
    (InitProducerId).

    Returns when all markers are written. Until then, the coordinator answers CONCURRENT_TRANSACTIONS, and the request
    is sent again.

    With `expected`, raises ApiError PRODUCER_FENCED if the transactional id has another producer id, or if it has
    another epoch and no open transaction (KIP-360). An open transaction is aborted even if its epoch is not the
    expected epoch. Also raises ApiError for every other error that is not retriable.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=expected.producer_id,
        producer_epoch=expected.producer_epoch,
    )
    answer = yield from ask_coordinator(
        cluster, backoff, transactional_id, TRANSACTIONS, request, InitProducerIdResponse
    )
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
