"""The sizes that a request may have, and the reason for which a connection with another size is closed."""

from typing import Final

HEADER_BYTES: Final = 10
"""Size of the shortest request header: API key, version, correlation id, length of the client id."""
OTHER_REQUEST_BYTES_MAX: Final = 16 << 20
"""Upper bound on the size of requests other than produce, which contains records. No honest client sends longer
ones."""
TLS_HANDSHAKE: Final = b"\x16\x03"
"""The first bytes of a TLS connection (RFC 8446): record type 22 (handshake), major version 3."""


def size_refusal(size: int, start: bytes, bytes_max: int) -> str:
    """Return why the connection is closed. `start` are the four bytes in which the client should have sent `size`.

    A client of another protocol sends other bytes there. If they are known, the text names the protocol.
    """
    hint = ""
    if start.isalpha() or start in (b"GET ", b"PUT "):
        hint = " (HTTP on the Kafka port?)"
    elif start.startswith(TLS_HANDSHAKE):
        hint = " (TLS on a listener without TLS?)"
    return f"frame of {size} bytes is outside {HEADER_BYTES}..{bytes_max}, socket.request.max.bytes{hint}"
