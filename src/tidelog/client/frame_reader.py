"""Split the bytes that arrive on a connection into frames. Pure: the owner of the connection receives the bytes.

Bytes are received into one small buffer that all frames share. A frame that does not fit into this buffer gets
memory of its own, and the rest of the frame is received directly into that memory.
"""

from tidelog.client.connection import SIZE_BYTES
from tidelog.client.errors import BrokenProtocol
from tidelog.wire.primitives import Buffer

SHARED_BYTES = 64 << 10
"""Size of the buffer that all small frames share, in bytes. One read from the network returns at most this many
bytes of small frames."""
FIRST_BYTES_MAX = 16 << 20
"""Upper bound, in bytes, on the memory that is allocated for a frame before the bytes of the frame arrive. The frame's
size comes from the peer, so memory beyond this bound is allocated only when the bytes arrive."""


class FrameReader:
    """Collects the frames of one connection. The caller stores incoming bytes in the memory that `get_buffer` returns,
    and then calls `received`.
    """

    __slots__ = ("_filled_bytes", "_frame_bytes_max", "_large", "_large_bytes", "_shared", "_spare")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._filled_bytes = 0  # in `_large` if a large frame is being received, otherwise in `_shared`
        self._large: bytearray | None = None
        self._large_bytes = 0  # the size of the large frame
        self._spare: bytearray | None = None  # the memory of an earlier large frame

    def get_buffer(self) -> memoryview:
        """Return the memory for the next incoming bytes; never empty."""
        if self._large is None:
            return self._shared[self._filled_bytes :]
        return memoryview(self._large)[self._filled_bytes : self._large_bytes]

    def received(self, count: int) -> list[Buffer]:
        """Process `count` bytes that were stored at the start of the memory that `get_buffer` returned last. Return the
        frames that are complete now, without their size fields.

        A frame stays valid as long as the caller refers to it or to a view of it. Raises BrokenProtocol for a size
        that is negative or beyond the limit.
        """
        self._filled_bytes += count
        return self._split_shared() if self._large is None else self._continue_large(self._large)

    def _split_shared(self) -> list[Buffer]:
        frames: list[Buffer] = []
        shared, end, position = self._shared, self._filled_bytes, 0
        while end - position >= SIZE_BYTES:
            start = position + SIZE_BYTES
            size = int.from_bytes(shared[position:start], "big", signed=True)
            if not 0 <= size <= self._frame_bytes_max:
                raise BrokenProtocol(
                    f"the peer sent a frame of {size} bytes, the limit is {self._frame_bytes_max}: "
                    "is the peer a broker, and is this its plaintext listener?"
                )
            if SIZE_BYTES + size > SHARED_BYTES and start + size > end:
                self._begin_large(size, shared[start:end])
                return frames
            if start + size > end:
                break
            position = start + size
            frames.append(bytes(shared[start:position]))
        self._filled_bytes = end - position
        if position and self._filled_bytes:
            shared[: self._filled_bytes] = bytes(shared[position:end])
        return frames

    def _begin_large(self, size: int, beginning: memoryview) -> None:
        memory, self._spare = self._spare, None
        if memory is None or len(memory) < size or not _has_no_views(memory):
            memory = bytearray(min(size, FIRST_BYTES_MAX))
        memory[: len(beginning)] = beginning
        self._large = memory
        self._large_bytes = size
        self._filled_bytes = len(beginning)

    def _continue_large(self, memory: bytearray) -> list[Buffer]:
        if self._filled_bytes < self._large_bytes:
            if self._filled_bytes == len(memory):
                larger_memory = bytearray(min(self._large_bytes, 2 * len(memory)))
                larger_memory[: len(memory)] = memory
                self._large = larger_memory
            return []
        frame = memoryview(memory)[: self._large_bytes]
        if len(memory) <= FIRST_BYTES_MAX:
            self._spare = memory  # allocating memory for each frame costs more than receiving into existing memory
        self._large = None
        self._filled_bytes = 0
        return [frame]


def _has_no_views(memory: bytearray) -> bool:
    """Return True if there is no memoryview of `memory`. Python refuses to resize memory that has views."""
    try:
        memory.pop()
    except BufferError:
        return False
    memory.append(0)
    return True
