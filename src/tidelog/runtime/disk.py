"""The machine's file system: files over pooled descriptors, durable replacement, locks."""

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable

from tidelog.runtime.descriptors import DescriptorPool, descriptor_limit
from tidelog.runtime.forks import drop_when_forked
from tidelog.runtime.interfaces import Buffer

PROBE_STEP_BYTES = 128 * 1024
"""Distance between the bytes that `resident` probes; the kernel reads ahead and evicts in runs of about this size."""

READ_STEP_BYTES = 1 << 20

_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def _platform_sync() -> Callable[[int], None]:
    if sys.platform == "darwin":
        from fcntl import F_FULLFSYNC, fcntl

        def full_sync(descriptor: int) -> None:
            try:
                fcntl(descriptor, F_FULLFSYNC)  # plain fsync leaves the bytes in the drive's volatile cache
            except OSError:
                os.fsync(descriptor)  # some file systems, such as network mounts, do not support F_FULLFSYNC

        return full_sync
    return getattr(os, "fdatasync", os.fsync)


_sync_descriptor = _platform_sync()


class LocalFile:
    """A `File` on the local disk. All methods are thread-safe. The descriptor belongs to the pool."""

    __slots__ = (
        "_closing",
        "_disk",
        "_failure",
        "_holds",
        "_pool",
        "_synced_count",
        "_write_count",
        "descriptor",
        "path",
        "pins",
        "used",
    )

    def __init__(self, disk: "LocalDisk", pool: DescriptorPool, path: str) -> None:
        self.path = path
        self.descriptor = -1
        self.used = False
        self.pins: list[None] = []
        self._disk: LocalDisk | None = disk
        self._pool = pool
        self._write_count = 0
        """Number of writes and truncations."""
        self._synced_count = 0
        """Value of `_write_count` when the last successful sync began."""
        self._failure: OSError | None = None
        """The first error of a sync."""
        self._holds = 0
        """Number of calls of `hold` that have no matching `release` yet."""
        self._closing = False
        """Whether `close` was called while the file was held. The last `release` then closes the file."""

    @property
    def dirty(self) -> bool:
        return self._write_count != self._synced_count

    def pread(self, size: int, position: int) -> bytes:
        self.pins.append(None)
        try:
            descriptor = self.descriptor
            if descriptor >= 0:
                self.used = True
            else:
                descriptor = self._open()
            data = os.pread(descriptor, size, position)
            while len(data) < size:
                more = os.pread(descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        finally:
            self.pins.pop()
        return data

    def pwrite(self, data: Buffer, position: int) -> None:
        self.pins.append(None)
        try:
            descriptor = self.descriptor
            if descriptor >= 0:
                self.used = True
            else:
                descriptor = self._open()
            try:
                written = os.pwrite(descriptor, data, position)
                while written < len(data):  # a nearly full disk accepts a part, and the next write raises ENOSPC
                    written += os.pwrite(descriptor, memoryview(data)[written:], position + written)
            finally:
                self._write_count += 1
        finally:
            self.pins.pop()

    def truncate(self, size: int) -> None:
        self.pins.append(None)
        try:
            os.ftruncate(self.descriptor if self.descriptor >= 0 else self._open(), size)
            self._write_count += 1
        finally:
            self.pins.pop()

    def size(self) -> int:
        self.pins.append(None)
        try:
            if self.descriptor >= 0:
                return os.fstat(self.descriptor).st_size
        finally:
            self.pins.pop()
        if self._disk is None:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        # A broker calls this for every file when it starts, so do not open a descriptor.
        return os.stat(self.path).st_size

    def sync(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, f"an earlier sync failed: {self._failure.strerror}", self.path)
        self.pins.append(None)
        try:
            descriptor = self.descriptor if self.descriptor >= 0 else self._open(to_sync=True)
            write_count = self._write_count
            try:
                _sync_descriptor(descriptor)
            except OSError as error:
                self._failure = error
                raise OSError(error.errno, error.strerror, self.path) from error
            self._synced_count = write_count
        finally:
            self.pins.pop()

    def resident(self, position: int, size: int) -> bool:
        """Read one byte of every 128 KiB, and the last byte, without waiting (RWF_NOWAIT).

        Returns False if one of these reads would have to wait for the disk, and True otherwise. Also returns True if
        the kernel does not support such reads.
        """
        if not _RWF_NOWAIT or size <= 0:
            return True
        self.pins.append(None)
        try:
            descriptor = self.descriptor if self.descriptor >= 0 else self._open()
            byte = bytearray(1)
            for probe in (*range(position, position + size - 1, PROBE_STEP_BYTES), position + size - 1):
                os.preadv(descriptor, [byte], probe, _RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return True
            raise
        finally:
            self.pins.pop()
        return True

    def send_to(self, socket_descriptor: int, position: int, size: int) -> int:
        """Send by sendfile and return the number of bytes that were sent, 0 at the end of the file.

        Raises BlockingIOError when the socket accepts no bytes.
        """
        self.pins.append(None)
        try:
            descriptor = self.descriptor
            if descriptor >= 0:
                self.used = True
            else:
                descriptor = self._open()
            return os.sendfile(socket_descriptor, descriptor, position, size)
        finally:
            self.pins.pop()

    def hold(self) -> None:
        self.pins.append(None)
        try:
            if self.descriptor < 0:
                self._open()
        except OSError:
            self.pins.pop()
            raise
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self.pins.pop()
        if self._closing and not self._holds:
            self.close()

    def close(self) -> None:
        if self._holds:
            self._closing = True
            return
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.forget(self)
            self._pool.close_descriptor(self)

    def _open(self, *, to_sync: bool = False) -> int:
        disk = self._disk
        if disk is None:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        try:
            return self._pool.open(self, 0, to_sync=to_sync)
        except FileNotFoundError:
            disk.wait_for_renames()
            return self._pool.open(self, 0, to_sync=to_sync)


def _has_directories(path: str) -> bool:
    with os.scandir(path) as entries:
        return any(entry.is_dir(follow_symlinks=False) for entry in entries)


class LocalLock:
    """A file lock that ends at `release` or at the end of the process."""

    def __init__(self, identity: tuple[int, int]) -> None:
        self._identity: tuple[int, int] | None = identity

    def release(self) -> None:
        identity, self._identity = self._identity, None
        if identity is not None:
            _lock_table.release(identity)


class _LockTable:
    """The files that this process has locked, by device and inode.

    The locks are POSIX locks, which a JVM (Apache Kafka) also uses. A POSIX lock never conflicts with a lock of the
    same process, and it ends when the process closes any descriptor of the file. Therefore, if this process
    has locked a file already, this table refuses a second lock without opening the file. A forked child inherits the
    descriptors but not the locks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: dict[tuple[int, int], int] = {}
        drop_when_forked(self)

    def acquire(self, path: str) -> LocalLock:
        import fcntl

        with self._lock:
            if os.path.exists(path) and _identity(os.stat(path)) in self._descriptors:
                raise BlockingIOError(errno.EAGAIN, "locked by this process", path)
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
                raise
            identity = _identity(os.fstat(descriptor))
            self._descriptors[identity] = descriptor
            return LocalLock(identity)

    def release(self, identity: tuple[int, int]) -> None:
        with self._lock:
            os.close(self._descriptors.pop(identity))

    def drop_in_forked_child(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have locked the inherited lock
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        drop_when_forked(self)  # each registration is for one fork only, and the child may fork, too


_lock_table = _LockTable()


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


class LocalDisk:
    """The `Disk` of the local file system. All methods are thread-safe."""

    def __init__(self, *, descriptors_max: int | None = None) -> None:
        self.pool = DescriptorPool(descriptors_max or max(descriptor_limit() // 2, 16))
        self._lock = threading.Lock()
        self._files: dict[str, dict[LocalFile, None]] = {}
        """The open files by directory, so that the rename of a directory finds its files."""

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        file = LocalFile(self, self.pool, path)
        if create:
            file.pins.append(None)
            try:
                self.pool.open(file, os.O_CREAT)
            finally:
                file.pins.pop()
        elif stat.S_ISDIR(os.stat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        with self._lock:
            self._files.setdefault(os.path.dirname(path), {})[file] = None
        return file

    def forget(self, file: LocalFile) -> None:
        """Forget a closed file: later renames do not update its path any more."""
        with self._lock:
            self._drop(file)

    def wait_for_renames(self) -> None:
        """Wait until a rename in another thread has updated the paths of its files."""
        with self._lock:
            pass

    def _drop(self, file: LocalFile) -> None:
        directory = os.path.dirname(file.path)
        files = self._files.get(directory, {})
        files.pop(file, None)
        if not files:
            self._files.pop(directory, None)

    def read(self, path: str) -> bytes:
        # The builtin open() makes twice as many system calls, and a broker reads many small files when it starts.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size + 1)
            while len(data) != size and (more := os.read(descriptor, READ_STEP_BYTES)):  # more than one read is needed
                data += more
            return data
        finally:
            os.close(descriptor)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        descriptor = self.pool.open_unpooled(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
                _sync_descriptor(descriptor)
            finally:
                self.pool.close_unpooled(descriptor)
            os.replace(temporary, path)
        except OSError:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise
        self.sync_dir(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path.rstrip("/"))
        if parent and not os.path.isdir(parent):
            self.make_dirs(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        self.sync_dir(parent)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            os.replace(source, target)
            for file in list(self._files.get(os.path.dirname(source), ())):
                if file.path == source:
                    self._move(file, target)
            if os.path.isdir(target):
                directories = [source] if source in self._files else []
                if _has_directories(target):
                    directories += [name for name in self._files if name.startswith(source + "/")]
                for directory in directories:
                    for file in list(self._files[directory]):
                        self._move(file, target + file.path[len(source) :])

    def _move(self, file: LocalFile, path: str) -> None:
        self._drop(file)
        file.path = path
        self._files.setdefault(os.path.dirname(path), {})[file] = None

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        with os.scandir(path) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    self.remove_tree(entry.path)
                else:
                    os.remove(entry.path)
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        descriptor = self.pool.open_unpooled(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            self.pool.close_unpooled(descriptor)

    def lock(self, path: str) -> LocalLock:
        return _lock_table.acquire(path)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def close(self) -> None:
        for files in list(self._files.values()):
            for file in list(files):
                file.close()
        self.pool.close()
