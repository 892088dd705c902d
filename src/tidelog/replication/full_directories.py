"""Data directories that have no room for what producers send: said once when it begins, and once when it is over."""

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.segment import NOT_OPENED
from tidelog.replication.patience import wants_descriptor

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.directory")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
ROOM_BYTES = 1 << 20
"""With so much free, or four times what was refused, a directory is not full any more."""


class FullDirectories:
    """By path: the size of the smallest batch that was refused there, and the error."""

    __slots__ = ("_lately", "_refused", "no_descriptors")

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int, int]] = {}
        self._lately: dict[str, None] = {}
        """Where descriptors were wanting since the last look: they come and go with every sync."""
        self.no_descriptors: Callable[[], None] | None = None
        """Told when a batch was refused because its file could not be opened."""

    def refused(self, path: str, size: int, error: Exception) -> None:
        """A batch of `size` bytes was not appended for want of space, or of something else that may come back."""
        cause = error.__cause__
        number = cause.errno if isinstance(cause, OSError) and cause.errno else 0
        if wants_descriptor(cause):
            self._lately[path] = None
            if self.no_descriptors is not None:
                self.no_descriptors()
        if path not in self._refused:
            logger.error("appends refused path=%s bytes=%d reason=%s", path, size, error)
            self._refused[path] = size, number
        elif size < self._refused[path][0]:
            self._refused[path] = size, number

    def taken(self, path: str, size: int) -> None:
        """A batch was appended where one had been refused before. A smaller one tells nothing."""
        refused = self._refused.get(path)
        if refused is not None and size >= refused[0] and refused[1] not in NOT_OPENED:
            self._over(path)

    def look(self, disk: "Disk") -> list[str]:
        """The directories that have room again, or descriptors for long enough. Blocks; on any thread."""
        found = []
        for path, (size, number) in list(self._refused.items()):
            try:
                if number in NOT_OPENED:
                    found += [path] if path not in self._lately else []
                elif number in NO_SPACE and disk.free_bytes(path) >= max(4 * size, ROOM_BYTES):
                    found.append(path)
            except OSError:
                continue
        return found

    def room(self, paths: list[str]) -> None:
        """What `look` found."""
        self._lately.clear()
        for path in paths:
            if path in self._refused:
                self._over(path)

    def __bool__(self) -> bool:
        return bool(self._refused)

    def _over(self, path: str) -> None:
        del self._refused[path]
        logger.warning("appends go on path=%s", path)
