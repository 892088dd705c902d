"""Snappy. The writer uses xerial's framing, as the Java client does: a header, and then chunks. In front of each chunk
is a field with its size.

The reader accepts both this framing and bare snappy, which librdkafka writes. It behaves like Java's
`SnappyInputStream`: the header may repeat between chunks, and up to three bytes after the last chunk are ignored.
"""

from struct import Struct

import cramjam

from tidelog.wire.compression.limits import PIECES_MIN, pieces_max, too_large, too_many_pieces
from tidelog.wire.primitives import BrokenStream, Buffer

_MAGIC = b"\x82SNAPPY\x00"
_VERSIONS = Struct(">ii")  # the version of the writer, and the oldest reader version that can read the stream
_HEADER = _MAGIC + _VERSIONS.pack(1, 1)
_CHUNK_BYTES = 32 * 1024
_SIZE = Struct(">i")
_SIZE_BYTES = _SIZE.size
_GROWTH_MAX = 22
"""A block decompresses to at most this many times its size: an element of three bytes copies at most 64 bytes."""
_HEADER_AS_SIZE = _SIZE.unpack_from(_MAGIC)[0]
"""The first four bytes of the header, read as a chunk size. If a chunk size has this value, it is not a size: a
repeated header begins there."""


def compress(data: memoryview) -> bytes:
    parts = [_HEADER]
    for start in range(0, len(data), _CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _CHUNK_BYTES]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)


def decompress(data: memoryview, limit_bytes: int) -> Buffer:
    """Decompress a stream. Raises BrokenStream and TooLargeDecompressed."""
    if len(data) < len(_HEADER) or data[: len(_MAGIC)] != _MAGIC:
        return _decompress_block(data, limit_bytes)
    end = len(data)
    pieces = 0
    bytes_left = limit_bytes
    parts: list[Buffer] = []
    position = len(_HEADER)  # Java's reader ignores the versions in the first header
    while end - position >= _SIZE_BYTES:
        pieces += 1
        if pieces > PIECES_MIN and pieces > pieces_max(limit_bytes):
            raise too_many_pieces(limit_bytes)
        (size,) = _SIZE.unpack_from(data, position)
        if size == _HEADER_AS_SIZE:
            _check_header(data, position)
            position += len(_HEADER)
            continue
        position += _SIZE_BYTES
        if not 0 < size <= end - position:
            raise _broken(f"a chunk states {size} bytes, but {end - position} are left")
        part = _decompress_block(data[position : position + size], bytes_left)
        position += size
        if position == end and not parts:
            return part
        bytes_left -= len(part)
        parts.append(part)
    return b"".join(parts)


def _check_header(data: memoryview, position: int) -> None:
    """Check a repeated header. Raises BrokenStream.

    At a header with a damaged magic number, one read of Java's reader reports the end of the stream, but the next read
    continues after this header. So such a header is skipped here.
    """
    end = position + len(_HEADER)
    if end > len(data):
        raise _broken("a header between chunks is cut short")
    if data[position : position + len(_MAGIC)] == _MAGIC:
        version, _ = _VERSIONS.unpack_from(data, position + len(_MAGIC))
        if version < 1:
            raise _broken(f"a header between chunks states version {version}")


def _decompress_block(block: memoryview, limit_bytes: int) -> Buffer:
    """Decompress one block of bare snappy, which begins with its decompressed size."""
    if not block:
        raise _broken("it is empty")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > limit_bytes:
            if size > _GROWTH_MAX * len(block):
                raise _broken(f"a chunk of {len(block)} bytes states that it decompresses to {size} bytes")
            raise too_large(limit_bytes)
        out = bytearray(size)
        return memoryview(out)[: cramjam.snappy.decompress_raw_into(block, out)]
    except cramjam.DecompressionError as reason:
        raise _broken(str(reason)) from reason


def _broken(reason: str) -> BrokenStream:
    """Return the exception. Java's reader reads ahead, so it loses the bytes before the damage. Therefore `before` of
    the exception is empty.
    """
    return BrokenStream(f"snappy data: {reason}", b"")
