"""The codecs: round trips, framings, limits, broken data."""

import gzip
import random
from typing import Any

import cramjam
import lz4.frame
import pytest

from tidelog.wire.batches import Codec
from tidelog.wire.compression import compress, decompress
from tidelog.wire.primitives import BrokenStream, MalformedMessage, TooLargeDecompressed

LIMIT = 1 << 20
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
NOISE = random.Random(1).randbytes(200_000)
PAYLOADS = {
    "empty": b"",
    "byte": b"x",
    "text": b"orders and stock " * 3,
    "blocks": b"0123456789abcdef" * 20_000,
    "noise": NOISE,
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_round_trip(codec: Codec, payload: bytes, buffer: Any) -> None:
    assert bytes(decompress(codec, buffer(bytes(compress(codec, buffer(payload)))), LIMIT)) == payload


def test_gzip_is_the_common_format() -> None:
    assert gzip.decompress(compress(Codec.GZIP, b"abc")) == b"abc"
    assert bytes(decompress(Codec.GZIP, gzip.compress(b"abc") + gzip.compress(b"def"), LIMIT)) == b"abcdef"


def test_lz4_blocks_are_independent() -> None:
    """The Java client refuses frames whose blocks depend on each other."""
    frame = bytes(compress(Codec.LZ4, PAYLOADS["blocks"]))
    assert frame[:7].hex() == "04224d18604082"
    assert frame[4] & 0x20
    assert frame.endswith(bytes(4))
    whole = bytearray(len(PAYLOADS["blocks"]))
    assert cramjam.lz4.decompress_into(frame, whole) == len(whole)


def test_lz4_blocks_that_do_not_shrink_are_stored() -> None:
    frame = bytes(compress(Codec.LZ4, NOISE))
    assert int.from_bytes(frame[7:11], "little") == 65_536 | 1 << 31
    assert frame[11 : 11 + 65_536] == NOISE[:65_536]


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("checksums", [True, False])
def test_lz4_frames_of_others_are_read(block_size: int, checksums: bool) -> None:
    frame = lz4.frame.compress(
        PAYLOADS["blocks"],
        block_size=block_size,
        block_linked=False,
        content_checksum=checksums,
        block_checksum=checksums,
        store_size=checksums,
    )
    assert bytes(decompress(Codec.LZ4, frame, LIMIT)) == PAYLOADS["blocks"]


def test_lz4_blocks_that_depend_on_each_other_are_refused() -> None:
    """As by Kafka's reader, which the Java client and the broker have in common."""
    linked = bytes(cramjam.lz4.compress(PAYLOADS["blocks"]))
    assert not linked[4] & 0x20
    with pytest.raises(BrokenStream, match="depend on each other"):
        decompress(Codec.LZ4, linked, LIMIT)


def test_snappy_is_written_as_java_does() -> None:
    data = bytes(compress(Codec.SNAPPY, PAYLOADS["blocks"]))
    assert data[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    size = int.from_bytes(data[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(data[20 : 20 + size])) == PAYLOADS["blocks"][:32_768]


def test_bare_snappy_is_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"abc" * 50)), LIMIT)) == b"abc" * 50


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused(codec: Codec) -> None:
    bomb = bytes(compress(codec, bytes(8 << 20)))
    with pytest.raises(TooLargeDecompressed):
        decompress(codec, bomb, LIMIT)
    assert len(decompress(codec, bomb, 8 << 20)) == 8 << 20


def test_a_bare_snappy_bomb_is_refused_by_its_claim() -> None:
    claim = bytes.fromhex("ffffffff0f")
    with pytest.raises(TooLargeDecompressed):
        decompress(Codec.SNAPPY, claim + bytes((1 << 32) // 22), LIMIT)
    with pytest.raises(BrokenStream, match="a chunk of 8 bytes states that it decompresses to 4294967295 bytes"):
        decompress(Codec.SNAPPY, claim + b"abc", LIMIT)


def test_a_bare_snappy_block_of_the_greatest_growth_is_read() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    assert len(block) * 22 > 1 << 20
    with pytest.raises(TooLargeDecompressed):
        decompress(Codec.SNAPPY, block, (1 << 20) - 1)


def test_many_snappy_blocks_share_the_limit() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(30_000)))
    data = b"\x82SNAPPY\x00" + bytes.fromhex("0000000100000001") + (len(block).to_bytes(4, "big") + block) * 40
    with pytest.raises(TooLargeDecompressed):
        decompress(Codec.SNAPPY, data, LIMIT)
    assert len(decompress(Codec.SNAPPY, data, 1_200_000)) == 1_200_000


@pytest.mark.parametrize("codec", CODECS)
def test_broken_data(codec: Codec) -> None:
    good = bytes(compress(codec, PAYLOADS["text"]))
    for broken in (b"garbage!" * 4, good[: len(good) // 2], good[:-1]):
        with pytest.raises(MalformedMessage, match=codec.name.lower()):
            decompress(codec, broken, LIMIT)


@pytest.mark.parametrize(
    "data",
    ["82534e4150505900", "82534e4150505900 00000001 0000", "82534e4150505900 00000001 00000001 7fffffff 00"],
)
def test_broken_xerial_framing(data: str) -> None:
    with pytest.raises(MalformedMessage):
        decompress(Codec.SNAPPY, bytes.fromhex(data), LIMIT)


@pytest.mark.parametrize("rest", ["", "00", "0000", "000000"])
def test_less_than_a_size_after_xerials_header_is_the_end(rest: str) -> None:
    """Kafka's reader finds no bytes in it, and a batch has at least one record."""
    assert not decompress(Codec.SNAPPY, bytes.fromhex("82534e4150505900 00000001 00000001" + rest), LIMIT)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(MalformedMessage, match="not known"):
        decompress(codec, b"", LIMIT)
    with pytest.raises(ValueError, match="not known"):
        compress(codec, b"")
