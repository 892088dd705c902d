"""One request's place in the order of a connection's responses: from the handler's outcome to the response."""

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
"""Outcomes that no throttle time is written into."""


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
        """What is abandoned when the client disconnects. A coroutine is never abandoned: it runs to its end."""
        self.keeps = False
        """Whether the steps in `waits_for` read the connection's buffer."""
        self.is_handled = False
        """Whether all effects of the request are done, and only the response is missing."""
        self.in_steps = meter is not None
        """Whether the response is encoded in steps, since it may be large or its encoding counts for a quota."""

    def take(self, outcome: Any) -> None:
        """Process an outcome, of the handler or of its steps or coroutine, until there is a response."""
        if isinstance(outcome, Pending):
            if self.route.api_key != PRODUCE_KEY:
                self.is_handled = True  # batches of a produce request may still have to be appended
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
        """Let the next request be handled: this one's batches are appended or queued, so the next one's come behind
        them.
        """
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
        """Run steps. A few run immediately; returns True if more follow in later turns."""
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
        """Complete the slot. `response` is the API's response, Encoded, CloseConnection or NO_RESPONSE."""
        self.answered = True
        self.response = response
        self.waits_for = None
        if self.context.meter is not None:
            self.context.meter.settle(None if response is NO_RESPONSE or type(response) in _SETTLED else response)
        self.connection.slot_answered(self)

    @property
    def goes_on(self) -> bool:
        """Whether the request still has effects to complete, although no client waits for it."""
        return self.route.has_effects and not self.is_handled

    def abandon(self) -> bool:
        """Handle the disconnection of the client. Returns True if the request continues nevertheless."""
        if self.goes_on:
            return True
        waits_for, self.waits_for = self.waits_for, None
        if isinstance(waits_for, Pending):
            waits_for.abandon()
        elif waits_for is not None:
            waits_for.cancel()
        self._unkeep()
        return False
