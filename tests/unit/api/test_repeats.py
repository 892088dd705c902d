"""Requests that name a thing more than once."""

from types import SimpleNamespace
from typing import Any

from tidelog.api.repeats import REPEATED_BYTES_MAX, NamedPartitions, Repeats, join_by_topic
from tidelog.model.steps import run_all


def test_partitions_keep_the_place_of_the_first_and_what_the_last_asks() -> None:
    named: NamedPartitions[str, int] = NamedPartitions()
    asked = [("t", 1, 10), ("u", 0, 11), ("t", 0, 12), ("t", 1, 0), ("u", 1, 13), ("t", 1, 14)]
    assert [named.add(*each) for each in asked] == [None, None, None, 10, None, 0]
    assert [(topic, list(partitions.items())) for topic, partitions in named.by_topic.items()] == [
        ("t", [(1, 14), (0, 12)]),
        ("u", [(0, 11), (1, 13)]),
    ]
    assert list(named.repeated) == [("t", 1)]


def test_each_thing_is_told_once_and_again_while_there_is_room() -> None:
    repeats: Repeats[str] = Repeats()
    assert repeats.allow("large", 2 * REPEATED_BYTES_MAX)
    assert not repeats.allow("large", 2 * REPEATED_BYTES_MAX)
    assert repeats.allow("half", REPEATED_BYTES_MAX // 2)
    assert repeats.allow("half", REPEATED_BYTES_MAX // 2)
    assert repeats.allow("half", REPEATED_BYTES_MAX // 2)
    assert not repeats.allow("half", 1)
    assert repeats.allow("half", 0)
    assert repeats.allow("another", 1)
    assert not repeats.allow("another", 1)


def entry(*partitions: int) -> Any:
    return SimpleNamespace(partitions=list(partitions))


def test_entries_of_a_topic_are_joined_only_where_something_is_refused() -> None:
    def shape(refused: dict[str, Any], known: list[tuple[str, Any]]) -> list[list[int]]:
        return [topic.partitions for topic in run_all(join_by_topic(refused, known))]

    assert shape({}, [("t", entry(0)), ("u", entry(1)), ("t", entry(2, 0))]) == [[0], [1], [2, 0]]
    known = [("t", entry(0)), ("u", entry(1)), ("t", entry(2)), ("u", entry(3))]
    assert shape({"no": entry(7), "u": entry(8)}, known) == [[7], [8, 1, 3], [0, 2]]
