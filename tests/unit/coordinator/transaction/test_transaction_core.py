"""Transactions of one coordinator: what each request changes, and what it is answered."""

from typing import Any

import pytest

from tidelog.coordinator.decision import Decision, Moment, Producer
from tidelog.coordinator.transaction.core import InitCall, TransactionCore
from tidelog.coordinator.transaction.markers import MarkersToWrite
from tidelog.coordinator.transaction.records import EPOCH_MAX, NO_EPOCH, Status, TransactionRecord, decode_record
from tidelog.coordinator.transaction.settings import TransactionMemory, TransactionSettings
from tidelog.coordinator.transaction.transitions import NO_PRODUCER, initialize
from tidelog.wire.errors import ApiError, CoordinatorNotAvailable, ErrorCode

SETTINGS = TransactionSettings(id_expiration_ms=10_000)
T0 = ("t", 0)
T1 = ("t", 1)


class Coordinator:
    """A core whose records are committed at once. Effects are stored until the test writes the markers."""

    def __init__(self, level: int = 2, memory: TransactionMemory | None = None) -> None:
        self.level = level
        self.now_ms = 1_000
        self.wall_ahead_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.effects: list[MarkersToWrite] = []
        self.next_id = 100
        self.core = TransactionCore(SETTINGS, lambda: self.level, memory)
        self.core.loaded(self.now)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms + self.wall_ahead_ms, self.now_ms)

    def sweep(self) -> list[Decision]:
        """Abort the transactions that are too old, and return the decisions."""
        decisions = []
        for decision in self.core.abort_timed_out(self.core.transactional_ids(), self.now):
            self.apply(decision)
            decisions.append(decision)
        return decisions

    def apply(self, decision: Decision) -> None:
        for record in decision.records:
            self.log.append(record.encode())
            assert isinstance(record, TransactionRecord)
            self.core.replay(record, len(self.log))
        self.effects += decision.effects
        for reply, answer in decision.replies:
            assert decision.awaited_offset <= len(self.log)
            reply(answer)

    def apply_record(self, record: TransactionRecord) -> None:
        self.core.replay(record, len(self.log) + 1)

    def answer(self, decide: Any) -> Any:
        answers: list[Any] = []
        self.apply(decide(answers.append))
        (answer,) = answers
        return answer.code if isinstance(answer, ApiError) else answer

    def initialize(self, name: str = "p", expected: Producer = NO_PRODUCER, timeout_ms: int = 60_000) -> Any:
        fresh_id = None
        if self.core.needs_producer_id(name, expected):
            self.next_id += 1
            fresh_id = self.next_id
        call = InitCall(name, timeout_ms, expected, fresh_id)
        return self.answer(lambda reply: self.core.initialize(call, reply, self.now))

    def add(self, producer: Producer, *partitions: tuple[str, int], name: str = "p", version: int = 2) -> Any:
        return self.answer(lambda reply: self.core.add_partitions(name, producer, partitions, version, reply, self.now))

    def verify(self, producer: Producer, *partitions: tuple[str, int], name: str = "p") -> Any:
        return self.answer(lambda reply: self.core.verify_partitions(name, producer, partitions, reply))

    def end(self, producer: Producer, *, commit: bool, name: str = "p", version: int = 2) -> Any:
        next_id = None
        if version >= 2 and self.core.needs_next_producer_id(name):
            self.next_id += 1
            next_id = self.next_id
        return self.answer(
            lambda reply: self.core.end(
                name, producer, commit=commit, version=version, next_id=next_id, reply=reply, now=self.now
            )
        )

    def write_markers(self) -> list[MarkersToWrite]:
        effects, self.effects = self.effects, []
        for markers in effects:
            self.apply(self.core.markers_written(markers, markers.partitions, self.now))
        return effects

    def status(self, name: str = "p") -> Status | None:
        state, _ = self.core.find(name)
        return None if state is None else state.status

    def load_again(self) -> None:
        """As another broker does that becomes the coordinator: with the last record of each key."""
        self.core = TransactionCore(SETTINGS, lambda: self.level)
        for key, value in dict(self.log).items():
            record = decode_record(key, value)
            assert record is not None
            self.core.replay(record, len(self.log))
        self.effects = []
        self.apply(self.core.loaded(self.now))


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def test_a_transaction_is_committed_when_all_its_markers_are_written(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    assert producer == Producer(101, 0)
    assert coordinator.status() is Status.EMPTY
    assert coordinator.add(producer, T0) is None
    assert coordinator.add(producer, T1) is None
    assert coordinator.status() is Status.ONGOING
    following = coordinator.end(producer, commit=True)
    assert following == Producer(101, 1)
    assert coordinator.status() is Status.PREPARE_COMMIT
    (markers,) = coordinator.effects
    assert markers == MarkersToWrite("p", 101, 1, True, (T0, T1), 2)
    coordinator.apply(coordinator.core.markers_written(markers, [T1], coordinator.now))
    state, _ = coordinator.core.find("p")
    assert state is not None
    assert state.partitions == {T0}
    assert coordinator.status() is Status.PREPARE_COMMIT
    coordinator.write_markers()
    assert coordinator.status() is Status.COMPLETE_COMMIT
    assert coordinator.add(following, T0) is None
    assert coordinator.status() is Status.ONGOING


def test_until_the_markers_are_written_nothing_else_begins(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    coordinator.add(producer, T0)
    following = coordinator.end(producer, commit=False)
    assert coordinator.add(following, T0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.verify(following, T0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.initialize() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(producer, commit=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(producer, commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(Producer(999, 0), commit=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(producer._replace(producer_id=999), commit=False, version=1) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_a_producer_that_aborts_its_next_transaction_early_is_not_fenced(coordinator: Coordinator) -> None:
    """The markers of its last transaction are not written yet. With PRODUCER_FENCED or INVALID_TXN_STATE, a client
    would give up its transactional id.
    """
    producer = coordinator.initialize()
    coordinator.add(producer, T0)
    following = coordinator.end(producer, commit=True)
    for version in (1, 2):
        assert coordinator.add(following, T1, version=version) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert coordinator.end(following, commit=False, version=version) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.status() is Status.COMPLETE_COMMIT
    assert coordinator.end(following, commit=False) == following._replace(epoch=following.epoch + 1)


def test_a_coordinator_that_is_loaded_again_finishes_a_prepared_transaction(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    coordinator.add(producer, T0, T1)
    coordinator.end(producer, commit=True)
    coordinator.load_again()
    assert coordinator.write_markers() == [MarkersToWrite("p", 101, 1, True, (T0, T1), 2)]
    assert coordinator.status() is Status.COMPLETE_COMMIT
    assert coordinator.end(producer, commit=True) == Producer(101, 1)  # repeated, the first answer was lost


def test_markers_of_an_earlier_transaction_change_nothing(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    coordinator.add(producer, T0)
    producer = coordinator.end(producer, commit=True)
    (earlier,) = coordinator.write_markers()
    coordinator.add(producer, T0)
    coordinator.end(producer, commit=False)
    coordinator.apply(coordinator.core.markers_written(earlier, earlier.partitions, coordinator.now))
    assert coordinator.status() is Status.PREPARE_ABORT


def test_another_producer_with_the_same_id_fences_the_first_one(coordinator: Coordinator) -> None:
    first = coordinator.initialize()
    coordinator.add(first, T0)
    assert coordinator.initialize() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.status() is Status.PREPARE_ABORT
    (markers,) = coordinator.write_markers()
    assert (markers.producer_epoch, markers.is_commit) == (1, False)
    second = coordinator.initialize()
    assert second == Producer(101, 2)
    assert coordinator.add(first, T0) is ErrorCode.PRODUCER_FENCED
    assert coordinator.verify(first, T0) is ErrorCode.PRODUCER_FENCED
    assert coordinator.end(first, commit=True) is ErrorCode.PRODUCER_FENCED
    assert coordinator.initialize(expected=first) is ErrorCode.PRODUCER_FENCED
    assert coordinator.add(second, T0) is None


def test_a_producer_continues_after_its_transaction_timed_out(coordinator: Coordinator) -> None:
    """KIP-360: with its old id and epoch, if no other producer has begun meanwhile."""
    producer = coordinator.initialize(timeout_ms=500)
    coordinator.add(producer, T0)
    coordinator.now_ms += 501
    for decision in coordinator.core.abort_timed_out(coordinator.core.transactional_ids(), coordinator.now):
        coordinator.apply(decision)
    assert coordinator.end(producer, commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.status() is Status.COMPLETE_ABORT
    assert coordinator.end(producer, commit=True) is ErrorCode.INVALID_TXN_STATE
    assert coordinator.initialize(expected=producer) == Producer(101, 1)
    assert coordinator.initialize(expected=producer) == Producer(101, 1)
    assert coordinator.initialize(expected=Producer(101, 1)) == Producer(101, 2)
    assert coordinator.initialize(expected=producer) is ErrorCode.PRODUCER_FENCED


def test_a_transaction_times_out_although_the_wall_clock_was_set_back(coordinator: Coordinator) -> None:
    """Otherwise its consumers would wait until the clock has reached its old time again."""
    producer = coordinator.initialize(timeout_ms=500)
    for _ in range(2):
        coordinator.wall_ahead_ms = 1_000_000
        coordinator.add(producer, T0)
        coordinator.wall_ahead_ms = 0
        assert not coordinator.sweep()
        coordinator.now_ms += 500
        assert not coordinator.sweep()
        coordinator.now_ms += 1
        (decision,) = coordinator.sweep()
        assert "age_ms" in decision.lines[0].text
        assert 501 in decision.lines[0].arguments
        coordinator.write_markers()
        producer = coordinator.initialize(timeout_ms=500)


def test_only_transactions_older_than_their_timeout_are_aborted(coordinator: Coordinator) -> None:
    for name, timeout_ms in ("short", 500), ("long", 5_000):
        coordinator.add(coordinator.initialize(name, timeout_ms=timeout_ms), T0, name=name)
    coordinator.initialize("idle", timeout_ms=500)
    coordinator.now_ms += 500
    assert not list(coordinator.core.abort_timed_out(coordinator.core.transactional_ids(), coordinator.now))
    coordinator.now_ms += 1
    for decision in coordinator.core.abort_timed_out(coordinator.core.transactional_ids(), coordinator.now):
        coordinator.apply(decision)
    assert [coordinator.status(name) for name in ("short", "long", "idle")] == [
        Status.PREPARE_ABORT,
        Status.ONGOING,
        Status.EMPTY,
    ]


# (state before, epoch of the request, commit): the answer. F: fenced, C: concurrent, I:
# invalid state, S: success without a change, E: success with the next epoch.
V2_TABLE = {
    "empty": "FEFI",
    "ongoing": "FEFE",
    "prepare-abort": "CCCC",
    "prepare-commit": "CCCC",
    "complete-abort": "SEII",
    "complete-commit": "IESI",
}
MEANINGS = {
    ErrorCode.PRODUCER_FENCED: "F",
    ErrorCode.CONCURRENT_TRANSACTIONS: "C",
    ErrorCode.INVALID_TXN_STATE: "I",
}


def _reach(coordinator: Coordinator, state: str, version: int) -> Producer:
    producer: Producer = coordinator.initialize()
    if state != "empty":
        coordinator.add(producer, T0, version=version)
    if "-" in state:
        producer = coordinator.end(producer, commit="commit" in state, version=version)
    if "complete" in state:
        coordinator.write_markers()
    return producer


@pytest.mark.parametrize("state", V2_TABLE)
def test_end_with_version_2(state: str) -> None:
    answers = ""
    for commit in (False, True):
        for lag in (1, 0):
            coordinator = Coordinator()
            producer = _reach(coordinator, state, 2)
            answer = coordinator.end(producer._replace(epoch=producer.epoch - lag), commit=commit)
            if answer in MEANINGS:
                answers += MEANINGS[answer]
            else:
                answers += "S" if answer == producer else "E"
    assert answers == V2_TABLE[state]


@pytest.mark.parametrize(
    ("state", "expected"),
    {
        "empty": "II",
        "ongoing": "SS",
        "prepare-abort": "CC",
        "prepare-commit": "CC",
        "complete-abort": "SI",
        "complete-commit": "IS",
    }.items(),
)
def test_end_with_version_1(state: str, expected: str) -> None:
    answers = ""
    for commit in (False, True):
        coordinator = Coordinator(level=1)
        producer = _reach(coordinator, state, 1)
        assert coordinator.end(producer._replace(epoch=7), commit=commit, version=1) is ErrorCode.PRODUCER_FENCED
        answer = coordinator.end(producer, commit=commit, version=1)
        answers += MEANINGS.get(answer, "S")
        if answer not in MEANINGS:
            assert answer == producer  # the epoch stays
    assert answers == expected


def test_epochs_that_are_used_up_give_another_producer_id(coordinator: Coordinator) -> None:
    coordinator.initialize()
    state, _ = coordinator.core.find("p")
    assert state is not None
    coordinator.core.replay(TransactionRecord("p", state._replace(producer_epoch=EPOCH_MAX - 1)), 1)
    last = Producer(101, EPOCH_MAX - 1)
    coordinator.add(last, T0)
    following = coordinator.end(last, commit=True)
    assert following == Producer(102, 0)
    (markers,) = coordinator.effects
    assert (markers.producer_id, markers.producer_epoch) == (101, EPOCH_MAX)
    assert coordinator.add(following, T0) is ErrorCode.CONCURRENT_TRANSACTIONS, "its state has the old id until the end"
    assert coordinator.end(following, commit=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.end(last, commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.end(last, commit=True) == following  # repeated
    assert coordinator.end(last, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert coordinator.initialize(expected=last) == following  # KIP-360, the answer was lost
    assert coordinator.add(following, T0) is None


def test_initialization_with_epochs_that_are_used_up_gives_another_producer_id(coordinator: Coordinator) -> None:
    coordinator.initialize()
    state, _ = coordinator.core.find("p")
    assert state is not None
    coordinator.core.replay(TransactionRecord("p", state._replace(producer_epoch=EPOCH_MAX - 1)), 1)
    assert coordinator.initialize() == Producer(102, 0)
    coordinator.core.replay(TransactionRecord("p", state._replace(producer_epoch=EPOCH_MAX - 1)), 1)
    last = Producer(101, EPOCH_MAX - 1)
    assert coordinator.initialize(expected=last) == Producer(103, 0)
    assert coordinator.initialize(expected=last) == Producer(103, 0)


@pytest.mark.parametrize("aborts", [False, True])
def test_a_producer_with_the_last_epoch_that_timed_out_continues_with_another_producer_id(
    coordinator: Coordinator, aborts: bool
) -> None:
    """It never gets the epoch of the fence: no later transaction of that epoch could be fenced."""
    coordinator.initialize(timeout_ms=500)
    state, _ = coordinator.core.find("p")
    assert state is not None
    coordinator.core.replay(TransactionRecord("p", state._replace(producer_epoch=EPOCH_MAX - 1)), 1)
    last = Producer(101, EPOCH_MAX - 1)
    coordinator.add(last, T0)
    coordinator.now_ms += 501
    for decision in coordinator.core.abort_timed_out(coordinator.core.transactional_ids(), coordinator.now):
        coordinator.apply(decision)
    (markers,) = coordinator.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (101, EPOCH_MAX)
    if aborts:
        assert coordinator.end(last, commit=False) == Producer(102, 0)
        coordinator.write_markers()
        assert coordinator.end(last, commit=False) == Producer(102, 0), "repeated"
        assert coordinator.end(last, commit=True) is ErrorCode.INVALID_TXN_STATE
    assert coordinator.initialize(expected=last) == Producer(102, 0)
    assert coordinator.add(Producer(102, 0), T0) is None


def test_a_fresh_id_that_became_necessary_too_late_is_retried(coordinator: Coordinator) -> None:
    answers: list[Any] = []
    coordinator.apply(coordinator.core.initialize(InitCall("p", 1, NO_PRODUCER, None), answers.append, coordinator.now))
    assert answers[0].code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_who_is_not_the_producer_of_the_id_is_refused(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    stranger = Producer(999, 0)
    for answer in (
        coordinator.add(stranger, T0),
        coordinator.add(producer, T0, name="unknown"),
        coordinator.verify(stranger, T0),
        coordinator.end(stranger, commit=True),
        coordinator.end(producer, commit=True, name="unknown"),
        coordinator.end(stranger, commit=True, version=1),
    ):
        assert answer is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.initialize(expected=stranger) is ErrorCode.PRODUCER_FENCED
    assert coordinator.initialize("new", expected=stranger) == Producer(102, 0)


def test_verification_names_the_partitions_of_the_transaction(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    assert coordinator.verify(producer, T0) == [ErrorCode.TRANSACTION_ABORTABLE]
    coordinator.add(producer, T0)
    assert coordinator.verify(producer, T1, T0) == [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE]


def test_ids_that_nobody_uses_are_forgotten(coordinator: Coordinator) -> None:
    producer = coordinator.initialize("busy")
    coordinator.initialize("idle")
    coordinator.add(producer, T0, name="busy")
    coordinator.now_ms += SETTINGS.id_expiration_ms
    ids = coordinator.core.transactional_ids()
    assert not coordinator.core.remove_expired(ids, coordinator.now).records
    coordinator.now_ms += 1
    coordinator.apply(coordinator.core.remove_expired(ids, coordinator.now))
    assert coordinator.status("idle") is None
    assert coordinator.status("busy") is Status.ONGOING
    coordinator.load_again()
    assert [name for name, _ in coordinator.core.listing()] == ["busy"]


def test_an_abort_without_partitions_is_complete_at_once(coordinator: Coordinator) -> None:
    producer = coordinator.initialize()
    assert coordinator.end(producer, commit=False) == Producer(101, 1)
    (markers,) = coordinator.write_markers()
    assert markers.partitions == ()
    assert coordinator.status() is Status.COMPLETE_ABORT


@pytest.mark.parametrize("level", [0, 1, 2])
def test_records_survive_a_load(level: int) -> None:
    coordinator = Coordinator(level)
    coordinator.add(coordinator.initialize(), T0, ("u", 7))
    before, _ = coordinator.core.find("p")
    coordinator.load_again()
    after, _ = coordinator.core.find("p")
    assert before is not None
    assert after is not None
    if level == 0:  # version 0 of the record has no tagged fields
        before = before._replace(version=0, previous_producer_id=-1)
    assert after == before._replace(last_epoch=NO_EPOCH)


def test_the_coordinators_of_a_broker_share_a_limit_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with random ids reaches all of them."""
    monkeypatch.setattr("tidelog.coordinator.transaction.core.BROKER_BYTES_MAX", 6_000)
    memory = TransactionMemory()
    coordinators = [Coordinator(memory=memory) for _ in range(3)]
    with pytest.raises(CoordinatorNotAvailable, match="of this broker"):
        for number in range(1_000):
            coordinators[number % 3].initialize(f"random-{number}")
    assert number == pytest.approx(12, abs=1)
    producer = coordinators[0].initialize("random-0")
    with pytest.raises(CoordinatorNotAvailable, match="of this broker"):
        coordinators[0].add(producer, T0, name="random-0")
    coordinators[1].core.abandon()
    assert coordinators[0].add(producer, T0, name="random-0") is None
    for name in coordinators[2].core.transactional_ids():
        coordinators[2].apply_record(TransactionRecord(name, None))
    coordinators[0].core.abandon()
    assert memory.size_bytes == 0


def test_a_core_counts_from_the_end_of_its_load() -> None:
    """A load that does not come to its end leaves nothing behind."""
    memory = TransactionMemory()
    first = Coordinator(memory=memory)
    first.initialize("a")
    loaded = TransactionCore(SETTINGS, lambda: 2, memory)
    for key, value in first.log:
        record = decode_record(key, value)
        assert record is not None
        loaded.replay(record, 1)
    size_bytes = memory.size_bytes
    assert size_bytes > 0
    loaded.loaded(first.now)
    assert memory.size_bytes == 2 * size_bytes
    loaded.abandon()
    loaded.abandon()
    assert memory.size_bytes == size_bytes


def test_a_request_whose_state_changed_meanwhile_is_told_to_come_again() -> None:
    """At the time of the request no new producer id was needed, so none was fetched."""
    with pytest.raises(ApiError, match="changed during this request") as caught:
        initialize(None, NO_PRODUCER, 1000, None, Moment(0, 0))
    assert caught.value.code == ErrorCode.CONCURRENT_TRANSACTIONS
