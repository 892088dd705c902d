"""The child process of `tidelog.runtime.child_process`: runs the calls from its standard input, one at a time."""

import gc
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import IO

from tidelog.runtime.child_process import CALL, DONE, FAILED, FRAME, REQUEST_BYTES_MAX, RESULT
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.interfaces import ChildResources

NICENESS = 19
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "arm64": 30}
"""The number of the Linux system call ioprio_set, by machine type."""
IOPRIO_IDLE = 3 << 13
"""The class "idle", as ioprio_set expects it: disk time is used only when no other process needs it."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(): the kernel sends this process a signal when its parent ends."""
CALL_BYTES_MAX = REQUEST_BYTES_MAX + 1024
"""Upper bound on the content of a call, in bytes: the name of the function and the request."""


def main() -> None:
    die_with_broker()
    lower_priority()
    gc.disable()  # work on bytes creates almost no reference cycles
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # print() in a call writes to standard error, because `results` may contain only frames
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    resources = ChildResources(LocalDisk(), time.monotonic, time.sleep)
    while True:
        answer(resources, calls.get(), results)


def read_calls(requests: IO[bytes], calls: "SimpleQueue[bytes]") -> None:
    """Queue calls until the broker closes the pipe or is killed. Then exit at once, even in the middle of a call."""
    while len(head := requests.read(FRAME.size)) == FRAME.size:
        kind, length = FRAME.unpack(head)
        if kind != CALL or length > CALL_BYTES_MAX or len(content := requests.read(length)) < length:
            break
        calls.put(content)
    os._exit(0)


def answer(resources: ChildResources, call: bytes, results: IO[bytes]) -> None:
    """Run one call and write its results."""

    def write(kind: bytes, content: bytes) -> None:
        try:
            results.write(FRAME.pack(kind, len(content)) + content)
            results.flush()
        except BrokenPipeError:
            # The broker was killed. Exit without a message, since a new broker may use the same standard error.
            os._exit(0)

    name, _, request = call.partition(b"\n")
    module, _, function = name.decode().partition(":")
    try:
        getattr(import_module(module), function)(resources, request, lambda content: write(RESULT, content))
    except Exception as error:
        write(FAILED, repr(error)[:1000].encode())
    else:
        write(DONE, b"")


def die_with_broker() -> None:
    """Ask Linux to kill this process when the broker's process ends.

    Linux does so even while this process is stopped (SIGSTOP), and even before `read_calls` runs. If the broker ended
    before `die_with_broker` was called, `read_calls` finds the pipe closed.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lower_priority() -> None:
    """Use only CPU and disk time that other processes leave idle, where the operating system supports it."""
    with suppress(OSError):  # a container may forbid this; the work then runs at normal priority
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        if hasattr(os, "SCHED_IDLE"):
            # With SCHED_IDLE, any other process that wakes up preempts this process at once. With niceness alone, this
            # process would first finish its time slice.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = IOPRIO_SET.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, IOPRIO_IDLE)


if __name__ == "__main__":
    main()
