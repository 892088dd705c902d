"""What of a log is not yet durable, and the recovery point: the loop's half of a flush."""

from typing import TYPE_CHECKING

from tidelog.log.checkpoints import LEADER_EPOCHS, format_epochs
from tidelog.log.flush import FlushPlan
from tidelog.log.producer_snapshot import encode_snapshot

if TYPE_CHECKING:
    from tidelog.log.leader_epochs import LeaderEpochs
    from tidelog.log.producer_state import ProducerState
    from tidelog.log.segment import Segment
    from tidelog.log.segment_list import SegmentList
    from tidelog.log.snapshots import Snapshots
    from tidelog.runtime.interfaces import Disk

SNAPSHOT_INTERVAL_BYTES = 16 << 20
"""Between producer snapshots inside a segment: what a recovery replays at most, beyond the unflushed bytes."""


class Durability:
    """Knows what a plan must sync. A producer snapshot is written only behind everything that recovery trusts below
    it.
    """

    __slots__ = (
        "_disk",
        "_durable_offset",
        "_generation",
        "_rolled",
        "_sealed",
        "_segments",
        "_snapshot_at",
        "directory",
        "directory_unsynced",
        "recovery_point",
        "snapshots",
    )

    def __init__(
        self, disk: "Disk", directory: str, segments: "SegmentList", snapshots: "Snapshots", recovery_point: int
    ) -> None:
        self._disk = disk
        self._segments = segments
        self.directory = directory
        self.snapshots = snapshots
        self.recovery_point = recovery_point
        """Everything below it is durable."""
        self._durable_offset = 0
        self.directory_unsynced = False
        self._generation = 0
        self._rolled: dict[int, tuple[str, bytes]] = {}
        """Snapshots taken at rolls, not written yet."""
        self._sealed: list[Segment] = [segment for segment in segments.items[:-1] if segment.unsynced_beside_records]
        known = snapshots.offsets[-1:] == [recovery_point]
        self._snapshot_at = segments.active.size if known else 0
        """Where in the active segment the newest snapshot was taken."""

    @property
    def durable_offset(self) -> int:
        return max(self._durable_offset, self.recovery_point)

    def before_roll(self) -> None:
        """A segment's name is durable before the next is made, or a power cut could take it from the middle of the log.

        Blocks when a segment fills up within one flush interval; else it has happened long ago.
        """
        if self._segments.active.entry_unsynced:
            self._disk.sync_dir(self.directory)
            self._disk.sync_dir(self.directory.rpartition("/")[0])
            self._segments.active.entry_unsynced = False

    def rolled(self, sealed: "Segment", base_offset: int, producers: "ProducerState") -> None:
        """`sealed` takes no more; a snapshot belongs to each segment's base, for truncations to start from."""
        self._sealed.append(sealed)
        self._rolled[base_offset] = (self.snapshots.path(base_offset), encode_snapshot(producers))
        self._snapshot_at = 0

    def before_cut(self, end_offset: int) -> None:
        """The log is about to end at `end_offset`: whatever claims more was on the disk goes first. Blocks."""
        self._generation += 1
        self.recovery_point = min(self.recovery_point, end_offset)
        self._durable_offset = 0
        self._rolled = {offset: snapshot for offset, snapshot in self._rolled.items() if offset <= end_offset}
        self._snapshot_at = 0
        self.snapshots.remove_after(end_offset)
        self._disk.sync_dir(self.directory)

    def snapshot_due(self) -> bool:
        return self._segments.active.size - self._snapshot_at >= SNAPSHOT_INTERVAL_BYTES

    def is_settled(self, end_offset: int, epochs: "LeaderEpochs") -> bool:
        """Whether a clean end of the process would have nothing to write."""
        newest = self.snapshots.offsets[-1] if self.snapshots.offsets else self._segments.items[0].base_offset
        return newest == end_offset == self.recovery_point and not (
            self._rolled or self._sealed or epochs.dirty or self.directory_unsynced
        )

    def plan(
        self, end_offset: int, producers: "ProducerState", epochs: "LeaderEpochs", *, with_snapshot: bool
    ) -> FlushPlan:
        """What to sync so that all below `end_offset`, the log's end, is durable. A plan that is taken is run."""
        plan = FlushPlan(self._disk, end_offset, self._generation)
        active = self._segments.active
        if with_snapshot:
            try:
                active.write_indexes()
            except OSError as error:
                plan.error = error
            with_snapshot = not (active.index.pending or active.times.pending)  # the disk is full: another time
        segments = self._segments.items[self._segments.floor(self.recovery_point) :]
        sealed, self._sealed = self._sealed, []
        for segment in segments:
            if segment.synced_size < segment.size:
                plan.segments.append((segment, segment.size))
            if segment.entry_unsynced:
                plan.directories = [self.directory, self.directory.rpartition("/")[0]]
        for segment in [*sealed, active] if with_snapshot else sealed:
            self.directory_unsynced |= segment.transactions.unsynced  # it may be a new file
            plan.indexes.extend((segment, index) for index in segment.take_unsynced())
        if epochs.dirty:
            epochs.dirty = False
            plan.epochs = (f"{self.directory}/{LEADER_EPOCHS}", format_epochs(epochs.entries()))
            plan.leader_epochs = epochs
        if self.directory_unsynced:
            self.directory_unsynced = False
            plan.directories = plan.directories or [self.directory]
        plan.snapshots, self._rolled = self._rolled, {}
        if with_snapshot:
            plan.snapshots[end_offset] = (self.snapshots.path(end_offset), encode_snapshot(producers))
            self._snapshot_at = active.size
        if plan.snapshots:
            for offset in plan.snapshots:
                self.snapshots.add(offset)
            plan.obsolete = self.snapshots.take_obsolete(self._segments)
        return plan

    def settle(self, end_offset: int, producers: "ProducerState", epochs: "LeaderEpochs") -> None:
        """Write and sync everything. Blocks. Raises OSError; for want of descriptors it may be called again."""
        if self.is_settled(end_offset, epochs):
            return
        self._segments.active.finish()
        plan = self.plan(end_offset, producers, epochs, with_snapshot=True)
        try:
            plan.run()
        except OSError:
            self.put_back(plan)
            raise
        self.flushed(plan)
        if plan.put_off is not None:
            raise plan.put_off

    def put_back(self, plan: FlushPlan) -> None:
        """A plan could not be run, for want of descriptors, and nothing is lost: the next one does its work as well."""
        kept = [segment for segment in dict.fromkeys(s for s, _ in plan.indexes) if segment in self._segments.items]
        for segment, index in plan.indexes:
            if index is segment.transactions:
                segment.transactions.unsynced = True
            else:
                segment.indexes_unsynced = True
        # The active one too: a snapshot that was to be taken in it stands behind its indexes.
        self._sealed = [*kept, *(segment for segment in self._sealed if segment not in kept)]
        self.directory_unsynced |= bool(plan.directories)
        self._small_files_put_off(plan)
        self.snapshots.give_back(plan.obsolete)

    def _small_files_put_off(self, plan: FlushPlan) -> None:
        if plan.generation == self._generation:
            self._rolled = {**plan.snapshots, **self._rolled}
        if plan.leader_epochs is not None:
            plan.leader_epochs.dirty = True

    def flushed(self, plan: FlushPlan) -> None:
        """A plan has run. One from before a cut says nothing any more."""
        if plan.generation == self._generation:
            for segment, size in plan.segments:
                segment.synced_size = max(segment.synced_size, size)
                segment.entry_unsynced = False
            if plan.put_off is None:
                self.recovery_point = max(self.recovery_point, plan.end_offset)
                return
            # What recovery needs beside the records is written by a later plan, when there is space again.
            self._durable_offset = max(self._durable_offset, plan.end_offset)
            self._small_files_put_off(plan)
