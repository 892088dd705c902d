"""One pass over a log: learn the last offset of each key, write the closed segments anew without what is superseded.

Runs beside the broker, in a process of its own: reads the segments that the job names, writes `.cleaned` files, and
touches nothing else. The broker puts what is reported in place while the next group is written.

One process at a time writes in a data directory: that of a broker that was killed may outlive it for a while, and the
names are the same.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tidelog.log.batch_scan import ATTRIBUTES, BASE_OFFSET, COUNT, CRC, HEADER, LAST_OFFSET_DELTA, Fields, batches
from tidelog.log.cleaner.batch_filter import BatchFilter
from tidelog.log.cleaner.grouping import Sized, grouped
from tidelog.log.cleaner.job import Cleaned, CleanJob, GroupCleaned, Interrupted, Uncleanable
from tidelog.log.cleaner.offset_map import OffsetMap
from tidelog.log.cleaner.records import plain_records, raw_records
from tidelog.log.cleaner.throttle import Throttle
from tidelog.log.cleaner.transactions import Transactions
from tidelog.log.errors import CorruptLog
from tidelog.log.leftovers import CLEANED_SUFFIX, remove_cleaned
from tidelog.log.record_times import latest_timestamp_of
from tidelog.log.segment import Segment, file_name
from tidelog.log.transaction_index import AbortedTransaction, TransactionIndex
from tidelog.wire.batches import CONTROL_BIT
from tidelog.wire.checksums import crc32c

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Apart, Disk

LOCK: Final = ".cleaning.lock"
"""In the data directory. It ends with the process that holds it."""


def clean(apart: "Apart", request: bytes, report: Callable[[bytes], None]) -> None:
    """The work of one request; every outcome is a report."""
    try:
        job = CleanJob.decode(request)
        lock = apart.disk.lock(f"{job.directory.rpartition('/')[0]}/{LOCK}")
        try:
            report(_Pass(apart, job, report).run().encode())
        finally:
            lock.release()
    except CorruptLog as error:
        report(Uncleanable(str(error)).encode())
    except OSError as error:
        report(Interrupted(f"{error.strerror or error} {error.filename or ''}".strip()).encode())


class _Pass:
    def __init__(self, apart: "Apart", job: CleanJob, report: Callable[[bytes], None]) -> None:
        self._disk = apart.disk
        self._job = job
        self._report = report
        self._throttle = Throttle(job.limits.bytes_per_s, apart.monotonic, apart.sleep)
        self._map = OffsetMap(job.limits.map_bytes, job.limits.load_factor)
        remove_cleaned(self._disk, job.directory)
        self._aborted = self._read_aborted()

    def run(self) -> Cleaned:
        """Raises CorruptLog, OSError."""
        job = self._job
        self._build_map()
        end_offset = self._map.latest_offset + 1
        if end_offset <= job.first_dirty_offset:  # nothing is dirty
            return Cleaned(job.first_dirty_offset, 0)
        covered = [self._sized(facts.base_offset, facts.size) for facts in job.segments]
        covered = [segment for segment in covered if segment.base_offset < end_offset]
        groups = grouped(
            covered,
            end_offset=job.end_offset,
            segment_bytes=job.segment_bytes,
            index_bytes=job.segment_index_bytes,
        )
        rewriting = _Rewriting(self._disk, job, self._map, self._aborted, self._throttle)
        for group in groups:
            self._report(rewriting.write(group).encode())
        return Cleaned(end_offset, len(self._map.offsets))

    def _read_aborted(self) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for base_offset in self._job.transaction_indexes:
            path = f"{self._job.directory}/{file_name(base_offset, '.txnindex')}"
            found += TransactionIndex(self._disk, path, exists=True).read()
        return found

    def _sized(self, base_offset: int, size: int) -> Sized:
        index_bytes = []
        for suffix in (".index", ".timeindex"):
            try:
                index_bytes.append(self._disk.size(f"{self._job.directory}/{file_name(base_offset, suffix)}"))
            except FileNotFoundError:
                index_bytes.append(0)
        return Sized(base_offset, size, *index_bytes)

    # The map

    def _build_map(self) -> None:
        """Every dirty segment, or as many records as the map has room for."""
        job = self._job
        transactions = Transactions(self._aborted)
        segments = job.segments
        for place, facts in enumerate(segments):
            following = segments[place + 1].base_offset if place + 1 < len(segments) else job.end_offset
            if following <= job.first_dirty_offset:
                continue
            if not self._map_segment(facts.base_offset, facts.size, transactions):
                return
            self._map.looked_at(following - 1)

    def _map_segment(self, base_offset: int, size: int, transactions: Transactions) -> bool:
        """False when the map is full before the segment ends."""
        start_offset = self._job.first_dirty_offset
        offset_map = self._map
        for path, position, batch, fields in _sound_batches(self._disk, self._job.directory, base_offset, size):
            self._throttle.took(len(batch))
            try:
                if fields[ATTRIBUTES] & CONTROL_BIT:
                    transactions.marker_may_go(fields, batch)
                elif not transactions.data_is_aborted(fields) and fields[COUNT]:
                    for record in raw_records(plain_records(batch, fields), fields[COUNT], fields[LAST_OFFSET_DELTA]):
                        key, offset = record[4], fields[BASE_OFFSET] + record[3]
                        if key is not None and offset >= start_offset and not offset_map.put(key, offset):
                            return False
            except ValueError as error:
                raise CorruptLog(path, position, f"the batch cannot be read: {error}") from error
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if last_offset >= start_offset:
                offset_map.looked_at(last_offset)
        return True


class _Rewriting:
    """Writes groups of segments, in the order of the log."""

    def __init__(
        self, disk: "Disk", job: CleanJob, offset_map: OffsetMap, aborted: list[AbortedTransaction], throttle: Throttle
    ) -> None:
        self._disk = disk
        self._job = job
        self._throttle = throttle
        self._kept_aborted: list[AbortedTransaction] = []
        self._filter = BatchFilter(
            offset_map,
            Transactions(aborted, self._kept_aborted.append),
            producers=job.producers,
            end_offset=job.end_offset,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
        )

    def write(self, group: list[Sized]) -> GroupCleaned:
        """The group as one segment, durable under its `.cleaned` name. Raises CorruptLog, OSError."""
        segment = self._new_segment(group[0].base_offset)
        before = after = 0
        out = bytearray()
        for source in group:
            for path, position, batch, fields in _sound_batches(
                self._disk, self._job.directory, source.base_offset, source.size
            ):
                self._throttle.took(len(batch))
                try:
                    filtered = self._filter.apply(batch, fields)
                except ValueError as error:
                    raise CorruptLog(path, position, f"the batch cannot be read: {error}") from error
                before += filtered.records_before
                after += filtered.records_after
                if filtered.batch is not None:
                    kept = HEADER.unpack_from(filtered.batch)
                    segment.note_batch(segment.size + len(out), kept, latest_timestamp_of(filtered.batch, kept))
                    out += filtered.batch
                    if len(out) >= self._job.limits.write_bytes:
                        self._write_out(segment, out)
        self._write_out(segment, out)
        self._finish(segment)
        # Records without timestamps age from their file's last change, and go on doing so.
        changed_ms = max(self._disk.modified_ms(self._source_path(source.base_offset)) for source in group)
        self._disk.set_modified_ms(segment.path, changed_ms)
        return GroupCleaned(
            [source.base_offset for source in group],
            segment.size,
            segment.transactions.exists,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            sum(source.size for source in group),
            before,
            after,
        )

    def _source_path(self, base_offset: int) -> str:
        return f"{self._job.directory}/{file_name(base_offset, '.log')}"

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self._job.directory, base_offset, 0)
        segment.use_ending(CLEANED_SUFFIX)
        segment.begin_rewrite(self._job.index_interval_bytes)
        return segment

    def _write_out(self, segment: Segment, out: bytearray) -> None:
        if out:
            segment.file.pwrite(out, segment.size)
            segment.size += len(out)
            self._throttle.took(len(out))
            out.clear()

    def _finish(self, segment: Segment) -> None:
        for aborted in self._kept_aborted:
            segment.transactions.append(aborted)
        self._kept_aborted.clear()
        segment.finish()
        segment.file.sync()
        for index in (segment.index, segment.times):
            index.sync()
        if segment.transactions.exists:
            segment.transactions.sync()
        segment.file.close()
        self._disk.sync_dir(self._job.directory)


def _sound_batches(
    disk: "Disk", directory: str, base_offset: int, size: int
) -> Iterator[tuple[str, int, memoryview, Fields]]:
    """(path, position, batch, header) of a whole segment. Raises CorruptLog for the first that is not sound."""
    file = disk.open(f"{directory}/{file_name(base_offset, '.log')}")
    try:
        for position, batch, fields in batches(file, 0, size, base_offset):
            if crc32c(batch[21:]) != fields[CRC]:
                raise CorruptLog(file.path, position, f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}")
            yield file.path, position, batch, fields
    finally:
        file.close()
