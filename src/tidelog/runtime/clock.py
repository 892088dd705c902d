"""The machine's clocks."""

import time


class SystemClock:
    """Wall and monotonic time of this machine."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000
