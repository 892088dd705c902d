"""Cut the logs of followers where they differ from the leader's log. If the whole log of a follower is before the start
of the leader's log, the follower's log is made empty instead.

No flush, retention, compaction swap or move of the same log may run during a cut. The steps of a cut are:

    freeze       no flush, retention or compaction swap begins; a move is stopped and is restarted after the cut
    sync         only if the log is made empty: the whole log becomes durable
    checkpoint   offsets are stored durably, so that the next start accepts the log even if the cut was interrupted
    cut          a thread cuts the files (log/cut.py)
    start        only if the log was made empty: its new start offset is stored durably
    install      the log, the replica and the checkpoints receive the new end

A log is also made empty if the cut is below its start offset, or inside the batch at its start offset.

If the checkpoints cannot be stored, for example because the disk is full, the cut waits. Meanwhile the partition is not
frozen, so that retention of the same partition can free space. Then the cut begins again with the first step. If the
disk is full when the files are cut or the new start offset is stored, only this step is repeated, since the log cannot
be used in between.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.log.cut import end_of_cut
from tidelog.log.errors import CorruptLog
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.replication.descriptor_retry import RETRY_S, lacks_descriptor, retry_without_descriptor
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.replication.full_directories import NO_SPACE
from tidelog.replication.replica import NO_EPOCH, CutEnded, CutTo

if TYPE_CHECKING:
    from tidelog.log.cut import Cut
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

T = TypeVar("T")

logger = logging.getLogger("tidelog.partitions")


class _Waiting:
    """Reports that a cut waits, because the disk is full or its checkpoints cannot be stored. This is logged once. If
    the replica is to lead after the cut, no broker leads the partition meanwhile: this is logged once for each leader
    epoch.
    """

    def __init__(self, partition: "Partition", on_promotion: "Callable[[Partition], None] | None") -> None:
        self._partition = partition
        self._on_promotion = on_promotion
        self._is_logged = False
        self._promoted_in_epoch = NO_EPOCH
        """The last leader epoch for which it was logged that no broker leads the partition."""

    def report(self, failure: OSError) -> None:
        partition = self._partition
        replica = partition.replica
        name = f"{partition.topic}-{partition.index}"
        if not self._is_logged:
            self._is_logged = True
            logger.warning("truncation put off partition=%s reason=%s", name, failure)
        if replica.leads_after_cut:
            if self._promoted_in_epoch != replica.leader_epoch:
                self._promoted_in_epoch = replica.leader_epoch
                logger.error(
                    "no leader until the log is truncated partition=%s leader_epoch=%d reason=%s",
                    name,
                    replica.leader_epoch,
                    failure,
                )
            if self._on_promotion is not None and failure.errno in NO_SPACE:
                self._on_promotion(partition)


class Cuts:
    """The running cuts of a broker, at most one for each partition. All methods are called on the event loop."""

    def __init__(self, runtime: "Runtime", partitions: "Partitions") -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._threads: dict[Partition, asyncio.Future[Any]] = {}
        self._stopped = False
        self.on_cut: Callable[[Partition, int], None] | None = None
        """Called before a log is cut, with the partition and the offset of the cut."""
        self.on_waiting_promotion: Callable[[Partition], None] | None = None
        """Called while a cut waits for space on the disk and this broker is to lead the partition after the cut. The
        callback must not block."""

    def begin(self, partition: "Partition", effect: CutTo) -> None:
        """Cut the partition's log, then report CutEnded to its replica."""
        if effect.high_watermark > effect.offset and not effect.empties:
            logger.error(
                "committed records truncated partition=%s-%d from=%d to=%d high_watermark=%d leader_epoch=%d "
                "reason=the leader does not have them; this happens only after an unclean election or a loss of disks",
                partition.topic,
                partition.index,
                partition.log_end_offset,
                effect.offset,
                effect.high_watermark,
                partition.leader_epoch,
            )
        self._tasks[partition] = self._runtime.tasks.spawn(self._run(partition, effect), name="cut")

    async def wait(self, partition: "Partition") -> None:
        """Wait until no cut of the partition's log is running."""
        task = self._tasks.get(partition)
        if task is not None:
            await asyncio.wait([task])

    async def wait_for_threads(self) -> None:
        """Wait for all threads that cut files now. Then no thread cuts the log of a partition that was marked deleted
        before the call.
        """
        for running in list(self._threads.values()):
            await asyncio.wait([running])

    async def close(self) -> None:
        """Wait for the running cuts, since the broker stops."""
        self._stopped = True
        for task in list(self._tasks.values()):
            await asyncio.wait([task])

    async def _run(self, partition: "Partition", effect: CutTo) -> None:
        move_target = None
        waiting = _Waiting(partition, self.on_waiting_promotion)
        try:
            while True:
                move_target = await self._partitions.moves.interrupt(partition) or move_target
                await partition.wait_until_thawed()
                failure = await self._try(partition, effect, waiting)
                if failure is None:
                    break
                await self._wait_for_checkpoints(partition, effect, failure, waiting)
        finally:
            del self._tasks[partition]
        if move_target is not None and not partition.deleted:
            self._partitions.moves.begin(partition, move_target)

    async def _try(self, partition: "Partition", effect: CutTo, waiting: "_Waiting") -> OSError | None:
        """Freeze the partition and cut its log. Returns the error if the checkpoints could not be stored: then the log
        is unchanged. Otherwise the cut has ended. It also ends if the partition is deleted or goes offline, and if the
        broker stops.
        """
        partition.freeze()
        try:
            await self._partitions.wait_for_file_work()
            if not self._may_continue(partition):
                return None
            if self.on_cut is not None:
                self.on_cut(partition, effect.offset)
            prepared = await self._prepare(partition, effect)
            if prepared is None or not self._may_continue(partition):
                return None
            failure = await self._store_checkpoints(partition, prepared)
            if failure is None and self._may_continue(partition):
                await self._cut(partition, prepared, waiting)
            return failure
        finally:
            self._partitions.offsets.end_cut(partition)
            if not partition.deleted:
                # If the log was not cut, the next checkpoint must contain its own offsets again.
                self._partitions.update_offsets(partition)
            partition.thaw()

    async def _prepare(self, partition: "Partition", effect: CutTo) -> CutTo | None:
        """Find out whether the cut makes the log empty, and if so, make the whole log durable.

        Returns the effect to carry out, or None if the partition has gone offline or was deleted, or if the broker
        stops.
        """
        log = partition.log
        try:
            if not effect.empties:
                step = partial(end_of_cut, log.segments, effect.offset, log.log_start_offset)
                offset = await self._run_on_thread(partition, step)
                effect = effect._replace(offset=offset, empties=offset < log.log_start_offset)
            if effect.empties and log.durable_offset < log.log_end_offset:
                plan = log.flush_plan()
                try:
                    await self._run_on_thread(partition, plan.run)
                except OSError as error:
                    if not lacks_descriptor(error):
                        raise
                    log.put_back(plan)  # the broker stops, or the partition is deleted
                    return None
                log.flushed(plan)
        except (CorruptLog, OSError) as error:
            self._fail(partition, effect, error)
            return None
        return effect

    def _fail(self, partition: "Partition", effect: CutTo, error: Exception) -> None:
        if not partition.deleted:
            partition.log.fail(f"truncation to {effect.offset} failed: {error}", error)
            partition.fail()

    async def _wait_for_checkpoints(
        self, partition: "Partition", effect: CutTo, failure: OSError, waiting: "_Waiting"
    ) -> None:
        """Wait until the checkpoints of the cut can be stored. Meanwhile the partition is not frozen, so that retention
        can remove its segments. The cut must store the checkpoints again when the partition is frozen.
        """
        last_failure: OSError | None = failure
        while last_failure is not None:
            waiting.report(last_failure)
            self._partitions.handle_directory_failures()
            await self._runtime.tasks.sleep(RETRY_S)
            if not self._may_continue(partition):
                return
            last_failure = await self._store_checkpoints(partition, effect, is_trial=True)

    async def _cut(self, partition: "Partition", effect: CutTo, waiting: "_Waiting") -> None:
        """Cut the files, store the new start of the log, and report the end of the cut to the replica."""
        cut = partition.log.begin_cut(effect.offset, empties=effect.empties)
        try:
            for step in (self._cut_files, self._store_new_start):
                while (failure := await step(partition, cut)) is not None:
                    waiting.report(failure)
                    await self._runtime.tasks.sleep(RETRY_S)
                    if not self._may_continue(partition):
                        raise failure
        except (CorruptLog, OSError) as error:
            self._fail(partition, effect, error)
            return
        if not partition.deleted:
            partition.log.install_cut(cut)
            self._partitions.offsets.end_cut(partition)
            partition.step(CutEnded(partition.log.log_end_offset, partition.log.log_start_offset))
            self._partitions.update_offsets(partition)

    async def _store_checkpoints(
        self, partition: "Partition", effect: CutTo, *, is_trial: bool = False
    ) -> OSError | None:
        """Persist a clean offset and a recovery point that are not above the cut. Returns the error if this fails, for
        example because the disk is full.

        Before a log is made empty, a log start offset is persisted. With this offset, the next start accepts any part
        of the log, and makes the log empty if a part is missing (log/cut.py).

        With `is_trial`, only find out whether this is possible. The partition is not frozen, and retention may raise
        its log start offset. So no new log start offset is stored, and the recovery point is lowered only in the
        checkpoints of this call: later checkpoints contain the log's own recovery point again.
        """
        directories, offsets, offset = self._partitions.directories, self._partitions.offsets, effect.offset
        log = partition.log
        key, path = log.topic_partition, log.directory.rpartition("/")[0]
        try:
            directory = directories.of(key)
            clean_offset = None if directory is None else directory.possible_clean_offset(key)
            if clean_offset is not None and clean_offset > offset:
                await self._runtime.tasks.run_blocking(
                    directories.write_cleaner_offsets, {key: offset}, lane=CHECKPOINTS_LANE
                )
                if not self._may_continue(partition):
                    return None
            if effect.empties and not is_trial:
                start_offset = max(offset, log.log_start_offset)
                offsets.set_for_cut(partition, min(log.durable_offset, start_offset), start_offset)
            else:
                offsets.lower(partition, log.recovery_point_for_cut(offset))
            copies = offsets.copies()
            if is_trial:
                offsets.end_cut(partition)
                offsets.update(partition)
            failures = await self._runtime.tasks.run_blocking(
                directories.try_checkpoints, *copies, lane=CHECKPOINTS_LANE
            )
        except OSError as error:
            return error
        return failures.get(path)

    def _may_continue(self, partition: "Partition") -> bool:
        return not (self._stopped or partition.deleted) and partition.log.failure is None

    async def _cut_files(self, partition: "Partition", cut: "Cut") -> OSError | None:
        """Cut the files. Returns the error if the disk was full: then the cut must be run again. Raises CorruptLog and
        any other OSError.
        """
        try:
            await self._run_on_thread(partition, cut.run)
        except OSError as error:
            if error.errno in NO_SPACE:
                return error
            raise
        return None

    async def _store_new_start(self, partition: "Partition", cut: "Cut") -> OSError | None:
        """If the log was made empty, persist its new start offset. Returns a temporary error, after which the step must
        be run again. Raises any other OSError.
        """
        if not cut.empties or partition.deleted:
            return None
        self._partitions.offsets.set_for_cut(partition, cut.end_offset, cut.start_offset)
        failures = await self._runtime.tasks.run_blocking(
            self._partitions.directories.try_checkpoints, *self._partitions.offsets.copies(), lane=CHECKPOINTS_LANE
        )
        failure = failures.get(partition.log.directory.rpartition("/")[0])
        if failure is not None and failure.errno not in TEMPORARY_ERRORS:
            raise failure
        return failure

    async def _run_on_thread(self, partition: "Partition", step: Callable[[], T]) -> T:
        """Run a step that uses the files of the frozen partition. It is repeated while no file descriptor is free."""
        work = retry_without_descriptor(self._runtime.tasks, lambda: self._may_continue(partition), step)
        running = self._runtime.tasks.spawn(work, name="cut-files")
        self._threads[partition] = running
        try:
            await asyncio.wait([running])
        finally:
            del self._threads[partition]
        return running.result()  # raises the error of the thread, if there was one
