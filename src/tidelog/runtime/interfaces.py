"""Protocols for everything outside the product: clock, randomness, disk, network, threads and processes.

This module contains no implementation. The real implementations are in the other modules of this package, the
simulated ones in `tidelog.simulation`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tidelog.runtime.turns import Turns

T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the Unix epoch. It may step backwards."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary origin. The value never decreases.

        If the system has a suitable clock, the value also increases while the machine sleeps. All times that are
        compared with each other must come from this method. `Tasks.sleep` and timers stand still while the machine
        sleeps. So after each wait, code that relies on a time limit must compare times.
        """


class Random(Protocol):
    """The part of `random.Random` that the product uses."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int | None = None) -> int: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randbytes(self, n: int) -> bytes: ...


class File(Protocol):
    """One open file with random access. A call may wait for the disk unless its docstring says otherwise.

    The file descriptor is opened on demand and may be closed between calls, so a process may have more open files than
    descriptors.
    """

    path: str
    """The current path; a `Disk.rename` of the file or of its directory changes it."""

    def pread(self, size: int, position: int) -> bytes:
        """Return `size` bytes from `position`. Fewer bytes are returned only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`. Raises OSError (ENOSPC ...). After an error, the file may contain a part of `data`."""

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...

    def sync(self) -> None:
        """Make every byte that was written before the call durable (fdatasync).

        The call blocks, so use `Tasks.run_blocking`. After a failure, every later call raises again, since the kernel
        may have dropped the bytes.
        """

    def resident(self, position: int, size: int) -> bool:
        """Return whether the page cache contains these bytes, so that a read will not wait for the disk. Never
        blocks.

        The answer is a guess: the kernel may drop the pages at any time.
        """

    def hold(self) -> None:
        """Ensure that the bytes can be read after `close` and after removal of the file, until the matching call of
        `release`.

        A reader calls this if it will continue to read later. The file's descriptor is not closed until `release`.
        Calls are counted. Raises OSError.
        """

    def release(self) -> None: ...

    def close(self) -> None:
        """Close the file without a sync. While the file is held, only the last `release` closes it.

        Any use of a closed file raises OSError (EBADF).
        """


class FileRegion:
    """`size` bytes of `file` from `position`, to be sent by a stream (by sendfile if it is faster). Immutable."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __repr__(self) -> str:
        return f"FileRegion({self.file.path}, {self.position}, {self.size})"


Piece: TypeAlias = bytes | bytearray | memoryview | FileRegion
"""A part of a response. A memoryview must be contiguous and of format "B"."""


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute `str`. Errors are `OSError`."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. Raises FileNotFoundError if it is missing and `create` is false."""

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the whole file durably: write a temporary file, sync it, rename it, sync the directory.

        After a power cut the file has either its whole old content or its whole new content.
        """

    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """Return the time of the last change of the file's bytes, in milliseconds since the Unix epoch."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time that `modified_ms` returns until the file is changed again."""

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in the directory."""

    def is_dir(self, path: str) -> bool: ...
    def make_dirs(self, path: str) -> None:
        """Create the directory and its missing parents durably. If a directory were lost, every file in it would be
        lost, too.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory atomically. An existing target file is replaced. The new name is durable after
        `sync_dir`.
        """

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make earlier creations, renames and removals in this directory durable."""

    def lock(self, path: str) -> Lock:
        """Acquire an exclusive advisory lock on a file, which is created if it is missing.

        Raises BlockingIOError if this process or another process has the lock.
        """

    def free_bytes(self, path: str) -> int:
        """Return the number of bytes that an unprivileged process can still write on the file system of `path`."""

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the file system of `path`."""

    def close(self) -> None:
        """Close the descriptors of all files without a sync."""


class ChildResources(NamedTuple):
    """The resources that a function gets when it runs in a child process (see `Tasks.run_in_child`)."""

    disk: Disk
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


ChildWork: TypeAlias = Callable[[ChildResources, bytes, Callable[[bytes], None]], None]
"""A module-level function that runs in a child process. It calls its last argument with each result."""


class WorkEnded(Exception):
    """The work in the child process was not completed: the process could not be started or has ended early, or the work
    has raised an exception.
    """


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Tasks(Protocol):
    """Tasks, timers, threads and child processes. All code runs on the only event loop of the runtime, except the
    functions that are passed to `run_blocking` and `run_in_child`.
    """

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        """Start a task. A reference to it is stored until it ends. If the task fails, and no other code retrieves its
        exception, the failure is logged with `name`.
        """

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> TimerHandle: ...
    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...
    def future(self) -> "asyncio.Future[Any]": ...
    def sleep(self, delay_s: float) -> Awaitable[None]: ...

    def run_blocking(self, function: Callable[..., T], *args: object, lane: str = "") -> "asyncio.Future[T]":
        """Run `function`, which waits for a disk or a database, on a thread. (In a simulation, `function` runs on the
        loop, with a virtual delay.)

        The call is queued at once, and runs even if the future is not awaited. Calls that name the same `lane` run
        one at a time, in order, on the thread of that lane (SQLite needs this). Calls without a lane share a few
        threads and run in any order.
        """

    def run_in_child(
        self, work: ChildWork, disk: Disk, request: bytes, report: Callable[[bytes], None]
    ) -> "asyncio.Future[None]":
        """Run a long computation in a child process of low priority, one call at a time.

        `report` is called on the loop with each result, in order, before the future is done. If the future is
        cancelled, the child process is ended. If the process ends early or `work` raises, the future fails with
        WorkEnded. In a simulation, `work` runs on `disk` with a virtual delay. Otherwise `disk` is not used: the child
        process opens the real disk itself.
        """

    def defer_collection(self, deferred: bool) -> None:
        """Switch Python's cyclic garbage collector off (True) or on again (False).

        The collector is switched off during a burst of allocations without reference cycles. Otherwise it would
        traverse hundreds of thousands of objects, which takes as long as the work itself. Cycles that are created
        during the burst are found only by the next full collection.
        """

    async def close(self) -> None:
        """Cancel the running tasks and wait for their ends, wait for blocking calls, and then end the threads."""


class Stream(Protocol):
    """The sending half of one connection, and its controls."""

    peer: str
    """HOST:PORT of the other side."""
    local: str

    backlog_bytes: int
    """Number of written bytes that the kernel has not accepted yet, because the peer reads slowly. Read-only."""

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send `pieces` in order, after all bytes that were written earlier. Bytes that the kernel does not accept are
        queued.

        The caller may reuse the memory of a bytearray or memoryview as soon as this returns. A FileRegion is read when
        it is sent. This call does not raise: a broken connection is reported by `Receiver.closed`. It never calls the
        receiver directly. After `finish`, `abort` or the end of the connection, the pieces are dropped.
        """

    def pause_reading(self) -> None:
        """Do not call `received` until `resume_reading`.

        The end of the connection is noticed even while reading is paused, unless unread bytes are pending.
        """

    def resume_reading(self) -> None: ...

    def write_eof(self) -> None:
        """Shut the sending side after the backlog was sent, and continue to read. The peer's input then ends."""

    def finish(self) -> None:
        """Stop reading. Close the connection after the backlog was sent and the peer has had some time to read it."""

    def abort(self) -> None:
        """Close the connection immediately, and drop the backlog."""


class Receiver(Protocol):
    """The callbacks of a stream. As in `asyncio.BufferedProtocol` the receiver supplies the buffer for incoming
    bytes.

    An exception that escapes from a callback is logged and ends the connection.

    A receiver may have one more callback, `eof_received() -> bool`. It is called when the peer has shut its sending
    side or closed the connection, which TCP does not distinguish. No call of `received` follows. If the callback
    returns True, the stream remains open until the receiver has sent all its bytes and calls `finish`; a reset is still
    reported by `closed`. If the callback returns False, or if the receiver does not have it, the stream is closed.
    """

    def connected(self, stream: Stream) -> None: ...

    def get_buffer(self) -> memoryview:
        """Return the memory for the next incoming bytes. It must not be empty."""

    def received(self, count: int) -> None:
        """Process `count` bytes, which are at the start of the buffer that `get_buffer` returned last."""

    def drained(self) -> None:
        """Called when the backlog has become empty."""

    def closed(self, error: OSError | None) -> None:
        """Called when the connection has ended. This is the last callback. No method of the stream calls it directly.

        `error` is None if the peer has closed the connection cleanly, or if this side has closed or aborted it.
        """


class Listener(Protocol):
    """An address of this machine on which no other socket can listen. Before `listen`, connections are refused."""

    host: str
    port: int
    """The actual port, even if port 0 was requested."""

    def listen(self, receiver: Callable[[], Receiver]) -> Self:
        """Start accepting connections. `receiver` creates the receiver of each connection. Raises OSError."""

    def pause(self, delay_s: float) -> None:
        """Accept no connection for `delay_s` seconds. During this time, new connections wait in the kernel's backlog,
        as long as it has space.
        """

    def close(self) -> None:
        """Stop accepting connections. Open connections are not closed."""


class Network(Protocol):
    async def bind(self, host: str, port: int) -> Listener:
        """Bind an address, without listening yet. Raises OSError (EADDRINUSE ...).

        A host name is resolved once, in this call. All its addresses that belong to this machine are bound, with the
        same port. An empty host means every address of the machine.
        """

    async def connect(self, host: str, port: int, receiver: Receiver) -> Stream:
        """Open a connection. `receiver.connected` is called before this returns. Raises OSError."""

    def close(self) -> None:
        """Close every listener and abort every stream."""


class Runtime(NamedTuple):
    """Clock, randomness, disk, network and tasks as one value. Every part of the broker that needs some of them gets
    this value.
    """

    clock: Clock
    random: Random
    disk: Disk
    network: Network
    tasks: Tasks
    turns: "Turns"
    """Runs long computations step by step on the loop."""

    async def close(self) -> None:
        """Close connections, tasks, threads and descriptors, in that order, without a sync."""
        self.network.close()
        await self.tasks.close()
        self.disk.close()

    def new_uuid(self) -> bytes:
        """Return 16 random bytes as a UUID of version 4, which is never one of Kafka's reserved ids (zero and one)."""
        raw = bytearray(self.random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        return bytes(raw)
