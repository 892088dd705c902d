"""What conversation files can call to build a value: batches, group metadata, raw bytes, long texts."""

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


def zeros(size: int) -> bytes:
    return bytes(size)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def subscription(*topics: str, version: int = 0, user_data: bytes | None = None) -> bytes:
    """ConsumerProtocolSubscription v0 or v1 (which adds owned partitions, none here)."""
    body = struct.pack(">hi", version, len(topics)) + b"".join(_string(t) for t in topics)
    body += struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return body + (struct.pack(">i", 0) if version >= 1 else b"")


def assignment(topic: str, partitions: list[int], user_data: bytes | None = None) -> bytes:
    """ConsumerProtocolAssignment v0 of one topic."""
    body = (
        struct.pack(">hi", 0, 1) + _string(topic) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    )
    return body + (struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data)


BUILDERS: Mapping[str, Builder] = {
    "assignment": assignment,
    "batch": batch,
    "bytes": text_bytes,
    "hex": hexadecimal,
    "join": join,
    "message_set": message_set,
    "repeat": repeat,
    "subscription": subscription,
    "zeros": zeros,
}
