"""Decide which offsets a batch query need not read, because of the filters that Spark passes to the source.

Spark itself also applies all filters to the rows that the source returns. So the source may return more rows than the
filters accept, but it must not leave out a row that they accept.

If a query of the DataFrame that `load` returned has filters, Spark 4.3 stores the reduced offset ranges with this
DataFrame. If a later query of this DataFrame has no filters, Spark reads the same ranges again. The source cannot
notice this, and the later query would lack rows. Therefore filters are used only with the option `pushFilters`. These
filters are used:

- `topic` and `partition`: a partition that one of the filters rejects is not read;
- `offset`: comparisons limit the range at both ends;
- `timestamp`: only lower limits are used. The first record at or after a time is looked up, and all records before it
  are older. An upper limit is not used: records of a partition need not be in the order of their times, so there may be
  older records after the first one that is too new.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark_tidelog.plan import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from pyspark_tidelog.offsets import Offsets
    from tidelog.model.ids import TopicPartition

PUSHDOWN_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that runs in the process in which Spark plans a batch read with filters. It runs only if
spark.sql.python.filterPushdown.enabled is true. If the setting is false, Spark refuses a reader that has the method
`pushFilters`."""

LAST_TIME = datetime.max.replace(tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LookUpTimes = Callable[[Mapping["TopicPartition", int]], "Offsets"]
"""Returns, for each partition, the offset of the first record at or after the timestamp in milliseconds; -1 if there
is none."""


def spark_pushes_filters() -> bool:
    """Return whether this process plans a read for which Spark calls the reader's method `pushFilters`."""
    main_spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHDOWN_PLANNER in sys.modules or getattr(main_spec, "name", None) == PUSHDOWN_PLANNER


class Comparison:
    """Compares a column with the values in a filter. `accepts` returns the result for one value of the column."""

    def __init__(self, column: str, accepts: Callable[[Any], bool], low: Any = None, high: Any = None) -> None:
        self.column = column
        self.accepts = accepts
        self.low = low
        """The lowest value that may be accepted; None for no bound."""
        self.high = high
        """The highest value that may be accepted; None for no bound."""


def comparison_of(pushed: "Filter") -> Comparison | None:
    """Return the comparison that a filter makes with a column of KINDS, or None if the filter cannot be used."""
    from pyspark.sql import datasource as ds

    if isinstance(pushed, ds.Not):
        inner = comparison_of(pushed.child)
        return inner and Comparison(inner.column, lambda value: not inner.accepts(value))
    path = getattr(pushed, "attribute", None)
    if not isinstance(path, tuple) or len(path) != 1 or path[0] not in KINDS:
        return None
    column, value = path[0], getattr(pushed, "value", None)
    if isinstance(pushed, ds.In):
        values = [item for item in pushed.value if item is not None]
        if not all(_has_kind(column, item) for item in values):
            return None
        return Comparison(column, lambda item: item in values, min(values, default=None), max(values, default=None))
    if not _has_kind(column, value):
        return None
    if isinstance(pushed, (ds.EqualTo, ds.EqualNullSafe)):
        return Comparison(column, lambda item: bool(item == value), value, value)
    if isinstance(pushed, ds.GreaterThan):
        return Comparison(column, lambda item: bool(item > value), low=_next(value))
    if isinstance(pushed, ds.GreaterThanOrEqual):
        return Comparison(column, lambda item: bool(item >= value), low=value)
    if isinstance(pushed, ds.LessThan):
        return Comparison(column, lambda item: bool(item < value), high=_previous(value))
    if isinstance(pushed, ds.LessThanOrEqual):
        return Comparison(column, lambda item: bool(item <= value), high=value)
    return None


KINDS: Mapping[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
"""The columns whose filters are used, with the type of the values in the filters."""


def _has_kind(column: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, KINDS[column]):
        return False
    return not isinstance(value, datetime) or value.tzinfo is not None


def _next(value: Any) -> Any:
    """Return the lowest possible value that is greater than `value`; for a text and for LAST_TIME, `value` itself."""
    if isinstance(value, datetime):
        return value if value == LAST_TIME else value + timedelta(microseconds=1)
    return value + 1 if isinstance(value, int) else value


def _previous(value: Any) -> Any:
    """Return the highest possible value that is less than `value`; `value` itself if it is not a number."""
    return value - 1 if isinstance(value, int) else value


def narrowed(
    ranges: Iterable[OffsetRange], comparisons: Iterable[Comparison], look_up_times: LookUpTimes
) -> list[OffsetRange]:
    """Return the parts of the ranges that may contain a row that all comparisons accept."""
    used = list(comparisons)
    candidates = [
        _within_offsets(candidate, used)
        for candidate in ranges
        if all(comparison.accepts(value) for comparison, value in _constants(candidate, used))
    ]
    candidates = [candidate for candidate in candidates if candidate.size > 0]
    timestamp_ms = max((_first_ms(each.low) for each in used if each.column == "timestamp" and each.low), default=-1)
    # In the request for offsets, a negative timestamp has a special meaning.
    if timestamp_ms < 0 or not candidates:
        return candidates
    first = look_up_times({candidate.topic_partition: timestamp_ms for candidate in candidates})
    return list(_from_first_record(candidates, first))


def _constants(candidate: OffsetRange, comparisons: Iterable[Comparison]) -> Iterator[tuple[Comparison, Any]]:
    """Yield each comparison whose column has the same value in the whole range, together with this value."""
    for comparison in comparisons:
        if comparison.column == "topic":
            yield comparison, candidate.topic
        elif comparison.column == "partition":
            yield comparison, candidate.partition


def _within_offsets(candidate: OffsetRange, comparisons: Iterable[Comparison]) -> OffsetRange:
    start, end = candidate.start, candidate.end
    for comparison in comparisons:
        if comparison.column == "offset":
            start = start if comparison.low is None else max(start, comparison.low)
            end = end if comparison.high is None else min(end, comparison.high + 1)
    return candidate._replace(start=start, end=end)


def _from_first_record(candidates: Iterable[OffsetRange], first: "Offsets") -> Iterator[OffsetRange]:
    for candidate in candidates:
        offset = first[candidate.topic_partition]
        start = max(candidate.start, offset)
        if offset >= 0 and start < candidate.end:
            yield candidate._replace(start=start)


def _first_ms(time: datetime) -> int:
    """Return the time in milliseconds, rounded up: records have timestamps in whole milliseconds."""
    return -((EPOCH - time) // timedelta(milliseconds=1))
