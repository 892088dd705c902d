"""Move partitions from one data directory of this broker to another while clients write and read them (KIP-113).

    copy       a copy (future log) in the target directory follows the log until few bytes are missing
    freeze     from now on appends are neither acknowledged nor visible to consumers
    rename     the copy is made durable and renamed to the log's name in the target directory
    switch     the remaining bytes are copied within one turn of the loop; the copy is the partition's log now
    retire     the old log is renamed, durably; then the waiting appends are acknowledged

A partition is not compacted while it moves: in a partly compacted copy, deleted records could reappear. The clean
offset of the log is stored in the target before the copy is renamed.

Until the old log is retired, a start after a crash uses the old log, which has every acknowledged record.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tidelog.log.checkpoints import read_partition_metadata
from tidelog.log.errors import CorruptLog
from tidelog.log.future_logs import (
    UnfinishedCopy,
    can_move,
    future_path,
    has_mark,
    make_final,
    may_belong_to,
    remove_mark,
    rename_copy,
    retire_log,
)
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.pinned_entries import LogOffsets
from tidelog.log.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.replication.descriptor_retry import RETRY_S, lacks_descriptor, retry_without_descriptor
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.wire.errors import ApiError, InvalidTopic, OffsetOutOfRange, StorageError

if TYPE_CHECKING:
    from tidelog.log.directory import DataDirectory
    from tidelog.log.partition_log import PartitionLog
    from tidelog.log.reader import ColdRead, Slice
    from tidelog.model.ids import TopicPartition
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Disk, Runtime

logger = logging.getLogger("tidelog.moves")

PIECE_BYTES = 1 << 20
"""Bytes that are copied in one step."""
FLUSH_BYTES = 16 << 20
"""Bytes that are copied between two syncs of the copy."""
SWITCH_BYTES = 256 << 10
"""The switch may begin when fewer bytes than this are missing in the copy."""
PARALLEL_MOVES_MAX = 8
"""Maximum number of moves that run in parallel. Further moves wait, since each move has open files and one request may
ask for thousands of moves."""
PAUSE_MAX_S = 0.5
"""Longest time, in seconds, after which a throttled move checks again whether it was cancelled."""


class Move:
    """The move of one partition. `future_log` is None until the copy exists."""

    __slots__ = ("cancelled", "future_log", "partition", "path", "target", "task")

    def __init__(self, partition: "Partition", target: "DataDirectory") -> None:
        self.partition = partition
        self.target = target
        self.cancelled = False
        self.future_log: PartitionLog | None = None
        self.path = ""
        """The directory of the copy; "" until it is chosen."""
        self.task: asyncio.Task[None] | None = None

    @property
    def offset_lag(self) -> int:
        """Number of offsets that the copy lacks."""
        copied = self.future_log.log_end_offset if self.future_log is not None else self.partition.log_start_offset
        return max(self.partition.log_end_offset - copied, 0)

    @property
    def size_bytes(self) -> int:
        return self.future_log.size_bytes if self.future_log is not None else 0


class MoveAbandoned(Exception):
    """The move was cancelled, its partition was deleted, or the log, the source directory or the target directory has
    failed.
    """


class SourceFailed(Exception):
    """The files of the log that is being moved cannot be read."""


class SourceDamaged(Exception):
    """The files of the log that is being moved lack bytes of its batches."""


class Moves:
    """All moves of one broker, at most one for each partition. All methods are called on the event loop."""

    def __init__(self, runtime: "Runtime", partitions: "Partitions") -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._moves: dict[Partition, Move] = {}
        self.bytes_per_second: Callable[[], int | None] = lambda: None
        """Rate limit of each move; None for no limit."""
        self._stopped = False
        self._slots = asyncio.Semaphore(PARALLEL_MOVES_MAX)

    def __iter__(self) -> Iterator[Move]:
        return iter(list(self._moves.values()))

    def __contains__(self, partition: "Partition") -> bool:
        return partition in self._moves

    def begin(self, partition: "Partition", target: "DataDirectory") -> None:
        """Start to move a partition to `target`. A running move to another directory is cancelled.

        Raises InvalidTopic if the topic's name is too long for the directory name of a copy.
        """
        previous = self._moves.get(partition)
        if previous is not None:
            if previous.target is target and not previous.cancelled:
                return
            previous.cancelled = True
        if partition.log.directory.rpartition("/")[0] == target.path or self._stopped:
            return
        name = partition.log.topic_partition
        if not can_move(name):
            raise InvalidTopic(f"{name} cannot be moved: the directory name of its copy would be too long")
        move = self._moves[partition] = Move(partition, target)
        previous_task = previous.task if previous is not None else None
        move.task = self._runtime.tasks.spawn(self._run(move, previous_task), name="move-partition")

    async def resume(self, interrupted: list[UnfinishedCopy]) -> None:
        """Restart moves that were unfinished at the last stop. Their old copies are removed."""
        for unfinished in interrupted:
            try:
                await self._runtime.tasks.run_blocking(self._runtime.disk.remove_tree, unfinished.path)
            except OSError as error:
                logger.error("copy not removed path=%s reason=%s", unfinished.path, error)
                continue
            partition = self._partitions.find(*unfinished.partition)
            if partition is not None and partition.log.failure is None:
                logger.info("move restarted partition=%s to=%s", unfinished.partition, unfinished.target.path)
                self.begin(partition, unfinished.target)

    async def interrupt(self, partition: "Partition") -> "DataDirectory | None":
        """Stop the partition's move, since its log will be cut and the copy may have the records that the cut removes.
        Returns the target directory, so that the caller can `begin` the move again.
        """
        move = self._moves.get(partition)
        if move is None or move.cancelled:
            return None
        move.cancelled = True
        if move.task is not None:
            await asyncio.wait([move.task])
        return move.target

    async def close(self) -> None:
        """Stop all moves, since the broker stops. The next start restarts them."""
        self._stopped = True
        for move in self:
            move.cancelled = True
            if move.task is not None:
                await asyncio.wait([move.task])

    async def _run(self, move: Move, previous_task: "asyncio.Task[None] | None") -> None:
        if previous_task is not None:
            await asyncio.wait([previous_task])
        try:
            if self._slots.locked():
                await self._create_copy_directory(move)
            async with self._slots:
                while not await self._run_attempt(move):
                    await self._runtime.tasks.sleep(RETRY_S)
        finally:
            if self._moves.get(move.partition) is move:
                del self._moves[move.partition]

    async def _create_copy_directory(self, move: Move) -> None:
        """Create the directory of the copy, still empty. If the broker stops while the move waits for its turn, the
        next start finds this directory and restarts the move.
        """
        name = move.partition.log.topic_partition
        move.path = future_path(move.target.path, name, self._runtime.random.randbytes(16))
        try:
            await self._runtime.tasks.run_blocking(self._runtime.disk.make_dirs, move.path)
        except OSError as error:
            self._report_disk_error(move.target.path, error)

    async def _run_attempt(self, move: Move) -> bool:
        """Run the move. Returns False if it must be restarted, since no file descriptor was free."""
        partition = move.partition
        name = f"{partition.topic}-{partition.index}"
        retry = False
        try:
            await partition.wait_until_thawed()  # a cut of the log may be running
            self._check(move)
            await self._partitions.wait_for_file_work()  # a swap of segments may have begun earlier
            self._check(move)
            while not await self._copy(move):
                await self._discard(move)
            await self._finish_move(move, name)
        except MoveAbandoned:
            await self._discard(move)
        except (SourceFailed, SourceDamaged, ApiError, OSError, CorruptLog) as error:
            retry = lacks_descriptor(error) and partition.log.failure is None
            # Files of a deleted partition may be missing although the disk works.
            if not (retry or partition.deleted):
                self._handle_failure(move, name, error)
            await self._discard(move)
        return not retry

    def _handle_failure(self, move: Move, name: str, error: Exception) -> None:
        logger.error("move failed partition=%s to=%s reason=%s", name, move.target.path, error)
        partition = move.partition
        if isinstance(error, SourceFailed):
            self._report_disk_error(partition.log.directory.rpartition("/")[0], error)
        elif isinstance(error, SourceDamaged):
            partition.log.fail(str(error))
        elif partition.log.failure is None:  # a failed log means that the source has failed
            self._report_disk_error(move.target.path, error)
        if partition.log.failure is not None:
            partition.fail()

    def _report_disk_error(self, path: str, error: Exception) -> None:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno not in TEMPORARY_ERRORS:
            self._partitions.fail_soon(path, str(cause))

    async def _discard(self, move: Move) -> None:
        """Remove the copy, unless the next start will restart the move."""
        future_log, move.future_log = move.future_log, None
        path, move.path = move.path, ""
        if not path or (self._stopped and not move.partition.deleted):
            return
        partition, random = move.partition, self._runtime.random.randbytes(16)
        key = partition.log.topic_partition
        args = (self._runtime.disk, move.target, key, partition.topic_id, future_log, path, random)
        try:
            await retry_without_descriptor(
                self._runtime.tasks, lambda: not self._stopped, _remove, *args, lane=CHECKPOINTS_LANE
            )
        except OSError as error:
            logger.error("copy not removed path=%s reason=%s", path, error)

    # Copying

    async def _copy(self, move: Move) -> bool:
        """Copy the log until few bytes are missing.

        Returns False if the copy must be made again, since the log's start offset has passed the end of the copy.
        """
        partition, tasks = move.partition, self._runtime.tasks
        log = partition.log
        cold = log.cold_read(log.log_start_offset, 1)
        if cold is not None:
            await tasks.run_blocking(_read_cold, cold)
            self._check(move)
        first_piece = log.read(log.log_start_offset, 1, log.log_end_offset)
        # The copy begins with the batch that holds the start offset. After compaction there may be no such batch.
        start = log.log_start_offset
        if first_piece.size:
            start = min(first_piece.first_batch_offset, start)
        random = self._runtime.random.randbytes(16)
        move.path = move.path or future_path(move.target.path, log.topic_partition, random)
        future_log = move.future_log = await tasks.run_blocking(
            move.target.open_future,
            move.path,
            partition.config,
            start,
            partition.topic_id,
            self._runtime.clock.now_ms(),
        )
        unflushed = 0
        while True:
            self._check(move)
            try:
                cold = log.cold_read(future_log.log_end_offset, PIECE_BYTES)
                if cold is not None:
                    await tasks.run_blocking(_read_cold, cold)
                # A segment that is nearly empty after compaction is not the end of the log.
                in_last_segment = (
                    log.segments.items[log.segments.floor(future_log.log_end_offset)] is log.segments.active
                )
                piece = log.read(future_log.log_end_offset, PIECE_BYTES, log.log_end_offset)
            except OffsetOutOfRange:
                return False
            if piece.size:
                await tasks.run_blocking(_copy_piece, piece, future_log)
                unflushed += piece.size
                await self._pause(move, piece.size)
            nearly_done = not piece.size or (in_last_segment and piece.size < SWITCH_BYTES)
            if unflushed and (nearly_done or unflushed >= FLUSH_BYTES):
                unflushed = 0
                await self._flush(future_log)
            if nearly_done:
                return True

    def _is_wanted(self, partition: "Partition") -> bool:
        return not (self._stopped or partition.deleted)

    def _check(self, move: Move) -> None:
        """Raise MoveAbandoned if the move must not continue. Call this method after each await: during the await, the
        partition may have been deleted or the move cancelled.
        """
        partition = move.partition
        path = move.target.path
        if move.cancelled or partition.deleted or partition.log.failure is not None:
            raise MoveAbandoned
        if path in self._partitions.directories.failed:
            raise MoveAbandoned

    async def _pause(self, move: Move, size: int) -> None:
        limit = self.bytes_per_second()
        remaining_s = size / limit if limit else 0.0
        while True:
            await self._runtime.tasks.sleep(min(remaining_s, PAUSE_MAX_S))
            self._check(move)
            remaining_s -= PAUSE_MAX_S
            if remaining_s <= 0:
                return

    async def _flush(self, future_log: "PartitionLog") -> None:
        plan = future_log.flush_plan()
        await self._runtime.tasks.run_blocking(plan.run)
        future_log.flushed(plan)

    # The end of a move: freeze, rename, switch, retire

    async def _finish_move(self, move: Move, name: str) -> None:
        """Freeze, rename, switch and retire; see the docstring of this module."""
        partition, runtime, future_log = move.partition, self._runtime, move.future_log
        assert future_log is not None
        old = partition.log
        self._check(move)
        source = self._partitions.directories.of(old.topic_partition)
        if source is None:  # the directory has just failed
            raise MoveAbandoned
        partition.freeze()
        try:
            await self._partitions.wait_for_file_work()  # no thread uses the old log's files
            self._check(move)
            await self._copy_rest(move, old, future_log)
            future_log.delete_before(old.log_start_offset)
            # Both logs have the same end now. The copy also gets the state that cannot be derived from its batches:
            # producers whose batches were deleted, and epochs without batches. They become durable with the copy.
            future_log.epochs = LeaderEpochs(old.epochs.entries())
            future_log.epochs.dirty = True
            producers = encode_snapshot(old.producers)
            high_watermark, now_ms = partition.high_watermark, runtime.clock.now_ms()
            random = runtime.random.randbytes(16)
            args = (runtime.disk, source, move.target, future_log, producers, high_watermark, now_ms, random)
            new = await runtime.tasks.run_blocking(_finish_copy, *args, lane=CHECKPOINTS_LANE)
            move.path = new.directory
            move.future_log = new
            self._check(move)
            await self._copy_rest(move, old, new)
            self._switch(move, source, old, new)
            move.future_log, move.path = None, ""  # from now on the copy must not be discarded
            retiring = (runtime.disk, source, old, partition.topic_id, random)
            try:
                # The old log of a deleted partition is retired, too: only then are its files removed.
                retired_path = await retry_without_descriptor(
                    runtime.tasks, lambda: not self._stopped, _retire_old_log, *retiring, lane=CHECKPOINTS_LANE
                )
                if retired_path is None:
                    old.close(clean=False)
                else:
                    self._partitions.reconciler.remove_later(retired_path, partition.config.file_delete_delay_ms, old)
            except OSError as error:
                await self._mark_copy_final(move, old, error)
                self._report_disk_error(source.path, error)
            else:
                await self._remove_mark(move)
        finally:
            # By now, all checkpoints whose offsets were copied before the switch are on the disk.
            move.target.pinned.unpin(old.topic_partition)
            partition.thaw()
        logger.info("partition moved partition=%s from=%s to=%s", name, source.path, move.target.path)

    async def _copy_rest(self, move: Move, old: "PartitionLog", copy: "PartitionLog") -> None:
        """Make the copy end at the same offset as the frozen log `old`. On return both have the same end, until the
        next await of the caller.
        """
        while not _copy_remaining_batches(old, copy):
            now_ms = self._runtime.clock.now_ms()
            await self._runtime.tasks.run_blocking(_skip_to, copy, old.log_end_offset, now_ms)
            self._check(move)

    async def _remove_mark(self, move: Move) -> None:
        """Remove the mark `takes-over` of the copy, since the old log has been renamed."""
        try:
            await self._runtime.tasks.run_blocking(
                remove_mark, self._runtime.disk, move.target.path, move.partition.log.topic_partition
            )
        except OSError as error:  # the remaining mark has no effect, since no second log of the partition exists
            if not move.partition.deleted:
                self._report_disk_error(move.target.path, error)

    async def _mark_copy_final(self, move: Move, old: "PartitionLog", error: OSError) -> None:
        """Mark the copy as the valid log, since the old log could not be renamed. Otherwise the next start would use
        the old log, which lacks the batches that are appended from now on.
        """
        logger.error("old log of a moved partition not renamed path=%s reason=%s", old.directory, error)
        args = (self._runtime.disk, move.target.path, old.topic_partition)
        try:
            await retry_without_descriptor(
                self._runtime.tasks, partial(self._is_wanted, move.partition), make_final, *args
            )
        except OSError as mark_error:
            if move.partition.deleted:
                return
            move.partition.log.fail(
                f"after a move, the old log cannot be renamed and the new log cannot be marked as valid: {mark_error}"
            )
            move.partition.fail()
            self._report_disk_error(move.target.path, mark_error)

    def _switch(self, move: Move, source: "DataDirectory", old: "PartitionLog", new: "PartitionLog") -> None:
        """Replace the partition's log by the copy, within one turn of the loop."""
        # Until the old log is renamed, a start after a crash uses it with these offsets, so the checkpoints must
        # contain them. After the call of `moved`, the checkpoints contain them only because they are pinned.
        start_offset = min(old.log_start_offset, old.durable_offset)
        offsets = LogOffsets(old.recovery_point, start_offset, move.partition.high_watermark)
        source.pinned.pin(old.topic_partition, offsets)
        new.producers = old.producers  # with the last five batches of each producer, which a snapshot does not have
        new.epochs = LeaderEpochs(old.epochs.entries())
        new.epochs.dirty = True
        new.delete_before(old.log_start_offset)
        new.on_io_failure, old.on_io_failure = old.on_io_failure, None
        new.configure(move.partition.config)
        move.partition.log = new
        self._partitions.directories.moved(new.topic_partition, move.target)
        self._partitions.update_offsets(move.partition)


