"""Tasks, timers and blocking calls of one simulated process."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.runtime.interfaces import ChildResources, ChildWork, Disk, TimerHandle, WorkEnded
from tidelog.runtime.tasks import report_failure
from tidelog.simulation.loop import SimLoop, process_context
from tidelog.simulation.trace import Trace, callback_name

T = TypeVar("T")


class ProcessGone(BaseException):
    """The simulated process was killed, so none of its code may have an effect. Only the simulation may catch
    this exception.
    """


class SimTasks:
    """The `Tasks` of one process on the shared virtual loop. `kill` stops all tasks, as SIGKILL does.

    `clock_rate` returns the speed of the host's clock: the seconds by which it advances in one virtual second.
    """

    def __init__(
        self,
        loop: SimLoop,
        host: str,
        rng: random.Random,
        trace: Trace,
        clock_rate: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._loop = loop
        self._clock_rate = clock_rate
        self._context = process_context(host)
        self._host = host
        self._rng = rng
        self._trace = trace
        self._running: dict[asyncio.Task[Any], None] = {}
        self._lane_free_at: dict[str, float] = {}
        """For each lane, the virtual time at which its last call ends."""
        self._blocking = 0
        """Number of blocking calls that have not ended."""
        self._idle: asyncio.Future[None] | None = None
        self.alive = True

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        if not self.alive:
            coroutine.close()
            raise ProcessGone
        task = self._loop.create_task(coroutine, name=f"{self._host}/{name}", context=self._context.copy())
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        self._check_alive()
        return self._loop.call_later(delay_s / self._clock_rate(), self._fire, callback, args, context=self._context)

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        self._check_alive()
        return self._loop.call_soon(self._call, callback, args, context=self._context)

    def future(self) -> "asyncio.Future[Any]":
        return self._loop.create_future()

    async def sleep(self, delay_s: float) -> None:
        self._check_alive()
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken = self._loop.create_future()
        timer = self.call_later(delay_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    def defer_collection(self, deferred: bool) -> None:
        """Do nothing: the garbage collector belongs to the whole simulation and takes no virtual time."""

    def run_blocking(self, function: Callable[..., T], *args: object, lane: str = "") -> "asyncio.Future[T]":
        """Run the function, and complete the returned future after a virtual delay. If `lane` is busy, the function
        runs at the end of the delay. Otherwise it is random whether the function runs at the beginning or at the end.

        So a sync covers all bytes that were written before this call, and only sometimes the bytes that are written
        during the delay.
        """
        self._check_alive()
        future: asyncio.Future[T] = self._loop.create_future()
        delay_s = self._rng.uniform(0.00005, 0.002) if self._rng.random() < 0.98 else self._rng.uniform(0.002, 0.2)
        ready_at = self._loop.time() + delay_s
        runs_first = self._rng.random() < 0.5
        if lane:
            free_at = self._lane_free_at.get(lane, 0.0)
            runs_first = runs_first and free_at <= self._loop.time()
            ready_at = max(free_at, self._loop.time()) + delay_s
            self._lane_free_at[lane] = ready_at
        self._blocking += 1
        if runs_first:
            self._loop.call_at(ready_at, self._resolve, future, *_outcome(function, args), context=self._context)
        else:
            self._loop.call_at(ready_at, self._run_and_resolve, future, function, args, context=self._context)
        return future

    def run_in_child(
        self, work: ChildWork, disk: Disk, request: bytes, report: Callable[[bytes], None]
    ) -> "asyncio.Future[None]":
        """Run `work` with a virtual delay, as `run_blocking` does. The clock that `work` gets does not advance.

        `report` is called on the loop with each result, before the future is done.
        """

        async def run_and_report() -> None:
            results: list[bytes] = []
            resources = ChildResources(disk, lambda: 0.0, lambda _seconds: None)
            try:
                await self.run_blocking(work, resources, request, results.append)
            except Exception as error:
                raise WorkEnded(repr(error)) from error
            finally:
                for content in results:
                    report(content)

        return self.spawn(run_and_report(), name="child-process")

    async def close(self) -> None:
        await asyncio.sleep(0)
        current = asyncio.current_task()
        while other_tasks := [task for task in self._running if task is not current]:
            for task in other_tasks:
                task.cancel()
            await asyncio.wait(other_tasks)
        if self._blocking:
            self._idle = self._loop.create_future()
            await self._idle

    def kill(self) -> None:
        """End the process: no callback of it runs any more, and its tasks end without effect."""
        self.alive = False
        for task in list(self._running):
            task.cancel()

    def _check_alive(self) -> None:
        if not self.alive:
            raise ProcessGone

    def _fire(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.alive:
            self._trace.note(self._host, "timer", callback_name(callback))
            callback(*args)

    def _call(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.alive:
            callback(*args)

    def _run_and_resolve(
        self, future: "asyncio.Future[Any]", function: Callable[..., Any], args: tuple[object, ...]
    ) -> None:
        if not self.alive:
            return
        if future.cancelled():
            self._resolve(future, None, None)
        else:
            self._resolve(future, *_outcome(function, args))

    def _resolve(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        if not self.alive:
            return
        self._blocking -= 1
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if self._idle is not None and not self._blocking:
            self._idle.set_result(None)
            self._idle = None

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        del self._running[task]
        if getattr(task, "_log_traceback", True):  # it has failed, and no other task has retrieved the exception yet
            self._loop.call_soon(self._report, task)

    def _report(self, task: "asyncio.Task[Any]") -> None:
        if self.alive and not self._loop.is_closed():
            report_failure(task)
        else:
            task.exception()  # asyncio must not log the exception of a killed process's task


def _outcome(function: Callable[..., T], args: tuple[object, ...]) -> tuple[T | None, BaseException | None]:
    try:
        return function(*args), None
    except ProcessGone:
        raise
    except BaseException as error:
        return None, error


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
