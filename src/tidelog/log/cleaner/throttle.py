"""Limit the rate of a pass's reads and writes."""

from collections.abc import Callable

INTERVAL_S = 0.1
"""Interval in seconds. The rate is checked again when the bytes that were counted since the last check reach the number
that is allowed in this interval. Smaller bursts are not slowed down."""


class Throttle:
    """Limits a rate. `count` adds bytes, and sleeps if the rate since the last check was too high."""

    __slots__ = ("_began", "_bytes", "_bytes_per_s", "_monotonic", "_sleep")

    def __init__(self, bytes_per_s: float, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._bytes_per_s = max(bytes_per_s, 1.0)
        self._monotonic = monotonic
        self._sleep = sleep
        self._began = monotonic()
        self._bytes = 0

    def count(self, byte_count: int) -> None:
        self._bytes += byte_count
        needed_s = self._bytes / self._bytes_per_s
        if needed_s < INTERVAL_S:
            return
        now = self._monotonic()
        passed_s = now - self._began
        if needed_s > passed_s:
            self._sleep(needed_s - passed_s)
            now = self._monotonic()
        self._began = now
        self._bytes = 0
