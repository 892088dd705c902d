"""Cut the logs of followers where they differ from the leader's log. If the whole log of a follower is before the start
of the leader's log, the follower's log is made empty instead.

No flush, retention, compaction swap or move of the same log may run during a cut. The steps of a cut are:

    freeze       no flush, retention or compaction swap begins; a move is stopped and is restarted after the cut
    lower        a clean offset of compaction and a recovery point that are not above the cut are stored durably
    cut          a thread cuts the files (log/cut.py)
    install      the log, the replica and the checkpoints receive the new end

If the checkpoints cannot be stored, for example because the disk is full, the cut waits. Meanwhile the partition is not
frozen, so that retention of the same partition can free space. Then the cut begins again with the first step. If the
disk is full when the files are cut, only this step is repeated, since the log cannot be used in between.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.errors import CorruptLog
from tidelog.replication.descriptor_retry import RETRY_S, retry_without_descriptor
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.replication.full_directories import NO_SPACE
from tidelog.replication.replica import NO_EPOCH, CutEnded, CutTo

if TYPE_CHECKING:
    from tidelog.log.cut import Cut
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

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
        self._threads: dict[Partition, asyncio.Future[None]] = {}
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
            failure = await self._store_checkpoints(partition, effect)
            if failure is None and self._may_continue(partition):
                await self._cut(partition, effect, waiting)
            return failure
        finally:
            self._partitions.offsets.end_cut(partition)  # also if the log was not cut
            partition.thaw()

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
        """Cut the files, and report the end of the cut to the replica."""
        offset = effect.offset
        cut = partition.log.begin_cut(offset, empties=effect.empties)
        try:
            while (failure := await self._run_on_thread(partition, cut)) is not None:
                waiting.report(failure)
                await self._runtime.tasks.sleep(RETRY_S)
                if not self._may_continue(partition):
                    raise failure
        except (CorruptLog, OSError) as error:
            if not partition.deleted:
                partition.log.fail(f"truncation to {offset} failed: {error}", error)
                partition.fail()
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

        Before a log is made empty, its new log start offset is persisted and serves as the recovery point, too. If the
        broker is then killed, its next start removes the records below that offset.

        With `is_trial`, only find out whether this is possible. The partition is not frozen, and retention may raise
        its log start offset. So no new log start offset is stored, and the recovery point is lowered only in the
        checkpoints of this call: later checkpoints contain the log's own recovery point again.
        """
        directories, offsets, offset = self._partitions.directories, self._partitions.offsets, effect.offset
        log = partition.log
        key, path = log.topic_partition, log.directory.rpartition("/")[0]
        try:
            clean_offset = directories.clean_offset(key)
            if clean_offset is not None and clean_offset > offset:
                await self._runtime.tasks.run_blocking(
                    directories.write_cleaner_offsets, {key: offset}, lane=CHECKPOINTS_LANE
                )
                if not self._may_continue(partition):
                    return None
            if effect.empties and not is_trial:
                offsets.raise_start(partition, max(offset, log.log_start_offset))
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

    async def _run_on_thread(self, partition: "Partition", cut: "Cut") -> OSError | None:
        """Cut the files. Returns the error if the disk was full: then the cut must be run again. Raises CorruptLog and
        any other OSError.
        """
        work = retry_without_descriptor(self._runtime.tasks, lambda: self._may_continue(partition), cut.run)
        running = self._threads[partition] = self._runtime.tasks.spawn(work, name="cut-files")
        try:
            await asyncio.wait([running])
        finally:
            del self._threads[partition]
        try:
            running.result()  # raises the error of the thread, if there was one
        except OSError as error:
            if error.errno in NO_SPACE:
                return error
            raise
        return None
