"""Cut the end of a log off, in steps. The log's files are changed on a thread, and its state is changed on the event
loop.

    1. begin    loop    the log refuses appends and reads, and its recovery point in memory is lowered
    2. run      thread  remove snapshots, then segments (the newest first), then the tail of the last remaining segment
    3. install  loop    the log has its new end, epochs and producers

Before `begin`, the caller persists a recovery point that is not above the new end. If the power fails at any step,
the remaining log ends between the new end and the old end, because each segment is removed only after the removal of
all segments with higher offsets is durable.

A cut that makes the log empty, because its offset is above the end or below the log start offset, may move the start
of the log. Such a cut goes on as follows:

    before `begin`    the whole log is synced. The caller persists the log start offset, or the offset of the cut if
                      that is higher. The recovery point that it persists is the end of the log, but not above this
                      start offset. If the broker dies, the next start finds the old log, or one that ends below
                      its start offset and at or below its recovery point: this log becomes empty
    before `install`  the caller persists the offset of the cut as start offset and as recovery point. Otherwise the
                      next start would remove records that are appended between this offset and the old start offset

`PartitionLog.begin_cut` and `PartitionLog.install_cut` are the steps on the loop. Between these two steps only the
thread may use the segments: no flush, retention, compaction or move of the log may run.
"""

from typing import TYPE_CHECKING

from tidelog.log.batch_scan import BASE_OFFSET
from tidelog.log.checkpoints import LEADER_EPOCHS, format_epochs
from tidelog.log.errors import CorruptLog
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import LOG_SUFFIX, Segment, file_name
from tidelog.log.segment_list import SegmentList
from tidelog.log.snapshots import restore_producers

if TYPE_CHECKING:
    from tidelog.log.retention import Retention
    from tidelog.log.snapshots import Snapshots
    from tidelog.runtime.interfaces import Disk


class Cut:
    """The removal of every batch that contains `offset` or a later offset."""

    __slots__ = (
        "_directory",
        "_disk",
        "_snapshots",
        "empties",
        "end_offset",
        "epochs",
        "may_have_holes",
        "offset",
        "producers",
        "recovery_point",
        "remaining_segments",
        "removed",
        "start_offset",
    )

    def __init__(
        self,
        disk: "Disk",
        directory: str,
        segments: SegmentList,
        snapshots: "Snapshots",
        retention: "Retention",
        epochs: LeaderEpochs,
        *,
        offset: int,
        start_offset: int,
        recovery_point: int,
        empties: bool,
        may_have_holes: bool,
    ) -> None:
        """`empties`: remove all batches, and begin an empty log at `offset`. This offset may be above the old end, or
        below the log start offset. `may_have_holes`: the log was compacted before.
        """
        self._disk = disk
        self._directory = directory
        self._snapshots = snapshots
        self.offset = offset
        self.empties = empties
        self.may_have_holes = may_have_holes
        remaining_count = 0 if empties else segments.floor(offset) + 1
        self.remaining_segments = segments.items[:remaining_count]
        """The segments that remain; the last one loses its tail."""
        # Retention may have taken segments from the log without renaming their files yet. The empty log may need the
        # name of such a file, so the cut removes these files, too.
        self.removed = [*(retention.take_unrenamed() if empties else []), *segments.items[remaining_count:]]
        """The segments whose files are still to be removed. The last one is removed first."""
        self.start_offset = offset if empties else start_offset
        self.end_offset = offset
        """After `run`: the new end. It is below `offset` if a batch began below `offset` and contained it."""
        self.recovery_point = offset if empties else recovery_point
        """The recovery point after the cut is this value or the new end, whichever is lower."""
        self.epochs = LeaderEpochs(epochs.entries())
        self.epochs.dirty = epochs.dirty
        self.producers = ProducerState()

    def run(self) -> None:
        """Change the files, durably. Blocks. Raises OSError and CorruptLog. After an error, the log must go offline."""
        self._snapshots.remove_after(self.offset if self.remaining_segments else -1)
        self._disk.sync_dir(self._directory)
        while self.removed:
            _remove(self.removed[-1])
            # Without this sync, a power failure could bring this segment back, while one with lower offsets is gone.
            self._disk.sync_dir(self._directory)
            self.removed.pop()
        if self.remaining_segments:
            last = self.remaining_segments[-1]
            self.end_offset = last.truncate_to(self.offset)
            last.transactions.truncate_to(self.offset)
        else:
            path = f"{self._directory}/{file_name(self.offset, LOG_SUFFIX)}"
            if self._disk.exists(path) and self._disk.size(path):
                raise CorruptLog(path, 0, "an empty log cannot begin here: this file already has batches")
            self.remaining_segments = [Segment.create(self._disk, self._directory, self.offset, 0)]
            self._disk.sync_dir(self._directory)
        self.start_offset = min(self.start_offset, self.end_offset)
        # An empty log must have no epochs, because the newest epoch counts as the epoch of the last record.
        self.epochs.truncate_from_end(0 if self.empties else self.end_offset)
        if self.epochs.dirty:
            # A follower states its newest epoch in its next fetch. The epoch must be correct even after a power cut.
            self._disk.write_atomic(f"{self._directory}/{LEADER_EPOCHS}", format_epochs(self.epochs.entries()))
            self.epochs.dirty = False
        self.producers = restore_producers(
            self._snapshots,
            SegmentList(self.remaining_segments),
            self.start_offset,
            self.end_offset,
            may_have_holes=self.may_have_holes,
        )


def _remove(segment: Segment) -> None:
    """Remove the files of a segment. After an error, the call can be repeated."""
    if segment.deleted:  # retention has taken it from the log
        segment.rename_deleted()
        segment.remove()
        return
    try:
        segment.remove()
    except OSError:
        segment.deleted = False  # the remaining files still have their final names
        raise


def end_of_cut(segments: SegmentList, offset: int, log_start_offset: int) -> int:
    """Return `offset`, or a lower offset if the batch that contains `offset` also contains offsets below
    `log_start_offset`: the base offset of this batch. A cut removes the whole batch, so the log then ends below its
    start offset.

    Blocks; thread-safe if no other thread uses the segments. Raises CorruptLog, OSError.
    """
    index = segments.floor(offset)
    found = segments.items[index].find(offset) if index <= segments.floor(log_start_offset) else None
    base_offset = offset if found is None else found[2][BASE_OFFSET]
    return base_offset if base_offset < log_start_offset <= offset else offset
