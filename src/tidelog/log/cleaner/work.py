"""Run one compaction pass over a log: find the last offset of each key, and rewrite closed segments so that
superseded records are left out.

The pass runs in a separate process. It reads the segments that the job names, and writes `.cleaned` files. It
changes no other files of the log. While the pass writes one group of segments, the broker replaces the old
segments of the group that was reported before.

A lock allows only one pass at a time in a data directory. It is needed because the pass of a killed broker may continue
for a while. A pass that the restarted broker begins would use the same file names.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tidelog.log.batch_scan import ATTRIBUTES, BASE_OFFSET, COUNT, CRC, HEADER, LAST_OFFSET_DELTA, Fields, batches
from tidelog.log.cleaner.batch_filter import BatchFilter
from tidelog.log.cleaner.grouping import SegmentSizes, group_segments
from tidelog.log.cleaner.job import CleanJob, DamageReport, GroupReport, InterruptionReport, SuccessReport
from tidelog.log.cleaner.offset_map import OffsetMap
from tidelog.log.cleaner.records import decompressed_records, raw_records
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
    from tidelog.runtime.interfaces import ChildResources, Disk

LOCK: Final = ".cleaning.lock"
"""Name of the lock file in the data directory. When the process that holds the lock ends, the lock is released."""


def clean(resources: "ChildResources", request: bytes, report: Callable[[bytes], None]) -> None:
    """Run the pass of one request, and report the outcome. Errors of the log and of the disk are also reported."""
    try:
        job = CleanJob.decode(request)
        lock = resources.disk.lock(f"{job.directory.rpartition('/')[0]}/{LOCK}")
        try:
            report(_Pass(resources, job, report).run().encode())
        finally:
            lock.release()
    except CorruptLog as error:
        report(DamageReport(str(error)).encode())
    except OSError as error:
        report(InterruptionReport(f"{error.strerror or error} {error.filename or ''}".strip()).encode())


class _Pass:
    """One pass over a log. Its creation removes `.cleaned` files that an earlier pass left."""

    def __init__(self, resources: "ChildResources", job: CleanJob, report: Callable[[bytes], None]) -> None:
        self._disk = resources.disk
        self._job = job
        self._report = report
        self._throttle = Throttle(job.limits.bytes_per_s, resources.monotonic, resources.sleep)
        self._map = OffsetMap(job.limits.map_bytes, job.limits.load_factor)
        remove_cleaned(self._disk, job.directory)
        self._aborted = self._read_aborted()

    def run(self) -> SuccessReport:
        """Run the pass and return the final report. Raises CorruptLog, OSError."""
        job = self._job
        self._build_map()
        end_offset = self._map.latest_offset + 1
        if end_offset <= job.first_dirty_offset:  # nothing is dirty
            return SuccessReport(job.first_dirty_offset, 0)
        segments = [self._with_index_sizes(facts.base_offset, facts.size) for facts in job.segments]
        segments = [segment for segment in segments if segment.base_offset < end_offset]
        groups = group_segments(
            segments,
            end_offset=job.end_offset,
            segment_bytes=job.segment_bytes,
            index_bytes=job.segment_index_bytes,
        )
        writer = _GroupWriter(self._disk, job, self._map, self._aborted, self._throttle)
        for group in groups:
            self._report(writer.write(group).encode())
        return SuccessReport(end_offset, len(self._map.offsets))

    def _read_aborted(self) -> list[AbortedTransaction]:
        aborted: list[AbortedTransaction] = []
        for base_offset in self._job.transaction_indexes:
            path = f"{self._job.directory}/{file_name(base_offset, '.txnindex')}"
            aborted += TransactionIndex(self._disk, path, exists=True).read()
        return aborted

    def _with_index_sizes(self, base_offset: int, size: int) -> SegmentSizes:
        index_bytes = []
        for suffix in (".index", ".timeindex"):
            try:
                index_bytes.append(self._disk.size(f"{self._job.directory}/{file_name(base_offset, suffix)}"))
            except FileNotFoundError:
                index_bytes.append(0)
        return SegmentSizes(base_offset, size, *index_bytes)

    # The map

    def _build_map(self) -> None:
        """Read the records of the dirty segments into the map, in the order of the log, until the map is full."""
        job = self._job
        segments = job.segments
        transactions: Transactions | None = None
        for index, facts in enumerate(segments):
            next_offset = segments[index + 1].base_offset if index + 1 < len(segments) else job.end_offset
            if next_offset <= job.first_dirty_offset:
                continue
            if transactions is None:
                # The markers before this segment are not read, so aborted transactions that end with such a marker
                # must be left out. Otherwise the pass would never see their end, and would treat later records of the
                # same producers as aborted. The old records that these later records replace or delete would remain.
                first_offset = facts.base_offset
                transactions = Transactions([entry for entry in self._aborted if entry.last_offset >= first_offset])
            if not self._map_segment(facts.base_offset, facts.size, transactions):
                return
            self._map.mark_covered(next_offset - 1)

    def _map_segment(self, base_offset: int, size: int, transactions: Transactions) -> bool:
        """Read the segment's records into the map, from the first dirty offset on. Returns False if the map becomes
        full before the segment ends.
        """
        start_offset = self._job.first_dirty_offset
        offset_map = self._map
        for path, position, batch, fields in _checked_batches(self._disk, self._job.directory, base_offset, size):
            self._throttle.count(len(batch))
            try:
                if fields[ATTRIBUTES] & CONTROL_BIT:
                    transactions.track_marker(fields, batch)
                elif not transactions.track_records(fields) and fields[COUNT]:
                    for record in raw_records(
                        decompressed_records(batch, fields), fields[COUNT], fields[LAST_OFFSET_DELTA]
                    ):
                        key, offset = record[4], fields[BASE_OFFSET] + record[3]
                        if key is not None and offset >= start_offset and not offset_map.put(key, offset):
                            return False
            except ValueError as error:
                raise CorruptLog(path, position, f"the batch cannot be read: {error}") from error
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if last_offset >= start_offset:
                offset_map.mark_covered(last_offset)
        return True


class _GroupWriter:
    """Writes each group of segments as one new segment, in the order of the log."""

    def __init__(
        self, disk: "Disk", job: CleanJob, offset_map: OffsetMap, aborted: list[AbortedTransaction], throttle: Throttle
    ) -> None:
        self._disk = disk
        self._job = job
        self._throttle = throttle
        self._aborted_with_markers: list[AbortedTransaction] = []
        self._filter = BatchFilter(
            offset_map,
            Transactions(aborted, self._aborted_with_markers.append),
            producers=job.producers,
            end_offset=job.end_offset,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
        )

    def write(self, group: list[SegmentSizes]) -> GroupReport:
        """Write the group as one segment, durably, under its `.cleaned` name. Raises CorruptLog, OSError."""
        segment = self._new_segment(group[0].base_offset)
        records_before = records_after = 0
        out = bytearray()
        for source in group:
            for path, position, batch, fields in _checked_batches(
                self._disk, self._job.directory, source.base_offset, source.size
            ):
                self._throttle.count(len(batch))
                try:
                    filtered = self._filter.apply(batch, fields)
                except ValueError as error:
                    raise CorruptLog(path, position, f"the batch cannot be read: {error}") from error
                records_before += filtered.records_before
                records_after += filtered.records_after
                if filtered.batch is not None:
                    header = HEADER.unpack_from(filtered.batch)
                    segment.note_batch(segment.size + len(out), header, latest_timestamp_of(filtered.batch, header))
                    out += filtered.batch
                    if len(out) >= self._job.limits.write_bytes:
                        self._write_out(segment, out)
        self._write_out(segment, out)
        self._finish(segment)
        # The age of records without timestamps is measured from the last change of their file. So the new file gets
        # the latest change time of its source files.
        changed_ms = max(self._disk.modified_ms(self._source_path(source.base_offset)) for source in group)
        self._disk.set_modified_ms(segment.path, changed_ms)
        return GroupReport(
            [source.base_offset for source in group],
            segment.size,
            segment.transactions.exists,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            sum(source.size for source in group),
            records_before,
            records_after,
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
            self._throttle.count(len(out))
            out.clear()

    def _finish(self, segment: Segment) -> None:
        for aborted in self._aborted_with_markers:
            segment.transactions.append(aborted)
        self._aborted_with_markers.clear()
        segment.finish()
        segment.file.sync()
        for index in (segment.index, segment.times):
            index.sync()
        if segment.transactions.exists:
            segment.transactions.sync()
        segment.file.close()
        self._disk.sync_dir(self._job.directory)


def _checked_batches(
    disk: "Disk", directory: str, base_offset: int, size: int
) -> Iterator[tuple[str, int, memoryview, Fields]]:
    """Yield (path, position, batch, header) of each batch of a segment. Raises CorruptLog for the first batch with a
    bad header or CRC.
    """
    file = disk.open(f"{directory}/{file_name(base_offset, '.log')}")
    try:
        for position, batch, fields in batches(file, 0, size, base_offset):
            if crc32c(batch[21:]) != fields[CRC]:  # the CRC covers all bytes after its own field
                raise CorruptLog(file.path, position, f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}")
            yield file.path, position, batch, fields
    finally:
        file.close()
