"""Sync logs to the disk: immediately for `durability=fsync` (group commit), otherwise at intervals. With
`durability=os`, the interval flush syncs only complete segments.

Requested syncs run in groups, one group at a time. Appends that arrive during a sync are covered by the next sync,
so under load one fdatasync serves all requests since the last sync. The interval flush syncs its partitions one by
one, while the groups also run. So an acknowledgement waits only for the sync of its own partition and for other
requested syncs, never for thousands of interval syncs. No partition is in two syncs at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tidelog.log.flush import DirectorySyncs
from tidelog.replication.descriptor_retry import RETRY_S, lacks_descriptor

if TYPE_CHECKING:
    from tidelog.log.partition_log import FlushPlan
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks, TimerHandle

logger = logging.getLogger("tidelog.flusher")

CHECKPOINTS_LANE: Final = "checkpoints"
"""Lane of all calls that write checkpoint files. They run one after another, since two writers of one file would
corrupt it."""
GROUP_MAX: Final = 16
"""Maximum number of partitions in one group. If more are requested, the group contains the oldest and the newest
requests: a new request waits for one group and not for hundreds of other partitions, and the old requests still
advance."""
COMMITS_LANE: Final = "commits"
"""Lane of requested syncs. They have a lane of their own, since cold reads and deletions may occupy all threads for
calls without a lane."""


class Flusher:
    """Flushes the partitions of one broker, and writes their recovery points afterwards.

    `checkpoint` is called with the partitions whose offsets may have changed. It returns a blocking function that
    persists the offsets. `each_interval` is called at the beginning of each interval flush.
    """

    def __init__(
        self,
        tasks: "Tasks",
        interval_ms: int,
        checkpoint: Callable[[Iterable["Partition"]], Callable[[], None]],
        each_interval: Callable[[], None] | None = None,
    ) -> None:
        self._tasks = tasks
        self._interval_s = interval_ms / 1000
        self._checkpoint = checkpoint
        self._each_interval = each_interval
        self.dirty: dict[Partition, None] = {}
        """Partitions with appends since their last complete flush. Partitions add themselves."""
        self._requested: dict[Partition, None] = {}
        self._syncing: dict[Partition, asyncio.Future[None]] = {}
        """Partitions in a running sync, with a future that is done after the sync's outcome was processed."""
        self._without_descriptor: dict[Partition, None] = {}
        """Partitions whose sync failed because no file descriptor was free. Their sync is requested again until it
        succeeds."""
        self._retry_timer: TimerHandle | None = None
        self._sync_all_scheduled = False
        self._running = False
        self._checkpoint_is_due = False
        """Whether the next interval flush writes checkpoints even if no partition is dirty. Reset by a successful
        write."""
        self._stopped = False
        self._warned_unwritten = False
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._tasks.call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """Start no further flush. Running flushes end by themselves; see `wait_for_flushes`."""
        self._stopped = True
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()

    def request(self, partition: "Partition") -> None:
        """Flush the partition now. If a group (of any partitions) or another sync of this partition is running, flush
        the partition afterwards.
        """
        self._requested[partition] = None
        self._flush_soon()

    def sync_all_soon(self) -> None:
        """Sync all dirty partitions in the next turn of the loop. This frees file descriptors, since files with
        unsynced data stay open.
        """
        if not self._sync_all_scheduled:
            self._sync_all_scheduled = True
            self._tasks.call_soon(self._request_all_dirty)

    def _request_all_dirty(self) -> None:
        self._sync_all_scheduled = False
        if not self._stopped:
            self._requested.update((p, None) for p in self.dirty if p.log.unflushed and _may_sync(p))
            self._flush_soon()

    def retry_checkpoint(self) -> None:
        """Write the checkpoints at the next interval flush, and retry at each following one until the write
        succeeds.
        """
        self._checkpoint_is_due = True

    async def wait_for_flushes(self) -> None:
        """Wait until no flush uses files of partitions that were marked deleted before the call.

        After `stop`, wait until no flush is running.
        """
        for sync_end in dict.fromkeys(self._syncing.values()):
            await asyncio.wait([sync_end])

    # Requested syncs

    def _flush_soon(self) -> None:
        if not self._running:
            self._running = True
            self._tasks.spawn(self._flush_requested(), name="group-commit")

    async def _flush_requested(self) -> None:
        try:
            while not self._stopped:
                ready = [partition for partition in self._requested if partition not in self._syncing]
                if not ready:
                    return  # the end of a running sync starts the next group
                if len(ready) > GROUP_MAX:
                    ready = ready[: GROUP_MAX // 2] + ready[-GROUP_MAX // 2 :]
                for partition in ready:
                    del self._requested[partition]
                await self._sync(ready, COMMITS_LANE)
        finally:
            self._running = False

    # Interval flush

    def _tick(self) -> None:
        self._tasks.spawn(self._run_interval_flush(), name="interval-flush")

    async def _run_interval_flush(self) -> None:
        """Sync the dirty partitions one by one, and write the checkpoints. Then set the timer for the next interval."""
        try:
            if self._each_interval is not None and not self._stopped:
                self._each_interval()
            dirty = [] if self._stopped else list(self.dirty)
            for partition, end_offset in [(p, p.log.log_end_offset) for p in dirty if _is_due(p)]:
                if partition.log.recovery_point < end_offset:
                    await self.flush_to(partition, end_offset)
                else:
                    await self.write_snapshots(partition)
            if dirty or self._checkpoint_is_due:
                self._checkpoint_is_due = True
                write = self._checkpoint(dirty)
                for partition in dirty:
                    if not partition.log.unflushed or not _may_sync(partition):
                        partition.in_dirty_set = False
                        self.dirty.pop(partition, None)
                await self._tasks.run_blocking(write, lane=CHECKPOINTS_LANE)
                self._checkpoint_is_due = self._warned_unwritten = False
        except OSError as error:
            # No record is lost: a missing checkpoint only makes the scan after a crash take longer. The next interval
            # retries.
            if not self._warned_unwritten:
                logger.error("recovery points not written reason=%s", error)
            self._warned_unwritten = True
        finally:
            if not self._stopped:
                self._timer = self._tasks.call_later(self._interval_s, self._tick)

    async def flush_to(self, partition: "Partition", end_offset: int) -> None:
        """Sync the partition, unless it is already durable up to `end_offset`.

        A failure takes the partition offline. If no file descriptor is free, the sync is retried later, after this
        call has returned.
        """
        while not self._stopped and partition.log.recovery_point < end_offset and _may_sync(partition):
            running_sync = self._syncing.get(partition)
            if running_sync is None:
                await self._sync([partition], "")
                return
            await asyncio.wait([running_sync])

    async def write_snapshots(self, partition: "Partition") -> None:
        """Write the partition's producer snapshots that are due, even if all records are durable.

        A failure takes the partition offline. If the disk is full or no file descriptor is free, the interval flush
        tries again.
        """
        while not self._stopped and partition.log.has_unsynced_segments and _may_sync(partition):
            if partition not in self._syncing:
                await self._sync([partition], "")
                return
            await asyncio.wait([self._syncing[partition]])
        if partition in self._syncing:  # this sync writes the snapshots
            await asyncio.wait([self._syncing[partition]])

    async def sync_to_ends(self, partitions: "Iterable[Partition]") -> None:
        """Sync the logs of these partitions together, up to their current ends. Partitions that are deleted or go
        offline are skipped.
        """
        ends = {partition: partition.log.log_end_offset for partition in partitions}
        while not self._stopped:
            behind = [
                partition
                for partition, end_offset in ends.items()
                if partition.log.durable_offset < end_offset and not partition.deleted and partition.log.failure is None
            ]
            if not behind:
                return
            ready = [partition for partition in behind if partition not in self._syncing and not partition.frozen]
            if ready:
                await self._sync(ready, COMMITS_LANE)
                if any(partition in self._without_descriptor for partition in ready):
                    await self._tasks.sleep(RETRY_S)
            elif behind[0] in self._syncing:
                await asyncio.wait([self._syncing[behind[0]]])
            else:
                await behind[0].wait_until_thawed()

    # Code that both kinds of flush use

    async def _sync(self, partitions: list["Partition"], lane: str) -> None:
        """Sync partitions that are in no running sync, and notify each of them.

        A failed sync is logged and takes its partition offline; no error is raised. A sync that found no free file
        descriptor is retried, and requests continue to wait for it.
        """
        plans: list[tuple[Partition, FlushPlan]] = []
        sync_end = self._tasks.future()
        for partition in filter(_may_sync, partitions):
            try:
                plans.append((partition, partition.log.flush_plan()))
            except Exception as error:
                logger.exception("partition offline partition=%s-%d", partition.topic, partition.index)
                partition.log.fail(f"cannot be flushed: {error}")
                partition.flushed()
            else:
                self._syncing[partition] = sync_end
        try:
            if plans:
                failures = await self._tasks.run_blocking(_run_all, [plan for _, plan in plans], lane=lane)
                for (partition, plan), failure in zip(plans, failures, strict=True):
                    self._process_outcome(partition, plan, failure)
        finally:
            for partition, _ in plans:
                del self._syncing[partition]
            sync_end.set_result(None)
            if self._requested and not self._stopped:
                self._flush_soon()

    def _process_outcome(self, partition: "Partition", plan: "FlushPlan", failure: Exception | None) -> None:
        if isinstance(failure, OSError) and lacks_descriptor(failure):
            partition.log.put_back(plan)
            self._retry_later(partition, failure)
            return
        self._without_descriptor.pop(partition, None)
        if failure is None:
            partition.log.flushed(plan)
        else:
            partition.log.fail(f"sync failed: {failure}", failure)
            logger.error("partition offline partition=%s-%d reason=%s", partition.topic, partition.index, failure)
        partition.flushed()

    def _retry_later(self, partition: "Partition", error: OSError) -> None:
        if not self._without_descriptor:
            logger.warning("sync put off partition=%s-%d reason=%s", partition.topic, partition.index, error)
        self._without_descriptor[partition] = None
        if self._retry_timer is None:
            self._retry_timer = self._tasks.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._without_descriptor = dict.fromkeys(filter(_may_sync, self._without_descriptor))
        if self._without_descriptor and not self._stopped:
            self._requested.update(self._without_descriptor)
            self._flush_soon()


def _is_due(partition: "Partition") -> bool:
    """Return whether the interval flush syncs the partition.

    With `durability=os` it syncs only complete segments that were not synced before, and writes their producer
    snapshots.
    """
    log = partition.log
    return log.unflushed and (partition.config.durability != "os" or log.has_unsynced_segments)


def _may_sync(partition: "Partition") -> bool:
    return not (partition.deleted or partition.frozen) and partition.log.failure is None


def _run_all(plans: list["FlushPlan"]) -> list[Exception | None]:
    """Sync the files of all plans, on a thread. If one plan fails, the other plans still run."""
    results: list[Exception | None] = []
    directories = DirectorySyncs()
    for plan in plans:
        try:
            plan.run(directories)
        except Exception as error:  # any error may mean that the content of this log on the disk is unknown
            results.append(error)
        else:
            results.append(None)
    return results
