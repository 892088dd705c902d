"""A broker that must not outlive the program that started it.

The parent keeps the writing end of a pipe and never writes; the kernel closes it however the parent ends, kill -9
included, and the broker sees the end of file. That works on every system. A process that the parent forks inherits the
writing end and may live on: Python's forks close it at once (`runtime/forks.py`). For forks that do not go through
Python there is, on Linux, the kernel's parent-death signal. That signal comes when the *thread* that started the broker
ends, so it means only "look again": the broker goes when it has been handed to another parent.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def watch_parent(loop: asyncio.AbstractEventLoop, pipe: int, gone: Callable[[], object]) -> None:
    """Call `gone` on the loop once this process's parent has ended. `pipe` is the reading end, inherited from it."""
    parent = os.getppid()

    def end_of_file() -> None:
        loop.remove_reader(pipe)
        gone()

    def look_again() -> None:
        if os.getppid() != parent:
            gone()

    loop.add_reader(pipe, end_of_file)
    if sys.platform == "linux":
        loop.add_signal_handler(signal.SIGUSR1, look_again)
        import ctypes

        # A libc without prctl leaves the pipe alone on watch.
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
