"""Cut the end of a log off, in steps: the log's files are changed on a thread, and its state on the event loop.

    1. begin    loop    the log refuses appends and reads, and its own recovery point is lowered
    2. run      thread  snapshots, then segments from the newest to the oldest, then the tail of the last segment
    3. install  loop    the log has its new end, epochs and producers

Before `begin`, the caller persists a recovery point that is not above the new end. Then a power cut at any step leaves
a log that ends between the new end and the old one: a file is removed, durably, only after every later file.

`PartitionLog.begin_cut` and `PartitionLog.install_cut` are the steps on the loop. Between them the thread owns the
segments; no flush, retention, compaction or move of the log may run.
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
    """The removal of every batch that contains `offset` or a later one."""

    __slots__ = (
        "_directory",
        "_disk",
        "_snapshots",
        "empties",
        "end_offset",
        "epochs",
        "kept",
        "offset",
        "producers",
        "recovery_point",
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
    ) -> None:
        """`empties`: remove everything, and begin an empty log at `offset`, which may be above the old end."""
        self._disk = disk
        self._directory = directory
        self._snapshots = snapshots
        self.offset = offset
        self.empties = empties
        kept_count = 0 if empties else segments.floor(offset) + 1
        self.kept = segments.items[:kept_count]
        """The segments that remain; the last one loses its tail."""
        self.removed = segments.items[kept_count:]
        self.start_offset = offset if empties else start_offset
        self.end_offset = offset
        """After `run`: the new end, which is below `offset` if a batch contains `offset`."""
        self.recovery_point = offset if empties else recovery_point
        """The recovery point after the cut, unless the new end is below it."""
        self.epochs = LeaderEpochs(epochs.entries())
        self.epochs.dirty = epochs.dirty
        self.producers = ProducerState()

    def run(self) -> None:
        """Change the files, durably. Blocks. Raises OSError and CorruptLog; then the log must go offline."""
        self._snapshots.remove_after(self.offset if self.kept else -1)
        self._disk.sync_dir(self._directory)
        for segment in reversed(self.removed):
            segment.remove()
            # Otherwise a power cut could bring this segment back behind a gap.
            self._disk.sync_dir(self._directory)
        if self.kept:
            last = self.kept[-1]
            self.end_offset = last.truncate_to(self.offset)
            last.transactions.truncate_to(self.offset)
        else:
            self.kept = [Segment.create(self._disk, self._directory, self.offset, 0)]
            self._disk.sync_dir(self._directory)
        self.start_offset = min(self.start_offset, self.end_offset)
        # In an empty log, an epoch before its start would seem to be that of its last record.
        self.epochs.truncate_from_end(0 if self.empties else self.end_offset)
        if self.epochs.dirty:
            # A follower names its newest epoch in its next fetch, also after a power cut.
            self._disk.write_atomic(f"{self._directory}/{LEADER_EPOCHS}", format_epochs(self.epochs.entries()))
            self.epochs.dirty = False
        self.producers = restore_producers(self._snapshots, SegmentList(self.kept), self.start_offset, self.end_offset)
