"""The five codecs of record batches, in the framings that Kafka's clients read and write.

gzip and zstd: their own streams. LZ4: the frame format, blocks of 64 KB that do not depend on each other, because the
Java client reads no others. Snappy: written as the Java client does, in xerial's framing (a header, then blocks with
their sizes); read in that or bare, as librdkafka writes it.

Decompression stops at a limit, whatever the stream claims: a few KB can say that they are gigabytes.
"""

from struct import Struct, error
from typing import TYPE_CHECKING, Any

import cramjam

from tidelog.wire.batches import Codec
from tidelog.wire.primitives import Buffer, MalformedMessage, TooLargeDecompressed

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_GUESS = 4
_GROWTH = 4
_LEAST_GUESS_BYTES = 16 * 1024

# Magic, version 1 with independent blocks, blocks up to 64 KB, and the header's checksum.
_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
_LZ4_END = bytes(4)
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_SIZE = Struct("<I")
_LZ4_FRAME_HEADER_BYTES = 7

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + Struct(">ii").pack(1, 1)  # version, and the oldest that can read it
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_SIZE = Struct(">i")


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """`data` in the codec's framing; `data` itself for Codec.NONE.

    `level`: None for the library's default; gzip 1 to 9, lz4 1 to 17 (the slow kind of lz4), zstd -131072 to 22.
    """
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=level))
    if codec == Codec.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == Codec.LZ4:
        return _compress_lz4(memoryview(data)) if level is None else _compress_lz4_slowly(memoryview(data), level)
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    raise ValueError(f"compression codec {codec} is not known")


def decompress(codec: int, data: Buffer, limit_bytes: int) -> Buffer:
    """What `compress` was given; `data` itself for Codec.NONE.

    Raises TooLargeDecompressed above `limit_bytes`, MalformedMessage for broken data or an unknown codec.
    """
    if codec == Codec.NONE:
        return data
    try:
        if codec == Codec.GZIP:
            return _decompress_growing(cramjam.gzip.decompress_into, data, limit_bytes)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), limit_bytes)
        if codec == Codec.LZ4:
            return _decompress_growing(cramjam.lz4.decompress_into, data, limit_bytes)
        if codec == Codec.ZSTD:
            return _decompress_growing(cramjam.zstd.decompress_into, data, limit_bytes)
    except (cramjam.DecompressionError, error) as reason:
        raise MalformedMessage(f"{Codec(codec).name.lower()} data: {reason}") from reason
    raise MalformedMessage(f"compression codec {codec} is not known")


def _decompress_growing(into: "Callable[[Any, Any], int]", data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress into a buffer that grows until it suffices or reaches the limit.

    The library reports a full buffer and broken data alike, so that broken data costs a few attempts.
    """
    size = min(max(_FIRST_GUESS * len(data), _LEAST_GUESS_BYTES), limit_bytes)
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: into(data, out)]
        except cramjam.DecompressionError as reason:
            if size == limit_bytes:
                if "whole buffer" in str(reason):
                    raise TooLargeDecompressed(f"decompressed, the data exceeds {limit_bytes} bytes") from None
                raise
        size = min(size * _GROWTH, limit_bytes)


def _compress_lz4_slowly(data: memoryview, level: int) -> bytes:
    """The slow kind, which the library has for whole frames only: of each block one, and its content is taken out.

    Other threads run between the blocks.
    """
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        frame = memoryview(bytes(cramjam.lz4.compress(data[start : start + _LZ4_BLOCK_BYTES], level=level)))
        (size,) = _LZ4_SIZE.unpack_from(frame, _LZ4_FRAME_HEADER_BYTES)
        end = _LZ4_FRAME_HEADER_BYTES + _LZ4_SIZE.size + (size & ~_LZ4_STORED)
        parts.append(frame[_LZ4_FRAME_HEADER_BYTES:end])
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_lz4(data: memoryview) -> bytes:
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_XERIAL_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit_bytes: int) -> Buffer:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit_bytes)
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise MalformedMessage("snappy data: cut short")
    parts: list[Buffer] = []
    while position < len(data):
        (size,) = _XERIAL_SIZE.unpack_from(data, position)
        position += _XERIAL_SIZE.size
        if not 0 <= size <= len(data) - position:
            raise MalformedMessage("snappy data: a block is cut short")
        parts.append(_decompress_snappy_block(data[position : position + size], limit_bytes))
        limit_bytes -= len(parts[-1])
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, limit_bytes: int) -> Buffer:
    """Bare snappy begins with its decompressed size."""
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit_bytes:
        raise TooLargeDecompressed(f"decompressed, the data exceeds its limit by {size - limit_bytes} bytes")
    out = bytearray(size)
    return memoryview(out)[: cramjam.snappy.decompress_raw_into(block, out)]
