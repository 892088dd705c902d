"""The search for cycles of transactions finds them in made-up histories."""

from simulation_harness.list_append import History, components, find_cycle, read_dependencies, write_dependencies
from tidelog.model.ids import TopicPartition

A, B = TopicPartition("lists", 0), TopicPartition("lists", 1)


def test_transactions_that_read_each_other_are_a_cycle() -> None:
    history = History({A: [(0, "t1")], B: [(0, "t2")]}, {"t1": {B: 1}, "t2": {A: 1}, "t3": {A: 1, B: 1}})
    assert sorted(find_cycle(read_dependencies(history))) == ["t1", "t2"]


def test_transactions_that_read_earlier_ones_are_no_cycle() -> None:
    history = History({A: [(0, "t1"), (1, "t2")], B: [(0, "t2")]}, {"t1": {}, "t2": {A: 1}, "t3": {A: 2, B: 1}})
    assert find_cycle(read_dependencies(history)) == []
    assert components(write_dependencies(history)) == []


def test_a_transaction_does_not_depend_on_itself() -> None:
    history = History({A: [(0, "t1"), (1, "t1")]}, {"t1": {A: 2}})
    assert find_cycle(read_dependencies(history)) == []
    assert components(write_dependencies(history)) == []


def test_writes_in_different_orders_are_a_cycle_of_writes_only() -> None:
    history = History({A: [(0, "t1"), (1, "t2")], B: [(0, "t2"), (1, "t1")]}, {"t1": {}, "t2": {}})
    assert find_cycle(read_dependencies(history)) == []
    assert components(write_dependencies(history)) == [{"t1", "t2"}]


def test_each_set_of_transactions_in_cycles_is_one_component() -> None:
    edges = {"a": "b", "b": "c", "c": "a", "d": "ce", "e": "f", "f": "e", "g": "h", "h": ""}
    graph = {name: dict.fromkeys(others) for name, others in edges.items()}
    assert sorted(map(sorted, components(graph))) == [["a", "b", "c"], ["e", "f"]]


def test_a_cycle_through_a_third_transaction() -> None:
    c = TopicPartition("lists", 2)
    history = History({A: [(0, "t1")], B: [(0, "t2")], c: [(0, "t3")]}, {"t1": {c: 1}, "t2": {A: 1}, "t3": {B: 1}})
    assert sorted(find_cycle(read_dependencies(history))) == ["t1", "t2", "t3"]
