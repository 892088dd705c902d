"""A client's own request that one broker forwards to another in an envelope, with the principal and address of its
client (KIP-590).

The receiving broker answers as if the client had connected to it. The forwarded request and its response are the
client's own bytes, with its correlation id, so that neither broker encodes them again. Envelopes are accepted from
brokers only: whoever may send one can claim to be any user.
"""

from ipaddress import ip_address
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.api.registry import Route, find_route
from tidelog.api.services import Peer, RequestContext
from tidelog.wire.errors import ApiError, ErrorCode, InvalidRequest, UnsupportedVersion, error_for
from tidelog.wire.frames import decode_response_header, request_header_version, response_header_version
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidelog.wire.primitives import MalformedMessage, read_uvarint, skip_tagged_fields, uvarint

if TYPE_CHECKING:
    from tidelog.wire.primitives import Buffer

FORWARDABLE = (19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81)
"""The keys of the APIs that Kafka 4.3 forwards to the controller."""

PRINCIPAL_VERSION = 0
_HEADER = Struct(">hhih")
_VERSION = Struct(">h")


class Principal(NamedTuple):
    """The identity of a client."""

    kind: str
    """The type of the principal: "User", unless a plug-in of Kafka defines others."""
    name: str
    token_authenticated: bool = False
    """Whether the client has authenticated by a delegation token (KIP-48)."""


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The client of a listener without authentication."""


class ForwardedRequest(NamedTuple):
    """A request from an envelope, decoded. It is handled by `route` like a client's own request."""

    route: Route
    context: RequestContext
    """Its client address is that of the client. The rest of its peer is that of the envelope's connection."""
    principal: Principal
    request: Any


# The broker that forwards


def wrap_request(frame: "Buffer", principal: Principal, client_host: str) -> EnvelopeRequest:
    """Return the envelope for a client's request. `frame` is the request with its header, without the size field."""
    return EnvelopeRequest(
        request_data=bytes(frame),
        request_principal=encode_principal(principal),
        client_host_address=ip_address(client_host).packed,
    )


def unwrap_response(response: EnvelopeResponse, route: Route, correlation_id: int) -> bytes:
    """Return the response to the client, with its header, without the size field.

    Raises ApiError if the other broker did not handle the request, or answered another one.
    """
    if response.error_code != ErrorCode.NONE:
        raise error_for(response.error_code, f"the controller rejects the forwarded {route.name} request")
    data = response.response_data
    try:
        answered_id = None if data is None else decode_response_header(data, 0, route.api_key, route.version)[0]
    except MalformedMessage:
        answered_id = None
    if data is None or answered_id != correlation_id:
        raise ApiError(f"the controller answers {route.name} request {correlation_id} by one for {answered_id}")
    return data


# The broker that answers


def unwrap_request(envelope: EnvelopeRequest, context: RequestContext, *, from_broker: bool) -> ForwardedRequest:
    """Decode the request in an envelope. `context` is that of the envelope, `from_broker` says whether its sender has
    authenticated as a broker of this cluster.

    Raises the errors of Kafka: CLUSTER_AUTHORIZATION_FAILED, PRINCIPAL_DESERIALIZATION_FAILURE, INVALID_REQUEST for a
    wrong address or an API that is not forwarded, UNSUPPORTED_VERSION for a request that cannot be decoded.
    """
    if not from_broker:
        reason = "only brokers of this cluster may forward requests"
        raise ApiError(reason, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    principal = decode_principal(envelope.request_principal)
    address = envelope.client_host_address
    if len(address) not in (4, 16):
        raise InvalidRequest(f"the client address in the envelope has {len(address)} bytes, not 4 or 16")
    data = memoryview(envelope.request_data)
    api_key, version, correlation_id, client_id, position = _decode_header(data)
    if api_key not in FORWARDABLE:
        raise InvalidRequest(f"requests of API key {api_key} are not forwarded")
    route = find_route(api_key, version)
    try:
        request, _ = route.decode(data, position)
    except MalformedMessage as malformed:
        raise UnsupportedVersion(f"the forwarded {route.name} v{version} cannot be decoded: {malformed}") from malformed
    own = context.peer
    client = Peer(str(ip_address(address)), 0, own.local_host, own.local_port, own.listener)
    forwarded_context = RequestContext(api_key, version, correlation_id, client_id, client)
    return ForwardedRequest(route, forwarded_context, principal, request)


def wrap_response(forwarded: ForwardedRequest, response: Any) -> EnvelopeResponse:
    """Return the envelope of a response of the route's class."""
    route, context = forwarded.route, forwarded.context
    head = context.correlation_id.to_bytes(4, "big", signed=True)
    if response_header_version(route.api_key, route.version):
        head += b"\0"
    return EnvelopeResponse(response_data=b"".join((head, *route.encode(response))))


def _decode_header(data: memoryview) -> tuple[int, int, int, str | None, int]:
    """Return API key, version, correlation id and client id of a request, and the position after its header. Raises
    UnsupportedVersion.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(data)
        position = _HEADER.size
        client_id = None
        if length >= 0:
            client_id = str(data[position : position + length], "utf-8")
            position += length
        if request_header_version(api_key, version) == 2:
            position = skip_tagged_fields(data, position + 1, data[position])
        if position > len(data):
            raise IndexError
    except (StructError, IndexError, UnicodeDecodeError, MalformedMessage):
        raise UnsupportedVersion("the header of the forwarded request cannot be decoded") from None
    return api_key, version, correlation_id, client_id, position


# Principals: Kafka's DefaultPrincipalData behind its version


def encode_principal(principal: Principal) -> bytes:
    """Encode a principal as Kafka's default principal builder does."""
    fields = b"".join(_compact(text) for text in (principal.kind, principal.name))
    return _VERSION.pack(PRINCIPAL_VERSION) + fields + (b"\1" if principal.token_authenticated else b"\0") + b"\0"


def decode_principal(data: bytes | None) -> Principal:
    """Decode a principal. Raises ApiError (PRINCIPAL_DESERIALIZATION_FAILURE)."""
    try:
        if data is None or _VERSION.unpack_from(data)[0] != PRINCIPAL_VERSION:
            raise MalformedMessage("principal: absent, or of an unknown version")
        kind, position = _read_compact(data, _VERSION.size)
        name, position = _read_compact(data, position)
        token_authenticated = data[position] != 0
        if skip_tagged_fields(data, position + 2, data[position + 1]) > len(data):
            raise IndexError
    except (StructError, IndexError, UnicodeDecodeError, MalformedMessage):
        reason = "the principal of the client cannot be decoded; all brokers must encode principals in the same way"
        raise ApiError(reason, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE) from None
    return Principal(kind, name, token_authenticated)


def _compact(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def _read_compact(data: bytes, position: int) -> tuple[str, int]:
    length, position = read_uvarint(data, position)
    end = position + length - 1
    if not length or end > len(data):
        raise IndexError
    return str(data[position:end], "utf-8"), end
