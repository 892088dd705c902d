"""Headers of requests and responses. In a frame, the header is between the frame's size and the message.

A request's header has version 1, or version 2 if the request's version is flexible. Version 2 adds tagged fields
(KIP-482), but the client id still has a two-byte length. A response's header has version 0, or version 1 with tagged
fields if the response's version is flexible. An ApiVersions response always has header version 0, so that any client
can read it (KIP-511).
"""

from struct import Struct, error

from tidelog.wire.apis import APIS
from tidelog.wire.message import NEVER_FLEXIBLE
from tidelog.wire.primitives import Buffer, MalformedMessage, UnencodableValue, skip_tagged_fields

API_VERSIONS_KEY = 18

_REQUEST = Struct(">hhih")
_CORRELATION_ID = Struct(">i")
_FLEXIBLE_FROM = {key: api.flexible_from for key, api in APIS.items()}


def request_header_version(api_key: int, api_version: int) -> int:
    """Return the version of a request's header: 1 or 2.

    An API version that is newer than all known versions gets the header version of the newest known version. The
    header of an unknown API has version 1.
    """
    return 2 if api_version >= _FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Return the version of a response's header: 0 or 1; always 0 for ApiVersions."""
    if api_key == API_VERSIONS_KEY:
        return 0
    return 1 if api_version >= _FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) else 0


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request's header, without the frame's size. Raises UnencodableValue if the client id has more than
    32,767 bytes, or if a number does not fit its field.
    """
    text = b"" if client_id is None else client_id.encode()
    try:
        fixed = _REQUEST.pack(api_key, api_version, correlation_id, -1 if client_id is None else len(text))
    except error as reason:
        raise UnencodableValue(f"request header with a client id of {len(text)} bytes: {reason}") from reason
    tags = b"\0" if request_header_version(api_key, api_version) == 2 else b""
    return fixed + text + tags


def decode_response_header(buffer: Buffer, position: int, api_key: int, api_version: int) -> tuple[int, int]:
    """Decode the header of a response to this API and version. Return the correlation id and the position of the
    message that follows the header.

    Raises MalformedMessage.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, position)
        position += 4
        if response_header_version(api_key, api_version):
            position = skip_tagged_fields(buffer, position + 1, buffer[position])
    except (error, IndexError):
        raise MalformedMessage("response header: cut short") from None
    if position > len(buffer):
        raise MalformedMessage("response header: cut short")
    return correlation_id, position
