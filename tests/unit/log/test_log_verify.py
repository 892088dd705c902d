"""`verify` and `dump` on our logs: intact logs pass, and each kind of damage is found at its position."""

import errno
import struct

import pytest

from log_harness import DIRECTORY, NOW_MS, LogOnDisk, make_batch
from tidelog.log.dump import dump
from tidelog.log.ownership import TidelogDirectories
from tidelog.log.verify import DAMAGE, NOTE, Finding, verify
from tidelog.wire.checksums import crc32c

BATCH_BYTES = len(make_batch(b"00"))


def written() -> LogOnDisk:
    """Two full segments of eight batches and a third, closed."""
    on = LogOnDisk(index_interval_bytes=0, segment_bytes=600)
    for number in range(20):
        on.append(
            b"%02d" % number,
            timestamps=[NOW_MS + number],
            leader_epoch=number // 8,
            producer_id=4,
            producer_epoch=0,
            base_sequence=number,
        )
    on.log.close(clean=True)
    return on


def findings(on: LogOnDisk, path: str = DIRECTORY) -> list[Finding]:
    return verify(on.disk, path).findings


def test_a_sound_log_has_no_findings_and_is_counted() -> None:
    result = verify(written().disk, "/data")
    assert (result.findings, result.damaged) == ([], False)
    assert (result.batches, result.records, result.bytes >= 20 * BATCH_BYTES) == (20, 20, True)


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (8, "states a length"),
        (16, "states magic"),
        (18, "CRC-32C"),
        (30, "CRC-32C"),
        (70, "CRC-32C"),
        (0, "states a length|base offset"),
    ],
)
def test_a_flipped_byte_of_a_batch(at: int, reason: str) -> None:
    on = written()
    on.flip(on.path(0), 3 * BATCH_BYTES + at)
    [first, *_] = findings(on)
    assert (first.path, first.position, first.severity) == (on.path(0), 3 * BATCH_BYTES, DAMAGE)
    # What follows is read again: one bad batch does not hide the next.
    on.flip(on.path(0), 6 * BATCH_BYTES + 70)
    assert (on.path(0), 6 * BATCH_BYTES) in {(f.path, f.position) for f in findings(on)}


@pytest.mark.parametrize("size", [1, 7, 8, 11, 12, 16, 17, 18, 60, 61, 100, 5000, 3 << 20])
def test_a_preallocated_end_is_no_damage(size: int) -> None:
    on = written()
    end = on.disk.size(on.path(16))
    on.disk.open(on.path(16)).pwrite(bytes(size), end)
    result = verify(on.disk, DIRECTORY)
    reason = f"{size} bytes are not written yet: zeros after the last batch"
    assert (result.findings, result.damaged) == ([Finding(on.path(16), end, NOTE, reason)], False)
    entries = list(dump(on.disk, on.path(16)))
    assert [entry["kind"] for entry in entries] == ["batch"] * 4 + ["unwritten"]
    assert (entries[-1]["position"], entries[-1]["size"]) == (end, size)


@pytest.mark.parametrize("size", [1, 11])
def test_a_preallocated_end_before_the_next_segment_is_no_damage(size: int) -> None:
    on = written()
    end = on.disk.size(on.path(0))
    on.disk.open(on.path(0)).pwrite(bytes(size), end)
    reason = f"{size} bytes are not written yet: zeros after the last batch"
    assert verify(on.disk, DIRECTORY).findings == [Finding(on.path(0), end, NOTE, reason)]
    # If a record is missing before the next segment, the zeros may be the beginning of its batch.
    on.disk.open(on.path(0)).truncate(end - BATCH_BYTES + size)
    on.disk.open(on.path(0)).pwrite(bytes(size), end - BATCH_BYTES)
    assert (on.path(0), end - BATCH_BYTES, DAMAGE) in {f[:3] for f in findings(on)}


@pytest.mark.parametrize("size", [1, 7, 11, 12, 60])
def test_a_short_end_that_is_not_all_zeros_is_damage(size: int) -> None:
    on = written()
    end = on.disk.size(on.path(16))
    on.disk.open(on.path(16)).pwrite(bytes(size - 1) + b"\1", end)
    assert [(f.position, f.severity) for f in findings(on)] == [(end, DAMAGE)]


