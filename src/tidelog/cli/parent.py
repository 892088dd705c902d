"""Stop a broker when the program that started it has ended.

The parent keeps the write end of a pipe open and never writes. When the parent ends, even by kill -9, the kernel
closes that end, and the broker reads end-of-file. This works on every system.

A process that the parent forks inherits the write end and may live longer: forks made by Python close it at once
(`runtime/forks.py`). For other forks there is, on Linux, the kernel's parent-death signal. The kernel sends it when
the *thread* that started the broker ends, so the broker then checks whether its parent process has changed, and
stops only if it has.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def watch_parent(loop: asyncio.AbstractEventLoop, pipe: int, on_parent_end: Callable[[], object]) -> None:
    """Call `on_parent_end` on the loop once this process's parent has ended.

    `pipe` is the read end of the pipe, inherited from the parent.
    """
    parent = os.getppid()

    def on_end_of_file() -> None:
        loop.remove_reader(pipe)
        on_parent_end()

    def check_parent() -> None:
        if os.getppid() != parent:
            on_parent_end()

    loop.add_reader(pipe, on_end_of_file)
    if sys.platform == "linux":
        loop.add_signal_handler(signal.SIGUSR1, check_parent)
        import ctypes

        # Without prctl in the libc, only the pipe watches the parent.
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
