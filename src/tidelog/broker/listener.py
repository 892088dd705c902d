"""Accept connections. Close connections that exceed a limit or are idle for too long."""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.api.registry import find_broker_route
from tidelog.broker.connection import ServerConnection
from tidelog.broker.pipelining import Pipelining

if TYPE_CHECKING:
    from tidelog.api.registry import Route
    from tidelog.api.services import Services
    from tidelog.broker.connection_bounds import ConnectionBounds
    from tidelog.runtime.interfaces import Listener as SocketListener
    from tidelog.runtime.interfaces import TimerHandle

logger = logging.getLogger("tidelog.listener")

RECEIVE_BUFFER_BYTES = 1 << 20
FRAME_STEP_BYTES = 2 << 20
"""The buffer of a frame up to this size is allocated immediately; the buffer of a larger frame grows as bytes
arrive."""
SPARE_FRAMES = 4
"""Upper bound on the number of buffers that are stored for reuse after their frames have been handled."""
IDLE_SWEEP_S = 10.0
"""Time in seconds between two checks for idle connections."""
UNLIMITED = 2**31 - 1
"""The default of `max.connection.creation.rate`. It means that there is no limit."""


class Listener:
    """One listening address and its connections."""

    def __init__(
        self,
        services: "Services",
        bounds: "ConnectionBounds",
        sockets: "SocketListener",
        name: str = "",
        *,
        accepts_brokers: bool = False,
    ) -> None:
        """`sockets` are bound to their address and do not listen yet. `name` is the listener's name in the settings.

        `accepts_brokers` says whether the other brokers of the cluster connect to this listener.
        """
        config = services.config
        self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        """Receive buffer that all connections share. Before the loop's next turn, received bytes are handled or copied,
        or `hold` replaces the buffer."""
        self.frame_step_bytes = FRAME_STEP_BYTES
        self.request_bytes_max: int = config.socket_request_max_bytes
        self.pipelining = Pipelining(services.runtime.tasks)
        self._accepts_brokers = accepts_brokers
        self._is_protected = accepts_brokers and len(config.endpoints) > 1
        """Whether this listener is exempt from the broker-wide limits on the number and the rate of connections. As
        in Kafka, the brokers' listener is exempt if there are other listeners. Without this exemption, the clients
        of the other listeners could use up the limits, and brokers could not connect."""
        self.name = name
        self.host = sockets.host
        self.port = sockets.port
        self._services = services
        self._connections: dict[ServerConnection, None] = {}
        self._ending: dict[ServerConnection, None] = {}
        """Connections whose client has disconnected but whose requests are still running."""
        self._bounds = bounds
        self.reserve = bounds.reserve
        self.release = bounds.release
        self._config = config
        self._idle_s: float = config.connections_max_idle_ms / 1000
        self._spare_frames: list[bytearray] = []
        self._sockets: SocketListener | None = sockets
        self._sweeper: TimerHandle | None = None
        self._wait_future: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start accepting connections. Raises OSError."""
        assert self._sockets is not None
        self._sockets.listen(self._accept)
        self._sweep()

    def stop_accepting(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    async def drain(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for running requests and unread responses. Then close every connection.

        Requests that change state get another `timeout_s` to end.
        """
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.stop_requests()
        await self._wait_until_empty(timeout_s)
        for connection in list(self._connections):
            connection.close("the broker is stopping")
        await self._wait_until_empty(timeout_s)
        if self._ending:
            logger.error(
                "at the stop, requests were not completed connections=%d seconds=%g", len(self._ending), 2 * timeout_s
            )

    async def _wait_until_empty(self, timeout_s: float) -> None:
        tasks = self._services.runtime.tasks
        self._wait_future = tasks.future()
        deadline = tasks.call_later(timeout_s, self._end_wait)
        if self._connections or self._ending:
            await self._wait_future
        deadline.cancel()

    def stop_requests(self) -> None:
        """Start no further request on any connection."""
        for connection in [*self._connections, *self._ending]:
            connection.drain()

    def _end_wait(self) -> None:
        if self._wait_future is not None and not self._wait_future.done():
            self._wait_future.set_result(None)

    def _accept(self) -> ServerConnection:
        return ServerConnection(self, self._services)

    # Called by connections

    def broker_route(self, api_key: int, version: int) -> "Route | None":
        """Return the route of an API that only brokers use. Return None if there is no such API or version, or if
        the brokers connect to another listener.
        """
        return find_broker_route(api_key, version) if self._accepts_brokers else None

    def opened(self, connection: ServerConnection) -> None:
        self._connections[connection] = None
        refusal = self._bounds.opened(connection, is_protected=self._is_protected)
        if refusal:
            connection.close(refusal)
        else:
            self._limit_rate(connection, connection.peer.client_host)

    def _limit_rate(self, connection: ServerConnection, host: str) -> None:
        """Apply the limits on the rate of new connections. If the broker's limit is exceeded, accepting pauses. If
        the limit of the client's address is exceeded, the new connection is closed after a delay.
        """
        quotas = self._services.connection_quotas
        now_ms = int(self._services.runtime.clock.monotonic() * 1000)
        rate = self._config.max_connection_creation_rate
        if rate < UNLIMITED and not self._is_protected:
            wait_ms = quotas.broker_wait_ms(rate, now_ms)
            if wait_ms and self._sockets is not None:
                self._sockets.pause(wait_ms / 1000)
        close_delay_ms = quotas.close_delay_ms(host, now_ms)
        if close_delay_ms:
            connection.mute(
                close_delay_ms / 1000, lambda: connection.close(f"{host} exceeds its connection_creation_rate")
            )

    def client_disconnected(self, connection: ServerConnection) -> None:
        """Called when the connection's client has disconnected."""
        self._connections.pop(connection, None)
        self._ending[connection] = None
        self._bounds.client_disconnected(connection)

    def ended(self, connection: ServerConnection) -> None:
        """Called when all requests of a disconnected client have ended."""
        self._ending.pop(connection, None)
        self._bounds.ended(connection)
        if not self._connections and not self._ending:
            self._end_wait()

    def frame_buffer(self, size: int) -> bytearray:
        """Return a buffer of `size` bytes for a frame. A reused buffer is cheaper than a new one."""
        for i, spare in enumerate(self._spare_frames):
            if len(spare) == size:
                return self._spare_frames.pop(i)
        return bytearray(size)

    def hold(self, buffer: bytearray) -> None:
        """Called if `buffer` contains a request that is still needed in later turns of the loop. If `buffer` is the
        shared buffer, replace the shared buffer by a new one.
        """
        if self.buffer.obj is buffer:
            self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    def recycle(self, frame: bytearray) -> None:
        """Store the buffer of a handled frame for reuse. No view of the buffer may be used any more."""
        if 65536 <= len(frame) <= self.frame_step_bytes:
            if len(self._spare_frames) >= SPARE_FRAMES:
                self._spare_frames.pop(0)
            self._spare_frames.append(frame)

    def _sweep(self) -> None:
        """Close connections that were silent for `connections.max.idle.ms`."""
        now_s = self._services.runtime.clock.monotonic()
        for connection in list(self._connections):
            if connection.silent_s(now_s) > self._idle_s:
                connection.close("the connection was idle for longer than connections.max.idle.ms")
        self._sweeper = self._services.runtime.tasks.call_later(IDLE_SWEEP_S, self._sweep)
