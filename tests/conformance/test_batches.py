"""The batch builder, and the decoded form that is compared."""

import struct

import pytest
from kio.records.readers import read_batch

from tidelog.wire.records import decode_records

from .batches import BASE_TIMESTAMP_MS, HEADER, batch, decode_batches, message_set, varint


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_built_can_be_decoded(codec: str) -> None:
    plain = decode_batches(batch(records=3, headers=2, value="value-#"))[0]
    (told,) = decode_batches(batch(records=3, headers=2, value="value-#", codec=codec))
    assert told["crc"] == "sound"
    assert told["records"] == plain["records"]
    assert ("length" in told) == (codec == "none")


def test_others_read_the_same_records() -> None:
    data = batch(records=2, key="k#", value="v#", headers=1, step_ms=5, producer=7, epoch=1, sequence=3)
    read, _ = read_batch(data, 0)
    expected = [(0, b"k0", b"v0", 1), (1, b"k1", b"v1", 1)]
    assert [(r.offset, r.key, r.value, len(r.headers)) for r in read.records] == expected
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (7, 1, 3)
    assert [r.timestamp for r in decode_records(data, 0)] == [BASE_TIMESTAMP_MS, BASE_TIMESTAMP_MS + 5]


def test_size_is_that_of_the_value() -> None:
    assert len(batch(size=229)) == 300
    assert len(batch(size=230)) == 301


def test_damage() -> None:
    assert decode_batches(batch(crc="bad"))[0]["crc"] == "wrong"
    assert decode_batches(batch(truncate=3)) == [{"cut": batch()[:-3]}]
    assert decode_batches(batch() + batch(truncate=60))[1:] == [{"cut": batch()[:10]}]
    assert decode_batches(batch(garbage=20, attributes=1))[0]["undecompressed"] is True
    fields = HEADER.unpack_from(batch(records=2, count=9, last_offset_delta=-1, base_offset=5, magic=3, control=True))
    assert (fields[0], fields[3], fields[5], fields[6], fields[-1]) == (5, 3, 0x20, -1, 9)


def test_old_message_sets_have_their_size_and_magic() -> None:
    for magic in (0, 1):
        data = message_set(magic=magic)
        assert struct.unpack_from(">qi", data)[1] == len(data) - 12
        assert data[16] == magic


@pytest.mark.parametrize(("number", "text"), [(0, "00"), (-1, "01"), (1, "02"), (64, "8001"), (-65, "8101")])
def test_varints(number: int, text: str) -> None:
    assert varint(number).hex() == text
