"""Find records in a log: convert an offset into a region of one segment file, and a timestamp into an offset.

The positions at which recent readers stopped are remembered. A reader that follows the log, or reads old segments in
order, continues at its position without an index look-up.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import BASE_OFFSET, COUNT, LAST_OFFSET_DELTA, LEADER_EPOCH, headers
from tidelog.log.checkpoints import CLEANER_OFFSETS
from tidelog.log.errors import CorruptLog
from tidelog.log.segment import NO_TIMESTAMP, Segment
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.model.steps import Steps
from tidelog.wire.batches import BatchHeader
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.record_facts import record_facts
from tidelog.wire.records import decompressed_records

if TYPE_CHECKING:
    from tidelog.log.segment_list import SegmentList
    from tidelog.runtime.interfaces import File

POSITIONS_MAX = 16
"""Maximum number of remembered positions."""
PLENTY = 1 << 31
"""A number of bytes that is larger than any fetch can request."""
WARM_BYTES = 8 << 20
"""The last bytes of the log, up to this number, are assumed to be in the page cache."""
SEARCHED_BYTES_MAX = 4 << 20
"""Maximum decompressed size, in bytes, of a batch whose records are searched by timestamp. If a batch of this size
consists of the smallest possible records, the search takes a third of a second."""
HEADERS_PER_STEP = 64
"""Number of batch headers that a search by timestamp reads in one step."""
MARGIN_BYTES = 8192
"""Number of bytes that a cold read reads in addition to the fetch's limit. If a cold read begins at the position
of an index entry, it also reads bytes before the requested offset."""


OFFSET_MAX = (1 << 63) - 1


class Slice(NamedTuple):
    """`size` bytes of whole batches at `position` of `file`. If there is no data, `size` is 0 and `file` is None.

    `first_batch_offset` is the base offset of the first batch, which may be below the requested offset. `readable`
    is compared with `fetch.min.bytes`, as in Kafka. It is the number of bytes that the limits of the read (`bytes_max`
    and `end_offset`) allow, ignoring batch boundaries, but at least `size`. If the read may continue in the next
    segment, `readable` is `PLENTY`.
    """

    file: "File | None"
    position: int
    size: int
    first_batch_offset: int
    readable: int


class TimestampOffset(NamedTuple):
    """A record's offset, its timestamp in ms, and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


class LogChanged(Exception):
    """A segment was removed from the log during a search. The search must be repeated."""


class ColdRead:
    """Reads the bytes that the next read needs, so that they are in the page cache. `run` blocks its thread; any
    thread may call it.
    """

    __slots__ = ("_file", "_position", "size")

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        self._file = segment.file
        self._position = position
        self.size = size

    def run(self) -> None:
        """Read the bytes. Raises OSError."""
        step = 1 << 20
        for position in range(self._position, self._position + self.size, step):
            self._file.pread(min(step, self._position + self.size - position), position)


