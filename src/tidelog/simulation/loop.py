"""An asyncio event loop with virtual time: the time jumps to the next timer when no callback is ready."""

import asyncio
from asyncio import base_events
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from math import inf, nextafter
from pathlib import PurePath
from typing import Any

from tidelog.simulation.trace import callback_name

TURNS_WITHOUT_TIME_MAX = 1_000_000
"""Upper bound on the turns of the loop at one virtual time. Further turns raise Livelock."""

PROCESS: ContextVar[str] = ContextVar("tidelog_simulated_process", default="")
"""The host whose process runs in this context. It is "" for the scenario, the kernels, the network and the store."""

_ASYNCIO = str(PurePath(asyncio.__file__).parent)


class Deadlock(RuntimeError):
    """No callback is ready and no timer is set, so the run can never continue. The text names the waiting tasks and the
    lines at which they wait.
    """


class Livelock(RuntimeError):
    """The loop runs callbacks endlessly, but its time does not advance."""


class TimeIsUp(RuntimeError):
    """The run has reached its limit of virtual time."""


def process_context(host: str) -> Context:
    """Return a new context for callbacks of the process on `host`. The callbacks do not run while the process is
    paused.
    """
    context = Context()
    context.run(PROCESS.set, host)
    return context


class Callback:
    """A scheduled callback. asyncio uses it as the handle that `call_soon`, `call_later` and `call_at` return.

    Without a context it is an event of a kernel, of the network or of the store, which belongs to no process: it also
    runs while processes are paused.
    """

    __slots__ = ("args", "context", "function")

    def __init__(
        self, function: Callable[..., object] | None, args: tuple[object, ...], context: Context | None
    ) -> None:
        self.function = function
        """None if the callback is cancelled."""
        self.args = args
        self.context = context

    def cancel(self) -> None:
        self.function = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.function is None


class SimLoop(base_events.BaseEventLoop):
    """Runs callbacks in the order of their times. Callbacks with the same time run in the order in which they were
    scheduled. The loop uses no selector, no thread and no real clock.

    `run_forever` and `run_until_complete` raise Deadlock, Livelock or TimeIsUp.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._limit = float("inf")
        self._timers: list[tuple[float, int, Callback]] = []
        self._timers_created = 0
        self._turns_without_time = 0
        self._delayed_callbacks: dict[str, list[Callback]] = {}
        """For each paused process, by host: its callbacks that became due during the pause."""

    def time(self) -> float:
        return self._now

    def limit_time(self, until: float) -> None:
        """Make the loop raise TimeIsUp when the virtual time would pass `until`."""
        self._limit = until

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        self._check_closed()  # type: ignore[attr-defined]
        timer = Callback(callback, args, copy_context() if context is None else context)
        self._timers_created += 1
        heappush(self._timers, (when, self._timers_created, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        when = self._now
        if delay > 0:
            # With a very short delay, `when + delay` can equal `when`. The time must advance nevertheless: a host with
            # a fast or slow clock may set such a timer again and again, until its own clock has advanced.
            when = max(when + delay, nextafter(when, inf))
        return self.call_at(when, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        """Call `callback` in the next turn. This is asyncio's method without its debug checks, which take more time
        than the rest of the method.
        """
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        handle = Callback(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_system_at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Call `callback` at the time `when`, as an event that belongs to no process and cannot be cancelled."""
        self._timers_created += 1
        heappush(self._timers, (when, self._timers_created, Callback(callback, args, None)))

    def call_system_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        self.call_system_at(self._now + delay_s, callback, *args)

    def pause_process(self, host: str) -> None:
        """Run no callback of the process on `host` until `continue_process`. Callbacks that become due are delayed."""
        self._delayed_callbacks.setdefault(host, [])

    def continue_process(self, host: str) -> None:
        """Run the callbacks that became due during the pause, in their order, and all later callbacks."""
        self._ready.extend(self._delayed_callbacks.pop(host, ()))  # type: ignore[attr-defined]

    def is_paused(self, host: str) -> bool:
        return host in self._delayed_callbacks

    def close(self) -> None:
        self._timers.clear()
        super().close()

    def __del__(self) -> None:
        """Do nothing: this loop has no resources of the operating system, so an unclosed loop is not a leak."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps, so it does not have to be woken."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: the loop has no file descriptors."""

    def _run_once(self) -> None:
        """Run turns until the loop is stopped. In asyncio's loops, each call runs only one turn, which is slower."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers, delayed_by_process = self._timers, self._delayed_callbacks
        while True:
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                self._advance_time()
            now = self._now
            while timers and timers[0][0] <= now:
                timer = heappop(timers)[2]
                if timer.function is not None:
                    ready.append(timer)
            self._turns_without_time += 1
            if self._turns_without_time > TURNS_WITHOUT_TIME_MAX:
                self._turns_without_time = 0
                raise Livelock(f"time stands still at {self._now:.6f}; waiting: {self._waiting()}")
            for _ in range(len(ready)):
                handle = ready.popleft()
                function, context = handle.function, handle.context
                if function is None:
                    continue
                try:
                    if context is None:
                        function(*handle.args)
                        continue
                    if delayed_by_process:
                        delayed = delayed_by_process.get(context.get(PROCESS, ""))
                        if delayed is not None:
                            delayed.append(handle)
                            continue
                    context.run(function, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"exception in callback {callback_name(function)}"
                    self.call_exception_handler({"message": message, "exception": error})
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _advance_time(self) -> None:
        """Advance the time to the next timer, which may be due already."""
        timers = self._timers
        while timers and timers[0][2].function is None:  # cancelled
            heappop(timers)
        if not timers:
            raise Deadlock(
                f"at virtual time {self._now:.6f} no callback and no timer is left; waiting: {self._waiting()}"
            )
        when = timers[0][0]
        if when > self._limit:
            raise TimeIsUp(f"virtual time {self._limit:.6f} is reached; waiting: {self._waiting()}")
        if when > self._now:
            self._now = when
            self._turns_without_time = 0

    def _waiting(self) -> str:
        return (
            "; ".join(sorted(f"{task.get_name()} at {_suspended_at(task)}" for task in asyncio.all_tasks(self)))
            or "no task"
        )


def _suspended_at(task: "asyncio.Task[Any]") -> str:
    """Return the innermost line, outside asyncio, at which a task is suspended."""
    position = "its end"
    inner: Any = task.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        if not frame.f_code.co_filename.startswith(_ASYNCIO):
            position = f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
        inner = inner.cr_await
    return position