def test_zeros_among_batches_or_before_other_bytes_are_damage() -> None:
    on = written()
    end = on.disk.size(on.path(16))
    on.disk.open(on.path(16)).pwrite(bytes(5000) + b"\1", end)
    assert [(f.position, f.severity) for f in findings(on)] == [(end, DAMAGE)]
    assert [entry["kind"] for entry in dump(on.disk, on.path(16))][-1] == "damage"
    on = written()
    on.disk.open(on.path(0)).pwrite(bytes(BATCH_BYTES), 3 * BATCH_BYTES)
    assert (on.path(0), 3 * BATCH_BYTES, DAMAGE) in {f[:3] for f in findings(on)}


def test_a_record_that_cannot_be_decoded_under_a_good_checksum() -> None:
    on = written()
    file = on.disk.open(on.path(0))
    file.pwrite(b"\xff\xff", 61)
    batch = file.pread(BATCH_BYTES, 0)
    file.pwrite(struct.pack(">I", crc32c(batch[21:])), 17)
    [found] = findings(on)
    assert (found.position, found.severity) == (0, DAMAGE)
    assert "cannot be decoded" in found.reason
    assert verify(on.disk, DIRECTORY, records=False).findings == []


def test_a_torn_end_and_a_gap_before_the_next_segment() -> None:
    on = written()
    on.disk.open(on.path(0)).truncate(7 * BATCH_BYTES + 5)
    found = findings(on, DIRECTORY)
    assert (on.path(0), 7 * BATCH_BYTES, DAMAGE) in {f[:3] for f in found}
    assert (on.path(8), 0, NOTE) in {f[:3] for f in found}
    assert (on.path(0, ".timeindex"), DAMAGE) in {(f.path, f.severity) for f in found}


def with_checkpoints(on: LogOnDisk, recovery_point: int, log_start_offset: int) -> None:
    on.disk.write_atomic("/data/recovery-point-offset-checkpoint", b"0\n1\norders 0 %d\n" % recovery_point)
    on.disk.write_atomic("/data/log-start-offset-checkpoint", b"0\n1\norders 0 %d\n" % log_start_offset)


@pytest.mark.parametrize("path", ["/data", DIRECTORY])
def test_a_log_that_was_cut_between_two_batches(path: str) -> None:
    on = written()
    with_checkpoints(on, 20, 0)
    assert findings(on, path) == []
    for suffix in (".log", ".index", ".timeindex"):
        on.disk.remove(on.path(16, suffix))
    [found] = findings(on, path)
    assert (found.path, found.position, found.severity) == (on.path(8), 8 * BATCH_BYTES, DAMAGE)
    assert (
        "ends at offset 16, but recovery-point-offset-checkpoint says that every offset below 20 was on the disk"
        in found.reason
    )
    with_checkpoints(on, 16, 0)
    assert findings(on, path) == []
    on.disk.write_atomic("/data/recovery-point-offset-checkpoint", b"what?")
    assert findings(on, DIRECTORY) == []


def test_a_log_without_any_segment() -> None:
    on = written()
    with_checkpoints(on, 20, 0)
    for name in on.files():
        on.disk.remove(f"{DIRECTORY}/{name}")
    assert [f[:3] for f in findings(on)] == [(DIRECTORY, 0, DAMAGE)]
    with_checkpoints(on, 20, 20)
    assert findings(on) == []


@pytest.mark.parametrize(("store", "severity"), [(True, DAMAGE), (False, NOTE)])
def test_a_first_segment_that_is_missing(store: bool, severity: str) -> None:
    """Kafka's checkpoint may lag behind; Tidelog's is written first."""
    on = written()
    if store:
        on.disk.write_atomic("/data/metadata.sqlite", b"")
    for suffix in (".log", ".index", ".timeindex"):
        on.disk.remove(on.path(0, suffix))
    with_checkpoints(on, 20, 8)
    assert findings(on) == []
    with_checkpoints(on, 20, 3)
    [found] = findings(on)
    assert (found.path, found.position, found.severity) == (on.path(8), 0, severity)
    assert "begins at offset 8, but log-start-offset-checkpoint says 3" in found.reason


