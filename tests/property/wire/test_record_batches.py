"""Record batches: round trips, kio's reader as oracle, and hostile bytes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records import parser as kio_parser
from wire_values import CONTENTS, TEXTS, wire_settings

from tidelog.wire.batches import BatchHeader, Codec
from tidelog.wire.compression import compress, decompress
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

TIMESTAMPS = st.integers(0, 2**41) | st.sampled_from([-1, 0, 2**50])
RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | CONTENTS,
        value=st.none() | CONTENTS,
        timestamp=TIMESTAMPS,
        headers=st.lists(st.tuples(TEXTS, st.none() | CONTENTS), max_size=3),
    ),
    min_size=1,
    max_size=5,
)
SECONDS_MAX = 2.0


@pytest.mark.parametrize("codec", list(Codec))
@wire_settings
@given(records=RECORDS, base_offset=st.integers(0, 2**62))
def test_round_trip(codec: Codec, records: list[Record], base_offset: int) -> None:
    batch = encode_batch(records, base_offset=base_offset, codec=codec)
    assert BatchHeader(batch).crc_ok()
    decoded = decode_records(batch)
    assert [record.offset for record in decoded] == list(range(base_offset, base_offset + len(records)))
    for ours, theirs in zip(decoded, records, strict=True):
        assert (ours.key, ours.value, ours.timestamp) == (theirs.key, theirs.value, theirs.timestamp)
        assert list(ours.headers) == list(theirs.headers)
