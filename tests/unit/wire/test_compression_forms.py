"""The decoder's results for every form of a compressed stream that Kafka 4.3.1 was tested with, and its limits."""

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest

from conformance.batches import CODECS, batch
from conformance.forms import ACCEPTED, BROKEN, FORMS, INVALID, XERIAL
from tidelog.wire.batches import HEADER_BYTES, BatchHeader, Codec
from tidelog.wire.compression import decompress
from tidelog.wire.primitives import BrokenStream, MalformedMessage, TooLargeDecompressed
from tidelog.wire.record_facts import record_facts

LIMIT = 1 << 20
NOISE = random.Random(1).randbytes(300_000)
RECORDS = {size: batch(records=3, key="k#", value="value-#", size=size)[HEADER_BYTES:] for size in (8, 5000, 18_000)}


@pytest.mark.parametrize("size", RECORDS)
@pytest.mark.parametrize("name", FORMS)
def test_what_kafka_takes_is_read_and_what_it_refuses_is_not(name: str, size: int) -> None:
    form = FORMS[name]
    payload = form.payload(RECORDS[size])
    codec = CODECS[form.codec]
    if form.answer == ACCEPTED:
        assert bytes(decompress(codec, memoryview(payload), LIMIT)) == RECORDS[size]
    elif form.answer == BROKEN:
        with pytest.raises(BrokenStream, match=form.codec):
            decompress(codec, payload, LIMIT)
    else:
        assert form.answer == INVALID
        header = BatchHeader(batch(records=3))
        try:
            plain = bytes(decompress(codec, payload, LIMIT))
        except BrokenStream as error:
            plain = error.before
        with pytest.raises(MalformedMessage):
            list(record_facts(plain, header))


def stored(data: bytes) -> bytes:
    """A gzip member whose content is stored as it is: every position in it is known. Less than 64 KiB."""
    content = b"\1" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data
    trailer = struct.pack("<II", zlib.crc32(data), len(data))
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + content + trailer


@pytest.mark.parametrize("left", range(40))
def test_a_second_gzip_member_around_the_end_of_what_javas_reader_has_read(left: int) -> None:
    """Kafka was asked: it reads the second member wherever the first one ends in the reader's 8 KB."""
    first, second = NOISE[: 8192 - 5 - left], NOISE[-30:]
    assert bytes(decompress(Codec.GZIP, stored(first) + stored(second), LIMIT)) == first + second
    assert bytes(decompress(Codec.GZIP, stored(first) + bytes(9), LIMIT)) == first


def zstd_frame(data: bytes) -> bytes:
    """A frame of stored blocks."""
    pieces = [data[at : at + 131_072] for at in range(0, len(data), 131_072)]
    blocks = [(len(p) << 3 | (p is pieces[-1])).to_bytes(3, "little") + p for p in pieces]
    return bytes.fromhex("28b52ffda0") + struct.pack("<I", len(data)) + b"".join(blocks)


@pytest.mark.parametrize(
    ("end", "taken"), [(-12, True), (-4, True), (-3, False), (-1, False), (0, False), (1, True), (5, True)]
)
def test_a_cut_zstd_frame_around_the_end_of_what_javas_reader_has_read(end: int, taken: bool) -> None:
    """Kafka was asked: the first frame ends so many bytes before or behind 131,075, and four of a second one follow."""
    overhead = len(zstd_frame(NOISE[:131_050])) - 131_050
    content = NOISE[: 131_075 + end - overhead]
    frame = zstd_frame(content)
    assert len(frame) == 131_075 + end
    if taken:
        assert bytes(decompress(Codec.ZSTD, frame + frame[:4], LIMIT)) == content
    else:
        with pytest.raises(BrokenStream, match="incomplete"):
            decompress(Codec.ZSTD, frame + frame[:4], LIMIT)
    assert bytes(decompress(Codec.ZSTD, frame + frame, LIMIT)) == content * 2


