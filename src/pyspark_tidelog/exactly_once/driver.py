"""The driver's part of the exactly-once sink: decide about a micro-batch, then end the transactions of its tasks."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark_tidelog.errors import WriteError
from pyspark_tidelog.exactly_once.decision import (
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    OFFSETS_TOPIC,
    BatchIdentity,
    Decision,
    State,
    TaskTransaction,
    decode,
    encode,
    group_of,
    is_task_id,
)
from pyspark_tidelog.exactly_once.task import TaskResult
from pyspark_tidelog.exactly_once.waiting import named_wait
from tidelog.client.blocking import Client
from tidelog.client.errors import ClientError
from tidelog.client.transactional_writes import NOT_OPEN_CODES, TransactionalProducer
from tidelog.client.transactions import Transaction, TransactionFilter
from tidelog.wire.errors import ApiError, ErrorCode, OffsetMetadataTooLarge, UnknownTopicOrPartition

logger = logging.getLogger("tidelog.spark")

DECISION_TIMEOUT_MS = 60_000
"""Timeout of the transaction in which a decision is stored, unless the timeout of the tasks' transactions is shorter.
The transaction of a decision is usually open for some milliseconds."""
ONGOING = "Ongoing"
ABORTED = ("PrepareAbort", "CompleteAbort")
TIMEOUT_REMEDY = (
    "raise option kafka.transaction.timeout.ms (up to the broker's transaction.max.timeout.ms), or make the "
    "micro-batches smaller; perhaps a second job with the same query id aborted the transactions"
)


def read_decision(client: Client, identity: BatchIdentity) -> Decision:
    """Return the last decision of the query. The query's drivers are not fenced, so a task can call this function.

    If a driver is storing a decision at this moment, the result may be the decision before it. A task that gets such a
    result writes its rows. If the new decision covers the task's micro-batch, the task's driver then aborts the task's
    transaction. A task does not wait until the new decision is stored: if the driver is killed, the transaction in
    which it was storing the decision remains open until its timeout.

    Raises WriteError if the offsets of the query's group cannot be decoded as a decision, or cannot be read in time.
    """
    with named_wait(identity, f"the last decision cannot be read from group {group_of(identity.query)!r}"):
        return decode(identity.query, client.offsets_with_metadata(group_of(identity.query), require_stable=False))


def commit_batch(
    client: Client,
    identity: BatchIdentity,
    results: Sequence[TaskResult],
    timeout_ms: int,
    *,
    is_streaming: bool = False,
) -> None:
    """Decide that the transactions of these tasks belong to the micro-batch, and commit them. Before that, finish an
    earlier decision.

    If the earlier decision already covers the micro-batch, it remains the last decision. Then the transactions of these
    tasks are aborted, except for those that the earlier decision lists. `timeout_ms` is the timeout of the tasks'
    transactions. `is_streaming`: Spark chose the micro-batch's number, so it never repeats a micro-batch after one with
    a higher number. Raises WriteError, and ProducerFenced if another driver of the query decides at the same time.
    """
    own = _transactions(results)
    decider = _Decider(client, identity, timeout_ms)
    decider.finish()
    earlier = decider.decision
    if earlier.covers(identity.batch):
        decider.mark_finished()
        undecided = [each.producer for each in own if each not in earlier.transactions]
        _log_failed_aborts(lambda: client.end_transactions(undecided, commit=False))
        _check_left_out(identity, earlier, results, is_streaming)
        return
    written = earlier.transactions if earlier.state is State.PARTIAL else ()
    if written:
        _check_partial(identity, earlier, results)
    if sum(result.is_skipped for result in results) != len(written):
        raise WriteError(
            f"the decision about {identity} in group {group_of(identity.query)!r} changed while its tasks ran: "
            "run the query again"
        )
    if not own:
        decider.mark_finished()
        return
    leftovers = _check_open(client, identity, own)
    decider.store(earlier.next(identity.batch, len(results), (*written, *own)))
    decider.finish()
    # If a newer driver has fenced this one, this one must abort nothing: the newer driver may have decided to commit
    # some of the leftovers.
    if decider.mark_finished() and leftovers:
        _log_failed_aborts(lambda: client.abort_leftovers(leftovers))


def abort_batch(client: Client, identity: BatchIdentity, results: Iterable[TaskResult], timeout_ms: int) -> None:
    """Abort the transactions of these tasks, unless the last decision lists them. Commit the transactions that the last
    decision lists, and mark it as finished.
    """
    own = _transactions(results)
    if not own:
        return
    decider = _Decider(client, identity, timeout_ms)
    undecided = [each.producer for each in own if each not in decider.decision.transactions]
    _log_failed_aborts(lambda: client.end_transactions(undecided, commit=False))
    decider.finish()
    decider.mark_finished()


class _Decider:
    """A driver that decides about micro-batches of a query. When a newer driver of the query fences this driver, this
    driver cannot store a decision any more.
    """

    def __init__(self, client: Client, identity: BatchIdentity, timeout_ms: int) -> None:
        """Fence older drivers of the query, abort the transaction in which one of them was storing a decision, and read
        the last decision.
        """
        self._client = client
        self._identity = identity
        """The micro-batch that this driver writes. `decision` may be about another micro-batch."""
        self._group = group_of(identity.query)
        self._chunk_bytes = CHUNK_BYTES
        with named_wait(identity, f"older drivers with transactional id {self._group!r} cannot be fenced"):
            self._producer = client.init_producer(self._group, min(DECISION_TIMEOUT_MS, timeout_ms))
        with named_wait(identity, f"the last decision cannot be read from group {self._group!r}"):
            self.decision = decode(identity.query, client.offsets_with_metadata(self._group, require_stable=True))

    def store(self, decision: Decision) -> None:
        """Commit the decision in a transaction. Raises ProducerFenced if another driver has begun to decide."""
        about = self._identity._replace(batch=decision.batch)
        with named_wait(
            self._identity, f"no broker confirms the decision about batch {decision.batch} in group {self._group!r}"
        ):
            self._write(decision, about)
            ended = self._client.end_transactions([self._producer], commit=True)[self._producer]
        if isinstance(ended, Exception):
            raise ended
        self._producer = ended
        self.decision = decision

    def finish(self) -> None:
        """Commit all transactions of the last decision. Those that were committed earlier remain committed.

        If some transactions are proved to be aborted, make the decision PARTIAL and raise WriteError: when the
        micro-batch runs again, the tasks of the aborted transactions write their rows again. The other tasks do not.
        """
        decision = self.decision
        if decision.state is not State.DECIDED:
            return
        about = self._identity._replace(batch=decision.batch)
        count = len(decision.transactions)
        with named_wait(self._identity, f"{about} is decided, but its {count} transactions cannot be committed"):
            results = self._client.end_transactions([each.producer for each in decision.transactions], commit=True)
        failures: dict[TransactionalProducer, ApiError] = {}
        for producer, result in results.items():
            if isinstance(result, ApiError) and result.code in NOT_OPEN_CODES | {ErrorCode.INVALID_PRODUCER_ID_MAPPING}:
                failures[producer] = result
            elif isinstance(result, Exception):
                raise result
        if not failures:
            return
        aborted = self._proved_aborts(about, failures)
        in_doubt = [failure for producer, failure in failures.items() if producer not in aborted]
        if in_doubt:
            raise WriteError(
                f"it is unknown whether {len(in_doubt)} of the {count} transactions of {about} were committed or "
                f"aborted: {in_doubt[0].message}; perhaps the brokers' transactional.id.expiration.ms has passed, or "
                "another program has used the transactional id. Compare the topic with the rows of the batch. If the "
                f"rows are missing, delete the group {self._group!r}, and the batch is written again. If they are in "
                "the topic, delete the group and continue after the batch: with the next batch number, or with a new "
                "checkpoint that begins after the batch"
            ) from in_doubt[0]
        committed = tuple(each for each in decision.transactions if each.producer not in aborted)
        self.store(decision._replace(transactions=committed, state=State.PARTIAL))
        raise WriteError(
            f"{len(aborted)} of the {count} transactions of {about} were aborted after the decision to commit them, "
            f"because no driver committed them within their timeout: {_repeat_remedy(decision.batch)}, and it writes "
            "their rows again; to prevent such aborts, raise option kafka.transaction.timeout.ms"
        )

    def mark_finished(self) -> bool:
        """Store that the transactions of the decision are committed. After that, the coordinators may forget the states
        of these transactions. Call `finish` first.

        Returns False if this fails: a later driver then finishes the decision once more, which changes nothing.
        """
        if self.decision.state is not State.DECIDED:
            return True
        try:
            self.store(self.decision._replace(state=State.FINISHED))
        except (ApiError, ClientError, WriteError) as error:
            about = self._identity._replace(batch=self.decision.batch)
            logger.warning("%s is written, but not marked as finished: %s", about, error)
            return False
        return True

    def _write(self, decision: Decision, about: BatchIdentity) -> None:
        """Write the offsets of the decision in the driver's transaction."""
        while True:
            offsets = encode(about.query, decision, self._chunk_bytes)
            try:
                self._client.commit_in_transaction(self._producer, self._group, offsets)
                return
            except UnknownTopicOrPartition as error:
                raise WriteError(
                    f"the decision about {about} needs {len(offsets)} partitions of {OFFSETS_TOPIC}, and there are "
                    "fewer: write with fewer tasks (coalesce), or raise the broker's offset.metadata.max.bytes"
                ) from error
            except OffsetMetadataTooLarge as error:
                # The next attempt has smaller chunks and therefore more of them. So it replaces every chunk that the
                # broker has already accepted.
                self._chunk_bytes //= 2
                if self._chunk_bytes < CHUNK_BYTES_MIN:
                    raise OffsetMetadataTooLarge(
                        f"{error.message}: raise the broker's offset.metadata.max.bytes to {CHUNK_BYTES_MIN} or more"
                    ) from error

    def _proved_aborts(
        self, about: BatchIdentity, failures: Mapping[TransactionalProducer, ApiError]
    ) -> set[TransactionalProducer]:
        """Return the producers in `failures` whose transactions are certainly aborted."""
        names = [producer.transactional_id for producer in failures]
        with named_wait(self._identity, f"the states of the transactions of {about} cannot be read"):
            described = self._client.describe_transactions(names, until_timeout=True)
        return {
            producer
            for producer, failure in failures.items()
            if _is_aborted(described[producer.transactional_id], producer, failure)
        }


