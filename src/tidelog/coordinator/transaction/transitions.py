"""The changes of a transaction's state. Each function returns the next state, or raises the error that the client gets.

The rules are Kafka 4.3's (KIP-98, KIP-360, KIP-890). The table shows EndTxn with transaction version 2. In the
columns `same`, the request has the epoch of the stored state. In the columns `before`, it has this epoch minus 1, as in
a repeated request.

    state            abort before           abort same       commit before          commit same
    EMPTY            PRODUCER_FENCED        aborts           PRODUCER_FENCED        INVALID_TXN_STATE
    ONGOING          PRODUCER_FENCED        aborts           PRODUCER_FENCED        commits
    PREPARE_ABORT    in both prepared states, every request gets CONCURRENT_TRANSACTIONS, also one with another epoch or
    PREPARE_COMMIT   another producer id
    COMPLETE_ABORT   success                aborts           INVALID_TXN_STATE      INVALID_TXN_STATE
    COMPLETE_COMMIT  INVALID_TXN_STATE      aborts           success                INVALID_TXN_STATE

An abort without a transaction increments the epoch, so that requests of the producer that are still on their way have
no effect. Version 1 has other rules: the producer id and the epoch must be the same, also in a prepared state; only an
ONGOING transaction can be ended; and only the state shows whether a request is a repeated one.
"""

from collections.abc import Iterable

from tidelog.coordinator.decision import Moment, Producer
from tidelog.coordinator.transaction.records import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    V2,
    Partition,
    Status,
    Transaction,
    is_epoch_exhausted,
)
from tidelog.coordinator.transaction.settings import PARTITIONS_MAX
from tidelog.wire.errors import ApiError, ErrorCode

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)

COMPLETE = {Status.PREPARE_COMMIT: Status.COMPLETE_COMMIT, Status.PREPARE_ABORT: Status.COMPLETE_ABORT}


def is_rotation_due(state: Transaction | None, expected: Producer) -> bool:
    """Return whether `initialize` needs a new producer id."""
    if state is None:
        return True
    if state.status is Status.ONGOING or state.status.is_prepared or not state.is_epoch_exhausted:
        return False
    if state.producer_epoch == EPOCH_MAX and expected.epoch == state.last_epoch:
        # The producer had epoch EPOCH_MAX - 1 and was fenced, for example at a timeout. It must not get EPOCH_MAX, the
        # epoch of the fence, because nothing could fence it then.
        return True
    return expected == NO_PRODUCER or expected.epoch == state.producer_epoch


def initialize(
    state: Transaction | None, expected: Producer, timeout_ms: int, fresh_id: int | None, now: Moment
) -> Transaction:
    """Return the state after InitProducerId. The producer has a new epoch, unless the request is a repeated one.

    `expected` is NO_PRODUCER for a new producer, otherwise the producer id and epoch that the client has had so far
    (KIP-360). `fresh_id` is a new producer id if `is_rotation_due`, otherwise None. Raises PRODUCER_FENCED, or
    CONCURRENT_TRANSACTIONS until the last transaction is complete. The caller must fence an ONGOING transaction first.
    """
    if state is None:
        if fresh_id is None:
            raise _has_changed()
        return Transaction(fresh_id, 0, Status.EMPTY, timeout_ms, updated_ms=now.wall_ms, previous_producer_id=fresh_id)
    check_expected(state, expected)
    if state.status is Status.ONGOING or state.status.is_prepared:
        raise _concurrent()
    after = state._replace(
        status=Status.EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=NO_TIME,
        updated_ms=now.wall_ms,
        previous_producer_id=state.producer_id,
    )
    is_new = expected == NO_PRODUCER
    if is_rotation_due(state, expected):
        if fresh_id is None:
            raise _has_changed()
        last_epoch = NO_EPOCH if is_new else expected.epoch
        return after._replace(producer_id=fresh_id, producer_epoch=0, last_epoch=last_epoch)
    if is_new:
        return after._replace(producer_epoch=state.producer_epoch + 1, last_epoch=NO_EPOCH)
    if expected.epoch == state.producer_epoch:
        return after._replace(producer_epoch=state.producer_epoch + 1, last_epoch=state.producer_epoch)
    if expected.epoch == state.last_epoch:
        return after  # A repeated request. If another producer had been initialized since, last_epoch would be -1.
    raise _fenced(state, expected)