@pytest.mark.parametrize(
    ("paths", "own_node", "severity"),
    [
        (["/data", "/first"], "1", DAMAGE),
        (["/data", "/first/orders-1"], "1", DAMAGE),
        (["/data"], "1", NOTE),
        (["/data", "/first"], "2", NOTE),
        (["/data", "/first"], None, NOTE),
    ],
)
def test_a_data_directory_without_the_metadata_store_belongs_to_the_broker_with_the_same_ids(
    paths: list[str], own_node: str | None, severity: str
) -> None:
    on = written()
    for path, node in (("/first", "1"), ("/data", own_node)):
        on.disk.make_dirs(path)
        if node is not None:
            on.disk.write_atomic(f"{path}/meta.properties", f"version=1\ncluster.id=c\nnode.id={node}\n".encode())
    on.disk.write_atomic("/first/metadata.sqlite", b"")
    for suffix in (".log", ".index", ".timeindex"):
        on.disk.remove(on.path(0, suffix))
    with_checkpoints(on, 20, 3)
    directories = TidelogDirectories(on.disk, paths)
    assert [f.severity for f in verify(on.disk, DIRECTORY, tidelog_directories=directories).findings] == [severity]


def test_a_directory_with_damaged_meta_properties_is_not_known_to_be_tidelogs() -> None:
    on = written()
    on.disk.write_atomic("/data/meta.properties", b"\\u12")
    assert "/data" not in TidelogDirectories(on.disk, ["/data"])


def test_segments_that_overlap() -> None:
    on = written()
    on.disk.rename(on.path(8), on.path(7))
    assert (on.path(7), 0, DAMAGE) in {f[:3] for f in findings(on)}


def test_index_entries_that_the_log_does_not_bear_out() -> None:
    on = written()
    on.disk.open(on.path(8, ".index")).pwrite(struct.pack(">ii", 2, 2 * BATCH_BYTES + 1), 8)
    on.disk.open(on.path(8, ".timeindex")).pwrite(struct.pack(">qi", NOW_MS + 10, 1), 12)
    assert [f[:3] for f in findings(on)] == [
        (on.path(8, ".index"), 8, DAMAGE),
        (on.path(8, ".timeindex"), 12, DAMAGE),
    ]


def of_five_records_each() -> LogOnDisk:
    """Six batches, each of five records of one millisecond."""
    on = LogOnDisk(index_interval_bytes=0)
    for number in range(6):
        on.append(*[b"%02d" % number] * 5, timestamps=[NOW_MS + number] * 5, leader_epoch=0)
    on.log.close(clean=True)
    return on


FIVE_BYTES = len(make_batch(*[b"00"] * 5))


def test_times_of_the_first_record_as_kafka_wrote_them_up_to_3_7() -> None:
    on = of_five_records_each()
    times = [(NOW_MS + number, 5 * number) for number in range(1, 6)]
    on.disk.write_atomic(on.path(0, ".timeindex"), b"".join(struct.pack(">qi", *row) for row in times))
    assert findings(on) == []
    for wrong in ((NOW_MS + 5, 24), (NOW_MS + 4, 25), (NOW_MS + 5, 30)):
        on.disk.write_atomic(on.path(0, ".timeindex"), struct.pack(">qi", *wrong))
        assert [f[:3] for f in findings(on)] == [(on.path(0, ".timeindex"), 0, DAMAGE)]


def test_positions_of_an_append_of_several_batches_as_kafka_wrote_them_before_4_0() -> None:
    on = of_five_records_each()
    of_two = [(19, 2 * FIVE_BYTES), (29, 4 * FIVE_BYTES)]
    on.disk.write_atomic(on.path(0, ".index"), b"".join(struct.pack(">ii", *row) for row in of_two))
    assert findings(on) == []
    for row, wrong in enumerate([(9, 2 * FIVE_BYTES), (30, 4 * FIVE_BYTES)]):
        rows = [*of_two[:row], wrong, *of_two[row + 1 :]]
        on.disk.write_atomic(on.path(0, ".index"), b"".join(struct.pack(">ii", *row) for row in rows))
        assert [f[:3] for f in findings(on)] == [(on.path(0, ".index"), 8 * row, DAMAGE)]
    on.disk.write_atomic(on.path(0, ".index"), struct.pack(">iiii", 24, 2 * FIVE_BYTES, 29, 4 * FIVE_BYTES))
    assert [f[:3] for f in findings(on)] == [(on.path(0, ".index"), 0, DAMAGE)]


