"""Zstandard: frames one after another, skippable ones among them (RFC 8878).

Read as `ZstdInputStream` of zstd-jni does, which Kafka uses. The data may end within a frame that follows whole ones:
if that frame has given no bytes yet, the stream has ended in order.
"""

from contextlib import suppress
from struct import Struct

import cramjam

from tidelog.wire.compression.room import Room, too_large
from tidelog.wire.primitives import BrokenStream, Buffer

_FIRST_GUESS = 4
_GROWTH = 4
_LEAST_GUESS_BYTES = 16 * 1024

# In the library's messages.
_OUTPUT_FULL = "whole buffer"
_CUT_SHORT = "incomplete frame"

_ERROR_NUMBERS = 120
"""Java's reader takes the last of the 32-bit numbers for an error when a skippable frame lacks so many bytes."""
_READ_BYTES = (128 << 10) + 3
"""Java's reader takes so many compressed bytes at a time. When it reads again, it expects a whole frame."""

_MAGIC = 0xFD2FB528
_SKIPPABLE_MASK, _SKIPPABLE_MAGIC = 0xFFFFFFF0, 0x184D2A50
_NUMBER = Struct("<I")
_SINGLE_SEGMENT = 0x20
_CHECKSUM = 0x04
_DICTIONARY_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)
_BLOCK_HEADER_BYTES = 3
_LAST_BLOCK = 1
_REPEATED_BYTE = 1
_RESERVED = 3
"""Kinds of blocks."""


def compress(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(data: Buffer, limit_bytes: int) -> Buffer:
    """Raises BrokenStream, TooLargeDecompressed."""
    if not len(data):  # Java's reader has begun no frame, and does not miss one
        return b""
    size = min(max(_FIRST_GUESS * len(data), _LEAST_GUESS_BYTES), limit_bytes)
    while True:
        out = bytearray(size)
        try:
            del out[cramjam.zstd.decompress_into(data, out) :]
            return out
        except cramjam.DecompressionError as reason:
            if _OUTPUT_FULL not in str(reason):
                return _decompress_cut(memoryview(data), limit_bytes, str(reason))
            if size == limit_bytes:
                raise too_large(limit_bytes) from None
        size = min(size * _GROWTH, limit_bytes)


def _decompress_cut(data: memoryview, limit_bytes: int, reason: str) -> bytes:
    """The bytes before the place where the library fails for `reason`, if Java's reader takes it for the stream's end.

    The caller has seen that they are within the limit.
    """
    buffer = cramjam.Buffer()
    with suppress(cramjam.DecompressionError):
        cramjam.zstd.decompress_into(data, buffer)
    content = bytes(buffer)
    if _CUT_SHORT in reason:
        whole_end = _whole_frames_end(data, Room(limit_bytes))
        last_read = (len(data) - 1) // _READ_BYTES * _READ_BYTES
        if whole_end and (not last_read or last_read < whole_end) and not _lacks_too_much(data, whole_end):
            return content
    raise BrokenStream(f"zstd data: {reason}", content)


def _whole_frames_end(data: memoryview, room: Room) -> int:
    """Where the last frame ends that is whole; 0 when none is."""
    whole_end = 0
    while True:
        room.take_piece()
        end = _frame_end(data, whole_end, room)
        if end is None or end > len(data):
            return whole_end
        whole_end = end


def _lacks_too_much(data: memoryview, position: int) -> bool:
    """Whether the frame at `position`, which is cut short, lacks more bytes than Java's reader can count."""
    end = _frame_end(data, position, Room(0))
    return end is not None and end - len(data) >= (1 << 32) - _ERROR_NUMBERS


def _frame_end(data: memoryview, position: int, room: Room) -> int | None:
    """Where the frame at `position` ends, perhaps beyond the data; None where that cannot be told."""
    if position + 2 * _NUMBER.size > len(data):
        return None
    (magic,) = _NUMBER.unpack_from(data, position)
    position += _NUMBER.size
    if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
        (size,) = _NUMBER.unpack_from(data, position)
        return position + _NUMBER.size + int(size)
    if magic != _MAGIC:
        return None
    descriptor = data[position]
    size_code = descriptor >> 6
    single = bool(descriptor & _SINGLE_SEGMENT)
    position += 1 + _DICTIONARY_BYTES[descriptor & 3]
    position += 0 if single else 1  # the window's size
    position += _SIZE_BYTES[size_code] or int(single)
    while True:
        if position + _BLOCK_HEADER_BYTES > len(data):
            return None
        room.take_piece()
        header = int.from_bytes(data[position : position + _BLOCK_HEADER_BYTES], "little")
        kind = header >> 1 & 3
        if kind == _RESERVED:
            return None
        position += _BLOCK_HEADER_BYTES + (1 if kind == _REPEATED_BYTE else header >> 3)
        if header & _LAST_BLOCK:
            return position + (_NUMBER.size if descriptor & _CHECKSUM else 0)
