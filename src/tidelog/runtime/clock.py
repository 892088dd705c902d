"""The machine's clocks."""

import time
from collections.abc import Callable
from functools import partial


def monotonic_clock() -> Callable[[], float]:
    """Return the function for `Clock.monotonic`.

    On Linux, CLOCK_MONOTONIC stops while the machine sleeps or is suspended, but the leases in a store on other
    machines do not. After such a time, a broker would rely on a lease that another broker has. CLOCK_BOOTTIME does not
    stop. Other systems have no such clock in Python.
    """
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


class SystemClock:
    """Wall and monotonic time of this machine."""

    __slots__ = ()

    monotonic = staticmethod(monotonic_clock())

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000
