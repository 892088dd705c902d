"""The stream of a client that has gone, while what it asked for is brought to its end."""

from collections.abc import Sequence
from typing import Final

from tidelog.runtime.interfaces import Piece, Stream


class _Gone:
    """Takes every answer and sends none."""

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


GONE: Final[Stream] = _Gone()
