"""One partition on its leader: the log, the leader epoch, the high watermark, and the requests that wait for it.

With one replica the high watermark is the log's end. With `durability=fsync` it is the end of the synced part, so no
record is acknowledged or readable that a power cut could still lose.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidelog.log.recompression import Recompression, recompression
from tidelog.log.validation import ExaminationResult, NotInline, examine, examine_inline
from tidelog.replication.append_queue import AppendQueue, QueuedBytes
from tidelog.replication.full_directories import FullDirectories
from tidelog.runtime.turns import NoTurn, Turns
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ApiError, FencedLeaderEpoch, OffsetOutOfRange, StorageError, UnknownLeaderEpoch

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.partition_log import Appended, PartitionLog, Slice
    from tidelog.log.validation import Limits
    from tidelog.runtime.interfaces import Clock, Tasks, TimerHandle

logger = logging.getLogger("tidelog.partition")

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
RECORDS_LANE = "records"
NEVER = (1 << 63) - 1
"""Default of `flush.messages` and `flush.ms`."""


class HighWatermarkWatcher(Protocol):
    """A waiting fetch request."""

    def moved(self, partition: "Partition") -> None:
        """The high watermark has moved, or the partition is deleted or offline.

        This is called during an append, so it must only record the event.
        """


CommitListener = Callable[[ApiError | None], None]
"""Called once: with None when the offset is committed, or with the error when it can no longer be committed."""


class FlushRequests(Protocol):
    def request(self, partition: "Partition") -> None:
        """Sync the partition's log soon, then call `Partition.flushed`."""

    dirty: "dict[Partition, None]"
    """Partitions with appends since their last complete flush. `Partition.in_dirty_set` is True for these."""


class SharedByPartitions:
    """State that all partitions of a broker share."""

    __slots__ = ("full", "queued_bytes", "turns", "warned_too_large")

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.full = FullDirectories()
        self.queued_bytes = QueuedBytes()
        self.warned_too_large: dict[str, None] = {}
        """Topics for which an oversized batch was logged since their settings last changed."""

    def examine_in_turn(
        self, batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int
    ) -> ExaminationResult:
        """Call `examine_inline`. Raises NotInline also when the time for such work in this turn of the loop is used
        up.
        """
        try:
            return self.turns.run_inline(examine_inline, batch, header, config, now_ms)
        except NoTurn:
            raise NotInline from None


