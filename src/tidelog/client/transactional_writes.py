"""Operations of a producer that writes in transactions (see `operations`): begin, write, commit offsets, end.

A process may end a transaction whose records another process has written. Only the transaction's
`TransactionalProducer` is needed for this. The operations of administrators are in the module `transactions`.

Both versions of the protocol are supported. With version 1, the client adds each partition to the transaction before
the first write to the partition. With version 2 (KIP-890), brokers do this, and the producer's epoch is incremented
when a transaction ends.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.coordinators import (
    CONCURRENT_BACKOFF,
    GROUPS,
    TRANSACTIONS,
    KeyType,
    ask_coordinator,
    cached_coordinators,
    is_concurrent,
)
from tidelog.client.each import Results, is_retriable
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ClientError, Unreachable
from tidelog.client.operations import (
    PRODUCE_BY_NAME,
    Ask,
    AskAny,
    Backoff,
    Operation,
    Produced,
    Request,
    Retries,
    produce,
)
from tidelog.client.transactions import ProducerIdAndEpoch, fence
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.message import Message
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.wire.primitives import Buffer

M = TypeVar("M", bound=Message)

ADD_PARTITIONS_MAX = 3
"""The last version of AddPartitionsToTxn that clients send. Later versions are for brokers."""
PRODUCE_MAX = {1: PRODUCE_BY_NAME - 1, 2: NEWEST}
TXN_OFFSET_COMMIT_MAX = {1: 4, 2: 5}
END_TXN_MAX = {1: 4, 2: 5}
"""The last versions of Produce, TxnOffsetCommit and EndTxn that may be sent, by transaction version. After a request of
a later version, the broker would handle a transaction of version 1 as one of version 2."""
OFFSET_FETCH_BY_NAME = 9
"""The last version of OffsetFetch that identifies topics by name. Later versions use topic ids."""

FENCE_TIMEOUT_MS = 60_000
"""The transaction timeout of a producer that is created only to fence another one, and begins no transaction."""
END_REQUESTS_MAX = 500
"""Upper bound on the EndTxn requests that are sent before the first response is read, so that the requests and the
responses fit into the buffers of the connections."""

FENCING_CODES = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
NOT_OPEN_CODES = FENCING_CODES | {ErrorCode.INVALID_TXN_STATE}
"""Errors of EndTxn that say that the transaction is no longer open, and did not end as requested."""


class TransactionalProducer(NamedTuple):
    """A producer with the epoch of its current transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    """The transaction version: 1 or 2."""


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


class ProducerFenced(ApiError):
    """A newer producer uses the transactional id, or the coordinator aborted the transaction after its timeout."""

    code = ErrorCode.PRODUCER_FENCED


def transaction_version(cluster: Cluster, backoff: Backoff) -> Operation[int]:
    """Return the transaction version of the cluster: 2 if its feature `transaction.version` is 2 or more, else 1."""
    retries = Retries(cluster, backoff, ())
    while True:
        try:
            answer = yield AskAny(ApiVersionsRequest("tidelog", "1"))
            assert isinstance(answer, ApiVersionsResponse)
            levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
            return 2 if levels.get("transaction.version", 0) >= 2 else 1
        except Unreachable as error:
            pause = retries.after(error)
        yield pause


def init_producer(
    cluster: Cluster, backoff: Backoff, transactional_id: str, timeout_ms: int
) -> Operation[TransactionalProducer]:
    """Return a producer that is ready to begin a transaction. Older producers with the transactional id are fenced,
    and their open transaction is aborted.

    The coordinator aborts a transaction that is open for longer than `timeout_ms`. Raises ApiError.
    """
    version = yield from transaction_version(cluster, backoff)
    fenced = yield from fence(cluster, backoff, transactional_id, timeout_ms)
    return TransactionalProducer(transactional_id, fenced.producer_id, fenced.producer_epoch, version)


