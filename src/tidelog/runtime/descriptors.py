"""A bounded pool of file descriptors. A file's descriptor is opened on demand, and may be closed when other files need
a descriptor.

A segment has at least three files, so a broker may have more files than the process may have descriptors.
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
"""When descriptors must be closed, at most this number of descriptors is examined without being closed. This limits the
cost of opening a file when nearly all files are dirty."""

RESERVED_FOR_SYNCS = 8
"""Number of descriptors that are reserved for syncs, and for the directories and small files that a flush opens. Only
clean files' descriptors may be evicted, and files become clean by a sync. So a flush may need the reserve if all files
are dirty."""

OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def descriptor_limit() -> int:
    """Return the process's soft limit of open descriptors."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as the hard limit allows, and return it.

    The limit concerns the whole process, so an embedded broker must not call this.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports "infinity" but refuses values above OPEN_MAX.
    limits = [hard] if hard != resource.RLIM_INFINITY else [1 << 20, 1 << 16, 10_240]
    for limit in limits:
        if soft != resource.RLIM_INFINITY and limit > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
            except (OSError, ValueError):
                continue
    return descriptor_limit()


class PooledFile(Protocol):
    """The fields of a file that the pool reads and writes."""

    path: str
    descriptor: int
    """-1 when the file has no descriptor."""
    used: bool
    """Set by every read, write and sendfile, except the one that opens the descriptor. (This is the bit of the
    second-chance algorithm.)"""
    pins: list[None]
    """One element for each call that uses the descriptor at this moment, and for each `hold` without `release`."""

    @property
    def dirty(self) -> bool:
        """Whether the file was changed since its last sync."""


class DescriptorPool:
    """At most `descriptors_max` open file descriptors. This number is exceeded only if no clean and unused descriptor
    is found (see SCAN_MAX).

    Eviction uses the second-chance algorithm: a clean descriptor that was not used recently is closed first. The
    descriptor of a file with unsynced bytes is never evicted. The kernel reports a failed write-back only to
    descriptors that are open at that time. If the descriptor were closed, the report could be lost.

    All methods are thread-safe. A file pins itself (`pins.append`) before it reads `descriptor`. The pool sets
    `descriptor` to -1 before it reads `pins`, and restores it if there is a pin. Therefore no call ever uses a closed
    descriptor, whichever thread is first.
    """

    def __init__(self, descriptors_max: int) -> None:
        self.descriptors_max = descriptors_max
        self._lock = threading.Lock()
        self._order: OrderedDict[PooledFile, None] = OrderedDict()
        self._retiring: list[tuple[PooledFile, int]] = []
        """Files with their former descriptors. Such a descriptor is closed when no call uses it any more."""
        self._exceeded = False
        self._reserved: list[int] = []
        """Descriptors that are reserved for syncs."""
        drop_when_forked(self)

    def open(self, file: PooledFile, flags: int, *, to_sync: bool = False) -> int:
        """Return the file's descriptor. If the file has no descriptor, open one. The caller must have pinned the file.
        Raises OSError.

        With `to_sync`, a reserved descriptor is used if no other descriptor is available.
        """
        with self._lock:
            if file.descriptor >= 0:
                return file.descriptor
            self._close_retiring()
            excess = len(self._order) - self.descriptors_max + 1
            if excess > 0:
                self._warn_when(exceeded=self._evict(excess) < excess)
            self._refill_reserve()
            try:
                descriptor = _open(file.path, flags)
            except OSError as error:
                descriptor = self._reopen_after(error, lambda: _open(file.path, flags), to_sync=to_sync)
            self._order[file] = None
            file.descriptor = descriptor
            return descriptor

    def open_unpooled(self, path: str, flags: int) -> int:
        """Open a descriptor that the pool does not count, for an atomic write or the sync of a directory.

        The caller must close it with `close_unpooled`. Raises OSError.
        """

        def open_it() -> int:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)

        try:
            return open_it()  # without the lock, since this call may wait for the disk
        except OSError as error:
            with self._lock:
                return self._reopen_after(error, open_it, to_sync=True)

    def close_unpooled(self, descriptor: int) -> None:
        os.close(descriptor)
        if len(self._reserved) < RESERVED_FOR_SYNCS:
            with self._lock:
                self._refill_reserve()

    def _reopen_after(self, failure: OSError, open_it: Callable[[], int], *, to_sync: bool) -> int:
        """After EMFILE or ENFILE, close clean descriptors and try again. If this fails and `to_sync` is true, close the
        reserved descriptors one by one, and try again after each. Raises OSError.
        """
        if failure.errno not in OUT_OF_DESCRIPTORS:
            raise failure
        for freed in chain(
            (self._evict(16),), (self._close_one_reserved() for _ in range(RESERVED_FOR_SYNCS if to_sync else 0))
        ):
            if freed:
                try:
                    return open_it()
                except OSError as error:
                    failure = error  # another thread or a new connection has used the freed descriptor
        raise failure

    def _refill_reserve(self) -> None:
        with suppress(OSError):
            while len(self._reserved) < RESERVED_FOR_SYNCS:
                self._reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _close_one_reserved(self) -> bool:
        if self._reserved:
            os.close(self._reserved.pop())
            return True
        return False

    def close(self) -> None:
        """Close the reserved descriptors. Each file closes its own descriptor."""
        with self._lock:
            while self._close_one_reserved():
                pass

    def drop_in_forked_child(self) -> None:
        """Close the child's copies of the descriptors, except those in `_retiring`: a thread of the parent may have
        been closing one of them when the process was forked.
        """
        for file in self._order:
            os.close(file.descriptor)
            file.descriptor = -1
        self._order.clear()
        for descriptor in self._reserved:
            os.close(descriptor)
        self._reserved.clear()

    def close_descriptor(self, file: PooledFile) -> None:
        """Close the file's descriptor even if the file is dirty. If a call in another thread is using the descriptor,
        the descriptor is closed after that call.
        """
        with self._lock:
            descriptor = file.descriptor
            if descriptor >= 0:
                file.descriptor = -1
                del self._order[file]
                self._retiring.append((file, descriptor))
            self._close_retiring()

    def _close_retiring(self) -> None:
        if self._retiring:
            for file, descriptor in self._retiring:
                if not file.pins:
                    os.close(descriptor)
            self._retiring = [(file, descriptor) for file, descriptor in self._retiring if file.pins]

    def _evict(self, count: int) -> int:
        """Close up to `count` clean and unused descriptors, and return the number of closed descriptors."""
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

    def _warn_when(self, *, exceeded: bool) -> None:
        if exceeded and not self._exceeded:
            log.warning(
                "more open descriptors than planned, since unsynced files must stay open max=%d", self.descriptors_max
            )
        self._exceeded = exceeded


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        # `log verify` and `log dump` also read files for which they have only read permission.
        if flags & os.O_CREAT or error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
