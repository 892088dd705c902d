"""Functions that a worker process runs. It imports each of them by its name."""

import os
import time
from collections.abc import Callable

from tidelog.runtime.interfaces import ChildResources


def say(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    """Report the process id and its niceness, then the request byte by byte."""
    print("a printed line must not disturb the results")
    report(b"%d %d" % (os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)))
    for byte in request:
        report(bytes([byte]))


def write_file(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    resources.disk.write_atomic(request.decode(), b"written")


def raise_error(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    report(b"begun")
    raise RuntimeError("planted")


def die(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    os.kill(os.getpid(), 9)


def never_end(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    report(b"%d" % os.getpid())
    while True:
        time.sleep(1)


def report_again(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    """Report the process id, then wait until the file that the request names exists, and report again."""
    report(b"%d" % os.getpid())
    while not resources.disk.exists(request.decode()):
        time.sleep(0.001)
    try:
        report(b"again")
    except OSError as error:
        report(str(error).encode())


def send_nonsense(resources: ChildResources, request: bytes, report: Callable[[bytes], None]) -> None:
    report(bytes(2 << 20))
