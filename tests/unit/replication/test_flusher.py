"""Group commit: one sync for all that came while the last one ran; a failed sync fails its own log alone."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tidelog.replication.flusher import Flusher


class FakePlan:
    def __init__(self, partition: "FakePartition") -> None:
        self.partition = partition
        self.end_offset = partition.appended

    def run(self) -> None:
        self.partition.syncs += 1
        if self.partition.broken:
            raise OSError(5, "Input/output error")


class FakePartition:
    topic, index, deleted = "t", 0, False

    def __init__(self, *, broken: bool = False) -> None:
        self.appended = 0
        self.durable = 0
        self.syncs = 0
        self.broken = broken
        self.told = 0
        self.log: Any = SimpleNamespace(
            failure=None,
            flush_plan=lambda: FakePlan(self),
            flushed=lambda plan: setattr(self, "durable", plan.end_offset),
            fail=lambda reason: setattr(self.log, "failure", reason),
        )

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
    def checkpoint() -> Callable[[], None]:
        return lambda: wrote.append(1) if wrote is not None else None

    return Flusher(tasks, 1000, lambda: dirty, checkpoint)  # type: ignore[arg-type]


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


def test_one_flush_at_a_time_and_none_of_what_is_deleted() -> None:
    async def scenario() -> None:
        tasks, partition = FakeTasks(), FakePartition()
        made = flusher(tasks, [partition])
        partition.appended = 1
        made.request(partition)  # type: ignore[arg-type]
        made._tick()
        await asyncio.sleep(0)
        assert len(tasks.blocked) == 1
        settled = asyncio.ensure_future(made.settled())
        partition.deleted = True
        await tasks.release()
        while tasks.blocked:
            await tasks.release()
        await settled
        assert partition.syncs == 1

    asyncio.run(scenario())


def test_a_failed_sync_fails_its_log_and_no_other() -> None:
    async def scenario() -> None:
        tasks, good, bad = FakeTasks(), FakePartition(), FakePartition(broken=True)
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
