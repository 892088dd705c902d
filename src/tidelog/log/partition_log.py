"""The log of one partition: append, read, truncate, apply retention, flush.

A method that blocks says so in its docstring. The other methods are called on the event loop: they use the page cache
and do not wait for the disk. Indexes, producer state and leader epochs are derived from the batches; recovery uses the
same code to derive them.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidelog.log.appended import Appended
from tidelog.log.batch_scan import BASE_OFFSET, HEADER, LAST_OFFSET_DELTA, LEADER_EPOCH, MAX_TIMESTAMP, PRODUCER_ID
from tidelog.log.cut import Cut
from tidelog.log.durability import Durability
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import log_name
from tidelog.log.flush import FlushPlan
from tidelog.log.following import checked_batches
from tidelog.log.indexes import IndexCache
from tidelog.log.reader import ColdRead, LogReader, Slice, TimestampOffset
from tidelog.log.record_times import AHEAD_MS, have_base_timestamp
from tidelog.log.recovery import LogOpener, OpenedLog
from tidelog.log.replay import check_producer, index_aborted, replay_producer
from tidelog.log.retention import Removal, Retention, RetentionLimits, SegmentAgeSearch
from tidelog.log.rolling import latest_for_roll
from tidelog.log.segment import NOT_OPENED, TEMPORARY_ERRORS, Segment
from tidelog.log.validation import Limits, check_client_batch, may_hide_times, retention_time_ms
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import CONTROL_BIT, TIMESTAMP_TYPE_BIT, BatchHeader
from tidelog.wire.errors import OffsetOutOfRange, StorageError

if TYPE_CHECKING:
    from tidelog.log.batch_scan import Fields
    from tidelog.log.config import LogConfig
    from tidelog.log.segment_list import SegmentList
    from tidelog.log.transaction_index import AbortedTransaction
    from tidelog.runtime.interfaces import Disk

T = TypeVar("T")

__all__ = ["Appended", "CorruptLog", "FlushPlan", "PartitionLog", "Slice", "TimestampOffset"]

logger = logging.getLogger("tidelog.log")

UNLIMITED = 1 << 62

_new_tuple = tuple.__new__  # the call inside Appended(), without the cost of a Python function


class PartitionLog:
    """The log in one partition's directory. `open` creates this object."""

    __slots__ = (
        "_age_max_ms",
        "_ahead_max_ms",
        "_cache",
        "_disk",
        "_durability",
        "_leader_epoch",
        "_retention",
        "_segments",
        "_size_max",
        "config",
        "directory",
        "epochs",
        "failure",
        "is_being_cut",
        "log_end_offset",
        "log_start_offset",
        "on_io_failure",
        "producers",
        "reader",
        "recovery",
        "topic_partition",
    )

    def __init__(self, disk: "Disk", directory: str, config: "LogConfig", cache: IndexCache, opened: OpenedLog) -> None:
        topic, _, index = log_name(directory).rpartition("-")
        self._disk = disk
        self._cache = cache
        self.directory = directory
        self.topic_partition = TopicPartition(topic, int(index))
        self._segments = opened.segments
        self.reader = LogReader(opened.segments)
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.log_start_offset = opened.log_start_offset
        self.log_end_offset = opened.log_end_offset
        self.recovery = opened.report
        """The report of the recovery when the log was opened."""
        self._durability = Durability(disk, directory, opened)
        self._retention = Retention(disk, opened.segments, self._durability)
        self.failure: str | None = None
        """The reason why the log is permanently offline; None while the log is online."""
        self.on_io_failure: Callable[[PartitionLog, OSError], None] | None = None
        """Called on the event loop after a disk error that is not temporary."""
        self.is_being_cut = False
        """Whether a thread is changing the segments; see `begin_cut`."""
        self._leader_epoch = -1
        for segment in opened.segments.items:
            segment.use_cache(cache)
        self.configure(config)

    @classmethod
    def open(
        cls,
        disk: "Disk",
        directory: str,
        config: "LogConfig",
        *,
        clean: bool,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
        cache: IndexCache | None = None,
        clean_offset: int | None = None,
    ) -> "PartitionLog":
        """Open the log in `directory`, which is created if missing. Blocks; thread-safe. `clean`: the last process
        stopped cleanly. Otherwise all data after `recovery_point` (-1: unknown) is scanned and made durable.
        `clean_offset`: where the last compaction ended; None if there was none. Raises CorruptLog, OSError.
        """
        opener = LogOpener(disk, directory, config, now_ms, clean_offset=clean_offset)
        opened = opener.open(clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset)
        log = cls(disk, directory, config, cache or IndexCache(), opened)
        log.reader.may_have_holes |= clean_offset is not None
        return log

    def configure(self, config: "LogConfig") -> None:
        """Apply new topic settings."""
        self.config = config
        self._size_max = min(config.max_message_bytes, config.segment_bytes)
        # `append` checks a client's batch in detail if the batch is more than `_ahead_max_ms` in the future, or if it
        # is older than `_age_max_ms` and its header may state wrong times. With -UNLIMITED, it checks every such batch.
        self._ahead_max_ms = min(AHEAD_MS, config.message_timestamp_after_max_ms)
        self._age_max_ms = retention_time_ms(config)
        if (
            config.message_timestamp_type == "LogAppendTime"
            or config.compacts
            or config.record_validation == "full"
            or config.message_timestamp_before_max_ms < UNLIMITED
        ):
            self._ahead_max_ms = -UNLIMITED
        if not self.is_being_cut:
            self._segments.active.configure(config)
        self.reader.may_have_holes |= config.compacts

    @property
    def recovery_point(self) -> int:
        """All data below this offset is durable, including the files that recovery needs besides the records."""
        return self._durability.recovery_point

    @property
    def durable_offset(self) -> int:
        """Every record below this offset is durable, even if the recovery point could not advance because the disk
        was full.
        """
        return self._durability.durable_offset

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segments(self) -> "SegmentList":
        """The segments, for compaction, which works on files."""
        return self._segments

    @property
    def has_unsynced_segments(self) -> bool:
        """Whether a closed segment is possibly not durable, or a producer snapshot must still be made durable."""
        return self._durability.is_flush_due or self.recovery_point < self._segments.active.base_offset

    @property
    def unflushed(self) -> bool:
        """Whether there are records at or above the recovery point, or a producer snapshot must be made durable."""
        return self.log_end_offset > self._durability.recovery_point or self._durability.is_flush_due

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` requires a flush now."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log's end. The high watermark limits it further."""
        return next(iter(self.producers.open_transactions), self.log_end_offset)

    def last_stable_offset_below(self, high_watermark: int) -> int:
        """Return the offset at which read_committed reads end. It is never below the log start offset."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(max(unstable, self.log_start_offset), high_watermark)

    # Appending

    def append(
        self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int, limits: Limits = True
    ) -> Appended:
        """Append one batch as the leader. Base offset and leader epoch are written into `batch`. A batch that repeats
        one of its producer's last five batches is not appended: the result of the first append is returned. `limits`:
        how to check limits on clients (`validation.Limits`). Raises the ApiError for the response (StorageError if the
        log or its disk is unusable), or NotInline if the examination of the records would take too long."""
        segment = self._segments.active
        size, position, base_offset = header.size, segment.size, self.log_end_offset
        next_offset = base_offset + header.last_offset_delta + 1
        append_time_ms, max_timestamp, base_timestamp = -1, header.max_timestamp, header.base_timestamp
        if limits and (
            size > self._size_max
            or max_timestamp - now_ms > self._ahead_max_ms
            or base_timestamp < 0  # `contradicts_itself`, inlined
            or (base_timestamp != max_timestamp and (base_timestamp > max_timestamp or header.count == 1))
            or (
                (not base_timestamp or now_ms - base_timestamp > self._age_max_ms)
                and not have_base_timestamp(batch, header)
                and may_hide_times(batch, header)
            )
            or header.attributes & TIMESTAMP_TYPE_BIT
        ):
            append_time_ms = check_client_batch(batch, header, self.config, now_ms, limits)
            max_timestamp = header.max_timestamp
        producer_id = header.producer_id
        if producer_id >= 0:
            repeated = check_producer(self.producers, batch, header, self.log_start_offset)
            if repeated is not None:
                return repeated
        if (
            position + size > segment.size_limit
            or max_timestamp > segment.roll_timestamp
            or leader_epoch != self._leader_epoch
            or next_offset > segment.offset_limit
            or now_ms > segment.roll_now_ms
        ):
            if limits and append_time_ms < 0 and segment.size and max_timestamp > segment.roll_timestamp:
                look_up = partial(latest_for_roll, segment, batch, header, self.config, now_ms, limits)
                max_timestamp = self.look_up(look_up)
            segment = self._prepare(size, max_timestamp, next_offset, now_ms)
            position = segment.size
            if leader_epoch != self._leader_epoch:
                self._begin_epoch(leader_epoch)
        header.assign(base_offset=base_offset, leader_epoch=leader_epoch)
        try:
            if header.attributes & CONTROL_BIT:
                index_aborted(self.producers, segment, HEADER.unpack_from(batch), batch)
            (segment.opened or segment.file).pwrite(batch, position)
            segment.size, self.log_end_offset = position + size, next_offset
            if max_timestamp > segment.max_timestamp:
                segment.max_timestamp, segment.max_timestamp_offset = max_timestamp, next_offset - 1
            if position > segment.index_after:
                segment.add_index_entry(next_offset - 1, position)
            if producer_id >= 0:
                if header.attributes & CONTROL_BIT:
                    replay_producer(self.producers, HEADER.unpack_from(batch), batch)
                else:
                    self.producers.appended(
                        producer_id,
                        header.producer_epoch,
                        header.base_sequence,
                        base_offset,
                        header.last_offset_delta,
                        max_timestamp,
                        header.attributes,
                    )
        except OSError as error:
            raise self._write_failed(segment, position, base_offset, error) from error
        return _new_tuple(Appended, (base_offset, next_offset, append_time_ms, self.log_start_offset))

    def append_as_follower(self, data: memoryview) -> int:
        """Append batches unchanged, with the offsets and epochs of their leader. Returns the new end offset. Raises
        CorruptMessage for the first batch that is damaged or begins before the log's end, and StorageError in the
        same cases as `append`.
        """
        for batch, fields in checked_batches(data, self.log_end_offset):
            self._append_assigned(batch, fields)
        return self.log_end_offset

    def _append_assigned(self, batch: memoryview, fields: "Fields") -> None:
        now_ms = max(fields[MAX_TIMESTAMP], 0)  # the batches, and not this broker's clock, decide when to roll
        next_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        segment = self._prepare(len(batch), fields[MAX_TIMESTAMP], next_offset, now_ms)
        if fields[LEADER_EPOCH] > self.epochs.latest:
            self.epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])
        position, end_offset = segment.size, self.log_end_offset
        try:
            index_aborted(self.producers, segment, fields, batch)
            segment.file.pwrite(batch, position)
            segment.size = position + len(batch)
            self.log_end_offset = next_offset
            segment.note_batch(position, fields)
            if fields[PRODUCER_ID] >= 0:
                replay_producer(self.producers, fields, batch)
        except OSError as error:
            raise self._write_failed(segment, position, end_offset, error) from error

    def _begin_epoch(self, leader_epoch: int) -> None:
        latest = self.epochs.latest
        if leader_epoch < latest:
            self.fail(f"the log has leader epoch {latest}, but its leader is in epoch {leader_epoch}")
            raise StorageError(f"{self.topic_partition} is offline: {self.failure}")
        self.epochs.assign(leader_epoch, self.log_end_offset)
        self._leader_epoch = leader_epoch

    def _prepare(self, size: int, max_timestamp: int, next_offset: int, now_ms: int) -> Segment:
        """Return the segment to append to. If necessary, begin a new segment first. Raises StorageError."""
        if self.failure is not None or self.is_being_cut:
            raise self._unavailable()
        segment = self._segments.active
        try:
            segment.start_pending_clock(self.config)
            if segment.size and (
                segment.size + size > segment.size_limit
                or max_timestamp > segment.roll_timestamp
                or next_offset > segment.offset_limit
                or now_ms > segment.roll_now_ms
            ):
                segment = self._roll(now_ms)
        except CorruptLog as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise self._io_failed("roll", error) from error
        if not segment.size:
            segment.start_clock(max_timestamp, self.config)
        return segment

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty. Raises StorageError."""
        if self._segments.active.size:
            try:
                self._roll(now_ms)
            except OSError as error:
                raise self._io_failed("roll", error) from error

    def _roll(self, now_ms: int) -> Segment:
        base_offset = self.log_end_offset
        self._durability.before_roll()
        segment = Segment.create(self._disk, self.directory, base_offset, now_ms)
        self._segments.active.finish()
        segment.use_cache(self._cache)
        segment.configure(self.config)
        self._durability.note_roll(self._segments.active, base_offset, self.producers)
        self._segments.add(segment)
        return segment

    def _write_failed(self, segment: Segment, position: int, end_offset: int, error: OSError) -> StorageError:
        """Undo a write after a temporary error such as a full disk. After any other error the log goes offline."""
        if self.log_end_offset == end_offset and error.errno in TEMPORARY_ERRORS:
            try:
                if error.errno not in NOT_OPENED:
                    segment.file.truncate(position)
                    segment.transactions.truncate_to(end_offset)  # an abort marker's entry is written before the marker
                # If the batch would have been the first one of its leader epoch, the log has no records of this epoch.
                self.epochs.truncate_from_end(end_offset)
                self._leader_epoch = -1
                return StorageError(f"{self.topic_partition}: nothing appended, {error.strerror}")
            except OSError as truncate_error:
                error = truncate_error
        self.fail(f"append to {segment.path} at {position} failed: {error}", error)
        return StorageError(f"{self.topic_partition} is offline: {self.failure}")

    def _io_failed(self, operation: str, error: OSError) -> StorageError:
        if error.errno in TEMPORARY_ERRORS:
            return StorageError(f"{self.topic_partition}: {operation} failed, {error.strerror}")
        self.fail(f"{operation} failed: {error}", error)
        return StorageError(f"{self.topic_partition} is offline: {self.failure}")

    def _damaged(self, error: CorruptLog) -> StorageError:
        self.fail(str(error))
        return StorageError(f"{self.topic_partition} is offline: {error}")

    def _unavailable(self) -> StorageError:
        if self.failure is not None:
            return StorageError(f"{self.topic_partition} is offline: {self.failure}")
        return StorageError(f"{self.topic_partition} is being truncated, try again")

    def fail(self, reason: str, error: Exception | None = None, *, say: bool = True) -> None:
        """Take the log offline permanently, because of damage or a disk `error`. `say`: write a log line, too."""
        if self.failure is None:
            self.failure = reason
            if say:
                logger.error("log offline partition=%s reason=%s", self.topic_partition, reason)
        self._segments.active.size_limit = -1
        if self.on_io_failure is not None and isinstance(error, OSError) and error.errno not in TEMPORARY_ERRORS:
            self.on_io_failure(self, error)

    # Reading

    def read(self, start: int, bytes_max: int, end_offset: int) -> Slice:
        """Return whole batches of one segment. The first one is the batch that contains `start`; all batches are
        below `end_offset`. The first batch may exceed `bytes_max` (KIP-74). The result is empty if no batch is below
        `end_offset`. Raises OffsetOutOfRange if `start` is below the log start offset or above the log end offset, and
        StorageError if the log is offline, damaged or being truncated.
        """
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= start <= log_end_offset:
            raise OffsetOutOfRange(
                f"offset {start} is outside {self.log_start_offset}..{log_end_offset} of {self.topic_partition}"
            )
        if self.failure is not None or self.is_being_cut:
            raise self._unavailable()
        if start == log_end_offset:
            return self.reader.empty_at(start)
        try:
            return self.reader.slice(start, bytes_max, end_offset, log_end_offset)
        except CorruptLog as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise self._io_failed("read", error) from error

    def cold_read(self, start: int, bytes_max: int) -> ColdRead | None:
        """Return a ColdRead if `read` would wait for the disk, else None. A thread must run it before `read`."""
        if self.failure is not None or not self.log_start_offset <= start < self.log_end_offset:
            return None
        return self.look_up(lambda: self.reader.cold_read(start, bytes_max))

    def aborted_transactions(self, start: int, end: int, batches: Slice | None = None) -> "list[AbortedTransaction]":
        """Return aborted transactions in this range, or in `batches`; see `LogReader`. Raises StorageError."""
        return self.look_up(lambda: self.reader.aborted_transactions(start, end, batches))

    def look_up(self, function: Callable[[], T]) -> T:
        """Call `function`, which reads files, and return its result. Raises StorageError."""
        if self.failure is not None or self.is_being_cut:
            raise self._unavailable()
        try:
            return function()
        except CorruptLog as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise self._io_failed("look-up", error) from error

    # Truncation

    def recovery_point_for_cut(self, offset: int) -> int:
        """Return the recovery point to persist before a cut at `offset`. The new end of the segment that contains
        `offset` is not known yet. So the result is not above the base offset of this segment.
        """
        return min(self.recovery_point, self._segments.items[self._segments.floor(offset)].base_offset, offset)

    def begin_cut(self, offset: int, *, empties: bool = False) -> Cut:
        """Begin to remove every batch that contains `offset` or a later offset. With `empties`, or if `offset` is below
        the log start offset, begin an empty log at `offset`. Appends and reads are refused until `install_cut`. See
        the module `cut` for what the caller persists. If the cut's run fails, the caller calls `fail`."""
        self.is_being_cut = True
        self._segments.active.size_limit = -1
        for segment in self._segments.items:
            self._forget(segment)
            segment.use_cache(None)
        cut = Cut(
            self._disk,
            self.directory,
            self._segments,
            self._durability.snapshots,
            self._retention,
            self.epochs,
            offset=offset,
            start_offset=self.log_start_offset,
            recovery_point=self.recovery_point,
            empties=empties or offset < self.log_start_offset,
            may_have_holes=self.reader.may_have_holes,
        )
        self._durability.before_cut(-1 if cut.empties else self.recovery_point_for_cut(offset))
        return cut

    def install_cut(self, cut: Cut) -> None:
        """Continue with the shorter log."""
        before = self.log_end_offset
        self._segments.take_from(0)
        for segment in cut.remaining_segments:
            segment.use_cache(self._cache)
            self._segments.add(segment)
        self.log_start_offset, self.log_end_offset = cut.start_offset, cut.end_offset
        self._durability.after_cut(min(cut.recovery_point, cut.end_offset))
        self.reader.forget_positions()
        self.epochs, self.producers = cut.epochs, cut.producers
        self._leader_epoch = -1
        self._segments.active.configure(self.config)
        self.is_being_cut = False
        logger.info("log truncated partition=%s from=%d to=%d", self.topic_partition, before, self.log_end_offset)

    def restart_at(self, offset: int) -> None:
        """Make the log empty. It starts at `offset`, which the caller has persisted. Blocks. Raises StorageError."""
        cut = self.begin_cut(offset, empties=True)
        try:
            cut.run()
        except (CorruptLog, OSError) as error:
            self.fail(f"restart at {offset} failed: {error}", error)
            raise StorageError(f"{self.topic_partition} is offline: {self.failure}") from error
        self.install_cut(cut)

    def delete_before(self, offset: int) -> int:
        """Move the log start offset forward to `offset`, and return the log start offset. Retention later removes the
        segments below it. Raises OffsetOutOfRange.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is past the end {self.log_end_offset} of {self.topic_partition}")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
        return self.log_start_offset

    def segment_age_search(self, now_ms: int) -> SegmentAgeSearch | None:
        """Return a search for segment ages; None if all ages are known. The caller runs the search on a thread, and
        calls its `store_result` before `apply_retention`.
        """
        return self._retention.age_search(self._disk, self.config, now_ms) if self.failure is None else None

    def apply_retention(self, now_ms: int, high_watermark: int | None = None) -> int:
        """Remove the segments that the settings no longer keep, and return their number. Also forget producers that
        were silent for `producer.id.expiration.ms`. Segments that end above the high watermark (None: the log's end)
        are kept, and so are segments that no durable producer snapshot includes (see `retention_needs_flush`), unless
        the disk is full (see `Retention.count_removable`). `removal` removes the files later. Raises StorageError.
        """
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms, self.log_end_offset)
        limit = self.log_end_offset if high_watermark is None else high_watermark
        self.producers.forget_replicated(limit)  # also done by appends and reads, but a log may have none of them
        return self.look_up(lambda: self._retire(now_ms, limit))

    def retention_needs_flush(self, now_ms: int, high_watermark: int) -> bool:
        """Return whether expired segments wait for a producer snapshot. The next flush plan then writes it."""
        return self._retention.needs_flush(RetentionLimits.of(self, high_watermark, now_ms))

    def _retire(self, now_ms: int, limit: int) -> int:
        count = self._retention.count_removable(RetentionLimits.of(self, limit, now_ms))
        if not count:
            return 0
        if count == len(self._segments.items):
            self._roll(now_ms)
        retired = self._retention.take(count, now_ms + self.config.file_delete_delay_ms)
        self.reader.forget_positions()
        for segment in retired:
            self._forget(segment)
        self._durability.directory_unsynced = True
        self.delete_before(self._segments.items[0].base_offset)
        logger.info(
            "segments retired partition=%s count=%d bytes=%d log_start_offset=%d",
            self.topic_partition,
            count,
            sum(segment.size for segment in retired),
            self.log_start_offset,
        )
        return count

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Replace `old` by the compacted `new`. The caller then renames the files and calls `segments_replaced`."""
        self.reader.may_have_holes = True
        self._segments.replace(old, new)
        self.reader.forget_positions()
        for segment in old:
            self._forget(segment)
            segment.retire()

    def segments_replaced(self, old: list[Segment], new: Segment, now_ms: int) -> None:
        """Finish a replacement: the files of `new` have their final names; those of `old` can be removed later."""
        new.use_cache(self._cache)
        self._retention.retire_replaced(old, now_ms + self.config.file_delete_delay_ms)

    def removal(self, now_ms: int) -> Removal | None:
        """Return the work on the files of removed segments that is due now, or None. When the log start offset is
        durable, the caller runs the result on a thread. Only one result may run at a time."""
        return self._retention.removal(now_ms)

    def _forget(self, segment: Segment) -> None:
        self._cache.forget(segment.index)
        self._cache.forget(segment.times)

    # Durability

    def lacks_snapshot(self, end_offset: int) -> bool:
        """Whether no durable snapshot includes the batches below `end_offset`. The next flush plan then writes one."""
        return self._durability.cover(end_offset)

    def flush_plan(self) -> FlushPlan:
        """Return a plan that makes all data durable. The caller runs it, then calls `flushed`, `put_back` or `fail`."""
        due = self._durability.snapshot_due()
        return self._durability.plan(self.log_end_offset, self.producers, self.epochs, with_snapshot=due)

    def flushed(self, plan: FlushPlan) -> None:
        """Move the recovery point after a plan has run."""
        self._durability.flushed(plan)

    def put_back(self, plan: FlushPlan) -> None:
        """Cancel a plan that could not be run completely. The next plan includes its work."""
        self._durability.put_back(plan)

    def settle(self) -> None:
        """Write and sync all data, so that the next start trusts the log. Blocks. Raises OSError."""
        self._durability.settle(self.log_end_offset, self.producers, self.epochs)

    def close(self, *, clean: bool = True) -> None:
        """Close the log. Blocks. `clean`: call `settle` first. If `settle` fails, the next start recovers the log."""
        if clean and self.failure is None:
            try:
                self.settle()
            except OSError as error:
                self.fail(f"closing failed: {error}")
        for segment in [*self._segments.items, *self._retention.retired()]:
            # If the close is not clean, a running flush must not report the closed files as an error.
            segment.deleted = segment.deleted or not clean
            if segment.opened is not None:
                segment.opened.close()
                segment.opened = None
