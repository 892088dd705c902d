"""Appending and reading one partition's log."""

import errno
import struct
from collections.abc import Callable

import pytest

from log_harness import NOW_MS, LogOnDisk, make_batch, read_once
from tidelog.log.partition_log import Appended, Slice
from tidelog.log.reader import HEADERS_PER_STEP, SEARCHED_BYTES_MAX, TimestampOffset
from tidelog.log.segment import WALK_BATCHES_MAX
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.model.steps import run_all
from tidelog.wire.batches import BatchHeader, TimestampType
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import (
    ApiError,
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    RecordTooLarge,
    StorageError,
)
from tidelog.wire.primitives import varint
from tidelog.wire.records import Record, decode_records, encode_batch


def segment_bases(on: LogOnDisk) -> list[int]:
    return [int(name[:20]) for name in on.files() if name.endswith(".log")]


def test_offsets_and_the_leader_epoch_are_written_into_the_batch() -> None:
    on = LogOnDisk()
    assert on.append(b"a", b"b", leader_epoch=3) == Appended(0, 2, -1, 0)
    assert on.append(b"c", leader_epoch=3) == Appended(2, 3, -1, 0)
    data = on.disk.read(on.path(0))
    header = BatchHeader(data, BatchHeader(data).size)
    assert (header.base_offset, header.leader_epoch, header.crc_ok()) == (2, 3, True)
    assert on.records() == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_repeat_is_answered_with_its_first_offsets_and_its_time() -> None:
    on = LogOnDisk()
    fields = {"producer_id": 9, "producer_epoch": 0}
    on.append(b"a", b"b", base_sequence=0, **fields)
    on.append(b"c", base_sequence=2, **fields)
    size = on.log.size_bytes
    assert on.append(b"a", b"b", base_sequence=0, **fields) == Appended(0, 2, NOW_MS, 0)
    assert on.log.size_bytes == size
    with pytest.raises(OutOfOrderSequenceNumber):
        on.append(b"d", base_sequence=9, **fields)
    assert on.log.log_end_offset == 3


def test_reads_are_whole_batches_from_the_one_that_holds_the_offset() -> None:
    on = LogOnDisk()
    on.append(b"0", b"1", b"2")
    on.append(b"3")
    sizes = [BatchHeader(on.disk.read(on.path(0))).size]
    sizes.append(on.log.size_bytes - sizes[0])
    first, both = sizes[0], sum(sizes)
    assert on.log.read(1, 1, 4)[1:] == (0, first, 0, first)  # larger than asked for, because it is the first (KIP-74)
    assert on.log.read(1, both - 1, 4)[1:] == (0, first, 0, both - 1)
    assert on.log.read(1, both, 4)[1:] == (0, both, 0, both)
    assert on.log.read(3, 1000, 4)[1:] == (first, sizes[1], 3, sizes[1])
    assert on.log.read(0, 1000, 3)[1:] == (0, first, 0, first)
    assert on.log.read(0, 1000, 2) == Slice(None, 0, 0, 0, 0)  # a batch that reaches the end offset is not below it
    assert on.log.read(4, 1000, 4) == Slice(None, 0, 0, 4, 0)


@pytest.mark.parametrize("offset", [-1, 4, 1 << 62])
def test_offsets_outside_the_log_are_out_of_range(offset: int) -> None:
    on = LogOnDisk()
    on.append(b"0", b"1", b"2")
    with pytest.raises(OffsetOutOfRange):
        on.log.read(offset, 1000, 3)


def test_a_reader_that_follows_needs_neither_index_nor_scan() -> None:
    on = LogOnDisk(index_interval_bytes=0)
    for number in range(50):
        on.append(b"%d" % number)
    end = on.log.log_end_offset
    assert on.log.read(end, 1000, end).size == 0
    for number in range(50):
        on.append(b"%d" % number)
    reads: list[str] = []
    on.disk.fail("read", "*", errno.EIO, times=1)
    part = on.log.read(end, 1 << 20, on.log.log_end_offset)
    assert (part.first_batch_offset, reads) == (50, [])
    assert part.size


