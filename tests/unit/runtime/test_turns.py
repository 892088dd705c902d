"""Long computations in turns: whose turn is next, when a turn ends, and how abandoned computations end."""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tidelog.model.steps import Steps, run_all
from tidelog.runtime.interfaces import Clock, Tasks
from tidelog.runtime.tasks import LoopTasks
from tidelog.runtime.turns import (
    COLLECTION_DEFERRED_S,
    FIRST_TURN_S,
    FIRST_TURNS_S,
    FREED_PER_STEP,
    HEAVY_AT_ONCE_MAX,
    HEAVY_WEIGHTS_MAX,
    LIGHT_AT_ONCE_MAX,
    LIGHT_WEIGHT_MAX,
    LIGHT_WEIGHTS_MAX,
    STEPS_PER_TURN,
    TURN_S,
    NoTurn,
    Turns,
)

HEAVY = LIGHT_WEIGHT_MAX + 1


class World:
    """The clock that the steps move, and the loop's queue."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.queue: deque[Callable[[], object]] = deque()
        self.deferred: list[bool] = []
        self.turns = Turns(cast(Clock, self), cast(Tasks, self))
        self.did: list[str] = []
        self.outcomes: dict[str, Any] = {}

    def monotonic(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.queue.append(callback)

    def defer_collection(self, deferred: bool) -> None:
        self.deferred.append(deferred)

    def future(self) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().create_future()

    def begin(self, name: str, count: int, *, step_s: float = 0.0005, weight: int = 0) -> Any:
        def steps() -> Steps[str]:
            for _ in range(count):
                self.now_s += step_s
                self.did.append(name)
                yield
            return name.upper()

        return self.turns.begin(
            steps(), lambda value, error: self.outcomes.update({name: value or error}), weight=weight
        )

    def turn(self) -> list[str]:
        """What was done in the loop's next turn."""
        self.did.clear()
        for _ in range(len(self.queue)):
            self.queue.popleft()()
        return self.did

    def run(self) -> None:
        while self.queue:
            self.turn()


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_short_is_done_at_once(world: World) -> None:
    assert world.begin("a", 1).ended
    assert world.outcomes == {"a": "A"}
    assert not world.queue
    assert world.deferred == []


def test_a_turn_ends_by_the_clock_or_by_its_steps(world: World) -> None:
    world.begin("slow", 20)
    assert len(world.did) == 2
    assert len(world.turn()) == 8  # 4 ms
    world.begin("fast", 10_000, step_s=0.0)
    assert world.did.count("fast") == STEPS_PER_TURN
    world.run()
    assert world.outcomes == {"slow": "SLOW", "fast": "FAST"}


