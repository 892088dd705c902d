"""Open a log. After a clean stop, the files are trusted. After a crash, all data that was possibly not flushed is
scanned.

Recovery starts at the newest producer snapshot, because a snapshot is written only after the records and indexes
below it are durable. From there, batch headers are replayed. From the recovery point on (or from the snapshot, if
that is later), CRCs are checked. The module `damage` classifies the first bad batch as a torn tail or damage:
a torn tail is cut off and logged; damage raises CorruptLog.

In this module, a closed segment is any segment except the last one, and "flushed" means that data was durable when
the last process ended.
"""

import logging
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import (
    BASE_OFFSET,
    COUNT,
    CRC,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    PRODUCER_ID,
    Fields,
    batches,
    headers,
    is_unwritten,
)
from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    format_epochs,
    parse_epochs,
)
from tidelog.log.damage import check_torn_tail
from tidelog.log.errors import CorruptLog
from tidelog.log.indexes import CorruptIndex
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.leftovers import DirectoryFiles, settle_files
from tidelog.log.producer_snapshot import encode_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.log.replay import replay_batch
from tidelog.log.segment import NO_TIMESTAMP, TEMPORARY_ERRORS, Segment
from tidelog.log.segment_list import SegmentList
from tidelog.log.snapshots import Snapshots, load_producers, restore_producers
from tidelog.wire.batches import LENGTH_END
from tidelog.wire.checksums import crc32c

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.runtime.interfaces import Disk, File

logger = logging.getLogger("tidelog.log")

REWRITE_BYTES = 1 << 20
"""Number of bytes that `Rewriter` collects before it writes them."""


class RecoveryReport(NamedTuple):
    """What the opening of a log did. `scanned_bytes`: the number of bytes whose CRCs were checked. `truncated_bytes`:
    the number of bytes that were cut off or were in removed segments.
    """

    scanned_bytes: int
    truncated_bytes: int


class OpenedLog(NamedTuple):
    segments: SegmentList
    epochs: LeaderEpochs
    producers: ProducerState
    snapshots: Snapshots
    log_start_offset: int
    log_end_offset: int
    report: RecoveryReport
    base_snapshots: dict[int, bytes]
    """Content of producer snapshots that were taken at base offsets of segments during the recovery. They are not on
    the disk yet."""