@pytest.mark.parametrize("blocks", [1, 63, 64, 65, 1000])
def test_a_cut_zstd_frame_may_have_many_blocks(blocks: int) -> None:
    """It counts to the limit of pieces once, and to no smaller limit."""
    frame = zstd_frame(NOISE[:1000])
    cut_frame = bytes.fromhex("28b52ffd0058") + bytes(3 * blocks)
    assert bytes(decompress(Codec.ZSTD, frame + cut_frame, LIMIT)) == NOISE[:1000]


def xerial_chunk(data: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return struct.pack(">i", len(block)) + block


def lz4_frame(block: bytes, times: int) -> bytes:
    return bytes.fromhex("04224d18604082") + (struct.pack("<I", len(block)) + block) * times + bytes(4)


ZEROS = bytes(64 << 10)
BOMBS: dict[str, tuple[Codec, bytes]] = {
    "gzip, then bytes": (Codec.GZIP, gzip.compress(bytes(8 << 20)) + bytes(9)),
    "gzip members": (Codec.GZIP, gzip.compress(ZEROS) * 128),
    "gzip, a large second member": (Codec.GZIP, gzip.compress(b"x") + gzip.compress(bytes(8 << 20))),
    "xerial streams": (Codec.SNAPPY, (XERIAL + xerial_chunk(ZEROS)) * 128),
    "lz4 blocks, then bytes": (
        Codec.LZ4,
        lz4_frame(bytes(cramjam.lz4.compress_block(ZEROS, store_size=False)), 128) + b"x",
    ),
    "zstd frames": (Codec.ZSTD, bytes(cramjam.zstd.compress(ZEROS)) * 128),
    "zstd frames, the last one cut": (Codec.ZSTD, (bytes(cramjam.zstd.compress(ZEROS)) * 128)[:-1]),
    "empty gzip members": (Codec.GZIP, gzip.compress(b"") * 50_000),
    "xerial headers": (Codec.SNAPPY, XERIAL * 70_000),
    "empty xerial chunks": (Codec.SNAPPY, XERIAL + xerial_chunk(b"") * 200_000),
    "empty lz4 blocks": (Codec.LZ4, lz4_frame(b"\0", 200_000)),
    "empty zstd blocks, then a cut frame": (Codec.ZSTD, bytes.fromhex("28b52ffd0058") + bytes(300_000) + b"\1\0\0\x28"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_form_goes_beyond_the_limit(name: str) -> None:
    """Neither bytes nor pieces without bytes, which take time."""
    codec, bomb = BOMBS[name]
    peaks = []
    for _ in range(3):  # threads of other tests may run in this process, and can only add to a peak
        tracemalloc.start()
        try:
            with pytest.raises(TooLargeDecompressed):
                decompress(codec, bomb, LIMIT)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 8 * LIMIT


@pytest.mark.parametrize(
    "made",
    [
        lambda: (Codec.GZIP, gzip.compress(NOISE[:1000]) * 100),
        lambda: (Codec.SNAPPY, (XERIAL + xerial_chunk(NOISE[:1000])) * 100),
        lambda: (Codec.LZ4, lz4_frame(bytes(cramjam.lz4.compress_block(NOISE[:1000], store_size=False)), 100)),
        lambda: (Codec.ZSTD, zstd_frame(NOISE[:1000]) * 100),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_the_limit_itself_is_within_the_limit(made: Callable[[], tuple[Codec, bytes]]) -> None:
    codec, payload = made()
    assert bytes(decompress(codec, payload, 100_000)) == NOISE[:1000] * 100
    with pytest.raises(TooLargeDecompressed):
        decompress(codec, payload, 99_999)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_small_records_do_not_keep_large_buffers_alive(codec: str) -> None:
    name = "snappy-raw" if codec == "snappy" else codec
    tracemalloc.start()
    try:
        kept = [decompress(CODECS[codec], FORMS[name].payload(RECORDS[8]), LIMIT) for _ in range(200)]
        assert len(kept) == 200
        # Only what the decoders allocate: threads of other tests may run in this process.
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/tidelog/wire/compression/*")])
        held_bytes = sum(trace.size for trace in traces.traces)
        assert len(kept[0]) <= held_bytes < 200 * 1024
    finally:
        tracemalloc.stop()