def _is_aborted(state: object, producer: TransactionalProducer, failure: ApiError) -> bool:
    """Return whether the state of a transactional id proves that the producer's transaction was aborted.

    No other producer begins a transaction with this transactional id before the decision is finished. So if the state
    contains the producer's id, the aborted transaction is the producer's transaction. The epoch in the state is the
    producer's epoch or, after a timeout and with transaction version 2, the next epoch. If all epochs of the producer
    id were used, the transactional id has a new producer id. Then the error INVALID_TXN_STATE still proves that the
    broker recognised the producer. If another program has sent InitProducerId, the state is Empty and proves nothing.
    """
    if not isinstance(state, Transaction) or state.state not in ABORTED:
        return False
    is_same = state.producer_id == producer.producer_id and state.producer_epoch - producer.producer_epoch in (0, 1)
    return is_same or failure.code == ErrorCode.INVALID_TXN_STATE


def _transactions(results: Iterable[TaskResult]) -> list[TaskTransaction]:
    return [result.transaction for result in results if result.transaction is not None]


def _check_left_out(identity: BatchIdentity, last: Decision, results: Sequence[TaskResult], is_streaming: bool) -> None:
    """Raise WriteError if the micro-batch was never written and is left out now, because a micro-batch with a higher
    number was written before. In a stream, also raise it if the micro-batch has rows and may have been written.
    """
    rows = sum(result.rows for result in results)
    if identity.batch == last.batch or not rows:
        return
    if is_streaming:
        raise WriteError(
            f"{identity} is not written, and its {rows} rows may not be in the topic: batch {last.batch} of this query "
            "was written before it, so the checkpoint is older than the topic, or a second job with the same checkpoint"
            " has overtaken this one. Restore the newest state of the checkpoint, or begin with a new checkpoint, which"
            " writes the rows again"
        )
    if last.was_skipped(identity.batch):
        raise WriteError(
            f"{identity} is not written, and its {rows} rows are not in the topic: batch {last.batch} was written "
            f"before it, and batch numbers must not decrease. Write the rows with a batch number above {last.batch}, "
            "or with an exactlyOnceId of their own"
        )
    if identity.batch >= last.forgotten_below:
        reason = f"it was written before batch {last.batch}"
    else:
        reason = f"its number is so far below batch {last.batch} that it counts as written"
    logger.warning("%s (%d rows) is not written again: %s", identity, rows, reason)


