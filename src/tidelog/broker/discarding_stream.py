"""A stream that discards all responses. It replaces the stream of a disconnected client whose requests are still
running.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.runtime.interfaces import Piece, Stream


class _DiscardingStream:
    """Accepts every response and sends none."""

    peer = local = ""
    backlog_bytes = 0

    def write(self, pieces: Sequence[Piece]) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        pass


DISCARDING_STREAM: Final[Stream] = _DiscardingStream()
