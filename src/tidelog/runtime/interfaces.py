"""What the product asks of the world: protocols only, no implementation.

Real versions stand beside this module; simulated ones in `tidelog.simulation`.
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
        """Wall-clock time, milliseconds since the Unix epoch. May step backwards."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""


class Random(Protocol):
    """The part of `random.Random` that the product uses."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int | None = None) -> int: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randbytes(self, n: int) -> bytes: ...


class File(Protocol):
    """One open file, random access. All calls may block on a cold or slow disk except where said.

    The descriptor behind it is opened when it is needed and may be closed in between: a thousand open files are cheap.
    """

    path: str
    """Where it is now; follows a `Disk.rename` of the file or of its directory."""

    def pread(self, size: int, position: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def pread_into(self, buffer: memoryview | bytearray, position: int) -> int:
        """Fill `buffer` from `position`; returns the count, smaller only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`. Raises OSError (ENOSPC ...); bytes up to the failure may be on the file."""

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...

    def sync(self) -> None:
        """fdatasync: every byte written before the call is durable after it. Blocks: call through `Tasks.run_blocking`.

        A failure is for good: the kernel may have dropped the bytes, so every later call raises again.
        """

    def resident(self, position: int, size: int) -> bool:
        """Whether a read of these bytes would not wait for the disk, as far as can be told without waiting."""

    def hold(self) -> None:
        """Until as many calls of `release`, neither `close` nor the file's removal take its bytes from who reads them.

        For what reads on later: a descriptor is kept for it. Raises OSError.
        """

    def release(self) -> None: ...

    def close(self) -> None:
        """Nothing is synced by it. A later use of the file raises OSError (EBADF)."""


class FileRegion:
    """`size` bytes of `file` from `position`, which a stream sends, by sendfile where that pays. Not to be changed."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __repr__(self) -> str:
        return f"FileRegion({self.file.path}, {self.position}, {self.size})"


Piece: TypeAlias = bytes | bytearray | memoryview | FileRegion
"""A part of a response, above `runtime/`. A memoryview is one of plain bytes (format "B", contiguous)."""


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute `str`. Errors are `OSError`."""

    def open(self, path: str, *, create: bool = False) -> File:
        """FileNotFoundError if it is absent and `create` is false."""

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the whole file, durably: temporary file, sync, rename, sync of the directory.

        After a power cut it is the old or the new one, whole.
        """

    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...

    def list(self, directory: str) -> list[str]:
        """Names in it, sorted."""

    def is_dir(self, path: str) -> bool: ...
    def make_dirs(self, path: str) -> None:
        """The directory and its missing parents. What is made is durable: a lost directory takes all that is in it."""

    def rename(self, source: str, target: str) -> None:
        """A file (an existing target is replaced) or a directory. Atomic; durable after `sync_dir`."""

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable (creations, renames, removals)."""

    def lock(self, path: str) -> Lock:
        """An exclusive advisory lock on a file, made if absent. BlockingIOError when another process holds it."""

    def free_bytes(self, path: str) -> int:
        """Of the file system that holds `path`, for those without privileges."""

    def total_bytes(self, path: str) -> int:
        """The size of the file system that holds `path`."""

    def close(self) -> None:
        """Close the descriptors of every file. Syncs nothing."""


class Apart(NamedTuple):
    """What work in a process of its own is given of the world."""

    disk: Disk
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


ApartWork: TypeAlias = Callable[[Apart, bytes, Callable[[bytes], None]], None]
"""A function of a module: takes a request, and gives its results to the last argument, one by one."""


class WorkEnded(Exception):
    """The process that worked is gone before it was done."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Tasks(Protocol):
    """Concurrency. Everything runs on the one loop of the runtime, except what `run_blocking` is given."""

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        """Start it and keep a reference until it ends. A failure that nobody awaits is logged with the name."""

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> TimerHandle: ...
    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...
    def future(self) -> "asyncio.Future[Any]": ...
    def sleep(self, delay_s: float) -> Awaitable[None]: ...

    def run_blocking(self, function: Callable[..., T], *args: object, lane: str = "") -> "asyncio.Future[T]":
        """Run what waits for a disk or a database off the loop (threads; inline after a virtual delay in simulation).

        It starts at once, awaited or not. Calls of one named `lane` run one at a time in order on one thread of their
        own (SQLite); those without a lane share a few threads and keep no order.
        """

    def run_apart(
        self, work: ApartWork, disk: Disk, request: bytes, report: Callable[[bytes], None]
    ) -> "asyncio.Future[None]":
        """Run what computes for long in a process of low priority, which the loop does not feel: one call at a time.

        Results come to `report`, on the loop, in order, all before the future is done. Cancelling the future ends the
        process. WorkEnded: it ended by itself, or `work` raised. In simulation `work` runs on `disk` after a virtual
        delay; otherwise on a disk of its own.
        """

    def defer_collection(self, deferred: bool) -> None:
        """Keep Python's collector of cyclic garbage from running, until it is called with False.

        For a burst of objects that are in no cycle: to look through hundreds of thousands of them holds the loop for
        as long as the work that makes them. What of the burst is in a cycle all the same is found by a full collection
        only.
        """

    async def close(self) -> None:
        """Cancel the tasks that still run and wait for them, let blocking calls end, end the threads."""


class Stream(Protocol):
    """The sending half of one connection, and its controls."""

    peer: str
    """HOST:PORT of the other side."""
    local: str

    backlog_bytes: int
    """Bytes that were written and that the other side's window has not taken yet. To read only."""

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send in order after everything written before. What cannot go at once is kept and goes when it can.

        The caller may reuse the memory of a bytearray or memoryview as soon as this returns. A FileRegion is read when
        its turn comes. Never raises for a broken connection (`Receiver.closed` tells) and never calls the receiver;
        after `finish`, `abort` or the end of the connection the pieces are dropped.
        """

    def pause_reading(self) -> None:
        """No `received` until `resume_reading`. If nothing more came, that the other side has gone is still noticed."""

    def resume_reading(self) -> None: ...

    def finish(self) -> None:
        """Read no more; close once the backlog is out and the other side has had a moment to take it."""

    def abort(self) -> None:
        """Close now; the backlog is lost."""


class Receiver(Protocol):
    """What a stream calls: the shape of `asyncio.BufferedProtocol`, so that a large frame arrives in its own buffer.

    An exception that escapes from it is logged and ends the connection.
    """

    def connected(self, stream: Stream) -> None: ...

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""

    def received(self, count: int) -> None:
        """`count` bytes are in the buffer of the last `get_buffer`."""

    def drained(self) -> None:
        """The backlog, which had not gone out at once, is out."""

    def closed(self, error: OSError | None) -> None:
        """The last call, made once, never from within a call to the stream. None when either side closed in order."""


class Listener(Protocol):
    """An address of this machine that nobody else can listen on. Who connects before `listen` is refused."""

    host: str
    port: int
    """The real port, also when 0 was asked for."""

    def listen(self, receiver: Callable[[], Receiver]) -> Self:
        """Accept connections from now on; each gets a new receiver. Raises OSError."""

    def pause(self, delay_s: float) -> None:
        """Accept none for so long. Who connects meanwhile waits, as long as there is room."""

    def close(self) -> None:
        """Accept no more; connections live on."""


class Network(Protocol):
    async def bind(self, host: str, port: int) -> Listener:
        """Take an address. Raises OSError (EADDRINUSE ...).

        A name is resolved now and every address of it is taken, all with one port. "" means every address.
        """

    async def connect(self, host: str, port: int, receiver: Receiver) -> Stream:
        """Raises OSError. `receiver.connected` is called before this returns."""

    def close(self) -> None:
        """Close every listener and abort every stream."""


class Runtime(NamedTuple):
    """The world as one value, passed to whatever needs a part of it."""

    clock: Clock
    random: Random
    disk: Disk
    network: Network
    tasks: Tasks
    turns: "Turns"
    """Where whatever takes long on the loop shares its time."""

    async def close(self) -> None:
        """End everything it holds: connections, tasks, threads, descriptors. Nothing is synced by it."""
        self.network.close()
        await self.tasks.close()
        self.disk.close()

    def new_uuid(self) -> bytes:
        """16 random bytes, version 4, never Kafka's reserved ids (all zero; 1)."""
        raw = bytearray(self.random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        return bytes(raw)
