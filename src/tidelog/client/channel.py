"""A channel to one broker, for followers, forwarded requests and simulated clients.

A request opens the channel's connection if it is not open. After a failure, the next attempt to connect is made only
after a pause, and the pauses grow. Several requests may be in flight at the same time. A channel uses the network of
any runtime, so it also works in the simulator.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidelog.client.async_link import FRAME_BYTES_MAX, AsyncLink
from tidelog.client.connection import NEWEST
from tidelog.client.errors import BrokenProtocol, BrokerUnreachable, failure_reason
from tidelog.client.operations import Backoff
from tidelog.wire.errors import ApiError
from tidelog.wire.message import Message

if TYPE_CHECKING:
    from tidelog.client.cluster import Address
    from tidelog.runtime.interfaces import Runtime

M = TypeVar("M", bound=Message)

logger = logging.getLogger("tidelog.channel")

JITTER = 0.2
"""Pauses before a new connection vary randomly by this fraction in both directions, so that brokers that lost their
connections at the same time do not connect at the same time."""
NO_BACKOFF = Backoff(0, 0)


class ChannelConfig(NamedTuple):
    """The settings of a channel. If Kafka's client has the same setting, the default is Kafka's, except for
    `client_id`.
    """

    client_id: str = "tidelog"
    request_timeout_ms: int = 30_000
    """Time limit of one request, from the call to the response, in milliseconds. It includes the time to connect."""
    connection_setup_timeout_ms: int = 10_000
    backoff: Backoff = Backoff(50, 1_000)
    """Pauses between attempts to connect (`reconnect.backoff.ms`, `reconnect.backoff.max.ms`)."""
    in_flight_max: int = 5
    """Upper bound on the requests that wait for their responses. Further requests wait before they are sent."""
    requests_max: int = 1_000
    """Upper bound on all requests in progress. Further requests fail immediately."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Upper bound on an accepted response, in bytes."""


class ChannelState(enum.Enum):
    IDLE = "idle"
    """There is no connection. The next request opens one."""
    CONNECTED = "connected"
    UNREACHABLE = "unreachable"
    """The newest attempt to connect failed. The next request waits until the pause is over, and then tries again."""
    CLOSED = "closed"