def _read_cold(cold: "ColdRead") -> None:
    try:
        cold.run()
    except OSError as error:
        raise SourceFailed(str(error)) from error


def _copy_piece(piece: "Slice", future_log: "PartitionLog") -> None:
    assert piece.file is not None
    try:
        data = piece.file.pread(piece.size, piece.position)
    except OSError as error:
        raise SourceFailed(str(error)) from error
    if len(data) < piece.size:
        problem = CorruptLog(piece.file.path, piece.position + len(data), "the file ends inside a batch")
        raise SourceDamaged(str(problem)) from problem
    future_log.append_as_follower(memoryview(data))


def _copy_remaining_batches(old: "PartitionLog", copy: "PartitionLog") -> bool:
    """Copy the remaining bytes, which are few and in the page cache. Returns whether the copy has the same end now.
    Its end is lower if the log's last records were deleted.
    """
    while (piece := old.read(max(copy.log_end_offset, old.log_start_offset), PIECE_BYTES, old.log_end_offset)).size:
        _copy_piece(piece, copy)
    return copy.log_end_offset >= old.log_end_offset


def _skip_to(copy: "PartitionLog", end_offset: int, now_ms: int) -> None:
    """Set the end of the copy to `end_offset` without writing records, since the offsets of deleted records must not be
    used again. Blocks. Raises StorageError.
    """
    if copy.segments.active.size:
        copy.log_end_offset = end_offset
        copy.roll(now_ms)
    else:
        copy.restart_at(end_offset)