class LogReader:
    """Finds batches in `segments`. The owner passes the log end offset to `slice`. If compaction may have removed
    offsets, the owner sets `may_have_holes`.
    """

    __slots__ = ("_positions", "_segments", "may_have_holes")

    def __init__(self, segments: "SegmentList") -> None:
        self._segments = segments
        self.may_have_holes = False
        self._positions: dict[int, tuple[Segment, int]] = {}
        """For each offset, the segment and position of the batch that begins, or will begin, with this offset."""

    def forget_positions(self) -> None:
        """Forget all remembered positions. Must be called after segments were cut, removed or replaced."""
        self._positions.clear()

    def empty_at(self, offset: int) -> Slice:
        """Return an empty slice for a reader at the end of the log, and remember its position in the active segment."""
        active = self._segments.active
        self._remember(offset, active, active.size)
        return Slice(None, 0, 0, offset, 0)

    def slice(self, start: int, bytes_max: int, end_offset: int, log_end_offset: int) -> Slice:
        """Return whole batches of one segment. The first one is the batch that contains `start`; all batches are
        below `end_offset`.

        If compaction has removed `start`, the next batch after it is the first one. The result is empty if there is no
        first batch, or if it is not below `end_offset`. Raises CorruptLog, OSError.
        """
        remembered = self._positions.get(start)
        if remembered is not None:
            segment, position = remembered
            first = start
            if position >= segment.size and segment is not self._segments.active:
                remembered = None
        if remembered is None:
            batch = self._find(start)
            if batch is None or batch[2] >= end_offset:
                return Slice(None, 0, 0, start, 0)
            segment, position, first = batch
        active = segment is self._segments.active
        end = segment.size if active and end_offset >= log_end_offset else self._end_position(segment, end_offset)
        if end <= position:
            return Slice(None, 0, 0, start, 0)
        stop, next_offset = segment.end_of_whole_batches(position, first, bytes_max, end)
        if stop == segment.size:
            if active:
                self._remember(log_end_offset, segment, stop)
        elif stop == end and next_offset < 0:
            # `end_offset` may lie inside a batch; then no batch begins with it.
            if end_offset not in self._positions and self._base_offset_at(segment, stop) == end_offset:
                self._remember(end_offset, segment, stop)
        else:
            self._remember(next_offset if next_offset >= 0 else self._base_offset_at(segment, stop), segment, stop)
        size = stop - position
        if not active and end == segment.size:
            readable = PLENTY
        elif stop < end:
            readable = max(size, min(end - position, bytes_max))
        else:
            readable = size
        return Slice(segment.file, position, size, first, readable)

    def cold_read(self, start: int, bytes_max: int) -> ColdRead | None:
        """Return a read to be run on a thread, or None if `slice` would not wait for the disk."""
        remembered = self._positions.get(start)
        if remembered is not None:
            segment, position = remembered
        else:
            segment = self._segments.items[self._segments.floor(start)]
            position = segment.indexed_position(start) if start > segment.base_offset else 0
        if (
            segment is self._segments.active
            and position >= segment.sound_from
            and segment.size - position <= WARM_BYTES
        ):
            return None
        size = min(bytes_max + MARGIN_BYTES, segment.size - position)
        if size <= 0 or segment.file.resident(position, size):
            return None
        return ColdRead(segment, position, size)

    def _find(self, offset: int) -> tuple[Segment, int, int] | None:
        """Return (segment, position, base offset) of the first batch that ends at or after `offset`; None if there
        is no such batch.

        Raises CorruptLog if a batch is damaged. Also raises it if the batch begins after `offset` and compaction cannot
        be the reason.
        """
        items = self._segments.items
        for index in range(self._segments.floor(offset), len(items)):
            batch = items[index].find(offset)
            if batch is not None:
                position, _, fields = batch
                base_offset = fields[BASE_OFFSET]
                if base_offset > offset and not self.may_have_holes:
                    raise self._hole_error(items[index], position, offset, base_offset)
                return items[index], position, base_offset
        return None

    def _hole_error(self, segment: Segment, position: int, offset: int, base_offset: int) -> CorruptLog:
        parent, _, name = segment.path.rpartition("/")[0].rpartition("/")
        return CorruptLog(
            segment.path,
            position,
            f"offsets {offset} to {base_offset - 1} are missing before this batch; put the missing files back. "
            "If the log was compacted, or if you want to continue without the missing records, set the offset of "
            f"{name} to {self._segments.items[0].base_offset} in {parent}/{CLEANER_OFFSETS}",
        )

    def _end_position(self, segment: Segment, end_offset: int) -> int:
        """Return the position of the first batch that contains `end_offset` or a later offset; the segment's size if
        there is no such batch.
        """
        if self._segments.items[self._segments.floor(end_offset)] is not segment:
            return segment.size  # a search is not needed, and would read the segment's end from the disk
        remembered = self._positions.get(end_offset)
        if remembered is not None and remembered[0] is segment:
            return remembered[1]
        batch = segment.find(end_offset)
        return batch[0] if batch else segment.size

    def _base_offset_at(self, segment: Segment, position: int) -> int:
        return int.from_bytes(segment.file.pread(8, position))

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        positions = self._positions
        if len(positions) >= POSITIONS_MAX and offset not in positions:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)

    def aborted_transactions(
        self, start: int, end_offset: int, batches: Slice | None = None
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records from `start` to `end_offset` (exclusive), sorted by their first
        offset.

        `batches` is a slice that was read from `start`. If it is given, transactions that begin after the slice are
        omitted, as far as the offset index shows where the slice ends. Raises CorruptLog.
        """
        transactions: list[AbortedTransaction] = []
        first = self._segments.floor(start)
        for segment in self._segments.items[first:]:
            if not segment.transactions.exists:
                continue
            if batches is not None:
                end_offset, batches = min(end_offset, self._offset_after(first, batches)), None
            for aborted in segment.transactions.entries(start):
                if aborted.first_offset < end_offset:
                    transactions.append(aborted)
                # All later entries belong to transactions that begin at or after this entry's last stable offset.
                if aborted.last_stable_offset >= end_offset:
                    return sorted(transactions, key=lambda aborted: aborted.first_offset)
        return sorted(transactions, key=lambda aborted: aborted.first_offset)

    def _offset_after(self, number: int, batches: Slice) -> int:
        """Return an offset at or after the end of the batches. They begin in segment `number` or in a later one."""
        segments = self._segments.items
        while number + 1 < len(segments) and segments[number + 1].base_offset <= batches.first_batch_offset:
            number += 1
        offset = segments[number].offset_at(batches.position + batches.size)
        if offset is not None:
            return offset
        return segments[number + 1].base_offset if number + 1 < len(segments) else OFFSET_MAX

    # Searches by timestamp. They run in steps, because they may read the headers of a whole segment. They raise
    # LogChanged if a segment is removed between two steps.

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int) -> Steps[TimestampOffset | None]:
        """Return the first record at or after `start_offset` whose timestamp is at least `timestamp_ms`; None if
        there is no such record. Raises CorruptLog.
        """
        for segment in self._segments.items[self._segments.floor(start_offset) :]:
            yield from self._step(segment)
            if segment.latest_timestamp() >= timestamp_ms:
                record = yield from self._search_time(segment, timestamp_ms, start_offset)
                if record is not None:
                    return record
        return None

    def max_timestamp_offset(self, start_offset: int) -> Steps[TimestampOffset | None]:
        """Among the records at or after `start_offset`, return the first one with the largest timestamp; None if there
        are no records. The batch of this record is chosen by the timestamps in the headers of the batches.

        If no record has a timestamp, the result is the first record, with timestamp -1, as in Kafka. Raises
        CorruptLog.
        """
        best: tuple[int, int, Segment] | None = None
        for segment in self._segments.items[self._segments.floor(start_offset) :]:
            yield from self._step(segment)
            latest, offset = yield from self._latest(segment, start_offset)
            if offset >= 0 and (best is None or latest > best[0]):
                best = latest, offset, segment
        if best is None:
            return None
        latest, offset, segment = best
        if segment.deleted:
            raise LogChanged
        batch = segment.find(offset)
        if batch is None:
            return None
        position, size, fields = batch
        largest = TimestampOffset(0, NO_TIMESTAMP - 1, 0)  # below every timestamp
        for record_offset, timestamp in _records(segment, position, size, start_offset):
            if timestamp > largest.timestamp:
                largest = TimestampOffset(record_offset, timestamp, fields[LEADER_EPOCH])
                if timestamp >= latest:
                    break
        return largest if largest.timestamp >= NO_TIMESTAMP else None

    def _latest(self, segment: Segment, start_offset: int) -> Steps[tuple[int, int]]:
        """Return the largest timestamp from `start_offset` on, and the last offset of the first batch that has it.
        The offset is -1 if there are no records from `start_offset` on.
        """
        latest = segment.latest_timestamp()
        if segment.base_offset >= start_offset and latest > 0:  # a timestamp of 0 may come from a wrong header
            return latest, segment.max_timestamp_offset
        first_batch = segment.find(max(start_offset, segment.base_offset)) if segment.size else None
        latest, offset = NO_TIMESTAMP - 1, -1
        if first_batch is not None:
            batch_headers = headers(segment.file, first_batch[0], segment.size, segment.base_offset)
            for count, (at, size, fields) in enumerate(batch_headers, 1):
                if count % HEADERS_PER_STEP == 0:
                    yield from self._step(segment)
                last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
                if not fields[COUNT]:
                    continue
                if fields[BASE_OFFSET] < start_offset:  # a part of this batch is below the start
                    times = (timestamp for _, timestamp in _records(segment, at, size, start_offset))
                    timestamp = max(times, default=NO_TIMESTAMP - 1)
                else:
                    timestamp = segment.latest_in(at, fields)
                if timestamp > latest:
                    latest, offset = timestamp, last_offset
                if segment.max_timestamp == NO_TIMESTAMP:
                    break  # no batch of this segment has a timestamp
        return latest, offset

    def _search_time(self, segment: Segment, timestamp_ms: int, start_offset: int) -> Steps[TimestampOffset | None]:
        offset = max(segment.offset_before_time(timestamp_ms), start_offset)
        position = segment.indexed_position(offset) if offset > segment.base_offset else 0
        batch_headers = headers(segment.file, position, segment.size, segment.base_offset)
        for count, (at, size, fields) in enumerate(batch_headers, 1):
            if count % HEADERS_PER_STEP == 0:
                yield from self._step(segment)
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if segment.latest_in(at, fields) < timestamp_ms or last_offset < start_offset:
                continue
            yield from self._step(segment)
            for record_offset, timestamp in _records(segment, at, size, start_offset):
                if timestamp >= timestamp_ms:
                    return TimestampOffset(record_offset, timestamp, fields[LEADER_EPOCH])
        return None

    def _step(self, segment: Segment) -> Steps[None]:
        yield
        if segment.deleted:
            raise LogChanged


def _records(segment: Segment, position: int, size: int, start_offset: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp) of the records of one batch from `start_offset` on. Raises CorruptLog for a damaged
    batch.

    The broker stores the records as a producer sent them. Some batches have a valid checksum, but their records
    cannot be decoded or are too large to be decoded here. The undecoded records of such a batch are treated as one
    record. It has the offset after the last decoded record, but at least `start_offset`, and the largest timestamp in
    the batch's header.
    """
    batch = segment.file.pread(size, position)
    header = BatchHeader(batch)
    undecoded_offset = header.base_offset
    try:
        for offset_delta, timestamp, _ in record_facts(decompressed_records(batch, header, SEARCHED_BYTES_MAX), header):
            offset = header.base_offset + offset_delta
            if not header.base_offset <= offset <= header.last_offset:
                raise MalformedMessage(f"record batch: the offset delta {offset_delta} of a record is out of range")
            undecoded_offset = min(offset + 1, header.last_offset)
            if offset >= start_offset:
                yield offset, timestamp
    except MalformedMessage as error:
        if not header.crc_ok():
            raise CorruptLog(segment.path, position, f"the batch's records cannot be decoded: {error}") from error
        yield max(undecoded_offset, start_offset), header.max_timestamp
