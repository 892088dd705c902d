"""Record batches with their records."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.wire.batches import DELETE_HORIZON_BIT, HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, Codec, TimestampType
from tidelog.wire.checksums import crc32c
from tidelog.wire.compression import compress
from tidelog.wire.primitives import MalformedMessage, TooLargeDecompressed, varint
from tidelog.wire.record_facts import RecordFacts, check_records, record_facts
from tidelog.wire.records import Record, batches_in, decode_records, decompressed_records, encode_batch

RECORDS = [
    Record(b"k", b"v", 1_700_000_000_000),
    Record(None, b"", 1_700_000_000_005, [("h", b"1"), ("h", None), ("größe", b"")]),
    Record(b"", None, 1_699_999_999_000),
    Record(b"k" * 70, b"v" * 20_000, 1_700_000_900_000),
]


def numbered(base_offset: int = 0) -> list[Record]:
    return [
        Record(record.key, record.value, record.timestamp, record.headers, base_offset + index)
        for index, record in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_round_trip(codec: Codec) -> None:
    batch = encode_batch(RECORDS, base_offset=40, codec=codec)
    assert decode_records(batch) == numbered(40)
    header = BatchHeader(batch)
    assert header.crc_ok()
    assert (header.codec, header.count, header.last_offset_delta, header.size) == (codec, 4, 3, len(batch))
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_900_000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (-1, -1, -1, -1)


def test_bytes_of_a_batch() -> None:
    batch = encode_batch([Record(b"a", b"bc", 1000, [("h", b"x")])], base_offset=7, leader_epoch=2)
    records = bytes.fromhex("1a 00 00 00 02 61 04 6263 02 02 68 02 78")
    assert batch[61:] == records
    assert batch[:17] == bytes.fromhex("0000000000000007 0000003f 00000002 02")
    assert batch[21:61] == bytes.fromhex(
        "0000 00000000 00000000000003e8 00000000000003e8 ffffffffffffffff ffff ffffffff 00000001"
    )
    assert int.from_bytes(batch[17:21], "big") == crc32c(bytes(batch[21:]))


def test_header_fields() -> None:
    batch = encode_batch(
        RECORDS,
        base_offset=9,
        leader_epoch=4,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        is_transactional=True,
        is_control=True,
        log_append_time_ms=5,
    )
    header = BatchHeader(batch)
    assert (header.base_offset, header.leader_epoch) == (9, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)
    assert header.is_transactional
    assert header.is_control
    assert header.timestamp_type == TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 5
    assert [record.timestamp for record in decode_records(batch)] == [5, 5, 5, 5]


def test_a_batch_is_writable_in_place() -> None:
    batch = encode_batch(RECORDS)
    BatchHeader(batch).assign(base_offset=1_000, leader_epoch=6)
    assert BatchHeader(batch).crc_ok()
    assert decode_records(batch) == numbered(1_000)


def test_several_batches_and_a_cut_one() -> None:
    first, second = encode_batch(RECORDS), encode_batch(RECORDS[:1], base_offset=4)
    for cut in (0, 1, 20, len(second) - 1):
        data = memoryview(bytes(b"??" + first + second + second[:cut]))
        found = list(batches_in(data, 2))
        assert [header.position for header in found] == [2, 2 + len(first)]
        assert [header.base_offset for header in found] == [0, 4]
    assert decode_records(data, 2) == numbered()
    assert list(batches_in(b"")) == []


def test_header_names_that_are_not_utf8_survive() -> None:
    batch = bytearray(encode_batch([Record(b"k", b"v", 0, [("?", b"x")])]))
    batch[batch.rindex(b"?")] = 0xFF
    (record,) = decode_records(batch)
    assert decode_records(encode_batch([record])) == [record]
    assert encode_batch([record])[61:] == batch[61:]


def rebuilt(batch: bytearray, records: bytes, *, codec: int = 0, count: int | None = None) -> bytearray:
    """The batch with other records and a size that fits; nobody here checks the CRC."""
    changed = batch[:61] + records
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[21:23] = codec.to_bytes(2, "big")
    if count is not None:
        changed[57:61] = count.to_bytes(4, "big", signed=True)
    return changed


ONE = encode_batch([Record(b"a", b"bc", 1000, [("h", b"x")])])
BODY = bytes(ONE[61:])

BROKEN: dict[str, Callable[[], bytes | bytearray]] = {
    "no header": lambda: ONE[:60],
    "fewer bytes than stated": lambda: ONE[:-1],
    "magic 0": lambda: ONE[:16] + b"\0" + ONE[17:],
    "magic 1": lambda: ONE[:16] + b"\1" + ONE[17:],
    "magic 3": lambda: ONE[:16] + b"\3" + ONE[17:],
    "a length below the least": lambda: ONE[:8] + bytes.fromhex("00000030") + ONE[12:],
    "a negative length": lambda: ONE[:8] + bytes.fromhex("fffffff0") + ONE[12:],
    "more records than stated": lambda: rebuilt(ONE, BODY * 2),
    "fewer records than stated": lambda: rebuilt(ONE, BODY, count=2),
    "a negative count": lambda: rebuilt(ONE, BODY, count=-1),
    "an impossible count": lambda: rebuilt(ONE, BODY, count=2**31 - 1),
    "a record too short": lambda: rebuilt(ONE, varint(len(BODY) - 2) + BODY[1:]),
    "a record too long": lambda: rebuilt(ONE, varint(len(BODY)) + BODY[1:] + b"\0"),
    "a negative record length": lambda: rebuilt(ONE, b"\x01" + BODY[1:]),
    "a key past the end": lambda: rebuilt(ONE, BODY[:4] + varint(2_000) + BODY[5:]),
    "a header without name": lambda: rebuilt(ONE, BODY[:10] + b"\x01" + BODY[11:]),
    "a negative count of headers": lambda: rebuilt(ONE, BODY[:9] + b"\x01" + BODY[10:]),
    "an impossible count of headers": lambda: rebuilt(ONE, BODY[:9] + b"\x7e" + BODY[10:]),
    "a codec that nobody knows": lambda: rebuilt(ONE, BODY, codec=7),
    "not compressed at all": lambda: rebuilt(ONE, BODY, codec=Codec.ZSTD),
    "garbage, compressed": lambda: rebuilt(ONE, bytes(compress(Codec.GZIP, b"garbage" * 3)), codec=Codec.GZIP),
    "nothing": lambda: rebuilt(ONE, b""),
}


@pytest.mark.parametrize("build", BROKEN.values(), ids=BROKEN.keys())
def test_broken_batches(build: Callable[[], bytes | bytearray]) -> None:
    with pytest.raises(MalformedMessage):
        decode_records(build())


def test_rebuilt_as_it_was_is_sound() -> None:
    assert decode_records(rebuilt(ONE, BODY)) == [Record(b"a", b"bc", 1000, [("h", b"x")])]
    assert decode_records(rebuilt(ONE, b"", count=0)) == []  # as compaction leaves behind


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_decompression_is_bounded(codec: Codec) -> None:
    batch = encode_batch([Record(None, bytes(1 << 20))], codec=codec)
    with pytest.raises(TooLargeDecompressed):
        decode_records(batch, limit_bytes=1 << 20)
    assert len(decode_records(batch, limit_bytes=(1 << 20) + 100)) == 1


def test_form_shows_sizes_only() -> None:
    assert repr(Record(b"secret", None, 5, offset=2)) == "Record(offset=2, timestamp=5, key=6 bytes, value=null)"


def test_equality() -> None:
    assert Record(b"a", b"b", 1) == Record(b"a", b"b", 1, ())
    assert Record(b"a", b"b", 1) != Record(b"a", b"b", 1, [("h", None)])
    assert Record(b"a") != b"a"


def facts(batch: bytes | bytearray, limit_bytes: int = 1 << 20) -> list[RecordFacts]:
    header = BatchHeader(batch)
    return list(record_facts(decompressed_records(batch, header, limit_bytes), header))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("append_time", [None, 1_700_000_111_111])
def test_facts_are_those_of_the_decoded_records(codec: Codec, append_time: int | None) -> None:
    batch = encode_batch(RECORDS, base_offset=40, codec=codec, log_append_time_ms=append_time)
    assert facts(batch) == [(r.offset - 40, r.timestamp, r.key is not None) for r in decode_records(batch)]


WITHOUT_FRAME = [name for name in BROKEN if "length" not in name and "magic" not in name and "header" not in name]


@pytest.mark.parametrize("name", [*WITHOUT_FRAME, *(n for n in BROKEN if "of headers" in n), "a header without name"])
def test_facts_of_broken_batches(name: str) -> None:
    batch = BROKEN[name]()
    if name == "fewer bytes than stated":
        batch = rebuilt(ONE, BODY[:-1])
    with pytest.raises(MalformedMessage):
        facts(batch)


@pytest.mark.parametrize("name", [*WITHOUT_FRAME, *(n for n in BROKEN if "of headers" in n), "a header without name"])
def test_the_structure_of_broken_batches(name: str) -> None:
    batch = BROKEN[name]() if name != "fewer bytes than stated" else rebuilt(ONE, BODY[:-1])
    header = BatchHeader(batch)
    with pytest.raises(MalformedMessage):
        check_records(decompressed_records(batch, header, 1 << 20), header)


@given(
    st.lists(
        st.builds(
            Record,
            st.none() | st.binary(max_size=130),
            st.none() | st.binary(max_size=130),
            st.integers(0, 1 << 42),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_the_structure_is_checked_as_the_facts_are_read(content: list[Record], data: st.DataObject) -> None:
    """Both accept the same records, also after bytes of them were changed or cut off."""
    batch = encode_batch(content)
    header = BatchHeader(batch)
    body = bytearray(batch[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.just(len(body)) | st.integers(0, len(body))) :]
    failures: list[str] = []
    for check in (check_records, lambda records, header: list(record_facts(records, header))):
        try:
            check(bytes(body), header)
        except MalformedMessage as error:
            failures.append(str(error))
    assert len(failures) != 1 or "beyond 64 bits" in failures[0] or "is too long" in failures[0], failures


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [(0, 5), (TIMESTAMP_TYPE_BIT, 9), (DELETE_HORIZON_BIT, 9)],
    ids=["create", "append", "horizon"],
)
def test_the_first_timestamp_is_not_taken_from_a_base_that_is_no_timestamp(attributes: int, expected: int) -> None:
    batch = encode_batch([Record(b"k", b"v", 5), Record(b"k", b"w", 9)])
    batch[21:23] = attributes.to_bytes(2, "big")
    if attributes == DELETE_HORIZON_BIT:
        batch[27:35] = (1 << 50).to_bytes(8, "big")
    assert BatchHeader(batch).first_timestamp_ms == expected


def test_facts_of_a_time_that_is_none() -> None:
    batch = encode_batch([Record(b"k", b"v", 5)])
    batch[27:35] = (2**63 - 1).to_bytes(8, "big")  # the base, to which the record's own is added
    batch[63] = 2
    with pytest.raises(MalformedMessage, match="beyond 64 bits"):
        facts(batch)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_facts_are_bounded(codec: Codec) -> None:
    batch = encode_batch([Record(None, bytes(1 << 20))], codec=codec)
    with pytest.raises(TooLargeDecompressed):
        facts(batch, 1 << 20)
