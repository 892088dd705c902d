"""A queue for batches that cannot be appended immediately, and for all later batches of the same partition.

A batch waits while a thread recompresses it or examines its records, or when the time for such work in the current
turn of the event loop is used up. Batches of one partition are appended in the order of their arrival, whichever
client sent them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.log.recompression import recompress
from tidelog.log.validation import ExaminationResult, NotInline, examine_inline, too_large
from tidelog.replication.verification import Verification
from tidelog.runtime.turns import NoTurn, Turns
from tidelog.wire.batches import TRANSACTIONAL_BIT, BatchHeader
from tidelog.wire.errors import ApiError, NotLeaderOrFollower, RequestTimedOut

if TYPE_CHECKING:
    from tidelog.log.partition_log import Appended
    from tidelog.log.recompression import Recompression
    from tidelog.model.steps import Steps
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks

logger = logging.getLogger("tidelog.partition")

INLINE_BYTES_MAX = 16 << 10
"""Batches up to this size are recompressed on the event loop if time is left in its current turn, since handing them to
a thread takes longer than recompressing them."""
INLINE_DECOMPRESSED_BYTES_MAX = 32 << 10
"""Maximum decompressed size, in bytes, of a batch that is recompressed on the event loop."""
QUEUED_BYTES_MAX = 64 << 20
"""Maximum total size, in bytes, of all waiting batches of the broker. If other batches wait already, a batch that
would exceed the maximum is refused with a retriable error."""

OutcomeListener = Callable[["Appended | ApiError"], None]
"""Called once, in a later turn of the loop, with the outcome of the append: its result or its error."""


class QueuedBytes:
    """The total size of the batches in all queues of a broker."""

    __slots__ = ("limit", "total")

    def __init__(self, limit: int = QUEUED_BYTES_MAX) -> None:
        self.total = 0
        self.limit = limit

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes. If other batches wait and the limit would be exceeded, raises RequestTimedOut, which
        clients retry.
        """
        if self.total and self.total + size > self.limit:
            raise RequestTimedOut(f"{self.total} bytes of record batches wait to be appended; try again")
        self.total += size


class _Entry:
    """One waiting batch. If `ready` is True, no thread works on the batch, so the queue may try to append it."""

    __slots__ = ("batch", "done", "examined", "failure", "ready", "size", "verification")

    def __init__(
        self, batch: bytes | bytearray, done: OutcomeListener, verification: Verification | None, *, ready: bool
    ) -> None:
        self.batch = batch
        """The bytes to append. Recompression replaces them."""
        self.verification = verification
        """None for a batch without a transaction. If a marker ends the transaction during the wait, the batch
        must not be appended: with a transaction version below 2, it would begin a transaction that nobody ends."""
        self.size = len(batch)
        """The size that is reserved in `QueuedBytes`."""
        self.done = done
        """Called with the outcome."""
        self.ready = ready
        self.failure: ApiError | None = None
        """The error of the work on the batch. A batch with an error is not appended."""
        self.examined: ExaminationResult | None = None
        """The result of the examination by a thread."""


