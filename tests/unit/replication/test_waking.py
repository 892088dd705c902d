"""Parked fetches are woken in order; many of them are not woken in one turn of the loop."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.replication.partitions import WAKE_BUDGET_PER_TURN, Partitions


class Stage:
    """Partitions, and the calls that the loop's next turn makes."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        nothing: Any = None
        runtime: Any = SimpleNamespace(
            tasks=SimpleNamespace(call_soon=self.soon.append),
            clock=SimpleNamespace(monotonic=float, now_ms=int),
            disk=None,
            turns=None,
        )
        self.partitions = Partitions(runtime, nothing, nothing, node_id=1, flush_interval_ms=1000)
        self.woken: list[int] = []

    def turn(self) -> list[int]:
        """Who is woken in one turn of the loop."""
        before = len(self.woken)
        ready = list(self.soon)
        self.soon.clear()
        for call in ready:
            call()
        return self.woken[before:]


class Fetch:
    def __init__(self, stage: Stage, number: int, looks: int) -> None:
        self.stage = stage
        self.number = number
        self.looks = looks

    def finish(self) -> None:
        raise AssertionError("only when the broker stops")

    def wake(self) -> int:
        self.stage.woken.append(self.number)
        if not self.looks:
            raise ValueError("this one fails")
        return self.looks


def test_an_append_wakes_who_waits_for_it_at_once() -> None:
    stage = Stage()
    for _ in range(3):
        stage.partitions.appending = True
        for number in range(10):
            stage.partitions.wake_later(Fetch(stage, number, 5))
        assert not stage.woken
        stage.partitions.wake_fetches()
        assert stage.woken == list(range(10))
        stage.woken.clear()
    assert not stage.soon, "that costs no turn of the loop"


def test_what_moves_outside_of_a_request_wakes_in_the_next_turn() -> None:
    stage = Stage()
    for number in range(10):
        stage.partitions.wake_later(Fetch(stage, number, 5))
    assert len(stage.soon) == 1
    assert stage.turn() == list(range(10))


def test_very_many_are_woken_in_several_turns_in_their_order() -> None:
    stage = Stage()
    looks = WAKE_BUDGET_PER_TURN // 5
    most = WAKE_BUDGET_PER_TURN // looks
    stage.partitions.appending = True
    for number in range(50):
        stage.partitions.wake_later(Fetch(stage, number, looks))
    stage.partitions.wake_fetches()
    assert len(stage.woken) == most
    stage.partitions.appending = True
    stage.partitions.wake_later(Fetch(stage, 50, 1))
    stage.partitions.wake_fetches()
    stage.partitions.wake_expired(Fetch(stage, 51, 1))
    assert len(stage.woken) == most, "no more of them in the same turn, whoever comes"
    turns = []
    while stage.soon:
        turns.append(len(stage.turn()))
    assert max(turns) <= most + 1
    assert stage.woken == list(range(52))


def test_the_time_of_very_many_is_over_at_once() -> None:
    stage = Stage()
    for number in range(50):
        stage.partitions.wake_expired(Fetch(stage, number, WAKE_BUDGET_PER_TURN))
    assert stage.woken == [0]
    for number in range(1, 50):
        assert stage.turn() == [number]
    stage.turn()
    assert not stage.soon


def test_one_that_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    for number, looks in enumerate((WAKE_BUDGET_PER_TURN, 0, 1)):
        stage.partitions.wake_expired(Fetch(stage, number, looks))
    while stage.soon:
        stage.turn()
    assert stage.woken == [0, 1, 2]
    assert caplog.messages == ["parked fetch failed"]
