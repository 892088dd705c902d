"""Directories that Kafka wrote (tests/golden/segments) are read, continued and verified; damage is found."""

import random
from pathlib import Path

import pytest

from log_harness import NOW_MS, make_batch, read_records
from tidelog.log.batch_scan import BASE_OFFSET, LAST_OFFSET_DELTA, MAX_TIMESTAMP, headers
from tidelog.log.checkpoints import parse_offsets, read_partition_metadata
from tidelog.log.config import LogConfig
from tidelog.log.dump import dump
from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.log.times import find_timestamp
from tidelog.log.verify import DAMAGE, verify
from tidelog.model.ids import TopicPartition
from tidelog.model.steps import run_all
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import BatchHeader

GOLDEN = Path(__file__).parents[2] / "golden" / "segments"
BROKERS = ["kafka-3.1.0", "kafka-3.6.1", "kafka-4.3.1"]
PARTITIONS = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*-*/") if path.is_dir())
RECORDS = {
    "kafka-3.1.0/__consumer_offsets-0": 2,
    "kafka-3.1.0/__consumer_offsets-2": 2,
    "kafka-3.1.0/__consumer_offsets-31": 2,
    "kafka-3.1.0/__consumer_offsets-34": 2,
    "kafka-3.1.0/cities-0": 11,
    "kafka-3.6.1/__consumer_offsets-15": 372,
    "kafka-3.6.1/__consumer_offsets-38": 771,
    "kafka-3.6.1/__consumer_offsets-40": 3,
    "kafka-3.6.1/__consumer_offsets-43": 37,
    "kafka-3.6.1/belajarkafka-0": 65,
    "kafka-4.3.1/codecs-0": 100,
    "kafka-4.3.1/empty-0": 0,
    "kafka-4.3.1/rolled-0": 16,
    "kafka-4.3.1/transactions-0": 13,
}


def copied(name: str) -> SimDisk:
    """A simulated disk that holds a golden file or directory as /data/..."""
    disk = SimDisk(rng=random.Random(1))
    source = GOLDEN / name
    for path in sorted([source, *source.rglob("*")]):
        target = f"/data/{path.relative_to(GOLDEN)}"
        if path.is_dir():
            disk.make_dirs(target)
        else:
            disk.write_atomic(target, path.read_bytes())
    return disk


def opened(disk: SimDisk, name: str, *, clean: bool | None = None) -> PartitionLog:
    broker, _, directory = name.partition("/")
    topic, _, index = directory.rpartition("-")
    path = f"/data/{broker}/recovery-point-offset-checkpoint"
    points = parse_offsets((GOLDEN / path.removeprefix("/data/")).read_bytes(), path)
    return PartitionLog.open(
        disk,
        f"/data/{name}",
        LogConfig(),
        clean=broker != "kafka-3.1.0" if clean is None else clean,
        recovery_point=points.get(TopicPartition(topic, int(index)), 0),
        log_start_offset=0,
        now_ms=NOW_MS,
    )


def test_the_set_is_complete() -> None:
    assert list(RECORDS) == PARTITIONS


@pytest.mark.parametrize(
    ("name", "clean"),
    [(name, clean) for name in PARTITIONS for clean in (True, False) if not (clean and name.startswith("kafka-3.1.0"))],
)
def test_every_record_is_readable_and_appends_continue(name: str, clean: bool) -> None:
    disk = copied(name)
    log = opened(disk, name, clean=clean)
    assert log.recovery.truncated_bytes == 0
    records = read_records(log, bytes_max=2000)
    assert len(records) == RECORDS[name]
    end = log.log_end_offset
    latest = log.epochs.latest
    batch = make_batch(b"continued")
    appended = log.append(memoryview(batch), BatchHeader(batch), leader_epoch=latest + 1, now_ms=NOW_MS)
    assert appended.base_offset == end
    log.close(clean=True)
    log = opened(disk, name, clean=True)
    assert read_records(log) == [*records, (end, b"continued")]
    assert log.epochs.latest == latest + 1
    assert verify(disk, f"/data/{name}").findings == []


