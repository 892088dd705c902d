"""Cooperative scheduling of long computations on the event loop.

A long computation is a generator (`Steps`) that yields after every small piece of work. `Turns` runs such generators
for a few milliseconds in each iteration ("turn") of the event loop, so that other connections are served in between.
All steps run on the loop's thread: other code runs only between two steps, never during a step.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tidelog.model.steps import Steps
from tidelog.runtime.interfaces import Clock, Tasks

R = TypeVar("R")

FIRST_TURN_S = 0.001
"""Time, in seconds, for which a computation runs inside the call that begins it. Most computations end within this time
and never wait for a loop turn."""
FIRST_TURNS_S = 0.004
"""Upper bound on the time, in seconds, of all first turns before the next loop turn of `Turns`. It is needed since one
iteration of the loop may bring hundreds of requests."""
TURN_S = 0.004
"""Time that all computations together get in one loop turn, after their first turns."""
STEPS_PER_TURN = 256
"""Upper bound on the steps that one computation runs in a turn. In a simulation, the virtual clock does not advance
during a turn, so only this bound ends the turn."""
LIGHT_WEIGHT_MAX = 256 << 10
"""Computations up to this weight (bytes) never queue behind heavier computations."""
LIGHT_AT_ONCE_MAX = 64
"""Upper bound on the light computations that take turns side by side."""
LIGHT_WEIGHTS_MAX = 4 << 20
"""Upper bound on the sum of the weights of the light computations that take turns side by side, in bytes."""
HEAVY_AT_ONCE_MAX = 4
"""Upper bound on the heavy computations that take turns side by side."""
HEAVY_WEIGHTS_MAX = 16 << 20
"""Upper bound on the sum of the weights of the heavy computations that take turns side by side, in bytes. It bounds
the memory of their intermediate results. A single computation may weigh more."""
FREED_PER_STEP = 512
"""Number of elements that `Turns.free_in_steps` drops from a list in one step."""
COLLECTION_DEFERRED_S = 10.0
"""While computations follow each other without a pause, the garbage collector is enabled for a moment whenever it has
been disabled for this time; see `Tasks.defer_collection`."""


class NoTurn(Exception):
    """No time is left for a first turn before the next loop turn. The caller has to queue its work."""


class Work(Generic[R]):
    """One computation, from `Turns.begin` until it ends, fails or is cancelled."""

    __slots__ = ("_done", "_steps", "_turns", "ended", "weight")

    def __init__(
        self, turns: "Turns", steps: Steps[R], done: Callable[[Any, Exception | None], object], weight: int
    ) -> None:
        self._turns = turns
        self._steps = steps
        self._done = done
        self.weight = weight
        self.ended = False

    def cancel(self) -> None:
        """Run no further step. The `done` callback is not called."""
        if not self.ended:
            self.ended = True
            self._steps.close()
            self._turns.discard(self)

    def turn(self, monotonic: Callable[[], float], seconds: float) -> None:
        """Run steps for `seconds`, but at most STEPS_PER_TURN. Call `done` when the computation has ended."""
        until = monotonic() + seconds
        steps_left = STEPS_PER_TURN
        value, failure = None, None
        try:
            while True:
                next(self._steps)
                steps_left -= 1
                if not steps_left or monotonic() >= until:
                    return
        except StopIteration as end:
            value = end.value
        except Exception as error:
            failure = error
        self.ended = True
        self._done(value, failure)


class _WeightClass:
    """The light or the heavy computations: the queue of the waiting computations, and the number and total weight of
    the computations that take turns.
    """

    __slots__ = ("at_once_max", "running", "waiting", "weight", "weight_max")

    def __init__(self, at_once_max: int, weight_max: int) -> None:
        self.at_once_max = at_once_max
        self.weight_max = weight_max
        self.waiting: deque[Work[Any]] = deque()
        self.running = 0
        self.weight = 0

    def admit(self) -> "Work[Any] | None":
        """If the bounds allow the oldest waiting computation to take turns now, remove it from the queue and return
        it.
        """
        if not self.waiting or self.running >= self.at_once_max:
            return None
        if self.running and self.weight + self.waiting[0].weight > self.weight_max:
            return None
        work = self.waiting.popleft()
        self.running += 1
        self.weight += work.weight
        return work

    def remove(self, work: Work[Any]) -> None:
        """Subtract a computation that no longer takes turns."""
        self.running -= 1
        self.weight -= work.weight


class Turns:
    """Runs the long computations of one process for a few milliseconds in each turn of the event loop.

    The computations of one weight class are admitted in the order in which they were begun. A few of them take turns
    side by side, so that a short computation does not wait for the end of a long one. A waiting computation has had at
    most its first turn, so it uses little memory.
    """

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._monotonic = clock.monotonic
        self._tasks = tasks
        self._heavy = _WeightClass(HEAVY_AT_ONCE_MAX, HEAVY_WEIGHTS_MAX)
        self._light = _WeightClass(LIGHT_AT_ONCE_MAX, LIGHT_WEIGHTS_MAX)
        self._running: deque[Work[Any]] = deque()
        self._first_turns_s = FIRST_TURNS_S
        """Remaining time for first turns until the next loop turn, in seconds."""
        self._turn_scheduled = False
        self._deferred_until_s: float | None = None
        self._idle_future: asyncio.Future[None] | None = None

    def begin(
        self, steps: Steps[R], done: Callable[[R | None, Exception | None], object], *, weight: int = 0
    ) -> Work[R]:
        """Run `steps`, then call `done(result, None)` or `done(None, failure)`.

        A short computation ends before this call returns, if time for first turns is left. Any other computation ends
        in a later loop turn. `weight` is an estimate of the memory that the computation works on, in bytes: for
        example the size of the request that it decodes.
        """
        work = Work(self, steps, done, weight)
        remaining_s = self._first_turns_s
        if remaining_s > 0:
            began_s = self._monotonic()
            try:
                work.turn(self._monotonic, min(FIRST_TURN_S, remaining_s))
            finally:
                # `done` may have begun other computations inside this call. Their time is also counted here.
                self._first_turns_s = remaining_s - (self._monotonic() - began_s)
        if not work.ended:
            self._class_of(work).waiting.append(work)
            self._schedule_turn()
        else:
            self._renew_soon()
        return work

    def run_inline(self, function: Callable[..., R], *args: object) -> R:
        """Call `function`, which takes some milliseconds and cannot be split into steps, and return its result.

        The time of the call counts as a first turn. If the time for first turns is used up, `function` is not called
        and NoTurn is raised.
        """
        remaining_s = self._first_turns_s
        if remaining_s <= 0:
            raise NoTurn
        began_s = self._monotonic()
        try:
            return function(*args)
        finally:
            self._first_turns_s = remaining_s - (self._monotonic() - began_s)
            self._renew_soon()

    def _renew_soon(self) -> None:
        """If less than half of the time for first turns is left, schedule a turn, which renews this time."""
        if self._first_turns_s < FIRST_TURNS_S / 2:
            self._schedule_turn()

    def _class_of(self, work: Work[Any]) -> _WeightClass:
        return self._light if work.weight <= LIGHT_WEIGHT_MAX else self._heavy

    @property
    def _is_idle(self) -> bool:
        return not (self._running or self._light.waiting or self._heavy.waiting)

    async def run(self, steps: Steps[R]) -> R:
        """Run `steps` and return their result. If the caller is cancelled, the computation is cancelled."""
        future = self._tasks.future()

        def done(value: R | None, failure: Exception | None) -> None:
            if future.cancelled():
                return
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(failure)

        work = self.begin(steps, done)
        try:
            return await future  # type: ignore[no-any-return]  # the steps' own result
        finally:
            work.cancel()

    def free_in_steps(self, lists: Iterable[list[Any]]) -> None:
        """Empty these lists, a few elements at a time, so that freeing the elements does not block the loop. Freeing a
        million objects at once would take about a tenth of a second.
        """
        lists_to_empty = [elements for elements in lists if elements]
        if lists_to_empty:
            self.begin(_drop_elements(lists_to_empty), _ignore_outcome)

    async def wait_until_idle(self, timeout_s: float) -> None:
        """Return when no computation is left, or after `timeout_s`, whichever comes first."""
        if not self._is_idle:
            self._idle_future = self._tasks.future()
            deadline = self._tasks.call_later(timeout_s, self._end_wait)
            await self._idle_future
            deadline.cancel()

    def _end_wait(self) -> None:
        if self._idle_future is not None and not self._idle_future.done():
            self._idle_future.set_result(None)

    def discard(self, work: Work[Any]) -> None:
        """Remove the cancelled `work` from its queue, or from the computations that take turns."""
        if work in self._running:
            self._running.remove(work)
            self._class_of(work).remove(work)
        else:
            waiting = self._class_of(work).waiting
            if work in waiting:
                waiting.remove(work)
        self._resume_collection_when_due()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._tasks.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self._first_turns_s = FIRST_TURNS_S
        self._admit()
        try:
            self._take_turns()
        finally:
            self._resume_collection_when_due()
            if not self._is_idle:
                self._schedule_turn()

    def _take_turns(self) -> None:
        """Run one turn of the next computation. If the computation ends before TURN_S is used up, continue with the
        next one.
        """
        remaining_s = TURN_S
        until_s = self._monotonic() + remaining_s
        for _ in range(LIGHT_AT_ONCE_MAX):
            if not self._running:  # the `done` callback of one computation may have cancelled all other computations
                return
            work = self._running[0]
            try:
                work.turn(self._monotonic, remaining_s)
            finally:
                if work.ended:
                    self._running.remove(work)
                    self._class_of(work).remove(work)
                else:
                    self._running.rotate(-1)
            remaining_s = until_s - self._monotonic()
            if not work.ended or remaining_s <= 0:
                return

    def _admit(self) -> None:
        running = self._running
        for weight_class in (self._light, self._heavy):
            while (work := weight_class.admit()) is not None:
                running.append(work)
        if running and self._deferred_until_s is None:
            self._deferred_until_s = self._monotonic() + COLLECTION_DEFERRED_S
            self._tasks.defer_collection(True)

    def _resume_collection_when_due(self) -> None:
        """Enable the garbage collector again if no computation is left, or if the collector was disabled for too long.
        If no computation is left, also end `wait_until_idle`.
        """
        until_s = self._deferred_until_s
        if until_s is not None and (self._is_idle or self._monotonic() >= until_s):
            self._deferred_until_s = None
            self._tasks.defer_collection(False)
        if self._idle_future is not None and self._is_idle:
            self._end_wait()


def _drop_elements(lists: list[list[Any]]) -> Steps[None]:
    while lists:
        elements = lists[-1]
        del elements[-FREED_PER_STEP:]
        if not elements:
            lists.pop()
        yield


def _ignore_outcome(_: None, error: Exception | None) -> None:
    pass
