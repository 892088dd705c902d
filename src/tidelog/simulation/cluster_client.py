"""A client of a simulated cluster. It finds leaders and coordinators, and retries according to `client.operations`."""

import asyncio
import random
from typing import TypeVar

from tidelog.client.channel import NO_BACKOFF, Channel, ChannelConfig
from tidelog.client.cluster import Address, Cluster
from tidelog.client.errors import BrokenProtocol, BrokerUnreachable, GaveUp, NoBrokerReachable
from tidelog.client.operations import Ask, AskAny, Backoff, Operation, Pause, Request
from tidelog.runtime.interfaces import Runtime
from tidelog.wire.message import Message

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 3_000
"""Time limit of one request and of one attempt to connect, in milliseconds. It is shorter than many faults, so that
answers are lost and requests are repeated."""
BACKOFF = Backoff(50, 1000)
"""First and longest pause between two attempts of an operation, in milliseconds."""
JITTER = 0.2
"""Each pause is multiplied by a random factor between 1 - JITTER and 1 + JITTER."""


class ClusterClient:
    """One client of a cluster, on one host. Several of its operations may run in parallel."""

    def __init__(self, runtime: Runtime, seeds: list[Address], rng: random.Random, client_id: str) -> None:
        self.cluster = Cluster(seeds)
        self.retries = 0
        """Number of attempts that failed and were repeated."""
        self._runtime = runtime
        self._rng = rng
        # Operations pause between their attempts, so the channels need no pause before they connect again.
        self._config = ChannelConfig(
            client_id, REQUEST_TIMEOUT_MS, connection_setup_timeout_ms=REQUEST_TIMEOUT_MS, backoff=NO_BACKOFF
        )
        self._channels: dict[Address, Channel] = {}

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    async def sleep(self, delay_s: float) -> None:
        await self._runtime.tasks.sleep(delay_s)

    async def run(self, operation: Operation[T], timeout_s: float) -> T:
        """Run an operation. Raises ApiError for a final error from a broker, and GaveUp if the next attempt would begin
        more than `timeout_s` after this call.
        """
        deadline = self._runtime.clock.monotonic() + timeout_s
        try:
            effect = operation.send(None)
            while True:
                try:
                    answer: Message | list[Message | BrokerUnreachable] | None = None
                    if isinstance(effect, Ask):
                        answer = await self._ask_all(effect.requests)
                    elif isinstance(effect, AskAny):
                        answer = await self._ask_any(effect.request)
                    else:
                        await self._pause(effect, deadline)
                except (GaveUp, NoBrokerReachable) as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _ask_all(self, requests: list[Request]) -> list[Message | BrokerUnreachable]:
        if len(requests) == 1:  # no task is needed: creating one would take a tenth of the client's run time
            return [await self.ask(requests[0])]
        return list(await asyncio.gather(*(self.ask(request) for request in requests)))

    async def _pause(self, pause: Pause, deadline: float) -> None:
        delay_s = pause.delay_ms / 1000 * self._rng.uniform(1 - JITTER, 1 + JITTER)
        if self._runtime.clock.monotonic() + delay_s > deadline:
            raise GaveUp(f"no success in time: {pause.because}") from pause.because
        self.retries += 1
        await self._runtime.tasks.sleep(delay_s)

    async def _ask_any(self, request: Message) -> Message:
        reasons = []
        for address in self.cluster.contacts():
            answer = await self.ask(Request(address, request))
            if not isinstance(answer, BrokerUnreachable):
                return answer
            reasons.append(str(answer))
        raise NoBrokerReachable("; ".join(reasons))

    async def ask(self, request: Request) -> Message | BrokerUnreachable:
        """Send a request to one broker. Returns its response, or the reason why there is no response."""
        address = request.address
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(self._runtime, address, self._config)
        try:
            return await channel.ask(request.message, Message, version_max=request.version_max)
        except BrokerUnreachable as error:
            return error
        except BrokenProtocol as error:
            return BrokerUnreachable(address, str(error))
