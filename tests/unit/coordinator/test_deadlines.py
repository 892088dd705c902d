from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.deadlines import STALE_MIN, Deadline, Deadlines


def nothing(*_: Any) -> None:
    raise AssertionError("called by the deadlines")


def due(deadlines: Deadlines, now_ms: int) -> list[Any]:
    return [deadline.subject for deadline in deadlines.due(now_ms)]


def test_earliest_first_and_each_once() -> None:
    deadlines = Deadlines()
    for name, at_ms in (("b", 20), ("a", 10), ("c", 30)):
        deadlines.set(Deadline(nothing, name), at_ms)
    assert deadlines.next_ms() == 10
    assert due(deadlines, 9) == []
    assert due(deadlines, 25) == ["a", "b"]
    assert due(deadlines, 25) == []
    assert deadlines.next_ms() == 30


def test_those_of_one_time_come_in_the_order_in_which_they_were_set() -> None:
    deadlines = Deadlines()
    for name in "xyz":
        deadlines.set(Deadline(nothing, name), 5)
    assert due(deadlines, 5) == ["x", "y", "z"]


def test_moving_on_needs_no_new_entry() -> None:
    deadlines = Deadlines()
    deadline = Deadline(nothing, "a")
    for at_ms in range(10, 1000):
        deadlines.set(deadline, at_ms)
    assert len(deadlines) == 1
    assert due(deadlines, 998) == []
    assert due(deadlines, 999) == ["a"]
    assert deadlines.next_ms() is None


def test_moving_forward_and_back() -> None:
    deadlines = Deadlines()
    deadline = Deadline(nothing, "a")
    deadlines.set(deadline, 100)
    deadlines.set(deadline, 10)
    deadlines.set(deadline, 50)
    assert due(deadlines, 49) == []
    assert due(deadlines, 50) == ["a"]
    assert due(deadlines, 200) == []


def test_cleared_is_not_due_until_set_again() -> None:
    deadlines = Deadlines()
    deadline = Deadline(nothing, "a")
    deadlines.set(deadline, 10)
    deadlines.clear(deadline)
    assert due(deadlines, 10) == []
    deadlines.set(deadline, 20)
    deadlines.clear(deadline)
    deadlines.set(deadline, 30)
    assert due(deadlines, 29) == []
    assert due(deadlines, 30) == ["a"]


def test_what_is_due_may_set_more() -> None:
    deadlines = Deadlines()
    first, second = Deadline(nothing, "first"), Deadline(nothing, "second")
    deadlines.set(first, 10)
    seen = []
    for deadline in deadlines.due(15):
        seen.append(deadline.subject)
        if deadline is first:
            deadlines.set(second, 12)
    assert seen == ["first", "second"]


def test_cleared_ones_do_not_pile_up() -> None:
    deadlines = Deadlines()
    kept = Deadline(nothing, "kept")
    deadlines.set(kept, 10**9)
    for number in range(10 * STALE_MIN):
        deadline = Deadline(nothing, number)
        deadlines.set(deadline, 10**9 + number)
        deadlines.clear(deadline)
    assert len(deadlines) <= 2 * STALE_MIN
    assert due(deadlines, 2 * 10**9) == ["kept"]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(("set", "clear", "pass")), st.integers(0, 50)), max_size=80)
)
def test_like_a_plain_table(steps: list[tuple[int, str, int]]) -> None:
    deadlines = Deadlines()
    known = [Deadline(nothing, number) for number in range(5)]
    table: dict[int, int] = {}
    now_ms = 0
    for number, step, amount in steps:
        if step == "set":
            table[number] = now_ms + amount
            deadlines.set(known[number], now_ms + amount)
        elif step == "clear":
            table.pop(number, None)
            deadlines.clear(known[number])
        else:
            now_ms += amount
            expected = sorted((at_ms, number) for number, at_ms in table.items() if at_ms <= now_ms)
            assert sorted(due(deadlines, now_ms)) == sorted(number for _, number in expected)
            for _, gone in expected:
                del table[gone]
        assert all(known[number].at_ms == table.get(number) for number in range(5))
        next_ms = deadlines.next_ms()
        if table:
            assert next_ms is not None
            assert next_ms <= min(table.values())
