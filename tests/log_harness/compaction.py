"""Compaction of a log on a simulated disk, without a broker."""

from collections.abc import Iterator

from log_harness import LogOnDisk
from tidelog.log.batch_scan import HEADER
from tidelog.log.cleaner.choice import cleanable_part
from tidelog.log.cleaner.job import (
    CleanerLimits,
    CleanJob,
    GroupReport,
    Report,
    SegmentFacts,
    SuccessReport,
    decode_report,
)
from tidelog.log.cleaner.records import decompressed_records, raw_records, rebuild_batch
from tidelog.log.cleaner.swap import Swap
from tidelog.log.cleaner.work import clean
from tidelog.log.partition_log import PartitionLog
from tidelog.runtime.interfaces import ChildResources, Disk
from tidelog.wire.batches import BatchHeader
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

PLENTY = CleanerLimits(map_bytes=1 << 24, load_factor=0.9, bytes_per_s=1e308, write_bytes=1 << 16)


def job_of(
    log: PartitionLog, now_ms: int, *, clean_offset: int | None = None, limits: CleanerLimits = PLENTY
) -> CleanJob:
    """Return the job that a broker would start now."""
    found = cleanable_part(log, clean_offset, log.log_end_offset, now_ms)
    items = log.segments.items
    return CleanJob(
        log.directory,
        [SegmentFacts(s.base_offset, s.size) for s in items if s.base_offset < found.end_offset],
        found.first_dirty_offset,
        found.end_offset,
        [s.base_offset for s in items if s.transactions.exists],
        {
            producer_id: (entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for producer_id, entry in log.producers.entries.items()
        },
        now_ms,
        log.config.delete_retention_ms,
        log.config.segment_bytes,
        log.config.segment_index_bytes,
        log.config.index_interval_bytes,
        limits,
    )


def reports_of(disk: Disk, job: CleanJob) -> list[Report]:
    reports: list[bytes] = []
    clean(ChildResources(disk, lambda: 0.0, lambda _seconds: None), job.encode(), reports.append)
    return [decode_report(report) for report in reports]


def swap_in(on: LogOnDisk, group: GroupReport) -> None:
    swap = Swap(on.disk, on.log, group)
    assert swap.begin()
    swap.announce()
    swap.install()
    swap.finish()
    swap.end(on.now_ms)


def append_expired_tombstone(on: LogOnDisk, key: bytes) -> None:
    """Append a tombstone that the next pass removes: this replica has fetched it so late that the leader has already
    given it a horizon, which has passed.
    """
    batch = encode_batch([Record(key, None, on.now_ms)])
    BatchHeader(batch).assign(base_offset=on.log.log_end_offset, leader_epoch=0)
    fields = HEADER.unpack_from(batch)
    data = decompressed_records(memoryview(batch), fields)
    dated = rebuild_batch(fields, data, list(raw_records(data, 1, 0)), on.now_ms - 1)
    on.log.append_as_follower(memoryview(dated))


def compact(
    on: LogOnDisk, *, clean_offset: int | None = None, limits: CleanerLimits = PLENTY
) -> tuple[SuccessReport, list[GroupReport]]:
    """Run one pass, and install its result."""
    *groups, end = reports_of(on.disk, job_of(on.log, on.now_ms, clean_offset=clean_offset, limits=limits))
    assert isinstance(end, SuccessReport), end
    written = [group for group in groups if isinstance(group, GroupReport)]
    for group in written:
        swap_in(on, group)
    return end, written


def stored(log: PartitionLog) -> Iterator[Record]:
    """Yield every record of producers from the log's start offset on, as a consumer reads them."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, log.log_end_offset)
        if not part.size:
            return
        assert part.file is not None
        data = part.file.pread(part.size, part.position)
        for header in batches_in(data):
            assert header.crc_ok()
            assert header.next_offset > offset
            for record in decode_records(data, header.position):
                if record.offset >= offset and not header.is_control:
                    yield record
            offset = header.next_offset
