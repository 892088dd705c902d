"""The return values of handlers. `Pending` is a response that is completed later.

A Pending delivers the response within the call that completes it. A future would wake its waiter one turn of the
loop later. That turn would be most of the latency between a produce request and a consumer that waits for the records.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import TypeAlias

    from tidelog.model.steps import Steps

    T = TypeVar("T", covariant=True)
    Outcome: TypeAlias = "T | Pending[Any] | Steps[Outcome[T]] | Coroutine[Any, Any, Outcome[T]]"
    """The return value of a handler for a response of type T. `broker.slot` processes it.

        - T, a response: it is sent immediately.
        - Pending: the response waits for another request, the disk or a timer.
        - Steps: long processing in steps, which returns an outcome.
        - A coroutine: waits for a change of the metadata or for a thread, and returns an outcome.

    A Pending that the handler returns is completed with T, the response. A Pending that Steps return may also be
    completed with another Pending, with Steps or with a coroutine, which `broker.slot` then processes.
    """

R = TypeVar("R")


class Pending(Generic[R]):
    """A response that is completed later, at most once. It has one listener."""

    __slots__ = ("_listener", "_response", "abandoned", "done", "on_abandon")

    def __init__(self, on_abandon: Callable[[], None] | None = None) -> None:
        self.done = False
        self.abandoned = False
        self.on_abandon = on_abandon
        """Called when the client has disconnected, to free the waiting request."""
        self._response: R | None = None
        self._listener: Callable[[R], None] | None = None

    def complete(self, response: R) -> None:
        """Deliver the response, or drop it if `abandon` was called before. May be called only once."""
        assert not self.done, "completed twice"
        self.done = True
        if self.abandoned:
            return
        if self._listener is None:
            self._response = response
        else:
            self._listener(response)

    def listen(self, listener: Callable[[R], None]) -> None:
        """Call `listener` with the response: immediately if the response is complete already, otherwise within
        `complete`.
        """
        if self.done:
            response, self._response = self._response, None
            listener(response)  # type: ignore[arg-type]  # done: it was set by complete()
        else:
            self._listener = listener

    def abandon(self) -> None:
        """Drop the response, since the client has disconnected."""
        if not self.done and not self.abandoned:
            self.abandoned = True
            if self.on_abandon is not None:
                self.on_abandon()


class Gathering(Generic[R]):
    """Collects answers that arrive at different times, and builds one response when all have arrived."""

    __slots__ = ("_answers", "_build", "_unanswered", "pending")

    def __init__(self, build: Callable[[list[R]], Any]) -> None:
        self._build = build
        self._answers: list[R] = []
        self._unanswered = 1  # the missing answers, plus 1 until `finish` is called
        self.pending: Pending[Any] = Pending()

    def add(self, answer: R | Pending[R]) -> None:
        if isinstance(answer, Pending):
            answer.listen(self.reply())
        else:
            self.reply()(answer)

    def reply(self) -> Callable[[R], None]:
        """Return a function that accepts one answer, once."""
        position = len(self._answers)
        self._answers.append(None)  # type: ignore[arg-type]  # replaced before `build` is called
        self._unanswered += 1

        def accept(answer: R) -> None:
            self._answers[position] = answer
            self._count_down()

        return accept

    def finish(self) -> Pending[Any]:
        """Return the pending response. Neither `add` nor `reply` may be called afterwards."""
        self._count_down()
        return self.pending

    def _count_down(self) -> None:
        self._unanswered -= 1
        if not self._unanswered and not self.pending.abandoned:
            self.pending.complete(self._build(self._answers))
