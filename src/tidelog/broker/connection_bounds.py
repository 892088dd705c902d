"""Limits on the connections of all listeners together: their number, and the memory of their unfinished requests."""

from typing import TYPE_CHECKING

from tidelog.config.addresses import counts_by_address, normal_ip

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection
    from tidelog.config.broker_config import BrokerConfig


class ConnectionBounds:
    """Applies `max.connections`, `max.connections.per.ip` and `queued.max.request.bytes` to the whole broker, as in
    Kafka.
    """

    def __init__(self, config: "BrokerConfig") -> None:
        self._config = config
        self._count = 0
        self._by_host: dict[str, int] = {}
        self._frames: dict[ServerConnection, int] = {}
        self._ending: dict[ServerConnection, int] = {}
        """Connections whose client has disconnected but whose requests are still running, with the bytes of these
        requests."""
        self.frame_bytes = 0
        """The bytes of the unfinished requests of all connections."""
        budget: int = config.queued_max_request_bytes
        # In Kafka, the default value -1 means no limit. Here it means four times the size of the largest allowed
        # request.
        self._frame_bytes_max = budget if budget > 0 else 4 * config.socket_request_max_bytes

    def opened(self, connection: "ServerConnection", *, is_protected: bool = False) -> str:
        """Count a new connection. Returns "", or the reason to close the connection immediately. A connection that must
        be closed is also counted, until `client_disconnected` is called.

        If `is_protected`, `max.connections` does not apply to the connection.
        """
        host = connection.peer.client_host
        host_count = self._by_host.get(host, 0) + 1
        self._by_host[host] = host_count
        self._count += 1
        connections_max = self._config.max_connections
        if self._count > connections_max and not is_protected:
            return f"there are more than {connections_max} connections (max.connections)"
        host_max = self._host_max(host)
        if host_count > host_max:
            return f"there are more than {host_max} connections from {host} (max.connections.per.ip)"
        return ""

    def _host_max(self, host: str) -> int:
        config = self._config
        overrides = config.max_connections_per_ip_overrides
        host_max: int = config.max_connections_per_ip
        return (
            counts_by_address(overrides).get(normal_ip(host.strip("[]")) or host, host_max) if overrides else host_max
        )

    def client_disconnected(self, connection: "ServerConnection") -> None:
        """Remember that the client has disconnected. The bytes of its requests are counted until `ended` is called."""
        self._count -= 1
        self._ending[connection] = self._frames.pop(connection, 0)
        host = connection.peer.client_host
        host_count = self._by_host.get(host, 0) - 1
        if host_count > 0:
            self._by_host[host] = host_count
        else:
            self._by_host.pop(host, None)

    def ended(self, connection: "ServerConnection") -> None:
        """Remember that all requests of a disconnected client have ended."""
        self.frame_bytes -= self._ending.pop(connection, 0)

    def reserve(self, connection: "ServerConnection", size: int) -> bool:
        """Set the size of the connection's unfinished requests to `size` bytes. Returns False if the connection had to
        be closed.

        If the total exceeds the limit, the connections whose requests began first are closed. A normal client completes
        its request soon, but a request that is never completed would block the requests of all other clients.
        """
        was_disconnected = connection.is_disconnected
        byte_counts = self._ending if was_disconnected else self._frames
        self.frame_bytes += size - byte_counts.get(connection, 0)
        byte_counts[connection] = size
        while self.frame_bytes > self._frame_bytes_max and self._frames:
            oldest = next(iter(self._frames))
            limit = f"{self._frame_bytes_max} bytes (queued.max.request.bytes)"
            oldest.close(f"the unfinished requests of all connections have more than {limit}")
        return connection.open and connection.is_disconnected == was_disconnected

    def release(self, connection: "ServerConnection") -> None:
        """Set the size of the connection's unfinished requests to 0. The next call of `reserve` sets it again."""
        if connection.is_disconnected:
            self.frame_bytes -= self._ending.get(connection, 0)
            self._ending[connection] = 0
        else:
            self.frame_bytes -= self._frames.pop(connection, 0)
