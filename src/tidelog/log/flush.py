"""The blocking part of a flush: sync and write the data that must be on the disk before a recovery point moves.
A plan may run on a thread while the event loop uses the log. Plans that share a `DirectorySyncs` run one by one.
"""

from typing import TYPE_CHECKING, Protocol

from tidelog.log.segment import TEMPORARY_ERRORS

if TYPE_CHECKING:
    from tidelog.log.leader_epochs import LeaderEpochs
    from tidelog.log.segment import Segment
    from tidelog.runtime.interfaces import Disk


class Syncable(Protocol):
    def sync(self) -> None: ...


class DirectorySyncs:
    """Syncs each directory once and shares the result. The logs of one data directory have the same parent
    directory.
    """

    __slots__ = ("_outcomes",)

    def __init__(self) -> None:
        self._outcomes: dict[str, OSError | None] = {}

    def sync(self, disk: "Disk", path: str) -> None:
        """Sync a directory, unless an earlier call has done so. Raises OSError. If the earlier call failed, its error
        is raised again.
        """
        if path not in self._outcomes:
            self._outcomes[path] = None
            try:
                disk.sync_dir(path)
            except OSError as error:
                self._outcomes[path] = error
        failure = self._outcomes[path]
        if failure is not None:
            raise failure


class FlushPlan:
    """One flush of a log: after `run`, all data below `end_offset` is durable.

    The order matters: records, indexes, epochs, directory entries, and last the producer snapshot. If a snapshot
    exists, recovery concludes that all data below it is on the disk. On a full disk, epochs and snapshots are
    postponed (see `small_files_error`). The loop may append during `run`, so the plan uses only the state that it
    contains.
    """

    __slots__ = (
        "_disk",
        "directories",
        "end_offset",
        "epochs",
        "error",
        "generation",
        "indexes",
        "leader_epochs",
        "obsolete",
        "segments",
        "small_files_error",
        "snapshots",
    )

    def __init__(self, disk: "Disk", end_offset: int, generation: int) -> None:
        self._disk = disk
        self.end_offset = end_offset
        self.generation = generation
        """How many times the end of the log was cut off before this plan. If it is cut off again, `Durability.flushed`
        ignores the plan."""
        self.error: OSError | None = None
        """The error, if making the plan failed."""
        self.segments: list[tuple[Segment, int]] = []
        """Each segment to sync, with its size."""
        self.indexes: list[tuple[Segment, Syncable]] = []
        """Each index to sync, with its segment."""
        self.snapshots: dict[int, tuple[str, bytes]] = {}
        """Path and content of each producer snapshot to write, by offset."""
        self.epochs: tuple[str, bytes] | None = None
        """Path and content of the checkpoint of leader epochs, if it must be written."""
        self.leader_epochs: LeaderEpochs | None = None
        """The object from which `epochs` was made."""
        self.small_files_error: OSError | None = None
        """The temporary error (such as a full disk) because of which small files (epochs and snapshots) were
        postponed. The records are durable in spite of it."""
        self.directories: list[str] = []
        """Directories to sync."""
        self.obsolete: list[str] = []
        """Snapshot files that are no longer needed after this plan."""

    def run(self, directories: "DirectorySyncs | None" = None) -> None:
        """Run the plan. Blocks.

        Raises OSError. If its errno is one of NOT_OPENED, a file could not be opened, and the plan may be put back (see
        `Durability.put_back`). After any other error, the log must be taken offline, because the content of the disk is
        unknown.

        `directories` may be shared by several plans, if all of them were made before the first one runs.
        """
        if self.error is not None:
            raise self.error
        for segment, _ in self.segments:
            try:
                segment.file.sync()
            except OSError:
                if not segment.deleted:
                    raise
        for segment, index in self.indexes:
            try:
                index.sync()
            except OSError:
                if not segment.deleted:
                    raise
        self._write([] if self.epochs is None else [self.epochs])
        if directories is None:
            directories = DirectorySyncs()
        for directory in self.directories:
            directories.sync(self._disk, directory)
        self._write(list(self.snapshots.values()))
        for path in self.obsolete if self.small_files_error is None else ():
            if self._disk.exists(path):
                self._disk.remove(path)

    def _write(self, files: list[tuple[str, bytes]]) -> None:
        """Write small files. After a temporary error, the remaining files, and those of later calls, are postponed."""
        try:
            for path, data in files if self.small_files_error is None else ():
                self._disk.write_atomic(path, data)
        except OSError as error:
            if error.errno not in TEMPORARY_ERRORS:
                raise
            self.small_files_error = error
