"""The small parts of a pass: its pace, its memory, its groups, its inputs and results, records as byte ranges."""

import pytest

from log_harness import NOW_MS
from log_harness.compaction import PLENTY
from tidelog.log.batch_scan import BASE_TIMESTAMP, HEADER
from tidelog.log.cleaner.grouping import SegmentSizes, group_segments
from tidelog.log.cleaner.job import (
    CleanJob,
    DamageReport,
    GroupReport,
    InterruptionReport,
    SegmentFacts,
    SuccessReport,
    decode_report,
)
from tidelog.log.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from tidelog.log.cleaner.records import decompressed_records, empty_batch, raw_records, rebuild_batch
from tidelog.log.cleaner.throttle import Throttle
from tidelog.wire.batches import BatchHeader, Codec
from tidelog.wire.primitives import MalformedMessage, varint
from tidelog.wire.records import Record, decode_records, encode_batch


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_a_throttle_keeps_the_rate_over_any_while() -> None:
    time = Time()
    throttle = Throttle(1000.0, lambda: time.now, time.sleep)
    for _ in range(100):
        throttle.count(50)
    assert time.now - 100.0 == pytest.approx(5.0, abs=0.1)


def test_a_throttle_does_not_hold_what_is_slow_by_itself() -> None:
    time = Time()
    throttle = Throttle(1000.0, lambda: time.now, time.sleep)
    for _ in range(100):
        time.now += 1.0
        throttle.count(50)
    assert time.slept == 0.0


def test_no_rate_is_no_pause() -> None:
    time = Time()
    throttle = Throttle(1.7976931348623157e308, lambda: time.now, time.sleep)
    throttle.count(1 << 40)
    assert time.slept == 0.0


def test_a_full_map_takes_known_keys_only() -> None:
    offsets = OffsetMap(2 * ENTRY_BYTES, 1.0)
    assert offsets.put(b"a", 1)
    assert offsets.put(b"long enough to be a digest", 2)
    assert not offsets.put(b"c", 3)
    assert offsets.latest_offset == 2
    assert offsets.put(b"a", 4)
    assert (offsets.last_offset_of(b"a"), offsets.last_offset_of(b"c")) == (4, -1)
    offsets.mark_covered(3)
    assert offsets.latest_offset == 4


def test_a_map_always_holds_something() -> None:
    assert OffsetMap(0, 0.9).put(b"a", 1)


def test_neighbours_are_grouped_while_they_fit() -> None:
    segments = [SegmentSizes(10 * place, size, 8, 12) for place, size in enumerate((40, 50, 20, 200, 0, 100))]
    groups = group_segments(segments, end_offset=60, segment_bytes=100, index_bytes=100)
    assert [[s.base_offset for s in group] for group in groups] == [[0, 10], [20], [30], [40, 50]]


def test_indexes_and_offsets_bound_a_group_too() -> None:
    by_index = group_segments(
        [SegmentSizes(0, 1, 60, 0), SegmentSizes(10, 1, 60, 0)], end_offset=20, segment_bytes=100, index_bytes=100
    )
    assert len(by_index) == 2
    far = 1 << 31
    by_offset = group_segments(
        [SegmentSizes(0, 1, 0, 0), SegmentSizes(10, 1, 0, 0)], end_offset=far + 1, segment_bytes=100, index_bytes=100
    )
    assert len(by_offset) == 2
    near = group_segments(
        [SegmentSizes(0, 1, 0, 0), SegmentSizes(10, 1, 0, 0)], end_offset=far, segment_bytes=100, index_bytes=100
    )
    assert len(near) == 1


def test_a_job_and_its_reports_survive_the_pipe() -> None:
    job = CleanJob("/data/t-0", [SegmentFacts(0, 5)], 0, 9, [0], {7: (3, 1), 8: (-1, 0)}, NOW_MS, 1, 2, 3, 4, PLENTY)
    assert CleanJob.decode(job.encode()) == job
    for report in (
        GroupReport([0, 5], 10, True, NOW_MS, 4, 20, 9, 4),
        SuccessReport(9, 4),
        DamageReport("the batch's CRC"),
        InterruptionReport("no space"),
    ):
        assert decode_report(report.encode()) == report


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"group": {}}', b'{"other": {}}', b'{"cleaned": 3}', b"\xff"])
def test_a_report_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode_report(data)


