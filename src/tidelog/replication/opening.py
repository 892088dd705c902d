"""Open logs in parallel on threads, for `Partitions`. If an older topic or replica still has a directory at a
partition's path, this directory is renamed, and the opening is repeated.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.log.directory import InTheWay
from tidelog.log.errors import CorruptLog
from tidelog.model.ids import TopicPartition
from tidelog.replication.flusher import CHECKPOINTS_LANE

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.directory import DataDirectory
    from tidelog.log.partition_log import PartitionLog
    from tidelog.metadata.image import TopicImage
    from tidelog.runtime.interfaces import Clock, Runtime

DISK_THREADS = 4
"""Number of threads that open or close logs."""
FAST_OPENING_MAX_S = 0.001
"""If opening a log takes longer than this number of seconds on average, the disk is the bottleneck. Opening a log from
the page cache takes a third of this time."""
AVERAGED_LOGS = 20
"""Number of logs over which the average is computed."""


class Opening(NamedTuple):
    """A log to open. `number` is the partition's index."""

    topic: "TopicImage"
    number: int
    config: "LogConfig"
    directory: "DataDirectory"
    new: bool
    """Whether the partition is new on this broker, so that its log does not exist yet."""

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.number)


OpenResult: TypeAlias = "tuple[Opening, PartitionLog | InTheWay | CorruptLog | OSError]"


async def open_logs(runtime: "Runtime", openings: list[Opening]) -> list[OpenResult]:
    """Open all logs. Returns each opening with its log or its error."""
    opened = await _open_in_parallel(runtime, openings)
    blocked = [opening for opening, result in opened if isinstance(result, InTheWay)]
    if not blocked:
        return opened
    failures = await runtime.tasks.run_blocking(_make_way, blocked, lane=CHECKPOINTS_LANE)
    cleared = [opening for opening in blocked if opening.key not in failures]
    return [
        *((opening, result) for opening, result in opened if not isinstance(result, InTheWay)),
        *((opening, failures[opening.key]) for opening in blocked if opening.key in failures),
        *(await _open_in_parallel(runtime, cleared)),
    ]


async def _open_in_parallel(runtime: "Runtime", openings: list[Opening]) -> list[OpenResult]:
    """Open logs on one or several threads.

    After a clean stop, there may be thousands of existing logs. One thread opens them as long as the disk is fast,
    because several threads would only contend for the interpreter lock. Several threads open all other logs: the
    threads' syncs share the file system's commits, and their cold reads overlap.
    """
    run_blocking, clock = runtime.tasks.run_blocking, runtime.clock
    quick = [opening for opening in openings if opening.directory.clean and not opening.new]
    slow = [opening for opening in openings if opening.new or not opening.directory.clean]
    opened = await run_blocking(_open, iter(quick), clock, FAST_OPENING_MAX_S) if quick else []
    remaining = quick[len(opened) :] + slow
    if remaining:
        shared_iterator = iter(remaining)  # all threads share this iterator
        threads = range(min(DISK_THREADS, len(remaining)))
        for part in await asyncio.gather(*(run_blocking(_open, shared_iterator, clock) for _ in threads)):
            opened += part
    return opened


def _open(openings: Iterator[Opening], clock: "Clock", average_max_s: float | None = None) -> list[OpenResult]:
    """Open logs one after another. With `average_max_s`, stop when opening a log takes longer than this number of
    seconds on average.
    """
    results: list[OpenResult] = []
    began, now_ms = clock.monotonic(), clock.now_ms()
    for opening in openings:
        topic, index, config, directory, new = opening
        try:
            log = directory.open_partition(topic.name, index, topic.topic_id, config, now_ms, new=new)
            results.append((opening, log))
        except (InTheWay, CorruptLog, OSError) as error:
            results.append((opening, error))
        if average_max_s is not None and clock.monotonic() - began > average_max_s * AVERAGED_LOGS:
            break
        if len(results) % AVERAGED_LOGS == 0:
            began = clock.monotonic()
    return results


def _make_way(openings: list[Opening]) -> dict[TopicPartition, OSError]:
    """Rename the directories of older topics or replicas at the paths of these logs. Returns the failures."""
    failures: dict[TopicPartition, OSError] = {}
    for opening in openings:
        try:
            opening.directory.make_way(opening.key, opening.topic.topic_id)
        except OSError as error:
            failures[opening.key] = error
    return failures
