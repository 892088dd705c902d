"""LZ4: one frame of independent blocks, as Kafka's own reader requires (`Lz4BlockInputStream`).

Frames are written with blocks of 64 KB, and only the header has a checksum. `decompress` checks the checksums of the
header and of blocks. It ignores the stated size and the checksum of the content, and everything after the frame,
even a second frame.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias

import cramjam

from tidelog.wire.compression.limits import pieces_max, too_large, too_many_pieces
from tidelog.wire.primitives import BrokenStream, Buffer

_MAGIC = bytes.fromhex("04224d18")
# 60: version 1 with independent blocks. 40: blocks up to 64 KB. 82: the checksum of the bytes 60 and 40.
_HEADER = _MAGIC + bytes.fromhex("60 40 82")
_END = bytes(4)
_BLOCK_BYTES = 64 * 1024
_STORED = 0x80000000
"""The bit of a block's size that marks an uncompressed block."""
_SIZE = Struct("<I")
_CONTENT_SIZE_BYTES = 8

# Bits of the descriptor's first byte.
_VERSION_MASK, _VERSION = 0xC0, 0x40
_INDEPENDENT = 0x20
_BLOCK_CHECKSUMS = 0x10
_CONTENT_SIZE = 0x08
_CONTENT_CHECKSUM = 0x04
_RESERVED = 0x03
_BLOCK_SIZES = {code << 4: 1 << (8 + 2 * code) for code in (4, 5, 6, 7)}
"""Largest block size by the second byte of the descriptor: 64 KB, 256 KB, 1 MB, 4 MB."""
_GROWTH_MAX = 255
"""A compressed block decompresses to at most this many times its size."""


class _Header(NamedTuple):
    end: int
    flags: int
    block_size_code: int
    """The byte of the descriptor that states the largest block size; a key of `_BLOCK_SIZES`."""


_STANDARD = _Header(len(_HEADER), _VERSION | _INDEPENDENT, _HEADER[len(_MAGIC) + 1])
_Block: TypeAlias = tuple[int, int, bool]
"""(start, end, whether it is stored uncompressed): positions in the compressed data."""


def compress(data: memoryview, level: int | None) -> bytes:
    """Compress `data` into one frame. `level`: None for the fast compressor."""
    return _compress_fast(data) if level is None else _compress_slow(data, level)


def _compress_slow(data: memoryview, level: int) -> bytes:
    """Compress with the slow compressor.

    The library offers the slow compressor only for whole frames. Therefore each block is compressed into a frame of
    its own and then copied from this frame. Other threads can run between the blocks.
    """
    parts: list[Buffer] = [_HEADER]
    for start in range(0, len(data), _BLOCK_BYTES):
        frame = memoryview(bytes(cramjam.lz4.compress(data[start : start + _BLOCK_BYTES], level=level)))
        (size,) = _SIZE.unpack_from(frame, len(_HEADER))
        end = len(_HEADER) + _SIZE.size + (size & ~_STORED)
        parts.append(frame[len(_HEADER) : end])
    parts.append(_END)
    return b"".join(parts)


def _compress_fast(data: memoryview) -> bytes:
    parts: list[Buffer] = [_HEADER]
    for start in range(0, len(data), _BLOCK_BYTES):
        content = data[start : start + _BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(content, store_size=False))
        if len(block) < len(content):
            parts += (_SIZE.pack(len(block)), block)
        else:
            parts += (_SIZE.pack(len(content) | _STORED), content)
    parts.append(_END)
    return b"".join(parts)


def decompress(data: memoryview, limit_bytes: int) -> Buffer:
    """Decompress a frame. Raises BrokenStream and TooLargeDecompressed."""
    header = _STANDARD if data[: len(_HEADER)] == _HEADER else _read_header(data)
    block_bytes_max = _BLOCK_SIZES[header.block_size_code]
    blocks, problem = _find_blocks(data, header, block_bytes_max, pieces_max(limit_bytes))
    if len(blocks) > pieces_max(limit_bytes):
        raise too_many_pieces(limit_bytes)
    output_bytes_max = 0
    for start, end, _ in blocks:
        output_bytes_max += min(block_bytes_max, _GROWTH_MAX * (end - start))
    out = bytearray(min(output_bytes_max, limit_bytes + block_bytes_max))
    view = memoryview(out)
    output_bytes = 0
    for start, end, stored in blocks:
        content = data[start:end]
        if header.flags & _BLOCK_CHECKSUMS:
            _check_block(data, start, end, stored, header.block_size_code, view[:output_bytes])
        if stored:
            view[output_bytes : output_bytes + len(content)] = content
            output_bytes += len(content)
        else:
            target = view[output_bytes : output_bytes + block_bytes_max]
            try:
                output_bytes += cramjam.lz4.decompress_block_into(content, target, output_len=len(target))
            except cramjam.DecompressionError as reason:
                raise _broken(str(reason), view[:output_bytes]) from reason
        if output_bytes > limit_bytes:
            raise too_large(limit_bytes)
    if problem is not None:
        raise _broken(problem, view[:output_bytes])
    # Copy the content if more than half of the buffer is unused, so that the buffer's memory can be freed.
    return view[:output_bytes] if 2 * output_bytes >= len(out) else bytes(view[:output_bytes])


