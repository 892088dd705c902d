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
    """Return the Python processes of the executors."""
    return sorted(
        pid
        for executor in executors(driver)
        for pid, command in descendants(executor).items()
        if PYTHON_WORKER in command
    )


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
