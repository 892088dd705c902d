"""The client's side of one connection. It encodes requests into frames, and decodes response frames in the order of
the requests.

Pure: the owner of the socket sends and receives the bytes. The first exchange on a connection is the greeting, an
ApiVersions request. It asks for the broker's versions: the versions of each API that the broker accepts (KIP-35,
KIP-511).
"""

from collections import deque
from collections.abc import Mapping
from functools import cache
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
"""Length of the field before each frame. The field states the size of the frame."""
BETWEEN_BROKERS = (58,)
"""The keys of the APIs (Envelope) that brokers serve only to other brokers, and do not offer to clients."""
NEWEST = 32767
"""Value of `version_max` that sets no limit: the newest version that both sides support is used."""


class VersionRange(NamedTuple):
    """A range of versions that includes both ends."""

    first: int
    last: int


class _ExpectedResponse(NamedTuple):
    correlation_id: int
    response: type[Message]
    version: int


class ClientConnection:
    """One connection. Its owner first calls `begin_greeting` and `continue_greeting`, and then `request` and
    `answer` any number of times. Several requests may wait for their responses at the same time.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._next_id = 0
        self._expected: deque[_ExpectedResponse] = deque()
        self.versions: Mapping[int, VersionRange] = {}
        """The versions that the broker accepts, by API key; empty until the greeting is complete."""

    def begin_greeting(self) -> "list[Piece]":
        """Return the frame that requests the broker's versions."""
        return self._greeting(ApiVersionsRequest.max_version)

    def continue_greeting(self, frame: Buffer) -> "list[Piece] | None":
        """Process the response to the greeting. Return None if the versions are known now. Otherwise return the frame
        of another greeting. The caller sends this frame, and calls this method again with the response.

        Raises BrokenProtocol, and ApiError if the broker rejects the greeting.
        """
        version = self._expected[0].version
        response = cast(ApiVersionsResponse, self._decode_greeting(frame))
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            offered_versions = [v.max_version for v in response.api_keys if v.api_key == ApiVersionsRequest.api_key]
            return self._greeting(min(version - 1, max(offered_versions, default=0)))
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, "the broker rejects the first request (ApiVersions)")
        self.versions = {v.api_key: VersionRange(v.min_version, v.max_version) for v in response.api_keys}
        return None

    def version_for(self, request: type[Message], version_max: int = NEWEST) -> int:
        """Return the highest version of this API that both sides support. Raises ApiNotSupported if there is no such
        version.
        """
        ours = VersionRange(request.min_version, min(request.max_version, version_max))
        theirs = self.versions.get(request.api_key)
        if theirs is None and request.api_key in BETWEEN_BROKERS:
            theirs = ours
        if theirs is None:
            raise ApiNotSupported(f"the broker does not offer {request.name}")
        version = min(ours.last, theirs.last)
        if version < max(ours.first, theirs.first):
            raise ApiNotSupported(
                f"{request.name}: the broker supports versions {theirs.first} to {theirs.last}, "
                f"this client supports {ours.first} to {ours.last}"
            )
        return version

    def request(self, request: Message, version_max: int = NEWEST) -> "list[Piece]":
        """Return the frame of a request that expects a response, in pieces. Record data is a separate piece, so that
        it is not copied.

        Raises ApiNotSupported if the sides support no common version up to `version_max`, or if the highest common
        version cannot express the request.
        """
        return self._frame(request, self.version_for(type(request), version_max))

    def answer(self, frame: Buffer) -> Message:
        """Decode the response to the oldest request that waits for one. Raises BrokenProtocol.

        `records` fields are views of `frame`. Bytes of a string that are not UTF-8 become lone surrogates
        ("surrogateescape"); a request that contains the string encodes the same bytes again.
        """
        if not self._expected:
            raise BrokenProtocol("the broker sent a response without a request")
        expected = self._expected.popleft()
        try:
            correlation_id, position = decode_response_header(frame, 0, expected.response.api_key, expected.version)
            if correlation_id != expected.correlation_id:
                raise BrokenProtocol(
                    f"the broker sent response {correlation_id} where {expected.correlation_id} was expected"
                )
            message: Message = decoder(expected.response, expected.version)(frame, position)[0]
            return message
        except MalformedMessage as malformed:
            raise BrokenProtocol(f"{expected.response.name}: {malformed}") from malformed

    def _greeting(self, version: int) -> "list[Piece]":
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        return self._frame(request, version)

    def _decode_greeting(self, frame: Buffer) -> Message:
        """Decode the response. A broker that does not know the request's version answers in version 0. In all versions,
        the error code follows the correlation id. The length of a correlation id is also SIZE_BYTES.
        """
        if frame[SIZE_BYTES : SIZE_BYTES + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            self._expected[0] = self._expected[0]._replace(version=0)
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
        self._expected.append(_ExpectedResponse(correlation_id, response_class(request.api_key), version))
        return [size.to_bytes(SIZE_BYTES, "big") + head, *pieces]


@cache
def response_class(api_key: int) -> type[Message]:
    api = APIS[api_key]
    module = import_module(f"tidelog.wire.messages.{api.module}")
    return cast(type[Message], getattr(module, f"{api.name}Response"))


_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], PiecesEncoder] = {}


def decoder(message: type[Message], version: int) -> Decoder:
    """Return a decoder of responses. It accepts strings that are not UTF-8, so that one such string does not make the
    whole response unreadable.
    """
    cached = _decoders.get((message, version))
    if cached is None:
        from tidelog.wire.decoding import build_decoder

        cached = _decoders[message, version] = build_decoder(message, version, any_text=True)
    return cached


def pieces_encoder(message: type[Message], version: int) -> PiecesEncoder:
    """Return an encoder of requests. A name that is not UTF-8 is encoded as the bytes that a broker sent for it."""
    cached = _encoders.get((message, version))
    if cached is None:
        from tidelog.wire.encoding import build_encoders

        cached = _encoders[message, version] = build_encoders(message, version, any_text=True)[1]
    return cached
