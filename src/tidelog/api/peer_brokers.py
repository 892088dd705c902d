"""Find out which connections belong to other brokers of this cluster. This is the receiver's side of
`client/identification.py`.
"""

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
    """The identity of the broker at the other end of a connection."""

    broker_id: int
    incarnation: str
    """Identifies one run of the broker's process; empty if the broker was not registered when it connected."""


class PendingClaim(NamedTuple):
    """A claimed identity that this broker has answered with a challenge. The proof must follow on the same
    connection.
    """

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
        """`controller` is the controller in this process. It executes requests while it is the cluster's active
        controller.
        """
        self.controller = controller
        self._node_id = node_id
        self._incarnation = incarnation
        self._cache = cache
        self._new_number = runtime.new_uuid

    def sender(self, peer: "Peer") -> int | None:
        """Return the broker id of `peer` if it is a registered broker.

        Return None for a client, for a broker that was not registered when it connected, and for a broker whose
        registration was replaced or removed later.
        """
        if peer.broker is None:
            return None
        registration = self._cache.newest.brokers.get(peer.broker.broker_id)
        if registration is None or registration.incarnation != peer.broker.incarnation:
            return None
        return registration.broker_id

    def process(self, peer: "Peer", data: bytes) -> bytes:
        """Process one message of an identification, and return the response's data. Raises ApiError."""
        # Every message removes the identity that the peer had before. It also removes the claim, because the peer can
        # answer a challenge only once.
        claim, peer.claim, peer.broker = peer.claim, None, None
        try:
            message = decode_message(data)
        except MalformedIdentification as error:
            raise self._refusal(peer, str(error), ErrorCode.UNSUPPORTED_VERSION) from None
        if isinstance(message, Claim):
            return self._challenge(peer, message)
        if claim is None or not is_same_mac(claim.mac, message):
            raise self._refusal(peer, "the peer does not prove its identity", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        peer.broker = claim.broker
        return b""

    def _challenge(self, peer: "Peer", claim: Claim) -> bytes:
        image = self._cache.newest
        sender = image.brokers.get(claim.broker_id)
        if claim.cluster_id != image.cluster_id:
            raise self._refusal(peer, "the peer belongs to another cluster", ErrorCode.INCONSISTENT_CLUSTER_ID)
        if claim.receiver_id != self._node_id or claim.broker_id == self._node_id:
            reason = (
                f"the peer claims to be broker {claim.broker_id} and asks for broker {claim.receiver_id}; "
                f"this is broker {self._node_id}"
            )
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
        logger.info("identification of a broker refused peer=%s reason=%s", peer.name, reason)
        return ApiError(reason, code)
