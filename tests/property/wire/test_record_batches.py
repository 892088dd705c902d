"""Record batches: round trips, comparison with kio's reader, and hostile bytes."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from test_hostile_messages import MUTATIONS, mutate
from wire_values import CONTENTS, TEXTS, wire_settings

from tidelog.wire.batches import HEADER_BYTES, BatchHeader, Codec
from tidelog.wire.compression import compress, decompress
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

SECONDS_MAX = 2.0
LIMIT_BYTES = 1 << 20


def lists_of_records(timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Record]]:
    record = st.builds(
        Record,
        key=st.none() | CONTENTS,
        value=st.none() | CONTENTS,
        timestamp=timestamps,
        headers=st.lists(st.tuples(TEXTS, st.none() | CONTENTS), max_size=3),
    )
    return st.lists(record, min_size=1, max_size=5)


RECORDS = lists_of_records(st.integers(-(2**62), 2**62) | st.sampled_from([-1, 0, 1_700_000_000_000]))


@pytest.mark.parametrize("codec", list(Codec))
@wire_settings
@given(records=RECORDS, base_offset=st.integers(0, 2**62))
def test_round_trip(codec: Codec, records: list[Record], base_offset: int) -> None:
    batch = encode_batch(records, base_offset=base_offset, codec=codec)
    assert BatchHeader(batch).crc_ok()
    decoded = decode_records(batch)
    expected = [
        Record(record.key, record.value, record.timestamp, record.headers, base_offset + index)
        for index, record in enumerate(records)
    ]
    assert decoded == expected
    assert encode_batch(decoded, base_offset=base_offset, codec=codec) == batch


@wire_settings
@given(
    records=lists_of_records(st.integers(0, 4_000_000_000_000)),
    base_offset=st.integers(0, 2**40),
    producer=st.tuples(st.integers(-1, 2**60), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1)),
    leader_epoch=st.integers(-1, 2**31 - 1),
)
def test_kio_reads_the_same(
    records: list[Record], base_offset: int, producer: tuple[int, int, int], leader_epoch: int
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    batch = encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    theirs, size = read_batch(bytes(batch), 0)
    assert size == len(batch)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == producer
    assert (theirs.partition_leader_epoch, theirs.base_offset) == (leader_epoch, base_offset)
    assert (theirs.base_timestamp, theirs.max_timestamp) == (
        records[0].timestamp,
        max(record.timestamp for record in records),
    )
    for index, (ours, found) in enumerate(zip(records, theirs.records, strict=True)):
        assert (found.key, found.value, found.offset) == (ours.key, ours.value, base_offset + index)
        assert int(found.timestamp.timestamp()) == ours.timestamp // 1000  # kio keeps whole seconds
        assert [(header.key, header.value) for header in found.headers] == [
            (name.encode(), value) for name, value in ours.headers
        ]


@pytest.mark.parametrize("codec", list(Codec))
@wire_settings
@given(records=RECORDS, mutations=MUTATIONS, keep_header=st.booleans())
def test_changed_batches(
    codec: Codec, records: list[Record], mutations: list[tuple[float, int, str]], keep_header: bool
) -> None:
    """With the header kept, sizes fit and the changed bytes reach the decoder of records or the codec."""
    batch = encode_batch(records, codec=codec)
    if keep_header:
        changed = batch[:HEADER_BYTES] + mutate(bytes(batch[HEADER_BYTES:]), mutations)
        changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    else:
        changed = bytearray(mutate(bytes(batch), mutations))
    decode_or_refuse(bytes(changed))


@wire_settings
@given(garbage=st.binary(max_size=200))
def test_garbage(garbage: bytes) -> None:
    decode_or_refuse(garbage)
    try:
        sizes = [header.size for header in batches_in(garbage)]
    except MalformedMessage:
        return
    assert sum(sizes) <= len(garbage)


def decode_or_refuse(data: bytes) -> None:
    begun = time.perf_counter()
    try:
        records = decode_records(data, limit_bytes=LIMIT_BYTES)
    except MalformedMessage:
        records = []
    assert time.perf_counter() - begun < SECONDS_MAX
    assert sum(len(record.key or b"") + len(record.value or b"") for record in records) <= max(LIMIT_BYTES, len(data))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@wire_settings
@given(payload=st.binary(max_size=300), repeat=st.sampled_from([1, 1, 50, 1000]), garbage=st.binary(max_size=100))
def test_codecs(codec: Codec, payload: bytes, repeat: int, garbage: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, payload * repeat), LIMIT_BYTES)) == payload * repeat
    with contextlib.suppress(MalformedMessage):
        assert len(decompress(codec, garbage, LIMIT_BYTES)) <= LIMIT_BYTES
