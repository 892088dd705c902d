"""How many threads open logs: one while the disk is fast, several when it makes a thread wait."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tidelog.log.errors import CorruptLog
from tidelog.replication.opening import DISK_THREADS, Opening, OpenResult, open_logs

QUICK_S = 0.0003
SLOW_S = 0.008


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class Threads:
    """Each does what it is given at once and whole; `count` is how many were asked."""

    def __init__(self) -> None:
        self.count = self.by_first = 0

    def run_blocking(self, function: Callable[..., Any], *args: object, lane: str = "") -> "asyncio.Future[Any]":
        self.count += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        result = function(*args)
        self.by_first = self.by_first or len(result)
        future.set_result(result)
        return future


class Directory:
    """Opens every log, which takes `takes_s` of the clock, from `slow_from` on much longer; the fourth is damaged."""

    def __init__(self, clock: Clock, takes_s: float, slow_from: int, *, clean: bool) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._slow_from = slow_from
        self.clean = clean
        self.opened: list[int] = []

    def open_partition(self, topic: str, index: int, *args: object, new: bool) -> str:
        self._clock.now_s += self._takes_s if index < self._slow_from else SLOW_S
        self.opened.append(index)
        if index == 3:
            raise CorruptLog("00.log", 0, "damaged")
        return f"{topic}-{index}"


def opened_by(
    takes_s: float, count: int, *, slow_from: int = 1 << 30, clean: bool = True, new: bool = False
) -> tuple[int, list[OpenResult], int]:
    """Threads asked, what was opened, in order, and how many by the first thread."""
    clock, threads = Clock(), Threads()
    directory = Directory(clock, takes_s, slow_from, clean=clean)
    topic = SimpleNamespace(name="t", topic_id=bytes(16))
    openings = [Opening(cast(Any, topic), index, cast(Any, None), cast(Any, directory), new) for index in range(count)]
    runtime = cast(Any, SimpleNamespace(clock=clock, tasks=threads))
    opened = asyncio.run(open_logs(runtime, openings))
    assert sorted(directory.opened) == list(range(count)), "each once"
    return threads.count, sorted(opened, key=lambda pair: pair[0].number), threads.by_first


def check(opened: list[OpenResult], count: int) -> None:
    assert [opening.number for opening, _ in opened] == list(range(count))
    assert [str(log) for opening, log in opened if opening.number != 3] == [f"t-{i}" for i in range(count) if i != 3]
    assert isinstance(opened[3][1], CorruptLog)


def test_logs_left_in_order_are_opened_by_one_thread() -> None:
    threads, opened, _ = opened_by(QUICK_S, 1000)
    assert threads == 1
    check(opened, 1000)


def test_a_disk_that_makes_it_wait_gets_several() -> None:
    threads, opened, _ = opened_by(SLOW_S, 1000)
    assert threads == 1 + DISK_THREADS
    check(opened, 1000)


def test_a_disk_that_begins_to_make_it_wait() -> None:
    threads, opened, by_first = opened_by(QUICK_S, 1000, slow_from=500)
    assert threads == 1 + DISK_THREADS
    assert 500 < by_first < 510
    check(opened, 1000)


def test_new_logs_and_those_left_by_a_crash_are_opened_side_by_side() -> None:
    for clean, new in ((True, True), (False, False)):
        threads, opened, _ = opened_by(QUICK_S, 100, clean=clean, new=new)
        assert threads == DISK_THREADS
        check(opened, 100)
