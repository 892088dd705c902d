"""gzip (RFC 1952). The reader behaves like Java's `GZIPInputStream`, which Kafka uses. A stream usually has one
member.

The reader accepts several members. After a member, it ignores bytes that do not begin another member. It also
ignores flags that RFC 1952 reserves.
"""

import zlib
from struct import Struct

import cramjam

from tidelog.wire.compression.limits import RemainingLimits, too_large
from tidelog.wire.primitives import BrokenStream, Buffer

_ONE_MEMBER = 16 + zlib.MAX_WBITS
_BARE_DEFLATE = -zlib.MAX_WBITS
_READ_BYTES = 8192
"""Number of compressed bytes that Java's reader reads from its source at a time (Kafka's GzipCompression)."""
_IGNORED_REST_BYTES = 18
"""If Java's reader has read all data from its source, and at most this many bytes follow a member, the reader ignores
these bytes. They are too few to contain another member."""

_MAGIC = b"\x1f\x8b\x08"  # the magic number, and 8 for the only compression method
_FLAGS_AT = 3
_HEADER_BYTES = 10
# Flags of a header: the optional fields that it contains.
_HEADER_CHECKSUM = 0x02
_EXTRA = 0x04
_NAME = 0x08
_COMMENT = 0x10
_SHORT = Struct("<H")
_TRAILER = Struct("<II")  # CRC-32 and size of the content


def compress(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=level))


def decompress(data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress a stream. Raises BrokenStream and TooLargeDecompressed."""
    inflater = zlib.decompressobj(_ONE_MEMBER)
    try:
        content = inflater.decompress(data, limit_bytes + 1)
    except zlib.error:
        return _decompress_members(bytes(data), limit_bytes)
    if len(content) > limit_bytes:
        raise too_large(limit_bytes)
    if inflater.eof and not inflater.unused_data:
        return content
    return _decompress_members(bytes(data), limit_bytes)


def _decompress_members(data: bytes, limit_bytes: int) -> bytes:
    """Decompress member by member, as Java's reader does."""
    limits = RemainingLimits(limit_bytes)
    parts: list[bytes] = []
    view = memoryview(data)
    position = _header_end(data, 0)
    if position is None:
        raise _broken("it does not begin with a gzip header", parts)
    read_end = position
    while True:
        limits.use_piece()
        inflater = zlib.decompressobj(_BARE_DEFLATE)
        checksum = size = 0
        while not inflater.eof:
            if position == read_end:
                read_end = min(position + _READ_BYTES, len(data))
            if position == read_end:
                raise _broken("it is cut short", parts)
            try:
                part = inflater.decompress(view[position:read_end], limits.bytes_left + 1)
            except zlib.error as reason:
                raise _broken(str(reason), parts) from reason
            limits.use_bytes(len(part))
            parts.append(part)
            checksum = zlib.crc32(part, checksum)
            size += len(part)
            position = read_end - len(inflater.unused_data)
        trailer_end = position + _TRAILER.size
        if trailer_end > len(data):
            raise _broken("its trailer is cut short", parts)
        if _TRAILER.unpack_from(data, position) != (checksum, size & 0xFFFFFFFF):
            raise _broken("its content does not match the checksum and size in the trailer", parts)
        if read_end == len(data) and len(data) - trailer_end <= _IGNORED_REST_BYTES:
            break
        next_content = _header_end(data, trailer_end)
        if next_content is None:
            break
        position = next_content
        read_end = max(read_end, position)
    return b"".join(parts)


def _header_end(data: bytes, position: int) -> int | None:
    """Return the position after the member header at `position`, or None if there is no valid header."""
    end = position + _HEADER_BYTES
    if end > len(data) or not data.startswith(_MAGIC, position):
        return None
    flags = data[position + _FLAGS_AT]
    if flags & _EXTRA:
        if end + _SHORT.size > len(data):
            return None
        end += _SHORT.size + _SHORT.unpack_from(data, end)[0]
    for field in (_NAME, _COMMENT):
        if flags & field:
            end = data.find(b"\0", end) + 1
            if not end:
                return None
    if flags & _HEADER_CHECKSUM:
        if end + _SHORT.size > len(data):
            return None
        if _SHORT.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[position:end]) & 0xFFFF:
            return None
        end += _SHORT.size
    return end if end <= len(data) else None


def _broken(reason: str, parts: list[bytes]) -> BrokenStream:
    return BrokenStream(f"gzip data: {reason}", b"".join(parts))
