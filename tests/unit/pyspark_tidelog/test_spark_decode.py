"""Both decoders give the same columns as `tidelog.wire.records` does record by record."""

# ruff: noqa: E402 (nothing here can be imported without the skipped package)

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from pyspark_tidelog import compiled, decode_numpy
from pyspark_tidelog.decode import Decode, Decoded, MalformedRecords, Payload
from pyspark_tidelog.decode_kernel import MILLISECONDS_MAX, WANT_HEADERS, WANT_KEY, WANT_VALUE
from tidelog.wire.batches import HEADER_BYTES, BatchHeader
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

SEGMENTS = Path(__file__).parents[2] / "golden" / "wire" / "segments"
EVERYTHING = WANT_KEY | WANT_VALUE | WANT_HEADERS
INT64_MAX = (1 << 63) - 1

DECODERS = {"numpy": decode_numpy.decode}
if compiled.AVAILABLE:
    from pyspark_tidelog import decode_compiled

    DECODERS["compiled"] = decode_compiled.decode


@pytest.fixture(params=sorted(DECODERS))
def decode(request: pytest.FixtureRequest) -> Decode:
    return DECODERS[request.param]


def payload_of(batch: bytes | bytearray | memoryview, position: int = 0) -> Payload:
    header = BatchHeader(batch, position)
    data = np.frombuffer(batch, np.uint8)
    data.flags.writeable = False
    return Payload(header, data, position + HEADER_BYTES, position + header.size)


def rows_of(decoded: Decoded) -> list[tuple[object, ...]]:
    assert decoded.keys is not None
    assert decoded.values is not None
    assert decoded.headers is not None
    for column in (decoded.keys, decoded.values, decoded.headers):
        column.validate(full=True)
    headers = [h and [(header["key"], header["value"]) for header in h] for h in decoded.headers.to_pylist()]
    return list(
        zip(
            decoded.offsets.tolist(),
            decoded.timestamps_us.tolist(),
            decoded.keys.to_pylist(),
            decoded.values.to_pylist(),
            headers,
            strict=True,
        )
    )


def expected_rows(records: list[Record]) -> list[tuple[object, ...]]:
    def microseconds(ms: int) -> int:
        return max(-MILLISECONDS_MAX, min(MILLISECONDS_MAX, ms)) * 1000

    return [(r.offset, microseconds(r.timestamp), r.key, r.value, list(r.headers) or None) for r in records]


