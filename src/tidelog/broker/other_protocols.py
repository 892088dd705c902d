"""Recognize clients of other protocols by their first bytes, so that a log line can name their mistake."""

TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of a TLS connection (RFC 8446): record type 22 (handshake), major version 3."""


def other_protocol_hint(start: memoryview) -> str:
    """Return a hint at the protocol that a peer seems to use. `start` contains the peer's first four bytes.
    Returns "" if these bytes are unknown.
    """
    first_bytes = bytes(start)
    # HTTP begins with the method: four or more letters (POST, HEAD, DELETE ...), or three letters and a space.
    if first_bytes.isalpha() or first_bytes in (b"GET ", b"PUT "):
        return " (HTTP on the Kafka port?)"
    return " (TLS on a listener without TLS?)" if first_bytes[:2] == TLS_HANDSHAKE else ""
