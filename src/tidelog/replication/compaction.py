"""Compact this broker's partitions, one at a time, the dirtiest first. A pass compacts one partition. A child process
reads and writes the segments.

The event loop only chooses the partition and swaps finished segments in. The clean offset of a partition is the end of
the part of its log that was compacted. A partition whose log cannot be decoded is not compacted again before the next
start; other partitions are not affected. A partition is not compacted while it moves to another data directory; its
clean offset stays valid for the copy. When a pass ends early, new files that were not swapped in are removed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.cleaner.choice import CleanablePart, cleanable_part
from tidelog.log.cleaner.job import (
    CleanerLimits,
    CleanJob,
    DamageReport,
    GroupReport,
    InterruptionReport,
    Report,
    SegmentFacts,
    SuccessReport,
    decode_report,
)
from tidelog.log.cleaner.swap import Swap
from tidelog.log.errors import CorruptLog
from tidelog.log.indexes import CorruptIndex
from tidelog.log.leftovers import remove_cleaned
from tidelog.replication.descriptor_retry import retry_without_descriptor
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.runtime.interfaces import WorkEnded

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.log.partition_log import PartitionLog
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.compaction")

PARTITIONS_PER_TURN = 50
"""Number of partitions that are checked in one turn of the event loop."""
RETRY_DELAY_S = 60.0
"""Time, in seconds, for which a partition is skipped after its pass was abandoned or interrupted (for example by a full
disk)."""


class PassAbandoned(Exception):
    """The pass must stop: the log has changed after the pass began, the new files cannot be swapped in, or the producer
    snapshot that must be written first cannot be written."""


class Compaction:
    """Cleans partitions whose topics have `cleanup.policy=compact`, from `start` to `stop`."""

    def __init__(self, runtime: "Runtime", config: "BrokerConfig", partitions: "Partitions") -> None:
        self._runtime = runtime
        self._config = config
        self._partitions = partitions
        self._clean_offsets: dict[Partition, int | None] = {}
        """The clean offsets that are known; None for a log that was never compacted."""
        self._uncleanable: dict[Partition, str] = {}
        """Partitions that are not compacted before the next start, with the reasons."""
        self._retry_at: dict[Partition, float] = {}
        """For partitions whose pass was interrupted or abandoned: the earliest time of the next pass, on the monotonic
        clock."""
        self._failed_once: dict[Partition, None] = {}
        """Partitions whose child process failed in their last pass (abandoned passes do not count)."""
        self._cleaned_partition: Partition | None = None
        """The partition of the running pass, or of the last pass if none is running."""
        self._cut_during_pass = False
        """Whether the log of `_cleaned_partition` was cut after the pass began."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._partitions.cuts.on_cut = self._lower_clean_offset
        self._task = self._runtime.tasks.spawn(self._run(), name="compaction")

    async def stop(self) -> None:
        """End the running pass, after its current swap."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._partitions.swapping is not None:
            await asyncio.wait([self._partitions.swapping])

    async def _run(self) -> None:
        """Compact every partition for which a pass is worthwhile: immediately after the start, as Kafka does, and
        then repeatedly.
        """
        while True:
            try:
                while await self.clean_dirtiest():
                    pass
            except Exception:
                logger.exception("compaction failed")  # the next round retries
            await self._runtime.tasks.sleep(self._config.log_cleaner_backoff_ms / 1000)

    async def clean_dirtiest(self) -> bool:
        """Run one pass over the dirtiest partition. Returns False if no partition needs a pass."""
        best: tuple[float, Partition, CleanablePart] | None = None
        for count, partition in enumerate(self._partitions, 1):
            if count % PARTITIONS_PER_TURN == 0:
                await self._runtime.tasks.sleep(0)
            candidate = self._cleanable_part(partition)
            if candidate is not None and (best is None or candidate.dirty_ratio > best[0]):
                best = candidate.dirty_ratio, partition, candidate
        self._forget_deleted()
        if best is None:
            return False
        _, partition, candidate = best
        if not self._may_be_cleaned(partition):
            return True  # the partition changed during an await: choose again
        await self._clean(partition, candidate)
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
            and self._retry_at.get(partition, 0.0) <= self._runtime.clock.monotonic()
        )

    def _cleanable_part(self, partition: "Partition") -> CleanablePart | None:
        """Return the part of the log that a pass would clean, or None if a pass is not worthwhile or not possible."""
        if partition not in self._clean_offsets:
            self._clean_offsets[partition] = self._partitions.directories.clean_offset(partition.log.topic_partition)
        if not self._may_be_cleaned(partition):
            return None
        try:
            now_ms = self._runtime.clock.now_ms()
            candidate = cleanable_part(partition.log, self._clean_offsets[partition], partition.high_watermark, now_ms)
        except CorruptLog as error:
            self._mark_uncleanable(partition, str(error))
            return None
        except OSError as error:
            self._note_interrupted(partition, str(error))
            return None
        return candidate if candidate.is_worthwhile(partition.log.config) else None

    def _lower_clean_offset(self, partition: "Partition", offset: int) -> None:
        """Lower the clean offset, since the log is cut at `offset`, and records written after the cut are not compacted
        yet. If a pass over this log is running, it is abandoned.
        """
        clean_offset = self._clean_offsets.get(partition)
        if clean_offset is not None:
            self._clean_offsets[partition] = min(clean_offset, offset)
        if self._cleaned_partition is partition:
            self._cut_during_pass = True

    def _forget_deleted(self) -> None:
        for table in (self._clean_offsets, self._uncleanable, self._retry_at, self._failed_once):
            for partition in [partition for partition in table if partition.deleted]:
                del table[partition]

    # A pass

    async def _clean(self, partition: "Partition", candidate: CleanablePart) -> None:
        """Run one pass over the candidate part of the log, and process its result."""
        clock = self._runtime.clock
        started = clock.monotonic()
        groups: list[GroupReport] = []
        log = partition.log
        self._cleaned_partition, self._cut_during_pass = partition, False
        try:
            await self._write_snapshot(partition, log, candidate)
            last_report = await self._run_pass(partition, log, candidate, groups)
        except PassAbandoned as reason:
            logger.info("log cleaning abandoned partition=%s reason=%s", log.topic_partition, reason)
            await self._remove_cleaned_files(log)
            self._postpone(partition)
            return
        except WorkEnded as error:
            await self._remove_cleaned_files(log)
            # Damage of the log and errors of the disk have reports of their own, so this error has another cause.
            # The first time it may be a lack of memory; after the second time the log is treated as the cause.
            if partition in self._failed_once:
                self._mark_uncleanable(partition, f"its compaction failed twice: {error}")
            else:
                self._failed_once[partition] = None
                self._note_interrupted(partition, str(error))
            return
        self._failed_once.pop(partition, None)
        if not isinstance(last_report, SuccessReport):
            await self._remove_cleaned_files(log)
        if isinstance(last_report, DamageReport):
            self._mark_uncleanable(partition, last_report.reason)
        elif isinstance(last_report, InterruptionReport):
            self._note_interrupted(partition, last_report.reason)
        elif isinstance(last_report, SuccessReport) and log is not partition.log:
            logger.info("log cleaning abandoned partition=%s reason=it has moved", log.topic_partition)
        elif isinstance(last_report, SuccessReport):
            logger.info(
                "log cleaned partition=%s from=%d to=%d keys=%d segments_before=%d segments_after=%d bytes_before=%d "
                "bytes_after=%d records_before=%d records_after=%d seconds=%.3f",
                log.topic_partition,
                candidate.first_dirty_offset,
                last_report.end_offset,
                last_report.keys,
                sum(len(group.base_offsets) for group in groups),
                len(groups),
                sum(group.bytes_before for group in groups),
                sum(group.size for group in groups),
                sum(group.records_before for group in groups),
                sum(group.records_after for group in groups),
                clock.monotonic() - started,
            )
            self._clean_offsets[partition] = last_report.end_offset
            await self._write_clean_offsets()

    async def _write_snapshot(self, partition: "Partition", log: "PartitionLog", candidate: CleanablePart) -> None:
        """Make sure that a durable producer snapshot includes all batches that the pass may remove.

        Without this snapshot, a restart would load an older one and replay the compacted batches after it. If the pass
        had removed the marker of a transaction, the transaction would stay open forever. Raises PassAbandoned.
        """
        if log.lacks_snapshot(candidate.end_offset):
            await self._partitions.flusher.write_snapshots(partition)
            if not self._may_be_cleaned(partition) or log is not partition.log or self._cut_during_pass:
                raise PassAbandoned("it has changed")
            if log.lacks_snapshot(candidate.end_offset):
                partition.mark_dirty()
                raise PassAbandoned("the snapshot of its producers could not be written")

    async def _remove_cleaned_files(self, log: "PartitionLog") -> None:
        """Remove the files that the pass has written and has not swapped in. On a full disk they would occupy
        needed space.
        """
        if log.failure is not None:
            return  # an unfinished swap may need the files; the next start decides
        try:
            await self._runtime.tasks.run_blocking(remove_cleaned, self._runtime.disk, log.directory)
        except OSError as error:  # the next pass or the next start removes the files
            logger.warning("cleaned segments not removed path=%s reason=%s", log.directory, error)

    async def _run_pass(
        self, partition: "Partition", log: "PartitionLog", candidate: CleanablePart, groups: list[GroupReport]
    ) -> Report | None:
        """Run the pass in the child process. When the report about a group of segments arrives, swap in the group's new
        segment. Return the last report.

        Raises PassAbandoned, and WorkEnded if the child process fails.
        """
        from tidelog.log.cleaner import work  # imported late, since this import would slow down every start

        reports: deque[bytes] = deque()
        report_or_end = asyncio.Event()

        def report(content: bytes) -> None:
            reports.append(content)
            report_or_end.set()

        tasks = self._runtime.tasks
        request = self._job(log, candidate).encode()
        work_future = tasks.run_in_child(work.clean, self._runtime.disk, request, report)
        work_future.add_done_callback(lambda _: report_or_end.set())
        last_report: Report | None = None
        try:
            while reports or not work_future.done():
                await report_or_end.wait()
                report_or_end.clear()
                while reports:
                    try:
                        last_report = decode_report(reports.popleft())
                    except ValueError as error:
                        raise WorkEnded(str(error)) from error
                    if isinstance(last_report, GroupReport):
                        # Shielded: a swap that has begun must end, even if this task is cancelled. `stop` waits for
                        # the end of the swap.
                        swapping = tasks.spawn(self._swap(partition, log, last_report), name="swap")
                        self._partitions.swapping = swapping
                        await asyncio.shield(swapping)
                        groups.append(last_report)
            await work_future
        finally:
            work_future.cancel()
        if self._cut_during_pass:
            raise PassAbandoned("its log was truncated")
        return last_report

    def _job(self, log: "PartitionLog", candidate: CleanablePart) -> CleanJob:
        """Return the request for the child process."""
        config, items = self._config, log.segments.items
        return CleanJob(
            directory=log.directory,
            segments=[SegmentFacts(s.base_offset, s.size) for s in items if s.base_offset < candidate.end_offset],
            first_dirty_offset=candidate.first_dirty_offset,
            end_offset=candidate.end_offset,
            transaction_indexes=[s.base_offset for s in items if s.transactions.exists],
            producers={
                producer_id: (entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
                for producer_id, entry in log.producers.entries.items()
                if not entry.batches or entry.batches[-1].last_offset < candidate.end_offset
            },
            now_ms=self._runtime.clock.now_ms(),
            delete_retention_ms=log.config.delete_retention_ms,
            segment_bytes=log.config.segment_bytes,
            segment_index_bytes=log.config.segment_index_bytes,
            index_interval_bytes=log.config.index_interval_bytes,
            limits=CleanerLimits(
                config.log_cleaner_dedupe_buffer_size,
                config.log_cleaner_io_buffer_load_factor,
                config.log_cleaner_io_max_bytes_per_second,
                config.log_cleaner_io_buffer_size,
            ),
        )

    async def _swap(self, partition: "Partition", log: "PartitionLog", group: GroupReport) -> None:
        """Replace the segments of a group by the segment that the child process wrote. Raises PassAbandoned.

        From `begin` to `end` of the swap, the partition must use this log. So a move to another directory waits for the
        end of the swap.
        """
        if partition.log is not log or partition.frozen or partition in self._partitions.moves:
            raise PassAbandoned("it moves to another directory, or is truncated")
        if self._cut_during_pass:
            raise PassAbandoned("its log was truncated")
        run_blocking = self._runtime.tasks.run_blocking
        swap = Swap(self._runtime.disk, log, group)
        if partition.deleted or not swap.begin():
            raise PassAbandoned("its segments have changed, or it was deleted")
        if self._clean_offsets.get(partition) is None:
            # Write a clean offset before the first record is removed: a clean offset shows that holes in the log come
            # from compaction and not from a lost file. Without it, if the topic is not compacted any more, a later
            # start could take the holes for missing files.
            self._clean_offsets[partition] = log.log_start_offset
            await self._write_clean_offsets()
            if self._partitions.directories.clean_offset(log.topic_partition) is None:
                self._clean_offsets[partition] = None
                swap.give_up()
                raise PassAbandoned("its first clean offset could not be written")
        try:
            await run_blocking(swap.announce)
        # a disk error, or the files differ from those that the child process wrote
        except (OSError, CorruptIndex, CorruptLog) as error:
            await self._undo(partition, swap)
            raise PassAbandoned(str(error)) from error
        swap.install()
        try:
            await self._run_with_retries(swap.finish, partition)
        except OSError as error:
            if not partition.deleted:
                partition.log.fail(f"the files of a compacted segment could not be renamed: {error}", error)
                partition.fail()
            raise PassAbandoned(str(error)) from error
        swap.end(self._runtime.clock.now_ms())

    async def _undo(self, partition: "Partition", swap: Swap) -> None:
        try:
            await self._run_with_retries(swap.discard, partition)
        except OSError as error:
            # The next start may finish this swap, so the log must not change until then.
            if not partition.deleted:
                partition.log.fail(f"the files of an abandoned compaction could not be removed: {error}", error)
                partition.fail()
        swap.give_up()

    async def _run_with_retries(self, step: Callable[[], None], partition: "Partition") -> None:
        """Run a blocking step of a swap. Retry it while no file descriptor is free.

        Raises OSError. In this case the caller must take the log offline.
        """
        await retry_without_descriptor(self._runtime.tasks, lambda: not (self._stopping or partition.deleted), step)

    def _mark_uncleanable(self, partition: "Partition", reason: str) -> None:
        """Skip the partition until the next start. By that time its log may have been repaired."""
        if not partition.deleted:
            self._uncleanable[partition] = reason
            logger.error("log uncleanable partition=%s reason=%s", partition.log.topic_partition, reason)

    def _note_interrupted(self, partition: "Partition", reason: str) -> None:
        logger.warning("log cleaning interrupted partition=%s reason=%s", partition.log.topic_partition, reason)
        self._postpone(partition)

    def _postpone(self, partition: "Partition") -> None:
        self._retry_at[partition] = self._runtime.clock.monotonic() + RETRY_DELAY_S

    async def _write_clean_offsets(self) -> None:
        offsets = {}
        for partition, offset in self._clean_offsets.items():
            if offset is not None and not partition.deleted:
                offsets[partition.log.topic_partition] = offset
        try:
            await self._runtime.tasks.run_blocking(
                self._partitions.directories.write_cleaner_offsets, offsets, lane=CHECKPOINTS_LANE
            )
        except OSError as error:
            # Nothing is lost: after a restart, the same part is cleaned again.
            logger.error("cleaner offsets not written reason=%s", error)
