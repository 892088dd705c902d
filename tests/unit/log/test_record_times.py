"""Batches whose headers have false timestamps: which are checked, and their effect on retention, rolls and look-ups."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

import tidelog.log.validation
from log_harness import NOW_MS, LogOnDisk, false_batch
from tidelog.log.cleaner.choice import cleanable_part
from tidelog.log.config import DAY_MS, LogConfig
from tidelog.log.reader import TimestampOffset
from tidelog.log.record_times import (
    RecordTimes,
    SegmentPart,
    contradicts_itself,
    find_times,
    find_times_in_child,
    have_base_timestamp,
    largest_timestamp,
)
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.log.validation import RefusedRecords
from tidelog.model.steps import run_all
from tidelog.runtime.interfaces import ChildResources
from tidelog.wire.batches import BatchHeader, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, decode_records, decompressed_records, encode_batch

HOUR_MS = 3_600_000
WEEK_MS = 7 * DAY_MS
MONTH_MS = 30 * DAY_MS
NO_TIMES: list[dict[str, Any]] = [{}, {"largest": 0}, {"largest": 0, "codec": Codec.GZIP}, {"largest": NOW_MS - 1}]
IMPOSSIBLE: list[dict[str, Any]] = [
    {"base": -1},
    {"base": -1, "largest": 0},
    {"base": -1, "largest": -1},
    {"base": 0, "largest": 0},
    {"base": 0},
    {"base": -MONTH_MS},
    {"largest": -1},
    {"largest": 0},
    {"largest": NOW_MS - MONTH_MS},
    {"largest": -(1 << 63)},
    {"base": NOW_MS + 500},
    {"largest": NOW_MS + HOUR_MS + 1},
    {"largest": NOW_MS + MONTH_MS},
    {"largest": (1 << 63) - 1},
    {"base": NOW_MS - MONTH_MS, "largest": NOW_MS - MONTH_MS},
]
"""Headers of records of the present: missing, contradictory, far ahead, or so old that they would go at once."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[BatchHeader]:
    """The batches whose records were looked at on their way into a log."""
    found = []
    plain = decompressed_records

    def look(batch: Any, header: BatchHeader, limit: int) -> bytes:
        found.append(header)
        return plain(batch, header, limit)

    monkeypatch.setattr(tidelog.log.validation, "decompressed_records", look)
    monkeypatch.setattr("tidelog.log.record_times.decompressed_records", look)
    return found


# What is looked at


def test_the_usual_batch_costs_its_header(looks: list[BatchHeader]) -> None:
    """Nothing decodes a record: at the append, at a roll for its size, at retention, after a restart."""
    on = LogOnDisk(segment_bytes=1000, retention_ms=WEEK_MS)
    for number in range(100):
        on.now_ms += HOUR_MS
        times = [on.now_ms - 5000 + step for step in range(1 + number % 3)]
        on.append(*[b"v"] * len(times), timestamps=times, codec=number % 5)
        if number % 10 == 0:
            on.flush()
            on.retain(on.now_ms)
    on.now_ms += WEEK_MS - 50 * HOUR_MS
    on.flush()
    assert on.retain(on.now_ms) > 1
    on.restart()
    on.kill()
    assert on.retain(on.now_ms + DAY_MS) > 1
    assert looks == []


@pytest.mark.parametrize("time_ms", [0, 5, NOW_MS - MONTH_MS])
def test_old_records_under_a_true_header_cost_no_more_than_new_ones(time_ms: int, looks: list[BatchHeader]) -> None:
    """A bulk load of old records, or of records without a time that say 1970."""
    on = LogOnDisk(retention_ms=WEEK_MS)
    on.append(*[b"v" * 100] * 1000, timestamps=[time_ms] * 1000)
    on.append(b"v", timestamps=[time_ms])
    assert looks == []
    on.append(b"v", timestamps=[time_ms], codec=Codec.GZIP)  # its first record is not at hand
    assert len(looks) == 1


@pytest.mark.parametrize("time_ms", [0, 1, NOW_MS - MONTH_MS])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 300)], ids=["equal", "different"])
def test_times_behind_a_first_record_that_agrees_with_its_old_header(time_ms: int, sizes: tuple[int, ...]) -> None:
    """A later record of the present corrects the header, one of the far future is refused."""
    for later, expected in ((NOW_MS, NOW_MS), (time_ms, time_ms), (NOW_MS + MONTH_MS, None)):
        on = LogOnDisk(retention_ms=WEEK_MS)
        times = (time_ms, time_ms, later)
        records = [Record(b"k", b"v" * size, time) for size, time in zip(sizes, times, strict=True)]
        batch = encode_batch(records)
        batch[35:43] = time_ms.to_bytes(8, "big")
        batch[17:21] = make_crc(batch)
        if expected is None:
            with pytest.raises(RefusedRecords) as refused:
                on.append_batch(batch)
            assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
        else:
            on.append_batch(batch)
            assert BatchHeader(batch).max_timestamp == expected


