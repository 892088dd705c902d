"""The worker process for long computations: started when it is needed, ended when it is not, whatever happens."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import child_harness
from tidelog.runtime import tasks
from tidelog.runtime.child_main import NICENESS
from tidelog.runtime.child_process import CALL, FRAME, RESULT
from tidelog.runtime.interfaces import ChildWork, Runtime, WorkEnded

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]
LIMIT_S = 20.0


async def done(runtime: Runtime, work: ChildWork, request: bytes = b"") -> list[bytes]:
    results: list[bytes] = []
    await runtime.tasks.run_in_child(work, runtime.disk, request, results.append)
    return results


def lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between open and read
        return False


async def ended(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while lives(pid):
        assert time.monotonic() < deadline, "the process lives on"
        await asyncio.sleep(0.01)


def test_results_come_in_order_from_one_process_of_low_priority(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        first = await done(runtime, child_harness.say, b"abc")
        second = await done(runtime, child_harness.say)
        assert first[1:] == [b"a", b"b", b"c"]
        assert first[:1] == second
        pid, niceness = map(int, first[0].split())
        assert pid != os.getpid()
        assert niceness == NICENESS
        await runtime.close()
        assert not lives(pid)

    run(test)


def test_it_has_a_disk_of_its_own(run: Run, tmp_path: Path) -> None:
    async def test(runtime: Runtime) -> None:
        assert await done(runtime, child_harness.write_file, str(tmp_path / "file").encode()) == []
        assert (tmp_path / "file").read_bytes() == b"written"

    run(test)


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (child_harness.raise_error, "planted"),
        (child_harness.die, "status -9"),
        (child_harness.send_nonsense, "invalid frame"),
    ],
)
def test_work_that_fails_is_told_and_the_next_goes_well(run: Run, work: ChildWork, reason: str) -> None:
    async def test(runtime: Runtime) -> None:
        with pytest.raises(WorkEnded, match=reason):
            await done(runtime, work)
        assert (await done(runtime, child_harness.say, b"x"))[1:] == [b"x"]

    run(test)


def test_a_request_too_large_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.runtime.child_process.REQUEST_BYTES_MAX", 10)

    async def test(runtime: Runtime) -> None:
        with pytest.raises(WorkEnded, match="too large"):
            await done(runtime, child_harness.say, bytes(11))

    run(test)


def test_a_call_that_is_cancelled_ends_the_process(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        begun: asyncio.Future[bytes] = runtime.tasks.future()
        working = runtime.tasks.run_in_child(child_harness.never_end, runtime.disk, b"", begun.set_result)
        pid = int(await begun)
        working.cancel()
        await ended(pid)
        assert (await done(runtime, child_harness.say, b"x"))[1:] == [b"x"]

    run(test)


def test_it_ends_when_it_has_had_nothing_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CHILD_IDLE_S", 0.05)

    async def test(runtime: Runtime) -> None:
        pid = int((await done(runtime, child_harness.say))[0].split()[0])
        await ended(pid)
        assert int((await done(runtime, child_harness.say))[0].split()[0]) != pid

    run(test)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("stopped", [False, True])
def test_it_dies_with_its_broker(stopped: bool) -> None:
    program = (
        "import asyncio, child_harness\n"
        "from tidelog.runtime.real import real_runtime\n"
        "async def main():\n"
        "    runtime = real_runtime()\n"
        "    show = lambda pid: print(pid.decode(), flush=True)\n"
        "    await runtime.tasks.run_in_child(child_harness.never_end, runtime.disk, b'', show)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as broker:
        assert broker.stdout is not None
        pid = int(broker.stdout.readline())
        assert lives(pid)
        if stopped and sys.platform == "linux":
            os.kill(pid, signal.SIGSTOP)
        broker.kill()
    asyncio.run(ended(pid))


def test_it_says_nothing_when_nobody_takes_its_results(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tidelog.runtime.child_main"]
    go_on = tmp_path / "go on"
    content = b"child_harness:report_again\n" + bytes(go_on)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(FRAME.pack(CALL, len(content)) + content)
        process.stdin.flush()
        assert process.stdout.read(FRAME.size)[:1] == RESULT
        process.stdout.close()
        go_on.touch()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT_S) == 0
