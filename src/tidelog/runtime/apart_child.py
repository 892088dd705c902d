"""The process of `apart`: takes calls from its standard input, one after the other, until that ends."""

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

from tidelog.runtime.apart import CALL, DONE, FAILED, FRAME, REQUEST_BYTES_MAX, RESULT
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.interfaces import Apart

NICENESS = 19
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "arm64": 30}
"""Numbers of the system call, by machine; only Linux has it."""
IOPRIO_IDLE = 3 << 13
PR_SET_PDEATHSIG = 1
CALL_BYTES_MAX = REQUEST_BYTES_MAX + 1024


def main() -> None:
    die_with_broker()
    lower_priority()
    gc.disable()  # plain work on bytes makes no cycles worth the search
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is for people
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    apart = Apart(LocalDisk(), time.monotonic, time.sleep)
    while True:
        answer(apart, calls.get(), results)


def read_calls(requests: IO[bytes], calls: "SimpleQueue[bytes]") -> None:
    """Until the broker closes the pipe or is gone: then this process ends at once, in the middle of its work."""
    while len(head := requests.read(FRAME.size)) == FRAME.size:
        kind, length = FRAME.unpack(head)
        if kind != CALL or length > CALL_BYTES_MAX or len(content := requests.read(length)) < length:
            break
        calls.put(content)
    os._exit(0)


def answer(apart: Apart, call: bytes, results: IO[bytes]) -> None:
    """Do one call and write what it gives."""

    def write(kind: bytes, content: bytes) -> None:
        try:
            results.write(FRAME.pack(kind, len(content)) + content)
            results.flush()
        except BrokenPipeError:
            os._exit(0)  # the broker is gone, and the next one's log is not the place to say so

    name, _, request = call.partition(b"\n")
    module, _, function = name.decode().partition(":")
    try:
        getattr(import_module(module), function)(apart, request, lambda content: write(RESULT, content))
    except Exception as error:
        write(FAILED, repr(error)[:1000].encode())
    else:
        write(DONE, b"")


def die_with_broker() -> None:
    """Where the system knows such a thing: also while stopped, or before `read_calls` has its turn. A broker that is
    gone by now has left a pipe that has ended.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lower_priority() -> None:
    """Take what the broker and everybody else leave of processor and disk, where the system knows such a thing."""
    with suppress(OSError):  # a container may forbid it: the work goes on at the priority it has
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        if hasattr(os, "SCHED_IDLE"):
            # Whoever wakes up takes the processor from it at once; niceness alone lets it finish its slice.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = IOPRIO_SET.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, IOPRIO_IDLE)


if __name__ == "__main__":
    main()