def add_partitions(
    cluster: Cluster, backoff: Backoff, producer: TransactionalProducer, partitions: Iterable[TopicPartition]
) -> Operation[None]:
    """Add the partitions to the transaction. Transaction version 1 requires this before the first write to them."""
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, AddPartitionsToTxnTopic(tp.topic)).partitions.append(tp.partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=list(topics.values()),
    )

    def codes(answer: AddPartitionsToTxnResponse) -> list[tuple[str, int]]:
        return [
            (str(TopicPartition(topic.name, part.partition_index)), part.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ]

    yield from _ask_coordinator(
        cluster,
        backoff,
        producer,
        (TRANSACTIONS, producer.transactional_id),
        request,
        AddPartitionsToTxnResponse,
        codes,
        ADD_PARTITIONS_MAX,
    )


def produce_in_transaction(
    cluster: Cluster,
    backoff: Backoff,
    producer: TransactionalProducer,
    batches: Mapping[TopicPartition, Buffer],
    timeout_ms: int,
) -> Operation[dict[TopicPartition, Produced]]:
    """Append one record batch to each partition. Each batch must have the producer's id, epoch and next sequence
    number in its header, so that brokers recognise a batch that is sent again.
    """
    try:
        return (
            yield from produce(
                cluster,
                backoff,
                batches,
                -1,
                timeout_ms,
                transactional_id=producer.transactional_id,
                version_max=PRODUCE_MAX[producer.version],
            )
        )
    except ApiError as error:
        raise _explained(error, producer) from error


def commit_offsets(
    cluster: Cluster,
    backoff: Backoff,
    producer: TransactionalProducer,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> Operation[None]:
    """Commit offsets of a group as a part of the transaction. The request names no group member, so brokers do not
    check whether the group has members. The offsets become visible when the transaction is committed.

    Raises OffsetMetadataTooLarge if the metadata is longer than the broker's offset.metadata.max.bytes.
    """
    if producer.version == 1:
        yield from _ask_coordinator(
            cluster,
            backoff,
            producer,
            (TRANSACTIONS, producer.transactional_id),
            AddOffsetsToTxnRequest(producer.transactional_id, producer.producer_id, producer.producer_epoch, group_id),
            AddOffsetsToTxnResponse,
            lambda answer: [(f"group {group_id!r}", answer.error_code)],
            NEWEST,
        )
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for tp, committed in offsets.items():
        topics.setdefault(tp.topic, TxnOffsetCommitRequestTopic(tp.topic)).partitions.append(
            TxnOffsetCommitRequestPartition(tp.partition, committed.offset, committed_metadata=committed.metadata)
        )
    request = TxnOffsetCommitRequest(
        producer.transactional_id,
        group_id,
        producer.producer_id,
        producer.producer_epoch,
        topics=list(topics.values()),
    )

    def codes(answer: TxnOffsetCommitResponse) -> list[tuple[str, int]]:
        return [
            (f"group {group_id!r}, {TopicPartition(topic.name, part.partition_index)}", part.error_code)
            for topic in answer.topics
            for part in topic.partitions
        ]

    yield from _ask_coordinator(
        cluster,
        backoff,
        producer,
        (GROUPS, group_id),
        request,
        TxnOffsetCommitResponse,
        codes,
        TXN_OFFSET_COMMIT_MAX[producer.version],
    )


def end_transactions(
    cluster: Cluster, backoff: Backoff, producers: Sequence[TransactionalProducer], *, commit: bool
) -> Operation[Results[TransactionalProducer, TransactionalProducer]]:
    """Commit or abort the transaction of each producer. If the transaction has ended as requested, in this call or
    earlier, return the producer with which the next transaction begins. Otherwise return the final error.

    Temporary failures are retried. If the call times out, GaveUp is raised, and some transactions may still be open.
    """
    results: Results[TransactionalProducer, TransactionalProducer] = {}
    remaining = list(dict.fromkeys(producers))
    retries = Retries(cluster, CONCURRENT_BACKOFF, ())
    while remaining:
        failures: list[ApiError | Unreachable] = []
        for first in range(0, len(remaining), END_REQUESTS_MAX):
            chunk = remaining[first : first + END_REQUESTS_MAX]
            for producer, result in (yield from _end_each(cluster, chunk, commit=commit)).items():
                if is_retriable(result):
                    failures.append(result)
                    if not is_concurrent(result):
                        cluster.coordinators.pop((TRANSACTIONS.code, producer.transactional_id), None)
                else:
                    results[producer] = result
        remaining = [producer for producer in remaining if producer not in results]
        if failures:
            yield retries.after(failures[0])
    return results


def _end_each(
    cluster: Cluster, producers: Sequence[TransactionalProducer], *, commit: bool
) -> Operation[Results[TransactionalProducer, TransactionalProducer]]:
    """Send each coordinator its EndTxn requests, once."""
    results: Results[TransactionalProducer, TransactionalProducer] = {}
    try:
        addresses = yield from cached_coordinators(cluster, [p.transactional_id for p in producers], TRANSACTIONS)
    except Unreachable as error:
        return dict.fromkeys(producers, error)
    requests: dict[TransactionalProducer, Request] = {}
    for producer in producers:
        address = addresses[producer.transactional_id]
        if isinstance(address, Address):
            request = EndTxnRequest(
                producer.transactional_id, producer.producer_id, producer.producer_epoch, committed=commit
            )
            requests[producer] = Request(address, request, END_TXN_MAX[producer.version])
        else:
            results[producer] = address
    if not requests:
        return results
    answers = yield Ask(list(requests.values()))
    assert isinstance(answers, list)
    for producer, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, EndTxnResponse | ClientError)
        if isinstance(answer, ClientError):
            results[producer] = answer
        elif answer.error_code:
            text = f"transactional id {producer.transactional_id!r}: {error_name(answer.error_code)}"
            results[producer] = _explained(error_for(answer.error_code, text), producer)
        elif producer.version == 1:
            results[producer] = producer
        else:
            results[producer] = producer._replace(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
    return results


def abort_leftovers(
    cluster: Cluster, backoff: Backoff, producers: Sequence[TransactionalProducer]
) -> Operation[Results[TransactionalProducer, None]]:
    """Abort the open transactions of other processes. Fence the processes, so that they cannot begin new transactions.

    A transactional id whose producer id or epoch has changed is left alone: a newer run uses it. Return None for each
    producer that was fenced, and the final error for every other producer. Raises GaveUp when the call times out.

    With version 2, EndTxn raises the epoch. With version 1, EndTxn does not raise it: a process that does not know of
    the abort could add partitions, and so begin a transaction that nobody ends. Therefore, with version 1,
    InitProducerId raises the epoch after EndTxn. InitProducerId alone is not enough, because it aborts an open
    transaction without comparing the epoch, and so could abort the transaction of a newer run.
    """
    results: Results[TransactionalProducer, None] = {}
    for producer, ended in (yield from end_transactions(cluster, backoff, producers, commit=False)).items():
        results[producer] = None if isinstance(ended, TransactionalProducer) else ended
        if producer.version == 1 and results[producer] is None:
            expected = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch)
            try:
                yield from fence(cluster, backoff, producer.transactional_id, FENCE_TIMEOUT_MS, expected)
            except ApiError as error:
                results[producer] = _explained(error, producer)
    return results


def offsets_with_metadata(
    cluster: Cluster, backoff: Backoff, group_id: str, *, require_stable: bool
) -> Operation[dict[TopicPartition, CommittedOffset]]:
    """Return the committed offsets of a group, with their metadata; none if the group does not exist.

    With `require_stable`, if a transaction with offsets of the group is open or is being ended, wait for its end
    (KIP-447). Without `require_stable`, return the offsets from before such a transaction.
    """
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=None)], require_stable=require_stable)

    def codes(answer: OffsetFetchResponse) -> list[tuple[str, int]]:
        return [
            (f"group {group_id!r}", code)
            for group in answer.groups
            for code in (group.error_code, *(part.error_code for topic in group.topics for part in topic.partitions))
        ]

    try:
        answer = yield from ask_coordinator(
            cluster,
            backoff,
            group_id,
            GROUPS,
            request,
            OffsetFetchResponse,
            codes=codes,
            version_max=OFFSET_FETCH_BY_NAME,
        )
    except ApiError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return {}
        raise
    return {
        TopicPartition(topic.name, part.partition_index): CommittedOffset(part.committed_offset, part.metadata or "")
        for group in answer.groups
        for topic in group.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def _ask_coordinator(
    cluster: Cluster,
    backoff: Backoff,
    producer: TransactionalProducer,
    key: tuple[KeyType, str],
    request: Message,
    response_class: type[M],
    codes: Callable[[M], list[tuple[str, int]]],
    version_max: int,
) -> Operation[M]:
    """Send a producer's request with `ask_coordinator`. Raises ProducerFenced for the codes in FENCING_CODES."""
    key_type, name = key
    try:
        return (
            yield from ask_coordinator(
                cluster, backoff, name, key_type, request, response_class, codes=codes, version_max=version_max
            )
        )
    except ApiError as error:
        raise _explained(error, producer) from error


def _explained(error: ApiError, producer: TransactionalProducer) -> ApiError:
    """Return ProducerFenced for an error with a code in FENCING_CODES. Return any other error unchanged."""
    if error.code not in FENCING_CODES:
        return error
    return ProducerFenced(
        f"{error.message}: a newer producer uses transactional id {producer.transactional_id!r}, or the transaction "
        "was aborted after its timeout"
    )
