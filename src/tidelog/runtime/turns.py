"""Long computations on the loop, a little in each of its turns, so that whoever else has something to do is not held.

It all happens on the loop's thread: nothing runs beside a step, what others do comes between two of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tidelog.model.steps import Steps
from tidelog.runtime.interfaces import Clock, Tasks

R = TypeVar("R")

FIRST_TURN_S = 0.001
"""Within the call that begins it: most computations are no longer than that, and cost no turn of the loop."""
FIRST_TURNS_S = 0.004
"""All of these together, between two turns of the loop: hundreds of requests may come in one."""
TURN_S = 0.004
STEPS_PER_TURN = 256
"""However short they are; on a virtual clock, where a turn takes no time, it is this that ends it."""
AT_ONCE_MAX = 4
LIGHT_WEIGHT_MAX = 256 << 10
"""What weighs no more need not wait for what does."""
LIGHT_AT_ONCE_MAX = 64
LIGHT_WEIGHTS_MAX = 4 << 20
"""The same as `AT_ONCE_MAX` and `WEIGHT_MAX`, of the light ones."""
FREED_PER_STEP = 512
"""Elements of lists that are let go."""
COLLECTION_DEFERRED_S = 10.0
"""At most, where there is always more to compute; see `Tasks.defer_collection`."""
WEIGHT_MAX = 16 << 20
"""Of what has turns at the same time, so that intermediate results do not add up; one alone may weigh more."""


class NoTurn(Exception):
    """What might be done at once has to wait for a later turn."""


class Work(Generic[R]):
    """One computation, from `Turns.begin` to its end."""

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
        """Do no further step; nobody hears of it."""
        if not self.ended:
            self.ended = True
            self._steps.close()
            self._turns.cancelled(self)

    def turn(self, monotonic: Callable[[], float], seconds: float) -> None:
        """Some steps. At the end, what came out of it is told."""
        until = monotonic() + seconds
        left = STEPS_PER_TURN
        value, failure = None, None
        try:
            while True:
                next(self._steps)
                left -= 1
                if not left or monotonic() >= until:
                    return
        except StopIteration as end:
            value = end.value
        except Exception as error:
            failure = error
        self.ended = True
        self._done(value, failure)


class _Class:
    """Computations of like weight: what waits, in the order in which it was begun, and what has turns."""

    __slots__ = ("at_once_max", "running", "waiting", "weight", "weight_max")

    def __init__(self, at_once_max: int, weight_max: int) -> None:
        self.at_once_max = at_once_max
        self.weight_max = weight_max
        self.waiting: deque[Work[Any]] = deque()
        self.running = 0
        self.weight = 0

    def next(self) -> "Work[Any] | None":
        """What may have turns now."""
        if not self.waiting or self.running >= self.at_once_max:
            return None
        if self.running and self.weight + self.waiting[0].weight > self.weight_max:
            return None
        work = self.waiting.popleft()
        self.running += 1
        self.weight += work.weight
        return work

    def ended(self, work: Work[Any]) -> None:
        self.running -= 1
        self.weight -= work.weight


class Turns:
    """Runs the long computations of one process, one after another, for some milliseconds in each turn of the loop.

    They come in the order in which they were begun, a few side by side, so that a short one does not wait for a long
    one; the others have had their first turn at the most and hold little.
    """

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._monotonic = clock.monotonic
        self._tasks = tasks
        self._heavy = _Class(AT_ONCE_MAX, WEIGHT_MAX)
        self._light = _Class(LIGHT_AT_ONCE_MAX, LIGHT_WEIGHTS_MAX)
        self._running: deque[Work[Any]] = deque()
        self._first_turns_s = FIRST_TURNS_S
        """What is left of it until the loop's next turn."""
        self._called = False
        self._deferred_until_s: float | None = None
        self._settled: asyncio.Future[None] | None = None

    def begin(
        self, steps: Steps[R], done: Callable[[R | None, Exception | None], object], *, weight: int = 0
    ) -> Work[R]:
        """Compute, then call `done` with the result or the failure: now if it is short, else from a later turn.

        `weight` is about the memory that it works on, in bytes of the request.
        """
        work = Work(self, steps, done, weight)
        left_s = self._first_turns_s
        if left_s > 0:
            began_s = self._monotonic()
            try:
                work.turn(self._monotonic, min(FIRST_TURN_S, left_s))
            finally:
                # `done` may have begun others: this is their time too.
                self._first_turns_s = left_s - (self._monotonic() - began_s)
        if not work.ended:
            self._class_of(work).waiting.append(work)
            self._call()
        else:
            self._renew_soon()
        return work

    def at_once(self, function: Callable[..., R], *args: object) -> R:
        """What `function` returns: some ms that cannot be parted. They count as a first turn, and are the last one
        until the loop's next turn if they take its time. Raises NoTurn if there is none left.
        """
        left_s = self._first_turns_s
        if left_s <= 0:
            raise NoTurn
        began_s = self._monotonic()
        try:
            return function(*args)
        finally:
            self._first_turns_s = left_s - (self._monotonic() - began_s)
            self._renew_soon()

    def _renew_soon(self) -> None:
        if self._first_turns_s < FIRST_TURNS_S / 2:
            self._call()

    def _class_of(self, work: Work[Any]) -> _Class:
        return self._light if work.weight <= LIGHT_WEIGHT_MAX else self._heavy

    @property
    def _idle(self) -> bool:
        return not (self._running or self._light.waiting or self._heavy.waiting)

    async def run(self, steps: Steps[R]) -> R:
        """The result of the computation; with the caller it is cancelled."""
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

    def let_go(self, lists: Iterable[list[Any]]) -> None:
        """Free what is in these lists, unless somebody else holds it, and empty them: a little at a time, since the end
        of a million objects takes a tenth of a second.
        """
        held = [elements for elements in lists if elements]
        if held:
            self.begin(_freed(held), _nobody_hears)

    async def settled(self, patience_s: float) -> None:
        """Return when nothing is being computed, at the latest after `patience_s`."""
        if not self._idle:
            self._settled = self._tasks.future()
            deadline = self._tasks.call_later(patience_s, self._settle)
            await self._settled
            deadline.cancel()

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def cancelled(self, work: Work[Any]) -> None:
        """`work` will take no turn any more."""
        if work in self._running:
            self._running.remove(work)
            self._class_of(work).ended(work)
        else:
            waiting = self._class_of(work).waiting
            if work in waiting:
                waiting.remove(work)
        self._collect_when_due()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._tasks.call_soon(self._turn)

    def _turn(self) -> None:
        self._called = False
        self._first_turns_s = FIRST_TURNS_S
        self._admit()
        try:
            self._take_turns()
        finally:
            self._collect_when_due()
            if not self._idle:
                self._call()

    def _take_turns(self) -> None:
        """One, and more while those that have theirs come to their end before the time is over."""
        left_s = TURN_S
        until_s = self._monotonic() + left_s
        for _ in range(LIGHT_AT_ONCE_MAX):
            if not self._running:  # the end of one may have cancelled the others
                return
            work = self._running[0]
            try:
                work.turn(self._monotonic, left_s)
            finally:
                if work.ended:
                    self._running.remove(work)
                    self._class_of(work).ended(work)
                else:
                    self._running.rotate(-1)
            left_s = until_s - self._monotonic()
            if not work.ended or left_s <= 0:
                return

    def _admit(self) -> None:
        running = self._running
        for these in (self._light, self._heavy):
            while (work := these.next()) is not None:
                running.append(work)
        if running and self._deferred_until_s is None:
            self._deferred_until_s = self._monotonic() + COLLECTION_DEFERRED_S
            self._tasks.defer_collection(True)

    def _collect_when_due(self) -> None:
        until_s = self._deferred_until_s
        if until_s is not None and (self._idle or self._monotonic() >= until_s):
            self._deferred_until_s = None
            self._tasks.defer_collection(False)
        if self._settled is not None and self._idle:
            self._settle()


def _freed(held: list[list[Any]]) -> Steps[None]:
    while held:
        elements = held[-1]
        del elements[-FREED_PER_STEP:]
        if not elements:
            held.pop()
        yield


def _nobody_hears(_: None, error: Exception | None) -> None:
    pass