@pytest.mark.parametrize("content", [b"\x80" * 7, b"\xff" * 7, b"\x80" * 8, b"\x00" * 7, b"\x0c" + bytes(5), b""])
def test_bytes_that_are_no_records_under_an_old_header_are_refused(content: bytes) -> None:
    on = LogOnDisk()
    batch = encode_batch([Record(b"k", b"v", 0)])[:61] + content
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = make_crc(batch)
    with pytest.raises(ApiError):
        on.append_batch(batch)
    assert on.log.log_end_offset == 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_false_number_of_records_under_an_old_header_is_refused(count: int) -> None:
    on = LogOnDisk()
    batch = encode_batch([Record(b"k", b"v" * 40, 0), Record(b"k", b"v" * 40, 0)])
    batch[23:27] = (count - 1).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    batch[17:21] = make_crc(batch)
    with pytest.raises(ApiError) as refused:
        on.append_batch(batch)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("seed", range(30))
def test_records_that_all_have_the_base_timestamp_are_known_by_their_bytes(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice((0, 1, 60, 100, 8_170, 8_180, 20_000))
    records = [
        Record(None, bytes(size + rng.choice((0, 0, 0, 1)) * (seed % 3)), 7) for _ in range(rng.choice((1, 2, 63, 64)))
    ]
    batch = memoryview(encode_batch(records))
    equal_sizes = len({len(record.value or b"") for record in records}) == 1
    assert have_base_timestamp(batch, header_of_one_timestamp(batch, len(records))) == equal_sizes
    assert not have_base_timestamp(batch, header_of_one_timestamp(batch, len(records) + 1))
    later = memoryview(encode_batch([*records[:-1], Record(None, records[-1].value, 8)])) if len(records) > 1 else None
    assert later is None or not have_base_timestamp(later, header_of_one_timestamp(later, len(records)))


def header_of_one_timestamp(batch: memoryview, count: int) -> BatchHeader:
    """Return a header that states `count` records, all with the base timestamp."""
    header = BatchHeader(batch)
    header.count, header.max_timestamp = count, header.base_timestamp
    return header


@pytest.mark.parametrize("header", IMPOSSIBLE)
def test_a_header_that_cannot_be_taken_at_its_word_is_corrected(header: dict[str, Any]) -> None:
    on = LogOnDisk()
    batch = false_batch(NOW_MS, NOW_MS + 9, NOW_MS + 3, **header)
    on.append_batch(batch)
    assert BatchHeader(batch).max_timestamp == NOW_MS + 9
    assert BatchHeader(batch).crc_ok()
    assert [record.timestamp for record in decode_records(batch)] == [NOW_MS, NOW_MS + 9, NOW_MS + 3]


def test_a_header_of_one_record_with_two_times_contradicts_itself() -> None:
    assert contradicts_itself(BatchHeader(false_batch(NOW_MS, base=NOW_MS - 9, largest=NOW_MS - 5)))
    assert not contradicts_itself(BatchHeader(false_batch(NOW_MS)))
    assert not contradicts_itself(BatchHeader(false_batch(NOW_MS, NOW_MS)))
    assert not contradicts_itself(BatchHeader(false_batch(NOW_MS, NOW_MS - 5, NOW_MS + 5)))


def test_what_is_looked_at_must_be_records() -> None:
    on = LogOnDisk()
    batch = false_batch(-1, -1, largest=0)
    batch[61] ^= 0x40
    batch[17:21] = make_crc(batch)
    with pytest.raises(ApiError, match="cannot be decoded"):
        on.append_batch(batch)
    assert on.log.log_end_offset == 0


def make_crc(batch: bytearray) -> bytes:
    from tidelog.wire.checksums import crc32c

    return crc32c(memoryview(batch)[21:]).to_bytes(4, "big")


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_timestamp_is_that_of_the_decoded_records(seed: int) -> None:
    rng = random.Random(seed)
    times = [rng.choice([-1, 0, 5, NOW_MS, NOW_MS + rng.randrange(1 << 40)]) for _ in range(rng.randrange(1, 40))]
    records = [Record(rng.randbytes(rng.randrange(200)), rng.randbytes(rng.randrange(300)), time) for time in times]
    batch = encode_batch(records)
    header = BatchHeader(batch)
    data = decompressed_records(batch, header, 1 << 20)
    assert largest_timestamp(data, header.count, header.base_timestamp) == max(times)
    for cut in (1, 3, len(data) // 2):
        with pytest.raises(MalformedMessage):
            largest_timestamp(data[:-cut], header.count, header.base_timestamp)


def test_times_before_the_epoch_count_for_nothing() -> None:
    batch = false_batch(-5, -70, base=-9)
    assert largest_timestamp(decompressed_records(batch, BatchHeader(batch), 1000), 2, -9) == -1


# Retention


@pytest.mark.parametrize("header", NO_TIMES)
@pytest.mark.parametrize("how", ["checked", "unchecked"])
@pytest.mark.parametrize("again", [None, LogOnDisk.restart, LogOnDisk.kill])
def test_records_without_timestamps_age_from_the_last_change_of_their_file(
    header: dict[str, Any], how: str, again: Callable[[LogOnDisk], object] | None
) -> None:
    on = LogOnDisk(retention_ms=WEEK_MS, segment_bytes=300)
    for _ in range(9):
        batch = false_batch(-1, -1, -1, **header)
        on.append_batch(batch) if how == "checked" else on.append_unchecked(batch)
    on.flush()
    assert len(on.bases()) > 1
    on.now_ms += DAY_MS
    if again is not None:
        again(on)
    assert on.retain(NOW_MS + WEEK_MS) == 0
    assert len(on.records()) == 27
    assert on.retain(NOW_MS + WEEK_MS + 1) == len(on.bases()) - 1 or on.log.log_start_offset == 27
    assert on.log.log_start_offset == 27


@pytest.mark.parametrize("header", IMPOSSIBLE)
@pytest.mark.parametrize("how", ["checked", "unchecked"])
def test_false_headers_neither_shorten_nor_prolong_what_the_records_say(header: dict[str, Any], how: str) -> None:
    on = LogOnDisk(retention_ms=WEEK_MS, message_timestamp_after_max_ms=1 << 62)
    on.now_ms += 3 * HOUR_MS  # written later than the records' times: the file's last change says nothing of them
    batch = false_batch(NOW_MS, NOW_MS + 9, **header)
    on.append_batch(batch) if how == "checked" else on.append_unchecked(batch)
    on.flush()
    on.restart()
    assert on.retain(NOW_MS + WEEK_MS + 9) == 0
    assert on.retain(on.now_ms + WEEK_MS + HOUR_MS) == 1


def test_a_plausible_header_of_old_times_does_not_shorten_what_its_records_say() -> None:
    """It says two days ago, the records are of now: nothing contradicts it before the segment is due."""
    on = LogOnDisk(retention_ms=WEEK_MS)
    old = NOW_MS - 2 * DAY_MS
    on.append_batch(false_batch(NOW_MS, NOW_MS, base=old, largest=old))
    on.flush()
    assert on.retain(NOW_MS + WEEK_MS - DAY_MS) == 0
    assert on.retain(NOW_MS + WEEK_MS) == 0
    assert on.retain(NOW_MS + WEEK_MS + 1) == 1


def test_old_records_under_a_true_header_go_at_the_first_look() -> None:
    on = LogOnDisk(retention_ms=WEEK_MS)
    on.append_batch(false_batch(NOW_MS - WEEK_MS - 5, NOW_MS - WEEK_MS - 1))
    on.flush()
    assert on.retain(NOW_MS) == 1


def test_records_of_the_future_stay_until_their_time_is_over() -> None:
    on = LogOnDisk(retention_ms=WEEK_MS, message_timestamp_after_max_ms=1 << 62)
    on.append_batch(false_batch(NOW_MS + MONTH_MS, NOW_MS))
    on.flush()
    assert on.retain(NOW_MS + MONTH_MS + WEEK_MS) == 0
    assert on.retain(NOW_MS + MONTH_MS + WEEK_MS + 1) == 1


def test_a_growing_segment_is_looked_at_from_where_the_last_look_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[SegmentPart] = []

    def note(file: Any, part: SegmentPart) -> RecordTimes:
        parts.append(part)
        return find_times(file, part)

    monkeypatch.setattr("tidelog.log.retention.find_times", note)
    monkeypatch.setattr("log_harness.find_times", note)
    on = LogOnDisk(retention_ms=WEEK_MS)
    old = NOW_MS - 6 * DAY_MS
    for _ in range(2):
        on.append_batch(false_batch(NOW_MS, NOW_MS, base=old, largest=old))
        on.flush()
        assert on.retain(NOW_MS + 2 * DAY_MS) == 0
    size = on.log.size_bytes
    on.append_batch(false_batch(NOW_MS, NOW_MS, base=old, largest=old))
    on.flush()
    assert on.retain(NOW_MS + WEEK_MS + 1) == 1
    assert [(part.position, part.end) for part in parts] == [(0, size // 2), (size // 2, size * 3 // 2)]


def test_a_segment_without_timestamps_that_has_grown_ages_from_its_last_change() -> None:
    on = LogOnDisk(retention_ms=WEEK_MS)
    on.append_unchecked(false_batch(-1, -1))
    on.flush()
    assert on.retain(on.now_ms) == 0
    on.now_ms += 6 * DAY_MS
    on.append_unchecked(false_batch(-1, largest=0))
    on.flush()
    assert on.retain(on.now_ms + 3 * DAY_MS) == 0
    assert on.retain(on.now_ms + WEEK_MS + 1) == 1


def test_damage_in_a_segment_that_is_looked_at_leaves_it_to_its_last_change() -> None:
    on = LogOnDisk(retention_ms=WEEK_MS)
    old = NOW_MS - 2 * DAY_MS
    for _ in range(2):
        on.append_batch(false_batch(NOW_MS - DAY_MS, NOW_MS - DAY_MS, base=old, largest=old))
    on.flush()
    on.flip(on.path(0), on.log.size_bytes // 2 + 16)
    assert on.retain(NOW_MS + WEEK_MS - 1) == 0
    assert on.retain(NOW_MS + WEEK_MS + 1) == 1


def test_records_are_looked_at_in_a_process_of_its_own() -> None:
    on = LogOnDisk()
    on.append_unchecked(false_batch(NOW_MS, NOW_MS + 7, largest=5))
    on.append_unchecked(false_batch(-1, -1, largest=9))
    part = SegmentPart(on.path(0), 0, 0, on.log.size_bytes)
    reports: list[bytes] = []
    find_times_in_child(ChildResources(on.disk, lambda: 0.0, lambda _: None), part.encode(), reports.append)
    assert [RecordTimes.decode(report) for report in reports] == [RecordTimes(NOW_MS + 7, False, "")]
    garbage = false_batch(NOW_MS, NOW_MS, largest=6)
    garbage[61:] = b"\xff" * (len(garbage) - 61)
    on.append_unchecked(garbage)
    part = part._replace(position=part.end, end=on.log.size_bytes)
    assert find_times(on.disk.open(part.path), part) == RecordTimes(-1, True, "")
    with pytest.raises((TypeError, ValueError)):
        RecordTimes.decode(json.dumps([1, 2]).encode())


# Rolls, compaction


def bases_after(*batches: bytearray, **settings: Any) -> list[int]:
    on = LogOnDisk(retention_ms=-1, **settings)
    for batch in batches:
        on.append_batch(batch)
    return on.bases()


def test_rolls_by_time_follow_from_records() -> None:
    old = NOW_MS - MONTH_MS
    usual = [false_batch(NOW_MS, NOW_MS + 1), false_batch(NOW_MS + 2, NOW_MS + 3)]
    first_is_false = [false_batch(NOW_MS, NOW_MS + 1, base=old, largest=old), usual[1]]
    second_is_false = [false_batch(old, old + 1), false_batch(old, old + 3, largest=NOW_MS)]
    true = [false_batch(old, old + 1), false_batch(NOW_MS, NOW_MS + 1)]
    for batches in (usual, first_is_false, second_is_false):
        assert bases_after(*batches) == [0]
    assert bases_after(*true) == [0, 2]
    assert bases_after(*true, *usual) == [0, 2]


def test_after_a_restart_a_false_first_batch_does_not_roll_either() -> None:
    on = LogOnDisk(retention_ms=-1)
    on.append_unchecked(false_batch(NOW_MS, NOW_MS + 1, largest=0))
    on.restart()
    on.append(b"next")
    assert on.bases() == [0]


def test_segments_without_times_are_compacted_when_their_last_change_is_old_enough() -> None:
    on = LogOnDisk(cleanup_policy="compact", min_compaction_lag_ms=DAY_MS)
    on.append_batch(false_batch(-1, -1, largest=0))
    on.log.roll(on.now_ms)
    on.append(b"a")
    on.flush()
    assert cleanable_part(on.log, None, on.log.log_end_offset, NOW_MS + DAY_MS - 1).dirty_bytes == 0
    assert cleanable_part(on.log, None, on.log.log_end_offset, NOW_MS + DAY_MS).dirty_bytes > 0


# Look-ups


@pytest.mark.parametrize("again", [None, LogOnDisk.restart, LogOnDisk.kill])
@pytest.mark.parametrize("how", ["checked", "unchecked"])
@pytest.mark.parametrize("largest", [None, 0])
def test_the_largest_timestamp_where_no_record_has_one(
    again: Callable[[LogOnDisk], object] | None, how: str, largest: int | None
) -> None:
    on = LogOnDisk(segment_bytes=300, retention_ms=-1)
    assert run_all(find_max_timestamp(on.log)) is None
    for _ in range(9):
        batch = false_batch(-1, -1, largest=largest)
        on.append_batch(batch) if how == "checked" else on.append_unchecked(batch)
    on.flush()
    if again is not None:
        again(on)
    assert len(on.bases()) > 2
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(0, -1, 0)
    assert run_all(find_timestamp(on.log, 0)) is None
    on.log.delete_before(3)
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(3, -1, 0)
    on.append(b"a", b"b", timestamps=[NOW_MS, NOW_MS + 5])
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(19, NOW_MS + 5, 0)
    assert run_all(find_timestamp(on.log, 0)) == TimestampOffset(18, NOW_MS, 0)


def test_a_plausible_false_largest_timestamp_names_its_batch_and_the_records_own_time() -> None:
    on = LogOnDisk()
    on.append_batch(false_batch(NOW_MS, NOW_MS + 3, NOW_MS + 1, largest=NOW_MS + 50))
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(1, NOW_MS + 3, 0)


def test_the_undecoded_rest_of_a_batch_comes_after_its_decoded_records() -> None:
    on = LogOnDisk()
    batch = encode_batch([Record(b"k", b"v", NOW_MS + number) for number in range(3)])
    batch[-1] = 1  # the last record states a negative number of headers
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    on.append_unchecked(batch)
    assert run_all(find_timestamp(on.log, NOW_MS + 1)) == TimestampOffset(1, NOW_MS + 1, 0)
    assert run_all(find_timestamp(on.log, NOW_MS + 2)) == TimestampOffset(2, NOW_MS + 2, 0)
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(2, NOW_MS + 2, 0)


def test_a_record_that_is_too_short_for_its_timestamp_is_named_so() -> None:
    with pytest.raises(MalformedMessage, match="a record states 1 bytes, which are too few"):
        largest_timestamp(b"\2\0\0\0", 1, 0)
    with pytest.raises(MalformedMessage, match="a record states 60 bytes, but 3 are left"):
        largest_timestamp(b"\x78\0\0\0", 1, 0)


def test_indexes_made_anew_correct_what_an_earlier_version_wrote() -> None:
    on = LogOnDisk(index_interval_bytes=0)
    for number in range(3):
        on.append_unchecked(false_batch(NOW_MS + number, NOW_MS + number, largest=0))
    assert run_all(find_timestamp(on.log, NOW_MS + 1)) is None
    on.kill()
    assert run_all(find_timestamp(on.log, NOW_MS + 1)) == TimestampOffset(2, NOW_MS + 1, 0)
    assert run_all(find_max_timestamp(on.log)) == TimestampOffset(4, NOW_MS + 2, 0)


def test_settings_change_what_would_be_due() -> None:
    """A batch within the retention is taken at its word; with a shorter retention its records are looked at."""
    old = NOW_MS - 2 * DAY_MS
    for retention_ms, expected in ((WEEK_MS, old), (DAY_MS, NOW_MS), (-1, old)):
        on = LogOnDisk(LogConfig(retention_ms=retention_ms))
        batch = false_batch(NOW_MS, NOW_MS, base=old, largest=old)
        on.append_batch(batch)
        assert BatchHeader(batch).max_timestamp == expected


def test_a_time_index_drops_what_a_false_header_made_it_say() -> None:
    """The second batch's entry says that nothing before it is later: a scan finds that the first one is."""
    on = LogOnDisk(index_interval_bytes=1 << 20)
    on.append_unchecked(false_batch(NOW_MS, NOW_MS, largest=0))
    on.append_unchecked(false_batch(5, 5))
    on.flush()
    on.restart()
    on.log.segments.active.finish()
    on.kill()
    on.append(b"later", timestamps=[NOW_MS + 1])
    on.restart()
    on.log.segments.active.times.check_rows()
    assert run_all(find_timestamp(on.log, 6)) == TimestampOffset(0, NOW_MS, 0)
