"""Notice at once when another process writes to a file (inotify). Only Linux has inotify. On other systems `open_watch`
returns None, and the caller has to check the file at intervals.
"""

import asyncio
import ctypes
import os
from typing import Final

IN_MODIFY: Final = 0x2
READ_BYTES: Final = 64 << 10


class FileWatch:
    """Waits for writes to one file. The watch is used on one event loop, until `close`."""

    def __init__(self, descriptor: int) -> None:
        self.writes = 0
        """How often writes were noticed. Several writes may be noticed at once, and are then counted as one."""
        self._descriptor = descriptor
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return
        self.writes += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seen: int, limit_s: float) -> bool:
        """Wait until `writes` differs from `seen`, at most for `limit_s`. Returns whether the two numbers differ."""
        if self.writes == seen and limit_s > 0:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting[future] = None
            try:
                await asyncio.wait([future], timeout=limit_s)
            finally:
                del self._waiting[future]
        return self.writes != seen

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


def open_watch(path: str) -> FileWatch | None:
    """Return a watch of the file, or None if this system cannot watch files or the file does not exist."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return FileWatch(descriptor)
