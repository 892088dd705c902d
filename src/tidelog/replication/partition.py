"""One partition on this broker: the log, the replica (`replica.py`), and the requests that wait for its two marks.

The two marks are the local mark and the high watermark. Writes with acks=1 wait for the local mark. Consumers, and
writes with acks=all, wait for the high watermark. If the partition has one replica, both marks are the end of its log,
or, with `durability=fsync`, the end of the synced part of its log. In the second case, a record that a power cut could
still lose is neither acknowledged nor readable.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.log.recompression import Recompression, recompression
from tidelog.log.validation import ExaminationResult, examine
from tidelog.replication.append_queue import AppendQueue
from tidelog.replication.replica import (
    Effect,
    Event,
    FailWaiters,
    LogAppended,
    LogSynced,
    MarksMoved,
    MinIsrChanged,
    Replica,
    Role,
)
from tidelog.replication.shared_state import FlushRequests, HighWatermarkWatcher, SharedByPartitions
from tidelog.replication.waiters import CommitListener, Mark, Waiter, Waiters
from tidelog.runtime.turns import Turns
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import (
    ApiError,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.partition_log import Appended, PartitionLog, Slice
    from tidelog.log.validation import Limits
    from tidelog.replication.unverified_batches import UnverifiedBatches
    from tidelog.runtime.interfaces import Clock, Tasks, TimerHandle

logger = logging.getLogger("tidelog.partition")

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
RECORDS_LANE = "records"
"""The lane in which records are examined, one batch at a time; see `Tasks.run_blocking`."""
NEVER = (1 << 63) - 1
"""Default of `flush.messages` and `flush.ms`: no sync before the next interval flush."""


class Partition:
    """The replica of `topic`-`index` on this broker. All methods are called on the event loop."""

    __slots__ = (
        "_committed_waiters",
        "_examine_in_turn",
        "_flush_timer",
        "_flusher",
        "_flushes_early",
        "_local_waiters",
        "_monotonic",
        "_notified_high_watermark",
        "_now_ms",
        "_queue",
        "_requires_sync",
        "_shared",
        "_tasks",
        "_thawing",
        "_unverified",
        "_watchers",
        "appends_directly",
        "appends_refused",
        "config",
        "deleted",
        "frozen",
        "in_dirty_set",
        "index",
        "internal",
        "log",
        "recompression",
        "replica",
        "topic",
        "topic_deleted",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: "PartitionLog",
        *,
        replica: Replica,
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
        self.replica = replica
        self.internal = internal
        self.deleted = False
        self.topic_deleted = False  # the log's files may be removed much later
        self.frozen = False
        """Whether acknowledgements and syncs are suspended; see `freeze`."""
        self._thawing: asyncio.Future[None] | None = None
        self._now_ms = clock.now_ms
        self._monotonic = clock.monotonic
        self._tasks = tasks
        self._flusher = flusher
        self.in_dirty_set = False
        self._flush_timer: TimerHandle | None = None
        self.appends_refused = False
        """Whether the last append was refused for a temporary reason: a full disk, or no free file descriptor."""
        name = f"{topic}-{index}"
        self._local_waiters = Waiters(name)
        self._committed_waiters = Waiters(name)
        self._watchers: dict[HighWatermarkWatcher, None] = {}
        self._notified_high_watermark = -1
        self._shared = shared or SharedByPartitions(Turns(clock, tasks))
        self._examine_in_turn = self._shared.examine_in_turn
        self._queue: AppendQueue | None = None
        self._unverified: UnverifiedBatches | None = None
        self.configure(log.config)

    def configure(self, config: "LogConfig") -> None:
        """Apply new topic settings. The caller has already applied them to the log."""
        self.config = config
        self._requires_sync = config.durability == "fsync" or self.frozen  # the local mark moves only after syncs
        self._flushes_early = min(config.flush_messages, config.flush_ms) < NEVER
        self.recompression: Recompression | None = recompression(config)
        self._shared.warned_too_large.pop(self.topic, None)
        self.update_appends_directly()
        isr = self.replica.isr
        if isr is not None and isr.min_insync_replicas != config.min_insync_replicas:
            self.step(MinIsrChanged(config.min_insync_replicas))
        if not self._requires_sync and self.log.failure is None and self.log.log_end_offset > self.replica.local_mark:
            self.step(LogSynced(self.log.log_end_offset))  # requests that waited for a sync need not wait any longer

    def use_min_insync_replicas(self, min_insync_replicas: int) -> None:
        """Replace `min.insync.replicas` in `config`. A later call of `configure` applies the other changed settings of
        the topic. The caller passes the new value to the replica, with an event.
        """
        if min_insync_replicas != self.config.min_insync_replicas:
            self.config = self.config.with_min_insync_replicas(min_insync_replicas)

    def update_appends_directly(self) -> None:
        """Recompute `appends_directly`: whether a client's batch can be appended immediately and unchanged, with any
        acks.
        """
        waits = self._queue is not None and not self._queue.is_empty
        replica = self.replica
        self.appends_directly = replica.leads and not (
            self.internal or waits or self.recompression is not None or replica.is_below_min_isr
        )

    @property
    def queue(self) -> AppendQueue:
        """The queue of clients' batches, used while `appends_directly` is False."""
        if self._queue is None:
            self._queue = AppendQueue(self, self._tasks, self._shared.turns, self._shared.queued_bytes)
        return self._queue

    @property
    def unverified(self) -> "UnverifiedBatches":
        """Batches that wait until the coordinator has confirmed that this partition belongs to their transaction."""
        if self._unverified is None:
            from tidelog.replication.unverified_batches import UnverifiedBatches  # few partitions have transactions

            self._unverified = UnverifiedBatches(self, self._tasks, self._shared.queued_bytes)
        return self._unverified

    def close_queue(self) -> None:
        """Stop the queue, because the broker stops. The batches that wait in it are not appended."""
        if self._queue is not None:
            self._queue.close()

    # The replica

    def step(self, event: Event) -> None:
        """Pass an event to the replica, react to a change of its role or its ISR, and carry out the effects that it
        returns.

        When the leader epoch ends, every write that waits for a mark gets NOT_LEADER_OR_FOLLOWER within this call.
        """
        replica = self.replica
        old_epoch, was_below_min_isr, was_leading = replica.leader_epoch, replica.is_below_min_isr, replica.leads
        old_members = None if replica.isr is None else replica.isr.committed
        effects = replica.step(event, self.monotonic_ms())
        if (old_epoch, was_below_min_isr, was_leading) != (
            replica.leader_epoch,
            replica.is_below_min_isr,
            replica.leads,
        ):
            self.update_appends_directly()
            if (old_epoch, was_leading) != (replica.leader_epoch, replica.leads):
                self._notify_role()
            if old_epoch != replica.leader_epoch:
                if self._shared.stop_fetching is not None:
                    self._shared.stop_fetching(self)
                if not was_leading:
                    self._notify()  # fetches that consumers sent to this follower may be waiting here
            if replica.leads and self._requires_sync and replica.end_offset > replica.local_mark and not self.frozen:
                self._flusher.request(self)  # records that the replica appended as a follower are perhaps not synced
        for effect in effects:
            self._carry_out(effect)
        if old_members is not None and replica.isr is not None and replica.isr.committed != old_members:
            self.notify_followers()  # a replica that has left the ISR must fetch before it can join again

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, MarksMoved):
            if not self.replica.is_alone:
                self.mark_dirty()  # the flusher checkpoints the high watermark
            self._answer()
        elif isinstance(effect, FailWaiters):
            if self._queue is not None:
                self._queue.fail(NotLeaderOrFollower(f"the leader epoch of {self.topic}-{self.index} has ended"))
            self._local_waiters.fail_older_epochs(effect.leader_epoch)
            self._committed_waiters.fail_older_epochs(effect.leader_epoch)
            self._notify()
        elif self._shared.on_peer_work is not None:
            self._shared.on_peer_work(self, effect)

    def _notify_role(self) -> None:
        watcher = self._shared.role_watchers.get(self.topic)
        if watcher is not None:
            watcher(self)

    @property
    def leader_epoch(self) -> int:
        return self.replica.leader_epoch

    @property
    def high_watermark(self) -> int:
        """Exclusive end of the part of the log that consumers may read."""
        return self.replica.high_watermark

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end of the part of the log that read_committed consumers may read."""
        return self.log.last_stable_offset_below(self.replica.high_watermark)

    # Writing

    def warn_too_large(self, error: ApiError) -> None:
        """Log that a batch was too large, once for each topic until its settings change. Some producers do not report
        this error.
        """
        if self.topic not in self._shared.warned_too_large:
            self._shared.warned_too_large[self.topic] = None
            logger.warning("batch too large, logged once for each topic topic=%s reason=%s", self.topic, error.message)

    def append_batch(self, data: bytearray, leader_epoch: int | None = None) -> "Appended":
        """Append a batch that the broker itself has built. The limits on clients' batches do not apply.

        A coordinator passes the leader epoch in which it built the batch. Raises StorageError, and NotLeaderOrFollower
        if this broker does not lead the partition in that epoch.
        """
        if leader_epoch is not None and leader_epoch != self.replica.leader_epoch:
            raise NotLeaderOrFollower(f"leader epoch {leader_epoch} of {self.topic}-{self.index} has ended")
        appended = self.append(memoryview(data), BatchHeader(data), limits=False)  # False: no limits
        self.log.producers.forget_replicated(self.replica.high_watermark)
        return appended

    def append(self, batch: memoryview, header: "BatchHeader", limits: "Limits | None" = None) -> "Appended":
        """Append one checked batch. Its offsets are written into `batch` itself.

        `limits` says how the topic's limits on clients' batches are checked. By default, the records are examined on
        the event loop, within the loop's time budget.

        Raises StorageError when the log is offline, NotLeaderOrFollower when this broker does not lead the partition,
        and the log's errors (sequence, timestamp, size). Raises NotInline when the records must be examined but this
        turn of the loop has no time left.
        """
        replica = self.replica
        if self.deleted or not replica.leads:
            raise self._refusal()
        if limits is None:
            limits = self._examine_in_turn
        try:
            now_ms = self._now_ms()
            appended = self.log.append(batch, header, leader_epoch=replica.leader_epoch, now_ms=now_ms, limits=limits)
        except StorageError as error:
            if self.log.failure is not None:
                self.fail()
            else:
                self.appends_refused = True
                if self.log.unflushed:
                    self.mark_dirty()  # a new segment may have begun: its producer snapshot is due
                self._shared.full_directories.note_refusal(self.log.directory.rpartition("/")[0], header.size, error)
                if self._shared.on_refused_append is not None:
                    self._shared.on_refused_append(self, error)
            raise
        if self.appends_refused:
            self.appends_refused = False
            self._shared.full_directories.note_append(self.log.directory.rpartition("/")[0], header.size)
        if appended.next_offset > replica.high_watermark:
            if not self.in_dirty_set:
                self.mark_dirty()
            if self._requires_sync:
                replica.appended(self.log.log_end_offset)
                self._flusher.request(self)
                if not replica.is_alone:
                    self.notify_followers()
            else:
                if replica.is_alone:
                    # Both marks always are the log's end, so no produce request waits. Only fetches may wait.
                    replica.appended_alone(appended.next_offset)
                    if self._watchers:
                        self._notify()
                else:
                    for effect in replica.step(LogAppended(self.log.log_end_offset, True), self.monotonic_ms()):
                        self._carry_out(effect)
                    self.notify_followers()
                if self._flushes_early:
                    self._flush_early()
        return appended

    def wall_ms(self) -> int:
        return self._now_ms()

    def monotonic_ms(self) -> int:
        return int(self._monotonic() * 1000)

    def mark_dirty(self) -> None:
        if not self.in_dirty_set:
            self.in_dirty_set = True
            self._flusher.dirty[self] = None

    def notify_followers(self) -> None:
        """Notify the waiting fetches of followers that the log has a new end or start, or that the ISR has changed."""
        for watcher in list(self._shared.end_watchers):
            watcher.moved(self)

    def append_as_follower(self, data: memoryview, leader_epoch: int) -> None:
        """Append whole batches of the leader unchanged. Raises the errors of `PartitionLog.append_as_follower`, and
        NotLeaderOrFollower if this replica is not a follower in `leader_epoch`.
        """
        replica, log = self.replica, self.log
        if self.deleted or replica.role is not Role.FOLLOWER or replica.leader_epoch != leader_epoch:
            raise NotLeaderOrFollower(f"{self.topic}-{self.index} is not followed in leader epoch {leader_epoch}")
        end_before, directory = log.log_end_offset, log.directory.rpartition("/")[0]
        try:
            log.append_as_follower(data)
        except StorageError as error:
            if log.failure is not None:
                self.fail()
            else:
                self.appends_refused = True
                if log.unflushed:
                    self.mark_dirty()
                self._shared.full_directories.note_refusal(directory, len(data), error)
            raise
        finally:
            if log.log_end_offset > end_before:
                self.mark_dirty()
                self.step(LogAppended(log.log_end_offset, not self._requires_sync))
                log.producers.forget_replicated(replica.high_watermark)
        if self.appends_refused:
            self.appends_refused = False
            self._shared.full_directories.note_append(directory, len(data))
        if self._flushes_early:
            self._flush_early()

    def check_writable(self, acks: int) -> None:
        """Raise NotLeaderOrFollower, NotEnoughReplicas or StorageError if a client's batch with these acks must be
        refused before anything is appended.
        """
        self.check_online()
        if acks == -1 and self.replica.is_below_min_isr:
            isr = self.replica.isr
            assert isr is not None
            raise NotEnoughReplicas(
                f"{self.topic}-{self.index} has {len(isr.committed)} in-sync replicas, acks=all requires {isr.min_isr}"
            )

    def examine(self, batch: bytes | bytearray) -> "asyncio.Future[ExaminationResult]":
        """Examine the records of a batch on a thread. The broker examines one batch at a time.

        This may take a second and 100 MB. If the batch is invalid, the future fails with the ApiError for the client.
        """
        header = BatchHeader(batch)
        return self._tasks.run_blocking(examine, batch, header, self.log.config, self._now_ms(), lane=RECORDS_LANE)

    def _flush_early(self) -> None:
        """Apply `flush.messages` and `flush.ms`: sync before the next interval flush. No request waits for the sync."""
        if self.log.flush_due:
            self._flusher.request(self)
        elif self.config.flush_ms < NEVER and self._flush_timer is None:
            self._flush_timer = self._tasks.call_later(self.config.flush_ms / 1000, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if not self.deleted and self.log.failure is None and self.log.unflushed:
            self._flusher.request(self)

    def is_committed(self, next_offset: int) -> bool:
        """Return whether everything below `next_offset` is committed: consumers may read it."""
        return self.replica.high_watermark >= next_offset

    def has_reached(self, mark: Mark, next_offset: int) -> bool:
        """Return whether `mark` has reached `next_offset`, so that no request has to wait for it."""
        replica = self.replica
        return (replica.high_watermark if mark is Mark.COMMITTED else replica.local_mark) >= next_offset

    def when_committed(self, next_offset: int, listener: CommitListener) -> None:
        """Call `listener`, perhaps immediately, when everything below `next_offset` is committed or never will be."""
        self.wait(Mark.COMMITTED, next_offset, listener)

    def wait(self, mark: Mark, next_offset: int, listener: CommitListener) -> None:
        """Call `listener` when `mark` has reached `next_offset`. The call may be made immediately.

        Call this in the same turn of the loop as the append: the listener is bound to the current leader epoch. If
        this epoch ends before `mark` reaches `next_offset`, the listener gets NotLeaderOrFollower. If the partition
        goes offline or is deleted before that, the listener gets StorageError (UnknownTopicOrPartition if the whole
        topic is deleted).
        """
        if self.has_reached(mark, next_offset):
            is_below_min = mark is Mark.COMMITTED and self.replica.is_maximal_isr_below_min
            listener(NotEnoughReplicasAfterAppend("too few replicas are in sync now") if is_below_min else None)
        elif self.deleted or self.log.failure is not None or not self.replica.leads:
            listener(self._refusal())
        else:
            waiters = self._committed_waiters if mark is Mark.COMMITTED else self._local_waiters
            waiters.add(Waiter(next_offset, self.replica.leader_epoch, listener))

    def flushed(self) -> None:
        """Process the end of a sync: more of the log is durable, or the sync failed."""
        if self.log.failure is not None:
            self.fail()
        elif self._requires_sync and not self.frozen and self.log.durable_offset > self.replica.local_mark:
            self.step(LogSynced(self.log.durable_offset))

    def freeze(self) -> None:
        """Stop the local mark until `thaw`, as during a long sync: appends continue, but a leader neither acknowledges
        nor commits records above the local mark.
        """
        self.frozen = self._requires_sync = True
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
        if self.log.unflushed:
            self.mark_dirty()
        if self._requires_sync and self.log.failure is None and self.log.log_end_offset > self.replica.local_mark:
            self._flusher.request(self)

    def fail(self) -> None:
        """Fail all waiting requests, because the log was deleted, or is offline for a reason that was logged."""
        if not self.deleted:
            self._shared.failed_topics[self.topic] = None
        self._notify_role()
        error = self._refusal()
        self._local_waiters.fail(error)
        self._committed_waiters.fail(error)
        self._notify()
        if self._shared.stop_fetching is not None:
            self._shared.stop_fetching(self)

    def _answer(self) -> None:
        """Answer the requests whose mark has moved far enough, and notify the waiting fetches."""
        replica = self.replica
        if self._local_waiters:
            self._local_waiters.answer(replica.local_mark)
        if self._committed_waiters:
            self._committed_waiters.answer(replica.high_watermark)
        if self._watchers and replica.high_watermark != self._notified_high_watermark:
            self._notify()

    def _notify(self) -> None:
        """Notify the fetches that wait for a new high watermark (see `watch`)."""
        self._notified_high_watermark = self.replica.high_watermark
        for watcher in list(self._watchers):
            watcher.moved(self)

    def _refusal(self) -> ApiError:
        name = f"{self.topic}-{self.index}"
        if self.topic_deleted:
            return UnknownTopicOrPartition(f"the topic of {name} is deleted")
        if self.deleted:
            return StorageError(f"{name} is being deleted")
        if self.log.failure is not None:
            return StorageError(f"{name} is offline: {self.log.failure}")
        return NotLeaderOrFollower(f"this broker does not lead {name}")

    # Reading

    @property
    def is_served(self) -> bool:
        """Whether this broker leads the partition, and its log is online."""
        return self.replica.leads and not self.deleted and self.log.failure is None

    def check_online(self) -> None:
        """Raise StorageError if the partition is offline or being deleted, UnknownTopicOrPartition if its topic is
        deleted, and NotLeaderOrFollower if this broker does not lead the partition.
        """
        if self.deleted or self.log.failure is not None or not self.replica.leads:  # `not is_served`, inlined
            raise self._refusal()

    def check_log(self) -> None:
        """Raise StorageError if the partition is offline or deleted, or UnknownTopicOrPartition if its topic is."""
        if self.deleted or self.log.failure is not None:
            raise self._refusal()

    def read(
        self, start: int, bytes_max: int, isolation: int = READ_UNCOMMITTED, from_follower: bool = False
    ) -> "Slice":
        """Return whole batches below the high watermark or, for READ_COMMITTED, below the last stable offset. The first
        batch is the one that contains `start`. With `from_follower`, a consumer may also read while this broker is a
        follower of the partition (KIP-392).

        Raises the errors of `check_log`, NotLeaderOrFollower if the role of this replica does not allow the read, and
        OffsetOutOfRange if `start` is below the log start offset or above the log end offset.
        """
        log = self.log
        replica = self.replica
        is_readable = replica.leads or (from_follower and replica.role is Role.FOLLOWER)
        if self.deleted or log.failure is not None or not is_readable:
            raise self._refusal()
        end = replica.high_watermark if isolation == READ_UNCOMMITTED else self.last_stable_offset
        if start > end:
            if start > log.log_end_offset:
                self._shared.check_lease()  # a newer leader may have the record
                if replica.role is Role.OFFLINE:
                    raise self._refusal()
                valid_range = f"{log.log_start_offset}..{log.log_end_offset} of {self.topic}-{self.index}"
                raise OffsetOutOfRange(f"offset {start} is outside {valid_range}")
            # Consumers may not read the records at `start` yet. The result is empty, and the consumer waits for them.
            start = end
        return log.read(start, bytes_max, end)

    def check_committed_end(self) -> None:
        """Raise OffsetNotAvailable while the high watermark of this leader may be lower than the high watermark of the
        previous leader.
        """
        if not self.replica.knows_committed_end:
            raise OffsetNotAvailable(
                f"the high watermark of {self.topic}-{self.index} has not reached the start of leader epoch "
                f"{self.leader_epoch}"
            )

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch that is not above `leader_epoch`, and its exclusive end offset; (-1, -1) if unknown
        (OffsetsForLeaderEpoch).

        The current epoch is included even if it has no record yet, because it began when this broker became the leader.
        """
        log, replica = self.log, self.replica
        return log.epochs.end_offset_at_leader(
            leader_epoch, replica.leader_epoch, replica.epoch_start, log.log_end_offset
        )

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch unless `epoch` is the current one or -1 (KIP-320)."""
        current = self.replica.leader_epoch
        if epoch >= 0 and epoch != current:
            if epoch < current:
                raise FencedLeaderEpoch(f"leader epoch {epoch} is older than {current}")
            raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than {current}")

    def watch(self, watcher: HighWatermarkWatcher) -> None:
        """Call `watcher.moved` when the high watermark has moved, when the leader epoch has changed, or when this
        broker does not serve the partition any more.
        """
        self._watchers[watcher] = None

    def unwatch(self, watcher: HighWatermarkWatcher) -> None:
        self._watchers.pop(watcher, None)
