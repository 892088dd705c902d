"""The driver's part of the exactly-once sink: decide about a micro-batch, then end the transactions of its tasks."""

import logging
from collections.abc import Iterable, Sequence

from pyspark_tidelog.errors import WriteError
from pyspark_tidelog.exactly_once.decision import (
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    OFFSETS_TOPIC,
    BatchIdentity,
    Decision,
    TaskTransaction,
    decode,
    encode,
    group_of,
    is_task_id,
)
from pyspark_tidelog.exactly_once.task import TaskResult
from tidelog.client.blocking import Client
from tidelog.client.errors import ClientError
from tidelog.client.transactional_writes import NOT_OPEN_CODES, TransactionalProducer
from tidelog.client.transactions import Transaction, TransactionFilter
from tidelog.wire.errors import ApiError, ErrorCode, OffsetMetadataTooLarge, UnknownTopicOrPartition

logger = logging.getLogger("tidelog.spark")

DECISION_TIMEOUT_MS = 60_000
"""Timeout of the transaction of a decision. It is open for some milliseconds."""
ONGOING = "Ongoing"
TIMEOUT_REMEDY = (
    "raise option kafka.transaction.timeout.ms (up to the broker's transaction.max.timeout.ms), or make the "
    "micro-batches smaller; a second job with the same query id also aborts them"
)


def read_decision(client: Client, query: str) -> Decision:
    """Return the last decision of the query, for a task. If a driver decides at present, this may be the decision
    before; then the task writes, and its driver aborts what it has written. A task does not wait for the end of the
    decision, because a killed driver's decision remains open until its timeout.

    Raises WriteError if the group's offsets are not a decision.
    """
    return decode(query, client.offsets_with_metadata(group_of(query), require_stable=False))


def _begin_to_decide(client: Client, query: str) -> tuple[TransactionalProducer, Decision]:
    """Fence older drivers of the query, and abort their unfinished decision. Return the producer of a new decision,
    and the last decision, which no other driver can change unless it fences this one.
    """
    driver = client.init_producer(group_of(query), DECISION_TIMEOUT_MS)
    return driver, decode(query, client.offsets_with_metadata(group_of(query), require_stable=True))


def commit_batch(client: Client, identity: BatchIdentity, results: Sequence[TaskResult]) -> None:
    """Decide that the transactions of these tasks are the micro-batch, and commit them.

    If the micro-batch is decided already, commit the transactions of that decision, and abort those of these tasks.
    Raises WriteError, and ProducerFenced if another driver of the query decides at the same time.
    """
    own = _transactions(results)
    driver, earlier = _begin_to_decide(client, identity.query)
    if earlier.covers(identity.batch):
        _finish_earlier(client, identity, earlier, own)
        return
    written = earlier.transactions if earlier.batch == identity.batch else ()
    if written and earlier.tasks != len(results):
        raise WriteError(
            f"{identity} was written in part, by {earlier.tasks} tasks, and now it has {len(results)}: run the query "
            "again with the same input and settings, so that only the missing rows are written"
        )
    if sum(result.is_skipped for result in results) != len(written):
        raise WriteError(
            f"the decision about {identity} in group {group_of(identity.query)!r} changed while its tasks ran: "
            "run the query again"
        )
    if not own:
        return
    unlisted = _check_open(client, identity, own)
    decision = Decision(identity.batch, len(results), (*written, *own))
    _commit_decision(client, driver, identity.query, decision)
    _finish(client, identity, decision)
    _abort(client, unlisted)


def abort_batch(client: Client, identity: BatchIdentity, results: Iterable[TaskResult]) -> None:
    """Abort the transactions of these tasks, unless a decision lists them. In this case, commit them."""
    own = _transactions(results)
    if not own:
        return
    _, earlier = _begin_to_decide(client, identity.query)
    if earlier.covers(identity.batch):
        _finish_earlier(client, identity, earlier, own)
    else:
        _abort(client, [each.producer for each in own])


def _transactions(results: Iterable[TaskResult]) -> list[TaskTransaction]:
    return [result.transaction for result in results if result.transaction is not None]


def _finish_earlier(
    client: Client, identity: BatchIdentity, decision: Decision, own: Sequence[TaskTransaction]
) -> None:
    """Finish what an earlier driver, or an earlier attempt, has decided about the micro-batch."""
    if decision.batch == identity.batch:
        _finish(client, identity, decision)
    else:
        logger.warning(
            "%s was written earlier, and batch %d after it: its rows are not written again", identity, decision.batch
        )
    _abort(client, [each.producer for each in own if each not in decision.transactions])


