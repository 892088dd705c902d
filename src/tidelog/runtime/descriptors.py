"""A bounded pool of file descriptors: files open theirs on demand and give it up when others need it more.

A partition has three files and a process may hold fewer descriptors than a broker has partitions.
"""

import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Protocol

from tidelog.runtime.forks import drop_when_forked

log = logging.getLogger("tidelog.disk")

SCAN_MAX = 128
"""Descriptors looked at for one that can go. Bounds the cost of an open when nearly all are dirty."""

SPARE = 8
"""Descriptors held back for syncs, which run on a few threads: by them other files become clean, and can go."""

OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def descriptor_limit() -> int:
    """The process's soft limit of open descriptors."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as the hard one allows and return it. Process-wide: only for a process of our own."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says "infinity" and then takes no more than OPEN_MAX.
    wanted = [hard] if hard != resource.RLIM_INFINITY else [1 << 20, 1 << 16, 10_240]
    for limit in wanted:
        if soft != resource.RLIM_INFINITY and limit > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
            except (OSError, ValueError):
                continue
    return descriptor_limit()


class Pooled(Protocol):
    """What the pool knows of a file."""

    path: str
    descriptor: int
    """-1 when it is not open."""
    used: bool
    """Set at each use but the one that opened it; the second chance."""
    pins: list[None]
    """Not empty while a call uses the descriptor."""

    @property
    def dirty(self) -> bool: ...


class DescriptorPool:
    """Descriptors of files, at most `descriptors_max` unless the rest are dirty or in use.

    Second chance: an unused clean descriptor goes first. One with unsynced bytes is never closed: the kernel reports a
    failed write-back to descriptors that were open at the time, so closing it could lose the only report.

    Any thread may call. A file pins itself (`pins.append`) before it reads `descriptor`; the pool takes the descriptor
    away before it looks at the pins, and gives it back if it finds one. Whichever comes first, no call meets a closed
    descriptor.
    """

    def __init__(self, descriptors_max: int) -> None:
        self.descriptors_max = descriptors_max
        self._lock = threading.Lock()
        self._order: OrderedDict[Pooled, None] = OrderedDict()
        self._leaving: list[tuple[Pooled, int]] = []
        self._exceeded = False
        self._spare: list[int] = []
        drop_when_forked(self)

    @property
    def open_count(self) -> int:
        return len(self._order) + len(self._leaving)

    def open(self, file: Pooled, flags: int, *, to_sync: bool = False) -> int:
        """The file's descriptor, opened if it has none. The caller has pinned the file. Raises OSError.

        `to_sync`: when all others are taken, one of those held back may be used.
        """
        with self._lock:
            if file.descriptor >= 0:
                return file.descriptor
            self._close_leaving()
            excess = len(self._order) - self.descriptors_max + 1
            if excess > 0:
                self._note(exceeded=self._evict(excess) < excess)
            self._hold_back()
            try:
                descriptor = _open(file.path, flags)
            except OSError as error:
                descriptor = self._open_after(error, lambda: _open(file.path, flags), to_sync=to_sync)
            self._order[file] = None
            file.descriptor = descriptor
            return descriptor

    def open_beside(self, path: str, flags: int) -> int:
        """A descriptor that is none of the pool's, to sync something and then `close_beside`. Raises OSError."""

        def open_it() -> int:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)

        try:
            return open_it()  # without the lock: it may wait for the disk
        except OSError as error:
            with self._lock:
                return self._open_after(error, open_it, to_sync=True)

    def close_beside(self, descriptor: int) -> None:
        os.close(descriptor)
        if len(self._spare) < SPARE:
            with self._lock:
                self._hold_back()

    def _open_after(self, failure: OSError, open_it: Callable[[], int], *, to_sync: bool) -> int:
        """Try again, if it was for want of descriptors, with those that can go. Raises OSError."""
        if failure.errno not in OUT_OF_DESCRIPTORS:
            raise failure
        for freed in chain((self._evict(16),), (self._give_spare() for _ in range(SPARE if to_sync else 0))):
            if freed:
                try:
                    return open_it()
                except OSError as error:
                    failure = error  # somebody else was faster: a client that connects, say
        raise failure

    def _hold_back(self) -> None:
        with suppress(OSError):
            while len(self._spare) < SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_spare(self) -> bool:
        if self._spare:
            os.close(self._spare.pop())
            return True
        return False

    def close(self) -> None:
        """Give up what is held back; files are closed by themselves."""
        with self._lock:
            while self._give_spare():
                pass

    def drop_in_forked_child(self) -> None:
        """Close the child's copies. Those in `_leaving` stay: another thread may be closing one at this moment."""
        for file in self._order:
            os.close(file.descriptor)
            file.descriptor = -1
        self._order.clear()
        for descriptor in self._spare:
            os.close(descriptor)
        self._spare.clear()

    def give_up(self, file: Pooled) -> None:
        """Close the file's descriptor, dirty or not; later, if a call in another thread is using it."""
        with self._lock:
            descriptor = file.descriptor
            if descriptor >= 0:
                file.descriptor = -1
                del self._order[file]
                self._leaving.append((file, descriptor))
            self._close_leaving()

    def _close_leaving(self) -> None:
        if self._leaving:
            for file, descriptor in self._leaving:
                if not file.pins:
                    os.close(descriptor)
            self._leaving = [(file, descriptor) for file, descriptor in self._leaving if file.pins]

    def _evict(self, count: int) -> int:
        """Close up to `count` descriptors that can go; returns how many did."""
        evicted = 0
        for _ in range(min(len(self._order) * 2, SCAN_MAX + count)):
            if evicted == count or not self._order:
                break
            file = next(iter(self._order))
            if file.used:
                file.used = False
                self._order.move_to_end(file)
                continue
            descriptor = file.descriptor
            file.descriptor = -1
            if file.pins or file.dirty:
                file.descriptor = descriptor
                self._order.move_to_end(file)
                continue
            del self._order[file]
            os.close(descriptor)
            evicted += 1
        return evicted

    def _note(self, *, exceeded: bool) -> None:
        if exceeded and not self._exceeded:
            log.warning("more open descriptors than planned, unsynced files hold the rest max=%d", self.descriptors_max)
        self._exceeded = exceeded


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        # A directory mounted or given read-only can still be looked at (log verify, log dump).
        if flags & os.O_CREAT or error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