class Partition:
    """The leader of `topic`-`index`. All methods are called on the event loop."""

    __slots__ = (
        "_appends_refused",
        "_committing",
        "_durable",
        "_examine_in_turn",
        "_flush_timer",
        "_flusher",
        "_flushes_early",
        "_now_ms",
        "_queue",
        "_shared",
        "_tasks",
        "_thawing",
        "_watchers",
        "appends_directly",
        "config",
        "deleted",
        "frozen",
        "high_watermark",
        "in_dirty_set",
        "index",
        "internal",
        "leader_epoch",
        "log",
        "recompression",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: "PartitionLog",
        *,
        leader_epoch: int,
        internal: bool,
        clock: "Clock",
        tasks: "Tasks",
        flusher: FlushRequests,
        shared: SharedByPartitions | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.internal = internal
        self.deleted = False
        self.frozen = False
        """Whether acknowledgements and syncs are suspended; see `freeze`."""
        self._thawing: asyncio.Future[None] | None = None
        self._now_ms = clock.now_ms
        self._tasks = tasks
        self._flusher = flusher
        self.in_dirty_set = False
        self._flush_timer: TimerHandle | None = None
        self._appends_refused = False  # the disk is full, or no descriptor is free; this may pass
        self._committing: deque[tuple[int, CommitListener]] = deque()
        self._watchers: dict[HighWatermarkWatcher, None] = {}
        self._shared = shared or SharedByPartitions(Turns(clock, tasks))
        self._examine_in_turn = self._shared.examine_in_turn
        self._queue: AppendQueue | None = None
        self.high_watermark: int = log.log_end_offset
        """Exclusive end of the part of the log that consumers may read. Recovery has synced everything that it kept."""
        self.configure(log.config)

    def configure(self, config: "LogConfig") -> None:
        """Apply new topic settings. The log must have them too."""
        self.config = config
        self._durable = config.durability == "fsync" or self.frozen
        self._flushes_early = min(config.flush_messages, config.flush_ms) < NEVER
        self.recompression: Recompression | None = recompression(config)
        self._shared.warned_too_large.pop(self.topic, None)
        self.update_appends_directly()
        if not self._durable and self.log.failure is None and self.log.log_end_offset > self.high_watermark:
            self._advance(self.log.log_end_offset)  # requests that waited for a sync do not have to wait any longer

    def update_appends_directly(self) -> None:
        """Recompute `appends_directly`: whether a client's batch can be appended immediately and unchanged."""
        waits = self._queue is not None and not self._queue.is_empty
        self.appends_directly = not (self.internal or waits or self.recompression is not None)

    @property
    def queue(self) -> AppendQueue:
        """The queue of clients' batches, used while `appends_directly` is False."""
        if self._queue is None:
            self._queue = AppendQueue(self, self._tasks, self._shared.turns, self._shared.queued_bytes)
        return self._queue

    def close_queue(self) -> None:
        """Stop the queue, since the broker stops: waiting batches are not appended."""
        if self._queue is not None:
            self._queue.close()

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of the part of the log that read_committed consumers may read."""
        return self.log.last_stable_offset_below(self.high_watermark)

    # Writing

    def warn_too_large(self, error: ApiError) -> None:
        """Log once for each topic that a batch was too large, since its producer may not report it."""
        if self.topic not in self._shared.warned_too_large:
            self._shared.warned_too_large[self.topic] = None
            logger.warning("batch too large, said once for the topic topic=%s reason=%s", self.topic, error.message)

    def append_batch(self, data: bytearray) -> "Appended":
        """Append a batch that the broker itself built, without the limits on clients' batches. Raises StorageError."""
        return self.append(memoryview(data), BatchHeader(data), False)

    def append(self, batch: memoryview, header: "BatchHeader", limits: "Limits | None" = None) -> "Appended":
        """Append one checked batch of a client; offsets are written into `batch` itself.

        `limits` says how to check the topic's limits on clients; by default records are examined here within the
        loop's time budget. Raises StorageError when the log is offline, the log's errors (sequence, timestamp,
        size), and NotInline when the records must be examined and this turn of the loop has no time for it.
        """
        if self.deleted:
            raise self._offline()
        if limits is None:
            limits = self._examine_in_turn
        try:
            now_ms = self._now_ms()
            appended = self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms, limits=limits)
        except StorageError as error:
            if self.log.failure is not None:
                self.fail()
            else:
                self._appends_refused = True
                self._shared.full.note_refusal(self.log.directory.rpartition("/")[0], header.size, error)
            raise
        if self._appends_refused:
            self._appends_refused = False
            self._shared.full.note_append(self.log.directory.rpartition("/")[0], header.size)
        if appended.next_offset > self.high_watermark:
            if not self.in_dirty_set:
                self.in_dirty_set = True
                self._flusher.dirty[self] = None
            if self._durable:
                self._flusher.request(self)
            else:
                self._advance(appended.next_offset)
                if self._flushes_early:
                    self._flush_early()
        return appended

    def examine(self, batch: bytes | bytearray) -> "asyncio.Future[ExaminationResult]":
        """Examine the records of a batch on a thread, one batch of the broker at a time.

        It may take a second and 100 MB. The future fails with the ApiError to respond with.
        """
        header = BatchHeader(batch)
        return self._tasks.run_blocking(examine, batch, header, self.log.config, self._now_ms(), lane=RECORDS_LANE)

    def _flush_early(self) -> None:
        """Apply `flush.messages` and `flush.ms`: sync before the next interval flush, although no request waits for
        the sync.
        """
        if self.log.flush_due:
            self._flusher.request(self)
        elif self.config.flush_ms < NEVER and self._flush_timer is None:
            self._flush_timer = self._tasks.call_later(self.config.flush_ms / 1000, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if not self.deleted and self.log.failure is None and self.log.unflushed:
            self._flusher.request(self)

    def is_committed(self, next_offset: int) -> bool:
        """Return whether everything below `next_offset` may be acknowledged and read."""
        return self.high_watermark >= next_offset

    async def committed(self, next_offset: int) -> None:
        """Wait until `is_committed`. Raises StorageError if the partition goes offline or is deleted first."""
        if self.high_watermark < next_offset:
            future: asyncio.Future[None] = self._tasks.future()

            def settle(error: ApiError | None) -> None:
                if future.done():
                    return
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

            self.when_committed(next_offset, settle)
            await future

    def when_committed(self, next_offset: int, listener: CommitListener) -> None:
        """Call `listener` when `next_offset` is committed, possibly now, or when it can no longer be committed."""
        if self.high_watermark >= next_offset:
            listener(None)
        elif self.deleted or self.log.failure is not None:
            listener(self._offline())
        else:
            self._committing.append((next_offset, listener))

    def flushed(self) -> None:
        """Process the end of a sync: more of the log is durable, or the sync failed."""
        if self.log.failure is not None:
            self.fail()
        elif self._durable and not self.frozen and self.log.durable_offset > self.high_watermark:
            self._advance(self.log.durable_offset)

    def freeze(self) -> None:
        """Suspend acknowledgements and the high watermark until `thaw`, as if a sync took that long. Appends
        continue.
        """
        self.frozen = self._durable = True
        self._thawing = self._tasks.future()

    async def wait_until_thawed(self) -> None:
        """Wait until the partition is not frozen."""
        while self._thawing is not None:
            await asyncio.wait([self._thawing])

    def thaw(self) -> None:
        self.frozen = False
        if self._thawing is not None:
            self._thawing.set_result(None)
            self._thawing = None
        self.configure(self.config)
        if self.log.unflushed and not self.in_dirty_set:
            self.in_dirty_set = True
            self._flusher.dirty[self] = None
        if self._durable and self.log.failure is None and self.log.log_end_offset > self.high_watermark:
            self._flusher.request(self)

    def fail(self) -> None:
        """Fail all waiting requests, since the log is offline or deleted. The log has already logged the reason."""
        waiting, self._committing = self._committing, deque()
        for _, listener in waiting:
            self._call_listener(listener, self._offline())
        self._notify()

    def _call_listener(self, listener: CommitListener, error: ApiError | None) -> None:
        """Call one listener. Its failure must not affect the other listeners or the flusher."""
        try:
            listener(error)
        except Exception:
            logger.exception("listener failed partition=%s-%d", self.topic, self.index)

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        committing = self._committing
        while committing and committing[0][0] <= high_watermark:
            self._call_listener(committing.popleft()[1], None)
        if self._watchers:
            self._notify()

    def _notify(self) -> None:
        for watcher in list(self._watchers):
            watcher.moved(self)

    def _offline(self) -> ApiError:
        if self.deleted:
            return StorageError(f"{self.topic}-{self.index} is being deleted")
        return StorageError(f"{self.topic}-{self.index} is offline: {self.log.failure}")

    # Reading

    def check_online(self) -> None:
        """Raise StorageError if the partition is offline or being deleted."""
        if self.deleted or self.log.failure is not None:
            raise self._offline()

    def read(self, start: int, bytes_max: int, isolation: int = READ_UNCOMMITTED) -> "Slice":
        """Return whole batches, beginning with the one that holds `start`, below the high watermark or last stable
        offset.

        Raises OffsetOutOfRange unless log start offset <= start <= log end offset, and StorageError when offline.
        """
        log = self.log
        if self.deleted or log.failure is not None:
            raise self._offline()
        end = self.high_watermark if isolation == READ_UNCOMMITTED else self.last_stable_offset
        if start > end:
            # The record at `start` is appended but not committed yet: the consumer waits, as at the end of the log.
            if start > log.log_end_offset:
                where = f"{log.log_start_offset}..{log.log_end_offset} of {self.topic}-{self.index}"
                raise OffsetOutOfRange(f"offset {start} is outside {where}")
            start = end
        return log.read(start, bytes_max, end)

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """Return the last epoch up to `leader_epoch` and its exclusive end offset (OffsetsForLeaderEpoch); (-1, -1)
        if unknown.

        The current epoch began with the leadership, even if it has no record yet.
        """
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log.log_end_offset
        return self.log.end_offset_for(leader_epoch)

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch unless the client's `epoch` is the current one or -1
        (KIP-320).
        """
        if epoch >= 0 and epoch != self.leader_epoch:
            if epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"leader epoch {epoch} is older than {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than {self.leader_epoch}")

    def watch(self, watcher: HighWatermarkWatcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: HighWatermarkWatcher) -> None:
        self._watchers.pop(watcher, None)
