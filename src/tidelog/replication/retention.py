"""Passes of retention over all partitions: segments that are no longer kept leave their logs, a few partitions at once.

Records that have to be looked at before a segment may go (`log/retention.py`) are looked at in a process of its own,
beside the pass: the next one uses what was found.
"""

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.log.errors import CorruptLog
from tidelog.log.record_times import FoundTimes, find_times_apart
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.runtime.interfaces import WorkEnded
from tidelog.wire.errors import StorageError

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog
    from tidelog.log.retention import Removal, TimesLook
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.partitions")

LOOKED_AT_ONCE = 50
"""Partitions that are looked at in one turn of the loop, and whose start offsets are persisted at once."""


class RetentionPasses:
    """One pass runs at a time."""

    def __init__(self, runtime: "Runtime", partitions: "Partitions") -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._looking: dict[Partition, asyncio.Task[None]] = {}
        """Partitions whose records are being looked at."""

    def end_looks(self) -> None:
        """The broker stops: no records are looked at any more."""
        for looking in list(self._looking.values()):
            looking.cancel()

    async def enforce(self) -> None:
        """Drop whole segments that the topics' settings no longer keep. One call at a time.

        What fails for one log or directory does not keep the others from it.
        """
        every = iter(self._partitions)
        while batch := list(islice(every, LOOKED_AT_ONCE)):
            removals: list[tuple[Partition, PartitionLog, Removal]] = []
            for partition in batch:
                log = partition.log
                removal = await self._retire(partition)
                if removal is not None:
                    removals.append((partition, log, removal))
            failed: dict[str, OSError] = {}
            if any(removal.begins for _, _, removal in removals):
                failed = await self._partitions.work(
                    self._partitions.directories.write_start_offsets,
                    self._partitions.start_offsets(),
                    lane=CHECKPOINTS_LANE,
                )
                self._partitions.look_at_failures()
                self._partitions.write_checkpoints_again()
            for partition, log, removal in removals:
                error = failed.get(log.directory.rpartition("/")[0]) if removal.begins else None
                if error is not None:
                    self._failed(partition, error)
                # A log that has moved meanwhile is not this partition's any more: its files go all together.
                elif partition.log is log and not (partition.deleted or partition.frozen):
                    try:
                        await self._partitions.work(removal.run)
                    except Exception as failure:
                        self._failed(partition, failure)
            await self._runtime.tasks.sleep(0)

    async def _retire(self, partition: "Partition") -> "Removal | None":
        """Take segments out of the log; what to do about their files."""
        log = partition.log
        now_ms = self._runtime.clock.now_ms()
        look = None
        try:
            if not partition.deleted and partition not in self._looking:
                look = log.times_look(now_ms)
            if look is not None:
                await self._partitions.work(look.run)
                if look.wanted is None:
                    look.take()
                else:
                    looking = self._look_at_records(partition, log, look)
                    self._looking[partition] = self._runtime.tasks.spawn(looking, name="record-times")
            if partition.deleted or partition.frozen or log is not partition.log or log.failure is not None:
                return None
            if log.apply_retention(now_ms, partition.high_watermark):
                self._partitions.note_offsets(partition)
            return log.removal(now_ms)
        except Exception as error:
            if partition.frozen or log is not partition.log or (look is not None and look.outdated):
                return None  # another time: the files have gone elsewhere
            if isinstance(error, CorruptLog):
                log.fail(str(error))
            self._failed(partition, error)
            return None

    async def _look_at_records(self, partition: "Partition", log: "PartitionLog", look: "TimesLook") -> None:
        """Find out, beside everything else, from when segments age; the next look of retention uses it."""
        tasks = self._runtime.tasks
        try:
            while (part := look.wanted) is not None:
                reports: list[bytes] = []
                working = tasks.run_apart(find_times_apart, self._runtime.disk, part.encode(), reports.append)
                try:
                    await working
                finally:
                    working.cancel()
                try:
                    look.found(FoundTimes.decode(reports[0]))
                except (IndexError, TypeError, ValueError) as error:
                    raise WorkEnded(f"a report that cannot be read: {error!r}") from error
                await tasks.run_blocking(look.run)
            if log is partition.log and not look.outdated:
                look.take()
        except (CorruptLog, OSError, WorkEnded) as error:
            if log is partition.log and not (partition.frozen or look.outdated):
                self._failed(partition, error)  # and it is tried again by the next
        finally:
            del self._looking[partition]

    def _failed(self, partition: "Partition", error: Exception) -> None:
        if not partition.deleted:
            expected = isinstance(error, StorageError | OSError | CorruptLog | WorkEnded)
            logger.error(
                "retention failed partition=%s-%d reason=%s",
                partition.topic,
                partition.index,
                error,
                exc_info=None if expected else error,
            )
            if partition.log.failure is not None:
                partition.fail()
