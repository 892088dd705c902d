"""One request's place in the order of a connection's responses, from what its handler returns to the answer."""

from collections.abc import Coroutine
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.api.metering import timed
from tidelog.api.pending import Pending
from tidelog.api.registry import PRODUCE_KEY, Route
from tidelog.api.services import NO_RESPONSE, CloseConnection, RequestContext
from tidelog.broker.serving import Encoded, answered_in_steps, failure_response
from tidelog.model.steps import Steps
from tidelog.runtime.turns import Work

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection

_SETTLED = (Encoded, CloseConnection)
"""Answers that do not say any more how long the client waits."""


class Slot:
    """One request's place in the order of the responses."""

    __slots__ = (
        "answered",
        "connection",
        "context",
        "in_steps",
        "is_handled",
        "keeps",
        "pipelined",
        "response",
        "route",
        "waits_for",
    )

    def __init__(self, connection: "ServerConnection", found: Route, context: RequestContext) -> None:
        meter = context.meter
        self.connection = connection
        self.route = found
        self.context = context
        self.pipelined = found.api_key == PRODUCE_KEY and (meter is None or not meter.one_at_a_time)
        """Whether the next request may be handled before this one is answered."""
        self.answered = False
        self.response: Any = None
        self.waits_for: Pending[Any] | Work[Any] | None = None
        """What can be given up when the client has gone. A coroutine runs to its end."""
        self.keeps = False
        """Whether the steps in `waits_for` read the connection's buffer."""
        self.is_handled = False
        """Whether all that the request changes is done, and only the answer is missing."""
        self.in_steps = meter is not None
        """Whether a response may be large, or its encoding counts for a quota: then it is encoded in steps."""

    def take(self, outcome: Any) -> None:
        """Bring an `Outcome`, the handler's or what came of that one, to the answer."""
        if isinstance(outcome, Pending):
            if self.route.api_key != PRODUCE_KEY:
                self.is_handled = True  # of produce, batches may be still to be appended
            elif not self.pipelined:
                self._let_others_follow()
            if self.connection.gone and not self.goes_on:
                outcome.abandon()
                self.answer(None)
                return
            self.waits_for = outcome
            outcome.listen(self._completed if self.in_steps else self.answer)
        elif isinstance(outcome, CoroutineType):
            self.is_handled = False
            name = f"request-{self.route.name}"
            self.connection.services.runtime.tasks.spawn(self._await(outcome), name=name)
        elif isinstance(outcome, GeneratorType) or type(outcome) is self.route.response:
            self._take_steps(outcome)
        else:
            self.answer(outcome)

    def _let_others_follow(self) -> None:
        """Its batches are appended, or have their place in the queue: those of the next request come behind them."""
        meter = self.context.meter
        if meter is None or not meter.one_at_a_time:
            self.pipelined = True
            self.connection.resume_soon()

    def _completed(self, outcome: Any) -> None:
        self.waits_for = None
        self.is_handled = True
        self.take(outcome)

    async def _await(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            outcome = await coroutine
        except Exception as error:
            outcome = failure_response(self.route, self.context, error)
        self.is_handled = True
        self.take(outcome)

    def _take_steps(self, outcome: Any) -> None:
        connection = self.connection
        if not connection.gone or self.goes_on:
            steps = answered_in_steps(
                connection.services.turns, self.route, outcome, lambda: not connection.gone, self.context.meter
            )
            self.begin(steps)
            return
        if isinstance(outcome, GeneratorType):
            outcome.close()
        self.answer(None)

    def begin(self, steps: Steps[Any], weight: int = 0) -> bool:
        """Take the steps to their outcome: now if they are few. True if more of them come in later turns."""
        self.in_steps = True
        turns = self.connection.services.turns
        work = turns.begin(timed(self.context.meter, steps), self._computed, weight=weight)
        if work.ended:
            return False
        self.waits_for = work
        return True

    def _computed(self, outcome: Any, error: Exception | None) -> None:
        self.waits_for = None
        self._unkeep()
        if error is not None:
            outcome = failure_response(self.route, self.context, error)
        self.take(outcome)

    def _unkeep(self) -> None:
        if self.keeps:
            self.keeps = False
            self.connection.unkeep()

    def answer(self, response: Any) -> None:
        """The last call: `response` is the route's, or Encoded, CloseConnection, NO_RESPONSE."""
        self.answered = True
        self.response = response
        self.waits_for = None
        if self.context.meter is not None:
            self.context.meter.settle(None if response is NO_RESPONSE or type(response) in _SETTLED else response)
        self.connection.slot_answered(self)

    @property
    def goes_on(self) -> bool:
        """Whether the request still has to change something, although nobody waits for the answer."""
        return self.route.has_effects and not self.is_handled

    def abandon(self) -> bool:
        """The client is gone. True if the request goes on all the same."""
        if self.goes_on:
            return True
        waits_for, self.waits_for = self.waits_for, None
        if isinstance(waits_for, Pending):
            waits_for.abandon()
        elif waits_for is not None:
            waits_for.cancel()
        self._unkeep()
        return False