short = st.one_of(st.none(), st.binary(max_size=200))
records = st.lists(
    st.builds(
        Record,
        key=short,
        value=short,
        timestamp=st.integers(-(1 << 61), 1 << 61),
        headers=st.lists(st.tuples(st.text(max_size=5), short), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


@given(st.lists(records, min_size=1, max_size=4), st.integers(0, INT64_MAX >> 1), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_decoding_equals_record_by_record(
    name: str, batches: list[list[Record]], base_offset: int, append_time: bool, data: st.DataObject
) -> None:
    payloads, expected, offset = [], [], base_offset
    for batch in batches:
        time_ms = data.draw(st.integers(0, 1 << 61)) if append_time else None
        encoded = encode_batch(batch, base_offset=offset, log_append_time_ms=time_ms)
        payloads.append(payload_of(encoded))
        expected += decode_records(encoded)
        offset += len(batch)
    low = data.draw(st.integers(base_offset, offset))
    high = data.draw(st.integers(low, offset))
    decoded = DECODERS[name](payloads, low, high, EVERYTHING)
    assert rows_of(decoded) == expected_rows([r for r in expected if low <= r.offset < high])
    assert set(decoded.timestamp_types.tolist()) <= {int(append_time)}


@given(records, st.integers(0, 1 << 30), st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_damaged_records_are_refused_by_all_or_none(batch: list[Record], place: int, byte: int) -> None:
    encoded = encode_batch(batch)
    encoded[HEADER_BYTES + place % (len(encoded) - HEADER_BYTES)] = byte
    try:
        expected = expected_rows(decode_records(encoded))
    except MalformedMessage:
        for decode in DECODERS.values():
            with pytest.raises(MalformedRecords):
                decode([payload_of(encoded)], 0, INT64_MAX, EVERYTHING)
        return
    wanted = WANT_KEY | WANT_VALUE  # names of headers may be no UTF-8 any more
    for decode in DECODERS.values():
        decoded = decode([payload_of(encoded)], -INT64_MAX, INT64_MAX, wanted)
        assert decoded.keys is not None
        assert decoded.values is not None
        got = zip(decoded.offsets.tolist(), decoded.keys.to_pylist(), decoded.values.to_pylist(), strict=True)
        assert list(got) == [(offset, key, value) for offset, _, key, value, _ in expected]


@given(st.binary(max_size=300), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_decoded_or_refused(noise: bytes, count: int) -> None:
    batch = bytearray(encode_batch([Record(value=b"x")])[:HEADER_BYTES]) + noise
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    outcomes = []
    for decode in DECODERS.values():
        try:
            outcomes.append(decode([payload_of(batch)], -INT64_MAX, INT64_MAX, WANT_VALUE).offsets.tolist())
        except MalformedRecords:
            outcomes.append(None)
    assert outcomes.count(outcomes[0]) == len(outcomes)


@pytest.mark.parametrize("segment", sorted(SEGMENTS.glob("*.log")), ids=lambda path: path.name)
def test_segments_that_kafka_wrote(segment: Path, decode: Decode) -> None:
    raw = segment.read_bytes()
    headers = list(batches_in(raw))
    assert headers
    data = np.frombuffer(raw, np.uint8)
    payloads = [Payload(h, data, h.position + HEADER_BYTES, h.position + h.size) for h in headers]
    expected = [record for header in headers for record in decode_records(raw, header.position)]
    assert rows_of(decode(payloads, 0, INT64_MAX, EVERYTHING)) == expected_rows(expected)


def test_columns_that_are_not_wanted_are_left_out(decode: Decode) -> None:
    batch = encode_batch([Record(key=b"k", value=b"v", headers=[("h", b"x")])])
    for wanted in (0, WANT_KEY, WANT_VALUE, WANT_HEADERS):
        decoded = decode([payload_of(batch)], 0, 1, wanted)
        present = [column is not None for column in (decoded.keys, decoded.values, decoded.headers)]
        assert present == [bool(wanted & bit) for bit in (WANT_KEY, WANT_VALUE, WANT_HEADERS)]
        assert decoded.offsets.tolist() == [0]


def broken_batches() -> Iterator[tuple[str, bytearray, str]]:
    """Yield a name, a batch, and a part of the compiled decoder's message."""
    batch = encode_batch([Record(value=b"first"), Record(value=b"second")])
    first_bytes = batch[HEADER_BYTES] // 2 + 1
    too_few = bytearray(batch)
    too_few[57:61] = (3).to_bytes(4, "big")
    yield "a count above the records", too_few, f"byte {len(batch) - HEADER_BYTES} "
    too_many = bytearray(batch)
    too_many[57:61] = (1).to_bytes(4, "big")
    yield "a count below the records", too_many, f"byte {first_bytes} "
    impossible = bytearray(batch)
    impossible[57:61] = (1 << 30).to_bytes(4, "big")
    yield (
        "a count that needs more bytes",
        impossible,
        f"states {1 << 30} records, but all its records have {len(batch) - HEADER_BYTES} bytes",
    )
    longer = bytearray(batch)
    longer[HEADER_BYTES + first_bytes] += 2
    yield "a record longer than the batch", longer, f"byte {first_bytes} "
    shorter = bytearray(batch)
    shorter[HEADER_BYTES + first_bytes] -= 2
    yield "a record longer than it says", shorter, f"byte {first_bytes} "


@pytest.mark.parametrize(("batch", "message"), [pytest.param(b, m, id=name) for name, b, m in broken_batches()])
def test_malformed_records_name_their_batch(batch: bytearray, message: str) -> None:
    sound = encode_batch([Record(value=b"before")], base_offset=7)
    for name, decode in DECODERS.items():
        with pytest.raises(MalformedRecords) as raised:
            decode([payload_of(sound), payload_of(batch)], 0, INT64_MAX, EVERYTHING)
        assert raised.value.header.base_offset == 0
        if name == "compiled":
            assert message in str(raised.value)
