"""Anomalies of Adya's in transactions that append to lists and read them, as in Jepsen's tests. Pure.

Each list is one partition, so the order of its records is the order of the list. A transaction reads the beginning of a
list. There are two kinds of dependencies: a transaction depends on those whose records it has read (wr), and on those
whose records are before its own in a list (ww).

`G1c`: two transactions that were committed never depend on each other by reads alone, also not through others. A cycle
with writes (`G0`, and `G1c` with ww) is no error in Kafka, and is counted: transactions do not lock partitions, so the
records of two of them may be in a different order in two partitions.
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


def dependencies(history: History, *, with_writes: bool) -> dict[str, dict[str, None]]:
    """Return for each transaction those on which it depends."""
    graph: dict[str, dict[str, None]] = {name: {} for name in history.reads}
    for partition, records in history.lists.items():
        if with_writes:
            for (_, before), (_, after) in pairwise(records):
                if before != after:
                    graph.setdefault(after, {})[before] = None
        for name, ends in history.reads.items():
            for offset, writer in records:
                if offset >= ends.get(partition, 0):
                    break
                if writer != name:
                    graph[name][writer] = None
    return graph


def find_cycle(graph: Mapping[str, Mapping[str, None]]) -> list[str]:
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
