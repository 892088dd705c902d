"""Track data directories in which batches are refused, for lack of space or of another resource. Such a directory is
called full. Write one line to the log when a directory becomes full, and one line when it is usable again.
"""

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.segment import NOT_OPENED
from tidelog.replication.descriptor_retry import lacks_descriptor

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.directory")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of the system for a full disk and for an exhausted disk quota."""
ROOM_BYTES = 1 << 20
"""A directory that had no space is usable again when it has at least this many free bytes, and at least four times as
many as the smallest refused batch needs."""


def lacks_space(error: Exception) -> bool:
    """Return whether a batch was refused because the disk is full."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_SPACE


class FullDirectories:
    """The full directories by path, each with the size of the smallest refused batch and the error number."""

    __slots__ = ("_refused", "_without_descriptor", "on_no_descriptor")

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int, int]] = {}
        """For each full directory, the size of the smallest refused batch, and the error number of the system; 0 if it
        is unknown."""
        self._without_descriptor: dict[str, None] = {}
        """Directories in which a batch was refused for lack of file descriptors since the last call of `mark_usable`.
        Such a refusal starts a sync, which frees file descriptors, but other work may use them again at once. So
        while a directory is in this dict, `find_usable` does not assume that file descriptors are free."""
        self.on_no_descriptor: Callable[[], None] | None = None
        """Called when a batch was refused because its file could not be opened: no file descriptor was free."""

    def note_refusal(self, path: str, size: int, error: Exception) -> None:
        """Record that a batch was refused for lack of space or of another resource that may become available again."""
        cause = error.__cause__
        error_number = cause.errno if isinstance(cause, OSError) and cause.errno else 0
        if lacks_descriptor(cause):
            self._without_descriptor[path] = None
            if self.on_no_descriptor is not None:
                self.on_no_descriptor()
        if path not in self._refused:
            logger.error("appends refused path=%s bytes=%d reason=%s", path, size, error)
            self._refused[path] = size, error_number
        elif size < self._refused[path][0]:
            self._refused[path] = size, error_number

    def note_append(self, path: str, size: int) -> None:
        """Record that a batch was appended. A batch smaller than the smallest refused one does not prove that there
        is space.
        """
        refused = self._refused.get(path)
        if refused is not None and size >= refused[0] and refused[1] not in NOT_OPENED:
            self._set_usable(path)

    def find_usable(self, disk: "Disk") -> list[str]:
        """Return the directories to mark as usable: those that lacked space and have space again, and those that lacked
        file descriptors and have refused no batch for this reason since the last `mark_usable`. Blocks; thread-safe.
        """
        usable = []
        for path, (size, error_number) in list(self._refused.items()):
            try:
                if error_number in NOT_OPENED:
                    is_usable = path not in self._without_descriptor
                else:
                    is_usable = error_number in NO_SPACE and disk.free_bytes(path) >= max(4 * size, ROOM_BYTES)
            except OSError:
                continue
            if is_usable:
                usable.append(path)
        return usable

    def mark_usable(self, paths: list[str]) -> None:
        """Mark as usable the directories that `find_usable` has returned."""
        self._without_descriptor.clear()
        for path in paths:
            if path in self._refused:
                self._set_usable(path)

    def __bool__(self) -> bool:
        return bool(self._refused)

    def _set_usable(self, path: str) -> None:
        del self._refused[path]
        logger.warning("appends accepted again path=%s", path)
