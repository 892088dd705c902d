"""A limit on log lines that would be repeated for every request, for example while a disk is full."""

from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 60.0
"""In this time, in seconds, at most one line of each kind is written."""


class LogLimit:
    """Decides which lines of one kind are written."""

    __slots__ = ("_monotonic", "_next_s")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` returns monotonic seconds."""
        self._monotonic = monotonic
        self._next_s = float("-inf")

    def admits_line(self) -> bool:
        """Return whether a line may be written now. If so, the next line may be written after PERIOD_S."""
        now_s = self._monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + PERIOD_S
        return True