def _check_partial(identity: BatchIdentity, partial: Decision, results: Sequence[TaskResult]) -> None:
    """Raise WriteError unless the transactions of these tasks can complete the micro-batch of the PARTIAL decision."""
    about = identity._replace(batch=partial.batch)
    if partial.batch != identity.batch:
        raise WriteError(
            f"{identity} is not written, because {about} was written in part: {_repeat_remedy(partial.batch)}. If the "
            f"rows of batch {partial.batch} cannot be computed again, write with a new exactlyOnceId or a new "
            "checkpoint"
        )
    if partial.tasks != len(results):
        raise WriteError(
            f"{about} had {partial.tasks} tasks when it was written in part, and now it has {len(results)}: run the "
            "query again with the same input and settings, so that only the missing rows are written"
        )
    if not _transactions(results):
        raise WriteError(
            f"{about} was written in part, and now the missing rows do not exist: run the query again with the same "
            "input and settings"
        )


def _repeat_remedy(batch: int) -> str:
    return f"run the query again (in a batch write: repeat batch {batch} with the same rows)"


def _check_open(client: Client, identity: BatchIdentity, own: Sequence[TaskTransaction]) -> list[TransactionalProducer]:
    """Raise WriteError if a transaction of the micro-batch is no longer open. Return the query's other
    open transactions, as listed by the coordinators. They belong to failed or repeated tasks, or to tasks of killed
    drivers.
    """
    names = {each.producer.transactional_id for each in own}
    with named_wait(identity, f"it is not known whether its {len(own)} transactions are still open"):
        listing = client.list_transactions(TransactionFilter(states=(ONGOING,)))
        described = client.describe_transactions(sorted(names), until_timeout=True)
    lost = [each.producer for each in own if not _is_open(described[each.producer.transactional_id], each.producer)]
    if lost:
        raise WriteError(
            f"{identity} is not written: {len(lost)} of its {len(own)} transactions were aborted before the driver "
            f"could decide, for example {lost[0].transactional_id!r}: {TIMEOUT_REMEDY}"
        )
    others = {
        each.transactional_id for each in listing.transactions if is_task_id(identity.query, each.transactional_id)
    } - names
    version = own[0].producer.version
    return [
        TransactionalProducer(name, state.producer_id, state.producer_epoch, version)
        for name, state in (client.describe_transactions(sorted(others)) if others else {}).items()
        if isinstance(state, Transaction) and state.state == ONGOING
    ]


