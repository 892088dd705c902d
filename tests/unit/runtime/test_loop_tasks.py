"""Tasks and blocking calls on a real loop."""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.tasks import IO_THREADS_MAX, LoopTasks

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]


def our_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tidelog-"))


def test_a_spawned_task_lives_without_a_reference(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        done = runtime.tasks.future()
        gate = runtime.tasks.future()

        async def work() -> None:
            await gate
            done.set_result("done")

        runtime.tasks.spawn(work(), name="work")
        await asyncio.sleep(0)
        gc.collect()
        gate.set_result(None)
        assert await done == "done"

    run(test)


def test_a_failure_that_nobody_awaits_is_logged_with_its_name(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(runtime: Runtime) -> None:
        async def fail(text: str) -> None:
            raise RuntimeError(text)

        runtime.tasks.spawn(fail("planted"), name="flusher")
        awaited = runtime.tasks.spawn(fail("awaited"), name="watched")
        with pytest.raises(RuntimeError, match="awaited"):
            await awaited
        gate = runtime.tasks.future()

        async def fail_later() -> None:
            await gate
            raise RuntimeError("waited for")

        waited = runtime.tasks.spawn(fail_later(), name="arrival")
        runtime.tasks.call_soon(gate.set_result, None)
        await asyncio.wait((waited,))
        with pytest.raises(RuntimeError, match="waited for"):
            waited.result()
        cancelled = runtime.tasks.spawn(asyncio.sleep(60), name="sleeper")
        cancelled.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        records = [record for record in caplog.records if record.name == "tidelog.tasks"]
        assert [(record.levelno, record.exc_info is not None) for record in records] == [(logging.ERROR, True)]
        assert "name=flusher" in records[0].getMessage()
        assert "planted" in records[0].getMessage()
        gc.collect()  # asyncio must have nothing to add

    run(test)


def test_timers_and_sleeps(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        fired: list[str] = []
        runtime.tasks.call_later(0.01, fired.append, "later")
        runtime.tasks.call_later(0.005, fired.append, "never").cancel()
        runtime.tasks.call_soon(fired.append, "soon")
        start = runtime.clock.monotonic()
        await runtime.tasks.sleep(0.02)
        assert runtime.clock.monotonic() - start >= 0.015  # uvloop counts in milliseconds
        assert fired == ["soon", "later"]

    run(test)


def test_blocking_calls_run_on_a_few_named_threads(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        assert our_threads() == []
        barrier = threading.Barrier(IO_THREADS_MAX, timeout=20)

        def meet() -> str:
            barrier.wait()
            return threading.current_thread().name

        names = await asyncio.gather(*(runtime.tasks.run_blocking(meet) for _ in range(IO_THREADS_MAX * 3)))
        assert sorted(set(names)) == our_threads() == [f"tidelog-io-{number}" for number in range(IO_THREADS_MAX)]
        await runtime.tasks.close()
        assert our_threads() == []
        with pytest.raises(RuntimeError):
            runtime.tasks.run_blocking(meet)

    run(test)


def test_one_call_after_the_other_needs_one_thread(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        for value in range(10):
            assert await runtime.tasks.run_blocking(lambda a, b: a + b, value, 1) == value + 1
        assert our_threads() == ["tidelog-io-0"]

    run(test)


def test_a_lane_keeps_order_on_its_own_thread(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        seen: list[tuple[int, str]] = []

        def note(number: int) -> None:
            seen.append((number, threading.current_thread().name))

        calls = [runtime.tasks.run_blocking(note, number, lane="store") for number in range(20)]
        await calls[-1]
        assert seen == [(number, "tidelog-store-0") for number in range(20)]

    run(test)


def test_errors_of_blocking_calls_reach_who_awaits(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        def fail(error: BaseException) -> None:
            raise error

        for error, seen in (
            (OSError(5, "planted"), OSError),
            (StopIteration(), RuntimeError),
            (ValueError("planted"), ValueError),
        ):
            with pytest.raises(seen):
                await runtime.tasks.run_blocking(fail, error)

    run(test)


def test_a_cancelled_call_is_not_started(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        gate = threading.Event()
        started: list[int] = []
        first = runtime.tasks.run_blocking(gate.wait, lane="store")
        second = runtime.tasks.run_blocking(started.append, 2, lane="store")
        third = runtime.tasks.run_blocking(started.append, 3, lane="store")
        second.cancel()
        gate.set()
        await asyncio.gather(first, third)
        assert started == [3]

    run(test)


def test_close_cancels_tasks_and_waits_for_blocking_calls(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        ended: list[str] = []
        gate = threading.Event()

        async def service() -> None:
            try:
                await runtime.tasks.sleep(3600)
            finally:
                await asyncio.sleep(0)
                ended.append("service")
                gate.set()

        def write() -> None:
            assert gate.wait(20)
            ended.append("write")

        runtime.tasks.spawn(service(), name="service")
        runtime.tasks.run_blocking(write)
        await asyncio.sleep(0)
        await runtime.close()
        assert ended == ["service", "write"]
        assert our_threads() == []

    run(test)


def test_a_task_may_close_its_own_runtime(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        await runtime.tasks.spawn(runtime.close(), name="closer")
        assert our_threads() == []

    run(test)


def test_a_forgotten_close_does_not_keep_the_process_alive() -> None:
    script = (
        "import asyncio\nfrom tidelog.runtime.real import real_runtime\n"
        "async def main():\n    print(await real_runtime().tasks.run_blocking(abs, -3))\nasyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "3\n"


def test_threads_and_queues_are_not_made_before_they_are_needed() -> None:
    loop = asyncio.new_event_loop()
    try:
        tasks = LoopTasks(loop)
        assert our_threads() == []
        loop.run_until_complete(tasks.close())
    finally:
        loop.close()
