"""The blocking half of a flush: what must be on the disk before a recovery point may move. Runs on any thread."""

from typing import TYPE_CHECKING, Protocol

from tidelog.log.segment import PASSING

if TYPE_CHECKING:
    from tidelog.log.leader_epochs import LeaderEpochs
    from tidelog.log.segment import Segment
    from tidelog.runtime.interfaces import Disk


class Syncable(Protocol):
    def sync(self) -> None: ...


class DirectorySyncs:
    """Each directory is synced once, and what came of it holds for all that need it: partitions lie side by side."""

    __slots__ = ("_outcomes",)

    def __init__(self) -> None:
        self._outcomes: dict[str, OSError | None] = {}

    def sync(self, disk: "Disk", path: str) -> None:
        """Raises OSError."""
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
    """Everything below `end_offset` is durable once `run` returns.

    Order matters: records, indexes, epochs, directory entries, and last the producer snapshot: recovery takes its
    presence as the word that everything below it is on the disk. On a full disk epochs and snapshot are put off. The
    loop goes on appending meanwhile; the plan touches only what it holds.
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
        "put_off",
        "segments",
        "snapshots",
    )

    def __init__(self, disk: "Disk", end_offset: int, generation: int) -> None:
        self._disk = disk
        self.end_offset = end_offset
        self.generation = generation
        """Counts truncations: a plan from before one no longer says anything."""
        self.error: OSError | None = None
        """What went wrong already while the plan was made."""
        self.segments: list[tuple[Segment, int]] = []
        """With the size that each has reached."""
        self.indexes: list[tuple[Segment, Syncable]] = []
        self.snapshots: dict[int, tuple[str, bytes]] = {}
        self.epochs: tuple[str, bytes] | None = None
        self.leader_epochs: LeaderEpochs | None = None
        """Those that `epochs` is made of."""
        self.put_off: OSError | None = None
        """Why the small files could not be written, for now: the disk is full. The records are durable all the same."""
        self.directories: list[str] = []
        self.obsolete: list[str] = []
        """Snapshots that this plan's make superfluous."""

    def run(self, directories: "DirectorySyncs | None" = None) -> None:
        """Blocks. Raises OSError, after which the log must be failed: what the disk holds is not known any more. Unless
        it is one of NOT_OPENED: a file or a directory that could not be opened has lost nothing, see `put_back`.

        `directories` is shared with plans that were all made before the first of them is run.
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
        for path in self.obsolete if self.put_off is None else ():
            if self._disk.exists(path):
                self._disk.remove(path)

    def _write(self, files: list[tuple[str, bytes]]) -> None:
        """Small files, as long as the disk has room for them."""
        try:
            for path, data in files if self.put_off is None else ():
                self._disk.write_atomic(path, data)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.put_off = error
