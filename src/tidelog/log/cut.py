"""Cut the end of a log off, in steps. The log's files are changed on a thread, and its state is changed on the event
loop.

    1. begin    loop    the log refuses appends and reads, and its recovery point in memory is lowered
    2. run      thread  remove snapshots, then segments (the newest first), then the tail of the last remaining segment
    3. install  loop    the log has its new end, epochs and producers

Before `begin`, the caller persists a recovery point that is not above the new end. If the power fails at any step,
the remaining log ends between the new end and the old end, because each segment is removed only after the removal of
all segments with higher offsets is durable.

`PartitionLog.begin_cut` and `PartitionLog.install_cut` are the steps on the loop. Between these two steps only the
thread may use the segments: no flush, retention, compaction or move of the log may run.
"""

from typing import TYPE_CHECKING

from tidelog.log.checkpoints import LEADER_EPOCHS, format_epochs
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import Segment
from tidelog.log.segment_list import SegmentList
from tidelog.log.snapshots import restore_producers

if TYPE_CHECKING:
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
        epochs: LeaderEpochs,
        *,
        offset: int,
        start_offset: int,
        recovery_point: int,
        empties: bool,
        may_have_holes: bool,
    ) -> None:
        """`empties`: remove all batches, and begin an empty log at `offset`. This offset may be above the old end.
        `may_have_holes`: the log was compacted before.
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
        self.removed = segments.items[remaining_count:]
        self.start_offset = offset if empties else start_offset
        self.end_offset = offset
        """After `run`: the new end. It is below `offset` if a batch began below `offset` and contained it, or if
        compaction had removed the offsets before `offset`."""
        self.recovery_point = offset if empties else recovery_point
        """The recovery point after the cut is this value or the new end, whichever is lower."""
        self.epochs = LeaderEpochs(epochs.entries())
        self.epochs.dirty = epochs.dirty
        self.producers = ProducerState()

    def run(self) -> None:
        """Change the files, durably. Blocks. Raises OSError and CorruptLog. After an error, the log must go offline."""
        self._snapshots.remove_after(self.offset if self.remaining_segments else -1)
        self._disk.sync_dir(self._directory)
        for segment in reversed(self.removed):
            segment.remove()
            # Without this sync, a power failure could bring this segment back, while one with lower offsets is gone.
            self._disk.sync_dir(self._directory)
        if self.remaining_segments:
            last = self.remaining_segments[-1]
            self.end_offset = last.truncate_to(self.offset, self.start_offset)
            last.transactions.truncate_to(self.offset)
        else:
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
