"""Makes logs durable: at once for `durability=fsync` (group commit), within a bounded interval otherwise.

What is asked for is synced in groups, one group at a time: what is appended while one runs is taken by the next, so
that under load one fdatasync serves every request that came since the last. The interval flush goes through its
partitions one by one, beside that: an acknowledgement waits for the sync of its own partition and of those that others
wait for, never for the thousands that nobody waits for. No partition is in two syncs at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tidelog.log.flush import DirectorySyncs
from tidelog.replication.patience import AGAIN_S, wants_descriptor

if TYPE_CHECKING:
    from tidelog.log.partition_log import FlushPlan
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks, TimerHandle

logger = logging.getLogger("tidelog.flusher")

CHECKPOINTS_LANE: Final = "checkpoints"
"""Where whatever writes checkpoints runs, one after the other: two writers of one file would tear it."""
GROUP_MAX: Final = 16
"""Partitions that one call syncs; then those are told. Of more, the oldest and the newest: who asks for one waits for a
group, not for the hundreds that somebody else has asked for, and these go on all the same."""
COMMITS_LANE: Final = "commits"
"""Where syncs run that somebody waits for: cold reads and deletions may fill the threads without a lane."""


class Flusher:
    """Flushes partitions of one data directory and has their recovery points written down afterwards.

    `checkpoint` is given the partitions whose offsets may have moved; what it returns persists them, and blocks.
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
        self.grown: dict[Partition, None] = {}
        """What was appended to since it was last seen flushed; they note themselves."""
        self._asked: dict[Partition, None] = {}
        self._syncing: dict[Partition, asyncio.Future[None]] = {}
        """What is being synced, and what is done when that has ended and its outcome was taken."""
        self._put_off: dict[Partition, None] = {}
        """What could not be synced for want of descriptors, until it is; it is asked for again and again."""
        self._again: TimerHandle | None = None
        self._hurrying = False
        self._running = False
        self._unwritten = False  # whether the last checkpoint failed
        self._stopped = False
        self._told_unwritten = False
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._tasks.call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """No further flush; those that run end by themselves: see `settled`."""
        self._stopped = True
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()

    def request(self, partition: "Partition") -> None:
        """Flush it now, or right after the flushes that somebody waits for, or that of its own, which run."""
        self._asked[partition] = None
        self._commit()

    def hurry(self) -> None:
        """Sync in the next turn all that was appended to: until then its files keep their descriptors, which others
        want.
        """
        if not self._hurrying:
            self._hurrying = True
            self._tasks.call_soon(self._ask_for_all)

    def _ask_for_all(self) -> None:
        self._hurrying = False
        if not self._stopped:
            self._asked.update((p, None) for p in self.grown if p.log.unflushed and _may_sync(p))
            self._commit()

    def write_again(self) -> None:
        """Have the checkpoints written at the next interval, and every one after it until that succeeds."""
        self._unwritten = True

    async def settled(self) -> None:
        """Return once no flush touches files of partitions that were marked deleted before the call, nor, after `stop`,
        of any.
        """
        for ended in dict.fromkeys(self._syncing.values()):
            await asyncio.wait([ended])

    # What is asked for

    def _commit(self) -> None:
        if not self._running:
            self._running = True
            self._tasks.spawn(self._flush_asked(), name="group-commit")

    async def _flush_asked(self) -> None:
        try:
            while not self._stopped:
                ready = [partition for partition in self._asked if partition not in self._syncing]
                if not ready:
                    return  # the end of the others' syncs begins the next
                if len(ready) > GROUP_MAX:
                    ready = ready[: GROUP_MAX // 2] + ready[-GROUP_MAX // 2 :]
                for partition in ready:
                    del self._asked[partition]
                await self._sync(ready, COMMITS_LANE)
        finally:
            self._running = False

    # Now and then

    def _tick(self) -> None:
        self._tasks.spawn(self._interval(), name="interval-flush")

    async def _interval(self) -> None:
        try:
            if self._each_interval is not None and not self._stopped:
                self._each_interval()
            grown = [] if self._stopped else list(self.grown)
            for partition, end_offset in [(p, p.log.log_end_offset) for p in grown if _is_due(p)]:
                await self.flush_to(partition, end_offset)
            if grown or self._unwritten:
                self._unwritten = True
                write = self._checkpoint(grown)
                for partition in grown:
                    if not partition.log.unflushed or not _may_sync(partition):
                        partition.noted = False
                        self.grown.pop(partition, None)
                await self._tasks.run_blocking(write, lane=CHECKPOINTS_LANE)
                self._unwritten = self._told_unwritten = False
        except OSError as error:
            # The records are synced; only a longer scan after a crash is at stake. The next interval tries again.
            if not self._told_unwritten:
                logger.error("recovery points not written reason=%s", error)
            self._told_unwritten = True
        finally:
            if not self._stopped:
                self._timer = self._tasks.call_later(self._interval_s, self._tick)

    async def flush_to(self, partition: "Partition", end_offset: int) -> None:
        """Sync the partition unless it is durable up to `end_offset` by then. A failure takes it offline; where
        descriptors are wanting it is tried again, after this has returned.
        """
        while not self._stopped and partition.log.recovery_point < end_offset and _may_sync(partition):
            under_way = self._syncing.get(partition)
            if under_way is None:
                await self._sync([partition], "")
                return
            await asyncio.wait([under_way])

    # Both

    async def _sync(self, partitions: list["Partition"], lane: str) -> None:
        """Sync them, none of which is being synced, and tell each; a failed sync takes its partition offline and is
        logged, not raised. One for which a descriptor was wanting is tried again: who waits goes on waiting.
        """
        plans: list[tuple[Partition, FlushPlan]] = []
        ended = self._tasks.future()
        for partition in filter(_may_sync, partitions):
            try:
                plans.append((partition, partition.log.flush_plan()))
            except Exception as error:
                logger.exception("partition offline partition=%s-%d", partition.topic, partition.index)
                partition.log.fail(f"cannot be flushed: {error}")
                partition.flushed()
            else:
                self._syncing[partition] = ended
        try:
            if plans:
                failures = await self._tasks.run_blocking(_run_all, [plan for _, plan in plans], lane=lane)
                for (partition, plan), failure in zip(plans, failures, strict=True):
                    self._take_outcome(partition, plan, failure)
        finally:
            for partition, _ in plans:
                del self._syncing[partition]
            ended.set_result(None)
            if self._asked and not self._stopped:
                self._commit()

    def _take_outcome(self, partition: "Partition", plan: "FlushPlan", failure: Exception | None) -> None:
        if isinstance(failure, OSError) and wants_descriptor(failure):
            partition.log.put_back(plan)
            self._try_again(partition, failure)
            return
        self._put_off.pop(partition, None)
        if failure is None:
            partition.log.flushed(plan)
        else:
            partition.log.fail(f"sync failed: {failure}", failure)
            logger.error("partition offline partition=%s-%d reason=%s", partition.topic, partition.index, failure)
        partition.flushed()

    def _try_again(self, partition: "Partition", error: OSError) -> None:
        if not self._put_off:
            logger.warning("sync put off partition=%s-%d reason=%s", partition.topic, partition.index, error)
        self._put_off[partition] = None
        if self._again is None:
            self._again = self._tasks.call_later(AGAIN_S, self._ask_again)

    def _ask_again(self) -> None:
        self._again = None
        self._put_off = dict.fromkeys(filter(_may_sync, self._put_off))
        if self._put_off and not self._stopped:
            self._asked.update(self._put_off)
            self._commit()


def _is_due(partition: "Partition") -> bool:
    """Whether the interval flush takes it: with `durability=os`, whole segments that nobody synced alone."""
    log = partition.log
    return log.unflushed and (partition.config.durability != "os" or log.has_unsynced_segments)


def _may_sync(partition: "Partition") -> bool:
    return not (partition.deleted or partition.frozen) and partition.log.failure is None


def _run_all(plans: list["FlushPlan"]) -> list[Exception | None]:
    """Sync every plan's files, on a thread; one failure does not keep the others from the disk."""
    results: list[Exception | None] = []
    directories = DirectorySyncs()
    for plan in plans:
        try:
            plan.run(directories)
        except Exception as error:  # whatever it is, what the disk holds of this log is not known any more
            results.append(error)
        else:
            results.append(None)
    return results
