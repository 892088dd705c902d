"""Accepts connections and bounds them: how many, how long idle, how much memory their unfinished requests hold."""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.broker.connection import Connection
from tidelog.broker.pipelining import Pipelining
from tidelog.config.addresses import counts_by_address, normal_ip

if TYPE_CHECKING:
    from tidelog.api.services import Services
    from tidelog.runtime.interfaces import Listener as SocketListener
    from tidelog.runtime.interfaces import TimerHandle

logger = logging.getLogger("tidelog.listener")

RECEIVE_BUFFER_BYTES = 1 << 20
FRAME_STEP_BYTES = 2 << 20
"""A frame up to this size gets its buffer at once; a larger one grows as its bytes come."""
SPARE_FRAMES = 4
IDLE_SWEEP_S = 10.0
UNLIMITED = 2**31 - 1


class Listener:
    """One listening address and the connections that came through it."""

    def __init__(self, services: "Services") -> None:
        config = services.config
        self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        """Shared by all connections: what is received is handled, or copied, before the loop's next turn."""
        self.frame_step_bytes = FRAME_STEP_BYTES
        self.request_bytes_max: int = config.socket_request_max_bytes
        self.pipelining = Pipelining(services.runtime.tasks)
        self.host = ""
        self.port = 0
        self._services = services
        self._connections: dict[Connection, None] = {}
        self._by_host: dict[str, int] = {}
        self._config = config
        self._idle_s: float = config.connections_max_idle_ms / 1000
        self._frames: dict[Connection, int] = {}
        self._ending: dict[Connection, int] = {}
        """Those whose client has gone before all was done that it asked for, and what their requests hold."""
        self._frame_bytes = 0
        budget: int = config.queued_max_request_bytes
        # -1 is Kafka's default and means no limit there; here four of the largest requests may be on their way at once.
        self._frame_bytes_max = budget if budget > 0 else 4 * self.request_bytes_max
        self._spare: list[bytearray] = []
        self._sockets: SocketListener | None = None
        self._sweeper: TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Accept from now on. Raises OSError when the address cannot be bound."""
        self._sockets = await self._services.runtime.network.listen(host, port, self._accept)
        self.host, self.port = self._sockets.host, self._sockets.port
        self._sweep()

    def stop_accepting(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    async def drain(self, patience_s: float) -> None:
        """Let running requests and unread responses go out, for at most `patience_s`; then close every connection, and
        give what they have still to change as long again.
        """
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.take_no_more()
        await self._emptied_within(patience_s)
        for connection in list(self._connections):
            connection.close("the broker stops")
        await self._emptied_within(patience_s)
        if self._ending:
            logger.error("requests not handled to their end connections=%d seconds=%g", len(self._ending), patience_s)

    async def _emptied_within(self, patience_s: float) -> None:
        tasks = self._services.runtime.tasks
        self._emptied = tasks.future()
        deadline = tasks.call_later(patience_s, self._empty)
        if self._connections or self._ending:
            await self._emptied
        deadline.cancel()

    def take_no_more(self) -> None:
        """No request is begun any more."""
        for connection in [*self._connections, *self._ending]:
            connection.drain()

    def _empty(self) -> None:
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def _accept(self) -> Connection:
        return Connection(self, self._services)

    # What connections tell and ask

    def opened(self, connection: Connection) -> None:
        host = connection.peer.client_host
        of_host = self._by_host.get(host, 0) + 1
        self._connections[connection] = None
        self._by_host[host] = of_host
        config = self._config
        most_of_host = self._most_of(host)
        if len(self._connections) > config.max_connections:
            connection.close(f"more than {config.max_connections} connections, max.connections")
        elif of_host > most_of_host:
            connection.close(f"more than {most_of_host} from one host, max.connections.per.ip")
        else:
            self._limit_rate(connection, host)

    def _most_of(self, host: str) -> int:
        config = self._config
        overrides = config.max_connections_per_ip_overrides
        most: int = config.max_connections_per_ip
        return counts_by_address(overrides).get(normal_ip(host.strip("[]")) or host, most) if overrides else most

    def _limit_rate(self, connection: Connection, host: str) -> None:
        """Where connections come too fast: of all, the next ones wait to be accepted; of one address, they are closed
        after a while."""
        quotas = self._services.connection_quotas
        now_ms = int(self._services.runtime.clock.monotonic() * 1000)
        rate = self._config.max_connection_creation_rate
        if rate < UNLIMITED:
            wait_ms = quotas.broker_wait_ms(rate, now_ms)
            if wait_ms and self._sockets is not None:
                self._sockets.pause(wait_ms / 1000)
        refused_ms = quotas.refused_ms(host, now_ms)
        if refused_ms:
            connection.mute(refused_ms / 1000, lambda: connection.close(f"{host} is over its connection_creation_rate"))

    def gone(self, connection: Connection) -> None:
        """Its client is. What it holds counts until `ended`."""
        self._connections.pop(connection, None)
        self._ending[connection] = self._frames.pop(connection, 0)
        host = connection.peer.client_host
        left = self._by_host.get(host, 0) - 1
        if left > 0:
            self._by_host[host] = left
        else:
            self._by_host.pop(host, None)

    def ended(self, connection: Connection) -> None:
        """Nothing of what it asked for is still to be done."""
        self._frame_bytes -= self._ending.pop(connection, 0)
        if not self._connections and not self._ending:
            self._empty()

    def reserve(self, connection: Connection, size: int) -> bool:
        """Count the `size` bytes that the connection's unfinished requests take now; False when it had to be closed.

        When all together are too much, those go that began first: an honest request is whole after a moment, what is
        never finished would keep everybody else out.
        """
        was_gone = connection.gone
        held = self._ending if was_gone else self._frames
        self._frame_bytes += size - held.get(connection, 0)
        held[connection] = size
        while self._frame_bytes > self._frame_bytes_max and self._frames:
            oldest = next(iter(self._frames))
            oldest.close(f"requests under way hold more than {self._frame_bytes_max} bytes, queued.max.request.bytes")
        return connection.open and connection.gone == was_gone

    def release(self, connection: Connection) -> None:
        if connection.gone:
            self._frame_bytes -= self._ending.get(connection, 0)
            self._ending[connection] = 0
        else:
            self._frame_bytes -= self._frames.pop(connection, 0)

    def frame_buffer(self, size: int) -> bytearray:
        """`size` bytes for a frame; memory that was used before costs less than fresh pages."""
        for i, spare in enumerate(self._spare):
            if len(spare) == size:
                return self._spare.pop(i)
        return bytearray(size)

    def keep(self, buffer: bytearray) -> None:
        """A request in `buffer` is not handled yet: if that is the shared one, receive into another from now on."""
        if self.buffer.obj is buffer:
            self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    def recycle(self, frame: bytearray) -> None:
        """Take back the buffer of a frame that was handled; no view of it may be used any more."""
        if 65536 <= len(frame) <= self.frame_step_bytes:
            if len(self._spare) >= SPARE_FRAMES:
                self._spare.pop(0)
            self._spare.append(frame)

    def _sweep(self) -> None:
        """Close who was silent for `connections.max.idle.ms`."""
        now_s = self._services.runtime.clock.monotonic()
        for connection in list(self._connections):
            if connection.silent_s(now_s) > self._idle_s:
                connection.close("idle, connections.max.idle.ms")
        self._sweeper = self._services.runtime.tasks.call_later(IDLE_SWEEP_S, self._sweep)
