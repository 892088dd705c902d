"""Find records by timestamp. The search runs in steps, because it may have to read the headers of a whole segment."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidelog.log.reader import LogChanged, TimestampOffset
from tidelog.model.steps import Steps

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog

T = TypeVar("T")


def find_timestamp(log: "PartitionLog", timestamp_ms: int) -> Steps[TimestampOffset | None]:
    """Return the first record whose timestamp is at least `timestamp_ms`; None if there is no such record. Raises
    StorageError.
    """
    return _in_steps(log, lambda start: log.reader.offset_for_timestamp(timestamp_ms, start))


def find_max_timestamp(log: "PartitionLog") -> Steps[TimestampOffset | None]:
    """Return the first record with the largest timestamp of the log; None if the log has no records. Raises
    StorageError.
    """
    return _in_steps(log, log.reader.max_timestamp_offset)


def _in_steps(log: "PartitionLog", search: Callable[[int], Steps[T]]) -> Steps[T]:
    """Run `search` in steps. If the log changes between two steps in a way that affects the result, start the search
    again.
    """
    while True:
        steps = search(log.log_start_offset)
        try:
            while True:
                log.look_up(steps.__next__)
                yield
        except StopIteration as end:
            result: T = end.value
            return result
        except LogChanged:
            yield
