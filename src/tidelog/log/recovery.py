"""Open a log. Files of a clean stop are trusted; after a crash, everything that may be unflushed is scanned.

Recovery starts at the newest producer snapshot, which is written only after the records and indexes below it are
durable. From there, batch headers are replayed. From the recovery point on (or from the snapshot, if that is later),
CRCs are checked. The module `damage` classifies the first bad batch: a torn tail is cut off and logged; anything
else raises CorruptLog.
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
from tidelog.log.checkpoints import LEADER_EPOCHS, LOG_START_OFFSETS, RECOVERY_POINTS, parse_epochs
from tidelog.log.damage import check_torn_tail
from tidelog.log.errors import CorruptLog
from tidelog.log.indexes import CorruptIndex
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.leftovers import DirectoryFiles, settle_files
from tidelog.log.producer_state import ProducerState
from tidelog.log.replay import replay_batch
from tidelog.log.segment import NO_TIMESTAMP, Segment
from tidelog.log.segment_list import SegmentList
from tidelog.log.snapshots import Snapshots, restore_producers
from tidelog.wire.batches import LENGTH_END
from tidelog.wire.checksums import crc32c

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.log")


class RecoveryReport(NamedTuple):
    """The work of opening a log: number of bytes whose CRCs were checked, and number of bytes cut off."""

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


class LogOpener:
    """Opens the log of one directory, once. Blocks."""

    def __init__(self, disk: "Disk", directory: str, config: "LogConfig", now_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._segments = SegmentList([])
        self._epochs = LeaderEpochs()
        self._producers = ProducerState()
        self._snapshots = Snapshots(disk, directory, [])
        self._recovery_point = 0
        self._replayed_from = 0
        """From this offset on, leader epochs come from the scanned batches."""
        self._scanned = self._truncated = self._removed = 0

    def open(self, *, clean: bool, recovery_point: int, log_start_offset: int) -> OpenedLog:
        """Open the log. `recovery_point` -1 means unknown; then closed segments count as flushed.

        Raises CorruptLog for damage below the recovery point, and for damage that a crash cannot cause. For example,
        records are missing between `log_start_offset` and the first file, although the start offset is persisted
        before files below it are removed.
        """
        files = settle_files(self._disk, self._directory)
        self._snapshots = Snapshots(self._disk, self._directory, files.snapshots)
        self._load_segments(files, log_start_offset)
        start = max(log_start_offset, 0)
        self._check_first(start)
        if recovery_point < 0:
            recovery_point = self._segments.active.base_offset
        self._recovery_point = recovery_point
        epochs_known = self._load_epochs(files)
        end = self._open_clean(start) if clean else None
        if end is None:
            end = self._recover(start)
        elif start > end:
            active = self._segments.active
            raise CorruptLog(active.path, active.size, f"the log ends at offset {end}, below its start offset {start}")
        if max(end, start) < self._recovery_point:
            raise self._cut_short_error(max(end, start))
        if start > end:
            if end > self._recovery_point:
                raise self._below_start_error(start, end)
            self._restart_at(start)
            end = start
        if not epochs_known and self._replayed_from > start:
            self._rebuild_epochs()
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(start)
        self._snapshots.remove_after(end)
        self._segments.active.configure(self._config)
        report = RecoveryReport(self._scanned, self._truncated)
        return OpenedLog(self._segments, self._epochs, self._producers, self._snapshots, start, end, report)

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
            # its directory entry may not be durable, since an empty file was never synced
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
                f"the log begins at offset {first.base_offset}, expected {log_start_offset}: segment files before it "
                f"are missing; put them back, or, to go on without their records, {remedy}",
            )

    def _cut_short_error(self, end: int) -> CorruptLog:
        """Return the error of a log that ends below its recovery point, at the end of a batch: bytes or files are
        missing.
        """
        active = self._segments.active
        remedy = self._remedy(RECOVERY_POINTS, end)
        later_snapshots = [self._snapshots.path(offset) for offset in self._snapshots.offsets if offset > end]
        return CorruptLog(
            active.path,
            active.size,
            f"the log ends at offset {end}, {self._recovery_point} was on the disk: the end of this file, or files "
            f"after it, are missing; put them back, or, to go on without their records, "
            f"{' and remove '.join([remedy, *later_snapshots])}",
        )

    def _below_start_error(self, start: int, end: int) -> CorruptLog:
        """Return the error of a log that ends below its start offset.

        A start offset is persisted only up to the durable offset, so it belongs to another log.
        """
        active = self._segments.active
        remedy = self._remedy(LOG_START_OFFSETS, self._segments.items[0].base_offset)
        return CorruptLog(
            active.path,
            active.size,
            f"the log ends at offset {end}, below its start offset {start}, with records that are newer than the "
            f"recovery point {self._recovery_point}: put back the missing files, or, to go on without them, {remedy}",
        )

    def _remedy(self, checkpoint: str, offset: int) -> str:
        parent, _, name = self._directory.rpartition("/")
        return f"state {offset} for {name} in {parent}/{checkpoint}"

    def _add_empty(self, base_offset: int) -> None:
        segment = Segment.create(self._disk, self._directory, base_offset, self._now_ms)
        segment.set_index_interval(self._config)
        self._segments.add(segment)

    def _load_epochs(self, files: DirectoryFiles) -> bool:
        """Load the leader epochs. Returns whether the checkpoint exists and is valid."""
        path = f"{self._directory}/{LEADER_EPOCHS}"
        if not files.has_epochs:
            return False
        try:
            self._epochs = LeaderEpochs(parse_epochs(self._disk.read(path), path))
        except CorruptLog as error:
            logger.warning("leader epochs ignored reason=%s", error)
            return False
        return True

    def _rebuild_epochs(self) -> None:
        logger.warning("leader epochs rebuilt from the batches path=%s/%s", self._directory, LEADER_EPOCHS)
        self._epochs = LeaderEpochs()
        for segment in self._segments.items:
            for _, _, fields in headers(segment.file, 0, segment.size, segment.base_offset):
                if fields[LEADER_EPOCH] > self._epochs.latest:
                    self._epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])

    def _restart_at(self, start: int) -> None:
        """Begin an empty log at `start`. All records in the log are below the start offset, and were durable when
        the start offset was persisted.
        """
        for segment in self._segments.take_from(0):
            self._truncated += segment.size
            self._removed += 1
            logger.warning(
                "segment dropped path=%s bytes=%d reason=below log start %d", segment.path, segment.size, start
            )
            segment.remove()
        self._add_empty(start)

    # After a clean stop

    def _open_clean(self, start: int) -> int | None:
        """Return the log's end offset, or None if this log was not closed cleanly.

        A log that was offline at the stop is not closed; the snapshot at its end is then missing.
        """
        try:
            end = self._replayed_from = self._end_of_active()
        except CorruptLog as error:
            logger.warning("log is recovered though the last shutdown was clean reason=%s", error)
            return None
        if self._segments.size_bytes and self._snapshots.offsets[-1:] != [end]:
            logger.warning("log is recovered, it has no producer snapshot at its end path=%s", self._directory)
            return None
        self._producers = restore_producers(self._snapshots, self._segments, start, end)
        return end

    def _end_of_active(self) -> int:
        """Return the log's end offset, by reading the batch headers after the last index entry."""
        segment = self._segments.active
        try:
            return self._walk_tail(segment)
        except (CorruptIndex, FileNotFoundError, CorruptLog) as error:
            segment.rebuild_indexes(str(error))
            return self._walk_tail(segment)

    def _walk_tail(self, segment: Segment) -> int:
        """Return where the segment ends, by reading the batch headers from its last index entry on.

        Raises CorruptIndex, FileNotFoundError, CorruptLog.
        """
        last, last_time = segment.index.last(), segment.times.last()
        start = last[1] if last else 0
        end_offset = segment.base_offset
        segment.max_timestamp, relative = last_time if last_time else (NO_TIMESTAMP, 0)
        segment.max_timestamp_offset = segment.base_offset + relative
        try:
            for position, _, fields in headers(segment.file, start, segment.size, segment.base_offset):
                last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
                if last and position == start and last_offset != segment.base_offset + last[0]:
                    raise CorruptIndex(f"{segment.index.path}: the batch at {start} ends with offset {last_offset}")
                latest = segment.latest_in(position, fields)
                if latest > segment.max_timestamp and fields[COUNT]:
                    segment.max_timestamp = latest
                    segment.max_timestamp_offset = last_offset
                end_offset = last_offset + 1
        except CorruptLog as problem:
            if not self._cut_unwritten(segment, problem.position, end_offset):
                raise
        if end_offset <= segment.max_timestamp_offset and segment.size:
            raise CorruptIndex(f"{segment.times.path}: an entry lies past the segment's end, offset {end_offset}")
        if last and end_offset == segment.base_offset:
            raise CorruptIndex(f"{segment.index.path}: position {start} is not in the log")
        segment.sound_from = start
        return end_offset

    # After a crash

    def _recover(self, start: int) -> int:
        snapshot = self._snapshots.load(1 << 63)
        replay_from = start
        if snapshot is not None:
            replay_from = max(start, snapshot[0])
            self._producers.restore(snapshot[1])
            self._recovery_point = max(self._recovery_point, snapshot[0])
        self._replayed_from = replay_from
        # Later epochs come from the batches: after a cut, the checkpoint may still describe removed batches.
        self._epochs.truncate_from_end(replay_from)
        first = self._segments.floor(replay_from)
        for segment in self._segments.items[self._segments.floor(start) : first]:
            self._check_sealed(segment)
        end = self._segments.items[first].base_offset
        index = first
        while index < len(self._segments.items):
            segment = self._segments.items[index]
            if index > first and not self._follows(segment, index, end):
                break
            end = self._recover_segment(segment, index, replay_from)
            index += 1
        if end > self._recovery_point or self._removed:  # removed files must not reappear either
            self._disk.sync_dir(self._directory)
            self._disk.sync_dir(self._directory.rpartition("/")[0])
        else:
            self._segments.active.entry_unsynced = True
        return end

    def _follows(self, segment: Segment, index: int, end: int) -> bool:
        """Return whether `segment` continues a log that ends at `end`. If not, remove it and all later segments."""
        if segment.base_offset < end:
            raise CorruptLog(segment.path, 0, f"the segment begins below offset {end}, where the one before it ends")
        if segment.base_offset > end and end >= self._recovery_point and not self._config.compacts:
            previous = self._segments.items[index - 1]
            self._drop_from(index, f"{previous.path} ends at offset {end}: its last unflushed batches are gone")
            return False
        return True

    def _check_sealed(self, segment: Segment) -> None:
        """Check the end of a closed segment below the scanned part against its indexes. Rebuild the indexes if they
        disagree.

        Raises CorruptLog if the log file itself is damaged.
        """
        try:
            self._walk_tail(segment)
        except (CorruptIndex, FileNotFoundError, CorruptLog) as error:
            segment.rebuild_indexes(str(error))

    def _recover_segment(self, segment: Segment, index: int, replay_from: int) -> int:
        """Scan one segment from `replay_from` on, and cut off a torn tail. Returns the offset at which it ends."""
        segment.transactions.truncate_to(replay_from)
        start, indexes_wrong = segment.keep_indexes_below(replay_from)
        position, end = self._replay_flushed(segment, start, replay_from)
        try:
            for at, batch, fields in batches(segment.file, position, segment.size, segment.base_offset, end):
                if crc32c(batch[21:]) != fields[CRC]:
                    raise CorruptLog(segment.path, at, f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}")
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
                    recovery_point=self._recovery_point,
                    has_later_records=has_later_records,
                )
                self._cut(segment, index, problem)
        segment.sound_from = start
        if indexes_wrong:
            segment.times.rewrite()
            segment.index.rewrite()
        if index + 1 < len(self._segments.items):
            segment.finish()
        if end > self._recovery_point:
            segment.file.sync()
        return end

    def _replay_flushed(self, segment: Segment, position: int, replay_from: int) -> tuple[int, int]:
        """Replay the headers of flushed batches. Returns (position, offset) of the first batch that may not be
        flushed.

        Raises CorruptLog if a flushed batch is missing or bad.
        """
        end = segment.base_offset
        if end >= self._recovery_point:
            return position, end
        try:
            for at, size, fields in headers(segment.file, position, segment.size, segment.base_offset):
                if fields[BASE_OFFSET] >= self._recovery_point:
                    break
                segment.note_batch(at, fields)
                self._replay(segment, at, size, fields, replay_from)
                position = at + size
                end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        except CorruptLog as problem:
            if end < self._recovery_point:
                reason = f"{problem.reason}; offset {end} was on the disk, the recovery point is {self._recovery_point}"
                raise CorruptLog(problem.path, problem.position, reason) from problem
        return position, end

    def _replay(self, segment: Segment, position: int, size: int, fields: Fields, replay_from: int) -> None:
        """Apply one batch to the leader epochs and producers."""
        if fields[LEADER_EPOCH] > self._epochs.latest:
            self._epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])
        # A log may start in the middle of a batch.
        if fields[PRODUCER_ID] >= 0 and fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] >= replay_from:
            replay_batch(self._producers, segment, position, size, fields)

    def _cut_unwritten(self, segment: Segment, position: int, end_offset: int) -> bool:
        """Cut off the rest of the segment, after the last batch, if it was never written. Returns whether it was cut
        off.

        It was never written if it consists of zeros and no record is missing: the next segment begins with
        `end_offset`; or, if there is no next segment, `end_offset` is not below the recovery point.
        """
        index = self._segments.items.index(segment) + 1
        if index < len(self._segments.items):
            is_complete = self._segments.items[index].base_offset == end_offset
        else:
            is_complete = end_offset >= self._recovery_point
        unwritten = segment.size - position
        # Fewer zeros may be the beginning of a batch. They are cut off, too, but reported as a torn tail.
        if not is_complete or unwritten < LENGTH_END or not is_unwritten(segment.file, position, segment.size):
            return False
        logger.info("unwritten end cut off path=%s position=%d bytes=%d", segment.path, position, unwritten)
        self._truncated += unwritten
        segment.cut(position)
        return True

    def _cut(self, segment: Segment, index: int, problem: CorruptLog) -> None:
        cut = segment.size - problem.position
        logger.warning(
            "torn tail cut off path=%s position=%d bytes=%d reason=%s",
            segment.path,
            problem.position,
            cut,
            problem.reason,
        )
        self._truncated += cut
        segment.cut(problem.position)
        self._drop_from(index + 1, f"{segment.path} was cut at {problem.position}")

    def _drop_from(self, index: int, reason: str) -> None:
        for segment in self._segments.take_from(index):
            logger.warning("segment dropped path=%s bytes=%d reason=%s", segment.path, segment.size, reason)
            self._truncated += segment.size
            self._removed += 1
            segment.remove()