def test_indexes_out_of_order_and_leftover_files() -> None:
    on = written()
    on.disk.write_atomic(on.path(0, ".index"), struct.pack(">iiii", 5, 50, 3, 60))
    on.disk.write_atomic(on.path(99, ".timeindex"), b"")
    on.disk.write_atomic(on.path(5, ".log.deleted"), b"")
    assert [f[:3] for f in findings(on)] == [
        (on.path(0, ".index"), 0, DAMAGE),
        (on.path(5, ".log.deleted"), 0, NOTE),
        (on.path(99, ".timeindex"), 0, NOTE),
    ]


def test_leader_epochs_that_go_back_or_that_the_checkpoint_does_not_know() -> None:
    on = written()
    on.disk.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n2\n0 0\n2 16\n")
    [found] = findings(on)
    assert f"a batch at offset 8 in {on.path(8)} has epoch 1" in found.reason
    on.disk.open(on.path(8)).pwrite(struct.pack(">i", 9), 12)
    assert any("leader epoch 1 follows epoch 9" in f.reason for f in findings(on))


def test_a_leader_epoch_that_no_checksum_covers_is_known_below_the_recovery_point() -> None:
    on = written()
    on.disk.open(on.path(16)).pwrite(struct.pack(">i", 9), 3 * BATCH_BYTES + 12)
    with_checkpoints(on, 19, 0)
    [found] = findings(on)
    assert (found.severity, found.reason) == (NOTE, "epoch 9 from offset 19 is not in the checkpoint yet")
    with_checkpoints(on, 20, 0)
    [found] = findings(on)
    assert (found.path, found.severity) == (on.path(16), DAMAGE)
    assert found.reason == f"epoch 9 from offset 19 is not in {DIRECTORY}/leader-epoch-checkpoint"


@pytest.mark.parametrize(
    "name",
    ["recovery-point-offset-checkpoint", "meta.properties", "orders-0/partition.metadata", "orders-0/00.snapshot"],
)
def test_small_files_that_make_no_sense(name: str) -> None:
    on = written()
    path = f"/data/{name}".replace("/00.", f"/{20:020d}.")
    on.disk.write_atomic(path, b"0\n\xff what?\n")
    [found] = findings(on, "/data")
    assert (found.path, found.severity) == (path, DAMAGE)
    assert findings(on, path) == [found]


def test_one_file_alone() -> None:
    on = written()
    assert verify(on.disk, on.path(0)).batches == 8
    assert verify(on.disk, on.path(0, ".index")).batches == 8  # against its log
    with pytest.raises(FileNotFoundError):
        verify(on.disk, "/data/nothing-0/x")


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint", "orders-0/leader-epoch-checkpoint",
        "orders-0/00000000000000000008.log", "orders-0/00000000000000000008.index",
        "orders-0/00000000000000000008.timeindex", "orders-0/00000000000000000016.log",
        "orders-0/00000000000000000020.snapshot",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_hides_no_other_damage(name: str) -> None:
    on = written()
    with_checkpoints(on, 20, 0)
    on.flip(on.path(0), 3 * BATCH_BYTES + 70)
    path = f"/data/{name}"
    for operation in ("read", "size"):
        on.disk.fail(operation, path, errno.EIO, times=99)
    found = findings(on, "/data")
    assert {(f.path, f.position, f.severity) for f in found} == {
        (path, 0, DAMAGE),
        (on.path(0), 3 * BATCH_BYTES, DAMAGE),
    }
    assert [f.reason for f in found if f.path == path] == ["it cannot be read: Input/output error (planted)"]
    damage = [entry for entry in dump(on.disk, "/data") if entry["kind"] == "damage"]
    assert [(entry["file"], entry["reason"]) for entry in damage] == [(path, found[-1].reason)]


def test_a_directory_that_cannot_be_listed_hides_no_other_damage() -> None:
    on = written()
    on.disk.write_atomic("/data/meta.properties", b"\xff what?")
    on.disk.fail("list", DIRECTORY, errno.EACCES, times=99)
    assert {f[:3] for f in findings(on, "/data")} == {(DIRECTORY, 0, DAMAGE), ("/data/meta.properties", 0, DAMAGE)}
    assert DIRECTORY in {entry["file"] for entry in dump(on.disk, "/data") if entry["kind"] == "damage"}


