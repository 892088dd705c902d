"""compression.type: the same records in another codec."""

import json
import random
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log.config import LogConfig
from tidelog.log.recompression import NotInline, Recompression, recompress, recompression
from tidelog.log.validation import EXAMINED_RECORDS_MAX
from tidelog.wire.batches import HEADER_BYTES, BatchHeader, Codec, check_produced
from tidelog.wire.errors import ApiError, ErrorCode, RecordListTooLarge, RecordTooLarge
from tidelog.wire.records import Record, decode_records, encode_batch

TEXT = b" ".join(b"word-%d" % (number * number % 997) for number in range(4000))


def wanted(codec: Codec, level: int | None = None, batch_bytes_max: int = 1 << 20) -> Recompression:
    return Recompression(codec, level, batch_bytes_max)


def again(batch: bytearray, target: Recompression, inline_bytes_max: int = 0) -> bytearray:
    return recompress(memoryview(batch), BatchHeader(batch), target, inline_bytes_max)


records = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=200),
        timestamp=st.integers(min_value=-1, max_value=1 << 41),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "damage" / "recompressed.json").read_text())
"""See PROVENANCE.md there."""
FLIPS = (0x01, 0x24, 0x80, 0xFF)
LETTERS = {ErrorCode.INVALID_RECORD: "i", ErrorCode.UNKNOWN_SERVER_ERROR: "b"}


@pytest.mark.parametrize("form", GOLDEN["forms"])
def test_a_changed_byte_is_answered_as_by_kafka(form: str) -> None:
    payload = bytes.fromhex(GOLDEN["forms"][form]["payload"])
    codec = Codec[form.partition("-")[0].upper()]
    target = wanted(Codec.ZSTD if codec is Codec.GZIP else Codec.GZIP)
    template = encode_batch([Record(None, None, 1_750_000_000_000)] * 4, codec=codec)[:HEADER_BYTES]
    answers = ""
    for at in range(len(payload)):
        for flip in FLIPS:
            batch = template + payload
            batch[HEADER_BYTES + at] ^= flip
            batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
            try:
                again(batch, target)
                answers += "0"
            except ApiError as error:
                answers += LETTERS[ErrorCode(error.code)]
    assert answers == GOLDEN["forms"][form]["answers"]


def test_a_batch_of_too_many_records_is_refused_before_it_is_decompressed() -> None:
    batch = encode_batch([Record(None, None, 1_750_000_000_000)], codec=Codec.ZSTD)
    batch[57:61] = (EXAMINED_RECORDS_MAX + 1).to_bytes(4, "big")
    with pytest.raises(RecordListTooLarge, match=r"1000001 records, .* recompressed for the topic's compression\.type"):
        again(batch, wanted(Codec.GZIP))


@given(records, st.sampled_from(Codec), st.sampled_from(Codec), st.booleans())
def test_the_records_are_the_same(content: list[Record], source: Codec, target: Codec, append_time: bool) -> None:
    stamp = 1_750_000_000_000 if append_time else None
    batch = encode_batch(
        content, codec=source, producer_id=7, producer_epoch=3, base_sequence=11, log_append_time_ms=stamp
    )
    result = again(batch, wanted(target))
    before, after = BatchHeader(batch), BatchHeader(result)
    assert check_produced(memoryview(result)).crc_ok()
    assert after.codec == target
    assert (after.attributes & ~7, after.size) == (before.attributes & ~7, len(result))
    for field in ("base_offset", "leader_epoch", "last_offset_delta", "count", "base_timestamp", "max_timestamp"):
        assert getattr(after, field) == getattr(before, field), field
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (7, 3, 11)
    assert decode_records(result) == decode_records(batch)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"compression_type": "producer", "compression_zstd_level": 9}, None),
        ({"compression_type": "uncompressed"}, (Codec.NONE, None)),
        ({"compression_type": "snappy"}, (Codec.SNAPPY, None)),
        ({"compression_type": "gzip"}, (Codec.GZIP, None)),
        ({"compression_type": "gzip", "compression_gzip_level": 9}, (Codec.GZIP, 9)),
        ({"compression_type": "lz4"}, (Codec.LZ4, None)),
        ({"compression_type": "lz4", "compression_lz4_level": 12}, (Codec.LZ4, 12)),
        ({"compression_type": "zstd"}, (Codec.ZSTD, 3)),
        ({"compression_type": "zstd", "compression_zstd_level": -5}, (Codec.ZSTD, -5)),
    ],
)
def test_what_a_topic_wants(settings: dict[str, object], expected: tuple[Codec, int | None] | None) -> None:
    found = recompression(LogConfig(**settings, max_message_bytes=300))  # type: ignore[arg-type]
    assert found == (None if expected is None else Recompression(*expected, 300))


@pytest.mark.parametrize(("codec", "fast", "small"), [(Codec.GZIP, 1, 9), (Codec.LZ4, None, 12), (Codec.ZSTD, -50, 19)])
def test_a_higher_level_is_smaller(codec: Codec, fast: int | None, small: int) -> None:
    batch = encode_batch([Record(b"k", TEXT, 1)])
    sizes = [len(again(batch, wanted(codec, level))) for level in (fast, small)]
    assert sizes[0] > sizes[1]
    assert decode_records(again(batch, wanted(codec, small)))[0].value == TEXT


@pytest.mark.parametrize("level", [None, 1, 12, 17])
def test_lz4_is_in_the_framing_that_javas_client_reads(level: int | None) -> None:
    """Version 1, independent blocks of 64 KiB, no checksums, no size of the content."""
    content = bytes(again(encode_batch([Record(b"k", TEXT * 4, 1)]), wanted(Codec.LZ4, level))[61:])
    assert content.startswith(bytes.fromhex("04224d18 60 40 82"))
    assert TEXT * 4 in bytes(cramjam.lz4.decompress(content))


def test_slow_lz4_of_what_cannot_be_compressed() -> None:
    noise = bytes(random.Random(1).randbytes(200_000))
    batch = encode_batch([Record(b"k", noise, 1)])
    assert decode_records(again(batch, wanted(Codec.LZ4, 9)))[0].value == noise


def test_too_large_in_the_topics_codec() -> None:
    batch = encode_batch([Record(b"k", bytes(5000), 1)], codec=Codec.GZIP)
    with pytest.raises(RecordTooLarge, match=r"in the topic's compression.type .* is 300: raise it"):
        again(batch, wanted(Codec.NONE, batch_bytes_max=300))


def test_a_bomb_is_not_decompressed_whole() -> None:
    batch = encode_batch([Record(b"k", bytes(101 << 20), 1)], codec=Codec.ZSTD)
    with pytest.raises(RecordTooLarge, match="decompressed"):
        again(batch, wanted(Codec.GZIP))


def test_more_than_the_caller_would_wait_for() -> None:
    batch = encode_batch([Record(b"k", bytes(50_000), 1)], codec=Codec.ZSTD)
    with pytest.raises(NotInline):
        again(batch, wanted(Codec.GZIP), 32 << 10)


def test_garbage_under_a_good_checksum() -> None:
    batch = encode_batch([Record(b"k", b"v", 1)])
    batch[22] |= Codec.GZIP
    with pytest.raises(ApiError, match="cannot be decompressed") as caught:
        again(batch, wanted(Codec.NONE))
    assert caught.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
