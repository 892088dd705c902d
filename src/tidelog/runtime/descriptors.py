"""A bounded pool of file descriptors: files open theirs on demand and give it up when others need it more.

A partition has three files and a process may hold fewer descriptors than a broker has partitions.
"""

import errno
import logging
import os
import threading
from collections import OrderedDict
from typing import Protocol

log = logging.getLogger("tidelog.disk")

SCAN_MAX = 128
"""Descriptors looked at for one that can go. Bounds the cost of an open when nearly all are dirty."""

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

    @property
    def open_count(self) -> int:
        return len(self._order) + len(self._leaving)

    def open(self, file: Pooled, flags: int) -> int:
        """The file's descriptor, opened if it has none. The caller has pinned the file. Raises OSError."""
        with self._lock:
            if file.descriptor >= 0:
                return file.descriptor
            self._close_leaving()
            excess = len(self._order) - self.descriptors_max + 1
            if excess > 0:
                self._note(exceeded=self._evict(excess) < excess)
            try:
                descriptor = _open(file.path, flags)
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._evict(16):
                    raise
                descriptor = _open(file.path, flags)
            self._order[file] = None
            file.descriptor = descriptor
            return descriptor

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