class AppendQueue:
    """The append queue of one partition; usually empty. All methods are called on the event loop."""

    __slots__ = ("_appending", "_closed", "_entries", "_partition", "_queued_bytes", "_tasks", "_turns")

    def __init__(self, partition: "Partition", tasks: "Tasks", turns: Turns, queued_bytes: QueuedBytes) -> None:
        self._partition = partition
        self._tasks = tasks
        self._turns = turns
        self._queued_bytes = queued_bytes
        self._entries: deque[_Entry] = deque()
        self._appending = False
        self._closed = False

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def close(self) -> None:
        """Stop appending. All waiting batches fail with NotLeaderOrFollower."""
        self._closed = True
        self.fail(NotLeaderOrFollower("the broker stops"))

    def fail(self, error: ApiError) -> None:
        """Fail all waiting batches. A batch must not be appended after its leader epoch has ended."""
        while self._entries:
            self._finish_entry(self._entries[0], error)
        self._partition.update_appends_directly()

    def append(self, batch: memoryview, header: "BatchHeader", done: OutcomeListener) -> "Appended | None":
        """Append a client's checked batch after the batches that are already queued. Returns None if the batch has to
        wait; in this case `done` is called later.

        `batch` is not used after the call. Raises the exceptions of `Partition.append`, and RequestTimedOut if too
        many bytes wait already.
        """
        target = self._partition.recompression  # None if the batch keeps its codec
        if target is not None:
            if header.codec == target.codec:
                target = None
            elif header.size > target.batch_bytes_max:
                raise too_large(f"{header.size} bytes", target.batch_bytes_max)
        if self.is_empty:
            try:
                if target is not None:
                    batch = memoryview(self._turns.run_inline(_recompress_small, batch, header, target))
                    header, target = BatchHeader(batch), None
                return self._partition.append(batch, header)
            except (NotInline, NoTurn):
                pass
        if target is None:
            self.examine(batch, done)
        else:
            entry = self._add(batch, done, ready=False)
            work = self._tasks.run_blocking(recompress, entry.batch, header, target)
            work.add_done_callback(partial(self._finish_recompression, entry))
        return None

    def examine(self, batch: memoryview, done: OutcomeListener) -> None:
        """Queue a batch that needs no recompression. It is appended in a later turn. If the examination of its records
        takes too long for the event loop, a thread examines them first. Raises RequestTimedOut if too many bytes wait
        already.
        """
        self._add(batch, done, ready=True)
        if len(self._entries) == 1:
            self._tasks.call_soon(self._append_ready_soon)  # later, since `done` must be called in a later turn

    def _add(self, batch: memoryview, done: OutcomeListener, *, ready: bool) -> _Entry:
        if self._closed:
            raise NotLeaderOrFollower("the broker stops")
        header = BatchHeader(batch)
        verification = None
        if header.attributes & TRANSACTIONAL_BIT:
            verification = Verification(self._partition, header.producer_id, header.producer_epoch)
        try:
            self._queued_bytes.reserve(len(batch))
        except RequestTimedOut:
            if verification is not None:
                verification.end()
            raise
        entry = _Entry(bytearray(batch), done, verification, ready=ready)
        self._entries.append(entry)
        self._partition.update_appends_directly()
        return entry

    def _finish_examination(self, entry: _Entry, work: "asyncio.Future[ExaminationResult]") -> None:
        self._end_work(entry, work, "the batch's records could not be examined")
        if entry.failure is None:
            entry.examined = work.result()
        self._append_ready_soon()

    def _finish_recompression(self, entry: _Entry, work: "asyncio.Future[bytearray]") -> None:
        self._end_work(entry, work, "recompression failed")
        if entry.failure is None:
            entry.batch = work.result()
        self._append_ready_soon()

    def _end_work(self, entry: _Entry, work: "asyncio.Future[Any]", description: str) -> None:
        """Store that the work on a batch has ended, and the error if the work failed."""
        entry.ready = True
        if work.cancelled():
            entry.failure = NotLeaderOrFollower("the broker stops")
        elif (error := work.exception()) is not None:
            entry.failure = error if isinstance(error, ApiError) else ApiError(f"{description}: {error!r}")

    def _append_ready_soon(self) -> None:
        """Append the ready batches at the head of the queue. This is done in steps, since a thousand batches may be
        ready, and each may take some ms.
        """
        if not self._appending and self._entries and self._entries[0].ready:
            self._appending = True
            self._turns.begin(self._append_ready(), self._finish_appending)

    def _append_ready(self) -> "Steps[None]":
        entries = self._entries
        while entries and entries[0].ready:
            entry = entries[0]
            try:
                outcome = self._try_append(entry)
            # The records must be examined, and this would take too long on the event loop.
            except NotInline:
                entry.ready = False
                self._partition.examine(entry.batch).add_done_callback(partial(self._finish_examination, entry))
                return
            self._finish_entry(entry, outcome)
            yield

    def _finish_appending(self, _: None, error: Exception | None) -> None:
        self._appending = False
        if self.is_empty:
            self._partition.update_appends_directly()
        if error is not None:
            self._tasks.call_soon(self._append_ready_soon)  # the batches behind the failed one must not wait forever
            raise error

    def _finish_entry(self, entry: _Entry, outcome: "Appended | ApiError") -> None:
        """Remove `entry`, which is the first entry of the queue, and report its outcome."""
        self._entries.popleft()
        self._queued_bytes.total -= entry.size
        if entry.verification is not None:
            entry.verification.end()
        entry.done(outcome)

    def _try_append(self, entry: _Entry) -> "Appended | ApiError":
        """Append the batch of `entry`, and return the result or the error. Raises NotInline."""
        if entry.failure is not None:
            return entry.failure
        try:
            if entry.verification is not None:
                entry.verification.check()
            batch = entry.batch
            return self._partition.append(memoryview(batch), BatchHeader(batch), entry.examined or examine_inline)
        except ApiError as error:
            return error
        except NotInline:
            raise
        except Exception as error:
            # The batches behind this batch must not wait forever.
            logger.exception("batch not appended partition=%s-%d", self._partition.topic, self._partition.index)
            return ApiError(f"the batch could not be appended: {error!r}")


def _recompress_small(batch: memoryview, header: "BatchHeader", target: "Recompression") -> bytearray:
    """Recompress a small batch. Raises the exceptions of `recompress`, and NotInline if the batch is not small."""
    if header.size > INLINE_BYTES_MAX:
        raise NotInline
    return recompress(batch, header, target, INLINE_DECOMPRESSED_BYTES_MAX)
