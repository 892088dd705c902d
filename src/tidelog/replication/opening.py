"""Opens logs side by side on threads, for `Partitions`. What an earlier topic of the same name left goes first."""

import asyncio
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
    from tidelog.runtime.interfaces import Runtime

DISK_THREADS = 4


class Opening(NamedTuple):
    topic: "TopicImage"
    number: int
    config: "LogConfig"
    directory: "DataDirectory"
    new: bool
    """Whether its topic is made just now."""

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.number)


Opened: TypeAlias = "tuple[Opening, PartitionLog | InTheWay | CorruptLog | OSError]"


async def open_logs(runtime: "Runtime", openings: list[Opening]) -> list[Opened]:
    """Each with its log, or with why it is not open."""
    opened = await _side_by_side(runtime, openings)
    waiting = [opening for opening, result in opened if isinstance(result, InTheWay)]
    if not waiting:
        return opened
    failures = await runtime.tasks.run_blocking(_make_way, waiting, lane=CHECKPOINTS_LANE)
    cleared = [opening for opening in waiting if opening.key not in failures]
    return [
        *((opening, result) for opening, result in opened if not isinstance(result, InTheWay)),
        *((opening, failures[opening.key]) for opening in waiting if opening.key in failures),
        *(await _side_by_side(runtime, cleared)),
    ]


async def _side_by_side(runtime: "Runtime", openings: list[Opening]) -> list[Opened]:
    """Syncs of new directories share the file system's commits."""
    shares = [openings[i::DISK_THREADS] for i in range(min(DISK_THREADS, len(openings)))]
    now_ms = runtime.clock.now_ms()
    parts = await asyncio.gather(*(runtime.tasks.run_blocking(_open, share, now_ms) for share in shares))
    return [opened for part in parts for opened in part]


def _open(openings: list[Opening], now_ms: int) -> list[Opened]:
    results: list[Opened] = []
    for opening in openings:
        topic, index, config, directory, new = opening
        try:
            log = directory.open_partition(topic.name, index, topic.topic_id, config, now_ms, new=new)
            results.append((opening, log))
        except (InTheWay, CorruptLog, OSError) as error:
            results.append((opening, error))
    return results


def _make_way(openings: list[Opening]) -> dict[TopicPartition, OSError]:
    """Those for which that failed."""
    failures: dict[TopicPartition, OSError] = {}
    for opening in openings:
        try:
            opening.directory.make_way(opening.key, opening.topic.topic_id)
        except OSError as error:
            failures[opening.key] = error
    return failures
