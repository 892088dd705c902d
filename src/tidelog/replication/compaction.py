"""Compaction of this broker's partitions: one at a time, the dirtiest first, by a process beside the broker.

The loop only chooses and puts finished segments in place. A partition whose log cannot be read is left alone from then
on; the others go on. So is one that moves between data directories, while it does; what is clean in it is clean in its
copy. What a pass has written is removed when the pass ends early.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.cleaner.choice import Cleanable, cleanable
from tidelog.log.cleaner.job import (
    Cleaned,
    CleanerLimits,
    CleanJob,
    GroupCleaned,
    Interrupted,
    Report,
    SegmentFacts,
    Uncleanable,
    decode_report,
)
from tidelog.log.cleaner.swap import Swap
from tidelog.log.errors import CorruptLog
from tidelog.log.indexes import CorruptIndex
from tidelog.log.leftovers import remove_cleaned
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.replication.patience import retry_without_descriptor
from tidelog.runtime.interfaces import WorkEnded

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.log.partition_log import PartitionLog
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.compaction")

LOOKED_AT_ONCE = 50
"""Partitions between two turns of the loop."""
REST_S = 60.0
"""How long a partition is passed over whose pass was interrupted, by a full disk for one."""


class Abandoned(Exception):
    """The log has changed under the pass."""


class Compaction:
    """Cleans partitions whose topics have `cleanup.policy=compact`, from `start` to `stop`."""

    def __init__(self, runtime: "Runtime", config: "BrokerConfig", partitions: "Partitions") -> None:
        self._runtime = runtime
        self._config = config
        self._partitions = partitions
        self._clean_offsets: dict[Partition, int | None] = {}
        self._uncleanable: dict[Partition, str] = {}
        self._resting: dict[Partition, float] = {}
        """Until when, on the monotonic clock."""
        self._failed: dict[Partition, None] = {}
        """Whose last pass ended with its process."""
        self._running: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._running = self._runtime.tasks.spawn(self._run(), name="compaction")

    async def stop(self) -> None:
        """End the pass that runs, once no file is on its way from one name to another."""
        self._stopping = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        if self._partitions.swapping is not None:
            await asyncio.wait([self._partitions.swapping])

    async def _run(self) -> None:
        """Clean what is worthwhile: at once after the start, as Kafka does, and again and again."""
        while True:
            try:
                while await self.clean_dirtiest():
                    pass
            except Exception:
                logger.exception("compaction failed")  # and is tried again the next time
            await self._runtime.tasks.sleep(self._config.log_cleaner_backoff_ms / 1000)

    async def clean_dirtiest(self) -> bool:
        """One pass over the partition that has most to gain; whether there was one."""
        best: tuple[float, Partition, Cleanable] | None = None
        for count, partition in enumerate(self._partitions, 1):
            if count % LOOKED_AT_ONCE == 0:
                await self._runtime.tasks.sleep(0)
            found = self._look_at(partition)
            if found is not None and (best is None or found.dirty_ratio > best[0]):
                best = found.dirty_ratio, partition, found
        self._forget_deleted()
        if best is None:
            return False
        _, partition, found = best
        if not self._may_be_cleaned(partition):
            return True  # changed in a turn of the loop: look again
        await self._clean(partition, found)
        return True

    def _may_be_cleaned(self, partition: "Partition") -> bool:
        log = partition.log
        return (
            log.config.compacts
            and not partition.deleted
            and not partition.frozen
            and partition not in self._partitions.moves
            and log.failure is None
            and not log.segments.swapping
            and partition not in self._uncleanable
            and self._resting.get(partition, 0.0) <= self._runtime.clock.monotonic()
        )

    def _look_at(self, partition: "Partition") -> Cleanable | None:
        """What a pass over it would clean, if that is worthwhile."""
        if partition not in self._clean_offsets:
            self._clean_offsets[partition] = self._partitions.directories.clean_offset(partition.log.topic_partition)
        if not self._may_be_cleaned(partition):
            return None
        try:
            now_ms = self._runtime.clock.now_ms()
            found = cleanable(partition.log, self._clean_offsets[partition], partition.high_watermark, now_ms)
        except CorruptLog as error:
            self._give_up(partition, str(error))
            return None
        except OSError as error:
            self._interrupted(partition, str(error))
            return None
        return found if found.worthwhile(partition.log.config) else None

    def _forget_deleted(self) -> None:
        for known in (self._clean_offsets, self._uncleanable, self._resting, self._failed):
            for partition in [partition for partition in known if partition.deleted]:
                del known[partition]

    # A pass

    async def _clean(self, partition: "Partition", found: Cleanable) -> None:
        clock = self._runtime.clock
        began = clock.monotonic()
        groups: list[GroupCleaned] = []
        log = partition.log
        try:
            end = await self._pass(partition, log, found, groups)
        except Abandoned as reason:
            logger.info("log cleaning abandoned partition=%s reason=%s", log.topic_partition, reason)
            await self._remove_written(log)
            self._rest(partition)
            return
        except WorkEnded as error:
            await self._remove_written(log)
            # Neither the log's damage nor the disk's, which are reported. Once may be want of memory; twice is the log.
            if partition in self._failed:
                self._give_up(partition, f"the work on it failed twice: {error}")
            else:
                self._failed[partition] = None
                self._interrupted(partition, str(error))
            return
        self._failed.pop(partition, None)
        if not isinstance(end, Cleaned):
            await self._remove_written(log)
        if isinstance(end, Uncleanable):
            self._give_up(partition, end.reason)
        elif isinstance(end, Interrupted):
            self._interrupted(partition, end.reason)
        elif isinstance(end, Cleaned) and log is not partition.log:
            logger.info("log cleaning abandoned partition=%s reason=it has moved", log.topic_partition)
        elif isinstance(end, Cleaned):
            logger.info(
                "log cleaned partition=%s from=%d to=%d keys=%d segments_before=%d segments_after=%d bytes_before=%d "
                "bytes_after=%d records_before=%d records_after=%d seconds=%.3f",
                log.topic_partition,
                found.first_dirty_offset,
                end.end_offset,
                end.keys,
                sum(len(group.base_offsets) for group in groups),
                len(groups),
                sum(group.bytes_before for group in groups),
                sum(group.size for group in groups),
                sum(group.records_before for group in groups),
                sum(group.records_after for group in groups),
                clock.monotonic() - began,
            )
            self._clean_offsets[partition] = end.end_offset
            await self._checkpoint()

    async def _remove_written(self, log: "PartitionLog") -> None:
        """What the pass has written and not put in place: on a full disk it would be in the way."""
        if log.failure is not None:
            return  # it may lie beside a swap that is not over: the next start's
        try:
            await self._runtime.tasks.run_blocking(remove_cleaned, self._runtime.disk, log.directory)
        except OSError as error:  # the next pass does it, or the next start
            logger.warning("cleaned segments not removed path=%s reason=%s", log.directory, error)

    async def _pass(
        self, partition: "Partition", log: "PartitionLog", found: Cleanable, groups: list[GroupCleaned]
    ) -> Report | None:
        """The last report. Each group is put in place as it comes. Raises Abandoned, WorkEnded."""
        from tidelog.log.cleaner import work  # costs a start more than it can use of it

        reports: deque[bytes] = deque()
        news = asyncio.Event()

        def report(content: bytes) -> None:
            reports.append(content)
            news.set()

        tasks = self._runtime.tasks
        request = self._job(log, found).encode()
        working = tasks.run_apart(work.clean, self._runtime.disk, request, report)
        working.add_done_callback(lambda _: news.set())
        end: Report | None = None
        try:
            while reports or not working.done():
                await news.wait()
                news.clear()
                while reports:
                    try:
                        end = decode_report(reports.popleft())
                    except ValueError as error:
                        raise WorkEnded(str(error)) from error
                    if isinstance(end, GroupCleaned):
                        # To its end, whoever is cancelled: see `stop`.
                        swapping = tasks.spawn(self._swap(partition, log, end), name="swap")
                        self._partitions.swapping = swapping
                        await asyncio.shield(swapping)
                        groups.append(end)
            await working
        finally:
            working.cancel()
        return end

    def _job(self, log: "PartitionLog", found: Cleanable) -> CleanJob:
        config, items = self._config, log.segments.items
        return CleanJob(
            log.directory,
            [SegmentFacts(s.base_offset, s.size) for s in items if s.base_offset < found.end_offset],
            found.first_dirty_offset,
            found.end_offset,
            [s.base_offset for s in items if s.transactions.exists],
            {
                producer_id: (entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
                for producer_id, entry in log.producers.entries.items()
                if not entry.batches or entry.batches[-1].last_offset < found.end_offset
            },
            self._runtime.clock.now_ms(),
            log.config.delete_retention_ms,
            log.config.segment_bytes,
            log.config.segment_index_bytes,
            log.config.index_interval_bytes,
            CleanerLimits(
                config.log_cleaner_dedupe_buffer_size,
                config.log_cleaner_io_buffer_load_factor,
                config.log_cleaner_io_max_bytes_per_second,
                config.log_cleaner_io_buffer_size,
            ),
        )

    async def _swap(self, partition: "Partition", log: "PartitionLog", group: GroupCleaned) -> None:
        """Put a rewritten segment in place. Raises Abandoned.

        From `begin` to `end` the log stays the partition's: a move waits for it.
        """
        if partition.log is not log or partition.frozen or partition in self._partitions.moves:
            raise Abandoned("it moves to another directory")
        run_blocking = self._runtime.tasks.run_blocking
        swap = Swap(self._runtime.disk, log, group)
        if partition.deleted or not swap.begin():
            if not partition.deleted:
                await run_blocking(swap.discard)
            raise Abandoned("its segments are not the same any more")
        if self._clean_offsets.get(partition) is None:
            # Before the first offset goes: by its entry here a log with holes is told from one that has lost a file.
            self._clean_offsets[partition] = log.log_start_offset
            await self._checkpoint()
        try:
            await run_blocking(swap.announce)
        except (OSError, CorruptIndex, CorruptLog) as error:  # the files are not as they were written
            await self._undo(partition, swap)
            raise Abandoned(str(error)) from error
        swap.install()
        try:
            await self._to_its_end(swap.finish, partition)
        except OSError as error:
            if not partition.deleted:
                partition.log.fail(f"a cleaned segment could not be put in place: {error}", error)
                partition.fail()
            raise Abandoned(str(error)) from error
        swap.end(self._runtime.clock.now_ms())

    async def _undo(self, partition: "Partition", swap: Swap) -> None:
        try:
            await self._to_its_end(swap.discard, partition)
        except OSError as error:
            if not partition.deleted:  # the next start would finish what this process has not
                partition.log.fail(f"a cleaned segment could not be taken back: {error}", error)
                partition.fail()
        swap.give_up()

    async def _to_its_end(self, step: Callable[[], None], partition: "Partition") -> None:
        """A step without which the log fails. Raises OSError."""
        await retry_without_descriptor(self._runtime.tasks, lambda: not (self._stopping or partition.deleted), step)

    def _give_up(self, partition: "Partition", reason: str) -> None:
        """Until the next start, after which somebody may have repaired it."""
        if not partition.deleted:
            self._uncleanable[partition] = reason
            logger.error("log uncleanable partition=%s reason=%s", partition.log.topic_partition, reason)

    def _interrupted(self, partition: "Partition", reason: str) -> None:
        logger.warning("log cleaning interrupted partition=%s reason=%s", partition.log.topic_partition, reason)
        self._rest(partition)

    def _rest(self, partition: "Partition") -> None:
        self._resting[partition] = self._runtime.clock.monotonic() + REST_S

    async def _checkpoint(self) -> None:
        offsets = {}
        for partition, offset in self._clean_offsets.items():
            if offset is not None and not partition.deleted:
                offsets[partition.log.topic_partition] = offset
        try:
            await self._runtime.tasks.run_blocking(
                self._partitions.directories.write_cleaner_offsets, offsets, lane=CHECKPOINTS_LANE
            )
        except OSError as error:
            # Only work is at stake: after a restart the same stretch is cleaned again.
            logger.error("cleaner offsets not written reason=%s", error)
