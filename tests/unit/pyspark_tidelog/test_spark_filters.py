"""Filters that a batch query passes to the source: it reads less, and never loses a row."""

import operator
import pickle
import random
import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_tidelog.batch_reader import FilteringReader
from pyspark_tidelog.filters import PUSHDOWN_PLANNER, comparison_of, narrowed
from pyspark_tidelog.options import read_options
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.source import TidelogDataSource
from tidelog.model.ids import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
OPERATORS: list[tuple[type[Any], Any]] = [
    (EqualTo, operator.eq),
    (EqualNullSafe, operator.eq),
    (GreaterThan, operator.gt),
    (GreaterThanOrEqual, operator.ge),
    (LessThan, operator.lt),
    (LessThanOrEqual, operator.le),
]
Row = tuple[int, int, datetime]
"""Partition, offset and timestamp."""


def at(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(ms * 1000))


class Log:
    """Partitions with the times of their records in milliseconds, in any order."""

    def __init__(self, *partitions: list[int]) -> None:
        self.partitions = partitions
        self.lookups: list[dict[TopicPartition, int]] = []

    def ranges(self) -> list[OffsetRange]:
        return [OffsetRange("t", n, 0, len(times)) for n, times in enumerate(self.partitions)]

    def rows(self, ranges: list[OffsetRange]) -> set[Row]:
        return {
            (r.partition, offset, at(self.partitions[r.partition][offset])) for r in ranges for offset in range(*r[2:])
        }

    def look_up_times(self, timestamps: Any) -> dict[TopicPartition, int]:
        """As ListOffsets: the first record, in the order of offsets, that is not older."""
        self.lookups.append(dict(timestamps))
        assert all(ms >= 0 for ms in timestamps.values())
        return {
            tp: next((i for i, time in enumerate(self.partitions[tp.partition]) if time >= ms), -1)
            for tp, ms in timestamps.items()
        }

    def read(self, *filters: Filter) -> list[OffsetRange]:
        comparisons = [comparison for each in filters if (comparison := comparison_of(each))]
        return narrowed(self.ranges(), comparisons, self.look_up_times)


def test_comparisons_limit_what_is_read() -> None:
    log = Log([10, 20, 30, 40], [50, 60], [5])
    for filters, expected in [
        ((EqualTo(("partition",), 1),), [(1, 0, 2)]),
        ((In(("partition",), (0, None, 2)),), [(0, 0, 4), (2, 0, 1)]),
        ((Not(EqualTo(("partition",), 0)),), [(1, 0, 2), (2, 0, 1)]),
        ((GreaterThan(("partition",), 1), LessThan(("partition",), 2)), []),
        ((EqualTo(("topic",), "t"), EqualTo(("offset",), 1)), [(0, 1, 2), (1, 1, 2)]),
        ((In(("topic",), ("s", "u")),), []),
        ((GreaterThan(("offset",), 0), LessThanOrEqual(("offset",), 2)), [(0, 1, 3), (1, 1, 2)]),
        ((GreaterThanOrEqual(("offset",), -5), LessThan(("offset",), 1 << 70)), [(0, 0, 4), (1, 0, 2), (2, 0, 1)]),
        ((In(("offset",), (3, 1)),), [(0, 1, 4), (1, 1, 2)]),
        ((GreaterThanOrEqual(("timestamp",), at(20)),), [(0, 1, 4), (1, 0, 2)]),
        ((GreaterThan(("timestamp",), at(20)),), [(0, 2, 4), (1, 0, 2)]),
        ((GreaterThanOrEqual(("timestamp",), at(20.001)),), [(0, 2, 4), (1, 0, 2)]),
        ((EqualTo(("timestamp",), at(60)),), [(1, 1, 2)]),
        ((GreaterThan(("timestamp",), datetime.max.replace(tzinfo=UTC)),), []),
        ((GreaterThan(("timestamp",), at(60)),), []),
        ((In(("timestamp",), (at(60), at(30))), EqualTo(("partition",), 0)), [(0, 2, 4)]),
        ((LessThan(("timestamp",), at(20)),), [(0, 0, 4), (1, 0, 2), (2, 0, 1)]),
        ((IsNotNull(("offset",)), StringStartsWith(("topic",), "x")), [(0, 0, 4), (1, 0, 2), (2, 0, 1)]),
        ((EqualTo(("value",), b"x"), EqualTo(("headers", "key"), "x")), [(0, 0, 4), (1, 0, 2), (2, 0, 1)]),
        (
            (EqualTo(("offset",), True), EqualTo(("timestamp",), datetime(2024, 1, 1))),
            [(0, 0, 4), (1, 0, 2), (2, 0, 1)],
        ),
    ]:
        assert [r[1:] for r in log.read(*filters)] == expected, filters


def test_only_partitions_that_are_read_are_asked_for_times() -> None:
    log = Log([10], [10], [10])
    log.read(EqualTo(("partition",), 1), GreaterThan(("timestamp",), at(5)), GreaterThan(("timestamp",), at(9)))
    assert log.lookups == [{TopicPartition("t", 1): 10}]
    log.lookups.clear()
    log.read(GreaterThan(("timestamp",), at(-2)))
    log.read(GreaterThan(("offset",), 1), GreaterThan(("timestamp",), at(5)))
    assert log.lookups == []


@pytest.mark.parametrize("seed", range(200))
def test_no_row_that_the_filters_accept_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(*[[rng.randrange(-1, 40) for _ in range(rng.randrange(12))] for _ in range(4)])
    filters: list[Filter] = []
    checks = []
    for _ in range(rng.randrange(1, 4)):
        index, name = rng.choice([(0, "partition"), (1, "offset"), (2, "timestamp")])

        def value(name: str = name) -> Any:
            return at(rng.randrange(-10, 400) / 10) if name == "timestamp" else rng.randrange(-1, 12)

        kind, compare = rng.choice([*OPERATORS, (In, lambda a, b: a in b)])
        right = tuple(value() for _ in range(3)) if kind is In else value()
        is_negated = rng.random() < 0.2
        made = kind((name,), right)
        filters.append(Not(made) if is_negated else made)
        checks.append(lambda row, i=index, c=compare, r=right, n=is_negated: c(row[i], r) != n)
    everything = log.rows(log.ranges())
    accepted = {row for row in everything if all(check(row) for check in checks)}
    assert accepted <= log.rows(log.read(*filters)) <= everything


def test_filters_are_accepted_only_where_spark_pushes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, Spark refuses a reader that has the method."""
    source = TidelogDataSource(SERVERS | {"pushfilters": "true"})
    reader: Any = source.reader(source.schema())
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters
    monkeypatch.setitem(sys.modules, PUSHDOWN_PLANNER, ModuleType(PUSHDOWN_PLANNER))
    assert isinstance(source.reader(source.schema()), FilteringReader)
    # Spark would use the narrowed ranges for later queries of the same DataFrame too.
    assert not isinstance(TidelogDataSource(SERVERS).reader(source.schema()), FilteringReader)


def test_every_filter_remains_with_spark_and_tasks_get_none() -> None:
    reader = FilteringReader(read_options(SERVERS, streaming=False), ("value",))
    filters: list[Filter] = [EqualTo(("partition",), 1), EqualTo(("value",), b"x")]
    assert reader.pushFilters(filters) == filters
    assert len(reader._comparisons) == 1
    assert pickle.loads(pickle.dumps(reader))._comparisons == []
