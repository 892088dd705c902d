"""Tasks, timers and blocking calls on a running asyncio or uvloop loop."""

import asyncio
import gc
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.runtime.forks import drop_when_forked
from tidelog.runtime.interfaces import ChildWork, Disk, TimerHandle

if TYPE_CHECKING:
    from tidelog.runtime.child_process import ChildProcess

T = TypeVar("T")

log = logging.getLogger("tidelog.tasks")

CHILD_IDLE_S = 30.0
"""An idle child process (see `LoopTasks.run_in_child`) is ended after this time, in seconds."""
IO_THREADS_MAX = 4
"""Upper bound on the threads that run blocking calls without a lane. The calls wait for disks and use little CPU."""


class LoopTasks:
    """The `Tasks` of one loop. All code except the blocking functions runs on the thread of this loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, io_threads_max: int = IO_THREADS_MAX) -> None:
        self._loop = loop
        self._io_threads_max = io_threads_max
        self._running: dict[asyncio.Task[Any], None] = {}
        self._lanes: dict[str, _Workers] = {}
        self._closed = False
        self._child: ChildProcess | None = None
        self._has_disabled_collector = False
        drop_when_forked(self)
        # These are the loop's own functions and not methods that call them, since hot paths use call_later and
        # call_soon.
        self.call_later: Callable[..., TimerHandle] = loop.call_later
        self.call_soon: Callable[..., object] = loop.call_soon
        self.future: Callable[[], asyncio.Future[Any]] = loop.create_future

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        task = self._loop.create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._on_end)
        return task

    def sleep(self, delay_s: float) -> Awaitable[None]:
        return asyncio.sleep(delay_s)

    def run_blocking(self, function: Callable[..., T], *args: object, lane: str = "") -> "asyncio.Future[T]":
        workers = self._lanes.get(lane)
        if workers is None:
            if self._closed:
                raise RuntimeError("run_blocking after close")
            workers = _Workers(self._loop, lane or "io", 1 if lane else self._io_threads_max)
            self._lanes[lane] = workers
        return workers.submit(function, args)

    def run_in_child(
        self, work: ChildWork, disk: Disk, request: bytes, report: Callable[[bytes], None]
    ) -> "asyncio.Future[None]":
        from tidelog.runtime.child_process import LANE, ChildProcess

        process = self._child = self._child or ChildProcess()
        token = object()

        def deliver(content: bytes) -> None:
            if not future.done():
                report(content)

        def deliver_on_loop(content: bytes) -> None:
            self._loop.call_soon_threadsafe(deliver, content)

        def on_end(future: "asyncio.Future[None]") -> None:
            if future.cancelled():
                process.kill(token)
            elif not self._closed:
                self._loop.call_later(CHILD_IDLE_S, self._end_child_if_idle, process, process.calls)

        future = self.run_blocking(process.call, token, work, request, deliver_on_loop, lane=LANE)
        future.add_done_callback(on_end)
        return future

    def _end_child_if_idle(self, process: "ChildProcess", calls: int) -> None:
        """End the child process if no call has begun since `process.calls` was `calls`."""
        from tidelog.runtime.child_process import LANE

        if not self._closed and process.calls == calls:
            self.run_blocking(process.end, lane=LANE)

    def defer_collection(self, deferred: bool) -> None:
        if deferred and not self._closed:
            # An application that embeds the broker may have disabled the collector itself.
            self._has_disabled_collector = gc.isenabled()
            gc.disable()
        elif self._has_disabled_collector:
            self._has_disabled_collector = False
            if not gc.get_freeze_count():
                # Move all young objects to the oldest generation without traversing them. Otherwise the next collection
                # would need half a second to traverse all objects that were created while the collector was disabled
                # and are still alive.
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    def drop_in_forked_child(self) -> None:
        """Enable the garbage collector in the forked child if this object has disabled it. The computation that
        would enable it again does not run in the child.
        """
        if self._has_disabled_collector:
            gc.enable()

    async def close(self) -> None:
        """Cancel the running tasks, wait for blocking calls, join the threads. The calling task is not cancelled."""
        await asyncio.sleep(0)  # run the callbacks that are already scheduled, such as `Receiver.closed`
        current = asyncio.current_task()
        while other_tasks := [task for task in self._running if task is not current]:
            for task in other_tasks:
                task.cancel()
            await asyncio.wait(other_tasks)
        self._closed = True
        lanes = list(self._lanes.values())
        self._lanes.clear()
        for workers in lanes:
            await workers.close()
        if self._child is not None:
            self._child.end()
        # The computations that disabled the collector were cancelled, so they have not enabled it again.
        self.defer_collection(False)

    def _on_end(self, task: "asyncio.Task[Any]") -> None:
        del self._running[task]
        # `_log_traceback` is True until the task's exception is retrieved. A task that awaits the ended task retrieves
        # the exception in this turn of the loop, or in the next turn if it uses `asyncio.wait`. So check again two
        # turns later.
        if not task.cancelled() and getattr(task, "_log_traceback", True) and not self._loop.is_closed():
            self._loop.call_soon(self._loop.call_soon, report_failure, task)


def report_failure(task: "asyncio.Task[Any]") -> None:
    """Log the failure of a task unless its exception was retrieved."""
    if getattr(task, "_log_traceback", True) and (error := task.exception()) is not None:
        log.error("task failed name=%s error=%r", task.get_name(), error, exc_info=error)


class _Workers:
    """Threads that serve one queue of calls. The first thread starts with the first call.

    The overhead of a call is 20 us, compared with 35 us in `concurrent.futures`. This difference matters, since group
    commit makes one call per fsync. The threads are daemon threads, so that an application that forgets `close()` can
    still exit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, threads_max: int) -> None:
        from queue import SimpleQueue

        self._loop = loop
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]] | None]
        self._calls = SimpleQueue()
        self._unfinished = 0
        self._idle: asyncio.Future[None] | None = None

    def submit(self, function: Callable[..., T], args: tuple[object, ...]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._unfinished += 1
        self._calls.put((future, function, args))
        if len(self._threads) < min(self._unfinished, self._threads_max):
            name = f"tidelog-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    async def close(self) -> None:
        if self._unfinished:
            self._idle = self._loop.create_future()
            await self._idle
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, args = call
            result = error = None
            try:
                if not future.cancelled():
                    result = function(*args)
            except BaseException as failure:  # KeyboardInterrupt and SystemExit are also passed to the caller
                error = failure
            try:
                self._loop.call_soon_threadsafe(self._finished, future, result, error)
            except RuntimeError:  # the loop was closed, so no caller waits for the result
                return
            # While the thread waits for the next call, it must not keep these objects alive.
            del call, future, function, args, result, error

    def _finished(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        self._unfinished -= 1
        if not future.done():
            if error is None:
                future.set_result(result)
            elif isinstance(error, StopIteration):  # a future refuses this exception
                future.set_exception(RuntimeError(f"blocking call raised {error!r}"))
            else:
                future.set_exception(error)
        if self._idle is not None and not self._unfinished:
            self._idle.set_result(None)
            self._idle = None
