"""Batches that cannot be appended in the turn in which they came, and all that come to their partition behind them.

A batch waits while it is recompressed on a thread, or its records are looked at there, or when such work on small ones
has had its time in this turn of the loop. Batches of one partition are appended in the order in which they came,
whoever sent them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.log.recompression import recompress
from tidelog.log.validation import Examined, NotInline, examine_inline, too_large
from tidelog.runtime.turns import NoTurn, Turns
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ApiError, NotLeaderOrFollower, RequestTimedOut

if TYPE_CHECKING:
    from tidelog.log.partition_log import Appended
    from tidelog.log.recompression import Recompression
    from tidelog.model.steps import Steps
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks

logger = logging.getLogger("tidelog.partition")

INLINE_BYTES_MAX = 16 << 10
"""A batch up to this size is recompressed on the loop while that has time: a thread would take longer."""
INLINE_DECOMPRESSED_BYTES_MAX = 32 << 10
QUEUED_BYTES_MAX = 64 << 20
"""Of all batches that wait; what comes beyond them is refused, to be sent again."""

Outcome = Callable[["Appended | ApiError"], None]
"""Told once, in a later turn, what became of a batch."""


class QueuedBytes:
    """What all queues of a broker hold together."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int = QUEUED_BYTES_MAX) -> None:
        self.held = 0
        self.limit = limit

    def take(self, size: int) -> None:
        """Raises RequestTimedOut, on which clients try again."""
        if self.held and self.held + size > self.limit:
            raise RequestTimedOut(f"{self.held} bytes of record batches wait to be appended; try again")
        self.held += size


class _Entry:
    __slots__ = ("batch", "done", "examined", "failure", "ready", "size")

    def __init__(self, batch: bytes | bytearray, done: Outcome, *, ready: bool) -> None:
        self.batch = batch
        self.size = len(batch)
        self.done = done
        self.ready = ready
        self.failure: ApiError | None = None
        self.examined: Examined | None = None


class AppendQueue:
    """Of one partition; empty most of the time. Everything is called on the loop."""

    __slots__ = ("_appending", "_bytes", "_closed", "_entries", "_partition", "_tasks", "_turns")

    def __init__(self, partition: "Partition", tasks: "Tasks", turns: Turns, queued_bytes: QueuedBytes) -> None:
        self._partition = partition
        self._tasks = tasks
        self._turns = turns
        self._bytes = queued_bytes
        self._entries: deque[_Entry] = deque()
        self._appending = False
        self._closed = False

    @property
    def idle(self) -> bool:
        return not self._entries

    def close(self) -> None:
        """Append nothing any more; who waits is told so."""
        self._closed = True
        while self._entries:
            self._tell(self._entries[0], NotLeaderOrFollower("the broker stops"))
        self._partition.settle_plain()

    def append(self, batch: memoryview, header: "BatchHeader", done: Outcome) -> "Appended | None":
        """Append a client's checked batch in its turn. None: that is not now, and `done` is told later.

        `batch` is not used after the call. Raises what `Partition.append` does, and RequestTimedOut when too much
        waits.
        """
        wanted = self._partition.recompression
        if wanted is not None:
            if header.codec == wanted.codec:
                wanted = None
            elif header.size > wanted.batch_bytes_max:
                raise too_large(f"{header.size} bytes", wanted.batch_bytes_max)
        if self.idle:
            try:
                if wanted is not None:
                    batch = memoryview(self._turns.run_inline(_recompress_small, batch, header, wanted))
                    header, wanted = BatchHeader(batch), None
                return self._partition.append(batch, header)
            except (NotInline, NoTurn):
                pass
        if wanted is None:
            self.examine(batch, done)
        else:
            entry = self._add(batch, done, ready=False)
            work = self._tasks.run_blocking(recompress, entry.batch, header, wanted)
            work.add_done_callback(partial(self._recompressed, entry))
        return None

    def examine(self, batch: memoryview, done: Outcome) -> None:
        """As `append`, of a batch for which `Partition.append` has raised NotInline."""
        self._add(batch, done, ready=True)
        if len(self._entries) == 1:
            self._tasks.call_soon(self._go_on)  # not now: `done` is told in a later turn

    def _add(self, batch: memoryview, done: Outcome, *, ready: bool) -> _Entry:
        if self._closed:
            raise NotLeaderOrFollower("the broker stops")
        self._bytes.take(len(batch))
        entry = _Entry(bytearray(batch), done, ready=ready)
        self._entries.append(entry)
        self._partition.settle_plain()
        return entry

    def _examined(self, entry: _Entry, work: "asyncio.Future[Examined]") -> None:
        self._settle(entry, work, "its records could not be looked at")
        if entry.failure is None:
            entry.examined = work.result()
        self._go_on()

    def _recompressed(self, entry: _Entry, work: "asyncio.Future[bytearray]") -> None:
        self._settle(entry, work, "recompression failed")
        if entry.failure is None:
            entry.batch = work.result()
        self._go_on()

    def _settle(self, entry: _Entry, work: "asyncio.Future[Any]", what: str) -> None:
        """Note what came of the work on a batch, if that was nothing good."""
        entry.ready = True
        if work.cancelled():
            entry.failure = NotLeaderOrFollower("the broker stops")
        elif (error := work.exception()) is not None:
            entry.failure = error if isinstance(error, ApiError) else ApiError(f"{what}: {error!r}")

    def _go_on(self) -> None:
        """Append what is ready at the head, with the others that have turns of the loop: it may be a thousand batches,
        each of some ms.
        """
        if not self._appending and self._entries and self._entries[0].ready:
            self._appending = True
            self._turns.begin(self._append_ready(), self._appended)

    def _append_ready(self) -> "Steps[None]":
        entries = self._entries
        while entries and entries[0].ready:
            entry = entries[0]
            try:
                outcome = self._outcome(entry)
            except NotInline:  # nobody knew before it was recompressed, or the settings have changed
                entry.ready = False
                self._partition.examine(entry.batch).add_done_callback(partial(self._examined, entry))
                return
            self._tell(entry, outcome)
            yield

    def _appended(self, _: None, error: Exception | None) -> None:
        self._appending = False
        if self.idle:
            self._partition.settle_plain()
        if error is not None:
            self._tasks.call_soon(self._go_on)  # those behind it must not wait for ever
            raise error

    def _tell(self, entry: _Entry, outcome: "Appended | ApiError") -> None:
        """`entry` is the first."""
        self._entries.popleft()
        self._bytes.held -= entry.size
        entry.done(outcome)

    def _outcome(self, entry: _Entry) -> "Appended | ApiError":
        """Raises NotInline."""
        if entry.failure is not None:
            return entry.failure
        try:
            batch = entry.batch
            return self._partition.append(memoryview(batch), BatchHeader(batch), entry.examined or examine_inline)
        except ApiError as error:
            return error
        except NotInline:
            raise
        except Exception as error:
            # Those behind it must not wait for ever.
            logger.exception("batch not appended partition=%s-%d", self._partition.topic, self._partition.index)
            return ApiError(f"it could not be appended: {error!r}")


def _recompress_small(batch: memoryview, header: "BatchHeader", wanted: "Recompression") -> bytearray:
    """Raises what `recompress` does; NotInline for what is not small."""
    if header.size > INLINE_BYTES_MAX:
        raise NotInline
    return recompress(batch, header, wanted, INLINE_DECOMPRESSED_BYTES_MAX)