def check_expected(state: Transaction, expected: Producer) -> None:
    """Raise PRODUCER_FENCED unless `expected` is NO_PRODUCER, or has the current or an accepted previous producer id.

    The previous id is accepted if its epochs are used up: perhaps the client has not received the new id.
    """
    if expected == NO_PRODUCER or expected.producer_id == state.producer_id:
        return
    if expected.producer_id == state.previous_producer_id and is_epoch_exhausted(expected.epoch):
        return
    raise _fenced(state, expected)


def fence(state: Transaction, level: int, now: Moment) -> Transaction:
    """Return the state after the producer of an ONGOING transaction is fenced. The transaction will be aborted.

    A producer is fenced at a timeout, and at every InitProducerId that finds an ONGOING transaction. `level` is the
    finalized level of transaction.version.
    """
    epoch = min(state.producer_epoch + 1, EPOCH_MAX)
    return state._replace(
        status=Status.PREPARE_ABORT,
        producer_epoch=epoch,
        last_epoch=state.producer_epoch if level >= V2 else NO_EPOCH,
        updated_ms=now.wall_ms,
        version=V2 if level >= V2 else 0,
        previous_producer_id=state.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def add_partitions(
    state: Transaction | None, producer: Producer, partitions: Iterable[Partition], version: int, now: Moment
) -> Transaction | None:
    """Return the ONGOING state with `partitions` added, or None if the transaction has all of them already.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS or INVALID_REQUEST.
    """
    if state is not None and state.status.is_prepared:
        # This comes before any check of the producer, as in Kafka 4.3. If the epochs are used up, the answer to EndTxn
        # gives the client another producer id. But the state gets this id only when the markers are written.
        raise _concurrent()
    state = check_producer(state, producer)
    after = state.partitions.union(partitions)
    if state.status is Status.ONGOING and len(after) == len(state.partitions):
        return None
    if len(after) > PARTITIONS_MAX:
        raise ApiError(f"the transaction would have more than {PARTITIONS_MAX} partitions", ErrorCode.INVALID_REQUEST)
    return state._replace(
        status=Status.ONGOING,
        partitions=after,
        started_ms=state.started_ms if state.status is Status.ONGOING else now.wall_ms,
        updated_ms=now.wall_ms,
        version=version,
        previous_producer_id=state.producer_id,
    )


def check_producer(state: Transaction | None, producer: Producer) -> Transaction:
    """Return the state if the producer may continue its transaction or begin one.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED or CONCURRENT_TRANSACTIONS.
    """
    if state is None or state.producer_id != producer.producer_id:
        raise _unknown_producer(producer)
    if state.producer_epoch != producer.epoch:
        raise _fenced(state, producer)
    if state.status.is_prepared:
        raise _concurrent()
    return state


def needs_next_producer_id(state: Transaction | None) -> bool:
    """Return whether `end` with version 2 needs a new producer id, because the client cannot use the next epoch."""
    return state is not None and not state.status.is_prepared and state.is_epoch_exhausted


def end(
    state: Transaction | None, producer: Producer, *, commit: bool, version: int, next_id: int | None, now: Moment
) -> Transaction | None:
    """Return the next state, PREPARE_COMMIT or PREPARE_ABORT, or None if the transaction has already ended in the
    requested way.

    `next_id` is a new producer id if `needs_next_producer_id`, otherwise None. Raises INVALID_PRODUCER_ID_MAPPING,
    PRODUCER_FENCED, CONCURRENT_TRANSACTIONS or INVALID_TXN_STATE.
    """
    if state is None:
        raise _unknown_producer(producer)
    if version < V2:
        return _end_with_v1(state, producer, commit=commit, now=now)
    return _end_with_v2(state, producer, commit=commit, next_id=next_id, now=now)


def _end_with_v1(state: Transaction, producer: Producer, *, commit: bool, now: Moment) -> Transaction | None:
    """Return the next state for EndTxn with an older version than V2."""
    if state.producer_id != producer.producer_id:
        raise _unknown_producer(producer)
    if state.producer_epoch != producer.epoch:
        raise _fenced(state, producer)
    if state.status.is_prepared:
        # The requested end is not compared with the decided one: the request may be about the next transaction, which
        # has no partition yet.
        raise _concurrent()
    if _has_ended(state, commit=commit):
        return None
    if state.status is not Status.ONGOING:
        raise _wrong_state(state, commit=commit)
    return state._replace(
        status=Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
        updated_ms=now.wall_ms,
        version=0,
        previous_producer_id=state.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def _end_with_v2(
    state: Transaction, producer: Producer, *, commit: bool, next_id: int | None, now: Moment
) -> Transaction | None:
    """Return the next state for EndTxn with version 2. See the table in the docstring of this module."""
    if state.status.is_prepared:
        # This comes before any check of the producer, as in Kafka 4.3. The client has the next epoch, or the next
        # producer id, from the answer to its last EndTxn, and may already want to abort its next transaction. It must
        # not be told that it is fenced.
        raise _concurrent()
    is_repeated_with_old_id = (
        state.previous_producer_id == producer.producer_id
        and producer.epoch == EPOCH_MAX - 1
        and state.producer_epoch == 0
    )
    is_repeated = is_repeated_with_old_id or state.producer_epoch == producer.epoch + 1
    is_same = state.producer_epoch == producer.epoch
    if state.producer_id != producer.producer_id and not is_repeated_with_old_id:
        raise _unknown_producer(producer)
    is_complete = state.status in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
    if not (is_same or (is_repeated and is_complete)):
        raise _fenced(state, producer)
    if is_repeated:
        if not _has_ended(state, commit=commit):
            raise _wrong_state(state, commit=commit)
        if state.producer_epoch < EPOCH_MAX:
            return None
        # The coordinator itself has aborted the transaction of epoch EPOCH_MAX - 1. The client must not get EPOCH_MAX
        # (see `is_rotation_due`). So this request becomes an abort without a transaction, which gives the client
        # another producer id.
    if commit and state.status is not Status.ONGOING:
        raise _wrong_state(state, commit=commit)
    if not state.is_epoch_exhausted:
        next_id = NO_PRODUCER_ID
    elif next_id is None:
        raise _has_changed()
    return state._replace(
        status=Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
        producer_epoch=min(state.producer_epoch + 1, EPOCH_MAX),
        last_epoch=producer.epoch,
        # If there is no transaction, the time of the abort is stored as the start.
        started_ms=state.started_ms if state.status is Status.ONGOING else now.wall_ms,
        updated_ms=now.wall_ms,
        version=V2,
        previous_producer_id=state.producer_id,
        next_producer_id=next_id,
    )


def _has_ended(state: Transaction, *, commit: bool) -> bool:
    """Return whether the transaction has ended as the request demands."""
    return state.status is (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)


def complete(state: Transaction, now: Moment) -> Transaction:
    """Return the state after all markers of a prepared transaction are written."""
    after = state._replace(
        status=COMPLETE[state.status],
        partitions=frozenset(),
        updated_ms=now.wall_ms,
        previous_producer_id=state.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
    if state.version >= V2 and state.next_producer_id != NO_PRODUCER_ID:
        # The client never gets epoch EPOCH_MAX: it continues with the new producer id.
        return after._replace(producer_id=state.next_producer_id, producer_epoch=0)
    return after


def _unknown_producer(producer: Producer) -> ApiError:
    return ApiError(
        f"the transactional id does not have the producer id {producer.producer_id}",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )


def _fenced(state: Transaction, producer: Producer) -> ApiError:
    return ApiError(
        f"producer {producer.producer_id} sent epoch {producer.epoch}, the transactional id has producer "
        f"{state.producer_id} and epoch {state.producer_epoch}",
        ErrorCode.PRODUCER_FENCED,
    )


def _concurrent() -> ApiError:
    return ApiError("the last transaction is not complete yet", ErrorCode.CONCURRENT_TRANSACTIONS)


def _has_changed() -> ApiError:
    """The error if the state needs a new producer id now, but none was fetched, because the state did not need one
    before. The client tries again.
    """
    message = "the transactional id was changed during this request; try again"
    return ApiError(message, ErrorCode.CONCURRENT_TRANSACTIONS)


def _wrong_state(state: Transaction, *, commit: bool) -> ApiError:
    verb = "committed" if commit else "aborted"
    return ApiError(f"a transaction in state {state.status.text} cannot be {verb}", ErrorCode.INVALID_TXN_STATE)
