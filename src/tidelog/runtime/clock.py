"""The machine's clocks."""

import time
from collections.abc import Callable
from functools import partial


def monotonic_clock() -> Callable[[], float]:
    """Return the function for `Clock.monotonic`.

    On Linux, CLOCK_MONOTONIC stops while the machine is suspended. But if the metadata store is on other machines, the
    leases in it expire during this time. After the suspension, a broker would rely on a lease that another broker may
    have now. CLOCK_BOOTTIME does not stop. On other systems, Python has no such clock.
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