def test_many_that_are_short_and_had_to_wait_need_few_turns_of_the_loop(world: World) -> None:
    world.begin("long", 100)
    while world.turns._first_turns_s > 0:
        world.begin("long too", 100)
    for i in range(LIGHT_AT_ONCE_MAX // 2):
        world.begin(f"short {i}", 1, step_s=0.00001)
    for _ in range(2 * (1 + round(FIRST_TURNS_S / FIRST_TURN_S))):
        world.turn()
    assert all(f"short {i}" in world.outcomes for i in range(LIGHT_AT_ONCE_MAX // 2))


def test_one_of_them_has_a_turn_and_they_take_turns(world: World) -> None:
    for name in "ab":
        world.begin(name, 100)
    turns = ["".join(dict.fromkeys(world.turn())) for _ in range(4)]
    assert turns == ["a", "b", "a", "b"]


def test_the_end_of_one_may_be_that_of_all_others(world: World) -> None:
    others: list[Any] = []

    def steps() -> Steps[None]:
        for _ in range(STEPS_PER_TURN + 2):
            yield

    world.turns.begin(steps(), lambda value, error: [other.cancel() for other in others])
    others += [world.begin(name, 10_000, step_s=0.0) for name in "ab"]
    world.run()
    assert not world.outcomes
    assert all(other.ended for other in others)
    assert world.begin("next", 2 * STEPS_PER_TURN, step_s=0.0)
    world.run()
    assert world.outcomes == {"next": "NEXT"}


def test_no_more_than_a_few_at_a_time_in_their_order(world: World) -> None:
    names = [f"w{i}" for i in range(HEAVY_AT_ONCE_MAX + 1)]
    for name in names:
        world.begin(name, 30, weight=HEAVY, step_s=2**-11)  # which adds up without rounding
    for _ in range(2 * HEAVY_AT_ONCE_MAX):
        assert names[-1] not in world.turn()
    world.run()
    assert list(world.outcomes) == names


def test_heavy_ones_wait_for_each_other_and_hold_back_what_is_behind(world: World) -> None:
    world.begin("a", 20, weight=HEAVY_WEIGHTS_MAX)
    world.begin("b", 20, weight=2 * HEAVY_WEIGHTS_MAX)  # alone it may
    world.begin("c", 20, weight=HEAVY)
    world.run()
    assert list(world.outcomes) == ["a", "b", "c"]


def test_light_ones_need_not_wait_for_heavy_ones(world: World) -> None:
    for name in range(HEAVY_AT_ONCE_MAX):
        world.begin(f"heavy{name}", 500, weight=HEAVY)
    world.begin("light", 30, weight=LIGHT_WEIGHT_MAX)
    for _ in range(4 * (HEAVY_AT_ONCE_MAX + 1)):
        world.turn()
    assert list(world.outcomes) == ["light"]
    world.run()


def test_light_ones_weigh_something_too(world: World) -> None:
    count = LIGHT_WEIGHTS_MAX // LIGHT_WEIGHT_MAX
    for number in range(count + 1):
        world.begin(f"{number}", 30, weight=LIGHT_WEIGHT_MAX)
    seen: set[str] = set()
    for _ in range(count):
        seen |= {*world.turn()}
    assert f"{count}" not in seen
    world.run()
    assert len(world.outcomes) == count + 1


def test_first_turns_share_their_time_until_the_loop_turns(world: World) -> None:
    for number in range(300):
        world.begin(f"{number}", 30)
    assert world.now_s < 2 * FIRST_TURNS_S
    began = world.now_s
    world.turn()
    for number in range(300):
        world.begin(f"more{number}", 30)
    assert world.now_s - began < 2 * FIRST_TURNS_S + TURN_S
    world.run()
    assert len(world.outcomes) == 600


def test_what_comes_to_its_end_leaves_its_time_to_the_next(world: World) -> None:
    for name in "abc":
        world.begin(name, 4)  # two steps are left
    assert set(world.turn()) == {"a", "b", "c"}
    assert list(world.outcomes) == ["a", "b", "c"]


def test_a_failure_is_told_and_others_go_on(world: World) -> None:
    def failing() -> Steps[None]:
        for _ in range(10):
            world.now_s += 0.001
            yield
        raise ValueError("no")

    world.turns.begin(failing(), lambda value, error: world.outcomes.update({"bad": error}))
    world.begin("good", 50)
    world.run()
    assert isinstance(world.outcomes["bad"], ValueError)
    assert world.outcomes["good"] == "GOOD"


def test_whoever_is_told_may_fail_without_harm_to_others(world: World) -> None:
    def told(value: object, error: Exception | None) -> None:
        raise RuntimeError("planted")

    def steps() -> Steps[None]:
        for _ in range(5):
            world.now_s += 0.001
            yield

    world.turns.begin(steps(), told)
    world.begin("good", 50)
    with pytest.raises(RuntimeError, match="planted"):
        world.run()
    world.run()
    assert world.outcomes == {"good": "GOOD"}


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_what_is_cancelled_is_cleaned_up_and_makes_room(world: World, turns: int) -> None:
    ended = []

    def steps() -> Iterator[None]:
        try:
            while True:
                world.now_s += 0.001
                yield
        finally:
            ended.append("cleaned up")

    works = [
        world.turns.begin(cast(Steps[None], steps()), lambda value, error: ended.append("told"), weight=HEAVY)
        for _ in range(HEAVY_AT_ONCE_MAX)
    ]
    world.begin("next", 50, weight=HEAVY)
    for _ in range(turns):
        world.turn()
    for work in works:
        work.cancel()
        work.cancel()
    assert ended == ["cleaned up"] * HEAVY_AT_ONCE_MAX
    world.run()
    assert world.outcomes == {"next": "NEXT"}


def test_the_collector_waits_while_there_is_something_to_compute(world: World) -> None:
    work = world.begin("a", 100)
    world.turn()
    assert world.deferred == [True]
    work.cancel()
    assert world.deferred == [True, False]
    world.begin("b", 100, step_s=COLLECTION_DEFERRED_S / 10)
    world.run()
    assert world.deferred.count(True) == world.deferred.count(False) > 3  # and not for ever


class Thing:
    """Counts itself out, in a time that it takes."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __del__(self) -> None:
        self.world.now_s += 2**-20
        self.world.did.append("end")


def test_what_is_let_go_ends_a_little_in_each_turn(world: World) -> None:
    kept = [Thing(world)]
    lists = [[Thing(world) for _ in range(40_000)], [], kept * 5000, [Thing(world)]]
    world.turns.free_in_steps(lists)
    ended = [len(world.did)]
    while world.queue:
        ended.append(len(world.turn()))
    assert sum(ended) == 40_001
    assert max(ended) * 2**-20 <= TURN_S + FREED_PER_STEP * 2**-20
    assert lists == [[], [], [], []]
    assert kept[0].world is world


def test_letting_go_of_nothing_costs_no_turn(world: World) -> None:
    world.turns.free_in_steps([[], []])
    assert not world.queue


def test_a_coroutine_awaits_the_result_or_the_failure() -> None:
    async def scenario() -> None:
        tasks = LoopTasks(asyncio.get_running_loop())
        turns = Turns(cast(Clock, World()), tasks)

        def steps(fails: bool) -> Steps[int]:
            for _ in range(5 * STEPS_PER_TURN):
                yield
            if fails:
                raise ValueError("no")
            return 7

        assert await turns.run(steps(False)) == 7
        with pytest.raises(ValueError, match="no"):
            await turns.run(steps(True))
        waiting = tasks.spawn(turns.run(steps(False)), name="wait")
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert gc.isenabled()
        await tasks.close()

    asyncio.run(scenario())


def test_the_collector_is_on_again_when_the_loop_ends_amid_a_computation() -> None:
    async def scenario() -> None:
        tasks = LoopTasks(asyncio.get_running_loop())
        Turns(cast(Clock, World()), tasks).begin((None for _ in range(10**6)), lambda value, failure: None)
        await asyncio.sleep(0)
        assert not gc.isenabled()
        await tasks.close()
        assert gc.isenabled()

    asyncio.run(scenario())


def test_a_collector_that_is_off_stays_off() -> None:
    async def scenario() -> None:
        tasks = LoopTasks(asyncio.get_running_loop())
        for enabled in (True, False):
            (gc.enable if enabled else gc.disable)()
            try:
                tasks.defer_collection(True)
                assert not gc.isenabled()
                tasks.defer_collection(False)
                assert gc.isenabled() is enabled
            finally:
                gc.enable()
        await tasks.close()

    asyncio.run(scenario())


def test_at_once() -> None:
    def steps() -> Steps[int]:
        yield
        return 3

    assert run_all(steps()) == 3


def test_what_cannot_be_parted_counts_as_a_first_turn() -> None:
    world = World()

    def work(seconds: float) -> float:
        world.now_s += seconds
        return seconds

    assert world.turns.run_inline(work, FIRST_TURNS_S / 4) == FIRST_TURNS_S / 4
    assert not world.queue, "there is enough of it left"
    assert world.turns.run_inline(work, FIRST_TURNS_S) == FIRST_TURNS_S
    with pytest.raises(NoTurn):
        world.turns.run_inline(work, 0)
    world.begin("a", 1)
    assert world.did == [], "nor is there any for those that can"
    world.queue.popleft()()
    assert world.did == ["a"]
    assert world.turns.run_inline(work, 0) == 0


def test_what_fails_at_once_has_taken_its_time() -> None:
    world = World()

    def work() -> None:
        world.now_s += FIRST_TURNS_S
        raise OSError

    with pytest.raises(OSError):
        world.turns.run_inline(work)
    with pytest.raises(NoTurn):
        world.turns.run_inline(work)
