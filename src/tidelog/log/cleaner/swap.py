"""Replace segments by a rewritten one. The renames are in such an order that a crash leaves either the old segments
or the new one.

    1. .cleaned -> .swap, durable      from here on, a start after a crash finishes the swap
    2. the log serves the new segment  new reads do not find the old segments
    3. old files -> .deleted, durable  one by one, the oldest first; reads in progress continue
    4. .swap -> final names, durable   the log file first
"""

from typing import TYPE_CHECKING

from tidelog.log.leftovers import CLEANED_SUFFIX, SWAP_SUFFIX, put_in_place
from tidelog.log.segment import SUFFIXES, Segment, file_name

if TYPE_CHECKING:
    from tidelog.log.cleaner.job import GroupReport
    from tidelog.log.partition_log import PartitionLog
    from tidelog.runtime.interfaces import Disk


class Swap:
    """The swap of one group of segments.

    The steps are, in order: `begin` (loop), `announce` (blocks), `install` (loop), `finish` (blocks), `end` (loop).
    Steps marked `loop` run on the event loop. Steps marked `blocks` run on a thread and raise OSError.
    """

    __slots__ = ("_directory", "_disk", "_group", "_log", "_new", "_old", "_old_renamed")

    def __init__(self, disk: "Disk", log: "PartitionLog", group: "GroupReport") -> None:
        self._disk = disk
        self._log = log
        self._group = group
        self._directory = log.directory
        self._old: list[Segment] = []
        self._old_renamed = False
        self._new = Segment(
            disk, log.directory, group.base_offsets[0], group.size, has_transactions=group.has_transactions
        )

    def begin(self) -> bool:
        """Begin the swap. Returns False if the segments are no longer closed segments of the log, if another swap of
        the log is running, or if the log is offline.

        If True is returned, retention does not run on the log until `end` or `give_up` is called.
        """
        base_offsets = self._group.base_offsets
        segments = self._log.segments
        index = segments.floor(base_offsets[0])
        self._old = segments.items[index : index + len(base_offsets)]
        present_offsets = [segment.base_offset for segment in self._old]
        if (
            present_offsets != base_offsets
            or self._old[-1] is segments.active
            or segments.swapping
            or self._log.failure is not None
        ):
            return False
        segments.swapping = True
        return True

    def announce(self) -> None:
        """Rename the new files to `.swap`, durably, and load the new segment's indexes. Blocks. Raises OSError."""
        for suffix in SUFFIXES:
            cleaned = self._path(suffix, CLEANED_SUFFIX)
            if self._disk.exists(cleaned):
                self._disk.rename(cleaned, self._path(suffix, SWAP_SUFFIX))
        self._disk.sync_dir(self._directory)
        new = self._new
        new.use_ending(SWAP_SUFFIX)
        new.max_timestamp = self._group.max_timestamp
        new.max_timestamp_offset = self._group.max_timestamp_offset
        new.created_ms = max(segment.created_ms for segment in self._old)
        # While a later step renames these files, they must not be opened by their paths. Therefore the log file is
        # opened and the indexes are loaded now.
        new.file.size()
        new.index.load_all()
        new.times.load_all()
        new.transactions.hold()

    def install(self) -> None:
        """Serve the new segment instead of the old ones."""
        self._new.set_index_interval(self._log.config)
        self._log.replace_segments(self._old, self._new)

    def finish(self) -> None:
        """Rename the old files to `.deleted` and the new ones to their final names, durably. Blocks.

        A start that completes the swap does not remove old segments that begin above the last record of the new
        segment. So after a power cut, some of them may remain. The old segments are renamed durably one by one, the
        oldest first: if one of them remains, the later ones remain, too. In another order, an old value could remain
        without the tombstone that deletes it.

        Raises OSError. After an error, a second call continues with the remaining files.
        """
        if not self._old_renamed:
            for segment in self._old:
                segment.rename_deleted()
                self._disk.sync_dir(self._directory)
            self._old_renamed = True
        put_in_place(self._disk, self._directory, self._new.base_offset)

    def end(self, now_ms: int) -> None:
        """Use the final file names, let the files of the old segments be removed after `file.delete.delay.ms`, and
        allow retention again.
        """
        self._new.use_ending("")
        self._new.transactions.release()
        self._log.segments_replaced(self._old, self._new, now_ms)
        self._log.segments.swapping = False

    def give_up(self) -> None:
        """End the swap and keep the old segments. Call this either before `announce`, or after `announce` failed and
        `discard` was called.
        """
        self._log.segments.swapping = False

    def discard(self) -> None:
        """Remove the new files after `announce` failed. Blocks.

        Raises OSError. After an error, it may be called again.
        """
        if self._new.opened is not None:
            self._new.opened.close()
        # The log file is renamed back to `.cleaned` first and removed last. Its name marks the set of files as
        # incomplete. If the process ends before the removal is complete, the next start discards the set.
        if self._disk.exists(self._path(SUFFIXES[0], SWAP_SUFFIX)):
            self._disk.rename(self._path(SUFFIXES[0], SWAP_SUFFIX), self._path(SUFFIXES[0], CLEANED_SUFFIX))
            self._disk.sync_dir(self._directory)
        for suffixes in (SUFFIXES[1:], SUFFIXES[:1]):
            for suffix in suffixes:
                for ending in (SWAP_SUFFIX, CLEANED_SUFFIX):
                    if self._disk.exists(self._path(suffix, ending)):
                        self._disk.remove(self._path(suffix, ending))
            self._disk.sync_dir(self._directory)

    def _path(self, suffix: str, ending: str) -> str:
        return f"{self._directory}/{file_name(self._new.base_offset, suffix)}{ending}"
