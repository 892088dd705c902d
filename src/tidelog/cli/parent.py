"""Stop a broker when the program that started it has ended.

The parent holds the write end of a pipe open and never writes. When the parent ends, even by kill -9, the kernel
closes the write end, and the broker reads end-of-file. This works on every system.

The pipe alone is not enough: a process that the parent forks inherits the write end and may live longer than the
parent. A process that Python forks closes the write end at once (`runtime/forks.py`). A process that other code forks
may keep it open. Therefore a broker on Linux also uses the parent-death signal. The kernel sends this signal to the
broker when the *thread* that started the broker ends, even if the thread's process continues. So the broker stops at
this signal only if its parent process has changed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def watch_parent(loop: asyncio.AbstractEventLoop, pipe: int, on_parent_end: Callable[[], object]) -> None:
    """Call `on_parent_end` on the loop when this process's parent has ended.

    `pipe` is the read end of the pipe, which this process has inherited from the parent.
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

        # If the libc has no prctl, only the pipe reports the end of the parent.
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
