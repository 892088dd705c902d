"""Each check of transactions finds the violation that it checks for, in made-up histories."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from simulation_harness.cluster_ledger import Ledger, Violation
from simulation_harness.read_committed import committed_records
from simulation_harness.transaction_ledger import Attempt, State, TransactionLedger
from simulation_harness.transactional_client import V1, V2, Dialect, Refused, TransactionalProducer
from tidelog.client.operations import Address, Fetched
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import BatchHeader
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.end_txn import EndTxnResponse
from tidelog.wire.records import Record, encode_batch

A, B = TopicPartition("moves", 0), TopicPartition("moves", 1)
OUTPUT = TopicPartition("chain-output", 0)
GROUP = "chain"
Read = dict[TopicPartition, list[tuple[int, bytes]]]


class Stage:
    """A ledger, and the transactions of the producer `p.0`, whose transactional id is `p`."""

    def __init__(self, version: int = 2) -> None:
        self.base = Ledger()
        self.ledger = TransactionLedger(self.base, lambda _host, _what, _details: None)
        self.ledger.initialized("p", "p.0", 0.0, 1.0)
        self._version = version
        self._number = 0

    def transaction(self, state: State = State.COMMITTED, *partitions: TopicPartition, group: str = "") -> Attempt:
        """Return a transaction in this state, with one record in each of these partitions."""
        attempt = Attempt("p.0", self._number, self._version, 1.0, group)
        self._number += 1
        attempt.producer_id, attempt.epoch = 7, self._number
        self.ledger.begin(attempt)
        for partition in partitions:
            attempt.value(partition)
        if state is not State.OPEN:
            self.ledger.request_commit(attempt)
        if state is State.COMMITTED:
            self.ledger.committed(attempt, "p", 2.0)
        if state is State.ABORTED:
            self.ledger.refused(attempt)
        return attempt

    def read(self, partition: TopicPartition, *values: bytes, start: int = 0, reader: str = "reader") -> None:
        records = [(start + number, value) for number, value in enumerate(values)]
        self.ledger.read(reader, partition, start, start + len(values), records)


def value_of(attempt: Attempt, partition: TopicPartition = A) -> bytes:
    (value,) = attempt.records[partition]
    return value


def aborted_read(stage: Stage) -> None:
    stage.read(A, value_of(stage.transaction(State.ABORTED, A)))


def open_read(stage: Stage) -> None:
    stage.read(A, value_of(stage.transaction(State.OPEN, A)))


def repeated_record(stage: Stage) -> None:
    value = value_of(stage.transaction(State.COMMITTED, A))
    stage.read(A, value, value)


def missing_record(stage: Stage) -> None:
    stage.transaction(State.COMMITTED, A)
    stage.ledger.check_everything({A: []})


def half_of_an_unknown_transaction(stage: Stage) -> None:
    attempt = stage.transaction(State.REQUESTED, A, B)
    stage.ledger.check_everything({A: [(0, value_of(attempt))], B: []})


def record_in_another_partition(stage: Stage) -> None:
    attempt = stage.transaction(State.COMMITTED, A)
    stage.ledger.check_everything({A: [], B: [(0, value_of(attempt))]})


def wrong_order(stage: Stage) -> None:
    first, second = stage.transaction(State.COMMITTED, A), stage.transaction(State.COMMITTED, A)
    stage.ledger.check_everything({A: [(0, value_of(second)), (1, value_of(first))]})


def wrong_order_within_a_transaction(stage: Stage) -> None:
    attempt = stage.transaction(State.OPEN, A)
    values = [value_of(attempt), attempt.value(A)]
    stage.ledger.request_commit(attempt)
    stage.ledger.committed(attempt, "p", 2.0)
    stage.ledger.check_everything({A: [(0, values[1]), (1, values[0])]})


def other_value(stage: Stage) -> None:
    for attempt in stage.transaction(State.COMMITTED, A), stage.transaction(State.COMMITTED, A):
        stage.read(A, value_of(attempt))


def record_that_disappears(stage: Stage) -> None:
    attempt = stage.transaction(State.COMMITTED, A)
    stage.read(A, value_of(attempt))
    stage.ledger.read("other", A, 0, 1, [])


def record_that_appears(stage: Stage) -> None:
    attempt = stage.transaction(State.COMMITTED, A)
    stage.ledger.read("reader", A, 0, 1, [])
    stage.read(A, value_of(attempt), reader="other")


def commit_of_a_fenced_producer(stage: Stage) -> None:
    attempt = stage.transaction(State.REQUESTED, A)
    stage.ledger.initialized("p", "p.1", 2.0, 3.0)
    stage.ledger.committed(attempt, "p", 4.0)


def offset(stage: Stage, state: State, number: int) -> None:
    attempt = stage.transaction(State.OPEN, group=GROUP)
    attempt.offsets[GROUP, A] = number
    stage.ledger.request_commit(attempt)
    attempt.state = state


def lost_offset(stage: Stage) -> None:
    offset(stage, State.COMMITTED, 5)
    stage.ledger.check_offset(GROUP, A, -1)


def earlier_offset(stage: Stage) -> None:
    offset(stage, State.COMMITTED, 5)
    offset(stage, State.COMMITTED, 6)
    stage.ledger.check_offset(GROUP, A, 5)


def offset_of_an_aborted_transaction(stage: Stage) -> None:
    offset(stage, State.ABORTED, 5)
    stage.ledger.check_offset(GROUP, A, 5)


def mutual_reads(stage: Stage) -> None:
    one, two = stage.transaction(State.COMMITTED, A), stage.transaction(State.COMMITTED, B)
    one.reads[B] = two.reads[A] = 1
    stage.ledger.check_lists({A: [(0, value_of(one))], B: [(0, value_of(two, B))]})


def chain(stage: Stage, committed: int, outputs: list[int]) -> None:
    """Check a chain that has committed this offset of A, and has written these offsets of A to its output."""
    inputs = [value_of(stage.transaction(State.COMMITTED, A)) for _ in range(3)]
    attempt = stage.transaction(State.COMMITTED, group=GROUP)
    written = [attempt.value(OUTPUT, f"{A}@{number}") for number in outputs]
    read: Read = {A: list(enumerate(inputs)), OUTPUT: list(enumerate(written))}
    stage.ledger.check_chain(GROUP, {A: committed}, read, OUTPUT.topic)


def result_that_is_missing(stage: Stage) -> None:
    chain(stage, 2, [0])


def result_that_is_repeated(stage: Stage) -> None:
    chain(stage, 2, [0, 1, 1])


def result_above_the_committed_offset(stage: Stage) -> None:
    chain(stage, 2, [0, 1, 2])


@pytest.mark.parametrize(
    ("history", "invariant"),
    [
        (aborted_read, "NoAbortedRead"),
        (open_read, "NoAbortedRead"),
        (repeated_record, "ExactlyOnce"),
        (missing_record, "Atomicity"),
        (half_of_an_unknown_transaction, "Atomicity"),
        (record_in_another_partition, "Atomicity"),
        (wrong_order, "InTransactionOrder"),
        (wrong_order_within_a_transaction, "InTransactionOrder"),
        (other_value, "StableReads"),
        (record_that_disappears, "StableReads"),
        (record_that_appears, "StableReads"),
        (commit_of_a_fenced_producer, "OldProducersAreFenced"),
        (lost_offset, "OffsetsOfTransactions"),
        (earlier_offset, "OffsetsOfTransactions"),
        (offset_of_an_aborted_transaction, "OffsetsOfTransactions"),
        (mutual_reads, "G1c"),
        (result_that_is_missing, "ExactlyOnceChain"),
        (result_that_is_repeated, "ExactlyOnceChain"),
        (result_above_the_committed_offset, "ExactlyOnceChain"),
    ],
)
def test_a_violation_is_found(history: Callable[[Stage], None], invariant: str) -> None:
    with pytest.raises(Violation, match=f"^{invariant}:"):
        history(Stage())


def test_histories_that_keep_every_promise() -> None:
    stage = Stage()
    both, none = stage.transaction(State.REQUESTED, A, B), stage.transaction(State.REQUESTED, A, B)
    one = stage.transaction(State.COMMITTED, A)
    stage.transaction(State.ABORTED, A, B)
    read: Read = {A: [(0, value_of(both)), (2, value_of(one))], B: [(0, value_of(both, B))]}
    for partition, records in read.items():
        for reader in ("one", "two"):
            stage.ledger.read(reader, partition, 0, 5, records)
    stage.ledger.check_everything(read)
    stage.ledger.initialized("p", "p.1", 2.0, 3.0)
    stage.ledger.committed(none, "p", 2.5)  # requested before the other producer was initialized
    offset(stage, State.COMMITTED, 5)
    offset(stage, State.REQUESTED, 6)
    for committed in 5, 6:
        stage.ledger.check_offset(GROUP, A, committed)
    both.reads[A], one.reads[A] = 0, 2
    stage.ledger.check_lists(read)
    chain(Stage(), 2, [1, 0])


def test_only_transactions_of_version_1_may_be_hit_by_late_requests() -> None:
    """Their anomalies are counted."""
    for version in 1, 2:
        stage = Stage(version)
        attempt = stage.transaction(State.ABORTED, A)
        stage.base.repeated_markers[attempt.producer_id, attempt.epoch] = None
        if version == 1:
            stage.read(A, value_of(attempt))
            assert stage.base.coverage["anomalies of version 1"] == 1
            stage.read(B, value_of(stage.transaction(State.COMMITTED, B), B))
            with pytest.raises(Violation, match=r"^NoAbortedRead:"):
                stage.read(A, value_of(stage.transaction(State.ABORTED, A)), start=1)
        else:
            with pytest.raises(Violation, match=r"^NoAbortedRead:"):
                stage.read(A, value_of(attempt))


# What a client knows about its transaction


class Coordinator:
    """Answers every request with the next of these codes."""

    retries = 0

    def __init__(self, *codes: ErrorCode) -> None:
        self._codes = list(codes)

    async def run(self, _operation: object, _limit_s: float) -> Address:
        return Address("broker", 9092)

    async def ask(self, _request: object) -> EndTxnResponse:
        return EndTxnResponse(error_code=self._codes.pop(0))

    async def sleep(self, _delay_s: float) -> None:
        pass


class LateClient:
    """Sends copies of requests after the end of the test."""

    async def sleep(self, _delay_s: float) -> None:
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("dialect", [V1, V2])
@pytest.mark.parametrize("late_chance", [0.0, 1.0])
def test_the_outcome_is_unknown_if_a_copy_of_a_refused_commit_may_have_arrived_first(
    dialect: Dialect, late_chance: float
) -> None:
    """The copy can arrive first and commit (CONCURRENT_TRANSACTIONS). Then another producer fences this one."""
    coordinator: Any = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED)
    late_client: Any = LateClient()

    async def end() -> bool:
        producer = TransactionalProducer(
            coordinator,
            late_client,
            "p",
            dialect,
            timeout_ms=1000,
            rng=random.Random(1),
            now_s=lambda: 0.0,
            late_chance=late_chance,
        )
        with pytest.raises(Refused, match="PRODUCER_FENCED"):
            await producer.end(commit=True)
        for task in producer.late_requests:
            task.cancel()
        return producer.has_repeated_end

    assert asyncio.run(end()) is (late_chance == 1.0)


# What a consumer makes of an answer


def fetched(
    *batches: bytearray, stable: int, high_watermark: int, aborted: tuple[tuple[int, int], ...] = ()
) -> Fetched:
    data, offset = bytearray(), 0
    for batch in batches:
        header = BatchHeader(batch)
        header.assign(base_offset=offset, leader_epoch=0)
        offset = header.next_offset
        data += batch
    return Fetched(memoryview(data), high_watermark, stable, 0, list(aborted))


def records_of(producer_id: int, *values: bytes) -> bytearray:
    return encode_batch(
        [Record(offset=number, value=value) for number, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def test_a_consumer_drops_aborted_transactions() -> None:
    abort, commit = (marker_batch(7, 0, 0, is_commit=is_commit, timestamp=0) for is_commit in (False, True))
    answer = fetched(
        records_of(7, b"aborted"),
        records_of(8, b"other"),
        abort,
        records_of(7, b"next", b"last"),
        commit,
        stable=6,
        high_watermark=6,
        aborted=((7, 0),),
    )
    assert committed_records(A, 0, answer) == ([(1, b"other"), (3, b"next"), (4, b"last")], 6)
    assert committed_records(A, 4, answer) == ([(4, b"last")], 6)


@pytest.mark.parametrize(("stable", "high_watermark"), [(1, 3), (3, 2)])
def test_records_above_the_last_stable_offset_are_found(stable: int, high_watermark: int) -> None:
    answer = fetched(records_of(7, b"a"), records_of(8, b"b"), stable=stable, high_watermark=high_watermark)
    with pytest.raises(Violation, match=r"^NotAboveLastStableOffset:"):
        committed_records(A, 0, answer)


def test_a_damaged_batch_is_found() -> None:
    batch = records_of(7, b"a")
    batch[-1] ^= 1
    with pytest.raises(Violation, match=r"^WholeBatches:"):
        committed_records(A, 0, fetched(batch, stable=1, high_watermark=1))
