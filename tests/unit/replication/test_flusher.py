"""Group commit: one sync for all appends during the last one; a failed sync fails only its own log."""

import asyncio
import errno
import random
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from log_harness import NOW_MS, leads_alone, make_batch
from tidelog.log.config import LogConfig
from tidelog.log.flush import DirectorySyncs
from tidelog.log.partition_log import PartitionLog
from tidelog.replication.flusher import GROUP_MAX, Flusher
from tidelog.replication.partition import Partition
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.loop import SimLoop


class FakePlan:
    def __init__(self, partition: "FakePartition") -> None:
        self.partition = partition
        self.end_offset = partition.appended

    def run(self, directories: DirectorySyncs) -> None:
        self.partition.syncs += 1
        if self.partition.broken is not None:
            raise self.partition.broken


class FakeLog(SimpleNamespace):
    @property
    def unflushed(self) -> bool:
        return bool(self.log_end_offset > self.recovery_point)


class FakePartition:
    topic, index, deleted, in_dirty_set, frozen = "t", 0, False, True, False
    config = LogConfig()

    def __init__(self, *, broken: Exception | None = None) -> None:
        self.syncs = 0
        self.broken = broken
        self.told = self.put_back = 0
        self.log: Any = FakeLog(
            failure=None,
            log_end_offset=0,
            recovery_point=0,
            flush_plan=lambda: FakePlan(self),
            flushed=lambda plan: setattr(self.log, "recovery_point", plan.end_offset),
            put_back=lambda _plan: setattr(self, "put_back", self.put_back + 1),
            fail=lambda reason, error=None: setattr(self.log, "failure", reason),
        )

    @property
    def appended(self) -> int:
        end: int = self.log.log_end_offset
        return end

    @appended.setter
    def appended(self, end: int) -> None:
        self.log.log_end_offset = end

    @property
    def durable(self) -> int:
        end: int = self.log.recovery_point
        return end

    def flushed(self) -> None:
        self.told += 1


class FakeTasks:
    """Blocking work ends when `release` is called."""

    def __init__(self) -> None:
        self.blocked: list[asyncio.Future[None]] = []
        self.timers: list[Callable[[], None]] = []

    def spawn(self, coroutine: Any, *, name: str) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        self.timers.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def future(self) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().create_future()

    async def run_blocking(self, function: Callable[..., Any], *args: object, lane: str = "") -> Any:
        gate = asyncio.get_running_loop().create_future()
        self.blocked.append(gate)
        await gate
        return function(*args)

    async def release(self) -> None:
        self.blocked.pop(0).set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


def flusher(tasks: FakeTasks, dirty: list[FakePartition] = [], wrote: list[int] | None = None) -> Flusher:  # noqa: B006
    def checkpoint(moved: Iterable[object]) -> Callable[[], None]:
        return lambda: wrote.append(1) if wrote is not None else None

    made = Flusher(tasks, 1000, checkpoint)  # type: ignore[arg-type]
    made.dirty.update(dict.fromkeys(dirty))  # type: ignore[arg-type]
    return made


def test_requests_that_come_during_a_sync_share_the_next() -> None:
    async def scenario() -> None:
        tasks, partition = FakeTasks(), FakePartition()
        made = flusher(tasks)
        partition.appended = 1
        made.request(partition)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for end in (2, 3, 4):
            partition.appended = end
            made.request(partition)  # type: ignore[arg-type]
        await tasks.release()
        assert (partition.durable, partition.syncs) == (1, 1)
        await tasks.release()
        assert (partition.durable, partition.syncs) == (4, 2)
        assert tasks.blocked == []

    asyncio.run(scenario())


def test_who_asks_for_one_does_not_wait_for_the_hundreds_of_another() -> None:
    async def scenario() -> None:
        tasks = FakeTasks()
        made = flusher(tasks)
        many = [FakePartition() for _ in range(20 * GROUP_MAX)]
        single = FakePartition()
        for partition in [*many, single]:
            partition.appended = 1
        for partition in many:
            made.request(partition)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await tasks.release()
        assert sum(partition.told for partition in many) == GROUP_MAX  # told at once, not when all are synced
        made.request(single)  # type: ignore[arg-type]
        await tasks.release()
        await tasks.release()
        assert single.told == 1
        groups = 3
        while tasks.blocked:
            await tasks.release()
            groups += 1
        assert [partition.told for partition in many] == [1] * len(many)
        assert groups <= 22

    asyncio.run(scenario())