def _check_open(client: Client, identity: BatchIdentity, own: Sequence[TaskTransaction]) -> list[TransactionalProducer]:
    """Raise WriteError if a transaction of the micro-batch is no longer open. Return the other open transactions of
    the query: of failed and repeated tasks, and of drivers that were killed.
    """
    listing = client.list_transactions(TransactionFilter(states=(ONGOING,)))
    names = {each.producer.transactional_id for each in own}
    unlisted_names = {
        each.transactional_id for each in listing.transactions if is_task_id(identity.query, each.transactional_id)
    } - names
    described = client.describe_transactions([*names, *sorted(unlisted_names)])
    lost = [each.producer for each in own if not _is_open(described[each.producer.transactional_id], each.producer)]
    if lost:
        raise WriteError(
            f"{identity} is not written: {len(lost)} of its {len(own)} transactions were aborted before the driver "
            f"could decide, the first is {lost[0].transactional_id!r}: {TIMEOUT_REMEDY}"
        )
    version = own[0].producer.version
    return [
        TransactionalProducer(name, state.producer_id, state.producer_epoch, version)
        for name in sorted(unlisted_names)
        if isinstance(state := described[name], Transaction) and state.state == ONGOING
    ]


def _is_open(state: object, producer: TransactionalProducer) -> bool:
    if isinstance(state, ClientError) or (isinstance(state, ApiError) and state.retriable):
        raise state
    return (
        isinstance(state, Transaction)
        and state.state == ONGOING
        and (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    )


def _commit_decision(client: Client, driver: TransactionalProducer, query: str, decision: Decision) -> None:
    """Commit the decision in the driver's transaction. Raises ProducerFenced if another driver has begun to decide."""
    chunk_bytes = CHUNK_BYTES
    while True:
        try:
            offsets = encode(query, decision, chunk_bytes)
            client.commit_in_transaction(driver, group_of(query), offsets)
            break
        except UnknownTopicOrPartition as error:
            raise WriteError(
                f"the decision about batch {decision.batch} of query {query} needs {len(offsets)} partitions of "
                f"{OFFSETS_TOPIC}, and there are fewer: write with fewer tasks (coalesce), or raise the broker's "
                "offset.metadata.max.bytes"
            ) from error
        except OffsetMetadataTooLarge as error:
            # Of a smaller size there are more chunks. So every chunk that the broker has accepted is replaced.
            chunk_bytes //= 2
            if chunk_bytes < CHUNK_BYTES_MIN:
                raise OffsetMetadataTooLarge(
                    f"{error.message}: raise the broker's offset.metadata.max.bytes to {CHUNK_BYTES_MIN} or more"
                ) from error
    failure = client.end_transactions([driver], commit=True)[driver]
    if failure is not None:
        raise failure


def _finish(client: Client, identity: BatchIdentity, decision: Decision) -> None:
    """Commit all transactions of the decision. Those that were committed earlier remain committed.

    If the coordinator has aborted some of them after their timeout, revoke the decision and raise WriteError: when the
    query runs again, the tasks of these transactions write their rows again, and the other tasks do not.
    """
    results = client.end_transactions([each.producer for each in decision.transactions], commit=True)
    aborted = set()
    for producer, failure in results.items():
        if isinstance(failure, ApiError) and failure.code in NOT_OPEN_CODES:
            aborted.add(producer)
        elif isinstance(failure, ApiError) and failure.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            raise WriteError(
                f"the brokers no longer know the transactions of {identity} (their transactional.id.expiration.ms has "
                "passed), so it is unknown whether the batch was written as a whole: compare the topic with the "
                f"query's input. If rows are missing, delete the group {group_of(identity.query)!r}, and the batch is "
                "written again. If none are missing, continue with the next batch"
            ) from failure
        elif failure is not None:
            raise failure
    if not aborted:
        return
    committed = tuple(each for each in decision.transactions if each.producer not in aborted)
    driver, current = _begin_to_decide(client, identity.query)
    if current == decision:
        revoked = decision._replace(transactions=committed, is_partial=True)
        _commit_decision(client, driver, identity.query, revoked)
    raise WriteError(
        f"{len(aborted)} of the {len(results)} transactions of {identity} were aborted after the decision to commit "
        "them, because no driver committed them within their timeout: run the query again, and it writes their rows "
        "again; to prevent this, raise option kafka.transaction.timeout.ms"
    )


def _abort(client: Client, transactions: Sequence[TransactionalProducer]) -> None:
    """Abort the transactions, so that readers need not wait for their timeouts. A failure is only logged."""
    try:
        client.end_transactions(transactions, commit=False)
    except (ApiError, ClientError) as error:
        logger.warning("transactions of the query remain open until their timeout: %s", error)