def _finish_copy(
    disk: "Disk",
    source: "DataDirectory",
    target: "DataDirectory",
    copy: "PartitionLog",
    producers: bytes,
    high_watermark: int,
    now_ms: int,
    random: bytes,
) -> "PartitionLog":
    """Make the copy durable, together with the producer state in the snapshot `producers`. Rename the copy, and return
    the log under its new name.
    """
    copy.producers.restore(decode_snapshot(producers))
    copy.settle()
    copy.close(clean=True)
    if copy.failure is not None:
        raise StorageError(copy.failure)
    _free_name(disk, target, copy, random)
    target.register_incoming(copy, source.clean_offset(copy.topic_partition), high_watermark)
    rename_copy(disk, copy.directory, source.path, copy.topic_partition)
    return target.reopen(copy, now_ms)


def _free_name(disk: "Disk", target: "DataDirectory", copy: "PartitionLog", random: bytes) -> None:
    """Rename a directory in `target` that has the name of the log and is not in use. It belongs to an older topic, or
    it is an old log of this partition that could not be renamed at the end of an earlier move. Raises OSError.
    """
    key = copy.topic_partition
    path = f"{target.path}/{key}"
    if not disk.exists(path):
        return
    topic_id = read_partition_metadata(disk, copy.directory)
    assert topic_id is not None
    target.make_way(key, topic_id)  # renames the directory if it belongs to another topic
    if disk.exists(path):
        logger.warning("old log of a moved partition renamed path=%s", path)
        retire_log(disk, target.path, key, random)  # the next start removes it


