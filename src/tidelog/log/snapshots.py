"""The producer snapshot files of one log: which files exist, which must be kept, and which is the newest sound one."""

import logging
from typing import TYPE_CHECKING

from tidelog.log.batch_scan import BASE_OFFSET, LAST_OFFSET_DELTA, PRODUCER_ID, headers
from tidelog.log.errors import CorruptLog
from tidelog.log.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.log.replay import replay_batch
from tidelog.log.segment import file_name

if TYPE_CHECKING:
    from tidelog.log.producer_state import ProducerEntry
    from tidelog.log.segment import Segment
    from tidelog.log.segment_list import SegmentList
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.log")

SUFFIX = ".snapshot"
NEWEST_KEPT = 2
"""The newest snapshots, up to this number, are kept. The snapshots at the base offsets of segments are also kept,
because a truncation restores the producers from one of them."""


class Snapshots:
    """The snapshot files in a partition's directory. `offsets` are their offsets, ascending."""

    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: "Disk", directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = sorted(offsets)

    def path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SUFFIX)}"

    def load(self, offset_max: int) -> tuple[int, "dict[int, ProducerEntry]"] | None:
        """Return (offset, producers) of the newest sound snapshot at or below `offset_max`. Unsound ones are removed
        and logged.
        """
        for offset in reversed([o for o in self.offsets if o <= offset_max]):
            path = self.path(offset)
            try:
                return offset, decode_snapshot(self._disk.read(path))
            except (CorruptSnapshot, FileNotFoundError) as error:
                logger.warning("producer snapshot ignored path=%s reason=%s", path, error)
                self.remove(offset)
        return None

    def add(self, offset: int) -> None:
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()

    def remove(self, offset: int) -> None:
        self.offsets.remove(offset)
        path = self.path(offset)
        if self._disk.exists(path):
            self._disk.remove(path)

    def remove_after(self, offset: int) -> None:
        for later in [o for o in self.offsets if o > offset]:
            self.remove(later)

    def take_obsolete(self, segments: "SegmentList") -> list[str]:
        """Remove from the list the snapshots that are no longer needed, and return their paths. The caller removes
        the files.
        """
        kept_offsets = {segment.base_offset for segment in segments.items}
        kept_offsets.update(self.offsets[-NEWEST_KEPT:])
        obsolete = [offset for offset in self.offsets if offset not in kept_offsets]
        self.offsets = [offset for offset in self.offsets if offset in kept_offsets]
        return [self.path(offset) for offset in obsolete]

    def give_back(self, obsolete: list[str]) -> None:
        """Add the paths from `take_obsolete` to the list again, because their files were not removed."""
        for path in obsolete:
            self.add(int(path.rpartition("/")[2][: -len(SUFFIX)]))


def load_producers(
    snapshots: Snapshots, segments: "SegmentList", start: int, end: int, *, may_have_holes: bool
) -> tuple[ProducerState, int]:
    """Load the newest snapshot at or below `end`, and replay the batches from there to `start`, the log start offset.
    Without a snapshot, the replay begins at the first batch.

    Returns the producers, and the offset of the snapshot; -1 if there is no snapshot. Clients cannot read the replayed
    batches any more, but these batches still count for the sequence of their producer. If some of them are missing or
    damaged, no producers are returned, because a known producer whose last batches are missing would be refused. In
    this case, Kafka also forgets all producers. `may_have_holes`: the log was compacted, so offsets that are missing
    between two batches do not mean that batches were lost. Raises OSError.
    """
    producers = ProducerState()
    snapshot = snapshots.load(end)
    snapshot_offset, entries = snapshot or (-1, {})
    offset = snapshot_offset if snapshot else segments.items[0].base_offset
    if offset < segments.items[0].base_offset:  # the batches directly after the snapshot are missing
        return producers, offset
    producers.restore(entries)
    reached = offset
    try:
        for segment in segments.items[segments.floor(offset) : segments.floor(start) + 1] if offset < start else []:
            if segment.base_offset > reached and not may_have_holes:
                break
            segment.transactions.truncate_to(offset)
            reached = max(reached, _replay(producers, segment, 0, offset, start))
    except CorruptLog as error:
        logger.warning("batches below the log start offset are damaged, producers forgotten reason=%s", error)
        return ProducerState(), snapshot_offset
    if reached < start and not may_have_holes:
        # Retention renames one file after the other. After a power cut, any of the renames may be undone.
        logger.warning(
            "batches below the log start offset are missing, producers forgotten path=%s from=%d to=%d",
            segments.items[0].path.rpartition("/")[0],
            reached,
            start,
        )
        return ProducerState(), snapshot_offset
    return producers, snapshot_offset


def restore_producers(
    snapshots: Snapshots, segments: "SegmentList", start: int, end: int, *, may_have_holes: bool
) -> ProducerState:
    """Restore the producers of a log with the start offset `start` and the end offset `end`: load the newest snapshot
    and replay the batches after it.

    The replay writes the transaction indexes again. The CRCs of the batches are not checked. Raises CorruptLog if a
    batch cannot be read, and OSError. For `may_have_holes`, see `load_producers`.
    """
    producers, snapshot_offset = load_producers(snapshots, segments, start, end, may_have_holes=may_have_holes)
    start = max(start, snapshot_offset)
    if start >= end:
        return producers
    for segment in segments.items[segments.floor(start) :]:
        segment.transactions.truncate_to(start)
        first_batch = segment.find(start)
        if first_batch is not None:
            _replay(producers, segment, first_batch[0], start, end)
    return producers


def _replay(producers: ProducerState, segment: "Segment", first_position: int, start: int, end: int) -> int:
    """Replay the segment's batches that end at `start` or later, but below `end`. Begin to read at `first_position`.

    Returns the offset after the last batch that was read, but at most `end`.
    """
    reached = segment.base_offset
    for position, size, fields in headers(segment.file, first_position, segment.size, segment.base_offset):
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if last_offset >= end:
            return end
        reached = last_offset + 1
        if fields[PRODUCER_ID] >= 0 and last_offset >= start:
            replay_batch(producers, segment, position, size, fields)
        if reached == end:
            break  # a torn batch may follow
    return reached
