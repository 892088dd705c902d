"""An in-memory disk for one simulated process: `Disk` over a `Medium`, with injected faults and power cuts."""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidelog.runtime.boot import BOOT_ID
from tidelog.runtime.interfaces import Buffer
from tidelog.simulation.medium import Directory, Inode, Medium, PowerCutOdds
from tidelog.simulation.tasks import ProcessGone
from tidelog.simulation.trace import Trace

BIG_DISK_BYTES = 1 << 40
"""Size that is reported for a disk without a limit."""
NAME_BYTES_MAX = 255
NOT_OPENED = (errno.EMFILE, errno.ENFILE)
"""Errors of an operation that got no file descriptor. Such an operation has no effect."""


@dataclass(slots=True)
class Fault:
    """An injected error for some operations. `SimDisk.fail` creates it."""

    operation: str
    pattern: str
    error: int
    skip: int
    times: int


class SimFile:
    """An open file of a `SimDisk`. As on POSIX, it remains usable after the file is renamed or removed."""

    def __init__(self, disk: "SimDisk", path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._closed = False
        self._failure: OSError | None = None
        self._holds = 0
        self._closing = False

    def pread(self, size: int, position: int) -> bytes:
        self._begin("read")
        return bytes(memoryview(self._inode.cached)[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> None:
        content = bytes(data)
        try:
            self._begin("write")
            self._disk.check_space(max(position + len(content) - len(self._inode.cached), 0), self.path)
        except OSError as error:
            # A failed write may have stored a part of the bytes, for example if the disk became full.
            part = content[: self._disk.rng.randrange(len(content) + 1)]
            if part and error.errno not in NOT_OPENED and not self._closed:
                self._inode.write(part, position, self._disk.now_ms())
                self._disk.done("write", self.path, f"at={position} torn", part)
            raise
        self._inode.write(content, position, self._disk.now_ms())
        self._disk.done("write", self.path, f"at={position}", content)

    def truncate(self, size: int) -> None:
        self._begin("truncate")
        self._inode.truncate(size, self._disk.now_ms())
        self._disk.done("truncate", self.path, f"size={size}")

    def size(self) -> int:
        self._begin("size")
        return len(self._inode.cached)

    def sync(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, "an earlier sync failed", self.path)
        try:
            self._begin("sync")
        except OSError as error:
            if not self._closed and error.errno not in NOT_OPENED:
                self._failure = error
                self._inode.forget_unsynced()
            raise
        self._inode.sync()
        self._disk.done("sync", self.path)

    def resident(self, position: int, size: int) -> bool:
        self._begin("resident")
        return self._disk.rng.random() >= self._disk.cold_chance

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if self._closing and not self._holds:
            self.close()

    def close(self) -> None:
        if self._holds:
            self._closing = True
        elif not self._closed:
            self._closed = True
            self._disk.forget(self)

    def moved(self, path: str) -> None:
        """Set the new path after the file or a directory above it was renamed."""
        self.path = path

    def _begin(self, operation: str) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        self._disk.begin(operation, self.path)


class SimLock:
    """A lock that ends at `release`, or when the process that has it ends."""

    def __init__(self, medium: Medium, path: str, holder: "SimDisk") -> None:
        self._medium = medium
        self._path = path
        self._holder = holder

    def release(self) -> None:
        if self._medium.locked.get(self._path) is self._holder:
            del self._medium.locked[self._path]


class SimDisk:
    """The `Disk` of one process. Operations that change the disk are numbered from 1 and reported to `on_operation`.

    `on_operation(operation, path)` is called after the change. The operations are: create, write, truncate, sync,
    rename, remove, make_dir, sync_dir. In this call, a test may call `power_cut()`, or `kill()` to end the process.
    After `kill()`, the operation raises ProcessGone.
    """

    def __init__(
        self,
        medium: Medium | None = None,
        *,
        rng: random.Random,
        trace: Trace | None = None,
        host: str = "disk",
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.medium = medium or Medium()
        self.rng = rng
        self.now_ms = now_ms
        """Returns the wall-clock time, which is stored as the time of a file's last change."""
        self.alive = True
        self.cold_chance = 0.0
        """Probability that `resident` returns False."""
        self.operations = 0
        self.on_operation: Callable[[str, str], None] | None = None
        self.boot_id = ""
        """The id of the machine's current boot: the content of the file BOOT_ID."""
        self._trace = trace
        self._host = host
        self._faults: list[Fault] = []
        self._files: dict[SimFile, None] = {}

    # For tests

    def fail(self, operation: str, pattern: str, error: int, *, skip: int = 0, times: int = 1) -> None:
        """Make operations on paths that match the shell pattern raise `error`. The first `skip` operations succeed, and
        the next `times` operations fail.

        `operation` is an operation of `on_operation`, or read, size, resident, list or statfs. The operation `size`
        includes `modified_ms` and `set_modified_ms`. After a failed sync the unsynced bytes can still be read, but a
        power cut loses them. A failed write may store a part of its bytes. With EMFILE or ENFILE, the operation has
        no effect.
        """
        self._faults.append(Fault(operation, pattern, error, skip, times))

    def repair(self) -> None:
        """Remove all injected faults."""
        self._faults.clear()

    def limit_space(self, capacity_bytes: int | None) -> None:
        """Limit the size of the disk: writes that need more space raise ENOSPC."""
        self.medium.capacity_bytes = capacity_bytes

    def flip_bit(self, pattern: str, rng: random.Random) -> str | None:
        """Flip one bit of the synced bytes of one file whose path matches the shell pattern. Returns the path, or None
        if no such file has synced bytes. No operation reports the damage.
        """
        matches = [(path, inode) for path, inode in self.medium.files() if inode.durable and fnmatchcase(path, pattern)]
        if not matches:
            return None
        path, inode = rng.choice(matches)
        position, mask = rng.randrange(len(inode.durable)), 1 << rng.randrange(8)
        for content in (inode.durable, inode.cached):
            if position < len(content):
                content[position] ^= mask
        if self._trace is not None:
            self._trace.note(self._host, "disk.flip_bit", f"{path} at={position}")
        return path

    def power_cut(self, rng: random.Random | None = None, odds: PowerCutOdds | None = None) -> "SimDisk":
        """Return the disk that the next start would find if the power failed now. `self` is not changed."""
        return self._next(self.medium.survivor(rng or self.rng, odds))

    def kill(self) -> "SimDisk":
        """End the process: every later call on this disk raises ProcessGone. Returns the next process's disk,
        which has all written bytes.
        """
        self.alive = False
        for path in [path for path, holder in self.medium.locked.items() if holder is self]:
            del self.medium.locked[path]
        return self._next(self.medium)

    def _next(self, medium: Medium) -> "SimDisk":
        return SimDisk(medium, rng=self.rng, trace=self._trace, host=self._host, now_ms=self.now_ms)

    # Disk

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._check_alive()
        if create and not self._exists(path):
            self.begin("create", path)
            _check_name(path)
            self.medium.create(path, Inode(modified_ms=self.now_ms()))
            self.done("create", path)
        file = SimFile(self, path, self.medium.inode(path))
        self._files[file] = None
        return file

    def read(self, path: str) -> bytes:
        if path == BOOT_ID and self.boot_id:
            return self.boot_id.encode()
        self.begin("read", path)
        return bytes(self.medium.inode(path).cached)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            file.sync()
            self.rename(temporary, path)
        except OSError:
            if self._exists(temporary):
                self.remove(temporary)
            raise
        finally:
            file.close()
        self.sync_dir(path.rpartition("/")[0])

    def exists(self, path: str) -> bool:
        self._check_alive()
        return self._exists(path)

    def size(self, path: str) -> int:
        self.begin("size", path)
        return len(self.medium.inode(path).cached)

    def modified_ms(self, path: str) -> int:
        self.begin("size", path)
        return self.medium.inode(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.begin("size", path)
        self.medium.inode(path).modified_ms = modified_ms

    def list(self, directory: str) -> list[str]:
        self.begin("list", directory)
        return sorted(self.medium.directory(directory).cached)

    def is_dir(self, path: str) -> bool:
        self._check_alive()
        return self._exists(path) and isinstance(self.medium.node(path), Directory)

    def make_dirs(self, path: str) -> None:
        self._check_alive()
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts) + 1):
            directory = "/" + "/".join(parts[:count])
            if not self._exists(directory):
                self.begin("make_dir", directory)
                _check_name(directory)
                self.medium.create(directory, Directory())
                self.done("make_dir", directory)
                self.sync_dir("/" + "/".join(parts[: count - 1]))
            else:
                self.medium.directory(directory)

    def rename(self, source: str, target: str) -> None:
        self.begin("rename", source)
        _check_name(target)
        self.medium.rename(source, target)
        for file in self._files:
            if file.path == source or file.path.startswith(source + "/"):
                file.moved(target + file.path[len(source) :])
        self.done("rename", source, f"to={target}")

    def remove(self, path: str) -> None:
        self.begin("remove", path)
        self.medium.inode(path)
        self.medium.remove(path)
        self.done("remove", path)

    def remove_tree(self, path: str) -> None:
        for name in sorted(self.medium.directory(path).cached):
            child = f"{path}/{name}"
            if self.is_dir(child):
                self.remove_tree(child)
            else:
                self.remove(child)
        self.begin("remove", path)
        self.medium.remove(path)
        self.done("remove", path)

    def sync_dir(self, path: str) -> None:
        self.begin("sync_dir", path)
        self.medium.sync_names(self.medium.directory(path))
        self.done("sync_dir", path)

    def lock(self, path: str) -> SimLock:
        self.open(path, create=True).close()
        if path in self.medium.locked:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
        self.medium.locked[path] = self
        return SimLock(self.medium, path, self)

    def free_bytes(self, path: str) -> int:
        self._check_alive()
        self.medium.node(path)
        return max(self.total_bytes(path) - self.medium.used_bytes(), 0)

    def total_bytes(self, path: str) -> int:
        self.begin("statfs", path)
        return BIG_DISK_BYTES if self.medium.capacity_bytes is None else self.medium.capacity_bytes

    def close(self) -> None:
        for file in list(self._files):
            file.close()

    # Called by the disk's files

    def begin(self, operation: str, path: str) -> None:
        """Raise if the process has ended or a fault is injected for this operation."""
        self._check_alive()
        for fault in self._faults:
            if fault.times and fault.operation == operation and fnmatchcase(path, fault.pattern):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                raise OSError(fault.error, f"{os.strerror(fault.error)} (planted)", path)

    def done(self, operation: str, path: str, details: str = "", data: bytes | None = None) -> None:
        """Count a completed change and report it."""
        self.operations += 1
        if self._trace is not None:
            if data is None:
                self._trace.note(self._host, f"disk.{operation}", f"{path} {details}")
            else:
                self._trace.note_bytes(self._host, f"disk.{operation}", f"{path} {details}", data)
        if self.on_operation is not None:
            self.on_operation(operation, path)
            self._check_alive()

    def check_space(self, more_bytes: int, path: str) -> None:
        capacity = self.medium.capacity_bytes
        if capacity is not None and self.medium.used_bytes() + more_bytes > capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def forget(self, file: SimFile) -> None:
        self._files.pop(file, None)

    def _exists(self, path: str) -> bool:
        try:
            self.medium.node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _check_alive(self) -> None:
        if not self.alive:
            raise ProcessGone


def _check_name(path: str) -> None:
    if len(path.rpartition("/")[2].encode()) > NAME_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
