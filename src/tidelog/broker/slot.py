"""One request of a connection, from the outcome of its handler to its response. During this time, its position in the
order of the responses is reserved.
"""

from collections.abc import Coroutine
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.api.metering import measure_steps
from tidelog.api.pending import Pending
from tidelog.api.registry import PRODUCE_KEY, Route
from tidelog.api.services import NO_RESPONSE, CloseConnection, Encoded, RequestContext
from tidelog.broker.serving import failure_response, finish_in_steps
from tidelog.model.steps import Steps
from tidelog.runtime.turns import Work

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection

_WITHOUT_THROTTLE_TIME = (Encoded, CloseConnection)
"""Outcomes that have no field for a throttle time, or already contain it."""


class Slot:
    """The position of one request in the order of the responses."""

    __slots__ = (
        "answered",
        "connection",
        "context",
        "holds_buffer",
        "in_steps",
        "is_handled",
        "pipelined",
        "response",
        "route",
        "waits_for",
    )

    def __init__(self, connection: "ServerConnection", route: Route, context: RequestContext) -> None:
        meter = context.meter
        self.connection = connection
        self.route = route
        self.context = context
        self.pipelined = route.api_key == PRODUCE_KEY and (meter is None or not meter.next_request_waits)
        """Whether the next request may be handled before this request is answered."""
        self.answered = False
        self.response: Any = None
        self.waits_for: Pending[Any] | Work[Any] | None = None
        """The object to abandon when the client disconnects. A coroutine is never abandoned, but runs to its end."""
        self.holds_buffer = False
        """Whether the steps in `waits_for` read the connection's buffer."""
        self.is_handled = False
        """Whether all effects of the request are complete, and only the response is missing."""
        self.in_steps = meter is not None
        """Whether the response is encoded in steps, since it may be large or its encoding is measured for a quota."""

    def process(self, outcome: Any) -> None:
        """Process the outcome of the handler, or of its steps or coroutine, until there is a response."""
        if isinstance(outcome, Pending):
            if self.route.api_key != PRODUCE_KEY:  # a produce request may still have to append batches
                self.is_handled = True
            elif not self.pipelined:
                self._allow_next_request()
            if self.connection.is_disconnected and not self.must_complete:
                outcome.abandon()
                self.answer(None)
                return
            self.waits_for = outcome
            outcome.listen(self._pending_completed if self.in_steps else self.answer)
        elif isinstance(outcome, CoroutineType):
            self.is_handled = False
            name = f"request-{self.route.name}"
            self.connection.services.runtime.tasks.spawn(self._await(outcome), name=name)
        elif isinstance(outcome, GeneratorType) or type(outcome) is self.route.response:
            self._process_steps(outcome)
        else:
            self.answer(outcome)

    def _allow_next_request(self) -> None:
        """Allow the connection to handle its next request, unless a quota delays it. The batches of this request are
        appended or queued already, so the batches of the next request will follow them.
        """
        meter = self.context.meter
        if meter is None or not meter.next_request_waits:
            self.pipelined = True
            self.connection.resume_soon()

    def _pending_completed(self, outcome: Any) -> None:
        self.waits_for = None
        self.is_handled = True
        self.process(outcome)

    async def _await(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            outcome = await coroutine
        except Exception as error:
            outcome = failure_response(self.route, self.context, error)
        self.is_handled = True
        self.process(outcome)

    def _process_steps(self, outcome: Any) -> None:
        connection = self.connection
        if not connection.is_disconnected or self.must_complete:
            steps = finish_in_steps(
                connection.services.turns,
                self.route,
                outcome,
                lambda: not connection.is_disconnected,
                self.context.meter,
            )
            self.begin(steps)
            return
        if isinstance(outcome, GeneratorType):
            outcome.close()
        self.answer(None)

    def begin(self, steps: Steps[Any], weight: int = 0) -> bool:
        """Run steps, some of them immediately. Return True if more steps follow in later turns of the loop."""
        self.in_steps = True
        turns = self.connection.services.turns
        work = turns.begin(measure_steps(self.context.meter, steps), self._steps_ended, weight=weight)
        if work.ended:
            return False
        self.waits_for = work
        return True

    def _steps_ended(self, outcome: Any, error: Exception | None) -> None:
        self.waits_for = None
        self._release_buffer()
        if error is not None:
            outcome = failure_response(self.route, self.context, error)
        self.process(outcome)

    def _release_buffer(self) -> None:
        if self.holds_buffer:
            self.holds_buffer = False
            self.connection.release_buffer()

    def answer(self, response: Any) -> None:
        """Complete the slot. `response` is the API's response, Encoded, CloseConnection or NO_RESPONSE. It is None if
        the client has disconnected.
        """
        self.answered = True
        self.response = response
        self.waits_for = None
        if self.context.meter is not None:
            self.context.meter.record_usage(
                None if response is NO_RESPONSE or type(response) in _WITHOUT_THROTTLE_TIME else response
            )
        self.connection.slot_answered(self)

    @property
    def must_complete(self) -> bool:
        """Whether the request still has effects to complete, even if the client has disconnected."""
        return self.route.has_effects and not self.is_handled and not self.answered

    def abandon(self) -> bool:
        """Handle the disconnection of the client. Return True if the request continues nevertheless."""
        if self.must_complete:
            return True
        waits_for, self.waits_for = self.waits_for, None
        if isinstance(waits_for, Pending):
            waits_for.abandon()
        elif waits_for is not None:
            waits_for.cancel()
        self._release_buffer()
        return False