class LogOpener:
    """Opens the log of one directory, once. Blocks."""

    def __init__(
        self, disk: "Disk", directory: str, config: "LogConfig", now_ms: int, *, clean_offset: int | None = None
    ) -> None:
        """`clean_offset`: where the last compaction ended. It is None if the log was never compacted, and not None if
        it was compacted at some time, even if its topic is not compacted now.
        """
        self._disk = disk
        self._directory = directory
        self._config = config
        self._may_have_holes = clean_offset is not None or config.compacts
        self._clean_offset = clean_offset or 0
        self._now_ms = now_ms
        self._segments = SegmentList([])
        self._epochs = LeaderEpochs()
        self._stored_epochs: list[tuple[int, int]] = []
        """The (epoch, start offset) pairs of the checkpoint."""
        self._producers = ProducerState()
        self._snapshots = Snapshots(disk, directory, [])
        self._flushed_end = 0
        """All data below this offset was flushed. It is the recovery point, or the offset of a snapshot if that is
        later."""
        self._replayed_from = 0
        """Leader epochs below this offset come from their checkpoint. After a crash, epochs from this offset on come
        from the batches; after a clean stop, this is the log's end."""
        self._scanned = self._truncated = 0
        self._base_snapshots: dict[int, bytes] = {}

    def open(self, *, clean: bool, recovery_point: int, log_start_offset: int) -> OpenedLog:
        """Open the log and repair its files: finish interrupted deletions, cut off a torn tail, rebuild indexes. After
        a crash, all bytes and names that remain are durable when this method returns, and removed files stay removed.

        `clean`: the last process stopped cleanly. `recovery_point`: -1 means unknown; then all closed segments count
        as flushed.

        Raises CorruptLog if flushed records are damaged or missing, and for damage that a crash cannot cause. An
        example of such damage is a first segment that begins above `log_start_offset`, because a start offset is
        always persisted before the segments below it are removed. Raises OSError.
        """
        is_new = not self._disk.exists(self._directory)
        files = settle_files(self._disk, self._directory)
        self._snapshots = Snapshots(self._disk, self._directory, files.snapshots)
        self._load_segments(files, log_start_offset)
        start_offset = max(log_start_offset, 0)
        self._check_first(start_offset)
        if recovery_point < 0:
            recovery_point = self._segments.active.base_offset
        self._flushed_end = recovery_point
        has_epochs = self._load_epochs(files)
        end = self._open_clean(start_offset) if clean else None
        must_recover = end is None
        if end is None:
            end = self._recover(start_offset)
        elif start_offset > end:
            active = self._segments.active
            reason = f"the log ends at offset {end}, below its start offset {start_offset}"
            raise CorruptLog(active.path, active.size, reason)
        if max(end, start_offset) < self._flushed_end:
            raise self._cut_short_error(start_offset, end)
        if start_offset > end:
            if end > self._flushed_end:
                raise self._below_start_error(start_offset, end)
            self._restart_at(start_offset)
            end = start_offset
        if not has_epochs and self._replayed_from > start_offset:
            self._rebuild_epochs()
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(start_offset)
        self._snapshots.remove_after(end)
        if must_recover and not is_new:
            self._sync_names()
            self._forget_lost_epochs(end)
        self._segments.active.configure(self._config)
        report = RecoveryReport(self._scanned, self._truncated)
        return OpenedLog(
            self._segments,
            self._epochs,
            self._producers,
            self._snapshots,
            start_offset,
            end,
            report,
            self._base_snapshots,
        )

    # Files

    def _load_segments(self, files: DirectoryFiles, log_start_offset: int) -> None:
        for base_offset in files.segments:
            size = self._disk.size(f"{self._directory}/{base_offset:020d}.log")
            segment = Segment(
                self._disk,
                self._directory,
                base_offset,
                size,
                has_transactions=base_offset in files.transaction_indexes,
            )
            segment.created_ms = self._now_ms
            # The directory entry of an empty file is possibly not durable, because an empty file was never synced.
            segment.entry_unsynced = not size
            segment.set_index_interval(self._config)
            self._segments.add(segment)
        if not files.segments:
            self._add_empty(max(log_start_offset, 0))

    def _check_first(self, log_start_offset: int) -> None:
        first = self._segments.items[0]
        if first.base_offset > log_start_offset:
            remedy = self._remedy(LOG_START_OFFSETS, first.base_offset)
            raise CorruptLog(
                first.path,
                0,
                f"the log begins at offset {first.base_offset}, above its start offset {log_start_offset}: earlier "
                f"segment files are missing; put them back, or, to continue without their records, {remedy}",
            )

    def _cut_short_error(self, start_offset: int, end: int) -> CorruptLog:
        """Return the error of a log whose sound batches end at `end`, although records from this offset on were
        flushed.
        """
        active = self._segments.active
        next_end = max(start_offset, end)  # the log's end at the next start, if the user accepts the loss
        remedy = self._remedy(RECOVERY_POINTS, next_end)
        later_snapshots = [self._snapshots.path(offset) for offset in self._snapshots.offsets if offset > next_end]
        return CorruptLog(
            active.path,
            active.size,
            f"the log ends at offset {end}, but every offset below {self._flushed_end} was on the disk: the end of "
            f"this file, or files after it, are missing; put them back, or, to continue without their records, "
            f"{' and remove '.join([remedy, *later_snapshots])}",
        )

    def _below_start_error(self, start_offset: int, end: int) -> CorruptLog:
        """Return the error of a log that ends below its start offset, but above its flushed part.

        A start offset is persisted only after every record below it is durable. So either files are missing, or the
        start offset belongs to another log.
        """
        active = self._segments.active
        remedy = self._remedy(LOG_START_OFFSETS, self._segments.items[0].base_offset)
        return CorruptLog(
            active.path,
            active.size,
            f"the log ends at offset {end}, below its start offset {start_offset}, and has batches after offset "
            f"{self._flushed_end}, the end of its flushed part. Files are missing, or the start offset belongs to "
            f"another log; put the missing files back, or, to continue without them, {remedy}",
        )

    def _remedy(self, checkpoint: str, offset: int) -> str:
        parent, _, name = self._directory.rpartition("/")
        return f"set the offset of {name} to {offset} in {parent}/{checkpoint}"

    def _add_empty(self, base_offset: int) -> None:
        segment = Segment.create(self._disk, self._directory, base_offset, self._now_ms)
        segment.set_index_interval(self._config)
        self._segments.add(segment)

    def _load_epochs(self, files: DirectoryFiles) -> bool:
        """Load the leader epochs from their checkpoint. Returns whether it exists and is valid."""
        path = f"{self._directory}/{LEADER_EPOCHS}"
        if not files.has_epochs:
            return False
        try:
            self._stored_epochs = parse_epochs(self._disk.read(path), path)
        except CorruptLog as error:
            logger.warning("leader epochs ignored reason=%s", error)
            return False
        self._epochs = LeaderEpochs(self._stored_epochs)
        return True

    def _rebuild_epochs(self) -> None:
        logger.warning("leader epochs rebuilt from the batches path=%s/%s", self._directory, LEADER_EPOCHS)
        self._epochs = LeaderEpochs()
        for segment in self._segments.items:
            for _, _, fields in headers(segment.file, 0, segment.size, segment.base_offset):
                if fields[LEADER_EPOCH] > self._epochs.latest:
                    self._epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])

    def _forget_lost_epochs(self, end: int) -> None:
        """Write the checkpoint of leader epochs if it contains epochs whose batches were lost in the crash. On a full
        disk, the next flush writes it.

        A cut of the log stores epochs while earlier segments are possibly not on the disk yet.
        """
        if not any(start >= end for _, start in self._stored_epochs):
            return
        try:
            self._disk.write_atomic(f"{self._directory}/{LEADER_EPOCHS}", format_epochs(self._epochs.entries()))
        except OSError as error:
            if error.errno not in TEMPORARY_ERRORS:
                raise
        else:
            self._epochs.dirty = False

    def _restart_at(self, start_offset: int) -> None:
        """Remove every segment, and begin an empty log at `start_offset`. The caller has checked that all records
        are below this offset.

        The removals are durable before the new segment is created. Otherwise another crash could bring the old files
        back beside new batches. In a compacted log, the next start would then accept the old files, because such a log
        may have gaps.
        """
        # If there is a snapshot at `start_offset`, retention had removed all batches, but the name of the new segment
        # was not durable at the power cut. The producers of the snapshot are complete. In any other case, all producers
        # are forgotten: batches below `start_offset` are missing, and a known producer whose last batches are missing
        # would be refused.
        if self._snapshots.offsets[-1:] != [start_offset]:
            self._snapshots.remove_after(-1)
            self._disk.sync_dir(self._directory)
            self._producers = ProducerState()
        self._base_snapshots.clear()
        self._drop_from(0, f"below log start {start_offset}")
        self._disk.sync_dir(self._directory)
        self._add_empty(start_offset)

    # After a clean stop

    def _open_clean(self, start_offset: int) -> int | None:
        """Load the log after a clean stop, and return its end offset; None if the log must be recovered.

        It must be recovered if batches at its end are damaged, or if it has batches but no producer snapshot at its
        end. The snapshot is missing if the log was offline at the stop, because an offline log is not flushed. This
        method also repairs the end of the active segment (see `_walk_tail`). If the snapshot at the end is not sound,
        the batches after an older snapshot are replayed. Raises CorruptLog if these batches are damaged, and OSError.
        """
        try:
            end = self._replayed_from = self._end_of(self._segments.active)
        except CorruptLog as error:
            logger.warning("last shutdown was clean, but the log is recovered reason=%s", error)
            return None
        if self._segments.size_bytes and self._snapshots.offsets[-1:] != [end]:
            logger.warning("log without a producer snapshot at its end is recovered path=%s", self._directory)
            return None
        # The transaction index may end with the entry of a marker that could not be written, because the disk failed.
        # Another marker may get this marker's offset.
        if not self._segments.active.transactions.ends_below(end):
            self._segments.active.transactions.truncate_to(end)
        self._producers = restore_producers(
            self._snapshots, self._segments, start_offset, end, may_have_holes=self._may_have_holes
        )
        return end

    def _end_of(self, segment: Segment) -> int:
        """Return the offset at which a segment ends that recovery does not scan: compare its indexes with the end of
        its log file, and rebuild them if they disagree with the file. Cut off an unwritten end.

        Raises CorruptLog if the log file itself is damaged.
        """
        try:
            return self._walk_tail(segment)
        except (CorruptIndex, FileNotFoundError, CorruptLog) as error:
            segment.rebuild_indexes(str(error))
            return self._walk_tail(segment)

    def _walk_tail(self, segment: Segment) -> int:
        """Read the batch headers from the segment's last index entry on, and return the offset at which the segment
        ends.

        Sets the segment's largest timestamp, and cuts off an unwritten end (zeros). Raises CorruptIndex for a wrong
        index, FileNotFoundError for a missing index, and CorruptLog for a bad batch.
        """
        last, last_time = segment.index.last(), segment.times.last()
        start_position = last[1] if last else 0
        end_offset = segment.base_offset
        segment.max_timestamp, relative = last_time if last_time else (NO_TIMESTAMP, 0)
        segment.max_timestamp_offset = segment.base_offset + relative
        try:
            for position, _, fields in headers(segment.file, start_position, segment.size, segment.base_offset):
                last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
                if last and position == start_position and last_offset != segment.base_offset + last[0]:
                    raise CorruptIndex(
                        f"{segment.index.path}: the last entry has offset {segment.base_offset + last[0]}, but the "
                        f"batch at its position {position} ends with offset {last_offset}"
                    )
                latest = segment.latest_in(position, fields)
                if latest > segment.max_timestamp and fields[COUNT]:
                    segment.max_timestamp = latest
                    segment.max_timestamp_offset = last_offset
                end_offset = last_offset + 1
        except CorruptLog as problem:
            if not self._cut_unwritten(segment, problem.position, end_offset):
                raise
        if end_offset <= segment.max_timestamp_offset and segment.size:
            raise CorruptIndex(
                f"{segment.times.path}: the last entry has offset {segment.max_timestamp_offset}, but the segment ends "
                f"at offset {end_offset}"
            )
        if last and end_offset == segment.base_offset:
            raise CorruptIndex(
                f"{segment.index.path}: the last entry has position {start_position}, but the log file has "
                f"{segment.size} bytes"
            )
        segment.sound_from = start_position
        return end_offset

    # After a crash

    def _recover(self, start_offset: int) -> int:
        """Restore the producers and leader epochs, repair the segments, and return the log's end offset."""
        self._producers, snapshot_offset = load_producers(
            self._snapshots, self._segments, start_offset, 1 << 63, may_have_holes=self._may_have_holes
        )
        self._flushed_end = max(self._flushed_end, snapshot_offset)
        self._replayed_from = replay_from = max(start_offset, snapshot_offset)
        # Epochs from `replay_from` on are read from the batches, because the checkpoint may describe batches that were
        # lost in the crash.
        self._epochs.truncate_from_end(replay_from)
        first = self._segments.floor(replay_from)
        for index in range(self._segments.floor(start_offset), first):
            end = self._end_of(self._segments.items[index])
            self._check_no_flushed_gap(self._segments.items[index + 1], end)
        end = self._segments.items[first].base_offset
        index = first
        while index < len(self._segments.items):
            segment = self._segments.items[index]
            if index > first:
                if not self._continue_with(segment, index, end):
                    break
                # The snapshot that was taken when this segment was created may have been lost in the crash.
                self._base_snapshots[segment.base_offset] = encode_snapshot(self._producers)
            end = self._recover_segment(segment, index, replay_from)
            index += 1
        return end

    def _sync_names(self) -> None:
        """After a crash, make the names in the log's directory durable, even if this start has changed nothing: an
        earlier start may have removed files before it was killed. Another crash must not bring these files back beside
        batches that are appended later.
        """
        self._disk.sync_dir(self._directory)
        self._segments.active.entry_unsynced = False

    def _continue_with(self, segment: Segment, index: int, end: int) -> bool:
        """Return True if recovery continues with `segment`. `end` is the offset at which the previous segment ends.

        Between the two segments there may be a gap. If the gap begins after the flushed part, a crash explains it:
        `segment` and all later segments are removed, and the result is False. Compaction does not explain such a gap:
        before a pass, a producer snapshot is written that includes the batches of the pass, so the compacted part is
        flushed. A follower begins each new segment where its log ends, even if the leader has removed the next offsets
        by compaction. If the gap begins in the flushed part, and compaction explains it, it is accepted. Any other gap
        means that segment files are missing: CorruptLog is raised. CorruptLog is also raised if `segment` begins below
        `end`.
        """
        if segment.base_offset < end:
            reason = f"the segment begins at offset {segment.base_offset}, but the previous one ends at offset {end}"
            raise CorruptLog(segment.path, 0, reason)
        self._check_no_flushed_gap(segment, end)
        if segment.base_offset > end >= max(self._flushed_end, self._clean_offset):
            previous = self._segments.items[index - 1]
            reason = (
                f"{previous.path} ends at offset {end}, the next segment begins at offset {segment.base_offset}: "
                "unflushed batches between them were lost"
            )
            self._drop_from(index, reason)
            return False
        return True

    def _check_no_flushed_gap(self, segment: Segment, end: int) -> None:
        """Raise CorruptLog if flushed offsets before `segment` are missing and compaction does not explain this. `end`
        is the offset at which the previous segment ends.
        """
        if self._may_have_holes or end >= min(segment.base_offset, self._flushed_end):
            return
        raise CorruptLog(
            segment.path,
            0,
            f"offsets {end} to {segment.base_offset - 1} are missing before this segment, although every offset "
            f"below {self._flushed_end} was on the disk; put the missing files back. If the log was compacted, or if "
            "you want to continue without the missing records, "
            f"{self._remedy(CLEANER_OFFSETS, self._segments.items[0].base_offset)}",
        )

    def _recover_segment(self, segment: Segment, index: int, replay_from: int) -> int:
        """Scan one segment from `replay_from` on, and return the offset at which it ends.

        The scan writes the index entries again. If a torn tail is cut off, all later segments are removed. The batches
        that were not flushed are written again and made durable. Raises CorruptLog for damage (see module `damage`).
        """
        segment.transactions.truncate_to(replay_from)
        start_position, indexes_wrong = segment.keep_indexes_below(replay_from)
        position, end = self._replay_flushed(segment, start_position, replay_from)
        rewriter = Rewriter(segment.file)
        try:
            for at, batch, fields in batches(segment.file, position, segment.size, segment.base_offset, end):
                if crc32c(batch[21:]) != fields[CRC]:  # the CRC covers all bytes after its own field
                    raise CorruptLog(segment.path, at, f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}")
                rewriter.add(at, batch)
                segment.note_batch(at, fields)
                self._replay(segment, at, len(batch), fields, replay_from)
                end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
                self._scanned += len(batch)
        except CorruptLog as problem:
            if not self._cut_unwritten(segment, problem.position, end):
                has_later_records = any(later.size for later in self._segments.items[index + 1 :])
                check_torn_tail(
                    segment,
                    problem.position,
                    end,
                    problem,
                    flushed_end=self._flushed_end,
                    has_later_records=has_later_records,
                )
                self._cut_torn_tail(segment, index, problem)
        segment.sound_from = start_position
        if indexes_wrong:
            segment.times.rewrite()
            segment.index.rewrite()
        if index + 1 < len(self._segments.items):
            segment.finish()
        if end > self._flushed_end:
            rewriter.finish()
            segment.file.sync()
        return end

    def _replay_flushed(self, segment: Segment, position: int, replay_from: int) -> tuple[int, int]:
        """Replay the headers of the flushed batches from `position` on.

        Returns the position of the first batch after them, and the lowest offset with which that batch may begin.
        Raises CorruptLog for a bad batch in the flushed part. Raises nothing if the file ends within the flushed
        part, because `open` checks the end of the log.
        """
        end = segment.base_offset
        if end >= self._flushed_end:
            return position, end
        try:
            for at, size, fields in headers(segment.file, position, segment.size, segment.base_offset):
                if fields[BASE_OFFSET] >= self._flushed_end:
                    break
                segment.note_batch(at, fields)
                self._replay(segment, at, size, fields, replay_from)
                position = at + size
                end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        except CorruptLog as problem:
            if end < self._flushed_end:
                reason = f"{problem.reason}; offset {end} and all others below {self._flushed_end} were on the disk"
                raise CorruptLog(problem.path, problem.position, reason) from problem
        return position, end

    def _replay(self, segment: Segment, position: int, size: int, fields: Fields, replay_from: int) -> None:
        """Apply one batch to the leader epochs, and to the producers unless it ends before `replay_from`."""
        if fields[LEADER_EPOCH] > self._epochs.latest:
            self._epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])
        # Replay may start in the middle of a batch.
        if fields[PRODUCER_ID] >= 0 and fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] >= replay_from:
            replay_batch(self._producers, segment, position, size, fields)

    def _cut_unwritten(self, segment: Segment, position: int, end_offset: int) -> bool:
        """Cut off the segment's bytes from `position` on if they were never written. Returns whether they were cut
        off.

        `end_offset` is the offset at which the batches before `position` end. The bytes were never written if all of
        them are zero and no record is missing. No record is missing if the next segment begins with `end_offset`,
        or, without a next segment, if `end_offset` is not below the flushed end.
        """
        index = self._segments.items.index(segment) + 1
        if index < len(self._segments.items):
            is_complete = self._segments.items[index].base_offset == end_offset
        else:
            is_complete = end_offset >= self._flushed_end
        unwritten_bytes = segment.size - position
        # Fewer than LENGTH_END zeros may be the beginning of a batch. They are cut off, too, but as a torn tail.
        if not is_complete or unwritten_bytes < LENGTH_END or not is_unwritten(segment.file, position, segment.size):
            return False
        logger.info("unwritten end cut off path=%s position=%d bytes=%d", segment.path, position, unwritten_bytes)
        self._truncated += unwritten_bytes
        segment.cut(position)
        return True

    def _cut_torn_tail(self, segment: Segment, index: int, problem: CorruptLog) -> None:
        """Cut the segment off at `problem.position`, and remove all later segments."""
        cut_bytes = segment.size - problem.position
        logger.warning(
            "torn tail cut off path=%s position=%d bytes=%d reason=%s",
            segment.path,
            problem.position,
            cut_bytes,
            problem.reason,
        )
        self._truncated += cut_bytes
        segment.cut(problem.position)
        self._drop_from(index + 1, f"{segment.path} was cut at {problem.position}")

    def _drop_from(self, index: int, reason: str) -> None:
        """Remove all segments from `index` on, with their files."""
        for segment in reversed(self._segments.take_from(index)):
            logger.warning("segment dropped path=%s bytes=%d reason=%s", segment.path, segment.size, reason)
            self._truncated += segment.size
            segment.remove()


class Rewriter:
    """Writes the scanned batches of a segment to its file again, unchanged, so that the next sync stores them.

    A sync of the last process may have failed. Then the kernel has marked the pages clean although the disk does not
    have their bytes. They can still be read from the page cache, and a sync alone would succeed without writing them.
    """

    def __init__(self, file: "File") -> None:
        self._file = file
        self._position = 0
        self._batches: list[memoryview] = []
        self._bytes = 0

    def add(self, position: int, batch: memoryview) -> None:
        """Add the batch at `position`. It must follow the previous one. Blocks."""
        if not self._batches:
            self._position = position
        self._batches.append(batch)
        self._bytes += len(batch)
        if self._bytes >= REWRITE_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write the batches that were added and are not written yet. Blocks."""
        if self._batches:
            self._file.pwrite(b"".join(self._batches), self._position)
        self._batches, self._bytes = [], 0
