"""A broker process ends when the process that started it ends, in whatever way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_S = 20.0

PARENT = """
import os, signal, sys, threading, time
from tidelog.testing import Broker

broker = Broker(process=True, data=sys.argv[1])
{start}
print(broker.pid, flush=True)
{then}
"""


def run_parent(data: Path, start: str, then: str) -> tuple["subprocess.Popen[str]", int]:
    """A process that starts a broker and goes on with `then`; with the broker's pid."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(start=start, then=then), str(data)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def alive(pid: int) -> bool:
    """Whether it runs. A zombie does not: where nobody collects orphans, that is what remains."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are looked up in /proc")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", id="killed"),
        pytest.param("sys.exit(0)", id="exited without stopping it"),
    ],
)
def test_it_ends_with_its_parent(how: str, tmp_path: Path) -> None:
    parent, broker = run_parent(tmp_path / "data", "broker.start()", f"sys.stdin.readline(); {how}")
    assert alive(broker)
    assert parent.stdin is not None
    parent.stdin.write("\n")
    parent.stdin.flush()
    with parent:
        parent.wait(LIMIT_S)
    assert eventually(lambda: not alive(broker))


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_it_ends_though_a_fork_of_its_parent_lives_on(tmp_path: Path) -> None:
    """multiprocessing forks without exec, and such a process holds the pipe that the broker watches."""
    then = "child = os.fork(); child and print(child, flush=True); child or time.sleep(3600); sys.stdin.readline()"
    parent, broker = run_parent(tmp_path / "data", "broker.start()", then)
    assert parent.stdout is not None
    fork = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait(LIMIT_S)
        assert eventually(lambda: not alive(broker))
        assert alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        with parent:
            pass


def test_it_lives_on_when_the_thread_that_started_it_ends(tmp_path: Path) -> None:
    """Linux sends the parent-death signal when that thread ends, though the process lives."""
    start = "thread = threading.Thread(target=broker.start); thread.start(); thread.join()"
    then = "sys.stdin.readline(); broker.restart(); print(broker.pid, flush=True); sys.stdin.readline(); broker.stop()"
    parent, broker = run_parent(tmp_path / "data", start, then)
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent:
        # restart() raises, and prints no pid, if the broker had ended by itself.
        parent.stdin.write("\n")
        parent.stdin.flush()
        again = int(parent.stdout.readline())
        assert again != broker
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.wait(LIMIT_S) == 0
    assert not alive(again)
