"""The functions that conversation files can call to build a value: batches, group metadata, raw bytes, long texts."""

import struct
from collections.abc import Mapping

from .batches import batch, message_set
from .values import Builder


def hexadecimal(text: str) -> bytes:
    return bytes.fromhex(text)


def join(*parts: bytes) -> bytes:
    return b"".join(parts)


def repeat(text: str, times: int) -> str:
    return text * times


def text_bytes(text: str) -> bytes:
    return text.encode()


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def subscription(*topics: str) -> bytes:
    """Encode ConsumerProtocolSubscription v0 without user data."""
    return struct.pack(">hi", 0, len(topics)) + b"".join(_string(t) for t in topics) + struct.pack(">i", -1)


def assignment(topic: str, partitions: list[int]) -> bytes:
    """Encode ConsumerProtocolAssignment v0 for one topic, without user data."""
    count = len(partitions)
    return struct.pack(">hi", 0, 1) + _string(topic) + struct.pack(f">i{count}ii", count, *partitions, -1)


def other_node(node: int) -> int:
    """Return the id of another broker of a cluster of three."""
    return node % 3 + 1


BUILDERS: Mapping[str, Builder] = {
    "assignment": assignment,
    "batch": batch,
    "bytes": text_bytes,
    "double": float,
    "hex": hexadecimal,
    "join": join,
    "message_set": message_set,
    "other": other_node,
    "repeat": repeat,
    "subscription": subscription,
}