def _is_open(state: object, producer: TransactionalProducer) -> bool:
    """Return whether the producer's transaction is open.

    If `state` is an error, raises it, except TRANSACTIONAL_ID_NOT_FOUND, which means that no transaction is open.
    """
    is_unknown_id = isinstance(state, ApiError) and state.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if isinstance(state, ApiError | ClientError) and not is_unknown_id:
        raise state
    return (
        isinstance(state, Transaction)
        and state.state == ONGOING
        and (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    )


def _log_failed_aborts(abort: Callable[[], Mapping[TransactionalProducer, object]]) -> None:
    """Call `abort`, which returns a result for each producer. Log failures instead of raising them: an abort only saves
    readers from waiting for the timeouts of the transactions.

    An error that says that the transaction is no longer open is no failure: the transaction was aborted after its
    timeout, or a newer run uses the transactional id.
    """
    try:
        results = abort()
    except (ApiError, ClientError) as error:
        logger.warning("transactions of the query remain open until their timeout: %s", error)
        return
    ended = NOT_OPEN_CODES | {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    failures = {
        producer: result
        for producer, result in results.items()
        if isinstance(result, Exception) and not (isinstance(result, ApiError) and result.code in ended)
    }
    for producer, failure in failures.items():
        logger.warning("transaction %r remains open until its timeout: %s", producer.transactional_id, failure)
