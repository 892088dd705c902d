"""The blocking half of a flush: what must be on the disk before a recovery point may move. Runs on any thread."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.log.segment import Segment
    from tidelog.runtime.interfaces import Disk


class Syncable(Protocol):
    def sync(self) -> None: ...


class FlushPlan:
    """Everything below `end_offset` is durable once `run` returns.

    Order matters: records, indexes, epochs, directory entries, and last the producer snapshot: recovery takes its
    presence as the word that everything below it is on the disk. The loop goes on appending meanwhile; the plan
    touches only what it holds.
    """

    __slots__ = (
        "_disk",
        "directories",
        "end_offset",
        "epochs",
        "error",
        "generation",
        "indexes",
        "obsolete",
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
        self.directories: list[str] = []
        self.obsolete: list[str] = []
        """Snapshots that this plan's make superfluous."""

    def run(self) -> None:
        """Blocks. Raises OSError, after which the log must be failed: what the disk holds is not known any more."""
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
        if self.epochs is not None:
            self._disk.write_atomic(*self.epochs)
        for directory in self.directories:
            self._disk.sync_dir(directory)
        for path, data in self.snapshots.values():
            self._disk.write_atomic(path, data)
        for path in self.obsolete:
            if self._disk.exists(path):
                self._disk.remove(path)
