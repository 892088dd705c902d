"""A connection to one broker over a blocking socket."""

import secrets
import socket
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from tidelog.client.cluster import Address
from tidelog.client.connection import NEWEST, SIZE_BYTES, ClientConnection, VersionRange
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ApiNotSupported, BrokenProtocol, BrokerUnreachable, failure_reason
from tidelog.client.security import (
    PLAINTEXT,
    AuthenticationFailed,
    Sasl,
    Security,
    sasl_messages,
    security_protocol,
    tls_failure,
)
from tidelog.wire.message import Message
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    import ssl

    from tidelog.runtime.interfaces import Piece

SHARED_BUFFER_BYTES = 64 << 10
"""Initial size, in bytes, of the buffer for all responses that are read with `reuse` (see `Link.answer`)."""
PIECES_MAX = 64
"""Upper bound on the buffers in one sendmsg call. Linux and macOS accept 1024 (IOV_MAX)."""


class Link:
    """One connection to a broker. The constructor opens it, and authenticates the client.

    The constructor, `send` and `answer` raise BrokerUnreachable when the connection fails or the deadline passes,
    BrokenProtocol when the peer violates the protocol, and AuthenticationFailed when the broker or this client rejects
    the TLS handshake or the login. With TLS 1.3, the broker may reject the client's certificate only after the
    constructor has returned. All these errors close the link. Deadlines are in seconds of `time.monotonic`.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        frame_bytes_max: int,
        deadline: float,
        security: Security = PLAINTEXT,
    ) -> None:
        self.address = address
        self._connection = ClientConnection(client_id)
        self._frame_bytes_max = frame_bytes_max
        self._sent_count = 0
        self._received_count = 0
        self._early_responses: dict[int, Message] = {}
        self._throttled_until = 0.0
        self.remedy = ""
        """Advice for the user if the connection breaks now. Empty after the first answer to a request that was sent
        with `send`."""
        self._size_field = bytearray(SIZE_BYTES)
        self._shared_buffer = bytearray(SHARED_BUFFER_BYTES)
        try:
            self._socket = socket.create_connection(address, _remaining_s(deadline))
        except OSError as error:
            raise BrokerUnreachable(address, failure_reason(error)) from error
        except ValueError as error:  # the host name contains a NUL, or a label that is too long
            raise BrokerUnreachable(address, f"no host has the name {address.host!r}") from error
        with _Guard(self):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._over_tls = security.tls is not None
            has_sasl = security.sasl is not None
            if security.tls is not None:
                self.remedy = f"if this listener has no TLS, set security.protocol={security_protocol(False, has_sasl)}"
                self._socket.settimeout(_remaining_s(deadline))
                self._socket = begin_tls(self._socket, security.tls, address.host)
                self.remedy = ""
            else:
                self.remedy = f"if this listener needs TLS, set security.protocol={security_protocol(True, has_sasl)}"
            self._greet(deadline)
            self.remedy = ""
            if security.sasl is not None:
                self._authenticate(security.sasl, deadline)
            elif SaslHandshakeRequest.api_key in self.versions:
                self.remedy = (
                    f"if this listener needs a login, set security.protocol={security_protocol(self._over_tls, True)}, "
                    "sasl.mechanism, sasl.username and sasl.password"
                )

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        return self._connection.versions

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()

    def wait_out_throttle(self, deadline: float) -> None:
        """If the broker throttles this client (KIP-219), wait until the broker reads this connection again, or until
        the deadline.
        """
        remaining_s = min(self._throttled_until, deadline) - time.monotonic()
        if remaining_s > 0:
            time.sleep(remaining_s)

    def send(self, message: Message, deadline: float, version_max: int = NEWEST) -> int:
        """Send a request. Return its number, for `answer`. Raises ApiNotSupported, which does not close the link, and
        the errors that the docstring of this class lists.
        """
        pieces = self._connection.request(message, version_max)
        with _Guard(self):
            self._send(pieces, deadline)
        self._sent_count += 1
        return self._sent_count

    def answer(self, number: int, deadline: float, *, reuse: bool = False) -> Message:
        """Return the response to the request with this number. Each response can be read only once.

        With `reuse`, the response may be in a buffer that the next call with `reuse` overwrites. `reuse` is meant for
        large responses, whose `records` are views of the buffer: allocating new memory costs more than reading into
        existing memory.
        """
        assert 0 < number <= self._sent_count
        with _Guard(self):
            while self._received_count < number - 1:  # store the responses to earlier requests, in their own buffers
                early_response = self._next_answer(deadline, reuse=False)
                self._early_responses[self._received_count] = early_response
            if self._received_count == number - 1:
                return self._next_answer(deadline, reuse=reuse)
        return self._early_responses.pop(number)

    def _next_answer(self, deadline: float, *, reuse: bool) -> Message:
        message = self._connection.answer(self._receive(deadline, reuse=reuse))
        self._received_count += 1
        self.remedy = ""
        throttle_ms = getattr(message, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttled_until = time.monotonic() + throttle_ms / 1000
        return message

    def _greet(self, deadline: float) -> None:
        pieces: list[Piece] | None = self._connection.begin_greeting()
        while pieces:
            self._send(pieces, deadline)
            pieces = self._connection.continue_greeting(self._receive(deadline, reuse=False))

    def _authenticate(self, sasl: Sasl, deadline: float) -> None:
        """Authenticate this client (KIP-43, KIP-152). Raises AuthenticationFailed."""
        rejection = f"broker {self.address} rejects the authentication"
        no_login = (
            f"{rejection}: this listener has no SASL; set security.protocol={security_protocol(self._over_tls, False)} "
            "without credentials, or use the address of a listener with SASL"
        )
        try:
            request = self._connection.request(SaslHandshakeRequest(mechanism=sasl.mechanism))
        except ApiNotSupported:
            raise AuthenticationFailed(no_login) from None
        self._send(request, deadline)
        handshake = self._connection.answer(self._receive(deadline, reuse=False))
        assert isinstance(handshake, SaslHandshakeResponse)
        if handshake.error_code:
            if not handshake.mechanisms:
                raise AuthenticationFailed(no_login)
            offered = ", ".join(handshake.mechanisms)
            raise AuthenticationFailed(
                f"{rejection}: it does not offer {sasl.mechanism}, it offers {offered}; "
                "set sasl.mechanism to one of these"
            )
        messages = sasl_messages(sasl, secrets.token_urlsafe(24))
        message: bytes | None = next(messages)
        while message is not None:
            self._send(self._connection.request(SaslAuthenticateRequest(auth_bytes=message)), deadline)
            answer = self._connection.answer(self._receive(deadline, reuse=False))
            assert isinstance(answer, SaslAuthenticateResponse)
            if answer.error_code:
                reason = answer.error_message or error_name(answer.error_code)
                raise AuthenticationFailed(f"{rejection}: {reason}; check sasl.username and sasl.password")
            try:
                message = messages.send(answer.auth_bytes)
            except StopIteration:
                message = None

    def _send(self, pieces: "list[Piece]", deadline: float) -> None:
        if self._over_tls:  # a TLS socket sends one buffer at a time
            self._socket.settimeout(_remaining_s(deadline))
            self._socket.sendall(b"".join(pieces))  # type: ignore[arg-type]  # a client sends no parts of files
            return
        buffers = [memoryview(piece).cast("B") for piece in pieces]  # type: ignore[arg-type]  # a client sends no parts of files
        while buffers:
            self._socket.settimeout(_remaining_s(deadline))
            sent = self._socket.sendmsg(buffers[:PIECES_MAX])
            while buffers and sent >= len(buffers[0]):
                sent -= len(buffers.pop(0))
            if sent:
                buffers[0] = buffers[0][sent:]

    def _receive(self, deadline: float, *, reuse: bool) -> memoryview:
        """Receive one frame, without its size field."""
        self._fill(memoryview(self._size_field), deadline)
        size = int.from_bytes(self._size_field, "big", signed=True)
        if not 0 <= size <= self._frame_bytes_max:
            raise BrokenProtocol(
                f"{self.address} sent an answer that is not Kafka's protocol: its first bytes would mean a length of "
                f"{size}, and the limit is {self._frame_bytes_max}. Check that this is the address of a broker, and "
                "that the listener has the security protocol that you use"
            )
        if reuse and size > len(self._shared_buffer):
            self._shared_buffer = bytearray(size)
        frame = memoryview(self._shared_buffer if reuse else bytearray(size))[:size]
        self._fill(frame, deadline)
        return frame

    def _fill(self, target: memoryview, deadline: float) -> None:
        while target:
            self._socket.settimeout(_remaining_s(deadline))
            count = self._socket.recv_into(target)
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            target = target[count:]


class _Guard:
    """Closes the link on any exception. Converts an OSError into AuthenticationFailed if the broker requires a
    certificate of this client, and otherwise into BrokerUnreachable.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._link.close()
        if isinstance(error, OSError):
            if "CERTIFICATE_REQUIRED" in str(error):  # with TLS 1.3, the broker reports this only after the handshake
                raise AuthenticationFailed(tls_failure(self._link.address.host, error)) from error
            remedy = "" if isinstance(error, TimeoutError) else self._link.remedy
            raise BrokerUnreachable(self._link.address, failure_reason(error), remedy) from error


def begin_tls(tcp_socket: socket.socket, context: "ssl.SSLContext", host: str) -> "ssl.SSLSocket":
    """Perform a client's TLS handshake. Raises AuthenticationFailed if either side rejects the handshake, and
    OSError if the connection breaks.
    """
    import ssl

    try:
        return context.wrap_socket(tcp_socket, server_hostname=host)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
        raise
    except ssl.SSLError as error:
        raise AuthenticationFailed(tls_failure(host, error)) from error


def _remaining_s(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError after it."""
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError("no answer in time")
    return remaining_s
