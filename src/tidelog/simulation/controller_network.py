"""Requests to a controller on another simulated broker. Each request and each answer is one message over the simulated
network.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.metadata.image import BrokerRegistration
from tidelog.metadata.link import Answer, AnswerLost, ControllerRequest, ControllerUnreachable, RequestExecutor
from tidelog.runtime.interfaces import Runtime

if TYPE_CHECKING:
    from tidelog.simulation.world import SimHost, World

CALL_TIMEOUT_S: Final = 5.0
"""Time limit of one request, in seconds. A message that waits for a blocked link is lost after this time."""


class ControllerNetwork:
    """The controllers of all brokers in one world, by node id. Each broker adds its own controller when its process
    starts.
    """

    def __init__(self, world: "World") -> None:
        self._network = world.network
        self._loop = world.loop
        self._executors: dict[int, tuple[SimHost, Runtime, Callable[[], RequestExecutor | None]]] = {}

    def add(self, node_id: int, host: "SimHost", executor: Callable[[], RequestExecutor | None]) -> None:
        self._executors[node_id] = host, host.runtime, executor

    def channel(self, host: str, runtime: Runtime) -> "SimControllerChannel":
        """Return the channel of one process on `host`."""
        return SimControllerChannel(self, host, runtime)

    def send(self, host: str, node_id: int, request: ControllerRequest, answer: "asyncio.Future[Answer[Any]]") -> None:
        """Send the request from `host` to the broker. If the link is blocked in either direction for longer than
        CALL_TIMEOUT_S, this call never sets `answer`.
        """
        target, runtime, find_executor = self._executors[node_id]

        def arrive() -> None:
            # If the process that called `add` has ended, the connection is refused, even if a new process runs now.
            executor = find_executor() if target.running and target.runtime is runtime else None
            if executor is None:
                self._deliver(target.name, host, lambda: _fail(answer, ControllerUnreachable("connection refused")))
                return
            task = runtime.tasks.spawn(executor.execute(request), name="controller-request")
            task.add_done_callback(reply)

        def reply(task: "asyncio.Task[Answer[Any]]") -> None:
            def settle() -> None:
                if task.cancelled():
                    _fail(answer, AnswerLost("the connection was reset"))
                elif not answer.done():
                    answer.set_result(task.result())

            self._deliver(target.name, host, settle)

        self._deliver(host, target.name, arrive)

    def _deliver(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        self._network.send(source, target, self._loop.time() + CALL_TIMEOUT_S, arrive)


class SimControllerChannel:
    """The `ControllerChannel` of one process."""

    def __init__(self, network: ControllerNetwork, host: str, runtime: Runtime) -> None:
        self._network = network
        self._host = host
        self._tasks = runtime.tasks

    async def ask(self, broker: BrokerRegistration, request: ControllerRequest, timeout_s: float) -> Answer[Any]:
        answer: asyncio.Future[Answer[Any]] = self._tasks.future()
        self._network.send(self._host, broker.broker_id, request, answer)
        limit_s = min(timeout_s, CALL_TIMEOUT_S)
        timer = self._tasks.call_later(limit_s, _fail, answer, AnswerLost(f"no answer for {limit_s:g} s"))
        try:
            return await answer
        finally:
            timer.cancel()


def _fail(answer: "asyncio.Future[Answer[Any]]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
