"""One request's place in the order of a connection's responses, from its handler's answer to the bytes."""

from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.api.metering import timed
from tidelog.api.pending import Pending
from tidelog.api.registry import PRODUCE_KEY, Route
from tidelog.api.services import NO_RESPONSE, CloseConnection, RequestContext
from tidelog.broker.serving import Encoded, answered_in_steps
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
        "is_handled",
        "keeps",
        "pending",
        "pipelined",
        "response",
        "route",
        "task",
        "work",
    )

    def __init__(self, connection: "ServerConnection", found: Route, context: RequestContext) -> None:
        self.connection = connection
        self.route = found
        self.context = context
        self.pipelined = found.api_key == PRODUCE_KEY
        if context.meter is not None and context.meter.one_at_a_time:
            self.pipelined = False
        self.answered = False
        self.response: Any = None
        self.pending: Pending[Any] | None = None
        self.task: Any = None
        self.work: Work[Any] | None = None
        self.keeps = False
        self.is_handled = True
        """Whether the handler has done all that it does, or only the answer is missing."""

    def settle(self, answer: Any) -> None:
        """Take what a handler gave, or what came of that: an answer, or something that will give one."""
        connection = self.connection
        if isinstance(answer, Pending):
            self.is_handled = True
            self.pending = answer
            if connection.gone and not self.goes_on:
                answer.abandon()
                self.answer(None)
            else:
                answer.listen(self.settle)
        elif isinstance(answer, CoroutineType):
            name = f"request-{self.route.name}"
            self.task = connection.services.runtime.tasks.spawn(connection.await_answer(self, answer), name=name)
        elif isinstance(answer, GeneratorType) or type(answer) is self.route.response:
            if not connection.gone or (not self.is_handled and self.route.has_effects):
                meter, turns = self.context.meter, connection.services.turns
                steps = answered_in_steps(turns, self.route, answer, lambda: not connection.gone, meter)
                self.begin(timed(meter, steps))
                return
            if isinstance(answer, GeneratorType):
                answer.close()
            self.answer(None)
        else:
            self.answer(answer)

    def begin(self, steps: Steps[Any], weight: int = 0) -> None:
        work = self.connection.services.turns.begin(steps, self._computed, weight=weight)
        if not work.ended:
            self.work = work

    def _computed(self, answer: Any, error: Exception | None) -> None:
        connection = self.connection
        self.work = None
        if self.keeps:
            self.keeps = False
            connection.unkeep()
        if error is not None:
            answer = connection.failed(self.route, self.context, error)
        self.is_handled = self.is_handled or not isinstance(answer, CoroutineType)
        if isinstance(answer, Pending) and self.route.api_key == PRODUCE_KEY and not self.pipelined:
            meter = self.context.meter
            if meter is None or not meter.one_at_a_time:
                self.pipelined = True
                connection.resume_soon()
        self.settle(answer)

    def answer(self, response: Any) -> None:
        self.answered = True
        self.response = response
        if self.context.meter is not None:
            self.context.meter.settle(None if response is NO_RESPONSE or type(response) in _SETTLED else response)
        self.pending = None
        connection = self.connection
        if connection.is_next(self):
            connection.advance()

    @property
    def goes_on(self) -> bool:
        """Whether something of the request is still to be done, although nobody waits for the answer."""
        if self.pending is not None:
            return self.route.api_key == PRODUCE_KEY  # batches may be still to be appended
        return self.route.has_effects and not self.is_handled

    def abandon(self) -> bool:
        """The client is gone. True if the request goes on all the same."""
        if self.goes_on:
            return True
        if self.pending is not None:
            self.pending.abandon()
        if self.work is not None:
            self.work.cancel()
            self.work = None
            if self.keeps:
                self.keeps = False
                self.connection.unkeep()
        return False
