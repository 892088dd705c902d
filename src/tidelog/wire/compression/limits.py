"""Limits of decompression: the decompressed size of a stream, and the number of its pieces."""

from tidelog.wire.primitives import TooLargeDecompressed

BYTES_PER_PIECE = 256
"""A stream's size limit, divided by this, is the maximum number of its pieces (members, frames, chunks or blocks). The
number of pieces is limited because millions of empty pieces would cost time, although they add no bytes."""
PIECES_MIN = 64
"""Every stream may have this many pieces, even if its size limit is small."""


class RemainingLimits:
    """The numbers of bytes and pieces that a stream may still produce."""

    __slots__ = ("_limit_bytes", "_pieces_left", "bytes_left")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces_left = pieces_max(limit_bytes)
        self.bytes_left = limit_bytes

    def use_bytes(self, count: int) -> None:
        """Count decompressed bytes. Raises TooLargeDecompressed if all bytes counted up to now exceed the limit."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise too_large(self._limit_bytes)

    def use_piece(self) -> None:
        """Count one member, frame, chunk or block. Raises TooLargeDecompressed if the stream has too many pieces."""
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise too_many_pieces(self._limit_bytes)


def pieces_max(limit_bytes: int) -> int:
    """Return the maximum number of members, frames, chunks or blocks of a stream whose size limit is `limit_bytes`."""
    return max(PIECES_MIN, limit_bytes // BYTES_PER_PIECE)


def too_many_pieces(limit_bytes: int) -> TooLargeDecompressed:
    return TooLargeDecompressed(f"the compressed data has more than {pieces_max(limit_bytes)} pieces")


def too_large(limit_bytes: int) -> TooLargeDecompressed:
    return TooLargeDecompressed(f"decompressed, the data exceeds {limit_bytes} bytes")
