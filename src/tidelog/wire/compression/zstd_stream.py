"""Zstandard (RFC 8878): one or several frames. Some of them may be skippable frames.

The reader behaves like `ZstdInputStream` of zstd-jni, which Kafka uses. If the data ends inside a frame, and the last
read (see `_READ_BYTES`) also contains the end of a complete frame, the reader accepts the stream as complete. The
result then includes the bytes that the incomplete frame has produced.
"""

from contextlib import suppress
from struct import Struct

import cramjam

from tidelog.wire.compression.limits import RemainingLimits, too_large
from tidelog.wire.primitives import BrokenStream, Buffer

_FIRST_GUESS = 4
"""The first output buffer is this many times as large as the compressed data."""
_GROWTH = 4
"""Each further output buffer is this many times as large as the previous one, which was too small."""
_LEAST_GUESS_BYTES = 16 * 1024

# Parts of the library's error messages.
_OUTPUT_FULL = "whole buffer"
_CUT_SHORT = "incomplete frame"

_ERROR_NUMBERS = 120
"""Java's reader interprets this many of the highest 32-bit numbers as error codes. If the number of missing
bytes of an incomplete skippable frame is one of these numbers, the reader raises an error."""
_READ_BYTES = (128 << 10) + 3
"""Number of compressed bytes that Java's reader reads at a time. If the data ends inside a frame, the reader accepts it
only if the last read also contains the end of a complete frame."""

_MAGIC = 0xFD2FB528
_SKIPPABLE_MASK, _SKIPPABLE_MAGIC = 0xFFFFFFF0, 0x184D2A50
_NUMBER = Struct("<I")
# Bits of the descriptor in a frame's header.
_SINGLE_SEGMENT = 0x20
_CHECKSUM = 0x04
# Sizes of two fields of the header. The index is the code that the descriptor contains for the field.
_DICTIONARY_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)

_BLOCK_HEADER_BYTES = 3
_LAST_BLOCK = 1
# Block types.
_REPEATED_BYTE = 1
_RESERVED = 3


def compress(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress a stream. Raises BrokenStream and TooLargeDecompressed."""
    if not len(data):  # Java's reader accepts empty data as a complete stream
        return b""
    size = min(max(_FIRST_GUESS * len(data), _LEAST_GUESS_BYTES), limit_bytes)
    while True:
        out = bytearray(size)
        try:
            del out[cramjam.zstd.decompress_into(data, out) :]
            return out
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                return _decompress_cut(memoryview(data), limit_bytes, str(error))
            if size == limit_bytes:
                raise too_large(limit_bytes) from None
        size = min(size * _GROWTH, limit_bytes)


def _decompress_cut(data: memoryview, limit_bytes: int, reason: str) -> bytes:
    """Return the decompressed bytes before the damage if Java's reader accepts the damaged stream as complete.

    `reason` is the library's error text. Raises BrokenStream if Java's reader refuses the stream. The caller has
    checked that the decompressed bytes are within the limit.
    """
    buffer = cramjam.Buffer()
    with suppress(cramjam.DecompressionError):
        cramjam.zstd.decompress_into(data, buffer)
    content = bytes(buffer)
    if _CUT_SHORT in reason:
        whole_end, cut_end = _whole_frames_end(data, RemainingLimits(limit_bytes))
        last_read = (len(data) - 1) // _READ_BYTES * _READ_BYTES
        lacks_too_much = cut_end is not None and cut_end - len(data) >= (1 << 32) - _ERROR_NUMBERS
        if whole_end and (not last_read or last_read < whole_end) and not lacks_too_much:
            return content
    raise BrokenStream(f"zstd data: {reason}", content)


def _whole_frames_end(data: memoryview, limits: RemainingLimits) -> tuple[int, int | None]:
    """Return the end of the last complete frame, or 0 if no frame is complete. Also return the position where the
    incomplete frame that follows would end, or None if this position cannot be determined.
    """
    whole_end = 0
    while True:
        limits.use_piece()
        end = _frame_end(data, whole_end, limits)
        if end is None or end > len(data):
            return whole_end, end
        whole_end = end


def _frame_end(data: memoryview, position: int, limits: RemainingLimits) -> int | None:
    """Return the end of the frame at `position`, or None if it cannot be determined. The end may be beyond the data."""
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
        limits.use_piece()
        header = int.from_bytes(data[position : position + _BLOCK_HEADER_BYTES], "little")
        block_type = header >> 1 & 3
        if block_type == _RESERVED:
            return None
        position += _BLOCK_HEADER_BYTES + (1 if block_type == _REPEATED_BYTE else header >> 3)
        if header & _LAST_BLOCK:
            return position + (_NUMBER.size if descriptor & _CHECKSUM else 0)
