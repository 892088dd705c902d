import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from classic_world import Reply

from group_harness.invariants import check_core
from group_harness.memory import COMMIT_TIMEOUT_MS, LoopClock, MemoryPartition
from tidelog.coordinator import group_log
from tidelog.coordinator.deadlines import Deadline
from tidelog.coordinator.decision import Decision, Moment, Producer
from tidelog.coordinator.group.classic import JoinCall
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.records import OffsetRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group_log import GroupLog
from tidelog.coordinator.runtime import RELOAD_DELAY_MAX_S, CoordinatorPartition
from tidelog.runtime.tasks import LoopTasks
from tidelog.runtime.turns import STEPS_PER_TURN, Turns
from tidelog.simulation.loop import SimLoop
from tidelog.wire.batches import BatchHeader
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
    StorageError,
)
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.records import Record, encode_batch

GOLDEN = Path(__file__).parents[2] / "golden" / "groups"


class Stage:
    """One coordinator partition on virtual time."""

    def __init__(
        self, partition: MemoryPartition | None = None, new_core: Callable[[], GroupCore] | None = None
    ) -> None:
        self.loop = SimLoop()
        self.tasks = LoopTasks(self.loop)
        clock = LoopClock(self.loop)
        self.partition = partition or MemoryPartition("__consumer_offsets", 3)
        self.led: CoordinatorPartition[GroupCore] = CoordinatorPartition(
            self.partition,
            new_core or (lambda: GroupCore(GroupSettings(initial_rebalance_delay_ms=300))),
            cast(Any, SimpleNamespace(clock=clock, tasks=self.tasks, turns=Turns(clock, self.tasks))),
            GroupLog(clock, self.tasks),
            COMMIT_TIMEOUT_MS,
        )
        self.answers: list[Any] = []
        self.timers: list[tuple[float, Any]] = []
        """Every timer that was ever set, with the time at which it is due."""
        call_later = self.tasks.call_later

        def noted(delay_s: float, callback: Callable[..., object], *args: object) -> Any:
            timer = call_later(delay_s, callback, *args)
            self.timers.append((self.loop.time() + delay_s, timer))
            return timer

        self.tasks.call_later = noted

    def armed(self) -> int:
        """Timers that will still come up."""
        return sum(not timer.cancelled() and due_s > self.loop.time() for due_s, timer in self.timers)

    def run(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def load(self) -> None:
        self.loop.call_soon(self.led.load)
        self.run()
        self.run(0.01)

    def commit(self, offset: int, group: str = "g") -> None:
        decision = Decision()
        decision.records.append(OffsetRecord(group, "t", 0, OffsetCommitValue(offset=offset)))
        decision.reply(self.answers.append, offset)
        self.led.apply(decision)

    def join(self, fresh_uuid: str = "1") -> Reply:
        request = JoinGroupRequest("g", 1000, 2000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")])
        reply = Reply()
        self.led.apply(self.led.core.join(JoinCall(request, reply, "c", "/h", 3, fresh_uuid), self.led.now()))
        return reply

    def committed(self, group: str = "g") -> int | None:
        durable = self.led.core.durable.by_id.get(group)
        value = durable.committed_offset("t", 0) if durable else None
        return value.offset if value else None


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.load()
    yield stage
    stage.loop.close()


def test_a_decision_is_appended_as_one_batch_replayed_and_answered(stage: Stage) -> None:
    decision = Decision()
    decision.records += [OffsetRecord("g", "t", p, OffsetCommitValue(offset=p)) for p in range(3)]
    decision.reply(stage.answers.append, "done")
    stage.led.apply(decision)
    assert stage.answers == ["done"]
    header = BatchHeader(stage.partition.log.file.data)
    assert header.count == 3
    assert header.crc_ok()
    assert (header.is_transactional, header.is_control, header.codec) == (False, False, 0)
    assert stage.led.core.durable.by_id["g"].next_offset == 3


def test_answers_wait_until_their_records_are_committed(stage: Stage) -> None:
    stage.partition.hold_commits = True
    stage.commit(1)
    stage.commit(2)
    assert stage.committed() == 2, "live state follows the log at once"
    assert stage.answers == []
    stage.partition.commit_all()
    assert stage.answers == [1, 2]


def test_an_answer_that_tells_of_a_record_waits_for_it_too(stage: Stage) -> None:
    stage.partition.hold_commits = True
    stage.commit(1)
    stage.led.answer(stage.answers.append, "told", 1)
    stage.led.answer(stage.answers.append, "of nothing", 0)
    assert stage.answers == ["of nothing"]
    stage.partition.commit_all()
    assert stage.answers == ["of nothing", 1, "told"]


def test_records_that_never_commit_are_not_acknowledged(stage: Stage) -> None:
    stage.partition.hold_commits = True
    stage.commit(1)
    stage.partition.go_offline("I/O error")
    (answer,) = stage.answers
    assert isinstance(answer, ApiError)
    assert answer.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(NotCoordinator):
        _ = stage.led.core


def test_a_failed_append_unloads_and_loads_anew(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.commit(1)
    stage.partition.append_error = StorageError("disk full")
    stage.commit(2)
    refusal = stage.answers[-1]
    assert isinstance(refusal, NotCoordinator)
    assert "append failed" in caplog.text
    with pytest.raises(CoordinatorLoadInProgress):
        _ = stage.led.core
    stage.partition.append_error = None
    stage.run(0.2)
    assert stage.committed() == 1
    stage.commit(3)
    assert stage.committed() == 3


def test_failed_appends_are_logged_at_most_once_a_minute(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.partition.append_error = StorageError("disk full")
    for number in range(20):
        stage.commit(number)
        stage.run(2)
    failures = [record for record in caplog.records if record.getMessage().startswith("append failed")]
    assert len(failures) == 1
    stage.run(60)
    stage.commit(21)
    assert len([record for record in caplog.records if record.getMessage().startswith("append failed")]) == 2


def test_an_append_to_what_is_being_deleted_is_no_failure(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.commit(1)
    stage.partition.deleted = True
    stage.partition.append_error = StorageError("it is being deleted")
    stage.commit(2)
    assert isinstance(stage.answers[-1], NotCoordinator)
    stage.run(1)
    assert caplog.records == []


def test_whoever_waits_is_told_when_an_append_fails(stage: Stage) -> None:
    parked = stage.join()
    assert not parked.answers
    stage.partition.append_error = OSError(28, "no space")
    stage.commit(1)
    assert isinstance(parked.only, NotCoordinator)
    stage.partition.append_error = None
    stage.run(1)
    assert parked.only, "answered once"
    assert stage.led.core.groups == {}


def test_while_the_disk_stays_full_it_is_tried_less_and_less(stage: Stage) -> None:
    stage.partition.append_error = StorageError("disk full")
    stage.commit(1)
    stage.partition.log.read_error = OSError("not even that")
    stage.partition.log.log_end_offset += 1
    reads = 0
    read = stage.partition.log.read

    def counted(*arguments: int) -> Any:
        nonlocal reads
        reads += 1
        return read(*arguments)

    stage.partition.log.read = counted  # type: ignore[method-assign]
    stage.run(60)
    assert 8 <= reads <= 14


def test_deadlines_of_the_core_come_true(stage: Stage) -> None:
    parked = stage.join()
    stage.run(0.25)
    assert not parked.answers
    stage.run(0.1)
    assert parked.only.generation_id == 1
    stage.run(3)
    assert not stage.led.core.groups["g"].members, "its session is over"
    stage.run(300)
    assert stage.armed() == 0, "nothing is due any more, so nothing wakes the loop"


def test_one_timer_however_many_deadlines(stage: Stage) -> None:
    fired = []
    for number in range(100):
        deadline = Deadline(lambda subject, out, now: fired.append(subject), number)
        stage.led.core.deadlines.set(deadline, stage.led.now().monotonic_ms + 100 + number)
    stage.commit(1)
    assert stage.armed() == 1
    stage.run(1)
    assert fired == list(range(100))


def test_very_many_deadlines_at_one_time_leave_others_their_turns(stage: Stage) -> None:
    count = 5 * STEPS_PER_TURN
    fired: list[int] = []
    seen: list[int] = []

    def look() -> None:
        """As anybody else on the loop."""
        seen.append(len(fired))
        if len(fired) < count:
            stage.loop.call_soon(look)

    def fire(number: int, out: Decision, now: Moment) -> None:
        if not fired:
            stage.loop.call_soon(look)
        fired.append(number)
        out.records.append(OffsetRecord("g", "t", 0, OffsetCommitValue(offset=number)))
        if number < 10:  # one that comes up within the turns of the others
            stage.led.core.deadlines.set(Deadline(fire, count + number), now.monotonic_ms)

    for number in range(count):
        stage.led.core.deadlines.set(Deadline(fire, number), stage.led.now().monotonic_ms + 100)
    stage.commit(1)
    stage.run(1)
    assert fired == list(range(count + 10))
    assert max(after - before for before, after in pairwise([0, *seen])) <= STEPS_PER_TURN
    assert stage.committed() == count + 9
    assert stage.armed() == 0


def test_a_core_that_is_lost_between_two_deadlines_sees_to_no_more_of_them(stage: Stage) -> None:
    fired: list[int] = []
    count = 2 * STEPS_PER_TURN

    def fire(number: int, out: Decision, now: Moment) -> None:
        fired.append(number)
        if number == count - 10:
            stage.partition.append_error = StorageError("planted")
            out.records.append(OffsetRecord("g", "t", 0, OffsetCommitValue(offset=1)))

    for number in range(count):
        stage.led.core.deadlines.set(Deadline(fire, number), stage.led.now().monotonic_ms + 100)
    stage.commit(1)
    stage.run(0.15)
    assert fired == list(range(count - 9))
    stage.partition.append_error = None
    stage.run(1)
    parked = stage.join()
    stage.run(0.4)
    assert parked.only.generation_id == 1, "the next one's deadlines come up"


def test_a_timer_that_comes_up_at_a_fraction_of_a_millisecond_does_not_spin(stage: Stage) -> None:
    fired = []
    for at_ms in range(1, 3000, 7):
        deadline = Deadline(lambda subject, out, now: fired.append(subject), at_ms)
        stage.led.core.deadlines.set(deadline, at_ms)
        stage.run(0.0003)
    stage.commit(1)
    stage.run(4)
    assert fired == list(range(1, 3000, 7))
    assert len(stage.timers) < 3 * len(fired)


def test_time_is_told_twice(stage: Stage) -> None:
    stage.run(1.5)
    now = stage.led.now()
    assert isinstance(now, Moment)
    assert now.wall_ms - now.monotonic_ms > 1_600_000_000_000


def test_a_load_gives_the_state_that_was_live() -> None:
    before = Stage()
    before.load()
    for number in range(2500):
        before.commit(number, f"g{number % 700}")
    after = Stage(before.partition)
    after.load()
    after.run(0.1)
    live = before.led.core.durable.by_id
    loaded = after.led.core.durable.by_id
    assert live.keys() == loaded.keys()
    assert all(live[name].offsets == loaded[name].offsets for name in live)
    assert {group.next_offset for group in loaded.values()} == {2500}, "what is told of a load waits for all of it"


def test_requests_are_refused_while_a_load_lasts_and_other_work_has_its_turns() -> None:
    before = Stage()
    before.load()
    for number in range(3000):
        before.commit(number)
    after = Stage(before.partition)
    after.loop.call_soon(after.led.load)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        await asyncio.sleep(0)
        while after.led.is_loading:
            with pytest.raises(CoordinatorLoadInProgress):
                _ = after.led.core
            turns += 1
            await asyncio.sleep(0)

    after.loop.run_until_complete(other_work())
    assert turns >= 5
    assert after.committed() == 2999


def test_a_cold_log_is_read_off_the_loop() -> None:
    before = Stage()
    before.load()
    before.commit(7)
    before.partition.log.file.cold = True
    after = Stage(before.partition)
    calls: list[str] = []

    def run_blocking(function: Any, *arguments: Any, lane: str = "") -> Any:
        calls.append(function.__qualname__)
        future = after.loop.create_future()
        after.loop.call_later(0.001, future.set_result, function(*arguments))
        return future

    after.tasks.run_blocking = run_blocking  # type: ignore[method-assign]
    after.load()
    assert calls == ["MemoryRead.run"]
    assert after.committed() == 7


def test_closing_answers_everyone_and_stays_closed(stage: Stage) -> None:
    parked = stage.join()
    stage.led.close()
    assert isinstance(parked.only, NotCoordinator)
    with pytest.raises(NotCoordinator):
        _ = stage.led.core
    stage.run(20)
    assert not stage.led.is_loaded


def test_closing_during_a_load_ends_it() -> None:
    before = Stage()
    before.load()
    for number in range(1500):
        before.commit(number)
    after = Stage(before.partition)
    after.loop.call_soon(after.led.load)
    after.loop.call_soon(after.led.close)
    after.run(1)
    assert not after.led.is_loaded


def test_a_log_that_is_cut_while_it_is_loaded_for_an_ended_epoch_is_not_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reading thread finds less than there was, since this broker follows another leader by now."""
    before = Stage()
    before.load()
    for number in range(10):
        before.commit(number)
    after = Stage(before.partition)
    file = after.partition.log.file
    file.resident = lambda *_: False  # type: ignore[method-assign]

    def run_late(function: Any, *arguments: Any, lane: str = "") -> Any:
        future = after.loop.create_future()
        after.loop.call_later(0.1, lambda: future.set_result(function(*arguments)))
        return future

    after.tasks.run_blocking = run_late  # type: ignore[method-assign]
    after.load()
    after.led.close()
    del file.data[-3:]
    after.run(10)
    assert after.partition.log.failure is None
    assert not after.led.is_loaded
    assert [record.levelname for record in caplog.records] == []


@pytest.mark.parametrize("then", ["the end of a read", "a read that fails"])
def test_a_log_that_is_deleted_while_it_is_loaded_is_no_failure(then: str, caplog: pytest.LogCaptureFixture) -> None:
    before = Stage()
    before.load()
    for number in range(1500):
        before.commit(number)
    after = Stage(before.partition)

    def delete() -> None:
        after.partition.deleted = True
        if then == "a read that fails":
            after.partition.log.read_error = OSError(2, "No such file or directory")

    after.loop.call_soon(after.led.load)
    after.loop.call_soon(delete)
    after.run(10)
    assert not after.led.is_loaded
    assert after.partition.log.failure is None
    assert [record.levelname for record in caplog.records] == []


def test_a_log_that_moves_while_it_is_loaded_is_loaded_from_there() -> None:
    before = Stage()
    before.load()
    for number in range(1500):
        before.commit(number)
    after = Stage(before.partition)
    old = after.partition.log

    def move() -> None:
        after.partition.log = copy.copy(old)
        old.read_error = OSError(2, "No such file or directory")

    after.loop.call_soon(after.led.load)
    after.loop.call_soon(move)
    after.run(10)
    assert after.committed() == 1499
    assert old.failure is None


# What other writers left


def golden(name: str) -> MemoryPartition:
    partition = MemoryPartition("__consumer_offsets", 0)
    data = (GOLDEN / name).read_bytes()
    position = 0
    while position < len(data):
        header = BatchHeader(data, position)
        partition.log.append(data[position : position + header.size], header)
        position += header.size
    partition.high_watermark = partition.log.log_end_offset
    return partition


def test_a_log_of_kafka_with_transactions_and_other_kinds(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(golden("kafka-4.3.1-all-kinds.log"))
    with caplog.at_level(logging.INFO, "tidelog"):
        stage.load()
    by_id = stage.led.core.durable.by_id
    offsets = {
        name: {partition: value.offset for partition, value in group.offsets["t"].items()}
        for name, group in by_id.items()
    }
    # As Kafka answered for them: the second transaction was aborted, one group deleted.
    assert offsets == {
        "classic-group": {0: 5, 1: 5},
        "kip848-group": {0: 5, 1: 5},
        "txn-group": {0: 5, 1: 4},
    }
    consumer = by_id["kip848-group"].consumer
    assert consumer is not None
    assert (consumer.epoch, consumer.target_epoch, consumer.members) == (3, 2, {})
    assert caplog.text == ""
    static = stage.led.core.groups["classic-group"].members
    assert list(static.static_ids) == ["instance-1"]
    check_core(stage.led.core)


@pytest.mark.parametrize("transaction", [{}, {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}])
def test_records_of_kinds_that_are_not_known_are_left_alone(
    transaction: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    partition = MemoryPartition("__consumer_offsets", 0)
    share_group_metadata = b"\0\x0b\0\1s"
    batch = encode_batch([Record(share_group_metadata, b"\0\0\0\0\0\1\0", 1)], **transaction)
    partition.log.append(bytes(batch), BatchHeader(batch))
    stage = Stage(partition)
    with caplog.at_level(logging.INFO, "tidelog"):
        stage.load()
    assert stage.led.core.durable.by_id == {}
    assert "records of unknown kinds are ignored partition=__consumer_offsets-0 count=1" in caplog.text


def test_offsets_of_an_open_transaction_wait_for_its_end() -> None:
    partition = MemoryPartition("__consumer_offsets", 0)
    key, value = OffsetRecord("g", "t", 0, OffsetCommitValue(offset=9)).encode()
    batch = encode_batch(
        [Record(key, value, 1)], producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    partition.log.append(bytes(batch), BatchHeader(batch))
    stage = Stage(partition)
    stage.load()
    durable = stage.led.core.durable
    assert durable.by_id["g"].offsets == {}
    assert durable.pending.of_group("g") == [("g", "t", 0)]
    marker = marker_batch(5, 0, 0, is_commit=True, timestamp=2)
    stage.led.end_transaction(marker, Producer(5, 0), stage.answers.append, is_commit=True)
    assert stage.committed() == 9
    assert durable.pending.of_group("g") == []


@pytest.mark.parametrize("place", [20, 30, 70, 100])
def test_damage_takes_the_partition_offline_and_says_where(place: int, caplog: pytest.LogCaptureFixture) -> None:
    before = Stage()
    before.load()
    before.commit(1)
    position = len(before.partition.log.file.data)
    before.commit(2)
    before.partition.log.file.data[position + place] ^= 0x40
    after = Stage(before.partition)
    after.load()
    assert before.partition.log.failure is not None
    assert f"00000000000000000000.log at {position}:" in caplog.text
    with pytest.raises(NotCoordinator):
        _ = after.led.core


@pytest.mark.parametrize(
    "record",
    [
        Record(None, b"v", 1),
        Record(b"\0\1\0\5ab", b"\0\4", 1),
        Record(b"\0\2\0\1g", b"\0\3\0", 1),
        Record(b"", b"v", 1),
    ],
)
def test_a_record_that_is_none_is_damage(record: Record, caplog: pytest.LogCaptureFixture) -> None:
    partition = MemoryPartition("__consumer_offsets", 0)
    batch = encode_batch([record])
    partition.log.append(bytes(batch), BatchHeader(batch))
    stage = Stage(partition)
    stage.load()
    assert partition.log.failure is not None
    assert len(caplog.records) == 1


def test_who_waits_for_a_damaged_partition_is_told_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    before = Stage()
    before.load()
    before.commit(1)
    before.partition.log.file.data[70] ^= 0x40
    after = Stage(before.partition)
    told: list[ApiError | None] = []
    after.partition.when_committed(1 << 40, told.append)
    after.load()
    (error,) = told
    assert isinstance(error, StorageError)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    after.run(30)
    assert len(caplog.records) == 1, "it is not tried again"


def failing_reads(stage: Stage, error: Exception) -> None:
    stage.partition.log.read_error = error
    stage.partition.log.log_end_offset += 1


def test_a_load_that_may_succeed_later_is_tried_again_and_clients_know(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    failing_reads(stage, OSError(5, "Input/output error"))
    stage.load()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with pytest.raises(CoordinatorNotAvailable, match="Input/output error"):
        _ = stage.led.core
    with pytest.raises(CoordinatorNotAvailable):
        stage.led.check_groups_known()
    assert not stage.led.is_loading
    stage.partition.log.read_error = None
    stage.partition.log.log_end_offset -= 1
    stage.run(1)
    assert stage.led.is_loaded
    stage.led.check_groups_known()


def test_what_cannot_be_read_for_long_does_not_hide_what_can() -> None:
    stage = Stage()
    failing_reads(stage, OSError(5, "Input/output error"))
    stage.load()
    stage.run(RELOAD_DELAY_MAX_S + 5)
    stage.led.check_groups_known()
    with pytest.raises(CoordinatorNotAvailable):
        _ = stage.led.core


def test_a_log_that_fails_later_takes_its_coordinator_along() -> None:
    stage = Stage()
    stage.load()
    stage.partition.log.fail("the disk is gone")
    assert not stage.led.is_loaded
    with pytest.raises(NotCoordinator):
        _ = stage.led.core
    stage.led.check_groups_known()


C = TypeVar("C", bound=GroupCore)


class Broken(GroupCore):
    """Fails where `at` says, as a bug would."""

    at = ""

    def decode(self, key: bytes, value: bytes | None) -> Any:
        if self.at == "decode":
            raise ZeroDivisionError
        return super().decode(key, value)

    def replay(self, record: Any, next_offset: int) -> None:
        if self.at == "replay":
            raise ZeroDivisionError
        super().replay(record, next_offset)

    def loaded(self, now: Moment) -> Decision:
        if self.at == "loaded":
            raise ZeroDivisionError
        return super().loaded(now)

    def next_deadline_ms(self) -> int | None:
        if self.at == "set_timer":
            raise ZeroDivisionError
        return super().next_deadline_ms()

    def expire(self, now: Moment) -> Iterator[Decision]:
        if self.at == "expire":
            raise ZeroDivisionError
        return super().expire(now)


def stage_that_keeps_its_cores(kind: type[C]) -> tuple[Stage, list[C]]:
    """A stage that is loaded, and every core that it was given."""
    cores: list[C] = []

    def new_core() -> C:
        cores.append(kind(GroupSettings(initial_rebalance_delay_ms=300)))
        return cores[-1]

    stage = Stage(None, new_core)
    stage.load()
    return stage, cores


@pytest.mark.parametrize("at", ["decode", "replay", "loaded", "new"])
def test_a_load_that_fails_unexpectedly_is_said_once_and_clients_are_sent_away(
    at: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = Stage()
    before.load()
    before.commit(1)

    def new_core() -> GroupCore:
        if at == "new":
            raise ZeroDivisionError
        core = Broken(GroupSettings(initial_rebalance_delay_ms=300))
        core.at = at
        return core

    after = Stage(before.partition, new_core)
    after.load()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "load failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(NotCoordinator, match="ZeroDivisionError"):
        _ = after.led.core
    assert not after.led.is_loading
    after.run(60)
    assert len(caplog.records) == 1, "the same bytes give the same failure: it is not tried again"


@pytest.mark.parametrize("at", ["encode", "replay", "expire"])
def test_a_step_that_fails_unexpectedly_has_the_core_built_anew(
    at: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, cores = stage_that_keeps_its_cores(Broken)
    stage.commit(1)
    parked = stage.join()
    cores[0].at = at
    if at == "encode":
        with monkeypatch.context() as patched:
            patched.setattr(stage.led, "_batch", lambda _: 1 // 0)
            stage.commit(2)
        assert isinstance(stage.answers[-1], NotCoordinator)
    elif at == "replay":
        stage.commit(2)
        assert isinstance(stage.answers[-1], NotCoordinator)
    else:
        stage.run(0.31)
    assert isinstance(parked.only, NotCoordinator)
    assert [record.message for record in caplog.records] == [
        "step failed, loading again partition=__consumer_offsets-3"
    ]
    stage.run(1)
    assert stage.committed() == (2 if at == "replay" else 1), "what is in the log counts"
    assert len(cores) == 2


def test_deadlines_that_cannot_be_told_have_the_core_built_anew(caplog: pytest.LogCaptureFixture) -> None:
    stage, cores = stage_that_keeps_its_cores(Broken)
    stage.commit(1)
    stage.join()
    cores[0].at = "set_timer"
    stage.run(0.31)
    assert [record.message for record in caplog.records] == [
        "step failed, loading again partition=__consumer_offsets-3"
    ]
    stage.run(1)
    assert (stage.committed(), len(cores)) == (1, 2)


def test_several_answers_that_fail_over_one_append_begin_one_load() -> None:
    stage, cores = stage_that_keeps_its_cores(GroupCore)
    stage.partition.hold_commits = True
    for offset in range(5):
        stage.commit(offset)
    stage.partition.log.file.cold = True

    def slow(function: Any, *arguments: Any, lane: str = "") -> Any:
        future = stage.loop.create_future()
        stage.loop.call_later(0.35, future.set_result, function(*arguments))
        return future

    stage.tasks.run_blocking = slow  # type: ignore[method-assign]
    stage.partition.fail_all(StorageError("the disk"))
    assert [type(answer) for answer in stage.answers] == [NotCoordinator] * 5
    stage.run(5)
    assert len(cores) == 2


def test_an_answer_that_has_failed_does_not_fail_again_when_its_time_is_over() -> None:
    stage = Stage()
    stage.partition.replica.is_alone = False
    stage.load()
    stage.partition.hold_commits = True
    stage.commit(1)
    stage.partition.fail_all(StorageError("planted"))
    assert [type(answer) for answer in stage.answers] == [NotCoordinator]
    stage.run(2 * COMMIT_TIMEOUT_MS / 1000)
    assert len(stage.answers) == 1


def test_a_file_that_ends_inside_a_batch_is_damage() -> None:
    before = Stage()
    before.load()
    before.commit(1)
    del before.partition.log.file.data[-3:]
    after = Stage(before.partition)
    after.load()
    assert before.partition.log.failure is not None
    assert "ends inside a batch" in before.partition.log.failure


def expire_members(stage: Stage, count: int) -> None:
    """So many members of one group, of which nobody asks for the assignment."""
    for number in range(count):
        stage.join(str(number))
    stage.run(10)


def test_members_that_expire_are_said_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.coordinator")
    expire_members(stage, 1)
    [line] = [record.getMessage() for record in caplog.records if "member removed" in record.getMessage()]
    assert line.startswith("member removed group=g member=c-")


def test_a_thousand_members_that_expire_at_once_are_counted(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.coordinator")
    expire_members(stage, 1000)
    stage.run(group_log.PERIOD_S)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == group_log.LINES_MAX + 1
    assert lines[-1] == f"group log lines omitted count={1000 - group_log.LINES_MAX}"
    caplog.clear()
    expire_members(stage, 1)
    assert len(caplog.records) == 1, "a new period"


def test_lines_of_a_decision_that_could_not_be_written_are_not_said(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.coordinator")
    decision = Decision()
    decision.records.append(OffsetRecord("g", "t", 0, OffsetCommitValue(offset=1)))
    decision.log("member removed group=%s", "g")
    stage.partition.append_error = OSError("the disk is full")
    stage.led.apply(decision)
    assert "append failed" in caplog.text
    assert "member removed" not in caplog.text
