"""One partition as its leader: log, leader epoch, high watermark, and who waits for it to move.

With one replica the high watermark follows the log's end, or with `durability=fsync` what is known to be on the disk:
nobody is told of, and nobody reads, a record that a power cut could still take.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidelog.log.recompression import Recompression, recompression
from tidelog.log.validation import Examined, NotInline, examine, examine_inline
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
"""Of `flush.messages` and `flush.ms`: their default."""


class HighWatermarkWatcher(Protocol):
    """A parked fetch."""

    def moved(self, partition: "Partition") -> None:
        """The high watermark moved, or the partition is gone. Called from within an append: only take note."""


CommitListener = Callable[[ApiError | None], None]
"""Told once: None when the offset is committed, the error when it never will be."""


class FlushRequests(Protocol):
    def request(self, partition: "Partition") -> None:
        """Make the partition's log durable soon and then call its `flushed`."""

    grown: "dict[Partition, None]"
    """Partitions that were appended to since they were last seen flushed: `noted` is set while they are here."""


class SharedByPartitions:
    """What all partitions of a broker have in common."""

    __slots__ = ("full", "queued_bytes", "told_too_large", "turns")

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.full = FullDirectories()
        self.queued_bytes = QueuedBytes()
        self.told_too_large: dict[str, None] = {}
        """Topics of which the log has said that a batch was too large; until their settings change."""

    def look(self, batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int) -> Examined:
        """As `examine_inline`; raises NotInline as well when that has had its time in this turn of the loop."""
        try:
            return self.turns.run_inline(examine_inline, batch, header, config, now_ms)
        except NoTurn:
            raise NotInline from None


