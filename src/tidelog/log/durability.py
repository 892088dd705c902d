"""Track which data of a log is not durable yet, and the log's recovery point. The steps of a flush that run on the
event loop are in this module.
"""

import errno
from typing import TYPE_CHECKING

from tidelog.log.checkpoints import LEADER_EPOCHS, format_epochs
from tidelog.log.flush import FlushPlan
from tidelog.log.producer_snapshot import encode_snapshot

if TYPE_CHECKING:
    from tidelog.log.leader_epochs import LeaderEpochs
    from tidelog.log.producer_state import ProducerState
    from tidelog.log.recovery import OpenedLog
    from tidelog.log.segment import Segment
    from tidelog.runtime.interfaces import Disk

SNAPSHOT_INTERVAL_BYTES = 16 << 20
"""Number of bytes between two producer snapshots inside a segment. A recovery replays at most this many bytes in
addition to the unflushed ones."""


FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class Durability:
    """The durability state of one log. A producer snapshot is written only after all data below it was synced."""

    __slots__ = (
        "_disk",
        "_durable_offset",
        "_generation",
        "_refused_at",
        "_roll_snapshots",
        "_segments",
        "_segments_to_sync",
        "_snapshot_position",
        "_snapshot_wanted",
        "_sync_wanted",
        "directory",
        "directory_unsynced",
        "disk_full",
        "recovery_point",
        "snapshot_offset",
        "snapshots",
    )

    def __init__(self, disk: "Disk", directory: str, opened: "OpenedLog") -> None:
        self._disk = disk
        self._segments = segments = opened.segments
        self.directory = directory
        self.snapshots = opened.snapshots
        self.recovery_point = opened.log_end_offset
        """All data below this offset is durable, including the files that recovery needs."""
        self._durable_offset = 0
        """Every record below this offset is durable. The other files that recovery needs are possibly not durable."""
        self.directory_unsynced = False
        """Whether the last changes of names in the log's directory are possibly not durable."""
        self._refused_at: int | None = None
        """The position in the active segment at which a batch was refused after a part of it was written. This part was
        cut off, but possibly not durably. None if there is no such position."""
        self._generation = 0
        """How many times the end of the log was cut off (see `before_cut`)."""
        self._roll_snapshots = {
            offset: (self.snapshots.path(offset), data) for offset, data in opened.base_snapshots.items()
        }
        """Path and content of the snapshots that the next plan writes, by offset. They were taken when a segment was
        rolled or recovered, or belong to an earlier plan that did not write them."""
        self._segments_to_sync: list[Segment] = [s for s in segments.items[:-1] if s.has_unsynced_indexes]
        """Closed segments whose indexes are possibly not durable. After `put_back`, the active segment may be in
        this list, too."""
        newest = max(self.snapshots.offsets, default=-1)
        self.snapshot_offset = newest
        """Offset of the newest producer snapshot that no power cut can remove; -1 if there is none. Batches below this
        offset may be removed from the log: a restart does not need them for the state of their producers."""
        self._snapshot_wanted = False
        """Whether `cover` needs a snapshot at the log's end in the next plan."""
        self._sync_wanted = False
        """Whether a plan is due although no records were appended, see `cover`."""
        self.disk_full = False
        """Whether the last attempt to write a snapshot failed because the disk was full."""
        self._snapshot_position = segments.active.size if newest == self.recovery_point else 0
        """The size that the active segment had when the newest snapshot was taken; 0 if the snapshot is older than the
        segment, or if the size is not known."""

    @property
    def durable_offset(self) -> int:
        return max(self._durable_offset, self.recovery_point)

    @property
    def is_flush_due(self) -> bool:
        """Whether a plan is due even if all records are durable, because a snapshot or its name is not durable."""
        return bool(self._roll_snapshots) or self._sync_wanted

    def cover(self, end_offset: int) -> bool:
        """Return whether a plan must run before the batches below `end_offset`, which are durable, may be removed.

        The plan makes a producer snapshot durable that includes these batches. Without it, a restart would find an
        older snapshot and would have to forget all producers, because the batches after the snapshot are missing. Then
        a batch that a producer sends again would be appended again, and a fenced producer could continue.
        """
        if end_offset <= self.snapshot_offset:
            return False
        if end_offset > max(self._roll_snapshots, default=-1):
            self._snapshot_wanted = True
        self._sync_wanted = True
        return True

    def before_roll(self) -> None:
        """Make the active segment's name durable before the next segment is created. Otherwise a power cut could
        remove a file from the middle of the log.

        This blocks only if a segment fills up within one flush interval, or after a refused batch; otherwise the name
        is durable already.
        """
        self.before_append(rolls=True)
        self.directory_unsynced = True  # also if the creation fails and its files are removed
        if self._segments.active.entry_unsynced:
            self._disk.sync_dir(self.directory)
            self._disk.sync_dir(self.directory.rpartition("/")[0])
            self._segments.active.entry_unsynced = False

    @property
    def has_refused_bytes(self) -> bool:
        """Whether the written part of a refused batch was cut off, but possibly not durably (see `before_append`)."""
        return self._refused_at is not None

    def cut_refused(self, position: int) -> None:
        """Cut the written part of a refused batch off the active segment. The segment then ends at `position`. While
        `has_refused_bytes` is true, `before_append` must be called before each append. Raises OSError.
        """
        self._segments.active.file.truncate(position)
        self._refused_at = position

    def before_append(self, *, rolls: bool = False) -> None:
        """Sync the active segment if a batch was refused and one batch was appended after it. With `rolls`, a new
        segment is about to begin: then sync after a refused batch even if no batch was appended after it. Blocks.
        Raises OSError.

        A power cut may lose the truncation and a part of the batch that was appended after it. Then the log has bytes
        of the refused batch, and recovery cuts them off only if no sound batch follows. So a second batch must not be
        appended before the sync. While the disk remains full, every batch is refused and nothing is synced.
        """
        active = self._segments.active
        if self._refused_at is None or (active.size == self._refused_at and not rolls):
            return
        if active.synced_size <= self._refused_at:
            active.file.sync()
            active.synced_size = active.size
        self._refused_at = None

    def note_roll(self, closed: "Segment", base_offset: int, producers: "ProducerState") -> None:
        """Record that the segment `closed` is complete and that the next one begins at `base_offset`.

        Takes a snapshot at `base_offset`, because truncations start from a snapshot at a segment's base offset.
        """
        self._segments_to_sync.append(closed)
        if base_offset != self.snapshot_offset:
            self._roll_snapshots[base_offset] = (self.snapshots.path(base_offset), encode_snapshot(producers))
        self._snapshot_position = 0

    def before_cut(self, end_offset: int) -> None:
        """Lower the recovery point to `end_offset`, because the log will be cut at or above this offset. Plans that
        were made earlier no longer have an effect. The cut itself removes the snapshot files above the offset at which
        it cuts.
        """
        self._generation += 1
        self.recovery_point = min(self.recovery_point, end_offset)
        self._durable_offset = 0
        self._refused_at = None  # the cut makes the end of the active segment durable, or removes the segment
        self._roll_snapshots = {
            offset: snapshot for offset, snapshot in self._roll_snapshots.items() if offset <= end_offset
        }
        self._snapshot_position = 0

    def after_cut(self, recovery_point: int) -> None:
        """Record the recovery point after the cut. The cut has synced the directory, and has checked that the newest
        snapshot is sound.
        """
        self.recovery_point = recovery_point
        self.snapshot_offset = max(self.snapshots.offsets, default=-1)

    def snapshot_due(self) -> bool:
        """Return whether the next plan must include a snapshot at the log's end. This is the case if at least
        SNAPSHOT_INTERVAL_BYTES were appended after the newest snapshot, or if `cover` needs it.
        """
        return self._snapshot_wanted or self._segments.active.size - self._snapshot_position >= SNAPSHOT_INTERVAL_BYTES

    def is_settled(self, end_offset: int, producers: "ProducerState", epochs: "LeaderEpochs") -> bool:
        """Return whether a clean stop would have nothing to write."""
        if self.snapshots.offsets:
            newest = self.snapshots.offsets[-1]
        elif producers.entries:  # the snapshot files are lost, and retention may have deleted the producers' batches
            return False
        else:
            newest = self._segments.items[0].base_offset
        return newest == end_offset == self.recovery_point and not (
            self._roll_snapshots or self._segments_to_sync or epochs.dirty or self.directory_unsynced
        )

    def plan(
        self, end_offset: int, producers: "ProducerState", epochs: "LeaderEpochs", *, with_snapshot: bool
    ) -> FlushPlan:
        """Return a plan that makes all data below `end_offset`, the log's end, durable.

        After this call, the work of the plan counts as done. Therefore the caller must run the plan, and then call
        `flushed` or `put_back`.
        """
        plan = FlushPlan(self._disk, end_offset, self._generation)
        active = self._segments.active
        self._sync_wanted = False
        if with_snapshot:
            try:
                postponed = active.write_indexes()
            except OSError as error:
                plan.error = postponed = error
            # A snapshot needs the index entries on the disk. If they stay in memory, a later plan writes the snapshot.
            with_snapshot = postponed is None
            if postponed is not None:
                self.disk_full = postponed.errno in FULL_DISK_ERRORS
        segments = self._segments.items[self._segments.floor(self.recovery_point) :]
        segments_to_sync, self._segments_to_sync = self._segments_to_sync, []
        for segment in segments:
            if segment.synced_size < segment.size:
                plan.segments.append((segment, segment.size))
            if segment.entry_unsynced:
                plan.directories = [self.directory, self.directory.rpartition("/")[0]]
        segments_to_sync = [segment for segment in segments_to_sync if not segment.deleted]
        for segment in [*segments_to_sync, active] if with_snapshot else segments_to_sync:
            self.directory_unsynced |= segment.transactions.unsynced  # the file may be new
            plan.indexes.extend((segment, index) for index in segment.take_unsynced())
        if epochs.dirty:
            epochs.dirty = False
            plan.epochs = (f"{self.directory}/{LEADER_EPOCHS}", format_epochs(epochs.entries()))
            plan.leader_epochs = epochs
        if self.directory_unsynced:
            self.directory_unsynced = False
            plan.directories = plan.directories or [self.directory]
        plan.snapshots, self._roll_snapshots = self._roll_snapshots, {}
        if with_snapshot:
            plan.snapshots[end_offset] = (self.snapshots.path(end_offset), encode_snapshot(producers))
            self._snapshot_position = active.size
            self._snapshot_wanted = False
        if plan.snapshots:
            for offset in plan.snapshots:
                self.snapshots.add(offset)
            plan.obsolete = self.snapshots.take_obsolete(self._segments)
        return plan

    def settle(self, end_offset: int, producers: "ProducerState", epochs: "LeaderEpochs") -> None:
        """Write and sync all data. Blocks. Raises OSError. If the reason is a full disk or a lack of file descriptors,
        this method may be called again.
        """
        if self.is_settled(end_offset, producers, epochs):
            return
        self._segments.active.finish()
        plan = self.plan(end_offset, producers, epochs, with_snapshot=True)
        try:
            plan.run()
        except OSError:
            self.put_back(plan)
            raise
        self.flushed(plan)
        if plan.small_files_error is not None:
            raise plan.small_files_error

    def put_back(self, plan: FlushPlan) -> None:
        """Cancel a plan that was not run completely. The next plan includes its work."""
        self.disk_full = False
        indexed_segments = [
            segment for segment in dict.fromkeys(s for s, _ in plan.indexes) if segment in self._segments.items
        ]
        for segment, index in plan.indexes:
            if index is segment.transactions:
                segment.transactions.unsynced = True
            else:
                segment.indexes_unsynced = True
        # If the plan has a snapshot inside the active segment, this segment is in the list, too: the next plan must
        # sync the segment's indexes before it writes the snapshot.
        self._segments_to_sync = [
            *indexed_segments,
            *(segment for segment in self._segments_to_sync if segment not in indexed_segments),
        ]
        self.directory_unsynced |= bool(plan.directories)
        self._postpone_small_files(plan)

    def _postpone_small_files(self, plan: FlushPlan) -> None:
        if plan.generation == self._generation:
            self._roll_snapshots = {**plan.snapshots, **self._roll_snapshots}
        if plan.leader_epochs is not None:
            plan.leader_epochs.dirty = True
        # The obsolete files still exist, so they must be in the list: a cut removes only the snapshots of the list.
        self.snapshots.give_back(plan.obsolete)

    def flushed(self, plan: FlushPlan) -> None:
        """Record that a plan has run: its segments are synced, and the recovery point moves to its end.

        If a temporary error, such as a full disk, postponed the small files (epochs and snapshots), the durable offset
        moves instead of the recovery point. A plan that was made before a cut of the log has no effect.
        """
        if plan.generation == self._generation:
            for segment, size in plan.segments:
                segment.synced_size = max(segment.synced_size, size)
                segment.entry_unsynced = False
            if plan.small_files_error is None:
                self.recovery_point = max(self.recovery_point, plan.end_offset)
                self.snapshot_offset = max([self.snapshot_offset, *plan.snapshots])
                self.disk_full &= not plan.snapshots
                return
            self.disk_full = plan.small_files_error.errno in FULL_DISK_ERRORS
            # A later plan writes the files that recovery needs besides the records, when the disk has space again.
            self._durable_offset = max(self._durable_offset, plan.end_offset)
            self._postpone_small_files(plan)
