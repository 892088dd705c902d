"""Each check of transactions finds the violation that it checks for, in made-up histories."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from simulation_harness.cluster_ledger import Ledger, Violation
from simulation_harness.read_committed import committed_records
from simulation_harness.transaction_ledger import Attempt, State, TransactionLedger
from simulation_harness.transaction_life import TransactionLife
from simulation_harness.transaction_odds import Odds
from simulation_harness.transactional_client import V1, V2, Dialect, Refused, TransactionalProducer
from tidelog.client.operations import Address, Fetched
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import BatchHeader
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.end_txn import EndTxnResponse
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.wire.records import Record, encode_batch

A, B = TopicPartition("moves", 0), TopicPartition("moves", 1)
OUTPUT = TopicPartition("chain-output", 0)
GROUP = "chain"
Read = dict[TopicPartition, list[tuple[int, bytes]]]


class Stage:
    """A ledger, and the transactions of the producer `p.0`, whose transactional id is `p`."""

    def __init__(self, version: int = 2, *, exposed: bool = False) -> None:
        """`exposed`: a request of an earlier transaction may arrive late and hit each of them."""
        self.base = Ledger()
        self.ledger = TransactionLedger(self.base, lambda _host, _what, _details: None)
        self.ledger.initialized("p", "p.0", 0.0, 1.0)
        self._version = version
        self._exposed = exposed
        self._number = 0

    def transaction(self, state: State = State.COMMITTED, *partitions: TopicPartition, group: str = "") -> Attempt:
        """Return a transaction in this state, with one record in each of these partitions."""
        attempt = Attempt("p.0", self._number, self._version, 1.0, group)
        self._number += 1
        attempt.producer_id, attempt.epoch = 7, self._number
        attempt.may_be_hit_by_strays = self._exposed
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

    def move(self, state: State, offset: int, *results: int, start: int = 0) -> Attempt:
        """Return a transaction of the chain that has processed A from `start` up to `offset` and commits this offset.
        It has written the results of these offsets.
        """
        attempt = self.transaction(State.OPEN, group=GROUP)
        attempt.inputs[A] = range(start, offset)
        for number in results:
            attempt.value(OUTPUT, f"{A}@{number}")
        self.ledger.send_offsets(attempt, {A: offset})
        attempt.state = state
        return attempt

    def anomalies(self) -> dict[str, int]:
        begin = "anomalies of version 1: "
        return {key.removeprefix(begin): count for key, count in self.base.coverage.items() if key.startswith(begin)}

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
    stage.move(state, number)


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
    check_chain(stage, committed, inputs, stage.move(State.COMMITTED, committed, *outputs))


def check_chain(stage: Stage, committed: int, inputs: list[bytes], *visible: Attempt) -> None:
    """Check the chain that has committed this offset of A. The results of these transactions are visible."""
    outputs = [value for attempt in visible for value in attempt.records.get(OUTPUT, [])]
    read: Read = {A: list(enumerate(inputs)), OUTPUT: list(enumerate(outputs))}
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
@pytest.mark.parametrize("version", [1, 2])
def test_a_violation_is_found(history: Callable[[Stage], None], invariant: str, version: int) -> None:
    with pytest.raises(Violation, match=f"^{invariant}:"):
        history(Stage(version))


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


# Version 1: late requests may hit exposed transactions


@pytest.mark.parametrize(
    ("history", "anomaly"),
    [
        (aborted_read, "aborted read"),
        (open_read, "aborted read"),
        (missing_record, "write loss"),
        (half_of_an_unknown_transaction, "torn transaction"),
        (lost_offset, "moved offset"),
        (earlier_offset, "moved offset"),
        (offset_of_an_aborted_transaction, "moved offset"),
        (result_that_is_missing, "lost result"),
        (result_that_is_repeated, "repeated result"),
        (result_above_the_committed_offset, None),  # the chain has not read this record, so it is a violation
    ],
)
def test_anomalies_of_exposed_transactions_of_version_1_are_counted_by_name(
    history: Callable[[Stage], None], anomaly: str | None
) -> None:
    stage = Stage(1, exposed=True)
    if anomaly is None:
        with pytest.raises(Violation):
            history(stage)
    else:
        history(stage)
    assert stage.anomalies() == ({anomaly: 1} if anomaly else {})


@pytest.mark.parametrize(
    ("history", "invariant"),
    [
        (repeated_record, "ExactlyOnce"),
        (wrong_order, "InTransactionOrder"),
        (wrong_order_within_a_transaction, "InTransactionOrder"),
        (other_value, "StableReads"),
        (record_that_disappears, "StableReads"),
        (record_that_appears, "StableReads"),
        (commit_of_a_fenced_producer, "OldProducersAreFenced"),
        (mutual_reads, "G1c"),
    ],
)
def test_no_late_request_explains_other_violations(history: Callable[[Stage], None], invariant: str) -> None:
    with pytest.raises(Violation, match=f"^{invariant}:"):
        history(Stage(1, exposed=True))


def test_transactions_of_version_2_are_never_exposed() -> None:
    for version in 1, 2:
        stage = Stage(version)
        attempt = stage.transaction(State.ABORTED, A)
        stage.base.repeated_markers[attempt.producer_id, attempt.epoch] = None
        if version == 1:
            stage.read(A, value_of(attempt))
            assert stage.anomalies() == {"aborted read": 1}
            stage.read(B, value_of(stage.transaction(State.COMMITTED, B), B))
            with pytest.raises(Violation, match=r"^NoAbortedRead:"):
                stage.read(A, value_of(stage.transaction(State.ABORTED, A)), start=1)
        else:
            with pytest.raises(Violation, match=r"^NoAbortedRead:"):
                stage.read(A, value_of(attempt))


def test_a_cycle_of_reads_is_an_anomaly_if_a_transaction_of_it_was_read_early() -> None:
    stage = Stage(1, exposed=True)
    one, two = stage.transaction(State.OPEN, A), stage.transaction(State.COMMITTED, B)
    stage.read(A, value_of(one))
    one.reads[B] = two.reads[A] = 1
    read: Read = {A: [(0, value_of(one))], B: [(0, value_of(two, B))]}
    stage.ledger.check_lists(read)
    assert stage.anomalies() == {"aborted read": 1, "cycle of reads": 1}


def test_offsets_are_certain_again_after_a_transaction_that_is_not_exposed() -> None:
    for exposed_is_last in False, True:
        stage = Stage(1)
        attempts = [stage.move(State.COMMITTED, 5), stage.move(State.COMMITTED, 6)]
        attempts[exposed_is_last].may_be_hit_by_strays = True
        if exposed_is_last:
            stage.ledger.check_offset(GROUP, A, 5)
            assert stage.anomalies() == {"moved offset": 1}
        else:
            with pytest.raises(Violation, match=r"^OffsetsOfTransactions:"):
                stage.ledger.check_offset(GROUP, A, 5)
        with pytest.raises(Violation, match=r"^OffsetsOfTransactions:"):
            stage.ledger.check_offset(GROUP, A, 4)


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_same_epoch", [True, False])
def test_late_offsets_count_in_a_later_transaction_of_the_same_epoch(is_late: bool, is_same_epoch: bool) -> None:
    """The first transaction is aborted, and the exposed one after it commits the offset of the first one."""
    stage = Stage(1)
    first, second = stage.move(State.OPEN, 3, 0, 1, 2), stage.move(State.COMMITTED, 1, 0)
    first.has_late_offsets, second.may_be_hit_by_strays = is_late, True
    if is_same_epoch:
        second.epoch = first.epoch
    inputs = [value_of(stage.transaction(State.COMMITTED, A)) for _ in range(3)]
    if is_late and is_same_epoch:
        stage.ledger.check_offset(GROUP, A, 3)
        check_chain(stage, 3, inputs, second)
        assert stage.anomalies() == {"moved offset": 1, "lost result": 2}
        return
    with pytest.raises(Violation, match=r"^OffsetsOfTransactions:"):
        stage.ledger.check_offset(GROUP, A, 3)
    with pytest.raises(Violation, match=r"^ExactlyOnceChain: chain-output: moves-0@1: 0 times, moves-0@2: 0 times$"):
        check_chain(stage, 3, inputs, second)


def test_records_of_a_chain_are_checked_unless_an_exposed_transaction_has_processed_them() -> None:
    """The second of three transactions is exposed."""
    histories: list[tuple[int, tuple[int, ...], tuple[int, ...], str]] = [
        (3, (0,), (1,), ""),
        (3, (0,), (), "lost result"),
        (3, (), (1,), "ExactlyOnceChain"),
        (3, (0, 0), (1,), "ExactlyOnceChain"),
        (1, (0,), (1,), "result without offset"),
        (1, (0, 2), (), "ExactlyOnceChain"),
        (0, (0,), (), "ExactlyOnceChain"),
    ]
    for committed, results, exposed_results, expected in histories:
        stage = Stage(1)
        inputs = [value_of(stage.transaction(State.COMMITTED, A)) for _ in range(3)]
        attempts = [stage.move(State.COMMITTED, 1, *results), stage.move(State.COMMITTED, 2, *exposed_results, start=1)]
        attempts[1].may_be_hit_by_strays = True
        if committed == 3:
            attempts.append(stage.move(State.COMMITTED, 3, 2, start=2))
        if expected == "ExactlyOnceChain":
            with pytest.raises(Violation, match=f"^{expected}:"):
                check_chain(stage, committed, inputs, *attempts)
        else:
            check_chain(stage, committed, inputs, *attempts)
            assert stage.anomalies() == ({expected: 1} if expected else {})
            assert stage.base.coverage["records of chains of version 1"] == committed
            assert stage.base.coverage["records of chains exposed to late requests"] == (1 if committed == 3 else 0)


def test_a_result_is_repeated_once_if_offsets_of_an_exposed_transaction_are_lost() -> None:
    for exposed_count in 1, 2:
        stage = Stage(1)
        inputs = [value_of(stage.transaction(State.COMMITTED, A))]
        attempts = [stage.move(State.COMMITTED, 1, 0) for _ in range(3)]
        for attempt in attempts[:exposed_count]:
            attempt.may_be_hit_by_strays = True
        if exposed_count == 2:
            check_chain(stage, 1, inputs, *attempts)
            assert stage.anomalies() == {"repeated result": 1}
        else:
            with pytest.raises(Violation, match=r"^ExactlyOnceChain: chain-output: moves-0@0: 3 times"):
                check_chain(stage, 1, inputs, *attempts)


def test_cycles_of_writes_are_counted_apart_from_those_with_reads() -> None:
    """In both histories the first transaction is before the second one in A."""
    for with_reads in False, True:
        stage = Stage()
        one, two = stage.transaction(State.COMMITTED, A, B), stage.transaction(State.COMMITTED, A, B)
        read: Read = {A: [(0, value_of(one)), (1, value_of(two))], B: [(0, value_of(two, B)), (1, value_of(one, B))]}
        if with_reads:
            read[B].pop()
            one.reads[B] = 1
        stage.ledger.check_lists(read)
        counts = stage.base.coverage
        assert (counts["cycles of writes"], counts["cycles of writes and reads"]) == ((0, 1) if with_reads else (1, 0))


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


def producer_of(coordinator: Any, late_client: Any, dialect: Dialect, late_chance: float) -> TransactionalProducer:
    return TransactionalProducer(
        coordinator,
        late_client,
        "p",
        dialect,
        timeout_ms=1000,
        rng=random.Random(1),
        now_s=lambda: 0.0,
        late_chance=late_chance,
    )


@pytest.mark.parametrize("dialect", [V1, V2])
@pytest.mark.parametrize("late_chance", [0.0, 1.0])
def test_the_outcome_is_unknown_if_a_copy_of_a_refused_commit_may_have_arrived_first(
    dialect: Dialect, late_chance: float
) -> None:
    """The copy can arrive first and commit (CONCURRENT_TRANSACTIONS). Then another producer fences this one."""
    coordinator: Any = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED)
    late_client: Any = LateClient()

    async def end() -> bool:
        producer = producer_of(coordinator, late_client, dialect, late_chance)
        with pytest.raises(Refused, match="PRODUCER_FENCED"):
            await producer.end(commit=True)
        for task in producer.late_requests:
            task.cancel()
        return producer.has_repeated_end

    assert asyncio.run(end()) is (late_chance == 1.0)


class GroupCoordinator(Coordinator):
    async def ask(self, _request: object) -> Any:
        partition = TxnOffsetCommitResponsePartition(0, self._codes.pop(0))
        return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic("moves", [partition])])


@pytest.mark.parametrize("late_chance", [0.0, 1.0])
def test_a_copy_of_a_request_with_offsets_may_arrive_late(late_chance: float) -> None:
    coordinator: Any = GroupCoordinator(ErrorCode.NONE)
    late_client: Any = LateClient()

    async def send() -> None:
        producer = producer_of(coordinator, late_client, V2, late_chance)
        producer.begin()
        assert not producer.has_late_offsets
        await producer.send_offsets(GROUP, {A: 5})
        assert producer.has_late_offsets is (late_chance == 1.0)
        producer.begin()
        assert not producer.has_late_offsets, "each transaction has offsets of its own"
        for task in producer.late_requests:
            task.cancel()

    asyncio.run(send())


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


def test_everything_is_read_although_a_new_leader_has_an_old_high_watermark() -> None:
    """The followers are not in sync yet: the high watermark of the leader is 0, and another replica had 2."""
    attempt = Attempt("p.0", 0, 2, 0.0)
    batches = records_of(7, attempt.value(A)), marker_batch(7, 0, 0, is_commit=True, timestamp=0)
    answers = [fetched(stable=0, high_watermark=0), fetched(*batches, stable=2, high_watermark=2)]

    async def call(*_: object) -> Any:
        return answers.pop(0) if answers else fetched(stable=2, high_watermark=2)

    async def sleep(_delay_s: float) -> None:
        pass

    async def read() -> object:
        base, trace = Ledger(), SimpleNamespace(note=lambda *_: None)
        base.has_been_committed = lambda _partition, end_offset: end_offset <= 2
        world = SimpleNamespace(loop=asyncio.get_running_loop(), trace=trace, rng=random.Random)
        cluster: Any = SimpleNamespace(world=world, nodes=[])
        client: Any = SimpleNamespace(cluster=None, sleep=sleep)
        life = TransactionLife(cluster, base, call, Odds())
        life.ledger.begin(attempt)
        life.ledger.request_commit(attempt)
        return await life._read_all(client, A)

    assert asyncio.run(read()) == [(0, value_of(attempt))]


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
