"""Cut the logs of followers where they differ from the leader's log. If the whole log of a follower is before the start
of the leader's log, the follower's log is made empty instead.

No flush, retention, compaction or move of the same log may run during a cut. The steps of a cut are:

    freeze       no flush, retention or swap begins; a move is stopped and is restarted after the cut
    lower        a clean offset of compaction and a recovery point that are not above the cut are stored durably
    cut          a thread cuts the files (log/cut.py)
    install      the log, the replica and the checkpoints receive the new end
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.errors import CorruptLog
from tidelog.replication.descriptor_retry import RETRY_S, retry_without_descriptor
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.replication.replica import CutEnded, CutTo

if TYPE_CHECKING:
    from tidelog.log.cut import Cut
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.partitions")


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
        move_target = await self._partitions.moves.interrupt(partition)
        await partition.wait_until_thawed()
        partition.freeze()
        try:
            await self._partitions.wait_for_file_work()
            if self._may_continue(partition):
                await self._cut(partition, effect)
        finally:
            self._partitions.offsets.end_cut(partition)  # also if the log was not cut
            del self._tasks[partition]
            partition.thaw()
        if move_target is not None and not partition.deleted:
            self._partitions.moves.begin(partition, move_target)

    async def _cut(self, partition: "Partition", effect: CutTo) -> None:
        """Lower the checkpoints, cut the files, and report the end of the cut to the replica."""
        offset = effect.offset
        if not await self._lower_checkpoints(partition, effect):
            return
        cut = partition.log.begin_cut(offset, empties=effect.empties)
        try:
            await self._run_on_thread(partition, cut)
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

    async def _lower_checkpoints(self, partition: "Partition", effect: CutTo) -> bool:
        """Persist a clean offset and a recovery point that are not above the cut. Returns False if the partition was
        deleted or went offline, or if the broker stops. A failed write (for example to a full disk) is repeated until
        it succeeds.

        Before a log is made empty, its new log start offset is persisted and serves as the recovery point, too. If the
        broker is then killed, its next start removes the records below that offset.
        """
        directories, offsets, offset = self._partitions.directories, self._partitions.offsets, effect.offset
        key, path = partition.log.topic_partition, partition.log.directory.rpartition("/")[0]
        if self.on_cut is not None:
            self.on_cut(partition, offset)
        while self._may_continue(partition):
            if effect.empties:
                offsets.raise_start(partition, max(offset, partition.log.log_start_offset))
            else:
                offsets.lower(partition, partition.log.recovery_point_for_cut(offset))
            failure: object = None
            try:
                clean_offset = directories.clean_offset(key)
                if clean_offset is not None and clean_offset > offset:
                    await self._runtime.tasks.run_blocking(
                        directories.write_cleaner_offsets, {key: offset}, lane=CHECKPOINTS_LANE
                    )
                copies = offsets.copies()
                failures = await self._runtime.tasks.run_blocking(
                    directories.try_checkpoints, *copies, lane=CHECKPOINTS_LANE
                )
                failure = failures.get(path)
            except OSError as error:
                failure = error
            if failure is None:
                return True
            logger.warning("truncation put off partition=%s reason=%s", key, failure)
            self._partitions.handle_directory_failures()
            await self._runtime.tasks.sleep(RETRY_S)
        return False

    def _may_continue(self, partition: "Partition") -> bool:
        return not (self._stopped or partition.deleted) and partition.log.failure is None

    async def _run_on_thread(self, partition: "Partition", cut: "Cut") -> None:
        work = retry_without_descriptor(self._runtime.tasks, lambda: self._may_continue(partition), cut.run)
        running = self._threads[partition] = self._runtime.tasks.spawn(work, name="cut-files")
        try:
            await asyncio.wait([running])
        finally:
            del self._threads[partition]
        running.result()  # raises the error of the thread, if there was one
