"""Batches that a topic's settings refuse or rewrite. The expectations are answers of a live Kafka 4.3.1."""

import struct
from typing import Any

import pytest

from log_harness import NOW_MS, make_batch
from tidelog.log.config import LogConfig
from tidelog.log.validation import (
    EXAMINED_RECORDS_MAX,
    INLINE_BYTES_MAX,
    INLINE_RECORDS_MAX,
    RECORD_ERRORS_MAX,
    NotInline,
    RefusedRecords,
    check_client_batch,
    examine,
)
from tidelog.wire.batches import DECOMPRESSED_BYTES_MAX, BatchHeader, TimestampType
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ApiError, ErrorCode, RecordListTooLarge, RecordTooLarge
from tidelog.wire.records import Record, decode_records, encode_batch

HOUR_MS = 3_600_000


def check(batch: bytearray, **settings: Any) -> int:
    return check_client_batch(memoryview(batch), BatchHeader(batch), LogConfig(**settings), NOW_MS)


def refused(batch: bytearray, **settings: Any) -> ApiError:
    before = bytes(batch)
    with pytest.raises(ApiError) as error:
        check(batch, **settings)
    assert bytes(batch) == before
    return error.value


def seal(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


@pytest.mark.parametrize("codec", [0, 1])
def test_records_out_of_the_time_limits_are_named(codec: int) -> None:
    times = [NOW_MS, NOW_MS + HOUR_MS + 1, NOW_MS + HOUR_MS]
    error = refused(make_batch(b"a", b"b", b"c", timestamps=times, codec=codec))
    assert isinstance(error, RefusedRecords)
    assert (error.code, [index for index, _ in error.record_errors]) == (ErrorCode.INVALID_TIMESTAMP, [1])
    error = refused(make_batch(b"a", b"b", timestamps=[NOW_MS - 2000, NOW_MS]), message_timestamp_before_max_ms=1000)
    assert isinstance(error, RefusedRecords)
    assert [index for index, _ in error.record_errors] == [0]


def test_records_within_the_limits_or_without_a_time_are_taken_as_they_are() -> None:
    for times in ([NOW_MS + HOUR_MS], [0], [-1]):
        batch = make_batch(b"a", timestamps=times)
        before = bytes(batch)
        assert check(batch) == -1
        assert bytes(batch) == before
    assert check(make_batch(b"a", timestamps=[-1]), message_timestamp_before_max_ms=5) == -1


def test_a_false_largest_timestamp_is_put_right_where_it_matters() -> None:
    batch = make_batch(b"a", b"b", timestamps=[NOW_MS, NOW_MS + 5])
    struct.pack_into(">q", batch, 35, NOW_MS + 2 * HOUR_MS)
    assert check(seal(batch)) == -1
    header = BatchHeader(batch)
    assert (header.max_timestamp, header.crc_ok()) == (NOW_MS + 5, True)


def test_a_producer_that_says_log_append_time_is_overruled() -> None:
    batch = encode_batch([Record(b"k", b"v", NOW_MS)], log_append_time_ms=NOW_MS - 5)
    assert check(batch) == -1
    header = BatchHeader(batch)
    assert (header.timestamp_type, header.max_timestamp, header.crc_ok()) == (
        TimestampType.CREATE_TIME,
        NOW_MS - 5,
        True,
    )
    future = encode_batch([Record(b"k", b"v", NOW_MS)], log_append_time_ms=NOW_MS + 2 * HOUR_MS)
    assert refused(future).code == ErrorCode.INVALID_TIMESTAMP
    without = encode_batch([Record(b"k", b"v", -1)], log_append_time_ms=-1)
    assert refused(without).code == ErrorCode.INVALID_TIMESTAMP


def test_log_append_time_replaces_every_time_and_checks_none() -> None:
    batch = make_batch(b"a", b"b", timestamps=[5, NOW_MS + 100 * HOUR_MS])
    assert check(batch, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1) == NOW_MS
    assert [record.timestamp for record in decode_records(batch)] == [NOW_MS, NOW_MS]
    assert BatchHeader(batch).crc_ok()


def test_sizes() -> None:
    batch = make_batch(bytes(300))
    error = refused(batch, max_message_bytes=100, segment_bytes=50)
    assert isinstance(error, RecordTooLarge)
    assert isinstance(refused(batch, max_message_bytes=1000, segment_bytes=50), RecordListTooLarge)
    assert check(batch, max_message_bytes=len(batch), segment_bytes=len(batch)) == -1


@pytest.mark.parametrize("codec", [0, 1])
def test_compacted_topics_take_no_record_without_a_key(codec: int) -> None:
    records = [Record(b"k", b"a", NOW_MS), Record(None, b"b", NOW_MS)]
    error = refused(encode_batch(records, codec=codec), cleanup_policy="compact,delete")
    assert isinstance(error, RefusedRecords)
    assert (error.code, [index for index, _ in error.record_errors]) == (ErrorCode.INVALID_RECORD, [1])
    assert check(encode_batch(records, codec=codec)) == -1
    # Keys are looked at before times.
    late = encode_batch([Record(None, b"a", NOW_MS + 9 * HOUR_MS)])
    assert refused(late, cleanup_policy="compact").code == ErrorCode.INVALID_RECORD


def garbage() -> bytearray:
    batch = make_batch(b"a", b"b")
    batch[61:] = b"\xff" * (len(batch) - 61)
    return seal(batch)


def miscounted() -> bytearray:
    batch = make_batch(b"a", b"b", b"c")
    struct.pack_into(">i", batch, 23, 1)
    struct.pack_into(">i", batch, 57, 2)
    return seal(batch)


def disordered() -> bytearray:
    batch = make_batch(b"a", b"b", b"c")
    first = batch.index(b"a", 61)
    batch[first + 5] = 4  # the offset delta of the second record, zigzag 2 in place of 1
    return seal(batch)


def test_full_validation_decodes_what_the_header_check_lets_pass() -> None:
    for batch in (garbage(), disordered()):
        assert check(bytearray(batch)) == -1
    assert refused(garbage(), record_validation="full").code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert refused(miscounted(), record_validation="full").code in (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_RECORD,
    )


def test_full_validation_refuses_offsets_that_do_not_count_up() -> None:
    records = make_batch(b"a", b"b", b"c")
    deltas = [record.offset for record in decode_records(disordered())]
    assert deltas != [record.offset for record in decode_records(records)]
    assert refused(disordered(), record_validation="full").code == ErrorCode.INVALID_RECORD


def test_full_validation_puts_a_false_largest_timestamp_right() -> None:
    batch = make_batch(b"a", b"b", timestamps=[NOW_MS, NOW_MS + 5])
    struct.pack_into(">q", batch, 35, NOW_MS + 50)
    assert check(seal(batch), record_validation="full") == -1
    assert BatchHeader(batch).max_timestamp == NOW_MS + 5
    assert BatchHeader(batch).crc_ok()


def test_settings_are_taken_by_their_kafka_names() -> None:
    config = LogConfig.from_settings(
        {"segment.bytes": 5, "message.timestamp.after.max.ms": 7, "compression.type": "zstd"}
    )
    assert (config.segment_bytes, config.message_timestamp_after_max_ms, config.segment_ms) == (5, 7, 604_800_000)
    assert (LogConfig().compacts, LogConfig().deletes) == (False, True)
    assert LogConfig(cleanup_policy="compact,delete").compacts


def many(count: int, codec: int = 4, value: bytes | None = b"", **fields: Any) -> bytearray:
    return encode_batch([Record(b"k", value, NOW_MS)] * count, codec=codec, **fields)


def test_compacted_topics_take_no_offsets_that_do_not_count_up() -> None:
    """By a higher one a record would supersede what comes after it."""
    assert refused(disordered(), cleanup_policy="compact").code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"record_validation": "full"}])
