"""What a handler may return. `Pending` is an answer that comes later, delivered in the turn of the loop that brings it.

A future would wake its waiter one turn later; between a produce and the consumer that waits for it that turn is most
of the latency.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import TypeAlias

    from tidelog.model.steps import Steps

    T = TypeVar("T", covariant=True)
    Outcome: TypeAlias = "T | Pending[Any] | Steps[Outcome[T]] | Coroutine[Any, Any, Outcome[T]]"
    """What a handler returns, for a response T. `broker.slot` takes it apart.

    - T, a response: it is sent at once.
    - Pending: the answer waits for something that another request, the disk or a timer brings.
    - Steps: there may be much to look at. They return an outcome.
    - A coroutine: the answer waits for a change of the metadata or for a thread. It returns an outcome.

    A Pending that the handler itself returns is completed with T. One that comes of steps or of a coroutine is
    completed with any outcome.
    """

R = TypeVar("R")


class Pending(Generic[R]):
    """One response on its way. Whoever parks a request completes it once; the connection listens for it once."""

    __slots__ = ("_listener", "_response", "abandoned", "done", "on_abandon")

    def __init__(self, on_abandon: Callable[[], None] | None = None) -> None:
        self.done = False
        self.abandoned = False
        self.on_abandon = on_abandon
        """Called when the client went away: free what is parked."""
        self._response: R | None = None
        self._listener: Callable[[R], None] | None = None

    def complete(self, response: R) -> None:
        """Hand over the response. A second completion is a bug."""
        assert not self.done, "completed twice"
        self.done = True
        if self.abandoned:
            return
        if self._listener is None:
            self._response = response
        else:
            self._listener(response)

    def listen(self, listener: Callable[[R], None]) -> None:
        """Call `listener` with the response: now if it is there, else from within `complete`."""
        if self.done:
            response, self._response = self._response, None
            listener(response)  # type: ignore[arg-type]  # done: it was set by complete()
        else:
            self._listener = listener

    def abandon(self) -> None:
        """The client is gone; nobody wants the answer."""
        if not self.done and not self.abandoned:
            self.abandoned = True
            if self.on_abandon is not None:
                self.on_abandon()


class Gathering(Generic[R]):
    """Answers that come at different times, and one that is made of them when all are there."""

    __slots__ = ("_answers", "_build", "_left", "pending")

    def __init__(self, build: Callable[[list[R]], Any]) -> None:
        self._build = build
        self._answers: list[R] = []
        self._left = 1  # until nothing is added any more
        self.pending: Pending[Any] = Pending()

    def add(self, answer: R | Pending[R]) -> None:
        if isinstance(answer, Pending):
            answer.listen(self.reply())
        else:
            self.reply()(answer)

    def reply(self) -> Callable[[R], None]:
        """Takes an answer, once."""
        place = len(self._answers)
        self._answers.append(None)  # type: ignore[arg-type]  # there before `build` is called
        self._left += 1

        def take(answer: R) -> None:
            self._answers[place] = answer
            self._done()

        return take

    def returned(self) -> Pending[Any]:
        """What stands for the one answer; nothing is added after that."""
        self._done()
        return self.pending

    def _done(self) -> None:
        self._left -= 1
        if not self._left and not self.pending.abandoned:
            self.pending.complete(self._build(self._answers))
