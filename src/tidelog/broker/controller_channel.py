"""Send requests over the network to a controller that is another broker. Each request is sent as the data of one
Envelope request (KIP-590).
"""

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.client.channel import Channel, ChannelConfig
from tidelog.client.errors import ApiNotSupported, BrokenProtocol, BrokerUnreachable
from tidelog.metadata.link import REPEATABLE, Answer, AnswerLost, ControllerRequest, ControllerUnreachable
from tidelog.metadata.link_codec import ANSWER_BYTES_MAX, decode_answer, encode_request
from tidelog.metadata.value_codec import MalformedValue, UncodableValue, UnknownValue
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from tidelog.client.cluster import Address
    from tidelog.metadata.image import BrokerRegistration
    from tidelog.metadata.peer_connections import PeerConnections
    from tidelog.runtime.turns import Turns

logger = logging.getLogger("tidelog.metadata")

REPEATABLE_TIMEOUT_S: Final = 5.0
"""Longest time, in seconds, that a repeatable request waits for its answer. After this time, another broker may have
become the controller, although this connection is still open."""
CONNECTION_SETUP_TIMEOUT_MS: Final = 3_000
"""Time limit, in milliseconds, of one attempt to connect to the controller and to prove this broker's identity to it.
After this time, another broker may have become the controller."""
IN_FLIGHT_MAX: Final = 100
"""Upper bound on the requests of one class that wait for their answers. Further requests wait before they are sent."""
ENVELOPE_BYTES: Final = 1024
"""Upper bound on the bytes that an envelope has in addition to its content."""


class _Target(NamedTuple):
    """The broker to which a channel leads, and the class of the requests that are sent on the channel."""

    broker_id: int
    address: "Address"
    request: type[Any]


class NetworkControllerChannel:
    """The `ControllerChannel` of one broker.

    It uses separate connections, so that neither clients nor followers delay a request. A broker handles the requests
    of one connection one after another. So each class of requests has its own connection: a heartbeat never waits for a
    slow creation of topics.
    """

    def __init__(self, connections: "PeerConnections", node_id: int, turns: "Turns") -> None:
        self._connections = connections
        self._turns = turns
        self._config = ChannelConfig(
            client_id=f"broker-{node_id}",
            connection_setup_timeout_ms=CONNECTION_SETUP_TIMEOUT_MS,
            in_flight_max=IN_FLIGHT_MAX,
            frame_bytes_max=ANSWER_BYTES_MAX + ENVELOPE_BYTES,
        )
        self._channels: dict[_Target, Channel] = {}

    async def ask(self, broker: "BrokerRegistration", request: ControllerRequest, timeout_s: float) -> Answer[Any]:
        """See `ControllerChannel.ask`. A request that cannot be encoded is answered with INVALID_REQUEST."""
        kind = type(request)
        try:
            data = await self._turns.run(encode_request(request))
        except UncodableValue as error:
            return Answer(None, ErrorCode.INVALID_REQUEST, f"the request cannot be sent to the controller: {error}")
        if isinstance(request, REPEATABLE):
            timeout_s = min(timeout_s, REPEATABLE_TIMEOUT_S)
        channel = self._channel(broker, kind)
        response = await self._exchange(channel, data, timeout_s)
        try:
            answer: Answer[Any] = await self._turns.run(decode_answer(kind, response))
        except (MalformedValue, UnknownValue) as error:
            logger.error("answer of the controller cannot be decoded request=%s reason=%s", kind.__name__, error)
            raise AnswerLost(f"the answer cannot be decoded: {error}") from error
        return answer

    async def _exchange(self, channel: Channel, data: bytes, timeout_s: float) -> bytes:
        """Send an encoded request, and return the encoded answer. Raises ControllerUnreachable and AnswerLost."""
        envelope = EnvelopeRequest(request_data=data, request_principal=None)
        try:
            response = await channel.ask(envelope, EnvelopeResponse, timeout_ms=int(timeout_s * 1000))
        except BrokerUnreachable as error:
            raise (AnswerLost if error.was_sent else ControllerUnreachable)(str(error)) from error
        except ApiNotSupported as error:
            raise ControllerUnreachable(str(error)) from error
        except BrokenProtocol as error:
            raise AnswerLost(str(error)) from error
        if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # This broker was not registered yet when it connected, or the peer does not know the registration yet.
            channel.reconnect()
            raise ControllerUnreachable("the controller does not accept this broker's connection")
        if response.error_code != ErrorCode.NONE or response.response_data is None:
            raise AnswerLost(
                f"the controller failed on the request, error {response.error_code}; see the controller's log"
            )
        return response.response_data

    def _channel(self, broker: "BrokerRegistration", kind: type[Any]) -> Channel:
        target = _Target(broker.broker_id, self._connections.address(broker), kind)
        channel = self._channels.get(target)
        if channel is None:
            self._close_unused(target)
            channel = self._channels[target] = self._connections.channel(broker, self._config)
        return channel

    def _close_unused(self, target: _Target) -> None:
        """Close each channel that leads to another broker or address than `target` and has no requests in flight."""
        for other, channel in list(self._channels.items()):
            if other[:2] != target[:2] and channel.is_idle:
                channel.close()
                del self._channels[other]

    def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