def _retire_old_log(
    disk: "Disk", source: "DataDirectory", old: "PartitionLog", topic_id: bytes, random: bytes
) -> str | None:
    """Rename the old log, durably, and remove its entries in the checkpoints. Returns its new path, or None if its name
    belongs to a newer topic: the partition was deleted while this step was retried. Blocks. Raises OSError.
    """
    if not may_belong_to(disk, source.path, old.topic_partition, topic_id, random):
        return None
    retired_path = retire_log(disk, source.path, old.topic_partition, random)
    # The log's entries in the checkpoints are removed only after the rename. If they were removed earlier, a crash
    # before the rename would leave the old log in use without its start offset.
    if disk.exists(f"{source.path}/{old.topic_partition}"):
        return retired_path  # a newer topic has the name, and its entries replace those of the old log
    try:
        source.remove_entries(old.topic_partition)
    except OSError as error:
        # The next checkpoint, the next start or the creation of a log with that name removes the entries.
        logger.warning("old entries stay in the checkpoints for now path=%s reason=%s", source.path, error)
    return retired_path


def _remove(
    disk: "Disk",
    target: "DataDirectory",
    key: "TopicPartition",
    topic_id: bytes,
    copy: "PartitionLog | None",
    path: str,
    random: bytes,
) -> None:
    """Remove the directory of a copy, which may already have the log's name, and the copy's entries in the
    checkpoints. Blocks.
    """
    if copy is not None:
        copy.close(clean=False)
    final_path = f"{target.path}/{key}"
    try:
        if not disk.exists(path):
            path = final_path  # the rename succeeded before the error
        is_copy = has_mark(disk, final_path) and may_belong_to(disk, target.path, key, topic_id, random)
        if path == final_path and is_copy:
            # Rename the directory immediately, since a topic that is created again may need its name.
            path = retire_log(disk, target.path, key, random)
        if path != final_path and disk.exists(path):
            disk.remove_tree(path)
        if target.has_entries_of(key) and not disk.exists(final_path):
            target.remove_entries(key)
    except OSError as error:
        if lacks_descriptor(error):
            raise
        logger.error("copy not removed path=%s reason=%s", path, error)
