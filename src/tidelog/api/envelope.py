"""Envelope (key 58), v0: requests of other brokers to the controller (KIP-590), and the messages with which brokers
prove their identity. Envelope is served only to brokers of the same cluster.
"""

from typing import TYPE_CHECKING

from tidelog.api.services import CloseConnection, Peer, RequestContext, Services
from tidelog.client.identification import is_identification
from tidelog.metadata.link import Answer, ControllerRequest, RegisterBroker
from tidelog.metadata.link_codec import decode_request, encode_answer, encode_error
from tidelog.metadata.value_codec import MalformedValue, UnknownValue
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from tidelog.api.peer_brokers import PeerBrokers
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: EnvelopeRequest
) -> "Outcome[EnvelopeResponse | CloseConnection]":
    """Process a message of a broker's identification, or execute a request to the controller.

    If the client is not a broker of this cluster, its connection is closed. Kafka's brokers close every connection on
    which they receive an Envelope request. Raises ApiError.
    """
    peers, peer = services.peer_brokers, context.peer
    if peers is not None and is_identification(request.request_data):
        return EnvelopeResponse(response_data=peers.process(peer, request.request_data))
    if peers is None or peer.broker is None:
        return CloseConnection("Envelope is only served to brokers of this cluster")
    return _execute(services, peers, peer, request.request_data)


async def _execute(services: Services, peers: "PeerBrokers", peer: Peer, data: bytes) -> EnvelopeResponse:
    """Execute an identified broker's request to the controller.

    A request that cannot be decoded is answered with an error. A broker may always register itself. For any other
    request, raises ApiError (CLUSTER_AUTHORIZATION_FAILED) if the broker was not registered when it connected, or if
    its registration was replaced or removed afterwards.
    """
    sender = peers.sender(peer)
    try:
        request = await services.turns.run(decode_request(data))
    except MalformedValue as error:
        return EnvelopeResponse(response_data=encode_error(Answer(None, ErrorCode.INVALID_REQUEST, str(error))))
    except UnknownValue as error:
        message = f"the controller runs an older version of Tidelog than the broker that sent the request: {error}"
        return EnvelopeResponse(response_data=encode_error(Answer(None, ErrorCode.UNSUPPORTED_VERSION, message)))
    if sender is None and not _is_own_registration(request, peer):
        reason = "the broker was not registered when it connected, or its registration has been replaced or removed"
        raise ApiError(reason, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    answer = await peers.controller.execute(request)
    return EnvelopeResponse(response_data=await services.turns.run(encode_answer(type(request), answer)))


def _is_own_registration(request: ControllerRequest, peer: Peer) -> bool:
    broker = peer.broker
    return (
        isinstance(request, RegisterBroker)
        and broker is not None
        and request.registration.broker_id == broker.broker_id
    )