class Partition:
    """Leader of `topic`-`index`. Everything is called on the loop."""

    __slots__ = (
        "_committing",
        "_durable",
        "_flush_timer",
        "_flusher",
        "_flushes_early",
        "_look",
        "_now_ms",
        "_queue",
        "_refusing",
        "_shared",
        "_tasks",
        "_thawing",
        "_watchers",
        "config",
        "deleted",
        "frozen",
        "high_watermark",
        "index",
        "internal",
        "leader_epoch",
        "log",
        "noted",
        "plain",
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
        """Whether nothing is acknowledged, nor synced, for the moment: see `freeze`."""
        self._thawing: asyncio.Future[None] | None = None
        self._now_ms = clock.now_ms
        self._tasks = tasks
        self._flusher = flusher
        self.noted = False
        self._flush_timer: TimerHandle | None = None
        self._refusing = False  # the disk is full, or descriptors have run out: it may pass
        self._committing: deque[tuple[int, CommitListener]] = deque()
        self._watchers: dict[HighWatermarkWatcher, None] = {}
        self._shared = shared or SharedByPartitions(Turns(clock, tasks))
        self._look = self._shared.look
        self._queue: AppendQueue | None = None
        self.high_watermark: int = log.log_end_offset
        """Exclusive end of what consumers may see. What recovery kept is durable: it was synced before this."""
        self.configure(log.config)

    def configure(self, config: "LogConfig") -> None:
        """Take new topic settings. The log must have them too."""
        self.config = config
        self._durable = config.durability == "fsync" or self.frozen
        self._flushes_early = min(config.flush_messages, config.flush_ms) < NEVER
        self.recompression: Recompression | None = recompression(config)
        self._shared.told_too_large.pop(self.topic, None)
        self.settle_plain()
        if not self._durable and self.log.failure is None and self.log.log_end_offset > self.high_watermark:
            self._advance(self.log.log_end_offset)  # who waited for a sync need not any more

    def settle_plain(self) -> None:
        """Work out `plain`: whether anyone's batch can be appended as it came, at once."""
        waits = self._queue is not None and not self._queue.idle
        self.plain = not (self.internal or waits or self.recompression is not None)

    @property
    def queue(self) -> AppendQueue:
        """Where clients' batches go while the partition is not `plain`."""
        if self._queue is None:
            self._queue = AppendQueue(self, self._tasks, self._shared.turns, self._shared.queued_bytes)
        return self._queue

    def close_queue(self) -> None:
        """The broker stops: what waits is not appended any more."""
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
        """Exclusive end of what read_committed consumers may see."""
        return self.log.last_stable_offset_below(self.high_watermark)

    # Writing

    def tell_too_large(self, error: ApiError) -> None:
        """Say once for a topic that a batch was beyond its limits: its producer may not look."""
        if self.topic not in self._shared.told_too_large:
            self._shared.told_too_large[self.topic] = None
            logger.warning("batch too large, said once for the topic topic=%s reason=%s", self.topic, error.message)

    def append_batch(self, data: bytearray) -> "Appended":
        """Append a batch that the broker itself built: no client's limits apply. Raises StorageError."""
        return self.append(memoryview(data), BatchHeader(data), False)

    def append(self, batch: memoryview, header: "BatchHeader", limits: "Limits | None" = None) -> "Appended":
        """Append one checked batch of a client; offsets are assigned in `batch` itself.

        Raises StorageError when the log is offline, or what the log finds (sequence, timestamp, size); NotInline when
        its records have to be looked at, and there is no time for it now. `limits`: as the log's, if not these.
        """
        if self.deleted:
            raise self._offline()
        if limits is None:
            limits = self._look
        try:
            now_ms = self._now_ms()
            appended = self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms, limits=limits)
        except StorageError as error:
            if self.log.failure is not None:
                self.fail()
            else:
                self._refusing = True
                self._shared.full.refused(self.log.directory.rpartition("/")[0], header.size, error)
            raise
        if self._refusing:
            self._refusing = False
            self._shared.full.taken(self.log.directory.rpartition("/")[0], header.size)
        if appended.next_offset > self.high_watermark:
            if not self.noted:
                self.noted = True
                self._flusher.grown[self] = None
            if self._durable:
                self._flusher.request(self)
            else:
                self._advance(appended.next_offset)
                if self._flushes_early:
                    self._flush_early()
        return appended

    def examine(self, batch: bytes | bytearray) -> "asyncio.Future[Examined]":
        """Look at the records of a batch on a thread, one batch of the broker at a time: it may take a second and
        100 MB. Raises the ApiError to answer with.
        """
        header = BatchHeader(batch)
        return self._tasks.run_blocking(examine, batch, header, self.log.config, self._now_ms(), lane=RECORDS_LANE)

    def _flush_early(self) -> None:
        """`flush.messages` and `flush.ms`: sooner than the interval, with nobody waiting for it."""
        if self.log.flush_due:
            self._flusher.request(self)
        elif self.config.flush_ms < NEVER and self._flush_timer is None:
            self._flush_timer = self._tasks.call_later(self.config.flush_ms / 1000, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if not self.deleted and self.log.failure is None and self.log.unflushed:
            self._flusher.request(self)

    def is_committed(self, next_offset: int) -> bool:
        """Whether everything below `next_offset` may be acknowledged and read."""
        return self.high_watermark >= next_offset

    async def committed(self, next_offset: int) -> None:
        """Return once `is_committed`. Raises StorageError if the partition goes offline or is deleted first."""
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
        """Call `listener` once `next_offset` is committed, which may be now, or once it cannot be any more."""
        if self.high_watermark >= next_offset:
            listener(None)
        elif self.deleted or self.log.failure is not None:
            listener(self._offline())
        else:
            self._committing.append((next_offset, listener))

    def flushed(self) -> None:
        """More of the log is durable, or its sync failed."""
        if self.log.failure is not None:
            self.fail()
        elif self._durable and not self.frozen and self.log.durable_offset > self.high_watermark:
            self._advance(self.log.durable_offset)

    def freeze(self) -> None:
        """Appends go on; none is acknowledged or shown until `thaw`, as if the next sync took that long."""
        self.frozen = self._durable = True
        self._thawing = self._tasks.future()

    async def thawed(self) -> None:
        """Return once it is not `frozen`."""
        while self._thawing is not None:
            await asyncio.wait([self._thawing])

    def thaw(self) -> None:
        self.frozen = False
        if self._thawing is not None:
            self._thawing.set_result(None)
            self._thawing = None
        self.configure(self.config)
        if self.log.unflushed and not self.noted:
            self.noted = True
            self._flusher.grown[self] = None
        if self._durable and self.log.failure is None and self.log.log_end_offset > self.high_watermark:
            self._flusher.request(self)

    def fail(self) -> None:
        """Answer everyone who waits; the log says why it is offline."""
        waiting, self._committing = self._committing, deque()
        for _, listener in waiting:
            self._tell(listener, self._offline())
        self._notify()

    def _tell(self, listener: CommitListener, error: ApiError | None) -> None:
        """One listener's failure must not keep the others, or whoever syncs, from going on."""
        try:
            listener(error)
        except Exception:
            logger.exception("listener failed partition=%s-%d", self.topic, self.index)

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        committing = self._committing
        while committing and committing[0][0] <= high_watermark:
            self._tell(committing.popleft()[1], None)
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
        """Raises StorageError when nothing of it can be read or written."""
        if self.deleted or self.log.failure is not None:
            raise self._offline()

    def read(self, start: int, bytes_max: int, isolation: int = READ_UNCOMMITTED) -> "Slice":
        """Whole batches from the one that holds `start`, below the high watermark or the last stable offset.

        Raises OffsetOutOfRange outside log start offset..high watermark, StorageError when offline.
        """
        log = self.log
        if self.deleted or log.failure is not None:
            raise self._offline()
        end = self.high_watermark if isolation == READ_UNCOMMITTED else self.last_stable_offset
        if start > end:
            # A record that is appended and not committed yet: its reader waits, as at the end of the log.
            if start > log.log_end_offset:
                where = f"{log.log_start_offset}..{log.log_end_offset} of {self.topic}-{self.index}"
                raise OffsetOutOfRange(f"offset {start} is outside {where}")
            start = end
        return log.read(start, bytes_max, end)

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, exclusive end) of the last epoch up to `leader_epoch` (OffsetsForLeaderEpoch); -1, -1 for none.

        The present epoch has begun with the leadership, before its first record.
        """
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log.log_end_offset
        return self.log.end_offset_for(leader_epoch)

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch unless the client's `epoch` is ours or -1 (KIP-320)."""
        if epoch >= 0 and epoch != self.leader_epoch:
            if epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"leader epoch {epoch} is older than {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than {self.leader_epoch}")

    def watch(self, watcher: HighWatermarkWatcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: HighWatermarkWatcher) -> None:
        self._watchers.pop(watcher, None)