@pytest.mark.parametrize(
    "batch", [many(INLINE_RECORDS_MAX + 1), many(1, value=bytes(INLINE_BYTES_MAX))], ids=["many", "large"]
)
def test_what_takes_long_is_for_a_thread(batch: bytearray, settings: dict[str, Any]) -> None:
    config = LogConfig(max_message_bytes=1 << 24, **settings)
    header = BatchHeader(batch)
    with pytest.raises(NotInline):
        check_client_batch(memoryview(batch), header, config, NOW_MS)
    examined = examine(batch, header, config, NOW_MS)
    assert examined == (config, NOW_MS)
    assert check_client_batch(memoryview(batch), header, config, NOW_MS, examined) == -1
    # What was found with other settings says nothing about these.
    with pytest.raises(NotInline):
        check_client_batch(memoryview(batch), header, LogConfig(**settings), NOW_MS, examined)


APPEND_TIME_BIT = 8


@pytest.mark.parametrize(
    ("settings", "base", "largest", "attributes", "reason"),
    [
        ({"cleanup_policy": "compact"}, NOW_MS, NOW_MS, 0, "the topic is compacted"),
        ({"record_validation": "full"}, NOW_MS, NOW_MS, 0, "the topic has record.validation=full"),
        ({}, NOW_MS, -1, APPEND_TIME_BIT, "an append time, but no timestamp"),
        ({}, NOW_MS, NOW_MS - 1, 0, "the two timestamps in its header contradict each other"),
        ({}, -1, NOW_MS, 0, "the two timestamps in its header contradict each other"),
        ({}, NOW_MS, NOW_MS + 2 * HOUR_MS, 0, "a timestamp in the future"),
        ({}, 0, NOW_MS, 0, "a timestamp that is 0 or older than retention.ms"),
        ({}, NOW_MS - 1000 * HOUR_MS, NOW_MS, 0, "a timestamp that is 0 or older than retention.ms"),
        (
            {"message_timestamp_before_max_ms": 1000},
            NOW_MS - 2000,
            NOW_MS,
            0,
            r"that the topic's settings message\.timestamp\.\* do not allow",
        ),
        ({}, NOW_MS, NOW_MS, 0, "a timestamp that would begin a new segment"),
    ],
)
def test_more_records_than_a_thread_should_examine_are_refused_with_the_reason_for_the_examination(
    settings: dict[str, Any], base: int, largest: int, attributes: int, reason: str
) -> None:
    batch = many(2)
    struct.pack_into(">hi", batch, 21, attributes, EXAMINED_RECORDS_MAX)
    struct.pack_into(">qq", batch, 27, base, largest)
    struct.pack_into(">i", batch, 57, EXAMINED_RECORDS_MAX + 1)
    header = BatchHeader(seal(batch))
    config = LogConfig(**settings)
    with pytest.raises(
        RecordListTooLarge,
        match=f"states 1000001 records, which have to be examined because .*{reason}.*at most 1000000",
    ):
        examine(batch, header, config, NOW_MS)
    with pytest.raises(NotInline):  # the reason is one for which records are examined
        check_client_batch(memoryview(batch), header, config, NOW_MS, would_roll="new segment" in reason)


def test_more_bytes_than_there_is_room_for_are_refused() -> None:
    batch = many(1, value=bytes(DECOMPRESSED_BYTES_MAX))
    with pytest.raises(RecordListTooLarge, match="decompressed"):
        examine(batch, BatchHeader(batch), LogConfig(cleanup_policy="compact"), NOW_MS)


def test_of_many_refused_records_some_are_named_and_all_are_counted() -> None:
    late = encode_batch([Record(None, b"", NOW_MS + 9 * HOUR_MS)] * 3000)
    for settings in ({}, {"cleanup_policy": "compact"}):
        error = refused(late, **settings)
        assert isinstance(error, RefusedRecords)
        assert len(error.record_errors) == RECORD_ERRORS_MAX
        assert "3000 of 3000" in error.message