RECORDS = [
    Record(b"a", b"1", NOW_MS, [("name", b"value"), ("name", None)]),
    Record(None, b"", NOW_MS + 500),
    Record(b"", None, NOW_MS - 70_000),
    Record(b"k" * 300, b"v" * 20_000, NOW_MS + (1 << 40)),
]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1], [2, 3], [0, 3]])
@pytest.mark.parametrize("horizon_ms", [None, NOW_MS + 12_345])
def test_a_batch_with_fewer_records(codec: Codec, kept: list[int], horizon_ms: int | None) -> None:
    batch = encode_batch(RECORDS, base_offset=100, codec=codec, producer_id=4, producer_epoch=2, base_sequence=9)
    fields = HEADER.unpack_from(batch)
    data = decompressed_records(batch, fields)
    raw = list(raw_records(data, len(RECORDS)))
    assert [(record[4], record[5]) for record in raw] == [(r.key, r.value is not None) for r in RECORDS]
    made = rebuild_batch(fields, data, [raw[index] for index in kept], horizon_ms)
    header = BatchHeader(made)
    assert header.crc_ok()
    assert (header.base_offset, header.last_offset, header.count) == (100, 103, len(kept))
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.codec) == (4, 2, 9, codec)
    assert header.base_timestamp == (RECORDS[kept[0]].timestamp if horizon_ms is None else horizon_ms)
    assert header.max_timestamp == max(RECORDS[index].timestamp for index in kept)
    for record, index in zip(decode_records(made), kept, strict=True):
        assert record.offset == 100 + index
        was = RECORDS[index]
        assert (record.key, record.value, record.timestamp, list(record.headers)) == (
            was.key,
            was.value,
            was.timestamp,
            list(was.headers),
        )


def test_a_batch_of_append_time_keeps_it() -> None:
    batch = encode_batch(RECORDS, log_append_time_ms=NOW_MS + 9)
    fields = HEADER.unpack_from(batch)
    data = decompressed_records(batch, fields)
    raw = list(raw_records(data, len(RECORDS)))
    assert [r.timestamp for r in decode_records(rebuild_batch(fields, data, raw[1:3], None))] == [NOW_MS + 9] * 2


def test_a_batch_without_records_says_what_was_there() -> None:
    batch = encode_batch(RECORDS, base_offset=100, codec=Codec.ZSTD, producer_id=4, producer_epoch=2, base_sequence=9)
    header = BatchHeader(empty_batch(HEADER.unpack_from(batch)))
    assert header.crc_ok()
    assert (header.base_offset, header.last_offset, header.count, header.size) == (100, 103, 0, 61)
    assert (header.producer_id, header.base_sequence, header.codec) == (4, 9, Codec.NONE)
    assert decode_records(header.buffer) == []


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_records_cut_short_are_malformed(cut: int) -> None:
    batch = encode_batch(RECORDS[:2])
    data = decompressed_records(batch, HEADER.unpack_from(batch))
    with pytest.raises(MalformedMessage):
        list(raw_records(data[:-cut], 2))
    with pytest.raises(MalformedMessage):
        list(raw_records(data, 1))
    with pytest.raises(MalformedMessage):
        list(raw_records(data, 3))


@pytest.mark.parametrize("last", [0, 2, 1_000_000])
def test_records_beyond_their_batch_supersede_nothing(last: int) -> None:
    """By an offset of its own choice, a record would take what is written after it out of the log."""
    data = decompressed_records(encode_batch(RECORDS[:2]), HEADER.unpack_from(encode_batch(RECORDS[:2])))
    raw = list(raw_records(data, 2, 1))
    (_, at, *_rest, end) = raw[1]
    delta = varint(last)
    body = data[raw[1][0] + 1 : at] + delta + data[at + 1 : end]
    with pytest.raises(MalformedMessage, match="offset delta"):
        list(raw_records(data[: raw[0][6]] + varint(len(body)) + body, 2, 1))


def test_a_time_that_is_none_cannot_be_written_anew() -> None:
    batch = encode_batch(RECORDS[:1])
    fields = list(HEADER.unpack_from(batch))
    fields[BASE_TIMESTAMP] = (1 << 63) - 1
    raw = [(*record[:2], 1, *record[3:]) for record in raw_records(bytes(batch[61:]), 1)]
    with pytest.raises(MalformedMessage, match="beyond 64 bits"):
        rebuild_batch(tuple(fields), bytes(batch[61:]), raw, None)  # type: ignore[arg-type]
