"""Processes of a driver on Linux: find them by their command lines, and kill them."""

import os
import signal
from contextlib import suppress
from pathlib import Path

EXECUTOR = b"CoarseGrainedExecutorBackend"
PYTHON_WORKER = b"pyspark.worker"


def descendants(root: int) -> dict[int, bytes]:
    """Return the processes below `root`, each with its command line."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
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
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
