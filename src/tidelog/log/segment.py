"""One segment: a `.log` file of record batches with its sparse indexes, named by the first offset it may hold."""

import errno
import logging
import zlib
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import BASE_OFFSET, COUNT, LAST_OFFSET_DELTA, LENGTH, Fields, headers
from tidelog.log.errors import CorruptLog
from tidelog.log.indexes import INT32_MAX, PENDING_MAX, CorruptIndex, IndexCache, OffsetIndex, TimeIndex
from tidelog.log.record_times import looked_at, stated_or_looked_at
from tidelog.log.transaction_index import TransactionIndex
from tidelog.wire.batches import LENGTH_END

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.flush import Syncable
    from tidelog.runtime.interfaces import Disk, File

logger = logging.getLogger("tidelog.log")

NOT_OPENED = (errno.EMFILE, errno.ENFILE)
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, *NOT_OPENED)
"""Errors that leave what is on the disk as it was, and may not come again."""
NO_TIMESTAMP = -1
UNKNOWN = -2
"""Not looked at yet."""
NEVER = 1 << 62
LOG_SUFFIX = ".log"
SUFFIXES = (LOG_SUFFIX, ".index", ".timeindex", ".txnindex")
DELETED_SUFFIX = ".deleted"
INTERVAL_BYTES = 4096
"""Between index entries, for a segment that is not told otherwise."""
WALK_BATCHES_MAX = 4000
"""By one read, which is done on the loop: some ms. Tens of MB may be a million batches."""
FIRST_TIMESTAMP_PENDING = -(1 << 62)
"""As `roll_timestamp`: have the next append find out when the segment's time is over."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class SegmentAge(NamedTuple):
    """A segment of `size` bytes ages from `from_ms`: its latest record's time, or its file's last change."""

    size: int
    from_ms: int


class Segment:
    """Batches from `base_offset` on, in `size` bytes.

    The fields without underscore are for PartitionLog.append, which does the work of an append itself: one layer less.
    """

    __slots__ = (
        "_disk",
        "_entries_max",
        "_interval",
        "_time_entries_max",
        "_walked_from",
        "_walked_offset",
        "_walked_to",
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
        """The latest timestamp of its batches, by their headers; NO_TIMESTAMP when there is none."""
        self.max_timestamp_offset = base_offset
        self.age: SegmentAge | None = None
        """What retention has found out; None before it had to."""
        self.created_ms = 0
        self.deleted = False
        self.sound_from = size
        """Beyond the batch that begins here the chain is known to be whole: written or recovered by this process."""
        self._walked_from = self._walked_to = self._walked_offset = 0
        self.index_after = 0
        """A batch beyond this position gets an index entry."""
        self._interval = INTERVAL_BYTES
        self._entries_max = self._time_entries_max = NEVER
        self.size_limit = self.roll_timestamp = self.roll_now_ms = NEVER
        self.clock_confirmed = False
        """Whether the records of the first batch were looked at for `roll_timestamp`."""
        self.offset_limit = base_offset + INT32_MAX + 1
        """`next_offset` may not exceed it: offsets are stored relative to the base in 31 bits."""
        self.synced_size = size
        self.entry_unsynced = False
        self.indexes_unsynced = False

    @classmethod
    def create(cls, disk: "Disk", directory: str, base_offset: int, now_ms: int) -> "Segment":
        """A new, empty one. Raises OSError."""
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
        """A roll failed, and appends may go on in the segment before: no empty one may stand in their way."""
        for suffix in SUFFIXES:
            path = self.path[: -len(LOG_SUFFIX)] + suffix
            if self._disk.exists(path):
                self._disk.remove(path)
        if self.opened is not None:
            self.opened.close()

    @property
    def file(self) -> "File":
        """Opened when first wanted. Raises OSError."""
        if self.opened is None:
            self.opened = self._disk.open(self.path)
        return self.opened

    def use_cache(self, cache: IndexCache) -> None:
        self.index.use_cache(cache)
        self.times.use_cache(cache)

    def use_ending(self, ending: str) -> None:
        """Its files are found under their names with `ending` behind, as those of a rewritten segment are for a time.

        Those that are open follow a rename by themselves.
        """
        stem = f"{self.path[: self.path.rindex('/')]}/{self.base_offset:020d}"
        self.path = stem + LOG_SUFFIX + ending
        self.index.path = stem + ".index" + ending
        self.times.path = stem + ".timeindex" + ending
        self.transactions.path = stem + ".txnindex" + ending

    def begin_rewrite(self, index_interval_bytes: int) -> None:
        """Make its files, empty, under the names that `use_ending` gave. Raises OSError."""
        self.opened = self._disk.open(self.path, create=True)
        self.index.create()
        self.times.create()
        self.max_timestamp = NO_TIMESTAMP
        self._interval = self.index_after = index_interval_bytes

    # As the active segment

    def take_interval(self, config: "LogConfig") -> None:
        """How far apart index entries are, also when they are made anew."""
        self._interval = config.index_interval_bytes

    def configure(self, config: "LogConfig") -> None:
        """Take the settings that tell when to roll and to index."""
        self._interval = config.index_interval_bytes
        self._entries_max = config.segment_index_bytes // OffsetIndex.entry_bytes
        self._time_entries_max = config.segment_index_bytes // TimeIndex.entry_bytes - 1  # one kept for the roll
        self.size_limit = config.segment_bytes
        self.roll_timestamp = FIRST_TIMESTAMP_PENDING
        self.clock_confirmed = False
        last = self.index.last() if self.index.count else None
        self.index_after = (last[1] if last else 0) + self._interval
        self._check_full()

    def start_pending_clock(self, config: "LogConfig") -> None:
        """Find out when its time is over, if there are batches and nobody has. Raises CorruptLog, OSError."""
        if self.size and self.roll_timestamp == FIRST_TIMESTAMP_PENDING:
            self.start_clock(self.first_timestamp(), config)

    def start_clock(self, first_timestamp: int, config: "LogConfig") -> None:
        """Set when its time is over: by record timestamps where the first batch has one, by the clock otherwise."""
        segment_ms = config.roll_after_ms
        if config.segment_jitter_ms:
            # Chance is not asked: segments of a topic's partitions roll apart if each takes its own share.
            share = zlib.crc32(self.path.rpartition("/")[0].rpartition("/")[2].encode(), self.base_offset & 0xFFFFFFFF)
            segment_ms -= share % max(min(config.segment_jitter_ms, segment_ms), 1)
        if first_timestamp >= 0:
            self.roll_timestamp = first_timestamp + segment_ms
            self.roll_now_ms = NEVER
        else:
            self.roll_timestamp = NEVER
            self.roll_now_ms = self.created_ms + segment_ms

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, NO_TIMESTAMP when empty. Raises CorruptLog."""
        for found in headers(self.file, 0, self.size, self.base_offset):
            return stated_or_looked_at(self.file, *found)
        return NO_TIMESTAMP

    def first_records_time(self) -> int:
        """As `first_timestamp`, by the records themselves unless they are very many. Raises CorruptLog."""
        for found in headers(self.file, 0, self.size, self.base_offset):
            return looked_at(self.file, *found)
        return NO_TIMESTAMP

    def add_index_entry(self, last_offset: int, position: int) -> None:
        """The batch at `position` is more than the interval past the last entry. Raises OSError (not when full)."""
        self.index.append(last_offset, position)
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        self.index_after = position + self._interval
        self._check_full()
        if self.index.pending >= PENDING_MAX:
            self.write_indexes()

    def note_batch(self, position: int, fields: Fields, latest: int | None = None) -> None:
        """Account for a batch found at `position` by a scan: timestamps and indexes.

        `latest`: its largest timestamp, where its bytes are not in the file yet.
        """
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if latest is None:
            latest = self.latest_in(position, fields)
        if latest > self.max_timestamp and fields[COUNT]:  # compaction leaves batches without records
            self.max_timestamp = latest
            self.max_timestamp_offset = last_offset
        if position > self.index_after:
            self.add_index_entry(last_offset, position)

    def latest_in(self, position: int, fields: Fields) -> int:
        """The largest timestamp of the batch at `position`."""
        return stated_or_looked_at(self.file, position, fields[LENGTH] + LENGTH_END, fields)

    def write_indexes(self) -> None:
        """Write new entries to the index files. A full disk leaves them in memory, for later. Raises OSError."""
        self.indexes_unsynced = True
        try:
            self.index.write_pending()
            self.times.write_pending()
        except OSError as error:
            if error.errno not in PASSING:
                raise

    @property
    def unsynced_beside_records(self) -> bool:
        return self.indexes_unsynced or self.transactions.unsynced

    def take_unsynced(self) -> "list[Syncable]":
        """The indexes that a flush must sync; from now on they count as synced."""
        taken: list[Syncable] = []
        if self.indexes_unsynced:
            self.indexes_unsynced = False
            taken += [self.index, self.times]
        if self.transactions.unsynced:
            self.transactions.unsynced = False
            taken.append(self.transactions)
        return taken

    def finish(self) -> None:
        """No more appends, or the end of the process: the last time entry, and index files that are complete."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        self.write_indexes()

    def _check_full(self) -> None:
        if self.index.count >= self._entries_max or self.times.count >= self._time_entries_max:
            self.size_limit = -1

    # Looking for offsets and times

    def find(self, offset: int) -> tuple[int, int, Fields] | None:
        """(position, size, header) of the first batch that ends at or after `offset`; None if there is none.

        An index that misleads is made anew from the log. Raises CorruptLog.
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
        """The indexed position from which to look for `offset`."""
        try:
            return self.index.position_for(offset)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.index.position_for(offset)

    def boundary(self, position_max: int) -> int:
        """A position not past `position_max` where a batch begins, as near to it as the index tells."""
        try:
            return self.index.boundary(position_max)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.index.boundary(position_max)

    def offset_before_time(self, timestamp_ms: int) -> int:
        """An offset of this segment up to which nothing is later than `timestamp_ms`."""
        try:
            return self.times.offset_for(timestamp_ms)
        except (CorruptIndex, FileNotFoundError) as error:
            self.rebuild_indexes(str(error))
            return self.times.offset_for(timestamp_ms)

    def latest_timestamp(self) -> int:
        """`max_timestamp`, looked up in the time index if it is not known yet."""
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
        """`latest_timestamp`, or when the file was last changed where no record has one. Raises CorruptLog, OSError."""
        latest = self.latest_timestamp()
        return self._disk.modified_ms(self.path) if latest == NO_TIMESTAMP else latest

    def read_latest_timestamp(self) -> tuple[int, int]:
        """(`max_timestamp`, its offset), read anew from the files. Blocks; on any thread: nothing is changed.

        Raises CorruptLog, OSError.
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
                found = stated_or_looked_at(file, position, size, fields)
                if found > latest[0] and fields[COUNT]:
                    latest = (found, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA])
        finally:
            file.close()
        return latest

    def _scan_for(self, offset: int, start: int) -> tuple[int, int, Fields] | None:
        for found in headers(self.file, start, self.size, self.base_offset):
            position, _, fields = found
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if last_offset >= offset:
                if position == start and start and last_offset > offset:
                    raise CorruptIndex(f"{self.index.path}: the batch at {start} does not end where the index says")
                return found
        return None

    # Soundness of what is served

    def end_of_whole_batches(self, position: int, first_offset: int, size_max: int, end: int) -> tuple[int, int]:
        """Where to stop so that batches from `position` fit `size_max` bytes before `end`: (position, next offset or
        -1 for unknown).

        At least one batch, whatever its size. The first should begin with `first_offset` or later. A stretch that this
        process neither wrote nor walked is walked now, `WALK_BATCHES_MAX` of it at the most, so that a broken chain is
        never served: raises CorruptLog.
        """
        limit = min(position + size_max, end)
        known = position > self.sound_from or (self._walked_from <= position and limit <= self._walked_to)
        if known:
            if limit == end:
                return end, -1
            stop = self.boundary(limit)
            if stop > position:
                return stop, -1
        stop, next_offset = self._walk(position, first_offset, limit, end)
        if not known:
            if self._walked_from <= position == self._walked_to and first_offset >= self._walked_offset:
                self._walked_to = stop
            else:
                self._walked_from, self._walked_to = position, stop
            self._walked_offset = next_offset
        return stop, next_offset

    def _walk(self, position: int, first_offset: int, limit: int, end: int) -> tuple[int, int]:
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

    # Repair and cutting

    def rebuild_indexes(self, reason: str) -> None:
        """Make both indexes anew from the batch headers. Raises CorruptLog, OSError."""
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
        """Drop index entries from `offset` on, before a scan makes them anew.

        Returns the position where the scan begins, and whether the index files must be written anew after it: they were
        missing or wrong. Beginning at an entry is enough to learn the segment's latest timestamp: the time index holds
        that of everything before.
        """
        position = 0
        wrong = False
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
            wrong = True
            self.index.clear()
            self.times.clear()
        row = self.times.last()
        self.max_timestamp, relative = row if row else (NO_TIMESTAMP, 0)
        self.max_timestamp_offset = self.base_offset + relative
        self.index_after = position + self._interval
        return position, wrong

    def _check_entry(self, last_offset: int, position: int) -> None:
        for _, _, fields in headers(self.file, position, self.size, self.base_offset):
            if fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] == last_offset:
                return
            break
        raise CorruptIndex(f"no batch at {position} ends with offset {last_offset}")

    def truncate_to(self, offset: int) -> int:
        """Drop every batch that ends at or after `offset`; the offset at which the segment ends now.

        Blocks until the cut is durable: stale bytes behind later appends must not come back after a power cut.
        """
        # From an entry that stays: the time entries that stay tell of everything before it.
        start = self.indexed_position(offset - 1) if offset > self.base_offset else 0
        position = start
        end_offset = min(offset, self.base_offset)
        latest = (NO_TIMESTAMP, self.base_offset)
        for at, size, fields in headers(self.file, start, self.size, self.base_offset):
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if last_offset >= offset:
                end_offset = min(offset, fields[BASE_OFFSET])
                break
            position = at + size
            end_offset = last_offset + 1
            found = self.latest_in(at, fields)
            if found > latest[0] and fields[COUNT]:
                latest = (found, last_offset)
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
        return end_offset

    def cut(self, size: int) -> None:
        """Make the file `size` bytes long, durably. Raises OSError."""
        self.file.truncate(size)
        self.file.sync()
        self.size = self.synced_size = size
        self.age = None
        self.sound_from = min(self.sound_from, size)
        self._walked_from = self._walked_to = 0
        self.indexes_unsynced = True

    # Leaving

    def retire(self) -> None:
        """It left the log; its files are there still, for those who read them."""
        self.deleted = True
        for index in (self.index, self.times):
            index.unload()

    def rename_deleted(self) -> None:
        """First step of a deletion, after `retire`: a restart finishes it. Blocks; on any thread. Raises OSError."""
        for suffix in SUFFIXES:
            path = self.path[: -len(LOG_SUFFIX)] + suffix
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)

    def remove(self) -> None:
        """Second step, or the only one (`deleted` is not set then): the files go. Blocks. Raises OSError."""
        ending = DELETED_SUFFIX if self.deleted else ""
        self.deleted = True
        if self.opened is not None:
            self.opened.close()
        for suffix in SUFFIXES:
            path = self.path[: -len(LOG_SUFFIX)] + suffix + ending
            if self._disk.exists(path):
                self._disk.remove(path)