def test_what_wants_a_descriptor_is_synced_when_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks, partition, other = FakeTasks(), FakePartition(broken=OSError(errno.EMFILE, "none left")), FakePartition()
        made = flusher(tasks)
        partition.appended = other.appended = 1
        made.request(partition)  # type: ignore[arg-type]
        made.request(other)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for count in (1, 2):
            await tasks.release()
            assert (partition.durable, partition.told, partition.log.failure) == (0, 0, None)
            assert (partition.put_back, other.durable) == (count, 1)
            assert tasks.blocked == [], "not at once"
            tasks.timers.pop()()
            await asyncio.sleep(0)
        partition.broken = None
        await tasks.release()
        assert (partition.durable, partition.told, partition.log.failure) == (1, 1, None)
        assert (tasks.blocked, tasks.timers) == ([], [])

    asyncio.run(scenario())
    assert len([r for r in caplog.records if "sync put off" in r.getMessage()]) == 1


def test_a_frozen_partition_is_not_synced() -> None:
    async def scenario() -> None:
        tasks, partition = FakeTasks(), FakePartition()
        made = flusher(tasks, [partition])
        partition.frozen, partition.appended = True, 5
        made.request(partition)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (tasks.blocked, partition.syncs) == ([], 0)

    asyncio.run(scenario())


def test_no_partition_is_in_two_syncs_and_none_of_what_is_deleted_in_any() -> None:
    async def scenario() -> None:
        tasks, partition = FakeTasks(), FakePartition()
        made = flusher(tasks, [partition])
        made.start()
        partition.appended = 1
        made.request(partition)  # type: ignore[arg-type]
        tasks.timers.pop()()
        await asyncio.sleep(0)
        assert len(tasks.blocked) == 1, "the interval waits for the sync that was asked for"
        settled = asyncio.ensure_future(made.wait_for_flushes())
        partition.appended = 2
        partition.deleted = True
        await asyncio.sleep(0)
        assert not settled.done()
        while tasks.blocked:
            await tasks.release()
        await settled
        assert partition.syncs == 1
        assert partition.told == 1

    asyncio.run(scenario())


def test_what_is_asked_for_during_its_own_interval_flush_follows_it() -> None:
    async def scenario() -> None:
        tasks, quiet, partition = FakeTasks(), FakePartition(), FakePartition()
        quiet.appended = partition.appended = 1
        made = flusher(tasks, [partition, quiet])
        made.start()
        tasks.timers.pop()()
        await asyncio.sleep(0)
        partition.appended = 2
        made.request(partition)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert len(tasks.blocked) == 1
        await tasks.release()
        assert (partition.durable, quiet.durable) == (1, 0)
        assert len(tasks.blocked) == 2, "its own next, and the interval goes on with the others"
        await tasks.release()
        await tasks.release()
        assert (partition.durable, quiet.durable) == (2, 1)

    asyncio.run(scenario())


def test_the_interval_leaves_to_the_others_what_they_have_synced() -> None:
    async def scenario() -> None:
        tasks, partition, wrote = FakeTasks(), FakePartition(), list[int]()
        made = flusher(tasks, [partition], wrote)
        made.start()
        partition.appended = 1
        made.request(partition)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        tasks.timers.pop()()
        await tasks.release()
        await tasks.release()
        assert (partition.syncs, partition.durable, wrote) == (1, 1, [1])

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("Input/output error")])
def test_a_failed_sync_fails_its_log_and_no_other(error: Exception) -> None:
    async def scenario() -> None:
        tasks, good, bad = FakeTasks(), FakePartition(), FakePartition(broken=error)
        good.appended = bad.appended = 5
        made = flusher(tasks)
        made.request(bad)  # type: ignore[arg-type]
        made.request(good)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await tasks.release()
        assert (good.durable, good.log.failure, good.told) == (5, None, 1)
        assert (bad.durable, bad.told) == (0, 1)
        assert "Input/output error" in bad.log.failure
        made.request(bad)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert bad.syncs == 1  # never tried again into silence
        made.request(good)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await tasks.release()
        assert good.syncs == 2

    asyncio.run(scenario())


