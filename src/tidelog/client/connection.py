"""One connection's side of the protocol: requests become frames, frames become answers, in the requests' order.

Pure: whoever owns the socket carries the bytes. The first thing on a connection is the greeting, which learns the
broker's versions (KIP-35, KIP-511).
"""

from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from tidelog import __version__
from tidelog.client.errors import ApiNotSupported, BrokenProtocol
from tidelog.wire.apis import APIS
from tidelog.wire.errors import ErrorCode, error_for
from tidelog.wire.frames import decode_response_header, encode_request_header
from tidelog.wire.message import Decoder, Message, PiecesEncoder, records_bytes
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.primitives import Buffer, FieldNotInVersion, MalformedMessage, UnencodableValue

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Piece

SIZE_BYTES = 4
NEWEST = 32767


class VersionRange(NamedTuple):
    """Both ends included."""

    first: int
    last: int


class _Awaited(NamedTuple):
    correlation_id: int
    response: type[Message]
    version: int


class ClientConnection:
    """`greet` and `greeted` first, then `request` and `answer` as often as wanted, pipelined or not."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._next_id = 0
        self._awaited: deque[_Awaited] = deque()
        self.versions: Mapping[int, VersionRange] = {}
        """What the broker takes, by API key; empty before the greeting is over."""

    def greet(self) -> "list[Piece]":
        """The frame that asks for the broker's versions."""
        return self._greeting(ApiVersionsRequest.max_version)

    def greeted(self, frame: Buffer) -> "list[Piece] | None":
        """Take the answer to the greeting. A frame to send and wait for again, or None when the versions are known."""
        version = self._awaited[0].version
        response = cast(ApiVersionsResponse, self._decode_greeting(frame))
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            offered = [v.max_version for v in response.api_keys if v.api_key == ApiVersionsRequest.api_key]
            return self._greeting(min(version - 1, max(offered, default=0)))
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, "the broker refuses to tell its versions")
        self.versions = {v.api_key: VersionRange(v.min_version, v.max_version) for v in response.api_keys}
        return None

    def version_for(self, request: type[Message], version_max: int = NEWEST) -> int:
        """The highest version of this API that both sides know. Raises ApiNotSupported, saying both ranges."""
        ours = VersionRange(request.min_version, min(request.max_version, version_max))
        theirs = self.versions.get(request.api_key)
        if theirs is None:
            raise ApiNotSupported(f"the broker does not offer {request.name}")
        version = min(ours.last, theirs.last)
        if version < max(ours.first, theirs.first):
            raise ApiNotSupported(
                f"{request.name}: the broker takes versions {theirs.first} to {theirs.last}, "
                f"this client speaks {ours.first} to {ours.last}"
            )
        return version

    def request(self, request: Message, version_max: int = NEWEST) -> "list[Piece]":
        """The frame of a request that is answered, in pieces; record data stays a piece of its own."""
        return self._frame(request, self.version_for(type(request), version_max))

    def answer(self, frame: Buffer) -> Message:
        """The answer to the oldest request that waits for one. Raises BrokenProtocol.

        `records` fields are views of `frame`. Strings whose bytes are not UTF-8 have lone surrogates in their place
        ("surrogateescape"), and are sent as these bytes again.
        """
        if not self._awaited:
            raise BrokenProtocol("the broker sent an answer that nothing asked for")
        awaited = self._awaited.popleft()
        try:
            correlation_id, position = decode_response_header(frame, 0, awaited.response.api_key, awaited.version)
            if correlation_id != awaited.correlation_id:
                raise BrokenProtocol(f"answer {correlation_id} came where {awaited.correlation_id} was due")
            message: Message = decoder(awaited.response, awaited.version)(frame, position)[0]
            return message
        except MalformedMessage as malformed:
            raise BrokenProtocol(f"{awaited.response.name}: {malformed}") from malformed

    def _greeting(self, version: int) -> "list[Piece]":
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        return self._frame(request, version)

    def _decode_greeting(self, frame: Buffer) -> Message:
        """A broker that does not know the version answers in version 0, which begins with the error."""
        if frame[SIZE_BYTES : SIZE_BYTES + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            self._awaited[0] = self._awaited[0]._replace(version=0)
        return self.answer(frame)

    def _frame(self, request: Message, version: int) -> "list[Piece]":
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        head = encode_request_header(request.api_key, version, correlation_id, self._client_id)
        try:
            pieces = pieces_encoder(type(request), version)(request)
        except (FieldNotInVersion, UnencodableValue) as error:
            raise ApiNotSupported(f"{request.name} v{version} cannot carry this request: {error}") from error
        size = len(head) + records_bytes(pieces)
        self._awaited.append(_Awaited(correlation_id, response_class(request.api_key), version))
        return [size.to_bytes(SIZE_BYTES, "big") + head, *pieces]


def response_class(api_key: int) -> type[Message]:
    api = APIS[api_key]
    module = import_module(f"tidelog.wire.messages.{api.module}")
    return cast(type[Message], getattr(module, f"{api.name}Response"))


_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], PiecesEncoder] = {}


def decoder(message: type[Message], version: int) -> Decoder:
    """What decodes an answer: one string that is not UTF-8 must not hide the rest of it."""
    found = _decoders.get((message, version))
    if found is None:
        from tidelog.wire.decoding import build_decoder

        found = _decoders[message, version] = build_decoder(message, version, any_text=True)
    return found


def pieces_encoder(message: type[Message], version: int) -> PiecesEncoder:
    """What encodes a request: names go back as the bytes that a broker has sent for them."""
    found = _encoders.get((message, version))
    if found is None:
        from tidelog.wire.encoding import build_encoders

        found = _encoders[message, version] = build_encoders(message, version, any_text=True)[1]
    return found
