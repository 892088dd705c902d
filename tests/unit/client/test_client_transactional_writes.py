"""Decisions of a transactional producer, with the test as brokers: requests, versions, repetitions, errors."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.errors import BrokerUnreachable, ClientError, GaveUp
from tidelog.client.operations import Answer, Ask, AskAny, Backoff, Effect, Operation, Pause
from tidelog.client.transactional_writes import (
    CommittedOffset,
    ProducerFenced,
    TransactionalProducer,
    abort_leftovers,
    add_partitions,
    commit_offsets,
    end_transactions,
    init_producer,
    offsets_with_metadata,
    produce_in_transaction,
)
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode, OffsetMetadataTooLarge
from tidelog.wire.message import Message
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.find_coordinator import Coordinator as FoundCoordinator
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

T = TypeVar("T")

BACKOFF = Backoff(100, 300)
ONE, TWO = Address("one", 9092), Address("two", 9092)
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST, SECOND = TransactionalProducer("a", 5, 1, 1), TransactionalProducer("b", 6, 2, 2)


class Brokers:
    """Runs an operation. Each coordinator is broker ONE until `coordinator` is changed. `answers` has the answers for
    each class of requests, in order; the last one is repeated.
    """

    def __init__(self, **answers: Message | ClientError | Sequence[Message | ClientError]) -> None:
        self.cluster = Cluster([ONE])
        self.coordinator = ONE
        self.version = 2
        self._answers = {
            name: list(given) if isinstance(given, list | tuple) else [given] for name, given in answers.items()
        }
        self.sent: list[tuple[Address, Message, int]] = []
        self.lookups = 0
        self.pauses: list[Pause] = []

    def run(self, operation: Operation[T]) -> T:
        try:
            effect = next(operation)
            while True:
                effect = operation.send(self._answer(effect))
        except StopIteration as stop:
            value: T = stop.value
            return value

    def requests(self, kind: type[Message]) -> list[tuple[Message, int]]:
        return [(message, version_max) for _, message, version_max in self.sent if isinstance(message, kind)]

    def _answer(self, effect: Effect) -> Answer:
        if isinstance(effect, AskAny):
            return self._answer_any(effect.request)
        if isinstance(effect, Ask):
            self.sent += [(r.address, r.message, r.version_max) for r in effect.requests]
            return [self._next(r.message) for r in effect.requests]
        self.pauses.append(effect)
        if len(self.pauses) > 20:
            raise GaveUp("no time left") from effect.because
        return None

    def _answer_any(self, request: Message) -> Message:
        if isinstance(request, FindCoordinatorRequest):
            self.lookups += 1
            host, port = self.coordinator
            return FindCoordinatorResponse(
                coordinators=[FoundCoordinator(key, 1, host, port) for key in request.coordinator_keys]
            )
        if isinstance(request, MetadataRequest):
            partitions = [MetadataResponsePartition(partition_index=0, leader_id=1)]
            topic = MetadataResponseTopic(name="orders", topic_id=bytes(range(16)), partitions=partitions)
            return MetadataResponse(brokers=[MetadataResponseBroker(1, *ONE)], topics=[topic])
        assert isinstance(request, ApiVersionsRequest)
        features = [FinalizedFeatureKey("transaction.version", self.version, 0)] if self.version else []
        return ApiVersionsResponse(finalized_features=features)

    def _next(self, request: Message) -> Message | ClientError:
        answers = self._answers[request.name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def added(*codes: int) -> AddPartitionsToTxnResponse:
    results = [AddPartitionsToTxnPartitionResult(number, code) for number, code in enumerate(codes)]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[AddPartitionsToTxnTopicResult("orders", results)])


def committed(*codes: int) -> TxnOffsetCommitResponse:
    parts = [TxnOffsetCommitResponsePartition(number, code) for number, code in enumerate(codes)]
    return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic("orders", parts)])


def ended(code: int = 0) -> EndTxnResponse:
    return EndTxnResponse(error_code=code)


@pytest.mark.parametrize(("level", "version"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_the_cluster_determines_the_transaction_version(level: int, version: int) -> None:
    brokers = Brokers(
        InitProducerId=(
            InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
            InitProducerIdResponse(producer_id=5, producer_epoch=3),
        )
    )
    brokers.version = level
    producer = brokers.run(init_producer(brokers.cluster, BACKOFF, "a", 7000))
    assert producer == TransactionalProducer("a", 5, 3, version)
    assert [pause.delay_ms for pause in brokers.pauses] == [5]  # the markers are written within milliseconds
    [request, _] = brokers.requests(InitProducerIdRequest)
    assert isinstance(request[0], InitProducerIdRequest)
    assert (request[0].transactional_id, request[0].transaction_timeout_ms) == ("a", 7000)


def test_a_coordinator_is_found_once_and_again_after_it_has_moved() -> None:
    brokers = Brokers(AddPartitionsToTxn=(added(0, 0), added(ErrorCode.NOT_COORDINATOR, 0), added(0, 0)))
    brokers.run(add_partitions(brokers.cluster, BACKOFF, FIRST, [ORDERS_0, ORDERS_1]))
    brokers.coordinator = TWO
    brokers.run(add_partitions(brokers.cluster, BACKOFF, FIRST, [ORDERS_0, ORDERS_1]))
    assert [address for address, _, _ in brokers.sent] == [ONE, ONE, TWO]
    assert brokers.lookups == 2
    message, version_max = brokers.requests(AddPartitionsToTxnRequest)[0]
    assert isinstance(message, AddPartitionsToTxnRequest)
    assert (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch, version_max) == (5, 1, 3)
    assert [(topic.name, topic.partitions) for topic in message.v3_and_below_topics] == [("orders", [0, 1])]


def test_a_coordinator_is_not_looked_up_again_while_it_ends_the_last_transaction() -> None:
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    brokers = Brokers(
        AddPartitionsToTxn=(added(concurrent, concurrent), added(0, 0)), EndTxn=(ended(concurrent), ended())
    )
    brokers.run(add_partitions(brokers.cluster, BACKOFF, FIRST, [ORDERS_0, ORDERS_1]))
    brokers.run(end_transactions(brokers.cluster, BACKOFF, [FIRST], commit=True))
    assert [address for address, _, _ in brokers.sent] == [ONE] * 4
    assert brokers.lookups == 1


def test_a_final_error_of_one_partition_precedes_a_temporary_one() -> None:
    brokers = Brokers(AddPartitionsToTxn=added(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE))
    with pytest.raises(ApiError, match="orders-1: INVALID_TXN_STATE"):
        brokers.run(add_partitions(brokers.cluster, BACKOFF, FIRST, [ORDERS_0, ORDERS_1]))
    assert brokers.pauses == []


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_fencing_is_a_clear_error_of_every_request(code: ErrorCode) -> None:
    refused = TopicProduceResponse(
        topic_id=bytes(range(16)), partition_responses=[PartitionProduceResponse(0, error_code=code)]
    )
    brokers = Brokers(
        AddPartitionsToTxn=added(code),
        AddOffsetsToTxn=AddOffsetsToTxnResponse(error_code=code),
        TxnOffsetCommit=committed(code),
        EndTxn=ended(code),
        Produce=ProduceResponse(responses=[refused]),
    )
    operations: list[Callable[[], Operation[object]]] = [
        lambda: add_partitions(brokers.cluster, BACKOFF, FIRST, [ORDERS_0]),
        lambda: commit_offsets(brokers.cluster, BACKOFF, FIRST, "g", {ORDERS_0: CommittedOffset(1, "")}),
        lambda: commit_offsets(brokers.cluster, BACKOFF, SECOND, "g", {ORDERS_0: CommittedOffset(1, "")}),
        lambda: produce_in_transaction(brokers.cluster, BACKOFF, FIRST, {ORDERS_0: b"batch"}, 9),
    ]
    for operation in operations:
        with pytest.raises(ProducerFenced, match=r"a newer producer uses transactional id .[ab]."):
            brokers.run(operation())
    failure = brokers.run(end_transactions(brokers.cluster, BACKOFF, [FIRST], commit=True))[FIRST]
    assert isinstance(failure, ProducerFenced)
    assert brokers.pauses == []


@pytest.mark.parametrize(
    ("producer", "produce_max", "commit_max", "end_max", "adds"), [(FIRST, 11, 4, 4, 1), (SECOND, NEWEST, 5, 5, 0)]
)
def test_requests_have_the_versions_of_the_transaction_version(
    producer: TransactionalProducer, produce_max: int, commit_max: int, end_max: int, adds: int
) -> None:
    produced = TopicProduceResponse(
        topic_id=bytes(range(16)), partition_responses=[PartitionProduceResponse(0, base_offset=4)]
    )
    brokers = Brokers(
        AddOffsetsToTxn=AddOffsetsToTxnResponse(),
        TxnOffsetCommit=committed(0),
        EndTxn=EndTxnResponse(producer_id=9, producer_epoch=0),
        Produce=ProduceResponse(responses=[produced]),
    )
    offsets = {ORDERS_0: CommittedOffset(8, "text")}
    result = brokers.run(produce_in_transaction(brokers.cluster, BACKOFF, producer, {ORDERS_0: b"batch"}, 9))
    assert result[ORDERS_0].base_offset == 4
    brokers.run(commit_offsets(brokers.cluster, BACKOFF, producer, "g", offsets))
    following = {FIRST: FIRST, SECOND: SECOND._replace(producer_id=9, producer_epoch=0)}[producer]
    assert brokers.run(end_transactions(brokers.cluster, BACKOFF, [producer], commit=True)) == {producer: following}
    versions = [
        [version_max for _, version_max in brokers.requests(kind)]
        for kind in (ProduceRequest, TxnOffsetCommitRequest, EndTxnRequest)
    ]
    assert versions == [[produce_max], [commit_max], [end_max]]
    assert len(brokers.requests(AddOffsetsToTxnRequest)) == adds
    [(produce, _)], [(commit, _)] = brokers.requests(ProduceRequest), brokers.requests(TxnOffsetCommitRequest)
    assert isinstance(produce, ProduceRequest)
    assert isinstance(commit, TxnOffsetCommitRequest)
    assert (produce.transactional_id, produce.acks) == (producer.transactional_id, -1)
    part = commit.topics[0].partitions[0]
    assert (commit.group_id, commit.generation_id, commit.member_id) == ("g", -1, "")
    assert (part.committed_offset, part.committed_metadata) == (8, "text")


def test_metadata_that_is_too_long_is_an_error_of_its_own() -> None:
    brokers = Brokers(TxnOffsetCommit=committed(ErrorCode.OFFSET_METADATA_TOO_LARGE))
    with pytest.raises(OffsetMetadataTooLarge, match="group 'g', orders-0"):
        brokers.run(commit_offsets(brokers.cluster, BACKOFF, SECOND, "g", {ORDERS_0: CommittedOffset(1, "x")}))


def test_transactions_end_independently_and_only_temporary_failures_are_repeated() -> None:
    third = TransactionalProducer("c", 7, 0, 2)
    brokers = Brokers(
        EndTxn=(
            ended(ErrorCode.CONCURRENT_TRANSACTIONS),
            ended(ErrorCode.INVALID_TXN_STATE),
            BrokerUnreachable(ONE, "no route"),
            ended(),
            ended(),
        )
    )
    results = brokers.run(end_transactions(brokers.cluster, BACKOFF, [FIRST, SECOND, third, FIRST], commit=False))
    assert [producer for producer, result in results.items() if isinstance(result, TransactionalProducer)] == [
        FIRST,
        third,
    ]
    failure = results[SECOND]
    assert isinstance(failure, ApiError)
    assert failure.code == ErrorCode.INVALID_TXN_STATE
    requests = [message for message, _ in brokers.requests(EndTxnRequest)]
    assert [(m.transactional_id, m.committed) for m in requests if isinstance(m, EndTxnRequest)] == [
        (name, False) for name in ("a", "b", "c", "a", "c")
    ]
    assert len(brokers.pauses) == 1


def test_transactions_that_cannot_end_in_time_are_an_error() -> None:
    brokers = Brokers(EndTxn=ended(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    with pytest.raises(GaveUp):
        brokers.run(end_transactions(brokers.cluster, BACKOFF, [FIRST], commit=True))
    assert brokers.run(end_transactions(brokers.cluster, BACKOFF, [], commit=True)) == {}


def test_a_leftover_is_fenced_by_its_epoch_also_with_version_1() -> None:
    """Version 2 raises the epoch when the transaction ends. InitProducerId alone would abort a newer transaction."""
    third = TransactionalProducer("c", 7, 3, 1)
    brokers = Brokers(
        EndTxn=(ended(), ended(), ended(ErrorCode.PRODUCER_FENCED)),
        InitProducerId=InitProducerIdResponse(producer_id=5, producer_epoch=2),
    )
    results = brokers.run(abort_leftovers(brokers.cluster, BACKOFF, [FIRST, SECOND, third]))
    assert [results[FIRST], results[SECOND]] == [None, None]
    assert isinstance(results[third], ProducerFenced)
    [(request, _)] = brokers.requests(InitProducerIdRequest)
    assert isinstance(request, InitProducerIdRequest)
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("a", 5, 1)
    assert [m.committed for m, _ in brokers.requests(EndTxnRequest) if isinstance(m, EndTxnRequest)] == [False] * 3
    brokers = Brokers(EndTxn=ended(), InitProducerId=InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED))
    [failure] = brokers.run(abort_leftovers(brokers.cluster, BACKOFF, [FIRST])).values()
    assert isinstance(failure, ProducerFenced)


def test_markers_are_awaited_with_short_pauses_and_other_errors_with_the_usual_ones() -> None:
    codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    brokers = Brokers(TxnOffsetCommit=[*map(committed, codes), committed(0)])
    brokers.run(commit_offsets(brokers.cluster, BACKOFF, SECOND, "g", {ORDERS_0: CommittedOffset(1, "")}))
    assert [pause.delay_ms for pause in brokers.pauses] == [5, 200, 10, 300]


def offsets(code: int, *parts: OffsetFetchResponsePartitions) -> OffsetFetchResponse:
    topics = [OffsetFetchResponseTopics("orders", partitions=list(parts))]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g", topics=topics, error_code=code)])


def test_offsets_are_read_when_no_transaction_can_change_them_any_more() -> None:
    unstable = OffsetFetchResponsePartitions(0, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    brokers = Brokers(
        OffsetFetch=(
            offsets(0, unstable),
            offsets(
                0, OffsetFetchResponsePartitions(0, 4, metadata="m"), OffsetFetchResponsePartitions(1, -1, metadata="")
            ),
        )
    )
    assert brokers.run(offsets_with_metadata(brokers.cluster, BACKOFF, "g", require_stable=True)) == {
        ORDERS_0: CommittedOffset(4, "m")
    }
    [(request, version_max), _] = brokers.requests(OffsetFetchRequest)
    assert isinstance(request, OffsetFetchRequest)
    assert (request.require_stable, version_max) == (True, 9)
    assert len(brokers.pauses) == 1
    brokers = Brokers(OffsetFetch=offsets(ErrorCode.GROUP_ID_NOT_FOUND))
    assert brokers.run(offsets_with_metadata(brokers.cluster, BACKOFF, "g", require_stable=True)) == {}
    brokers = Brokers(OffsetFetch=offsets(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(ApiError, match="group 'g': GROUP_AUTHORIZATION_FAILED"):
        brokers.run(offsets_with_metadata(brokers.cluster, BACKOFF, "g", require_stable=True))
