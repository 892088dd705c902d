"""Segments before and after a pass of Kafka's cleaner: our pass has the same result."""

import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from log_harness import NOW_MS, LogOnDisk
from log_harness.compaction import compact, job_of, reports_of, stored
from tidelog.log.cleaner.job import GroupReport, SuccessReport
from tidelog.log.config import LogConfig
from tidelog.log.dump import dump
from tidelog.log.partition_log import PartitionLog
from tidelog.log.verify import NOTE, verify
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import DELETE_HORIZON_BIT, Codec
from tidelog.wire.records import batches_in, decode_records

GOLDEN = Path(__file__).parents[3] / "golden/compaction/kafka-4.3.1.zip"
DIRECTORY = "/data/t-0"
PASSES = {"first": (None, 187), "second": (187, 353), "third": (353, 490)}
"""Where each begins and ends."""
DELETE_RETENTION_MS = 1000


def kafkas(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(GOLDEN) as files:
        return {
            entry.partition("/")[2]: files.read(entry) for entry in files.namelist() if entry.startswith(f"{name}/")
        }


def opened(name: str, clean_offset: int | None) -> LogOnDisk:
    on = LogOnDisk.__new__(LogOnDisk)
    on.disk = SimDisk(rng=random.Random(1))
    on.disk.make_dirs(DIRECTORY)
    for file, content in kafkas(name).items():
        on.disk.write_atomic(f"{DIRECTORY}/{file}", content)
    on.config = LogConfig(
        segment_bytes=3000,
        cleanup_policy="compact",
        delete_retention_ms=DELETE_RETENTION_MS,
        index_interval_bytes=500,
        file_delete_delay_ms=0,
    )
    on.now_ms = NOW_MS + 10 * 365 * 86_400_000  # after every date that Kafka gave
    on.log = PartitionLog.open(
        on.disk,
        DIRECTORY,
        on.config,
        clean=False,
        recovery_point=0,
        log_start_offset=0,
        now_ms=on.now_ms,
        clean_offset=clean_offset,
    )
    return on


def batches_of(data: bytes) -> list[tuple[Any, ...]]:
    """All that is said by each batch; the time of the pass, and how well a library compresses, are not compared."""
    found: list[tuple[Any, ...]] = []
    for header in batches_in(data):
        assert header.crc_ok()
        dated = header.attributes & DELETE_HORIZON_BIT
        exact = not dated and header.codec in (Codec.NONE, Codec.SNAPPY, Codec.LZ4)
        found.append(
            (
                header.base_offset,
                header.last_offset,
                header.leader_epoch,
                header.attributes,
                header.count,
                header.max_timestamp,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                None if dated else header.base_timestamp,
                bytes(data[header.position : header.position + header.size]) if exact else None,
                decode_records(data, header.position),
            )
        )
    return found


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_makes_what_kafka_makes(name: str) -> None:
    first_dirty, clean_offset = PASSES[name]
    on = opened(f"{name}-before", first_dirty)
    after = kafkas(f"{name}-after")
    *groups, end = reports_of(on.disk, job_of(on.log, on.now_ms, clean_offset=first_dirty))
    assert isinstance(end, SuccessReport)
    assert end.end_offset == clean_offset
    bases = {f"{group.base_offsets[0]:020d}" for group in groups if isinstance(group, GroupReport)}
    untouched = f"{on.log.segments.active.base_offset:020d}"
    assert bases | {untouched} == {file.partition(".")[0] for file in after if file.endswith(".log")}
    for base in bases:
        ours = on.disk.read(f"{DIRECTORY}/{base}.log.cleaned")
        assert batches_of(ours) == batches_of(after[f"{base}.log"])
        assert on.disk.read(f"{DIRECTORY}/{base}.timeindex.cleaned") == after[f"{base}.timeindex"]
        transactions = f"{DIRECTORY}/{base}.txnindex.cleaned"
        assert on.disk.exists(transactions) == (f"{base}.txnindex" in after)
        if f"{base}.txnindex" in after:
            assert on.disk.read(transactions) == after[f"{base}.txnindex"]


@pytest.mark.parametrize("name", PASSES)
def test_what_kafka_cleaned_is_read_and_cleaned_on(name: str) -> None:
    first_dirty, clean_offset = PASSES[name]
    before = opened(f"{name}-before", first_dirty)
    on = opened(f"{name}-after", clean_offset)
    assert [finding for finding in verify(on.disk, DIRECTORY).findings if finding.severity != NOTE] == []
    assert all(entry["kind"] for entry in dump(on.disk, DIRECTORY, records=True))
    table = table_of(on.log)
    assert on.log.log_end_offset == before.log.log_end_offset
    assert {i: e.next_sequence for i, e in on.log.producers.entries.items()} == {
        i: e.next_sequence for i, e in before.log.producers.entries.items()
    }
    on.log.roll(on.now_ms)
    on.flush()
    compact(on)
    assert table_of(on.log) == table
    assert len({record.key for record in stored(on.log)}) == len(list(stored(on.log)))


def table_of(log: PartitionLog) -> dict[bytes | None, bytes]:
    """The last value of each key, for a read_committed reader."""
    aborted = log.aborted_transactions(0, log.log_end_offset)
    table: dict[bytes | None, bytes] = {}
    for segment in log.segments.items:
        data = segment.file.pread(segment.size, 0)
        for header in batches_in(data):
            gone = header.is_control or any(
                header.producer_id == entry.producer_id
                and header.is_transactional
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            for record in [] if gone else decode_records(data, header.position):
                if record.value is None:
                    table.pop(record.key, None)
                else:
                    table[record.key] = record.value
    return table