@pytest.mark.parametrize("name", [name for name in PARTITIONS if RECORDS[name]])
def test_look_ups_agree_with_a_scan_from_the_start(name: str) -> None:
    disk = copied(name)
    log = opened(disk, name)
    batches = []
    for file in [disk.open(f"/data/{name}/{n}") for n in disk.list(f"/data/{name}") if n.endswith(".log")]:
        for position, size, fields in headers(file, 0, file.size(), 0):
            batches.append(fields)
            for offset in range(fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1):
                part = log.read(offset, 1, log.log_end_offset)
                assert part.file is not None
                assert (part.file.path, part.position, part.size) == (file.path, position, size)
    for fields in batches:
        found_time = run_all(find_timestamp(log, fields[MAX_TIMESTAMP]))
        first = next(f for f in batches if f[MAX_TIMESTAMP] >= fields[MAX_TIMESTAMP])
        assert found_time is not None
        assert first[BASE_OFFSET] <= found_time.offset <= first[BASE_OFFSET] + first[LAST_OFFSET_DELTA]


@pytest.mark.parametrize("broker", BROKERS)
def test_verify_finds_nothing_in_what_kafka_wrote(broker: str) -> None:
    result = verify(copied(broker), f"/data/{broker}")
    assert result.findings == []
    assert result.records == sum(count for name, count in RECORDS.items() if name.startswith(broker))


@pytest.mark.parametrize("broker", BROKERS)
def test_dump_shows_every_entry(broker: str) -> None:
    entries = list(dump(copied(broker), f"/data/{broker}", records=True))
    kinds = [entry["kind"] for entry in entries]
    assert kinds.count("record") == sum(count for name, count in RECORDS.items() if name.startswith(broker))
    assert "damage" not in kinds
    assert all({"file", "kind", "position"} <= entry.keys() for entry in entries)


def test_transactions_that_kafka_left() -> None:
    name = "kafka-4.3.1/transactions-0"
    for clean in (True, False):
        disk = copied(name)
        log = opened(disk, name, clean=clean)
        aborted = log.aborted_transactions(0, log.log_end_offset)
        assert [(a.first_offset, a.last_offset, a.last_stable_offset) for a in aborted] == [(3, 9, 10), (6, 8, 3)]
        assert log.last_stable_offset == 10  # one is open for ever
        markers = [entry for entry in dump(disk, f"/data/{name}", records=True) if "marker" in entry]
        assert [(e["marker"], e["offset"]) for e in markers] == [("commit", 5), ("abort", 8), ("abort", 9)]


def test_idempotent_producers_go_on_where_kafka_left_them() -> None:
    name = "kafka-4.3.1/rolled-0"
    log = opened(copied(name), name)
    producer_id, entry = list(log.producers.entries.items())[-1]
    newest = entry.batches[-1]
    batch = make_batch(b"", producer_id=producer_id, producer_epoch=entry.epoch, base_sequence=newest.first_sequence)
    end_offset = log.log_end_offset
    again = log.append(memoryview(batch), BatchHeader(batch), leader_epoch=5, now_ms=NOW_MS)
    assert (again.base_offset, log.log_end_offset) == (newest.base_offset, end_offset)


def test_topic_ids_are_read() -> None:
    topic_id = read_partition_metadata(copied("kafka-3.6.1/belajarkafka-0"), "/data/kafka-3.6.1/belajarkafka-0")
    assert topic_id == bytes.fromhex("bb8c429ccf9d45f89dde0b578dfc32c5")


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_byte_is_found_with_its_file(seed: int) -> None:
    rng = random.Random(seed)
    name = "kafka-4.3.1/rolled-0" if seed % 2 else "kafka-3.6.1/__consumer_offsets-15"
    disk = copied(name)
    files = [f for f in disk.list(f"/data/{name}") if f.endswith((".log", ".index", ".timeindex", ".snapshot"))]
    path = f"/data/{name}/{rng.choice([f for f in files if disk.size(f'/data/{name}/{f}')])}"
    file = disk.open(path)
    position = rng.randrange(file.size())
    if path.endswith(".index"):
        position |= (
            4  # its position: its offset may be of any batch before the next entry's, and leads there all the same
        )
    file.pwrite(bytes([file.pread(1, position)[0] ^ (1 << rng.randrange(8))]), position)
    findings = [finding for finding in verify(disk, f"/data/{name}").findings if finding.severity == DAMAGE]
    # The leader epoch of a batch lies outside its checksum: a higher one is contradicted by the batch after it.
    assert findings
    assert path in {finding.path for finding in findings} or path.endswith(".log")


def test_damage_below_the_recovery_point_takes_the_partition_offline() -> None:
    name = "kafka-3.6.1/__consumer_offsets-38"
    disk = copied(name)
    path = f"/data/{name}/{0:020d}.log"
    file = disk.open(path)
    file.pwrite(b"\xff\xff", file.size() - 100)
    log: PartitionLog | None = None
    with pytest.raises(CorruptLog) as found:
        log = opened(disk, name, clean=False)
        read_records(log)
    assert log is None
    assert found.value.path == path
