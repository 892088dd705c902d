"""Connections to the other brokers of the cluster. On each of them, this broker proves its identity."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.client.async_link import AsyncLink
from tidelog.client.channel import Channel, ChannelConfig
from tidelog.client.cluster import Address
from tidelog.client.errors import BrokenProtocol
from tidelog.client.identification import Identity, identify

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.metadata.image import BrokerRegistration
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.runtime.interfaces import Runtime


class PeerConnections:
    """Opens channels to other brokers. On such a channel, the peer accepts replica fetches and requests to the
    controller.
    """

    def __init__(
        self, config: "BrokerConfig", cache: "MetadataCache", runtime: "Runtime", incarnation: Callable[[], str]
    ) -> None:
        """`incarnation` returns the id of this run of the broker's process."""
        self._node_id: int = config.node_id
        self._listener = config.inter_broker_listener
        self._cache = cache
        self._runtime = runtime
        self._incarnation = incarnation

    @property
    def is_registered(self) -> bool:
        """Whether the metadata that this broker has processed contains the registration of this run."""
        registration = self._cache.newest.brokers.get(self._node_id)
        return registration is not None and registration.incarnation == self._incarnation()

    def address(self, broker: "BrokerRegistration") -> Address:
        """Return the address at which `broker` serves the other brokers."""
        endpoint = broker.endpoint(self._listener)
        return Address(endpoint.host, endpoint.port)

    def channel(self, broker: "BrokerRegistration", config: ChannelConfig | None = None) -> Channel:
        """Return a channel to the current address of `broker`. This broker proves its identity on the channel.

        If the peer restarts at the same address, the channel can connect again as soon as this broker has processed the
        peer's new registration. When the address changes, the caller must close the channel and create a new one.
        """
        config = config or ChannelConfig(client_id=f"broker-{self._node_id}")

        async def identify_link(link: AsyncLink) -> None:
            await identify(link, self._identity(broker.broker_id), self._runtime.new_uuid)

        return Channel(self._runtime, self.address(broker), config, on_connected=identify_link)

    def _identity(self, receiver_id: int) -> Identity:
        """Return the identity of this broker for a connection that is opened at this moment. Raises BrokenProtocol."""
        image = self._cache.newest
        receiver = image.brokers.get(receiver_id)
        if receiver is None:
            raise BrokenProtocol(f"broker {receiver_id} is not registered")
        incarnation = self._incarnation() if self.is_registered else ""
        return Identity(self._node_id, incarnation, receiver_id, receiver.incarnation, image.cluster_id)
