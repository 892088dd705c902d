"""Processes of a driver on Linux: find them by their command lines, and kill them."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

EXECUTOR = b"CoarseGrainedExecutorBackend"
PYTHON_WORKER = b"pyspark.worker"
ENDED = "ZX"
"""States of a process that has ended, and that its parent has not waited for."""
END_LIMIT_S = 120
"""Upper bound on the time in which killed processes end, in seconds."""


def descendants(root: int) -> dict[int, bytes]:
    """Return the processes below `root` that have not ended, each with its command line."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid = int(folder.name)
            state, parent = _state_and_parent(pid)
            if state not in ENDED:
                parents[pid] = parent
                commands[pid] = (folder / "cmdline").read_bytes()
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below and pid not in below}:
        below |= more
    return {pid: commands[pid] for pid in below if pid != root and pid in commands}


def executors(driver: int) -> list[int]:
    return sorted(pid for pid, command in descendants(driver).items() if EXECUTOR in command)


def python_workers(driver: int) -> list[int]:
    """Return the Python processes of the executors.

    Not all of them are descendants of an executor: if a daemon that forks workers fails, its workers continue. So they
    are recognised by the driver's directory in their environment.
    """
    workers = []
    with suppress(OSError):
        directory = b"PWD=" + os.fsencode((Path("/proc") / str(driver) / "cwd").readlink())
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_worker = PYTHON_WORKER in (folder / "cmdline").read_bytes()
                if is_worker and directory in (folder / "environ").read_bytes().split(b"\0"):
                    workers.append(int(folder.name))
    return sorted(workers)


def driver_processes(driver: int) -> list[int]:
    """Return the driver and the processes that it started, without the executors and their Python workers."""
    of_executors = set(executors(driver))
    for executor in list(of_executors):
        of_executors |= set(descendants(executor))
    return [driver, *(pid for pid in descendants(driver) if pid not in of_executors)]


def kill(pids: list[int]) -> None:
    """Send SIGKILL to the processes, and wait until they have ended. On a busy machine a process may live for some time
    after the signal, and then looks like one that can be killed.
    """
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_LIMIT_S
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"the processes {alive} were killed, and have not ended"
        time.sleep(0.01)


def _state_and_parent(pid: int) -> tuple[str, int]:
    """Return the state of a process, a letter, and its parent. Raises OSError if there is no such process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])


def _is_alive(pid: int) -> bool:
    try:
        return _state_and_parent(pid)[0] not in ENDED
    except OSError:
        return False
