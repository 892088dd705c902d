"""How much a stream may decompress to, and out of how many pieces."""

from tidelog.wire.primitives import TooLargeDecompressed

PIECE_BYTES = 256
"""A stream may have one piece for so many bytes of its limit: millions of empty ones cost time, and no bytes."""
PIECES_MIN = 64


class Room:
    """What is left of a stream's limits."""

    __slots__ = ("_limit_bytes", "_pieces_left", "bytes_left")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces_left = pieces_max(limit_bytes)
        self.bytes_left = limit_bytes

    def take_bytes(self, count: int) -> None:
        """Raises TooLargeDecompressed when they are more than what is left."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise too_large(self._limit_bytes)

    def take_piece(self) -> None:
        """Count one member, frame, chunk or block. Raises TooLargeDecompressed when there are too many."""
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise too_many_pieces(self._limit_bytes)


def pieces_max(limit_bytes: int) -> int:
    """The most members, frames, chunks or blocks of a stream."""
    return max(PIECES_MIN, limit_bytes // PIECE_BYTES)


def too_many_pieces(limit_bytes: int) -> TooLargeDecompressed:
    return TooLargeDecompressed(f"the compressed data has more than {pieces_max(limit_bytes)} pieces")


def too_large(limit_bytes: int) -> TooLargeDecompressed:
    return TooLargeDecompressed(f"decompressed, the data exceeds {limit_bytes} bytes")
