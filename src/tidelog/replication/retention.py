"""Passes of retention over all partitions: remove expired segments from their logs, a few partitions at a time.

To find out whether a segment is old enough, its records must sometimes be read (see `log/retention.py`). A child
process reads them while the pass continues. The next pass uses the result.
"""

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.log.errors import CorruptLog
from tidelog.log.record_times import RecordTimes, find_times_in_child
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.runtime.interfaces import WorkEnded
from tidelog.wire.errors import StorageError

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog
    from tidelog.log.retention import Removal, SegmentAgeSearch
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.partitions")

PARTITIONS_PER_BATCH = 50
"""Upper bound on the partitions that are checked in one turn of the event loop. Their log start offsets are persisted
together."""


class RetentionPasses:
    """Retention of all partitions. One pass runs at a time."""

    def __init__(self, runtime: "Runtime", partitions: "Partitions") -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._time_searches: dict[Partition, asyncio.Task[None]] = {}
        """Partitions whose records are being read, with the task that waits for the child process."""

    def cancel_time_searches(self) -> None:
        """Cancel all searches for the times of records, because the broker stops."""
        for search_task in list(self._time_searches.values()):
            search_task.cancel()

    async def enforce(self) -> None:
        """Run one pass: delete whole segments according to the topics' settings. Only one call may run at a time.

        An error of one log or directory does not stop the pass for other logs.
        """
        partitions = iter(self._partitions)
        while batch := list(islice(partitions, PARTITIONS_PER_BATCH)):
            removals: list[tuple[Partition, PartitionLog, Removal]] = []
            for partition in batch:
                log = partition.log
                removal = await self._retire_segments(partition)
                if removal is not None:
                    removals.append((partition, log, removal))
            failed: dict[str, OSError] = {}
            if any(removal.renames_files for _, _, removal in removals):
                failed = await self._partitions.run_file_work(
                    self._partitions.directories.write_start_offsets,
                    self._partitions.start_offsets(),
                    lane=CHECKPOINTS_LANE,
                )
                self._partitions.handle_directory_failures()
                self._partitions.retry_late_checkpoints()
            for partition, log, removal in removals:
                error = failed.get(log.directory.rpartition("/")[0]) if removal.renames_files else None
                if error is not None:
                    self._report_failure(partition, error)
                # If the partition has moved in the meantime, all files of its old log are deleted later.
                elif partition.log is log and not (partition.deleted or partition.frozen):
                    try:
                        await self._partitions.run_file_work(removal.run)
                    except Exception as failure:
                        sync_failure = removal.sync_failure
                        if sync_failure is not None and sync_failure.errno not in TEMPORARY_ERRORS:
                            reason = f"sync failed: {sync_failure}"
                            log.fail(reason, sync_failure)
                        self._report_failure(partition, failure)
            await self._runtime.tasks.sleep(0)

    async def _retire_segments(self, partition: "Partition") -> "Removal | None":
        """Remove expired segments from the log, and return the remaining work on their files."""
        log = partition.log
        now_ms = self._runtime.clock.now_ms()
        age_search = None
        try:
            if not (partition.deleted or partition.frozen) and partition not in self._time_searches:
                age_search = log.segment_age_search(now_ms)
            if age_search is not None:
                await self._partitions.run_file_work(age_search.run)
                if age_search.wanted_part is None:
                    age_search.store_result()
                else:  # the times of some records are needed: a child process reads them
                    search = self._search_records(partition, log, age_search)
                    self._time_searches[partition] = self._runtime.tasks.spawn(search, name="record-times")
            if partition.deleted or partition.frozen or log is not partition.log or log.failure is not None:
                return None
            if log.retention_needs_flush(now_ms, partition.high_watermark):
                await self._partitions.flusher.write_snapshots(partition)
                if log is not partition.log:
                    return None
                if log.failure is not None or partition.deleted or partition.frozen:
                    return None
            if log.apply_retention(now_ms, partition.high_watermark):
                self._partitions.update_offsets(partition)
                partition.notify_followers()
            if log.unflushed:
                partition.mark_dirty()  # for example because retention began a new segment
            return log.removal(now_ms)
        except Exception as error:
            if partition.frozen or log is not partition.log or (age_search is not None and age_search.is_outdated):
                return None  # the next pass retries: the files were moved or replaced
            if isinstance(error, CorruptLog):
                log.fail(str(error))
            self._report_failure(partition, error)
            return None

    async def _search_records(
        self, partition: "Partition", log: "PartitionLog", age_search: "SegmentAgeSearch"
    ) -> None:
        """Find the times of records in a child process, while the pass continues. The next pass uses them."""
        tasks = self._runtime.tasks
        try:
            while (part := age_search.wanted_part) is not None:
                reports: list[bytes] = []
                work_future = tasks.run_in_child(find_times_in_child, self._runtime.disk, part.encode(), reports.append)
                try:
                    await work_future
                finally:
                    work_future.cancel()
                try:
                    age_search.add_record_times(RecordTimes.decode(reports[0]))
                except (IndexError, TypeError, ValueError) as error:
                    raise WorkEnded(f"a report cannot be read: {error!r}") from error
                await tasks.run_blocking(age_search.run)
            if log is partition.log and not age_search.is_outdated:
                age_search.store_result()
        except (CorruptLog, OSError, WorkEnded) as error:
            if log is partition.log and not (partition.frozen or age_search.is_outdated):
                self._report_failure(partition, error)  # the next pass retries
        finally:
            del self._time_searches[partition]

    def _report_failure(self, partition: "Partition", error: Exception) -> None:
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
