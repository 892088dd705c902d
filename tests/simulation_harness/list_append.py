"""Anomalies of Adya's in transactions that append to lists and read them, as in Jepsen's tests. Pure.

Each list is one partition, so the order of its records is the order of the list. A transaction reads the beginning of a
list. There are two kinds of dependencies: a transaction depends on those whose records it has read (wr), and on those
whose records are before its own in a list (ww).

`G1c`: two transactions that were committed never depend on each other by reads alone, also not through others. Cycles
of writes alone (`G0`) and cycles of writes and reads are no error in Kafka, and are counted: transactions do not lock
partitions, so the records of two of them may be in a different order in two partitions.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidelog.model.ids import TopicPartition


class History(NamedTuple):
    """The committed transactions."""

    lists: Mapping[TopicPartition, Sequence[tuple[int, str]]]
    """For each list its records, in order: offset, and name of the transaction."""
    reads: Mapping[str, Mapping[TopicPartition, int]]
    """The exclusive end of what each transaction has read of each list."""


Graph = Mapping[str, Mapping[str, None]]
"""For each transaction those on which it depends."""


def write_dependencies(history: History) -> Graph:
    """Return for each transaction those whose records are directly before its own in a list (ww)."""
    graph: dict[str, dict[str, None]] = {name: {} for name in history.reads}
    for records in history.lists.values():
        for (_, before), (_, after) in pairwise(records):
            if before != after:
                graph[after][before] = None
    return graph


def read_dependencies(history: History) -> Graph:
    """Return for each transaction those whose records it has read (wr)."""
    graph: dict[str, dict[str, None]] = {name: {} for name in history.reads}
    for partition, records in history.lists.items():
        for name, ends in history.reads.items():
            for offset, writer in records:
                if offset >= ends.get(partition, 0):
                    break
                if writer != name:
                    graph[name][writer] = None
    return graph


def components(graph: Graph) -> list[set[str]]:
    """Return the sets of several transactions that all depend on each other (the strongly connected components). A
    transaction belongs to one of them if it is in any cycle. Cycles that have a transaction in common are one set.
    """
    finished: dict[str, None] = {}
    for start in graph:
        _visit(start, graph, finished)
    dependents: dict[str, dict[str, None]] = {name: {} for name in graph}
    for name, others in graph.items():
        for other in others:
            dependents[other][name] = None
    found: list[set[str]] = []
    seen: dict[str, None] = {}
    for start in reversed(list(finished)):
        before = len(seen)
        _visit(start, dependents, seen)
        if len(seen) > before + 1:
            found.append(set(list(seen)[before:]))
    return found


def _visit(start: str, graph: Graph, finished: dict[str, None]) -> None:
    """Add `start` and all that can be reached from it to `finished`, each after those that it leads to."""
    if start in finished:
        return
    path, iterators = {start: None}, [iter(graph[start])]
    visited = {start}
    while path:
        following = next(iterators[-1], None)
        if following is None:
            finished[path.popitem()[0]] = None
            iterators.pop()
        elif following not in finished and following not in visited:
            visited.add(following)
            path[following] = None
            iterators.append(iter(graph[following]))


def find_cycle(graph: Graph) -> list[str]:
    """Return the transactions of one cycle, or an empty list."""
    is_done: dict[str, bool] = {}
    for start in graph:
        if start in is_done:
            continue
        path, iterators = [start], [iter(graph[start])]
        is_done[start] = False
        while path:
            following = next(iterators[-1], None)
            if following is None:
                is_done[path.pop()] = True
                iterators.pop()
            elif following not in is_done:
                is_done[following] = False
                path.append(following)
                iterators.append(iter(graph.get(following, {})))
            elif not is_done[following]:
                return path[path.index(following) :]
    return []
