"""Rows that offer the part of Spark's DataFrame that sinks use, without Spark: tasks run one after another, here.

The tests of crash points need many micro-batches, and a Spark session takes longer than all of them. `tests/spark` runs
the same sinks with the real DataFrame.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


class Rows:
    """A micro-batch that `tasks` tasks write."""

    def __init__(self, table: pa.Table, tasks: int = 2) -> None:
        self.table = table
        self.tasks = tasks

    @classmethod
    def numbers(cls, begin: int, end: int, tasks: int = 2) -> "Rows":
        """Rows with an id and a text."""
        ids = list(range(begin, end))
        texts = [f"text {n}" for n in ids]
        return cls(pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())}), tasks)

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.table.schema)

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def drop(self, *names: str) -> "Rows":
        return Rows(self.table.drop_columns([name for name in names if name in self.columns]), self.tasks)

    def repartition(self, tasks: int) -> "Rows":
        return Rows(self.table, tasks)

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> "Results":
        size = -(-self.table.num_rows // self.tasks) or 1
        results: list[Row] = []
        for task in range(self.tasks):
            batches = self.table.slice(task * size, size).to_batches(max_chunksize=7)
            for result in function(iter(batches)):
                results += [Row(**each) for each in result.to_pylist()]
        return Results(results)

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:
        for each in self.table.to_pylist():
            yield Row(**{name: _as_spark(value) for name, value in each.items()})

    def toArrow(self) -> pa.Table:
        return self.table


class Results:
    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def collect(self) -> list[Row]:
        return list(self._rows)


def _as_spark(value: Any) -> Any:
    """Timestamps in Spark's rows are local times without a time zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value
