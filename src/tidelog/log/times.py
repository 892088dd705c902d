"""Records by their times, looked for in steps: the headers of a whole segment may have to be walked."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidelog.log.reader import LogChanged, TimestampOffset
from tidelog.model.steps import Steps

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog

T = TypeVar("T")


def find_timestamp(log: "PartitionLog", timestamp_ms: int) -> Steps[TimestampOffset | None]:
    """The first record that is not earlier than `timestamp_ms`; None when there is none. Raises StorageError."""
    return _in_steps(log, lambda start: log.reader.offset_for_timestamp(timestamp_ms, start))


def find_max_timestamp(log: "PartitionLog") -> Steps[TimestampOffset | None]:
    """The first record with the largest timestamp in the log; None when no record has one. Raises StorageError."""
    return _in_steps(log, log.reader.max_timestamp_offset)


def _in_steps(log: "PartitionLog", look: Callable[[int], Steps[T]]) -> Steps[T]:
    """What is found in one state of the log, which may change between two steps."""
    while True:
        steps = look(log.log_start_offset)
        try:
            while True:
                log.look_up(steps.__next__)
                yield
        except StopIteration as end:
            result: T = end.value
            return result
        except LogChanged:
            yield