def test_the_interval_syncs_what_is_dirty_and_writes_recovery_points() -> None:
    async def scenario() -> None:
        tasks, partition, wrote = FakeTasks(), FakePartition(), list[int]()
        partition.appended = 7
        made = flusher(tasks, [partition], wrote)
        made.start()
        tasks.timers.pop()()
        await asyncio.sleep(0)
        await tasks.release()
        await tasks.release()
        assert (partition.durable, wrote) == (7, [1])
        assert len(tasks.timers) == 1
        made.stop()
        tasks.timers.pop()()
        await asyncio.sleep(0)
        assert tasks.blocked == []
        assert tasks.timers == []

    asyncio.run(scenario())


def test_what_was_synced_for_somebody_is_told_by_the_next_checkpoint() -> None:
    async def scenario() -> None:
        tasks, partition = FakeTasks(), FakePartition()
        told: list[list[object]] = []
        made = Flusher(tasks, 1000, lambda moved: partial(told.append, list(moved)))  # type: ignore[arg-type]
        made.start()
        partition.appended = 7
        made.dirty[partition] = None  # type: ignore[index]
        made.request(partition)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await tasks.release()
        assert partition.durable == 7
        tasks.timers.pop()()
        await asyncio.sleep(0)
        await tasks.release()
        assert (told, partition.syncs) == ([[partition]], 1)
        assert (made.dirty, partition.in_dirty_set) == ({}, False), "nothing is left to look at"
        tasks.timers.pop()()
        await asyncio.sleep(0)
        assert tasks.blocked == [], "nothing grew: nothing is written"

    asyncio.run(scenario())


def test_a_checkpoint_that_failed_is_written_again_though_nothing_grew() -> None:
    async def scenario() -> None:
        tasks, partition = FakeTasks(), FakePartition()
        outcomes = [OSError(28, "No space left on device"), None]

        def write() -> None:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome

        made = Flusher(tasks, 1000, lambda moved: write)  # type: ignore[arg-type]
        made.dirty[partition] = None  # type: ignore[index]
        made.start()
        for _ in range(3):
            tasks.timers.pop()()
            await asyncio.sleep(0)
            if tasks.blocked:
                await tasks.release()
        assert outcomes == []

    asyncio.run(scenario())


# On a slow disk

SYNC_S = 0.01


class SlowDiskTasks(LoopTasks):
    """Blocking work takes `SYNC_S` of virtual time for each sync that it did."""

    def __init__(self, loop: SimLoop, disk: SimDisk) -> None:
        super().__init__(loop)
        self.loop = loop
        self.syncs = 0
        disk.on_operation = self._count

    def _count(self, operation: str, _path: str) -> None:
        self.syncs += operation == "sync"

    def run_blocking(self, function: Callable[..., Any], *args: object, lane: str = "") -> "asyncio.Future[Any]":
        before = self.syncs
        future = self.loop.create_future()
        result = function(*args)
        self.loop.call_later((self.syncs - before) * SYNC_S, future.set_result, result)
        return future


def test_an_acknowledgement_does_not_wait_for_an_interval_flush_of_a_thousand_partitions() -> None:
    loop, disk = SimLoop(), SimDisk(rng=random.Random(1))
    tasks = SlowDiskTasks(loop, disk)
    partitions: list[Partition] = []
    made = Flusher(tasks, 1000, lambda moved: lambda: None)
    clock: Any = SimpleNamespace(now_ms=lambda: NOW_MS, monotonic=loop.time)
    for index in range(1000):
        config = LogConfig(durability="fsync" if index == 0 else "interval")
        log = PartitionLog.open(
            disk, f"/data/t-{index}", config, clean=False, recovery_point=-1, log_start_offset=0, now_ms=NOW_MS
        )
        partitions.append(
            Partition(
                "t",
                bytes(16),
                index,
                log,
                replica=leads_alone(log),
                internal=False,
                clock=clock,
                tasks=tasks,
                flusher=made,
            )
        )
    waits = []

    async def scenario() -> None:
        for partition in partitions[1:]:
            partition.append_batch(make_batch(b"v"))
        made.start()
        await asyncio.sleep(1.5)
        for number in range(50):
            asked = loop.time()
            committed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            appended = partitions[0].append_batch(make_batch(b"%d" % number))
            partitions[0].when_committed(appended.next_offset, committed.set_result)
            assert await committed is None
            waits.append(loop.time() - asked)
        assert partitions[999].log.unflushed, "the interval flush still runs"
        made.stop()
        await made.wait_for_flushes()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    alone = 2 * SYNC_S  # records and the leader epoch, before the first; later ones have no epoch to write
    assert max(waits) <= 2 * alone + 0.001
    assert sum(waits) / len(waits) < 1.5 * SYNC_S