def _read_header(data: memoryview) -> _Header:
    """Read the frame's header. Raises BrokenStream if Kafka's reader refuses it."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise _broken("it does not begin with the magic number of an LZ4 frame")
    start = len(_MAGIC)
    if len(data) < len(_HEADER):
        raise _broken("its header is cut short")
    flags, block_size_code = data[start], data[start + 1]
    if flags & _VERSION_MASK != _VERSION or flags & _RESERVED or block_size_code not in _BLOCK_SIZES:
        raise _broken(f"its header is invalid: flags {flags:#04x}, block size code {block_size_code:#04x}")
    end = start + 2 + (_CONTENT_SIZE_BYTES if flags & _CONTENT_SIZE else 0)
    if end >= len(data):
        raise _broken("its header is cut short")
    if _header_checksum(bytes(data[start:end])) != data[end]:
        raise _broken("the checksum of its header is wrong")
    if not flags & _INDEPENDENT:
        raise _broken("its blocks depend on each other; Kafka's clients cannot read such frames")
    return _Header(end + 1, flags, block_size_code)


def _find_blocks(
    data: memoryview, header: _Header, block_bytes_max: int, blocks_max: int
) -> tuple[list[_Block], str | None]:
    """Return the blocks of the frame (at most `blocks_max` + 1), and the error text if the frame is malformed."""
    blocks: list[_Block] = []
    checksum_bytes = _SIZE.size if header.flags & _BLOCK_CHECKSUMS else 0
    position = header.end
    while len(blocks) <= blocks_max:
        try:
            (size,) = _SIZE.unpack_from(data, position)
        except StructError:
            return blocks, "it is cut short"
        position += _SIZE.size
        stored = size >= _STORED
        size &= ~_STORED
        if not size:
            is_cut_short = header.flags & _CONTENT_CHECKSUM and len(data) - position < _SIZE.size
            return blocks, "the checksum of its content is cut short" if is_cut_short else None
        if size > block_bytes_max:
            return blocks, f"a block states {size} bytes, but at most {block_bytes_max} are allowed"
        if size + checksum_bytes > len(data) - position:
            return blocks, f"a block states {size} bytes, but {len(data) - position} are left"
        blocks.append((position, position + size, stored))
        position += size + checksum_bytes
    return blocks, None


def _check_block(
    data: memoryview, start: int, end: int, stored: bool, block_size_code: int, before: memoryview
) -> None:
    """Check the block from `start` to `end` against its checksum, which follows the block. Raises BrokenStream if
    the checksum is wrong.

    The library checks blocks only in whole frames. Therefore this function decompresses a frame with only this block.
    `before` contains the decompressed bytes of the earlier blocks.
    """
    descriptor = bytes((_VERSION | _INDEPENDENT | _BLOCK_CHECKSUMS, block_size_code))
    header = _MAGIC + descriptor + bytes((_header_checksum(descriptor),))
    size = _SIZE.pack(end - start | (_STORED if stored else 0))
    frame = b"".join((header, size, data[start : end + _SIZE.size], _END))
    try:
        cramjam.lz4.decompress_into(frame, bytearray(_BLOCK_SIZES[block_size_code]))
    except cramjam.DecompressionError as reason:
        raise _broken(f"a block is damaged: {reason}", before) from reason


def _header_checksum(descriptor: bytes) -> int:
    """Return the second byte of the XXH32 of `descriptor`, which has less than 16 bytes and an even length."""
    prime_1, prime_2, prime_3, prime_4, prime_5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF
    value = prime_5 + len(descriptor) & mask
    words = len(descriptor) // _SIZE.size
    for index in range(words):
        (word,) = _SIZE.unpack_from(descriptor, index * _SIZE.size)
        value = value + word * prime_3 & mask
        value = (value << 17 | value >> 15) * prime_4 & mask
    for byte in descriptor[words * _SIZE.size :]:
        value = value + byte * prime_5 & mask
        value = (value << 11 | value >> 21) * prime_1 & mask
    value = (value ^ value >> 15) * prime_2 & mask
    value = (value ^ value >> 13) * prime_3 & mask
    return (value ^ value >> 16) >> 8 & 0xFF


def _broken(reason: str, before: memoryview | bytes = b"") -> BrokenStream:
    return BrokenStream(f"lz4 data: {reason}", bytes(before))
