"""Encode and decode whole frames. The product does this in parts, at different places."""

from struct import Struct, error
from typing import TYPE_CHECKING

from tidelog.wire.frames import (
    API_VERSIONS_KEY,
    encode_request_header,
    request_header_version,
    response_header_version,
)
from tidelog.wire.message import Message, records_bytes
from tidelog.wire.primitives import Buffer, MalformedMessage, skip_tagged_fields

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Piece

_REQUEST = Struct(">hhih")
_SIZE = Struct(">i")
_SIZE_AND_ID = Struct(">ii")
_SIZE_ID_AND_TAGS = Struct(">iix")


class RequestHeader:
    """The header of every request. `client_id` is None if the client sent null."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None = None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __repr__(self) -> str:
        return f"RequestHeader({self.api_key}, {self.api_version}, {self.correlation_id}, {self.client_id!r})"


def decode_request_header(buffer: Buffer, position: int) -> tuple[RequestHeader, int]:
    """Return the header at `position` (after the frame's size) and the position after it. Raises MalformedMessage."""
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(buffer, position)
        position += 10
        client_id = None
        if length >= 0:
            client_id = str(buffer[position : position + length], "utf-8")
            position += length
        if request_header_version(api_key, api_version) == 2:
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


def encode_request(message: Message, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return a whole frame: size, header, request. Record data must be in memory."""
    header = encode_request_header(message.api_key, api_version, correlation_id, client_id)
    body = message.encode(api_version)
    return b"".join((_SIZE.pack(len(header) + len(body)), header, body))


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Return the header, without the frame's size."""
    flexible = response_header_version(api_key, api_version)
    return correlation_id.to_bytes(4, "big", signed=True) + (b"\0" if flexible else b"")


def encode_response(message: Message, api_version: int, correlation_id: int) -> "list[Piece]":
    """Return a whole frame: size, header, response. Record data stays in separate pieces; the rest is joined between
    them.
    """
    pieces: list[Piece] = message.pieces_encoder(api_version)(message)
    size = 4
    for piece in pieces:
        size += len(piece) if isinstance(piece, bytes) else records_bytes(piece)
    flexible = api_version >= message.flexible_from and message.api_key != API_VERSIONS_KEY
    head = _SIZE_ID_AND_TAGS.pack(size + 1, correlation_id) if flexible else _SIZE_AND_ID.pack(size, correlation_id)
    pieces[0] = head + pieces[0]  # type: ignore[operator]  # the first piece of a message is bytes
    return pieces
