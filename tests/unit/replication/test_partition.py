"""The high watermark, its listeners, and which answers the durability settings delay."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from log_harness import leads_alone
from tidelog.log.config import LogConfig
from tidelog.replication.partition import Partition
from tidelog.replication.replica import BecameFollower, BecameLeader, FollowerFetched, WentOffline
from tidelog.replication.waiters import Mark
from tidelog.wire.errors import (
    ApiError,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)


class FakeLog:
    """Appends by counting; `failing` is raised by the next append."""

    def __init__(self, **settings: Any) -> None:
        self.config = LogConfig(**settings)
        self.failure: str | None = None
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = self.durable_offset = 0
        self.directory = "/data/t-0"
        self.failing: Exception | None = None

    @property
    def unflushed(self) -> bool:
        return self.log_end_offset > self.recovery_point

    @property
    def flush_due(self) -> bool:
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def last_stable_offset_below(self, high_watermark: int) -> int:
        return high_watermark

    def append(
        self, batch: Any, header: Any, *, leader_epoch: int, now_ms: int, limits: bool = True, examined: Any = None
    ) -> Any:
        if self.failing is not None:
            raise self.failing
        base = self.log_end_offset
        self.log_end_offset += header.count
        return SimpleNamespace(base_offset=base, next_offset=self.log_end_offset)

    def read(self, start: int, bytes_max: int, end_offset: int) -> tuple[int, int]:
        return start, end_offset


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.log = FakeLog(**settings)
        self.asked: list[Partition] = []
        self.timers: list[tuple[float, Any]] = []
        tasks = SimpleNamespace(
            future=lambda: asyncio.get_running_loop().create_future(),
            call_later=lambda delay_s, callback, *args: self.timers.append((delay_s, callback)) or SimpleNamespace(),
        )
        self.partition = Partition(
            "t", bytes(16), 0, self.log, replica=leads_alone(self.log, 3), internal=False,  # type: ignore[arg-type]
            clock=SimpleNamespace(now_ms=lambda: 0, monotonic=lambda: 0.0), tasks=tasks,  # type: ignore[arg-type]
            flusher=SimpleNamespace(request=self.asked.append, dirty={}),  # type: ignore[arg-type]
        )  # fmt: skip

    def append(self, count: int = 1) -> Any:
        return self.partition.append(memoryview(b""), SimpleNamespace(count=count, size=100))  # type: ignore[arg-type]

    def synced(self, offset: int) -> None:
        self.log.recovery_point = self.log.durable_offset = offset
        self.partition.flushed()


def test_by_default_an_append_is_committed_at_once() -> None:
    bench = Bench()
    appended = bench.append(3)
    assert bench.partition.is_committed(appended.next_offset)
    assert bench.partition.high_watermark == 3
    assert bench.asked == []


def test_with_fsync_nothing_is_committed_or_read_before_its_sync() -> None:
    bench = Bench(durability="fsync")
    told: list[ApiError | None] = []
    bench.append(2)
    bench.append(2)
    assert bench.asked == [bench.partition, bench.partition]
    bench.partition.when_committed(2, told.append)
    bench.partition.when_committed(4, told.append)
    assert bench.partition.high_watermark == 0
    assert bench.partition.read(0, 100) == (0, 0)
    bench.synced(2)
    assert told == [None]
    assert bench.partition.read(0, 100) == (0, 2)
    bench.synced(4)
    assert told == [None, None]


def test_flush_messages_and_flush_ms_ask_for_a_sync_that_nobody_waits_for() -> None:
    by_count = Bench(flush_messages=3)
    by_count.append(2)
    assert by_count.asked == []
    by_count.append(1)
    assert by_count.asked == [by_count.partition]
    assert by_count.partition.high_watermark == 3
    by_time = Bench(flush_ms=250)
    by_time.append()
    by_time.append()
    assert [delay for delay, _ in by_time.timers] == [0.25]
    by_time.timers[0][1]()
    assert by_time.asked == [by_time.partition]


def test_readers_past_the_high_watermark_wait_and_past_the_end_are_refused() -> None:
    bench = Bench(durability="fsync")
    bench.append(5)
    bench.synced(2)
    assert bench.partition.read(4, 100) == (2, 2)
    with pytest.raises(OffsetOutOfRange):
        bench.partition.read(6, 100)


def test_a_leader_without_a_lease_does_not_say_that_an_offset_is_past_the_end() -> None:
    """The next leader may have it, and a consumer would begin elsewhere."""
    bench = Bench()
    bench.append(5)
    bench.partition._shared.check_lease = lambda: bench.partition.step(WentOffline(3))
    assert bench.partition.read(4, 100) == (4, 5)
    with pytest.raises(NotLeaderOrFollower):
        bench.partition.read(6, 100)


def test_a_failed_sync_tells_everyone_and_ends_the_partition() -> None:
    bench = Bench(durability="fsync")
    told: list[ApiError | None] = []
    bench.append()
    bench.partition.when_committed(1, told.append)
    bench.log.failure = "sync failed: Input/output error"
    bench.partition.flushed()
    assert isinstance(told[0], StorageError)
    assert "Input/output error" in told[0].message
    bench.partition.when_committed(1, told.append)
    assert isinstance(told[1], StorageError)
    with pytest.raises(StorageError):
        bench.partition.read(0, 1)


def test_an_append_that_fails_the_log_tells_those_who_wait() -> None:
    bench = Bench(durability="fsync")
    told: list[ApiError | None] = []
    bench.append()
    bench.partition.when_committed(1, told.append)
    bench.log.failing = StorageError("write failed")
    with pytest.raises(StorageError):
        bench.append()
    assert told == []  # a full disk: the log lives on
    bench.log.failure = "write failed"
    with pytest.raises(StorageError):
        bench.append()
    assert isinstance(told[0], StorageError)


def test_watchers_hear_of_every_move_until_they_leave() -> None:
    bench = Bench()
    moves: list[int] = []

    class Watcher:
        def moved(self, partition: Partition) -> None:
            moves.append(partition.high_watermark)

    one = Watcher()
    bench.partition.watch(one)
    bench.append()
    bench.append()
    bench.partition.unwatch(one)
    bench.append()
    assert moves == [1, 2]


def test_whoever_waits_hears_of_the_end_of_a_leadership() -> None:
    bench = Bench(durability="fsync")
    errors: list[ApiError | None] = []
    moves: list[bool] = []

    class Watcher:
        def moved(self, partition: Partition) -> None:
            moves.append(partition.replica.leads)

    bench.partition.watch(Watcher())
    bench.append(2)
    bench.partition.wait(Mark.LOCAL, 2, errors.append)
    bench.partition.wait(Mark.COMMITTED, 2, errors.append)
    bench.partition.step(BecameFollower(4, 2))
    assert [type(error) for error in errors] == [NotLeaderOrFollower] * 2
    assert moves == [False], "a waiting fetch reads again, and gets the error"
    bench.synced(2)
    assert len(errors) == 2, "a sync that was begun in the old epoch answers nobody"
    with pytest.raises(NotLeaderOrFollower):
        bench.append()
    bench.partition.wait(Mark.COMMITTED, 9, errors.append)
    assert isinstance(errors[2], NotLeaderOrFollower)


def test_requests_wait_on_while_a_leader_has_no_lease() -> None:
    """The records are in the log, so an error would make the producer write them again, although they remain."""
    bench = Bench(durability="fsync")
    answers: list[ApiError | None] = []
    leader = BecameLeader(4, 1, (1, 2), (1, 2), 1)
    bench.partition.step(leader)
    bench.append(2)
    bench.partition.wait(Mark.LOCAL, 2, answers.append)
    bench.partition.wait(Mark.COMMITTED, 2, answers.append)
    bench.partition.step(WentOffline(4))  # the leader has resigned, since its lease is over
    with pytest.raises(NotLeaderOrFollower):
        bench.append()
    bench.synced(2)
    assert answers == [], "no record is acknowledged without a lease"
    bench.partition.step(leader)  # its lease was renewed in the same leader epoch
    assert answers == [None]
    bench.partition.step(FollowerFetched(4, 2, 0, 2))
    assert answers == [None, None]


@pytest.mark.parametrize("role", [BecameFollower(5, 2), BecameLeader(5, 2, (1, 2), (1, 2), 1), WentOffline(5)])
def test_a_new_epoch_answers_the_requests_of_a_leader_that_had_no_lease(role: Any) -> None:
    bench = Bench()
    answers: list[ApiError | None] = []
    bench.partition.step(BecameLeader(4, 1, (1, 2), (1, 2), 1))
    bench.append(2)
    bench.partition.wait(Mark.COMMITTED, 2, answers.append)
    bench.partition.step(WentOffline(4))
    bench.partition.step(role)
    assert [type(answer) for answer in answers] == [NotLeaderOrFollower]


def test_a_repeat_of_an_earlier_batch_does_not_wait_for_later_ones() -> None:
    bench = Bench(durability="fsync")
    answered: list[int] = []
    bench.append(5)
    for end in (5, 3):
        bench.partition.wait(Mark.COMMITTED, end, lambda _, end=end: answered.append(end))  # type: ignore[misc]
    bench.synced(3)
    assert answered == [3]
    bench.synced(5)
    assert answered == [3, 5]


def test_a_new_leader_says_its_end_once_it_knows_what_is_committed() -> None:
    bench = Bench()
    bench.append(2)
    bench.partition.step(BecameLeader(4, 1, (1, 2), (1, 2), 1))
    bench.append(1)
    bench.partition.check_committed_end()
    bench.partition.replica.epoch_start = 3
    with pytest.raises(OffsetNotAvailable):
        bench.partition.check_committed_end()
    bench.partition.step(FollowerFetched(4, 2, 0, 3))
    bench.partition.check_committed_end()


def test_turning_fsync_off_lets_those_who_wait_for_it_go() -> None:
    bench = Bench(durability="fsync")
    told: list[ApiError | None] = []
    bench.append(2)
    bench.partition.when_committed(2, told.append)
    bench.partition.configure(LogConfig())
    assert told == [None]
    assert bench.partition.high_watermark == 2


def test_one_listener_that_fails_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(durability="fsync")
    told: list[ApiError | None] = []

    def broken(error: ApiError | None) -> None:
        raise RuntimeError("a listener's own fault")

    bench.append(2)
    bench.partition.when_committed(1, broken)
    bench.partition.when_committed(2, told.append)
    bench.synced(2)
    assert told == [None]
    assert "listener failed" in caplog.text


def test_a_full_disk_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "tidelog.directory")
    bench = Bench()
    bench.log.failing = StorageError("No space left on device")
    for _ in range(3):
        with pytest.raises(StorageError):
            bench.append()
    bench.log.failing = None
    bench.append()
    bench.append()
    assert [record.getMessage().partition(" path")[0] for record in caplog.records] == [
        "appends refused",
        "appends accepted again",
    ]


@pytest.mark.parametrize(("epoch", "error"), [(-1, None), (3, None), (2, FencedLeaderEpoch), (4, UnknownLeaderEpoch)])
def test_leader_epochs_of_clients(epoch: int, error: type[ApiError] | None) -> None:
    partition = Bench().partition
    if error is None:
        partition.check_leader_epoch(epoch)
    else:
        with pytest.raises(error):
            partition.check_leader_epoch(epoch)


def test_a_listener_is_called_at_the_commit_or_with_the_error_that_prevents_it() -> None:
    bench = Bench(durability="fsync")
    answers: list[ApiError | None] = []
    bench.append(2)
    bench.partition.when_committed(2, answers.append)
    assert answers == []
    bench.synced(2)
    assert answers == [None]
    bench.append()
    bench.partition.when_committed(3, answers.append)
    bench.partition.deleted = True
    bench.partition.fail()
    assert [type(answer) for answer in answers] == [type(None), StorageError]
