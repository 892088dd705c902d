"""The receiver's side of `client/identification.py`: which connections belong to brokers of this cluster."""

import logging
from typing import TYPE_CHECKING, NamedTuple

from tidelog.client.identification import (
    Challenge,
    Claim,
    MalformedIdentification,
    decode_message,
    is_same_mac,
    make_macs,
)
from tidelog.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.api.services import Peer
    from tidelog.metadata.link import RequestExecutor
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.connection")


class PeerBroker(NamedTuple):
    """The broker at the other end of a connection. It has proved its identity."""

    broker_id: int
    incarnation: str
    """Identifies the run of its process; empty if it was not registered when it connected."""


class PendingClaim(NamedTuple):
    """A claim that the receiver has answered. The proof must follow on the same connection."""

    broker: PeerBroker
    mac: bytes
    """The MAC that proves the claim."""


class PeerBrokers:
    """Identifies the other brokers on their connections to this broker."""

    def __init__(
        self,
        node_id: int,
        incarnation: "Callable[[], str]",
        controller: "RequestExecutor",
        cache: "MetadataCache",
        runtime: "Runtime",
    ) -> None:
        """`controller` is this broker's own controller, which executes requests while it is the cluster's."""
        self.controller = controller
        self._node_id = node_id
        self._incarnation = incarnation
        self._cache = cache
        self._new_number = runtime.new_uuid

    def sender(self, peer: "Peer") -> int | None:
        """Return the id of the registered broker whose connection this is.

        Return None for a client, and for a broker that has been registered again or removed since it connected.
        """
        if peer.broker is None:
            return None
        registration = self._cache.image.brokers.get(peer.broker.broker_id)
        if registration is None or registration.incarnation != peer.broker.incarnation:
            return None
        return registration.broker_id

    def process(self, peer: "Peer", data: bytes) -> bytes:
        """Process one message of an identification, and return the response's data. Raises ApiError."""
        claim, peer.claim, peer.broker = peer.claim, None, None
        try:
            message = decode_message(data)
        except MalformedIdentification as error:
            raise self._refusal(peer, str(error), ErrorCode.UNSUPPORTED_VERSION) from None
        if isinstance(message, Claim):
            return self._challenge(peer, message)
        if claim is None or not is_same_mac(claim.mac, message):
            raise self._refusal(peer, "it does not prove its identity", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        peer.broker = claim.broker
        return b""

    def _challenge(self, peer: "Peer", claim: Claim) -> bytes:
        image = self._cache.image
        sender = image.brokers.get(claim.broker_id)
        if claim.cluster_id != image.cluster_id:
            raise self._refusal(peer, "it belongs to another cluster", ErrorCode.INCONSISTENT_CLUSTER_ID)
        if claim.receiver_id != self._node_id or claim.broker_id == self._node_id:
            reason = f"broker {claim.broker_id} wants broker {claim.receiver_id}, and this is broker {self._node_id}"
            raise self._refusal(peer, reason, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if claim.is_registered and sender is None:
            reason = f"broker {claim.broker_id} is not registered"
            raise self._refusal(peer, reason, ErrorCode.BROKER_ID_NOT_REGISTERED)
        incarnation = sender.incarnation if claim.is_registered and sender is not None else ""
        number = self._new_number()
        receiver_mac, sender_mac = make_macs(claim, number, self._incarnation(), incarnation)
        peer.claim = PendingClaim(PeerBroker(claim.broker_id, incarnation), sender_mac)
        return Challenge(number, receiver_mac).encode()

    def _refusal(self, peer: "Peer", reason: str, code: ErrorCode) -> ApiError:
        logger.info("peer not accepted as a broker peer=%s reason=%s", peer.name, reason)
        return ApiError(reason, code)
