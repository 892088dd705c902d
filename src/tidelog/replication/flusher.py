"""Makes logs durable: at once for `durability=fsync` (group commit), within a bounded interval otherwise.

One flush runs at a time. What is appended while it runs is taken by the next: under load one fdatasync serves every
request that came since the last, and none waits for more than two.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.log.partition_log import FlushPlan
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks, TimerHandle

logger = logging.getLogger("tidelog.flusher")

CHECKPOINTS_LANE: Final = "checkpoints"
"""Where whatever writes checkpoints runs, one after the other: two writers of one file would tear it."""


class Flusher:
    """Flushes partitions of one data directory and has their recovery points written down afterwards.

    `dirty` lists the partitions with unflushed records; `checkpoint` persists recovery points, and blocks.
    """

    def __init__(
        self,
        tasks: "Tasks",
        interval_ms: int,
        dirty: Callable[[], list["Partition"]],
        checkpoint: Callable[[], Callable[[], None]],
    ) -> None:
        self._tasks = tasks
        self._interval_s = interval_ms / 1000
        self._dirty = dirty
        self._checkpoint = checkpoint
        self._asked: dict[Partition, None] = {}
        self._running = False
        self._one_at_a_time = asyncio.Lock()
        self._stopped = False
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._tasks.call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """No further interval flush; one that runs ends by itself: see `settled`."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def request(self, partition: "Partition") -> None:
        """Flush it now, or right after the flush that runs."""
        self._asked[partition] = None
        if not self._running:
            self._running = True
            self._tasks.spawn(self._flush_asked(), name="group-commit")

    async def flush(self, partitions: list["Partition"]) -> None:
        """Flush them and tell each; a failed sync takes its partition offline and is logged, not raised."""
        # Two flushes of one log at a time would write its small files side by side.
        async with self._one_at_a_time:
            await self._flush([p for p in partitions if not p.deleted and p.log.failure is None])

    async def settled(self) -> None:
        """Return once no flush touches files of partitions that were marked deleted, or that no new flush is asked
        for.
        """
        async with self._one_at_a_time:
            pass

    async def _flush(self, partitions: list["Partition"]) -> None:
        plans: list[tuple[Partition, FlushPlan]] = []
        for partition in partitions:
            try:
                plans.append((partition, partition.log.flush_plan()))
            except Exception as error:
                logger.exception("partition offline partition=%s-%d", partition.topic, partition.index)
                partition.log.fail(f"cannot be flushed: {error}")
                partition.flushed()
        failures = await self._tasks.run_blocking(_run_all, [plan for _, plan in plans])
        for (partition, plan), failure in zip(plans, failures, strict=True):
            if failure is None:
                partition.log.flushed(plan)
            else:
                partition.log.fail(f"sync failed: {failure}")
                logger.error("partition offline partition=%s-%d reason=%s", partition.topic, partition.index, failure)
            partition.flushed()

    async def _flush_asked(self) -> None:
        try:
            while self._asked and not self._stopped:
                asked, self._asked = self._asked, {}
                await self.flush(list(asked))
        finally:
            self._running = False

    def _tick(self) -> None:
        self._tasks.spawn(self._interval(), name="interval-flush")

    async def _interval(self) -> None:
        try:
            dirty = [] if self._stopped else self._dirty()
            if dirty:
                await self.flush(dirty)
                await self._tasks.run_blocking(self._checkpoint(), lane=CHECKPOINTS_LANE)
        except OSError as error:
            # The records are synced; only a longer scan after a crash is at stake. The next interval tries again.
            logger.error("recovery points not written reason=%s", error)
        finally:
            if not self._stopped:
                self._timer = self._tasks.call_later(self._interval_s, self._tick)


def _run_all(plans: list["FlushPlan"]) -> list[OSError | None]:
    """Sync every plan's files, on a thread; one failure does not keep the others from the disk."""
    results: list[OSError | None] = []
    for plan in plans:
        try:
            plan.run()
        except OSError as error:
            results.append(error)
        else:
            results.append(None)
    return results
