"""Virtual time: order, jumps, and the error when nothing can happen any more."""

import asyncio

import pytest

from tidelog.simulation import loop as loop_module
from tidelog.simulation.loop import Deadlock, Livelock, SimLoop, TimeIsUp


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop()


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert loop.run_until_complete(main()) == 86_400
    loop.close()


def test_equal_times_fire_in_the_order_of_their_making(loop: SimLoop) -> None:
    fired: list[int] = []

    async def main() -> None:
        for number in range(200):
            loop.call_at(1.0, fired.append, number)
        loop.call_at(0.5, fired.append, -1)
        cancelled = loop.call_at(0.7, fired.append, -2)
        loop.call_soon(fired.append, -3)
        cancelled.cancel()
        await asyncio.sleep(1.0)

    loop.run_until_complete(main())
    assert fired == [-3, -1, *range(200)]
    loop.close()


def test_asyncio_s_own_tools_run_on_it(loop: SimLoop) -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        seen.append(f"timeout at {loop.time()}")
        event = asyncio.Event()
        waiter = asyncio.create_task(event.wait())
        loop.call_later(1, event.set)
        await asyncio.gather(waiter, asyncio.sleep(2))
        seen.append(f"gathered at {loop.time()}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 3)
        seen.append(f"gave up at {loop.time()}")
        return seen

    assert loop.run_until_complete(main()) == ["timeout at 5.0", "gathered at 7.0", "gave up at 10.0"]
    loop.close()


def test_a_deadlock_names_what_waits_and_where(loop: SimLoop) -> None:
    async def inner() -> None:
        await loop.create_future()

    async def main() -> None:
        task = asyncio.create_task(inner(), name="flusher")
        loop.call_later(1, lambda: None).cancel()
        await task

    with pytest.raises(Deadlock, match=r"flusher at test_loop.py:\d+ .*inner"):
        loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()


def test_time_that_stands_still_is_noticed(loop: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "TURNS_WITHOUT_TIME_MAX", 1000)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    task = loop.create_task(main(), name="spinner")
    with pytest.raises(Livelock, match="spinner"):
        loop.run_forever()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_very_short_delay_advances_the_time(loop: SimLoop) -> None:
    """64 s plus 1e-18 s is 64 s as a float. A timer that is set again until a time is over must come to an end."""
    end_s = 64.0 + 1e-13
    fired = []

    def wait_on() -> None:
        fired.append(loop.time())
        if loop.time() < end_s:
            loop.call_later(1e-18, wait_on)

    async def wait() -> None:
        await asyncio.sleep(64.0)
        wait_on()
        await asyncio.sleep(1.0)

    loop.run_until_complete(wait())
    assert fired[0] == 64.0
    assert fired[-1] >= end_s
    assert len(fired) == len(set(fired)) < 20


def test_the_limit_of_time_ends_a_run(loop: SimLoop) -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    loop.limit_time(100)
    task = loop.create_task(main(), name="ticker")
    with pytest.raises(TimeIsUp, match="ticker"):
        loop.run_until_complete(task)
    assert loop.time() == 100
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_failing_callback_goes_to_the_handler_and_the_loop_goes_on(loop: SimLoop) -> None:
    contexts: list[object] = []
    loop.set_exception_handler(lambda _loop, context: contexts.append(context["exception"]))

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert isinstance(contexts[0], ZeroDivisionError)
    loop.close()