def test_a_read_ends_with_its_segment_and_the_next_goes_on_in_the_following_one() -> None:
    on = LogOnDisk(segment_bytes=200)
    for number in range(6):
        on.append(b"%d" % number)
    assert segment_bases(on) == [0, 2, 4]
    records, next_offset = read_once(on.log, 0, 1 << 20, 6)
    assert ([r.value for r in records], next_offset) == ([b"0", b"1"], 2)
    assert on.records() == [(n, b"%d" % n) for n in range(6)]


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_cold_reads_stop_at_the_same_batches_as_warm_ones(interval: int) -> None:
    on = LogOnDisk(index_interval_bytes=interval)
    for number in range(40):
        on.append(b"x" * (number * 13 % 90))
    warm = [on.log.read(start, size, 40)[1:] for start in range(40) for size in (1, 150, 400, 5000)]
    on.restart()
    cold = [on.log.read(start, size, 40)[1:] for start in range(39, -1, -1) for size in (5000, 400, 150, 1)]
    by_start = {(start, size): part for (start, size), part in zip(
        [(start, size) for start in range(39, -1, -1) for size in (5000, 400, 150, 1)], cold, strict=True
    )}  # fmt: skip
    for (start, size), part in zip([(s, z) for s in range(40) for z in (1, 150, 400, 5000)], warm, strict=True):
        assert by_start[start, size][0] == part[0]
        # A warm read may stop at an index entry a little before the limit; neither passes it.
        assert part[1] <= max(by_start[start, size][1], 1)


def test_segments_roll_by_size_time_and_full_index() -> None:
    by_size = LogOnDisk(segment_bytes=1000)
    for _ in range(5):
        by_size.append(bytes(400))
    assert segment_bases(by_size) == [0, 2, 4]

    by_time = LogOnDisk(segment_ms=1000)
    for time in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001, NOW_MS + 500, NOW_MS + 2002):
        by_time.append(b"", timestamps=[time])
    assert segment_bases(by_time) == [0, 2, 4]

    by_index = LogOnDisk(segment_index_bytes=24, index_interval_bytes=0)
    for time in range(5):
        by_index.append(b"", timestamps=[NOW_MS + time])
    assert segment_bases(by_index) == [0, 2, 4]


def test_the_time_to_roll_is_known_again_after_a_restart() -> None:
    on = LogOnDisk(segment_ms=1000)
    on.append(b"", timestamps=[NOW_MS])
    on.restart()
    on.append(b"", timestamps=[NOW_MS + 1000])
    on.append(b"", timestamps=[NOW_MS + 1001])
    assert on.disk.exists(on.path(2))
    assert not on.disk.exists(on.path(1))


def test_records_without_timestamps_roll_by_the_clock() -> None:
    on = LogOnDisk(segment_ms=1000)
    on.append(b"", timestamps=[-1])
    on.now_ms += 1000
    on.append(b"", timestamps=[-1])
    on.now_ms += 1
    on.append(b"", timestamps=[-1])
    assert on.disk.exists(on.path(2))


def test_an_offset_that_31_bits_cannot_hold_begins_a_segment() -> None:
    on = LogOnDisk()
    on.append(b"a")
    far = make_batch(b"b", base_offset=(1 << 31) - 1, leader_epoch=0)
    on.log.append_as_follower(memoryview(far))
    further = make_batch(b"c", base_offset=1 << 31, leader_epoch=0)
    on.log.append_as_follower(memoryview(further))
    assert segment_bases(on) == [0, 1 << 31]
    assert on.records() == [(0, b"a"), ((1 << 31) - 1, b"b"), (1 << 31, b"c")]


def test_new_settings_hold_from_the_next_append() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.config.segment_bytes = 100
    on.log.configure(on.config)
    on.append(b"b")
    assert on.disk.exists(on.path(1))


def test_limits_of_a_batch() -> None:
    on = LogOnDisk(max_message_bytes=200, segment_bytes=150)
    with pytest.raises(RecordTooLarge):
        on.append(bytes(200))
    with pytest.raises(RecordListTooLarge):
        on.append(bytes(100))
    big = make_batch(bytes(300))
    on.log.append(memoryview(big), BatchHeader(big), leader_epoch=0, now_ms=NOW_MS, limits=False)
    assert on.records() == [(0, bytes(300))]


