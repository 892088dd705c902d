"""One connection to each of the other brokers, for one kind of work. A connection is replaced when the broker's
address has changed.
"""

from typing import TYPE_CHECKING, TypeVar

from tidelog.client.channel import Channel, ChannelConfig
from tidelog.wire.message import Message

if TYPE_CHECKING:
    from tidelog.metadata.image import BrokerRegistration
    from tidelog.metadata.peer_connections import PeerConnections

M = TypeVar("M", bound=Message)


class BrokerChannels:
    """Channels to other brokers. A channel is opened when it is needed."""

    def __init__(self, connections: "PeerConnections", config: ChannelConfig) -> None:
        self._connections = connections
        self._config = config
        self._channels: dict[int, Channel] = {}

    async def ask(self, broker: "BrokerRegistration", request: Message, kind: type[M]) -> M:
        """Send a request to the broker and return its response. Raises the errors of `Channel.ask`."""
        channel = self._channels.get(broker.broker_id)
        if channel is not None and channel.address != self._connections.address(broker):
            channel.close()
            channel = None
        if channel is None:
            channel = self._channels[broker.broker_id] = self._connections.channel(broker, self._config)
        return await channel.ask(request, kind)

    def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
