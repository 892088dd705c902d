"""One segment: a `.log` file of record batches and its sparse indexes. The name of each file states the lowest offset
that the segment may contain.
"""

import errno
import logging
import zlib
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import BASE_OFFSET, COUNT, LAST_OFFSET_DELTA, LENGTH, Fields, headers
from tidelog.log.errors import CorruptLog
from tidelog.log.indexes import INT32_MAX, PENDING_MAX, CorruptIndex, IndexCache, OffsetIndex, TimeIndex
from tidelog.log.record_times import latest_record_timestamp_at, latest_timestamp_at
from tidelog.log.transaction_index import TransactionIndex
from tidelog.wire.batches import LENGTH_END

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.flush import Syncable
    from tidelog.runtime.interfaces import Disk, File

logger = logging.getLogger("tidelog.log")

NOT_OPENED = (errno.EMFILE, errno.ENFILE)
"""Errors of a process or system without free file descriptors. After such an error, the file was not opened."""
TEMPORARY_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, *NOT_OPENED)
"""Errors after which a retry may succeed."""
NO_TIMESTAMP = -1
UNKNOWN = -2
"""Value of `max_timestamp` before it is determined."""
NEVER = 1 << 62
"""A limit or time that is never reached."""
LOG_SUFFIX = ".log"
SUFFIXES = (LOG_SUFFIX, ".index", ".timeindex", ".txnindex")
DELETED_SUFFIX = ".deleted"
INTERVAL_BYTES = 4096
"""Default distance between index entries, in bytes of the log file."""
WALK_BATCHES_MAX = 4000
"""Maximum number of batch headers that one read checks on the event loop. Checking them takes some ms. A maximum is
necessary, because tens of MB may contain a million batches."""
FIRST_TIMESTAMP_PENDING = -(1 << 62)
"""Value of `roll_timestamp` that makes the next append compute when the segment must be rolled."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class SegmentAge(NamedTuple):
    """The age of a segment is the time since `from_ms`: the largest timestamp of its records, or the last change of
    its file. `from_ms` was determined when the segment had `size` bytes.
    """

    size: int
    from_ms: int


class Segment:
    """The batches from `base_offset` on, in `size` bytes.

    PartitionLog.append uses the fields without underscore directly, which saves a function call for each append.
    """

    __slots__ = (
        "_checked_from",
        "_checked_offset",
        "_checked_to",
        "_disk",
        "_entries_max",
        "_interval",
        "_time_entries_max",
        "age",
        "base_offset",
        "clock_confirmed",
        "created_ms",
        "deleted",
        "entry_unsynced",
        "index",
        "index_after",
        "indexes_unsynced",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_limit",
        "opened",
        "path",
        "roll_now_ms",
        "roll_timestamp",
        "size",
        "size_limit",
        "sound_from",
        "synced_size",
        "times",
        "transactions",
    )

    def __init__(
        self, disk: "Disk", directory: str, base_offset: int, size: int, *, has_transactions: bool = False
    ) -> None:
        stem = f"{directory}/{base_offset:020d}"
        self._disk = disk
        self.base_offset = base_offset
        self.path = stem + LOG_SUFFIX
        self.size = size
        self.opened: File | None = None
        self.index = OffsetIndex(disk, stem + ".index", base_offset)
        self.times = TimeIndex(disk, stem + ".timeindex", base_offset)
        self.transactions = TransactionIndex(disk, stem + ".txnindex", exists=has_transactions)
        self.max_timestamp = UNKNOWN
        """The largest timestamp of the segment. It comes from the headers of the batches; if a header is wrong, from
        the records of the batch. NO_TIMESTAMP if no record has a timestamp, UNKNOWN if it has not been determined
        yet."""
        self.max_timestamp_offset = base_offset
        self.age: SegmentAge | None = None
        """The age. None until retention has needed and determined it."""
        self.created_ms = 0
        """The time at which the segment was created, or at which its log was opened."""
        self.deleted = False
        """Whether the segment was removed from the log. Missing files are then not errors."""
        self.sound_from = size
        """From this position on, the batches are known to be complete, because this process wrote or recovered them."""
        self._checked_from = self._checked_to = self._checked_offset = 0
        """The region whose batches were checked by reads (in bytes, end exclusive), and the next offset after it."""
        self.index_after = 0
        """A batch that begins after this position gets an index entry."""
        self._interval = INTERVAL_BYTES
        self._entries_max = self._time_entries_max = NEVER
        self.size_limit = self.roll_timestamp = self.roll_now_ms = NEVER
        """Limits on the size, on batches' timestamps, and on the clock. An append that would exceed one rolls first."""
        self.clock_confirmed = False
        """Whether the records of the first batch were examined to determine `roll_timestamp`."""
        self.offset_limit = base_offset + INT32_MAX + 1
        """Upper bound on the end offset of the segment, because offsets are stored relative to the base offset in 31
        bits."""
        self.synced_size = size
        """Number of bytes from the start of the log file that are durable."""
        self.entry_unsynced = False
        """Whether the log file's directory entry is possibly not durable."""
        self.indexes_unsynced = False
        """Whether the files of `index` and `times` are possibly not durable."""

    @classmethod
    def create(cls, disk: "Disk", directory: str, base_offset: int, now_ms: int) -> "Segment":
        """Create a new, empty segment. Raises OSError."""
        segment = cls(disk, directory, base_offset, 0)
        try:
            segment.opened = disk.open(segment.path, create=True)
            segment.index.create()
            segment.times.create()
        except OSError:
            segment._undo_creation()
            raise
        segment.max_timestamp = NO_TIMESTAMP
        segment.created_ms = now_ms
        segment.entry_unsynced = True
        return segment

    def _undo_creation(self) -> None:
        """Remove the files after a failed creation, durably, so that appends may continue in the previous segment."""
        self._remove_files("")
        # Otherwise a power cut could restore the empty log file, and the previous segment may end above its offset.
        self._disk.sync_dir(self.path.rpartition("/")[0])

    @property
    def file(self) -> "File":
        """The log file. It is opened when it is first used. Raises OSError."""
        if self.opened is None:
            self.opened = self._disk.open(self.path)
        return self.opened

    def use_cache(self, cache: IndexCache | None) -> None:
        self.index.use_cache(cache)
        self.times.use_cache(cache)

    def use_ending(self, ending: str) -> None:
        """Use the files whose names have the suffix `ending` (`.cleaned`, `.swap`, or "" for the final names).

        Files that are already open remain usable after a rename.
        """
        stem = f"{self.path[: self.path.rindex('/')]}/{self.base_offset:020d}"
        self.path = stem + LOG_SUFFIX + ending
        self.index.path = stem + ".index" + ending
        self.times.path = stem + ".timeindex" + ending
        self.transactions.path = stem + ".txnindex" + ending

    def begin_rewrite(self, index_interval_bytes: int) -> None:
        """Create empty files under the names that `use_ending` set. Raises OSError."""
        self.opened = self._disk.open(self.path, create=True)
        self.index.create()
        self.times.create()
        self.max_timestamp = NO_TIMESTAMP
        self._interval = self.index_after = index_interval_bytes

    # As the active segment

    def set_index_interval(self, config: "LogConfig") -> None:
        """Set the distance between index entries. Rebuilt indexes also have this distance."""
        self._interval = config.index_interval_bytes

    def configure(self, config: "LogConfig") -> None:
        """Apply the settings that decide when to roll and where to add index entries. The next append uses them."""
        self._interval = config.index_interval_bytes
        self._entries_max = config.segment_index_bytes // OffsetIndex.entry_bytes
        # The space of one entry is reserved, because `finish` adds an entry at the roll.
        self._time_entries_max = config.segment_index_bytes // TimeIndex.entry_bytes - 1
        self.size_limit = config.segment_bytes
        self.roll_timestamp = FIRST_TIMESTAMP_PENDING
        self.clock_confirmed = False
        last = self.index.last() if self.index.count else None
        self.index_after = (last[1] if last else 0) + self._interval
        self._check_full()

    def start_pending_clock(self, config: "LogConfig") -> None:
        """Compute when the segment must be rolled by time, if it has batches and this is not known yet. Raises
        CorruptLog, OSError.
        """
        if self.size and self.roll_timestamp == FIRST_TIMESTAMP_PENDING:
            self.start_clock(self.first_timestamp(), config)

    def start_clock(self, first_timestamp: int, config: "LogConfig") -> None:
        """Determine when the segment must be rolled by time. If the first batch has a timestamp, this depends on the
        timestamps of later batches, otherwise on the broker's clock.
        """
        segment_ms = config.roll_after_ms
        if config.segment_jitter_ms:
            # The jitter is not random. It differs between the partitions of a topic, so that they roll at different
            # times.
            share = zlib.crc32(self.path.rpartition("/")[0].rpartition("/")[2].encode(), self.base_offset & 0xFFFFFFFF)
            segment_ms -= share % max(min(config.segment_jitter_ms, segment_ms), 1)
        if first_timestamp >= 0:
            self.roll_timestamp = first_timestamp + segment_ms
            self.roll_now_ms = NEVER
        else:
            self.roll_timestamp = NEVER
            self.roll_now_ms = self.created_ms + segment_ms

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch. It comes from the header unless the header is wrong.
        NO_TIMESTAMP if there is no batch. Raises CorruptLog.
        """
        for header_at in headers(self.file, 0, self.size, self.base_offset):
            return latest_timestamp_at(self.file, *header_at)
        return NO_TIMESTAMP

    def first_records_time(self) -> int:
        """Return the largest timestamp of the first batch's records. If there are too many records, or they cannot
        be decoded, return the header's timestamp. Raises CorruptLog.
        """
        for header_at in headers(self.file, 0, self.size, self.base_offset):
            return latest_record_timestamp_at(self.file, *header_at)
        return NO_TIMESTAMP

    def add_index_entry(self, last_offset: int, position: int) -> None:
        """Add index entries for a batch that begins after `index_after`. Raises OSError, except for temporary errors
        such as a full disk.
        """
        index, times = self.index, self.times
        index.append(last_offset, position)
        times.append(self.max_timestamp, self.max_timestamp_offset)
        self.index_after = position + self._interval
        if index.count >= self._entries_max or times.count >= self._time_entries_max:
            self.size_limit = -1  # the next append rolls the segment, as after `_check_full`
        if index.count - index.written >= PENDING_MAX:
            self.write_indexes()

    def note_batch(self, position: int, fields: Fields, latest: int | None = None) -> None:
        """Update timestamps and indexes for a batch that a scan found at `position`.

        `latest`: the largest timestamp of the batch. If it is None, it is read from the batch in the file.
        """
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if latest is None:
            latest = self.latest_in(position, fields)
        if latest > self.max_timestamp and fields[COUNT]:  # compaction may leave batches without records
            self.max_timestamp = latest
            self.max_timestamp_offset = last_offset
        if position > self.index_after:
            self.add_index_entry(last_offset, position)

    def latest_in(self, position: int, fields: Fields) -> int:
        """Return the largest timestamp of the batch at `position`."""
        return latest_timestamp_at(self.file, position, fields[LENGTH] + LENGTH_END, fields)

    def write_indexes(self) -> OSError | None:
        """Write new entries to the index files. After a temporary error (TEMPORARY_ERRORS), the entries stay in memory
        for a later call, and the error is returned. Raises OSError for any other error.
        """
        self.indexes_unsynced = True
        try:
            self.index.write_pending()
            self.times.write_pending()
        except OSError as error:
            if error.errno not in TEMPORARY_ERRORS:
                raise
            return error
        return None

    @property
    def has_unsynced_indexes(self) -> bool:
        """Whether the file of one of the indexes, including the transaction index, is possibly not durable."""
        return self.indexes_unsynced or self.transactions.unsynced

    def take_unsynced(self) -> "list[Syncable]":
        """Return the indexes that a flush must sync, and mark them as synced."""
        unsynced: list[Syncable] = []
        if self.indexes_unsynced:
            self.indexes_unsynced = False
            unsynced += [self.index, self.times]
        if self.transactions.unsynced:
            self.transactions.unsynced = False
            unsynced.append(self.transactions)
        return unsynced

    def finish(self) -> None:
        """Complete the segment, at a roll or a clean stop: add the last time entry and write the index files."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        self.write_indexes()

    def _check_full(self) -> None:
        """If an index is full, make the next append roll the segment."""
        if self.index.count >= self._entries_max or self.times.count >= self._time_entries_max:
            self.size_limit = -1

    # Search by offset and time. An index that is missing or wrong is rebuilt from the log, except in
    # `read_latest_timestamp`.

    def find(self, offset: int) -> tuple[int, int, Fields] | None:
        """Return (position, size, header) of the first batch that ends at or after `offset`; None if there is no
        such batch.

        Raises CorruptLog.
        """
        start = self.indexed_position(offset) if offset > self.base_offset else 0
        try:
            return self._scan_for(offset, start)
        except (CorruptIndex, CorruptLog) as error:
            if not start:
                raise
            self.rebuild_indexes(str(error))
            return self._scan_for(offset, self.index.position_for(offset))

    def indexed_position(self, offset: int) -> int:
        """Return the indexed position from which to search for `offset`."""
        try:
            return self.index.position_for(offset)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.index.position_for(offset)

    def boundary(self, position_max: int) -> int:
        """Return the last indexed position at or before `position_max`, or 0. A batch begins there."""
        try:
            return self.index.boundary(position_max)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.index.boundary(position_max)

    def offset_at(self, position_min: int) -> int | None:
        """Return the last offset of the first indexed batch at or after `position_min`; None without such a batch."""
        try:
            return self.index.offset_at(position_min)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.index.offset_at(position_min)

    def offset_before_time(self, timestamp_ms: int) -> int:
        """Return an offset of this segment. No record with a lower offset has a timestamp after `timestamp_ms`."""
        try:
            return self.times.offset_for(timestamp_ms)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.times.offset_for(timestamp_ms)

    def latest_timestamp(self) -> int:
        """Return `max_timestamp`. If it is not known yet, determine it with the time index."""
        if self.max_timestamp == UNKNOWN:
            try:
                last = self.times.last()
            except (CorruptIndex, FileNotFoundError) as error:
                self.rebuild_indexes(str(error))
                return self.max_timestamp
            self.max_timestamp, relative = last if last else (NO_TIMESTAMP, 0)
            self.max_timestamp_offset = self.base_offset + relative
        return self.max_timestamp

    def latest_time(self) -> int:
        """Return `latest_timestamp`, or the time of the file's last change if no record has a timestamp.

        Raises CorruptLog, OSError.
        """
        latest = self.latest_timestamp()
        return self._disk.modified_ms(self.path) if latest == NO_TIMESTAMP else latest

    def read_latest_timestamp(self) -> tuple[int, int]:
        """Read (`max_timestamp`, its offset) from the files. Blocks. Thread-safe, because it does not change the
        object. Raises CorruptLog, OSError.
        """
        try:
            last = TimeIndex(self._disk, self.times.path, self.base_offset).last()
        except (CorruptIndex, FileNotFoundError):
            return self._scan_latest_timestamp()
        return (last[0], self.base_offset + last[1]) if last else (NO_TIMESTAMP, self.base_offset)

    def _scan_latest_timestamp(self) -> tuple[int, int]:
        latest = (NO_TIMESTAMP, self.base_offset)
        file = self._disk.open(self.path)
        try:
            for position, size, fields in headers(file, 0, self.size, self.base_offset):
                timestamp = latest_timestamp_at(file, position, size, fields)
                if timestamp > latest[0] and fields[COUNT]:
                    latest = (timestamp, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA])
        finally:
            file.close()
        return latest

    def _scan_for(self, offset: int, start: int) -> tuple[int, int, Fields] | None:
        for header_at in headers(self.file, start, self.size, self.base_offset):
            position, _, fields = header_at
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if last_offset >= offset:
                if position == start and start and last_offset > offset:
                    raise CorruptIndex(
                        f"{self.index.path}: the batch at {start} ends with offset {last_offset}, but its entry states "
                        f"an offset of at most {offset}"
                    )
                return header_at
        return None

    # Checks of served batches

    def end_of_whole_batches(self, position: int, first_offset: int, size_max: int, end: int) -> tuple[int, int]:
        """Return where a read that begins at `position` must end, so that it contains only whole batches, at most
        `size_max` bytes, and nothing beyond `end`.

        The result is the end position of the read, and the next offset (-1 if it is unknown). The read contains at
        least one batch, even if the batch is larger than `size_max`. A batch must begin at `position`, and its base
        offset must not be below `first_offset`. Batches that this process has neither written nor checked are checked
        now, at most `WALK_BATCHES_MAX` of them, so that a broken sequence is never served. Raises CorruptLog.
        """
        limit = min(position + size_max, end)
        is_checked = position > self.sound_from or (self._checked_from <= position and limit <= self._checked_to)
        if is_checked:
            if limit == end:
                return end, -1
            stop = self.boundary(limit)
            if stop > position:
                return stop, -1
        stop, next_offset = self._check_batches(position, first_offset, limit, end)
        if not is_checked:
            if self._checked_from <= position == self._checked_to and first_offset >= self._checked_offset:
                self._checked_to = stop
            else:
                self._checked_from, self._checked_to = position, stop
            self._checked_offset = next_offset
        return stop, next_offset

    def _check_batches(self, position: int, first_offset: int, limit: int, end: int) -> tuple[int, int]:
        """Check the headers of the batches from `position` on. Returns the result of `end_of_whole_batches`."""
        stop, next_offset = position, -1
        chain = headers(self.file, position, end, self.base_offset, first_offset)
        for at, size, fields in islice(chain, WALK_BATCHES_MAX):
            if at + size > limit and at > position:
                break
            stop = at + size
            next_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
            if stop >= limit:
                break
        return stop, next_offset

    # Repair and truncation

    def rebuild_indexes(self, reason: str) -> None:
        """Rebuild both indexes and the largest timestamp from the batch headers. Raises CorruptLog, OSError."""
        logger.warning("index rebuilt path=%s reason=%s", self.index.path, reason)
        limit = self.size_limit
        self.index.clear()
        self.times.clear()
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.index_after = self._interval
        for position, _, fields in headers(self.file, 0, self.size, self.base_offset):
            self.note_batch(position, fields)
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        self.index.rewrite()
        self.times.rewrite()
        self.size_limit = limit
        self.sound_from = 0

    def keep_indexes_below(self, offset: int) -> tuple[int, bool]:
        """Remove index entries from `offset` on, before a scan rebuilds them.

        Returns two values: the position where the scan begins, and whether the index files must be rewritten after
        the scan because they were missing or wrong. If the scan begins at an index entry, the time index covers all
        batches before this entry. So the segment's largest timestamp is still found.
        """
        position = 0
        is_wrong = False
        try:
            if offset > self.base_offset:
                self.index.truncate_to(offset)
                self.times.truncate_to(offset)
                last = self.index.last()
                if last is not None:
                    self._check_entry(self.base_offset + last[0], last[1])
                    position = last[1]
            else:
                self.index.empty()
                self.times.empty()
        except (CorruptIndex, FileNotFoundError, CorruptLog) as error:
            logger.warning("index rebuilt path=%s reason=%s", self.index.path, error)
            is_wrong = True
            self.index.clear()
            self.times.clear()
        row = self.times.last()
        self.max_timestamp, relative = row if row else (NO_TIMESTAMP, 0)
        self.max_timestamp_offset = self.base_offset + relative
        self.index_after = position + self._interval
        return position, is_wrong

    def _check_entry(self, last_offset: int, position: int) -> None:
        """Raise CorruptIndex unless a batch at `position` ends with `last_offset`; CorruptLog for a bad header."""
        for _, _, fields in headers(self.file, position, self.size, self.base_offset):
            if fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] == last_offset:
                return
            break
        raise CorruptIndex(f"no batch at {position} ends with offset {last_offset}")

    def truncate_to(self, offset: int, start_offset: int) -> int:
        """Remove every batch that ends at or after `offset`. Returns the new end offset of the segment. It is the end
        of the last remaining batch, even if compaction had removed the next offsets, because the next start must find
        the same end. It is at least the log's `start_offset`, unless a removed batch began below `start_offset`.

        Blocks until the cut is durable. If it were not durable, the removed bytes could reappear after a power
        failure, behind the batches that are appended later.
        """
        # Start at an index entry that is kept, because the kept time entries cover all batches before it.
        position = start = self.indexed_position(offset - 1) if offset > self.base_offset else 0
        end_offset, removed_from = min(offset, self.base_offset), offset
        latest = (NO_TIMESTAMP, self.base_offset)
        for at, size, fields in headers(self.file, start, self.size, self.base_offset):
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if last_offset >= offset:
                removed_from = min(offset, fields[BASE_OFFSET])
                break
            position = at + size
            end_offset = last_offset + 1
            timestamp = self.latest_in(at, fields)
            if timestamp > latest[0] and fields[COUNT]:
                latest = (timestamp, last_offset)
        self.cut(position)
        try:
            self.index.truncate_to(offset)
            self.times.truncate_to(offset)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
        row = self.times.last()
        if row is not None and row[0] >= latest[0]:
            latest = (row[0], self.base_offset + row[1])
        self.max_timestamp, self.max_timestamp_offset = latest
        return max(end_offset, min(start_offset, removed_from))

    def cut(self, size: int) -> None:
        """Cut the file to `size` bytes, durably. Raises OSError."""
        self.file.truncate(size)
        self.file.sync()
        self.size = self.synced_size = size
        self.age = None
        self.sound_from = min(self.sound_from, size)
        self._checked_from = self._checked_to = 0
        self.indexes_unsynced = True

    # Removal

    def retire(self) -> None:
        """Mark the segment as removed from the log. Its files remain for reads in progress."""
        self.deleted = True
        for index in (self.index, self.times):
            index.unload()

    def rename_deleted(self) -> None:
        """Rename the files to `.deleted`, after `retire`. After a restart, the opening of the log removes them.
        Blocks; thread-safe. Raises OSError.
        """
        for suffix in SUFFIXES:
            path = self.path[: -len(LOG_SUFFIX)] + suffix
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)

    def remove(self) -> None:
        """Remove the files. If `deleted` is set, `rename_deleted` must have renamed them. Blocks. Raises OSError."""
        ending, self.deleted = DELETED_SUFFIX if self.deleted else "", True
        self._remove_files(ending)

    def _remove_files(self, ending: str) -> None:
        if self.opened is not None:
            self.opened.close()
        for suffix in SUFFIXES:
            path = self.path[: -len(LOG_SUFFIX)] + suffix + ending
            if self._disk.exists(path):
                self._disk.remove(path)