def test_files_of_which_only_the_size_counts_are_not_read() -> None:
    on = written()
    for path in (on.path(0, ".log.deleted"), f"{DIRECTORY}/notes"):
        on.disk.write_atomic(path, b"12345")
        on.disk.fail("read", path, errno.EIO, times=99)
        assert [entry["size"] for entry in dump(on.disk, path)] == [5]
        assert verify(on.disk, path).bytes == 5
    assert [f.severity for f in findings(on)] == [NOTE]


def test_dump_of_each_kind_of_file() -> None:
    on = written()
    first = next(dump(on.disk, on.path(8)))
    assert first == {
        "file": on.path(8), "kind": "batch", "position": 0, "size": BATCH_BYTES, "base_offset": 8, "last_offset": 8,
        "count": 1, "leader_epoch": 1, "magic": 2, "crc": first["crc"], "crc_ok": True, "codec": "none",
        "timestamp_type": "CreateTime", "base_timestamp": NOW_MS + 8, "max_timestamp": NOW_MS + 8, "producer_id": 4,
        "producer_epoch": 0, "base_sequence": 8, "transactional": False, "control": False,
    }  # fmt: skip
    records = [entry for entry in dump(on.disk, on.path(16), records=True) if entry["kind"] == "record"]
    assert [(entry["offset"], entry["key"], entry["value"]) for entry in records] == [
        (number, b"k", b"%02d" % number) for number in range(16, 20)
    ]
    assert [(e["offset"], e["batch_position"]) for e in dump(on.disk, on.path(16, ".index"))] == [
        (16 + n, n * BATCH_BYTES) for n in range(1, 4)
    ]
    assert [(e["timestamp"], e["offset"]) for e in dump(on.disk, on.path(16, ".timeindex"))] == [
        (NOW_MS + 16 + n, 16 + n) for n in range(1, 4)
    ]
    [producer] = dump(on.disk, on.path(20, ".snapshot"))
    assert (producer["producer_id"], producer["last_sequence"], producer["last_offset"]) == (4, 19, 19)
    epochs = [(e["leader_epoch"], e["start_offset"]) for e in dump(on.disk, f"{DIRECTORY}/leader-epoch-checkpoint")]
    assert epochs == [(0, 0), (1, 8), (2, 16)]


def test_dump_ends_a_damaged_file_with_where_and_why() -> None:
    on = written()
    on.flip(on.path(0), 3 * BATCH_BYTES + 8)
    entries = list(dump(on.disk, on.path(0)))
    assert [entry["kind"] for entry in entries] == ["batch", "batch", "batch", "damage"]
    assert (entries[-1]["file"], entries[-1]["position"]) == (on.path(0), 3 * BATCH_BYTES)


@pytest.mark.parametrize(
    ("cleaned", "start", "severity"),
    [([], 0, DAMAGE), (["orders 0 0"], 0, NOTE), ([], 16, NOTE), (["other 0 0"], 0, DAMAGE)],
)
def test_a_missing_segment_is_damage_unless_compaction_or_deletion_may_have_taken_it(
    cleaned: list[str], start: int, severity: str
) -> None:
    on = written()
    for name in on.files():
        if name.startswith(f"{8:020d}"):
            on.disk.remove(f"{DIRECTORY}/{name}")
    on.disk.write_atomic("/data/metadata.sqlite", b"")
    for checkpoint, lines in (("cleaner", cleaned), ("log-start", [f"orders 0 {start}"])):
        text = "\n".join(["0", str(len(lines)), *lines, ""])
        on.disk.write_atomic(f"/data/{checkpoint}-offset-checkpoint", text.encode())
    hole = "offsets 8 to 15 are in no segment"
    assert [f.severity for f in findings(on, "/data") if f.reason == hole] == [severity]


def test_a_data_directory_may_have_the_name_of_a_partition() -> None:
    on = written()
    on.disk.make_dirs("/disk-1/t-0")
    on.disk.write_atomic("/disk-1/t-0/00000000000000000000.log", on.disk.read(on.path(0)))
    result = verify(on.disk, "/disk-1")
    assert result.batches > 0
