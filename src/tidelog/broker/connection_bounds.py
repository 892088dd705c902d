"""What bounds the connections of all listeners together: how many, and the memory of their unfinished requests."""

from typing import TYPE_CHECKING

from tidelog.config.addresses import counts_by_address, normal_ip

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection
    from tidelog.config.broker_config import BrokerConfig


class ConnectionBounds:
    """`max.connections`, `max.connections.per.ip` and `queued.max.request.bytes`: of a broker, as in Kafka."""

    def __init__(self, config: "BrokerConfig") -> None:
        self._config = config
        self._count = 0
        self._by_host: dict[str, int] = {}
        self._frames: dict[ServerConnection, int] = {}
        self._ending: dict[ServerConnection, int] = {}
        """Those whose client has gone before all was done that it asked for, and what their requests hold."""
        self.frame_bytes = 0
        budget: int = config.queued_max_request_bytes
        # -1 is Kafka's default and means no limit there; here four of the largest requests may be on their way at once.
        self._frame_bytes_max = budget if budget > 0 else 4 * config.socket_request_max_bytes

    def opened(self, connection: "ServerConnection") -> str:
        """Count one more; the reason to close it at once, if it is one too many."""
        host = connection.peer.client_host
        of_host = self._by_host.get(host, 0) + 1
        self._by_host[host] = of_host
        self._count += 1
        most = self._config.max_connections
        if self._count > most:
            return f"more than {most} connections, max.connections"
        most = self._most_of(host)
        if of_host > most:
            return f"more than {most} from one host, max.connections.per.ip"
        return ""

    def _most_of(self, host: str) -> int:
        config = self._config
        overrides = config.max_connections_per_ip_overrides
        most: int = config.max_connections_per_ip
        return counts_by_address(overrides).get(normal_ip(host.strip("[]")) or host, most) if overrides else most

    def gone(self, connection: "ServerConnection") -> None:
        """Its client is. What it holds counts until `ended`."""
        self._count -= 1
        self._ending[connection] = self._frames.pop(connection, 0)
        host = connection.peer.client_host
        left = self._by_host.get(host, 0) - 1
        if left > 0:
            self._by_host[host] = left
        else:
            self._by_host.pop(host, None)

    def ended(self, connection: "ServerConnection") -> None:
        """Nothing of what it asked for is still to be done."""
        self.frame_bytes -= self._ending.pop(connection, 0)

    def reserve(self, connection: "ServerConnection", size: int) -> bool:
        """Count the `size` bytes that the connection's unfinished requests take now; False when it had to be closed.

        When all together are too much, those go that began first: an honest request is whole after a moment, what is
        never finished would keep everybody else out.
        """
        was_gone = connection.gone
        held = self._ending if was_gone else self._frames
        self.frame_bytes += size - held.get(connection, 0)
        held[connection] = size
        while self.frame_bytes > self._frame_bytes_max and self._frames:
            oldest = next(iter(self._frames))
            oldest.close(f"requests under way hold more than {self._frame_bytes_max} bytes, queued.max.request.bytes")
        return connection.open and connection.gone == was_gone

    def release(self, connection: "ServerConnection") -> None:
        """Its unfinished requests hold nothing any more."""
        if connection.gone:
            self.frame_bytes -= self._ending.get(connection, 0)
            self._ending[connection] = 0
        else:
            self.frame_bytes -= self._frames.pop(connection, 0)