def test_log_append_time_is_stamped_and_answered() -> None:
    on = LogOnDisk(message_timestamp_type="LogAppendTime")
    appended = on.append(b"a", timestamps=[5])
    assert appended.log_append_time_ms == NOW_MS
    header = BatchHeader(on.disk.read(on.path(0)))
    assert (header.timestamp_type, header.max_timestamp, header.crc_ok()) == (
        TimestampType.LOG_APPEND_TIME,
        NOW_MS,
        True,
    )
    assert run_all(find_timestamp(on.log, NOW_MS)) == TimestampOffset(0, NOW_MS, 0)


def test_times_find_the_first_record_not_earlier() -> None:
    on = LogOnDisk(segment_bytes=300, index_interval_bytes=0)
    times = [NOW_MS + t for t in (10, 10, 30, 20, 20, 50, 40, -1 - NOW_MS)]
    for number, time in enumerate(times):
        on.append(b"%d" % number, timestamps=[time], leader_epoch=number // 4)
    found = [run_all(find_timestamp(on.log, NOW_MS + t)) for t in (0, 10, 11, 30, 31, 50, 51)]
    assert [f and f.offset for f in found] == [0, 0, 2, 2, 5, 5, None]
    assert found[4] == TimestampOffset(5, NOW_MS + 50, 1)
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(5, NOW_MS + 50, 1)
    assert run_all(find_max_timestamp(LogOnDisk().log)) is None


def test_a_time_in_the_middle_of_a_compressed_batch() -> None:
    on = LogOnDisk()
    on.append(b"a", b"b", b"c", timestamps=[NOW_MS, NOW_MS + 5, NOW_MS + 9], codec=1)
    assert run_all(find_timestamp(on.log, NOW_MS + 4)) == TimestampOffset(1, NOW_MS + 5, 0)
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(2, NOW_MS + 9, 0)


def test_a_full_disk_leaves_the_log_as_it_was_and_online() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.disk.limit_space(on.disk.medium.used_bytes() + 50)
    with pytest.raises(StorageError):
        on.append(bytes(1000))
    assert on.disk.size(on.path(0)) == on.log.size_bytes
    on.disk.limit_space(None)
    assert on.log.failure is None
    assert on.append(b"b").base_offset == 1
    assert on.records() == [(0, b"a"), (1, b"b")]


def test_a_full_disk_at_a_roll_leaves_the_log_online() -> None:
    on = LogOnDisk(segment_bytes=100)
    on.append(b"a")
    on.disk.fail("create", "*.log", errno.ENOSPC)
    with pytest.raises(StorageError):
        on.append(b"b")
    assert on.append(b"b").base_offset == 1
    assert on.records() == [(0, b"a"), (1, b"b")]


def test_a_write_that_fails_takes_the_log_offline_for_good() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.disk.fail("write", "*.log", errno.EIO)
    with pytest.raises(StorageError, match="offline"):
        on.append(b"b")
    assert on.log.failure is not None
    with pytest.raises(StorageError):
        on.append(b"b")
    with pytest.raises(StorageError):
        on.log.read(0, 100, 1)


def test_a_full_disk_whose_file_cannot_be_cut_back_is_offline() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.disk.fail("write", "*.log", errno.ENOSPC)
    on.disk.fail("truncate", "*.log", errno.EIO)
    with pytest.raises(StorageError):
        on.append(b"b")
    assert on.log.failure is not None


def test_an_epoch_whose_first_batch_was_not_written_is_forgotten() -> None:
    """Otherwise it would be stored, and a cut at its start would not remove it from the disk."""
    leader, follower = LogOnDisk(), LogOnDisk()
    for on in (leader, follower):
        on.log.append_as_follower(memoryview(make_batch(b"a", base_offset=0, leader_epoch=3)))
        on.disk.fail("write", "*.log", errno.ENOSPC)
    with pytest.raises(StorageError):
        leader.append(b"b", leader_epoch=5)
    with pytest.raises(StorageError):
        follower.log.append_as_follower(memoryview(make_batch(b"b", base_offset=1, leader_epoch=5)))
    for on in (leader, follower):
        assert on.log.epochs.entries() == [(3, 0)]
    leader.append(b"c", leader_epoch=6)
    follower.log.append_as_follower(memoryview(make_batch(b"c", base_offset=1, leader_epoch=6)))
    for on in (leader, follower):
        assert on.log.epochs.entries() == [(3, 0), (6, 1)]


def test_a_broken_chain_is_never_served() -> None:
    on = LogOnDisk(index_interval_bytes=0)
    for number in range(20):
        on.append(b"%d" % number)
    size = on.log.size_bytes // 20
    on.restart()
    on.flip(on.path(0), 10 * size + 8)  # the length of batch 10, below the tail that opening looks at
    with pytest.raises(StorageError, match=f"at {10 * size}: the batch states"):
        on.log.read(0, 1 << 20, 20)
    assert on.log.failure is not None


def test_an_index_that_misleads_is_made_anew() -> None:
    on = LogOnDisk(index_interval_bytes=0, segment_bytes=700)
    for number in range(20):
        on.append(b"%d" % number, timestamps=[NOW_MS + number])
    on.restart()
    index = on.path(0, ".index")
    file = on.disk.open(index)
    file.pwrite(struct.pack(">ii", 3, 77), 16)  # in order, but no batch begins there
    assert on.records(4) == [(n, b"%d" % n) for n in range(4, 20)]
    assert struct.unpack(">ii", on.disk.read(index)[16:24])[1] != 77


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_of_a_closed_segment_is_made_anew_when_wanted(suffix: str) -> None:
    on = LogOnDisk(index_interval_bytes=0, segment_bytes=700)
    for number in range(20):
        on.append(b"%d" % number, timestamps=[NOW_MS + number])
    before = on.disk.read(on.path(0, suffix))
    on.log.close(clean=True)
    on.disk.remove(on.path(0, suffix))
    on.open(clean=True, recovery_point=20)
    assert run_all(find_timestamp(on.log, NOW_MS + 5)) == TimestampOffset(5, NOW_MS + 5, 0)
    assert on.records(3) == [(n, b"%d" % n) for n in range(3, 20)]
    assert on.disk.read(on.path(0, suffix)) == before


def test_reading_ahead_is_asked_for_only_where_it_would_wait() -> None:
    on = LogOnDisk(segment_bytes=700)
    for number in range(20):
        on.append(b"%d" % number)
    on.restart()
    assert on.log.cold_read(0, 1000) is None
    on.disk.cold_chance = 1.0
    cold = on.log.cold_read(0, 1000)
    assert cold is not None
    cold.run()
    assert on.log.cold_read(20, 1000) is None
    assert on.log.cold_read(99, 1000) is None


def test_followers_keep_the_leaders_offsets_and_epochs() -> None:
    leader = LogOnDisk()
    leader.append(b"a", b"b", leader_epoch=2)
    leader.append(b"c", leader_epoch=5, producer_id=4, producer_epoch=0, base_sequence=0)
    follower = LogOnDisk()
    data = leader.disk.read(leader.path(0))
    assert follower.log.append_as_follower(memoryview(data)) == 3
    assert follower.disk.read(follower.path(0)) == data
    assert follower.log.epochs.entries() == [(2, 0), (5, 2)]
    assert list(follower.log.producers.entries) == [4]
    with pytest.raises(CorruptMessage, match="expected 3 or more"):
        follower.log.append_as_follower(memoryview(data))


@pytest.mark.parametrize("position", [8, 16, 30, 65])
def test_a_follower_takes_no_damaged_batch(position: int) -> None:
    follower = LogOnDisk()
    data = make_batch(b"a", leader_epoch=0)
    data[position] ^= 0x40
    with pytest.raises(CorruptMessage):
        follower.log.append_as_follower(memoryview(data))
    with pytest.raises(CorruptMessage):
        follower.log.append_as_follower(memoryview(make_batch(b"a")[:50]))
    assert follower.log.size_bytes == 0


def test_transactions_hold_back_the_last_stable_offset_and_aborted_ones_are_listed() -> None:
    on = LogOnDisk()
    fields = {"producer_epoch": 0, "is_transactional": True}
    on.append(b"a", producer_id=1, base_sequence=0, **fields)
    on.append(b"b", producer_id=2, base_sequence=0, **fields)
    on.append(b"c")
    assert on.log.last_stable_offset == 0
    key, value = b"\0\0\0\0", b"\0\0\0\0\0\0"  # abort
    marker = encode_batch(
        [Record(key, value, NOW_MS)], producer_id=2, producer_epoch=0, is_transactional=True, is_control=True
    )
    on.append_batch(marker)
    assert on.log.last_stable_offset == 0
    assert [a[:3] for a in on.log.aborted_transactions(0, 4)] == [(2, 1, 3)]
    assert on.log.aborted_transactions(0, 1) == []
    on.kill()
    assert [a[:3] for a in on.log.aborted_transactions(0, 4)] == [(2, 1, 3)]
    assert on.log.last_stable_offset == 0
    on.append_batch(
        encode_batch(
            [Record(b"\0\0\0\1", value, NOW_MS)],
            producer_id=1,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )
    )
    assert on.log.last_stable_offset == 5
    assert on.log.last_stable_offset_below(4) == 0  # its marker may still be lost
    part = on.log.read(0, 1 << 20, 5)
    assert part.file is not None
    assert decode_records(part.file.pread(part.size, part.position))[0].value == b"a"


def test_delete_before_moves_the_start_and_refuses_what_is_not_there() -> None:
    on = LogOnDisk()
    for value in (b"a", b"b", b"c"):
        on.append(value)
    assert on.log.delete_before(2) == 2
    assert on.log.delete_before(1) == 2
    assert on.records() == [(2, b"c")]
    with pytest.raises(OffsetOutOfRange):
        on.log.read(1, 100, 3)
    with pytest.raises(OffsetOutOfRange):
        on.log.delete_before(4)


def test_truncation_drops_whole_batches_and_what_followed_from_them() -> None:
    on = LogOnDisk(segment_bytes=200)
    fields = {"producer_id": 3, "producer_epoch": 0}
    for number in range(8):
        on.append(b"%d" % number, base_sequence=number, leader_epoch=number // 3, **fields)
    on.flush()
    on.truncate_to(5)
    assert (on.log.log_end_offset, on.log.recovery_point) == (5, 5)
    assert on.log.epochs.entries() == [(0, 0), (1, 3)]
    assert on.log.producers.entries[3].next_sequence == 5
    assert on.append(b"new", base_sequence=5, leader_epoch=4, **fields).base_offset == 5
    assert on.records() == [*((n, b"%d" % n) for n in range(5)), (5, b"new")]
    assert all(int(name[:20]) <= 5 for name in on.files() if name[:20].isdigit())


def test_a_cut_at_the_end_removes_an_epoch_without_records() -> None:
    on = LogOnDisk()
    on.append(b"a", leader_epoch=1)
    on.log.epochs.assign(2, 1)
    on.truncate_to(1)
    assert on.log.epochs.entries() == [(1, 0)]


def test_restart_at_leaves_an_empty_log_there() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.flush()
    on.log.restart_at(500)
    assert (on.log.log_start_offset, on.log.log_end_offset, on.log.size_bytes) == (500, 500, 0)
    assert on.log.epochs.entries() == [], "a follower would name an epoch of which its log has no record"
    assert on.append(b"b").base_offset == 500
    on.persisted_recovery_point = on.persisted_log_start_offset = 500
    on.kill()
    assert on.records() == [(500, b"b")]


def test_a_log_that_knows_a_later_epoch_than_its_leader_goes_offline() -> None:
    on = LogOnDisk()
    on.append(b"a", leader_epoch=4)
    with pytest.raises(StorageError, match="has leader epoch 4, but its leader is in epoch 3"):
        on.append(b"b", leader_epoch=3)
    assert on.log.failure is not None
    assert on.log.log_end_offset == 1


def test_errors_carry_the_code_to_answer_with() -> None:
    on = LogOnDisk()
    on.log.fail("the test says so")
    with pytest.raises(ApiError) as refused:
        on.append(b"a")
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "the test says so" in refused.value.message


def test_a_read_that_fails_takes_the_log_offline_unless_it_may_work_again() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.restart()
    on.disk.fail("read", "*.log", errno.EMFILE)
    with pytest.raises(StorageError):
        on.log.read(0, 100, 1)
    assert on.log.read(0, 100, 1).size
    on.disk.fail("read", "*.log", errno.EIO)
    with pytest.raises(StorageError, match="offline"):
        run_all(find_timestamp(on.log, 0))
    assert on.log.failure is not None
    assert on.log.cold_read(0, 100) is None


def test_too_many_open_files_at_an_append_leave_the_log_online() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.disk.fail("write", "*.log", errno.ENFILE)
    with pytest.raises(StorageError, match="nothing appended"):
        on.append(b"b")
    assert on.log.failure is None


def test_an_index_that_cannot_be_written_takes_the_log_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.log.segment.PENDING_MAX", 2)
    on = LogOnDisk(index_interval_bytes=0)
    on.append(b"a")
    on.append(b"b")
    on.disk.fail("write", "*.index", errno.EIO)
    with pytest.raises(StorageError, match="offline"):
        on.append(b"c")
    on = LogOnDisk(index_interval_bytes=0)
    on.disk.fail("write", "*.index", errno.ENOSPC, times=100)
    for number in range(5):
        on.append(b"%d" % number)
    assert on.log.failure is None
    assert on.records() == [(n, b"%d" % n) for n in range(5)]


@pytest.mark.parametrize("key", [None, b"\0", b"\0\0\0\0"], ids=["no type", "half a type", "no coordinator epoch"])
def test_a_follower_takes_no_marker_that_cannot_be_read(key: bytes | None) -> None:
    follower = LogOnDisk()
    marker = encode_batch(
        [Record(key, b"\0", NOW_MS)], producer_id=4, producer_epoch=0, is_transactional=True, is_control=True
    )
    with pytest.raises(CorruptMessage, match="control batch"):
        follower.log.append_as_follower(memoryview(marker))
    assert follower.log.log_end_offset == 0


@pytest.mark.parametrize("key", [None, b"\0", b"\0\0\0\0"], ids=["no type", "half a type", "no coordinator epoch"])
def test_a_leader_refuses_a_marker_that_cannot_be_decoded(key: bytes | None) -> None:
    on = LogOnDisk()
    marker = encode_batch(
        [Record(key, b"\0", NOW_MS)], producer_id=4, producer_epoch=0, is_transactional=True, is_control=True
    )
    with pytest.raises(InvalidRecord, match="the control batch of producer id 4 cannot be decoded: "):
        on.append_batch(marker)
    assert (on.log.log_end_offset, on.log.failure) == (0, None)


def test_control_batches_of_other_kinds_end_no_transaction() -> None:
    on = LogOnDisk()
    on.append(b"a", producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True)
    on.append_batch(encode_batch([Record(b"\0\0\0\2", b"", NOW_MS)], producer_id=4, producer_epoch=0, is_control=True))
    assert on.log.last_stable_offset == 0
    on.kill()
    assert (on.log.last_stable_offset, on.log.log_end_offset) == (0, 2)


def test_a_log_that_cannot_be_closed_is_recovered_at_the_next_start() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.disk.fail("sync", "*.log", errno.EIO)
    on.log.close(clean=True)
    assert on.log.failure is not None
    assert on.open(clean=True).recovery.scanned_bytes
    assert on.records() == [(0, b"a")]


def garbage(timestamp: int) -> bytearray:
    """Under a good checksum: what a producer sends is not looked at."""
    batch = make_batch(b"a", b"b", timestamps=[timestamp, timestamp])
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def bomb(timestamp: int) -> bytearray:
    return make_batch(bytes(SEARCHED_BYTES_MAX), b"b", timestamps=[timestamp, timestamp + 1], codec=4)


@pytest.mark.parametrize("made", [garbage, bomb])
def test_times_among_records_that_cannot_be_looked_at_are_their_batchs(made: Callable[[int], bytearray]) -> None:
    on = LogOnDisk()
    on.append(b"0", timestamps=[NOW_MS - 10])
    on.append_batch(made(NOW_MS))
    on.append(b"3", timestamps=[NOW_MS - 5])
    latest = BatchHeader(made(NOW_MS)).max_timestamp
    for _ in range(2):
        assert run_all(find_timestamp(on.log, NOW_MS - 10)) == TimestampOffset(0, NOW_MS - 10, 0)
        assert run_all(find_timestamp(on.log, NOW_MS - 9)) == TimestampOffset(1, latest, 0)
        assert run_all(find_max_timestamp(on.log)) == TimestampOffset(1, latest, 0)
        assert on.log.failure is None
        on.kill()
    on.log.delete_before(2)
    assert run_all(find_timestamp(on.log, NOW_MS - 9)) == TimestampOffset(2, latest, 0)
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(2, latest, 0)


def test_times_among_damaged_records_take_the_log_offline() -> None:
    on = LogOnDisk()
    on.append(b"a" * 50, timestamps=[NOW_MS])
    on.flip(on.path(0), 61)
    with pytest.raises(StorageError, match="cannot be decoded"):
        run_all(find_timestamp(on.log, NOW_MS))


@pytest.mark.parametrize("delta", [2, 1000, -1])
def test_times_do_not_name_offsets_that_are_not_the_batchs(delta: int) -> None:
    on = LogOnDisk()
    batch = make_batch(b"a", b"b", timestamps=[NOW_MS, NOW_MS])
    record = encode_batch([Record(b"k", b"b", NOW_MS)])[61:]
    second = record[:3] + varint(delta) + record[4:]
    second[0] += 2 * (len(second) - len(record))
    batch[61:] = bytes(record + second)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    on.append_batch(batch)
    on.append(b"2", timestamps=[NOW_MS])
    on.log.delete_before(1)
    assert run_all(find_timestamp(on.log, NOW_MS)) == TimestampOffset(1, NOW_MS, 0)


def test_times_are_looked_for_in_steps() -> None:
    """Behind DeleteRecords, and behind a header that promises what no record has, every header is walked."""
    on = LogOnDisk()
    lie = make_batch(b"lie", b"lie", timestamps=[NOW_MS, NOW_MS])
    lie[35:43] = (NOW_MS + 50).to_bytes(8, "big")
    lie[17:21] = crc32c(memoryview(lie)[21:]).to_bytes(4, "big")
    on.append_batch(lie)
    for _ in range(20 * HEADERS_PER_STEP):
        on.append(b"", timestamps=[NOW_MS])
    on.log.delete_before(2)
    for steps in (find_timestamp(on.log, NOW_MS + 10), find_max_timestamp(on.log)):
        assert len(list(steps)) > 19
    assert run_all(find_timestamp(on.log, NOW_MS + 10)) is None
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(2, NOW_MS, 0)


def test_a_segment_that_goes_while_a_time_is_looked_for() -> None:
    on = LogOnDisk(segment_bytes=1000, retention_bytes=3000, file_delete_delay_ms=0)
    for number in range(200):
        on.append(b"%d" % number, timestamps=[NOW_MS + number])
    on.flush()
    on.log.delete_before(1)
    looks = [find_timestamp(on.log, NOW_MS), find_max_timestamp(on.log)]
    for steps in looks:
        next(steps)
    assert on.retain(NOW_MS) > 1
    start = on.log.log_start_offset
    assert start > 1
    assert run_all(looks[0]) == TimestampOffset(start, NOW_MS + start, 0)
    assert run_all(looks[1]) == TimestampOffset(199, NOW_MS + 199, 0)
    assert on.log.failure is None


def test_a_read_walks_so_many_unknown_batches_and_no_more() -> None:
    """After a restart, a fetch of tens of MB would walk a million small batches at once."""
    on = LogOnDisk()
    count = WALK_BATCHES_MAX * 2 + 10
    for _ in range(count):
        on.append(b"")
    on.log.roll(NOW_MS)
    on.restart()
    size = on.log.segments.items[0].size // count
    parts = []
    offset = 0
    while offset < count:
        part = on.log.read(offset, 1 << 30, count)
        assert part.first_batch_offset == offset
        assert part.readable >= (count - offset) * size, "a minimum is measured by what there is"
        parts.append(part.size // size)
        offset += parts[-1]
    assert parts == [WALK_BATCHES_MAX, WALK_BATCHES_MAX, 10]
    assert on.log.read(0, 1 << 30, count).size == size * count, "what is known to be whole is served at once"
