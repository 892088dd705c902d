"""A client of a simulated cluster. It finds leaders and coordinators and retries, as `client.operations` decides."""

import asyncio
import random
from typing import TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.errors import BrokenProtocol, BrokerUnreachable, GaveUp, NoBrokerReachable
from tidelog.client.operations import Ask, AskAny, Backoff, Operation, Pause, Request
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.client import SimClient
from tidelog.wire.message import Message

T = TypeVar("T")

REQUEST_TIMEOUT_S = 3.0
"""Time limit of one request, in seconds. It is shorter than many faults, so that answers are lost and requests are
repeated."""
CONNECT_TIMEOUT_S = 3.0
BACKOFF = Backoff(50, 1000)
JITTER = 0.2


class ClusterClient:
    """One client of a cluster, on one host. Several of its operations may run in parallel."""

    def __init__(self, runtime: Runtime, seeds: list[Address], rng: random.Random, client_id: str) -> None:
        self.cluster = Cluster(seeds)
        self.retries = 0
        """Number of attempts that failed and were repeated."""
        self._runtime = runtime
        self._rng = rng
        self._client_id = client_id
        self._links: dict[Address, SimClient] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def sleep(self, delay_s: float) -> None:
        await self._runtime.tasks.sleep(delay_s)

    async def run(self, operation: Operation[T], timeout_s: float) -> T:
        """Run an operation. Raises ApiError for a final error from a broker, and GaveUp when the time is over."""
        deadline = self._runtime.clock.monotonic() + timeout_s
        try:
            effect = operation.send(None)
            while True:
                try:
                    answer: Message | list[Message | BrokerUnreachable] | None = None
                    if isinstance(effect, Ask):
                        answer = list(await asyncio.gather(*(self._try(request) for request in effect.requests)))
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

    async def _pause(self, pause: Pause, deadline: float) -> None:
        delay_s = pause.delay_ms / 1000 * self._rng.uniform(1 - JITTER, 1 + JITTER)
        if self._runtime.clock.monotonic() + delay_s > deadline:
            raise GaveUp(f"no success in time: {pause.because}") from pause.because
        self.retries += 1
        await self._runtime.tasks.sleep(delay_s)

    async def _ask_any(self, request: Message) -> Message:
        reasons = []
        for address in self.cluster.contacts():
            answer = await self._try(Request(address, request))
            if not isinstance(answer, BrokerUnreachable):
                return answer
            reasons.append(str(answer))
        raise NoBrokerReachable("; ".join(reasons))

    async def _try(self, request: Request) -> Message | BrokerUnreachable:
        """Send a request to one broker. Returns its response, or the reason why there is no response. A connection
        that fails or does not respond in time is closed.
        """
        address = request.address
        try:
            link = await self._link(address)
            answer = link.post(request.message, version_max=request.version_max)
            return await asyncio.wait_for(answer, REQUEST_TIMEOUT_S)
        except (OSError, BrokenProtocol) as error:
            link_that_failed = self._links.pop(address, None)
            if link_that_failed is not None:
                link_that_failed.close()
            return BrokerUnreachable(address, str(error) or type(error).__name__)

    async def _link(self, address: Address) -> SimClient:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None or not link.open:
                connecting = SimClient.connect(self._runtime, address.host, address.port, self._client_id)
                link = self._links[address] = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
            return link
