"""Opening a log after a kill, a power cut or damage: what is scanned, cut and rebuilt, and what takes the log
offline.
"""

import errno
import logging
import struct
import zlib

import pytest

from log_harness import DIRECTORY, NOW_MS, LogOnDisk, make_batch
from tidelog.log.errors import CorruptLog
from tidelog.log.reader import TimestampOffset
from tidelog.log.times import find_timestamp
from tidelog.model.steps import run_all
from tidelog.wire.batches import BatchHeader

BATCH_BYTES = len(make_batch(b"00"))


def filled(count: int = 20, segment_bytes: int = 1 << 30, index_interval_bytes: int = 0) -> LogOnDisk:
    """`count` batches of one record and one size, an index entry for nearly each; 600 bytes hold eight."""
    on = LogOnDisk(index_interval_bytes=index_interval_bytes, segment_bytes=segment_bytes)
    for number in range(count):
        on.append(b"%02d" % number, timestamps=[NOW_MS + number], leader_epoch=number // 8)
    return on


def expected(count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%02d" % number) for number in range(count)]


def cut_file(on: LogOnDisk, path: str, size: int) -> None:
    file = on.disk.open(path)
    file.truncate(size)
    file.sync()


def extend_file(on: LogOnDisk, path: str, data: bytes) -> None:
    file = on.disk.open(path)
    file.pwrite(data, file.size())
    file.sync()


def test_a_killed_log_is_whole_and_everything_derived_is_as_before() -> None:
    on = filled(segment_bytes=600)
    fields = {"producer_id": 6, "producer_epoch": 1}
    on.append(b"p", base_sequence=0, leader_epoch=9, **fields)
    before = on.log.epochs.entries()
    log = on.kill()
    assert on.records(end=20) == expected(20)
    assert log.epochs.entries() == before
    assert run_all(find_timestamp(log, NOW_MS + 13)) == TimestampOffset(13, NOW_MS + 13, 1)
    assert on.repeats(b"p", base_sequence=0, leader_epoch=9, **fields)
    assert log.recovery_point == log.log_end_offset == 21
    assert log.recovery.truncated_bytes == 0


def test_the_scan_begins_at_the_recovery_point() -> None:
    on = filled(20)
    on.flush()
    on.append(b"20", leader_epoch=2)
    on.kill()
    assert on.log.recovery.scanned_bytes == BATCH_BYTES
    assert on.records() == expected(21)


def test_a_snapshot_tells_of_more_than_a_recovery_point_that_was_not_written_in_time() -> None:
    on = filled(20)
    on.log.roll(NOW_MS)
    on.flush(checkpoint=False)
    on.append(b"20", leader_epoch=2)
    on.kill()
    assert on.log.recovery.scanned_bytes == BATCH_BYTES


@pytest.mark.parametrize("left", [1, 11, 60, 61, BATCH_BYTES - 1])
def test_a_torn_last_batch_is_cut_off_and_reported(left: int, caplog: pytest.LogCaptureFixture) -> None:
    on = filled(20)
    cut_file(on, on.path(0), 19 * BATCH_BYTES + left)
    with caplog.at_level(logging.WARNING, "tidelog.log"):
        log = on.kill()
    assert on.records() == expected(19)
    assert log.recovery.truncated_bytes == left
    assert on.disk.size(on.path(0)) == 19 * BATCH_BYTES
    [message] = [r.getMessage() for r in caplog.records if "torn tail" in r.getMessage()]
    assert f"path={on.path(0)} position={19 * BATCH_BYTES} bytes={left} reason=" in message
    assert on.append(b"19", leader_epoch=2).base_offset == 19


@pytest.mark.parametrize(
    "tail", [bytes(5000), b"\xff" * 200, b"GET / HTTP/1.1\r\n" * 10], ids=["zeros", "ones", "text"]
)
def test_what_is_no_batch_behind_the_last_one_is_cut_off(tail: bytes) -> None:
    on = filled(20)
    extend_file(on, on.path(0), tail)
    assert on.kill().recovery.truncated_bytes == len(tail)
    assert on.records() == expected(20)


PREALLOCATED = [12, 17, 18, 60, 61, 100, 512, 5000, 3 << 20]
"""Zeros that Kafka's log.preallocate leaves after the last batch of a segment when it is killed."""


@pytest.mark.parametrize("size", PREALLOCATED)
@pytest.mark.parametrize("clean", [True, False])
def test_a_preallocated_end_is_cut_off_and_is_no_damage(
    size: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    on = filled(20)
    on.log.close(clean=True)
    extend_file(on, on.path(0), bytes(size))
    with caplog.at_level(logging.INFO, "tidelog.log"):
        on.open(clean=clean)
    assert on.records() == expected(20)
    assert on.disk.size(on.path(0)) == 20 * BATCH_BYTES
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    [message] = [r.getMessage() for r in caplog.records if "cut off" in r.getMessage()]
    assert message == f"unwritten end cut off path={on.path(0)} position={20 * BATCH_BYTES} bytes={size}"
    assert on.append(b"20", leader_epoch=2).base_offset == 20


@pytest.mark.parametrize("clean", [True, False])
def test_a_preallocated_segment_without_a_batch_is_empty(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    on = filled(20)
    on.log.roll(NOW_MS)
    on.flush()
    on.log.close(clean=True)
    extend_file(on, on.path(20), bytes(1 << 20))
    with caplog.at_level(logging.WARNING, "tidelog.log"):
        on.open(clean=clean)
    assert on.records() == expected(20)
    assert (on.bases(), on.disk.size(on.path(20)), caplog.records) == ([0, 20], 0, [])


def test_a_preallocated_end_before_a_segment_that_follows_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    on = filled(20)
    on.log.roll(NOW_MS)
    on.append(b"20", leader_epoch=2)
    on.log.close(clean=False)
    extend_file(on, on.path(0), bytes(4096))
    with caplog.at_level(logging.WARNING, "tidelog.log"):
        on.open(clean=False)
    assert on.records() == expected(21)
    assert (on.disk.size(on.path(0)), caplog.records) == (20 * BATCH_BYTES, [])


def test_zeros_in_place_of_what_was_on_the_disk_are_damage() -> None:
    on = filled(20)
    on.flush()
    cut_file(on, on.path(0), 19 * BATCH_BYTES)
    extend_file(on, on.path(0), bytes(BATCH_BYTES))
    with pytest.raises(CorruptLog, match="offset 19 and all others below 20 were on the disk"):
        on.kill()
    assert on.disk.size(on.path(0)) == 20 * BATCH_BYTES


def test_a_last_batch_with_a_bad_checksum_is_cut_off() -> None:
    on = filled(20)
    on.flip(on.path(0), 20 * BATCH_BYTES - 2)
    assert on.kill().recovery.truncated_bytes == BATCH_BYTES
    assert on.records() == expected(19)


def test_a_lost_sector_in_the_unflushed_part_cuts_all_that_follows() -> None:
    on = filled(20)
    on.flush()
    for number in range(20, 60):
        on.append(b"%02d" % number, leader_epoch=2)
    file = on.disk.open(on.path(0))
    sector = 30 * BATCH_BYTES // 512 * 512
    file.pwrite(bytes(512), sector)
    on.kill()
    assert on.records() == expected(sector // BATCH_BYTES)
    assert on.log.recovery.truncated_bytes == 60 * BATCH_BYTES - sector // BATCH_BYTES * BATCH_BYTES


@pytest.mark.parametrize("at", [0, 8, 16, 25, 60, 65], ids=["offset", "length", "magic", "delta", "count", "record"])
def test_a_flipped_byte_with_sound_batches_behind_it_is_damage(at: int) -> None:
    on = filled(20)
    on.flip(on.path(0), 10 * BATCH_BYTES + at)
    size = on.disk.size(on.path(0))
    with pytest.raises(CorruptLog) as found:
        on.kill()
    assert found.value.path == on.path(0)
    assert found.value.position in (10 * BATCH_BYTES, 11 * BATCH_BYTES)
    assert on.disk.size(on.path(0)) == size


def test_a_bad_batch_that_was_on_the_disk_is_damage_even_at_the_end() -> None:
    on = filled(20)
    on.flush()
    on.flip(on.path(0), 19 * BATCH_BYTES + 8)
    with pytest.raises(CorruptLog, match="offset 19 and all others below 20 were on the disk") as found:
        on.kill()
    assert found.value.position == 19 * BATCH_BYTES


def test_a_log_that_ends_before_its_recovery_point_is_damage() -> None:
    on = filled(20)
    on.flush()
    cut_file(on, on.path(0), 15 * BATCH_BYTES)
    with pytest.raises(CorruptLog, match="ends at offset 15, but every offset below 20 was on the disk"):
        on.kill()


def test_a_log_whose_files_are_gone_is_damage() -> None:
    on = filled(20)
    on.flush()
    on.disk = on.disk.kill()
    on.disk.remove_tree(DIRECTORY)
    with pytest.raises(CorruptLog, match="every offset below 20 was on the disk"):
        on.open(clean=False)


def test_an_earlier_segment_that_was_on_the_disk_and_is_torn_is_damage() -> None:
    on = filled(20, segment_bytes=600)
    on.flush()
    cut_file(on, on.path(0), 2 * BATCH_BYTES + 30)
    with pytest.raises(CorruptLog) as found:
        on.kill()
    assert (found.value.path, found.value.position) == (on.path(0), 2 * BATCH_BYTES)


@pytest.mark.parametrize("left", [0, 30], ids=["between batches", "within a batch"])
def test_an_earlier_segment_whose_unflushed_end_is_lost_takes_the_later_ones_with_it(
    left: int, caplog: pytest.LogCaptureFixture
) -> None:
    on = filled(20, segment_bytes=600)
    second = on.bases()[1]
    on.persisted_recovery_point = second
    cut_file(on, on.path(second), 3 * BATCH_BYTES + left)
    on.kill()
    assert on.records() == expected(second + 3)
    assert f"segment dropped path={on.path(2 * second)}" in caplog.text
    assert caplog.text.count("segment dropped") == 1
    assert not on.disk.exists(on.path(2 * second, ".index"))


def test_an_earlier_segment_with_a_flipped_byte_at_its_end_is_damage() -> None:
    on = filled(20, segment_bytes=600)
    second = on.bases()[1]
    on.flip(on.path(0), second * BATCH_BYTES - 2)
    with pytest.raises(CorruptLog, match="sound batches follow in later segments"):
        on.kill()


def test_segments_that_overlap_are_damage() -> None:
    on = filled(5)
    on.log.close(clean=False)
    copy = on.disk.open(on.path(3), create=True)
    copy.pwrite(on.disk.read(on.path(0))[3 * BATCH_BYTES :], 0)
    with pytest.raises(CorruptLog, match="but the previous one ends at offset 5"):
        on.open(clean=False)


@pytest.mark.parametrize("segment", [1, 2])
def test_a_segment_that_was_on_the_disk_and_is_missing_is_damage(segment: int) -> None:
    """Whether the snapshot from which recovery begins is before the gap or behind it."""
    on = filled(40, segment_bytes=600)
    on.flush()
    for number in range(40, 60):
        on.append(b"%02d" % number, leader_epoch=5)
    bases = on.bases()
    if segment == 2:
        for name in on.disk.list("/data/orders-0"):
            if name.endswith(".snapshot"):
                on.disk.remove(f"/data/orders-0/{name}")
    on.disk.remove(on.path(bases[segment]))
    with pytest.raises(CorruptLog, match=f"offsets {bases[segment]} to {bases[segment + 1] - 1} are missing") as found:
        on.kill()
    assert "set the offset of orders-0 to 0 in /data/cleaner-offset-checkpoint" in found.value.reason
    on.open(clean=False, clean_offset=0)
    assert on.log.log_end_offset == 60


def test_offsets_that_compaction_took_away_are_no_damage() -> None:
    on = LogOnDisk(cleanup_policy="compact", segment_bytes=1000)
    for base in (0, 1, 7):
        on.log.append_as_follower(memoryview(make_batch(b"%d" % base, base_offset=base, leader_epoch=0)))
    on.log.roll(NOW_MS)
    on.log.append_as_follower(memoryview(make_batch(b"20", base_offset=20, leader_epoch=0)))
    on.kill()
    assert on.records() == [(0, b"0"), (1, b"1"), (7, b"7"), (20, b"20")]


@pytest.mark.parametrize("known_from", ["snapshot", "recovery point", "clean offset"])
def test_a_gap_between_segments_that_compaction_made_is_no_damage(known_from: str) -> None:
    on = LogOnDisk(cleanup_policy="compact", segment_bytes=1000)
    on.append_batch(make_batch(b"0"), leader_epoch=0)
    on.append_batch(make_batch(b"1"), leader_epoch=0)
    on.log.roll(NOW_MS)
    on.append_batch(make_batch(b"2"), leader_epoch=0)
    on.flush(checkpoint=known_from == "recovery point")
    if known_from != "snapshot":
        on.disk.remove(on.path(2, ".snapshot"))
    cut_file(on, on.path(0), on.disk.size(on.path(0)) // 2)  # compaction removes whole batches
    on.open(clean=False, clean_offset=2 if known_from == "clean offset" else None)
    assert on.records() == [(0, b"0"), (2, b"2")]


def test_a_gap_after_the_flushed_part_of_a_compacted_log_cuts_all_that_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A power cut may lose whole batches at the end of one segment, but not those of the next one. Compaction has not
    removed them: it leaves out what is not flushed. A follower that kept the later batches would never get the lost
    ones.
    """
    on = LogOnDisk(cleanup_policy="compact", segment_bytes=1000)
    on.append_batch(make_batch(b"0"), leader_epoch=0)
    on.flush()
    on.append_batch(make_batch(b"1"), leader_epoch=0)
    on.log.roll(NOW_MS)
    on.append_batch(make_batch(b"2"), leader_epoch=0)
    cut_file(on, on.path(0), on.disk.size(on.path(0)) // 2)
    with caplog.at_level(logging.WARNING, "tidelog.log"):
        on.kill()
    assert on.records() == [(0, b"0")]
    assert on.log.log_end_offset == 1
    assert any("unflushed batches between them were lost" in record.getMessage() for record in caplog.records)


def test_message_formats_of_before_kafka_0_11_are_named_not_cut() -> None:
    on = LogOnDisk()
    body = struct.pack(">bbi", 0, 0, -1) + struct.pack(">i", 3) + b"old"
    extend_file(on, on.path(0), struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body + bytes(60))
    with pytest.raises(CorruptLog, match=r"message format 0 is not supported since Kafka 4\.0"):
        on.kill()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "garbage", "odd size", "preallocated"])
def test_indexes_are_made_anew_from_the_log(suffix: str, harm: str) -> None:
    on = filled(20, segment_bytes=600)
    on.flush()
    on.restart()
    sound = {base: on.disk.read(on.path(base, suffix)) for base in (0, 8, 16)}
    on.disk.remove(on.path(20, ".snapshot"))
    on.disk = on.disk.kill()
    for base in (0, 8, 16):
        path = on.path(base, suffix)
        if harm == "missing":
            on.disk.remove(path)
        elif harm == "garbage":
            on.disk.write_atomic(path, b"\x7f" * 24)
        else:
            extend_file(on, path, b"\1" if harm == "odd size" else bytes(1200))
    on.open(clean=False)
    assert on.records() == expected(20)
    for number in range(20):
        assert run_all(find_timestamp(on.log, NOW_MS + number)) == TimestampOffset(number, NOW_MS + number, number // 8)
    on.log.close(clean=True)
    assert on.disk.read(on.path(8, suffix)).rstrip(b"\0") == sound[8].rstrip(b"\0")
    assert on.disk.read(on.path(16, suffix)) == sound[16]


def test_stale_index_entries_behind_the_snapshot_are_not_believed() -> None:
    on = filled(10)
    on.log.roll(NOW_MS)
    on.flush()
    for number in range(10, 20):
        on.append(b"%02d" % number, leader_epoch=2)
    on.log.close(clean=False)
    on.disk.write_atomic(on.path(10, ".index"), struct.pack(">ii", 3, 5 * BATCH_BYTES))
    on.open(clean=False)
    assert on.records(14) == expected(20)[14:]
    assert on.records() == expected(20)


def test_a_damaged_snapshot_is_passed_over_for_an_earlier_one() -> None:
    on = filled(5, segment_bytes=600)
    fields = {"producer_id": 6, "producer_epoch": 0}
    for number in range(8):
        on.append(b"p", base_sequence=number, leader_epoch=2, **fields)
    on.restart()
    snapshots = [name for name in on.files() if name.endswith(".snapshot")]
    on.flip(f"{DIRECTORY}/{snapshots[-1]}", 12)
    on.disk = on.disk.kill()
    on.open(clean=True)
    assert on.repeats(b"p", base_sequence=7, leader_epoch=2, **fields)
    assert snapshots[-1] not in on.files()


def test_without_any_snapshot_producers_come_from_the_batches() -> None:
    on = filled(5)
    fields = {"producer_id": 6, "producer_epoch": 0}
    for number in range(8):
        on.append(b"p", base_sequence=number, leader_epoch=2, **fields)
    on.restart()
    on.disk = on.disk.kill()
    on.disk.remove(on.path(13, ".snapshot"))
    on.open(clean=True)
    assert on.repeats(b"p", base_sequence=3, leader_epoch=2, **fields)


@pytest.mark.parametrize("harm", ["missing", "garbage"])
def test_leader_epochs_are_made_anew_from_the_batches(harm: str) -> None:
    on = filled(20)
    on.log.close(clean=True)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    if harm == "missing":
        on.disk.remove(path)
    else:
        on.disk.write_atomic(path, b"0\n1\nx y\n")
    on.open(clean=True, recovery_point=20)
    assert on.log.epochs.entries() == [(0, 0), (1, 8), (2, 16)]


def test_a_clean_start_reads_no_more_than_the_tail() -> None:
    on = filled(2000, index_interval_bytes=4096)
    on.log.close(clean=True)
    read = 0
    pread = type(on.disk.open(on.path(0))).pread

    def counting(file: object, size: int, position: int) -> bytes:
        nonlocal read
        data = pread(file, size, position)  # type: ignore[arg-type]
        read += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(on.disk.open(on.path(0))), "pread", counting)
        on.open(clean=True, recovery_point=2000)
    assert read < 5000
    assert on.log.log_end_offset == 2000


def test_a_log_that_was_not_closed_is_recovered_though_the_directory_says_clean() -> None:
    on = filled(20)
    on.log.close(clean=False)
    cut_file(on, on.path(0), 19 * BATCH_BYTES + 5)
    log = on.open(clean=True, recovery_point=0)
    assert log.recovery.truncated_bytes == 5
    assert on.records() == expected(19)


def test_a_clean_start_from_an_index_that_misleads(caplog: pytest.LogCaptureFixture) -> None:
    on = filled(20)
    on.log.close(clean=True)
    file = on.disk.open(on.path(0, ".index"))
    file.pwrite(struct.pack(">ii", 19, 19 * BATCH_BYTES - 7), file.size() - 8)
    log = on.open(clean=True, recovery_point=20)
    assert log.log_end_offset == 20
    assert caplog.text.count("index rebuilt") == 1
    assert on.records() == expected(20)


def test_a_log_that_ends_below_its_start_offset_begins_there_anew() -> None:
    on = filled(5)
    on.log.close(clean=False)
    log = on.open(clean=False, recovery_point=9, log_start_offset=9)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (9, 9, 0)
    assert on.append(b"x", leader_epoch=3).base_offset == 9


@pytest.mark.parametrize("recovery_point", [-1, 0, 4])
def test_records_above_the_recovery_point_are_not_dropped_for_a_start_offset_past_them(recovery_point: int) -> None:
    """Start offsets are persisted up to what is durable only: this one is another log's."""
    on = filled(5)
    on.log.close(clean=False)
    with pytest.raises(CorruptLog, match="ends at offset 5, below its start offset 9") as found:
        on.open(clean=False, recovery_point=recovery_point, log_start_offset=9)
    assert "set the offset of orders-0 to 0 in /data/log-start-offset-checkpoint" in found.value.reason
    on.open(clean=False, recovery_point=recovery_point, log_start_offset=0)
    assert on.records() == expected(5)


def test_with_no_recovery_point_known_closed_segments_count_as_flushed() -> None:
    on = filled(20, segment_bytes=600)
    cut_file(on, on.path(0), BATCH_BYTES + 30)
    with pytest.raises(CorruptLog) as found:
        on.open(clean=False, recovery_point=-1)
    assert found.value.path == on.path(0)


def test_what_recovery_kept_survives_a_power_cut() -> None:
    on = filled(20, segment_bytes=600)
    on.kill()
    for seed in range(10):
        disk = on.disk
        on.power_cut(seed)
        assert on.records() == expected(20)
        on.disk = disk


def test_half_done_deletions_are_finished() -> None:
    on = filled(10)
    on.log.close(clean=True)
    for name in (f"{5:020d}.log.deleted", f"{5:020d}.index.deleted", f"{0:020d}.log.cleaned", "x.tmp"):
        on.disk.open(f"{DIRECTORY}/{name}", create=True).close()
    on.disk.open(on.path(70, ".timeindex"), create=True).close()
    on.open(clean=True, recovery_point=10)
    assert on.files() == [
        f"{0:020d}.index", f"{0:020d}.log", f"{0:020d}.timeindex", f"{10:020d}.snapshot", "leader-epoch-checkpoint",
    ]  # fmt: skip
    assert on.records() == expected(10)


@pytest.mark.parametrize("complete", [True, False], ids=["all renamed", "some still .cleaned"])
def test_a_swap_of_cleaned_segments_is_finished_or_undone(complete: bool) -> None:
    on = filled(14, segment_bytes=600)
    on.log.close(clean=True)
    cleaned = on.disk.read(on.path(0))[: 2 * BATCH_BYTES] + on.disk.read(on.path(8))[3 * BATCH_BYTES :]
    on.disk.write_atomic(on.path(0, ".log.swap"), cleaned)
    if not complete:
        on.disk.write_atomic(on.path(0, ".log.cleaned"), b"")
    on.open(clean=False, recovery_point=14)
    kept = expected(14) if not complete else expected(2) + expected(14)[11:]
    assert on.records() == kept
    assert not [name for name in on.files() if name.endswith((".swap", ".cleaned"))]


def test_batches_as_kafka_stores_them_when_nothing_is_wrong() -> None:
    on = filled(3)
    assert [BatchHeader(on.disk.read(on.path(0)), n * BATCH_BYTES).leader_epoch for n in range(3)] == [0, 0, 0]


def test_batches_larger_than_what_is_read_at_once() -> None:
    on = LogOnDisk(max_message_bytes=8 << 20)
    values = [bytes(100), b"x" * (3 << 20), bytes(100), b"y" * (1 << 20), b"z"]
    for value in values:
        on.append(value)
    on.kill()
    assert [value for _, value in on.records()] == values


def test_a_whole_batch_out_of_place_is_damage() -> None:
    on = filled(20)
    extend_file(on, on.path(0), bytes(make_batch(b"again", base_offset=3)))
    with pytest.raises(CorruptLog, match="expected 20 or more; its checksum is valid"):
        on.kill()


def test_a_start_offset_past_the_end_after_a_clean_shutdown_is_damage() -> None:
    on = filled(5)
    on.log.close(clean=True)
    with pytest.raises(CorruptLog, match="ends at offset 5, below its start offset 9"):
        on.open(clean=True, recovery_point=5, log_start_offset=9)


@pytest.mark.parametrize("disk_full", [False, True])
def test_epochs_whose_batches_were_lost_leave_the_checkpoint_at_the_start(disk_full: bool) -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.append(b"b", leader_epoch=1)
    on.flush()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    kept = on.disk.read(path)
    on.disk.write_atomic(path, b"0\n3\n0 0\n1 1\n2 5\n")
    on.disk = on.disk.kill()
    if disk_full:
        on.disk.fail("create", "*leader-epoch-checkpoint.tmp", errno.ENOSPC)
    on.open(clean=False)
    assert on.log.epochs.entries() == [(0, 0), (1, 1)]
    assert (on.disk.read(path) == kept) != disk_full
    on.disk.repair()
    on.flush()
    assert on.disk.read(path) == kept