class Channel:
    """The connection to the broker at `address`. A failure does not close the channel; only `close` does."""

    def __init__(
        self,
        runtime: "Runtime",
        address: "Address",
        config: ChannelConfig | None = None,
        *,
        on_connected: Callable[[AsyncLink], Awaitable[None]] | None = None,
    ) -> None:
        """`on_connected` is called with each new connection, before the first request is sent on it. If it raises
        OSError, BrokenProtocol or ApiError, the attempt to connect counts as failed.
        """
        self.address = address
        self.state = ChannelState.IDLE
        self._runtime = runtime
        self._config = config or ChannelConfig()
        self._on_connected = on_connected
        self._link: AsyncLink | None = None
        self._connecting: asyncio.Future[Exception | None] | None = None
        """The future of the running attempt to connect, for which all requests wait. The future's result is the error
        if the attempt failed, and None if the attempt succeeded or the channel was closed."""
        self._attempt: asyncio.Task[None] | None = None
        """The task of the newest attempt to connect."""
        self._failures = 0
        """Number of failed attempts and lost connections since the last response."""
        self._retry_at_s = 0.0
        """The earliest time of the next attempt, on the monotonic clock."""
        self._slots = asyncio.Semaphore(self._config.in_flight_max)
        self._requests = 0

    async def ask(
        self, request: Message, response_class: type[M], *, version_max: int = NEWEST, timeout_ms: int | None = None
    ) -> M:
        """Send a request and return its response, which must be of the class `response_class`.

        `records` fields of the response are views of the received bytes. `timeout_ms` replaces `request_timeout_ms`.
        If this time is over before the response to a sent request arrives, the connection is closed, because later
        responses would arrive only after the missing response. Raises BrokerUnreachable, BrokenProtocol and
        ApiNotSupported. After BrokenProtocol, and after BrokerUnreachable if its `was_sent` is true, the broker may
        have executed the request.
        """
        if self._requests >= self._config.requests_max:
            reason = f"{self._requests} requests to it are already in progress, which is the maximum"
            raise BrokerUnreachable(self.address, reason, was_sent=False)
        timeout_s = (self._config.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        link: AsyncLink | None = None
        was_sent = False
        self._requests += 1
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                link = await self._open_link()
                answered = link.post(request, version_max=version_max)
                was_sent = True
                response = await answered
        except OSError as error:  # TimeoutError is an OSError, too
            if link is not None:
                link.close()
            raise BrokerUnreachable(self.address, failure_reason(error), was_sent=was_sent) from error
        finally:
            self._requests -= 1
        self._failures = 0
        assert isinstance(response, response_class)
        return response

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._requests

    def reconnect(self) -> None:
        """Close the connection. The next request opens another one. Requests in progress fail."""
        if self._link is not None:
            self._link.close()

    def close(self) -> None:
        """Close the connection, and never open one again. Requests in progress fail with BrokerUnreachable."""
        self._change_state(ChannelState.CLOSED)
        if self._attempt is not None:
            self._attempt.cancel()
        if self._connecting is not None:
            self._connecting.set_result(None)
            self._connecting = None
        if self._link is not None:
            self._link.close()

    async def _open_link(self) -> AsyncLink:
        """Return the open connection. If no connection is open, wait for the attempt to open one. All requests share
        this attempt.
        """
        while True:
            if self.state is ChannelState.CLOSED:
                raise ConnectionAbortedError("the channel is closed")
            if self._link is not None and self._link.open:
                return self._link
            if self._connecting is None:
                self._connecting = self._runtime.tasks.future()
                self._attempt = self._runtime.tasks.spawn(self._connect(), name="channel-connect")
            error = await asyncio.shield(self._connecting)
            if error is not None:
                raise BrokerUnreachable(self.address, _reason(error), was_sent=False) from error

    async def _connect(self) -> None:
        """Make one attempt to connect, after the pause that follows a failure."""
        config = self._config
        failure: Exception | None = None
        try:
            pause_s = self._retry_at_s - self._runtime.clock.monotonic()
            if pause_s > 0:
                await self._runtime.tasks.sleep(pause_s)
            async with asyncio.timeout(config.connection_setup_timeout_ms / 1000):
                link = await self._open(config)
        except (OSError, BrokenProtocol, ApiError) as error:
            failure = error
            self._back_off()
            self._change_state(ChannelState.UNREACHABLE, _reason(error))
        else:
            self._link = link
            link.on_closed = self._link_closed
            self._change_state(ChannelState.CONNECTED)
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.set_result(failure)

    async def _open(self, config: ChannelConfig) -> AsyncLink:
        """Open a connection. Raises OSError, BrokenProtocol and ApiError."""
        link = await AsyncLink.connect(
            self._runtime, *self.address, config.client_id, frame_bytes_max=config.frame_bytes_max
        )
        if self._on_connected is not None:
            try:
                await self._on_connected(link)
            except BaseException:
                link.close()
                raise
        return link

    def _link_closed(self, link: AsyncLink) -> None:
        if link is self._link and self.state is ChannelState.CONNECTED:
            self._link = None
            self._back_off()
            self._change_state(
                ChannelState.IDLE, "closed without an error" if link.closed_by is None else _reason(link.closed_by)
            )

    def _back_off(self) -> None:
        """Set the time of the next attempt. Until a response arrives, each pause is about twice as long as the pause
        before it, up to the maximum, even if attempts to connect succeed.
        """
        pause_s = self._config.backoff.delay_ms(self._failures) / 1000
        self._failures += 1
        pause_s *= self._runtime.random.uniform(1 - JITTER, 1 + JITTER)
        self._retry_at_s = self._runtime.clock.monotonic() + pause_s

    def _change_state(self, state: ChannelState, reason: str = "") -> None:
        """Set the state. Log it only if it has changed, and not for each attempt."""
        if state is self.state:
            return
        self.state = state
        if state is ChannelState.CONNECTED:
            logger.info("connected to broker address=%s", self.address)
        elif state is ChannelState.IDLE:
            logger.info("connection to broker lost address=%s reason=%s", self.address, reason)
        elif state is ChannelState.UNREACHABLE:
            logger.warning("broker unreachable, trying again when needed address=%s reason=%s", self.address, reason)
        else:
            logger.info("connection to broker closed address=%s", self.address)


def _reason(error: Exception) -> str:
    return failure_reason(error) if isinstance(error, OSError) else str(error)
