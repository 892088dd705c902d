"""Frames: a four-byte size, a header, a message (KIP-482 for the headers of flexible versions).

A request's header has version 1, or version 2 if the request's version is flexible. Version 2 adds tagged fields; the
client id keeps its two-byte length. A response's header has version 0, or version 1 with tagged fields if flexible. An
ApiVersions response always has header version 0, so that any client can read it (KIP-511).
"""

from struct import Struct, error
from typing import TYPE_CHECKING

from tidelog.wire.apis import APIS
from tidelog.wire.message import NEVER_FLEXIBLE, Message, records_bytes
from tidelog.wire.primitives import Buffer, MalformedMessage, UnencodableValue, skip_tagged_fields

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Piece

API_VERSIONS_KEY = 18
SIZE_BYTES = 4
"""Bytes of a frame's size field, a signed integer that counts the bytes after it."""

_REQUEST = Struct(">hhih")
_SIZE = Struct(">i")
_SIZE_AND_ID = Struct(">ii")
_SIZE_ID_AND_TAGS = Struct(">iix")
_FLEXIBLE_FROM = {key: api.flexible_from for key, api in APIS.items()}


class RequestHeader:
    """The header of a request. `client_id` is None if the client sent null."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None = None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __repr__(self) -> str:
        return f"RequestHeader({self.api_key}, {self.api_version}, {self.correlation_id}, {self.client_id!r})"


def request_header_version(api_key: int, api_version: int) -> int:
    """Return the version of a request's header: 1 or 2.

    A version above the known ones has the header version of the last known one; an unknown API has header version 1.
    """
    return 2 if api_version >= _FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Return the version of a response's header: 0 or 1; always 0 for ApiVersions."""
    if api_key == API_VERSIONS_KEY:
        return 0
    return 1 if api_version >= _FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) else 0


def decode_request_header(buffer: Buffer, position: int) -> tuple[RequestHeader, int]:
    """Decode the header at `position`, behind the frame's size. Returns it and the position of the request.

    Raises MalformedMessage.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(buffer, position)
        position += 10
        client_id = None
        if length >= 0:
            client_id = str(buffer[position : position + length], "utf-8")
            position += length
        if api_version >= _FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE):
            count = buffer[position]
            position += 1
            if count:
                position = skip_tagged_fields(buffer, position, count)
    except (error, IndexError):
        raise MalformedMessage("request header: cut short") from None
    except UnicodeDecodeError:
        raise MalformedMessage("request header: a client id that is not UTF-8") from None
    if position > len(buffer):
        raise MalformedMessage("request header: cut short")
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request's header, without the frame's size. Raises UnencodableValue for a client id > 32,767 bytes."""
    text = b"" if client_id is None else client_id.encode()
    try:
        fixed = _REQUEST.pack(api_key, api_version, correlation_id, -1 if client_id is None else len(text))
    except error as reason:
        raise UnencodableValue(f"request header: {reason}") from reason
    tags = b"\0" if request_header_version(api_key, api_version) == 2 else b""
    return fixed + text + tags


def encode_request(message: Message, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a whole frame: size, header, request. Record data must be in memory."""
    header = encode_request_header(message.api_key, api_version, correlation_id, client_id)
    body = message.encode(api_version)
    return b"".join((_SIZE.pack(len(header) + len(body)), header, body))


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Encode a response's header, without the frame's size."""
    flexible = response_header_version(api_key, api_version)
    return correlation_id.to_bytes(4, "big", signed=True) + (b"\0" if flexible else b"")


def decode_response_header(buffer: Buffer, position: int, api_key: int, api_version: int) -> tuple[int, int]:
    """Decode the header of a response to this API and version. Returns correlation id and position of the response."""
    try:
        (correlation_id,) = _SIZE.unpack_from(buffer, position)
        position += 4
        if response_header_version(api_key, api_version):
            position = skip_tagged_fields(buffer, position + 1, buffer[position])
    except (error, IndexError):
        raise MalformedMessage("response header: cut short") from None
    if position > len(buffer):
        raise MalformedMessage("response header: cut short")
    return correlation_id, position


def encode_response(message: Message, api_version: int, correlation_id: int) -> "list[Piece]":
    """Encode a whole frame: size, header, response. Record data stays in pieces of its own, which are not copied."""
    pieces = message.encode_pieces(api_version)
    size = 4
    for piece in pieces:
        size += len(piece) if isinstance(piece, bytes) else records_bytes(piece)
    flexible = api_version >= message.flexible_from and message.api_key != API_VERSIONS_KEY
    head = _SIZE_ID_AND_TAGS.pack(size + 1, correlation_id) if flexible else _SIZE_AND_ID.pack(size, correlation_id)
    pieces[0] = head + pieces[0]  # type: ignore[operator]  # the first piece of a message is bytes
    return pieces
