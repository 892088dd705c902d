"""The values that a producer may set in a batch's header."""

import struct

import pytest

from tidelog.wire.batches import RECORDS_MAX, Codec, check_produced
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import InvalidRecord
from tidelog.wire.records import Record, encode_batch


def stating(count: int, codec: Codec, records: int = 1) -> memoryview:
    """A batch of empty records that says it holds `count`."""
    batch = encode_batch([Record()] * records, codec=codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return memoryview(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_what_is_there_may_be_stated(codec: Codec) -> None:
    assert check_produced(stating(1000, codec, 1000)).count == 1000


def test_offsets_are_not_to_be_had_for_nothing() -> None:
    """A count near 2^31 would fill a segment's range of offsets with one batch of a few bytes."""
    assert check_produced(stating(10, Codec.NONE, 10)).count == 10
    with pytest.raises(InvalidRecord, match="131 bytes states 11 records"):
        check_produced(stating(11, Codec.NONE, 10))
    assert check_produced(stating(RECORDS_MAX, Codec.ZSTD)).count == RECORDS_MAX
    for count in (RECORDS_MAX + 1, 2**31 - 1):
        with pytest.raises(InvalidRecord, match="it cannot hold"):
            check_produced(stating(count, Codec.ZSTD))
