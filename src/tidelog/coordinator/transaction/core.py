"""All transactions of one partition of `__transaction_state`.

A transaction ends in two steps. First its end is decided: the record of PREPARE_COMMIT or PREPARE_ABORT is committed.
From then on, only this end is possible. Then the markers are written to the transaction's partitions. The decision
contains this work as an effect, and `marker_writer.py` carries it out. When the last marker is written, the record of
COMPLETE_COMMIT or COMPLETE_ABORT allows the next transaction. When a coordinator is loaded again, it begins the second
step again.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tidelog.coordinator.decision import Decision, LoadOrder, Moment, Producer, Reply
from tidelog.coordinator.transaction.markers import MarkersToWrite
from tidelog.coordinator.transaction.records import (
    Partition,
    Status,
    Transaction,
    TransactionRecord,
    decode_record,
    size_of,
)
from tidelog.coordinator.transaction.settings import (
    BROKER_BYTES_MAX,
    BYTES_MAX,
    TRANSACTIONAL_IDS_MAX,
    TransactionMemory,
    TransactionSettings,
)
from tidelog.coordinator.transaction.transitions import (
    add_partitions,
    check_expected,
    check_producer,
    complete,
    end,
    fence,
    initialize,
    is_rotation_due,
    needs_next_producer_id,
)
from tidelog.wire.errors import ApiError, CoordinatorNotAvailable, ErrorCode

EXPIRABLE = (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)


class InitCall(NamedTuple):
    """A request InitProducerId with a transactional id."""

    transactional_id: str
    timeout_ms: int
    expected: Producer
    """The producer id and the epoch that the client had before; NO_PRODUCER for a new producer."""
    fresh_id: int | None
    """A new producer id if `TransactionCore.needs_producer_id` returned True, otherwise None."""


class _Entry:
    """One transactional id."""

    __slots__ = ("next_offset", "open_since_ms", "state", "unwritten")

    def __init__(self, state: Transaction, next_offset: int) -> None:
        self.state = state
        self.open_since_ms: int | None = None
        """Monotonic time at which a sweep first found the transaction open; None if no sweep has found it so far."""
        self.next_offset = next_offset
        """`state` reflects the log up to this offset (exclusive end)."""
        self.unwritten: set[Partition] = set()
        """Partitions of a prepared transaction in which the marker is not known to be written."""


class TransactionCore:
    """The transactions of one partition. `level_now` returns the finalized level of transaction.version. `memory` is
    shared by all cores of a broker.
    """

    load_order = LoadOrder.LAST_OF_EACH_KEY

    def __init__(
        self, settings: TransactionSettings, level_now: Callable[[], int], memory: TransactionMemory | None = None
    ) -> None:
        self._settings = settings
        self._level_now = level_now
        self._entries: dict[str, _Entry] = {}
        self._last_removal_offset = 0
        self._bytes = 0
        """Sum of the sizes of all entries (`size_of`)."""
        self._memory = memory or TransactionMemory()
        self._is_in_use = False
        """Whether `_memory` includes this core: from the end of its load until it is dropped."""

    # Durable state

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        """Decode a record. Returns None for an unknown type of record. Raises MalformedMessage."""
        return decode_record(key, value)

    def replay(self, record: TransactionRecord, next_offset: int) -> None:
        state = record.transaction
        if state is None:
            removed = self._entries.pop(record.transactional_id, None)
            if removed is not None:
                self._last_removal_offset = next_offset
                self._grow(-size_of(record.transactional_id, removed.state))
            return
        entry = self._entries.get(record.transactional_id)
        if entry is None:
            entry = self._entries[record.transactional_id] = _Entry(state, next_offset)
        else:
            self._grow(-size_of(record.transactional_id, entry.state))
        self._grow(size_of(record.transactional_id, state))
        entry.state, entry.next_offset = state, next_offset
        if state.status is not Status.ONGOING:
            entry.open_since_ms = None
        entry.unwritten = set(state.partitions) if state.status.is_prepared else set()

    def replay_pending(
        self,
        record: TransactionRecord,
        next_offset: int,
        producer: Producer,
        record_offset: int,
        *,
        is_superseded: bool,
    ) -> None:
        """Ignore the record: no transaction writes to `__transaction_state`."""

    def end_transaction(self, producer: Producer, next_offset: int, *, is_commit: bool) -> None:
        """Ignore the marker: no transaction writes to `__transaction_state`."""

    def loaded(self, now: Moment) -> Decision:
        """Continue the transactions whose end was decided before the load."""
        self._is_in_use = True
        self._memory.size_bytes += self._bytes
        out = Decision()
        out.effects += [
            _markers(transactional_id, entry.state)
            for transactional_id, entry in self._entries.items()
            if entry.state.status.is_prepared
        ]
        return out

    def abandon(self) -> list[Reply]:
        """Return the replies of requests that wait for a later decision: there are none."""
        if self._is_in_use:
            self._is_in_use = False
            self._memory.size_bytes -= self._bytes
        return []

    # Requests. An error that depends on the state is a reply like any other: it is sent when the state is committed.

    def needs_producer_id(self, transactional_id: str, expected: Producer) -> bool:
        """Return whether `initialize` needs a new producer id."""
        return is_rotation_due(self._state(transactional_id), expected)

    def initialize(self, call: InitCall, reply: Reply, now: Moment) -> Decision:
        """Handle InitProducerId. On success, `reply` is called with a Producer.

        Raises CoordinatorNotAvailable for a new transactional id if there are too many ids, or if all transactions
        together use too much memory.
        """
        state = self._state(call.transactional_id)
        if state is None:
            if len(self._entries) >= TRANSACTIONAL_IDS_MAX:
                raise CoordinatorNotAvailable(
                    f"this coordinator has {TRANSACTIONAL_IDS_MAX} transactional ids, which is the limit"
                )
            self._check_memory()
        out = self._decision(call.transactional_id)
        try:
            if state is not None and state.status is Status.ONGOING:
                check_expected(state, call.expected)
                self._fence(call.transactional_id, state, out, now)
                raise ApiError("the last transaction is being aborted", ErrorCode.CONCURRENT_TRANSACTIONS)
            after = initialize(state, call.expected, call.timeout_ms, call.fresh_id, now)
        except ApiError as error:
            out.reply(reply, error)
            return out
        self._change(call.transactional_id, after, out)
        out.reply(reply, Producer(after.producer_id, after.producer_epoch))
        return out

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[Partition],
        version: int,
        reply: Reply,
        now: Moment,
    ) -> Decision:
        """Add partitions to the producer's transaction. If the producer has no open transaction, begin one. On
        success, `reply` is called with None.

        Raises CoordinatorNotAvailable if all transactions together use too much memory.
        """
        self._check_memory()
        out = self._decision(transactional_id)
        try:
            after = add_partitions(self._state(transactional_id), producer, partitions, version, now)
        except ApiError as error:
            out.reply(reply, error)
            return out
        if after is not None:
            self._change(transactional_id, after, out)
        out.reply(reply, None)
        return out

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[Partition], reply: Reply
    ) -> Decision:
        """Find out which partitions belong to the producer's transaction. On success, `reply` is called with one error
        code for each partition.

        The question comes from the leader of a partition that has received records or offsets for the transaction
        (KIP-890).
        """
        out = self._decision(transactional_id)
        try:
            state = check_producer(self._state(transactional_id), producer)
        except ApiError as error:
            out.reply(reply, error)
            return out
        codes = [
            ErrorCode.NONE if partition in state.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        ]
        out.reply(reply, codes)
        return out

    def needs_next_producer_id(self, transactional_id: str) -> bool:
        """Return whether `end` with version 2 needs a new producer id."""
        return needs_next_producer_id(self._state(transactional_id))

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        commit: bool,
        version: int,
        next_id: int | None,
        reply: Reply,
        now: Moment,
    ) -> Decision:
        """Handle EndTxn. On success, `reply` is called with the Producer that the client uses from then on. With
        version 2, this Producer has the next epoch, and perhaps the producer id `next_id`.
        """
        out = self._decision(transactional_id)
        state = self._state(transactional_id)
        try:
            after = end(state, producer, commit=commit, version=version, next_id=next_id, now=now)
        except ApiError as error:
            out.reply(reply, error)
            return out
        if after is None:
            assert state is not None
            out.reply(reply, Producer(state.producer_id, state.producer_epoch))
            return out
        self._change(transactional_id, after, out)
        out.effects.append(_markers(transactional_id, after))
        completed = complete(after, now)
        out.reply(reply, Producer(completed.producer_id, completed.producer_epoch))
        return out

    def markers_written(self, markers: MarkersToWrite, partitions: Iterable[Partition], now: Moment) -> Decision:
        """Remember that the markers have been written to `partitions`. After the last one, complete the transaction."""
        out = Decision()
        entry = self._entries.get(markers.transactional_id)
        if entry is None or not entry.state.status.is_prepared:
            return out
        state = entry.state
        if (state.producer_id, state.producer_epoch) != (markers.producer_id, markers.producer_epoch):
            return out  # markers of an earlier transaction
        entry.unwritten.difference_update(partitions)
        if not entry.unwritten:
            self._change(markers.transactional_id, complete(state, now), out)
        return out

    # Reading

    def find(self, transactional_id: str) -> tuple[Transaction | None, int]:
        """Return the state, and the offset up to which the state reflects the log (exclusive end). A prepared state is
        returned with only those partitions in which the marker is not known to be written.
        """
        entry = self._entries.get(transactional_id)
        if entry is None:
            return None, self._last_removal_offset
        state = entry.state
        if state.status.is_prepared:
            state = state._replace(partitions=frozenset(entry.unwritten))
        return state, entry.next_offset

    def listing(self) -> Iterator[tuple[str, Transaction]]:
        """Yield the transactional ids and their states. If a state changes during the iteration, the old or the new one
        is yielded.
        """
        for transactional_id, entry in list(self._entries.items()):
            yield transactional_id, entry.state

    # Time

    def next_deadline_ms(self) -> int | None:
        """Return None: timeouts are found by sweeps, because they depend on the wall clock."""
        return None

    def expire(self, now: Moment) -> Iterator[Decision]:
        return iter(())

    def transactional_ids(self) -> list[str]:
        return list(self._entries)

    def abort_timed_out(self, transactional_ids: Iterable[str], now: Moment) -> Iterator[Decision]:
        """Find the transactions of these ids that have been open for longer than their transaction.timeout.ms. For
        each of them, yield the decision to abort it.

        A transaction's age is the longer of two times: its age on the wall clock, and the monotonic time since a
        sweep first found it open. With the wall clock alone, a transaction would stay open for longer after this clock
        is set back, and consumers would wait for its end.
        """
        for transactional_id in transactional_ids:
            entry = self._entries.get(transactional_id)
            if entry is None or entry.state.status is not Status.ONGOING:
                continue
            state = entry.state
            if entry.open_since_ms is None:
                entry.open_since_ms = now.monotonic_ms
            age_ms = max(now.wall_ms - state.started_ms, now.monotonic_ms - entry.open_since_ms)
            if age_ms > state.timeout_ms:
                out = Decision()
                self._fence(transactional_id, state, out, now)
                out.log(
                    "transaction timed out and is aborted transactional_id=%s producer_id=%d age_ms=%d timeout_ms=%d",
                    transactional_id,
                    state.producer_id,
                    age_ms,
                    state.timeout_ms,
                )
                yield out

    def remove_expired(self, transactional_ids: Iterable[str], now: Moment) -> Decision:
        """Forget each id that has no unfinished transaction, if its state has not changed for longer than
        transactional.id.expiration.ms.
        """
        out = Decision()
        for transactional_id in transactional_ids:
            state = self._state(transactional_id)
            if state is None or state.status not in EXPIRABLE:
                continue
            if now.wall_ms - state.updated_ms > self._settings.id_expiration_ms:
                out.records.append(TransactionRecord(transactional_id, None))
        return out

    # Implementation

    def _state(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.state

    def _decision(self, transactional_id: str) -> Decision:
        """Return an empty decision whose replies wait until the present state of the transactional id is committed."""
        out = Decision()
        entry = self._entries.get(transactional_id)
        out.awaited_offset = self._last_removal_offset if entry is None else entry.next_offset
        return out

    def _check_memory(self) -> None:
        if self._bytes >= BYTES_MAX:
            raise CoordinatorNotAvailable(
                f"the transactions of this coordinator use {BYTES_MAX} bytes, which is the limit"
            )
        if self._memory.size_bytes >= BROKER_BYTES_MAX:
            raise CoordinatorNotAvailable(
                f"the transactions of this broker use {BROKER_BYTES_MAX} bytes, which is the limit"
            )

    def _grow(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._is_in_use:
            self._memory.size_bytes += size_bytes

    def _change(self, transactional_id: str, after: Transaction, out: Decision) -> None:
        out.records.append(TransactionRecord(transactional_id, after, self._level_now()))

    def _fence(self, transactional_id: str, state: Transaction, out: Decision, now: Moment) -> None:
        after = fence(state, self._level_now(), now)
        self._change(transactional_id, after, out)
        out.effects.append(_markers(transactional_id, after))


def _markers(transactional_id: str, state: Transaction) -> MarkersToWrite:
    """Return the markers of a transaction whose end is decided."""
    return MarkersToWrite(
        transactional_id,
        state.producer_id,
        state.producer_epoch,
        state.status is Status.PREPARE_COMMIT,
        tuple(sorted(state.partitions)),
        state.version,
    )
