"""Forms of compressed records: complete, unusual, cut short or damaged streams.

Each form is built from the bytes of the records. They are cut into two parts within a record, for forms that consist of
several pieces. This module uses no code of the product; it builds byte by byte what no library can write. `answer` is
the error code with which Apache Kafka 4.3.1 answers a Produce request with such a batch
(conversations/compressed_forms.txt sends it).
"""

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import cramjam

GZIP, SNAPPY, LZ4, ZSTD = "gzip", "snappy", "lz4", "zstd"
ACCEPTED, BROKEN, INVALID = 0, -1, 87  # NONE, UNKNOWN_SERVER_ERROR, INVALID_RECORD
ZEROS = bytes(8)
GARBAGE = b"garbage!"


def _gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _gz_with_header(data: bytes, *, flags: int, extra: bytes) -> bytes:
    return b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\0\xff" + extra + _gz(data)[10:]


def _flip_bit(data: bytes, at: int) -> bytes:
    out = bytearray(data)
    out[at] ^= 1
    return bytes(out)


XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def _xerial(version: int, compatible: int) -> bytes:
    return XERIAL[:8] + struct.pack(">ii", version, compatible)


def _raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _chunk(data: bytes) -> bytes:
    block = _raw(data)
    return struct.pack(">i", len(block)) + block


def _rotl(x: int, r: int) -> int:
    return (x << r | x >> 32 - r) & 0xFFFFFFFF


def xxh32(data: bytes, seed: int = 0) -> int:
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    m = 0xFFFFFFFF
    at, size = 0, len(data)
    if size >= 16:
        v = [(seed + p1 + p2) & m, (seed + p2) & m, seed, (seed - p1) & m]
        while at + 16 <= size:
            for lane in range(4):
                (word,) = struct.unpack_from("<I", data, at)
                v[lane] = _rotl((v[lane] + word * p2) & m, 13) * p1 & m
                at += 4
        h = (_rotl(v[0], 1) + _rotl(v[1], 7) + _rotl(v[2], 12) + _rotl(v[3], 18)) & m
    else:
        h = (seed + p5) & m
    h = (h + size) & m
    while at + 4 <= size:
        (word,) = struct.unpack_from("<I", data, at)
        h = _rotl((h + word * p3) & m, 17) * p4 & m
        at += 4
    while at < size:
        h = _rotl((h + data[at] * p5) & m, 11) * p1 & m
        at += 1
    h = (h ^ h >> 15) * p2 & m
    h = (h ^ h >> 13) * p3 & m
    return h ^ h >> 16


def xxh64(data: bytes) -> int:
    p1, p2, p3, p4, p5 = (
        11400714785074694791,
        14029467366897019727,
        1609587929392839161,
        9650029242287828579,
        2870177450012600261,
    )
    m = (1 << 64) - 1

    def rotl(x: int, r: int) -> int:
        return (x << r | x >> 64 - r) & m

    def round_(acc: int, word: int) -> int:
        return rotl((acc + word * p2) & m, 31) * p1 & m

    at, size = 0, len(data)
    if size >= 32:
        v = [(p1 + p2) & m, p2, 0, -p1 & m]
        while at + 32 <= size:
            for lane in range(4):
                (word,) = struct.unpack_from("<Q", data, at)
                v[lane] = round_(v[lane], word)
                at += 8
        h = (rotl(v[0], 1) + rotl(v[1], 7) + rotl(v[2], 12) + rotl(v[3], 18)) & m
        for lane in v:
            h = ((h ^ round_(0, lane)) * p1 + p4) & m
    else:
        h = p5
    h = (h + size) & m
    while at + 8 <= size:
        (word,) = struct.unpack_from("<Q", data, at)
        h = (rotl(h ^ round_(0, word), 27) * p1 + p4) & m
        at += 8
    if at + 4 <= size:
        (word,) = struct.unpack_from("<I", data, at)
        h = (rotl(h ^ (word * p1 & m), 23) * p2 + p3) & m
        at += 4
    while at < size:
        h = rotl(h ^ (data[at] * p5 & m), 11) * p1 & m
        at += 1
    h = (h ^ h >> 33) * p2 & m
    h = (h ^ h >> 29) * p3 & m
    return h ^ h >> 32


LZ4_MAGIC = bytes.fromhex("04224d18")
INDEPENDENT, BLOCK_SUMS, CONTENT_SIZE, CONTENT_SUM, RESERVED, DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x02, 0x01


def _lz4_header(
    flags: int = 0x40 | INDEPENDENT, bd: int = 0x40, size: int | None = None, extra: bytes = b"", bad: int = 0
) -> bytes:
    descriptor = bytes([flags, bd]) + (b"" if size is None else struct.pack("<Q", size)) + extra
    return LZ4_MAGIC + descriptor + bytes([(xxh32(descriptor) >> 8 & 0xFF) ^ bad])


def _lz4_block(data: bytes, *, stored: bool = False, sums: bool = False, bad: int = 0) -> bytes:
    block = data if stored else bytes(cramjam.lz4.compress_block(data, store_size=False))
    size = len(block) | (1 << 31 if stored else 0)
    return struct.pack("<I", size) + block + (struct.pack("<I", xxh32(block) ^ bad) if sums else b"")


def _lz4(
    data: bytes,
    *,
    flags: int = 0,
    content: int | None = None,
    bd: int = 0x40,
    bad_sum: int = 0,
    bad_block: int = 0,
    header_bad: int = 0,
    stored: bool = False,
    extra: bytes = b"",
    independent: bool = True,
) -> bytes:
    f = 0x40 | flags | (INDEPENDENT if independent else 0) | (CONTENT_SIZE if content is not None else 0)
    frame = (
        _lz4_header(f, bd, content, extra, header_bad)
        + _lz4_block(data, stored=stored, sums=bool(f & BLOCK_SUMS), bad=bad_block)
        + bytes(4)
    )
    return frame + (struct.pack("<I", xxh32(data) ^ bad_sum) if f & CONTENT_SUM else b"")


def _skippable(content: bytes = b"skip me", kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, len(content)) + content


def _lz4_legacy(data: bytes) -> bytes:
    block = bytes(cramjam.lz4.compress_block(data, store_size=False))
    return struct.pack("<II", 0x184C2102, len(block)) + block


ZSTD_MAGIC = bytes.fromhex("28b52ffd")


def _z(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _z_block(data: bytes, last: bool) -> bytes:
    return (len(data) << 3 | int(last)).to_bytes(3, "little") + data


def _z_raw(
    data: bytes,
    *,
    window: int | None = None,
    size: int | None = None,
    checksum: int | None = None,
    reserved: int = 0,
    dictionary: int = 0,
) -> bytes:
    """Return a frame with one stored block. It is a single segment if `window`, the descriptor's byte, is None."""
    single = window is None
    fhd = (0x20 if single else 0) | (0x04 if checksum is not None else 0) | reserved | (3 if dictionary else 0)
    fcs = b""
    if single or size is not None:
        fhd |= 0x80
        fcs = struct.pack("<I", len(data) if size is None else size)
    out = ZSTD_MAGIC + bytes([fhd]) + (b"" if single else bytes([window]))
    out += (struct.pack("<I", dictionary) if dictionary else b"") + fcs + _z_block(data, True)
    return out + (struct.pack("<I", checksum) if checksum is not None else b"")


class Form(NamedTuple):
    codec: str
    answer: int
    build: Callable[[bytes, bytes], bytes]

    def payload(self, records: bytes) -> bytes:
        cut = len(records) // 2 + 3
        return self.build(records[:cut], records[cut:])


FORMS: dict[str, Form] = {
    # gzip
    "gzip": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b)),
    "gzip-two-members": Form(GZIP, ACCEPTED, lambda a, b: _gz(a) + _gz(b)),
    "gzip-three-members-empty-middle": Form(GZIP, ACCEPTED, lambda a, b: _gz(a) + _gz(b"") + _gz(b)),
    "gzip-empty-first": Form(GZIP, ACCEPTED, lambda a, b: _gz(b"") + _gz(a + b)),
    "gzip-empty-last": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + _gz(b"")),
    "gzip-zeros": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + ZEROS),
    "gzip-many-zeros": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + bytes(4096)),
    "gzip-one-zero": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + b"\0"),
    "gzip-garbage": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + GARBAGE),
    "gzip-long-garbage": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + GARBAGE * 10),
    "gzip-zeros-then-member": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + ZEROS + _gz(b"x")),
    "gzip-member-zeros-member": Form(GZIP, INVALID, lambda a, b: _gz(a) + bytes(30) + _gz(b)),
    "gzip-then-magic": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + b"\x1f\x8b"),
    "gzip-then-long-magic": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + b"\x1f\x8b\x08" + GARBAGE * 4),
    "gzip-then-header": Form(GZIP, ACCEPTED, lambda a, b: _gz(a + b) + _gz(b"")[:10]),
    "gzip-then-cut-member": Form(GZIP, INVALID, lambda a, b: _gz(a + b) + _gz(bytes(range(200)))[:-30]),
    "gzip-then-bad-member": Form(GZIP, BROKEN, lambda a, b: _gz(a + b) + _gz(b"")[:10] + b"\xff" * 30),
    "gzip-cut-trailer": Form(GZIP, BROKEN, lambda a, b: _gz(a + b)[:-4]),
    "gzip-no-trailer": Form(GZIP, BROKEN, lambda a, b: _gz(a + b)[:-8]),
    "gzip-cut-stream": Form(GZIP, BROKEN, lambda a, b: _gz(a + b)[:-10]),
    "gzip-cut-half": Form(GZIP, BROKEN, lambda a, b: _gz(a + b)[: len(_gz(a + b)) // 2]),
    "gzip-flushed-no-end": Form(
        GZIP, BROKEN, lambda a, b: b"\x1f\x8b\x08" + bytes(6) + b"\xff" + _deflate_flushed(a + b)
    ),
    "gzip-flushed-then-end": Form(GZIP, ACCEPTED, lambda a, b: _gz_flushed(a, b)),
    "gzip-cut-header": Form(GZIP, BROKEN, lambda a, b: _gz(a + b)[:5]),
    "gzip-bad-crc": Form(GZIP, BROKEN, lambda a, b: _flip_bit(_gz(a + b), -8)),
    "gzip-bad-size": Form(GZIP, BROKEN, lambda a, b: _flip_bit(_gz(a + b), -4)),
    "gzip-bad-crc-first": Form(GZIP, BROKEN, lambda a, b: _flip_bit(_gz(a), -8) + _gz(b)),
    "gzip-bad-crc-second": Form(GZIP, BROKEN, lambda a, b: _gz(a) + _flip_bit(_gz(b), -8)),
    "gzip-bad-method": Form(GZIP, BROKEN, lambda a, b: b"\x1f\x8b\x07" + _gz(a + b)[3:]),
    "gzip-reserved-flags": Form(GZIP, ACCEPTED, lambda a, b: _gz_with_header(a + b, flags=0xE0, extra=b"")),
    "gzip-name": Form(GZIP, ACCEPTED, lambda a, b: _gz_with_header(a + b, flags=8, extra=b"name\0")),
    "gzip-comment": Form(GZIP, ACCEPTED, lambda a, b: _gz_with_header(a + b, flags=16, extra=b"comment\0")),
    "gzip-extra": Form(GZIP, ACCEPTED, lambda a, b: _gz_with_header(a + b, flags=4, extra=b"\3\0abc")),
    "gzip-header-crc": Form(GZIP, ACCEPTED, lambda a, b: _gz_header_crc(a + b, 0)),
    "gzip-header-bad-crc": Form(GZIP, BROKEN, lambda a, b: _gz_header_crc(a + b, 1)),
    "gzip-zlib": Form(GZIP, BROKEN, lambda a, b: zlib.compress(a + b)),
    "gzip-deflate": Form(GZIP, BROKEN, lambda a, b: zlib.compress(a + b)[2:-4]),
    "gzip-empty-stream": Form(GZIP, INVALID, lambda a, b: _gz(b"")),
    "gzip-nothing": Form(GZIP, BROKEN, lambda a, b: b""),
    "gzip-leading-zeros": Form(GZIP, BROKEN, lambda a, b: ZEROS + _gz(a + b)),
    "gzip-broken-deflate": Form(GZIP, BROKEN, lambda a, b: _gz(a + b)[:10] + b"\xff" * 40),
    "gzip-more-bytes": Form(GZIP, INVALID, lambda a, b: _gz(a + b + b"\0")),
    "gzip-member-of-more-bytes": Form(GZIP, INVALID, lambda a, b: _gz(a + b) + _gz(b"\0")),
    # snappy
    "snappy-raw": Form(SNAPPY, ACCEPTED, lambda a, b: _raw(a + b)),
    "snappy-raw-zeros": Form(SNAPPY, BROKEN, lambda a, b: _raw(a + b) + ZEROS),
    "snappy-raw-garbage": Form(SNAPPY, BROKEN, lambda a, b: _raw(a + b) + GARBAGE),
    "snappy-raw-two": Form(SNAPPY, BROKEN, lambda a, b: _raw(a) + _raw(b)),
    "snappy-raw-cut": Form(SNAPPY, BROKEN, lambda a, b: _raw(a + b)[:-3]),
    "snappy-raw-claims-more": Form(SNAPPY, BROKEN, lambda a, b: bytes([len(a + b) + 1 & 0x7F]) + _raw(a + b)[1:]),
    "snappy-raw-claims-less": Form(SNAPPY, BROKEN, lambda a, b: bytes([len(a + b) - 1 & 0x7F]) + _raw(a + b)[1:]),
    "snappy-raw-more-bytes": Form(SNAPPY, INVALID, lambda a, b: _raw(a + b + b"\0")),
    "snappy-raw-empty": Form(SNAPPY, INVALID, lambda a, b: _raw(b"")),
    "snappy-nothing": Form(SNAPPY, BROKEN, lambda a, b: b""),
    "snappy-framing-format": Form(SNAPPY, BROKEN, lambda a, b: bytes(cramjam.snappy.compress(a + b))),
    "xerial": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a + b)),
    "xerial-two-chunks": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a) + _chunk(b)),
    "xerial-two-streams": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a) + XERIAL + _chunk(b)),
    "xerial-three-headers": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL * 3 + _chunk(a + b)),
    "xerial-header-last": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a + b) + XERIAL),
    "xerial-cut-header-last": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a + b) + XERIAL[:9]),
    "xerial-cut-magic-last": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a + b) + XERIAL[:3]),
    "xerial-bad-second-magic": Form(
        SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a + b) + XERIAL[:4] + b"XXXX" + XERIAL[8:] + GARBAGE
    ),
    "xerial-old-second-version": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a) + _xerial(0, 0) + _chunk(b)),
    "xerial-version-0": Form(SNAPPY, ACCEPTED, lambda a, b: _xerial(0, 1) + _chunk(a + b)),
    "xerial-version-2": Form(SNAPPY, ACCEPTED, lambda a, b: _xerial(2, 1) + _chunk(a + b)),
    "xerial-version-99-compatible-99": Form(SNAPPY, ACCEPTED, lambda a, b: _xerial(99, 99) + _chunk(a + b)),
    "xerial-compatible-0": Form(SNAPPY, ACCEPTED, lambda a, b: _xerial(1, 0) + _chunk(a + b)),
    "xerial-version-negative": Form(SNAPPY, ACCEPTED, lambda a, b: _xerial(-1, 1) + _chunk(a + b)),
    "xerial-little-endian": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL[:8] + struct.pack("<ii", 1, 1) + _chunk(a + b)),
    "xerial-bad-last-magic-byte": Form(SNAPPY, BROKEN, lambda a, b: XERIAL[:7] + b"\1" + XERIAL[8:] + _chunk(a + b)),
    "xerial-empty-chunk-first": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(b"") + _chunk(a + b)),
    "xerial-empty-chunk-middle": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a) + _chunk(b"") + _chunk(b)),
    "xerial-empty-chunk-last": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a + b) + _chunk(b"")),
    "xerial-zero-length-first": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + bytes(4) + _chunk(a + b)),
    "xerial-zero-length-middle": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a) + bytes(4) + _chunk(b)),
    "xerial-zero-length-last": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a + b) + bytes(4)),
    "xerial-zeros": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a + b) + ZEROS),
    "xerial-one-zero": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a + b) + b"\0"),
    "xerial-three-bytes": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a + b) + b"abc"),
    "xerial-garbage": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a + b) + GARBAGE),
    "xerial-negative-chunk": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a + b) + b"\xff" * 8),
    "xerial-negative-chunk-first": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + b"\xff" * 8),
    "xerial-huge-chunk": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + b"\x7f\xff\xff\xff" + GARBAGE),
    "xerial-cut-chunk": Form(SNAPPY, BROKEN, lambda a, b: (XERIAL + _chunk(a + b))[:-3]),
    "xerial-cut-second-chunk": Form(SNAPPY, BROKEN, lambda a, b: (XERIAL + _chunk(a + b) + _chunk(b"zz"))[:-3]),
    "xerial-header-only": Form(SNAPPY, INVALID, lambda a, b: XERIAL),
    "xerial-cut-header": Form(SNAPPY, BROKEN, lambda a, b: XERIAL[:10]),
    "xerial-short-magic": Form(SNAPPY, BROKEN, lambda a, b: XERIAL[:8]),
    "xerial-bad-chunk": Form(SNAPPY, BROKEN, lambda a, b: XERIAL + struct.pack(">i", 8) + GARBAGE),
    "xerial-more-bytes": Form(SNAPPY, INVALID, lambda a, b: XERIAL + _chunk(a + b + b"\0")),
    "xerial-chunk-of-more-bytes": Form(SNAPPY, INVALID, lambda a, b: XERIAL + _chunk(a + b) + _chunk(b"\0")),
    "xerial-second-version-2": Form(SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a) + _xerial(2, 0) + _chunk(b)),
    "xerial-second-version-negative": Form(
        SNAPPY, BROKEN, lambda a, b: XERIAL + _chunk(a) + _xerial(-1, 1) + _chunk(b)
    ),
    "xerial-second-magic-damaged": Form(
        SNAPPY, ACCEPTED, lambda a, b: XERIAL + _chunk(a) + XERIAL[:4] + b"XXXX" + XERIAL[8:] + _chunk(b)
    ),
    "xerial-chunk-with-more": Form(
        SNAPPY, BROKEN, lambda a, b: XERIAL + struct.pack(">i", len(_raw(a + b)) + 3) + _raw(a + b) + bytes(3)
    ),
    # lz4
    "lz4": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b)),
    "lz4-stored": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, stored=True)),
    "lz4-two-blocks": Form(LZ4, ACCEPTED, lambda a, b: _lz4_header() + _lz4_block(a) + _lz4_block(b) + bytes(4)),
    "lz4-two-frames": Form(LZ4, INVALID, lambda a, b: _lz4(a) + _lz4(b)),
    "lz4-second-frame-unneeded": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + _lz4(b"x")),
    "lz4-empty-first-frame": Form(LZ4, INVALID, lambda a, b: _lz4_header() + bytes(4) + _lz4(a + b)),
    "lz4-empty-last-frame": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + _lz4_header() + bytes(4)),
    "lz4-skippable-first": Form(LZ4, BROKEN, lambda a, b: _skippable() + _lz4(a + b)),
    "lz4-skippable-middle": Form(LZ4, INVALID, lambda a, b: _lz4(a) + _skippable() + _lz4(b)),
    "lz4-skippable-last": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + _skippable()),
    "lz4-zeros": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + ZEROS),
    "lz4-one-zero": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + b"\0"),
    "lz4-garbage": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + GARBAGE),
    "lz4-long-garbage": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b) + GARBAGE * 5000),
    "lz4-no-end-mark": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b)[:-4]),
    "lz4-cut-end-mark": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b)[:-2]),
    "lz4-cut-block": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b)[:-8]),
    "lz4-cut-after-records": Form(
        LZ4, BROKEN, lambda a, b: (_lz4_header() + _lz4_block(a + b) + _lz4_block(b"zzzz"))[:-2]
    ),
    "lz4-cut-header": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b)[:6]),
    "lz4-header-only": Form(LZ4, BROKEN, lambda a, b: _lz4_header()),
    "lz4-empty-stream": Form(LZ4, INVALID, lambda a, b: _lz4_header() + bytes(4)),
    "lz4-nothing": Form(LZ4, BROKEN, lambda a, b: b""),
    "lz4-content-sum": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, flags=CONTENT_SUM)),
    "lz4-bad-content-sum": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, flags=CONTENT_SUM, bad_sum=1)),
    "lz4-cut-content-sum": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, flags=CONTENT_SUM)[:-2]),
    "lz4-no-content-sum": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, flags=CONTENT_SUM)[:-4]),
    "lz4-block-sums": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, flags=BLOCK_SUMS)),
    "lz4-bad-block-sum": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, flags=BLOCK_SUMS, bad_block=1)),
    "lz4-cut-block-sum": Form(
        LZ4, BROKEN, lambda a, b: (_lz4_header(0x40 | INDEPENDENT | BLOCK_SUMS) + _lz4_block(a + b, sums=True))[:-2]
    ),
    "lz4-bad-block-sum-of-stored": Form(
        LZ4, BROKEN, lambda a, b: _lz4(a + b, flags=BLOCK_SUMS, stored=True, bad_block=1)
    ),
    "lz4-bad-header-sum": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, header_bad=1)),
    "lz4-content-size": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, content=len(a + b))),
    "lz4-content-size-less": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, content=len(a + b) - 1)),
    "lz4-content-size-more": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, content=1 << 40)),
    "lz4-content-size-negative": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, content=(1 << 64) - 1)),
    "lz4-content-size-0": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, content=0)),
    "lz4-dictionary": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, flags=DICTIONARY, extra=b"\1\2\3\4")),
    "lz4-reserved-flag": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, flags=RESERVED)),
    "lz4-version-0": Form(LZ4, BROKEN, lambda a, b: _lz4_header(INDEPENDENT) + _lz4_block(a + b) + bytes(4)),
    "lz4-version-2": Form(LZ4, BROKEN, lambda a, b: _lz4_header(0x80 | INDEPENDENT) + _lz4_block(a + b) + bytes(4)),
    "lz4-linked": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, independent=False)),
    "lz4-legacy": Form(LZ4, BROKEN, lambda a, b: _lz4_legacy(a + b)),
    "lz4-block-size-0": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, bd=0x00)),
    "lz4-block-size-3": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, bd=0x30)),
    "lz4-block-size-5": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, bd=0x50)),
    "lz4-block-size-7": Form(LZ4, ACCEPTED, lambda a, b: _lz4(a + b, bd=0x70)),
    "lz4-block-reserved-low": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, bd=0x41)),
    "lz4-block-reserved-high": Form(LZ4, BROKEN, lambda a, b: _lz4(a + b, bd=0xC0)),
    "lz4-empty-stored-block": Form(
        LZ4, INVALID, lambda a, b: _lz4_header() + struct.pack("<I", 1 << 31) + _lz4_block(a + b) + bytes(4)
    ),
    "lz4-empty-block-last": Form(
        LZ4, ACCEPTED, lambda a, b: _lz4_header() + _lz4_block(a + b) + struct.pack("<I", 1) + b"\0" + bytes(4)
    ),
    "lz4-bad-block": Form(LZ4, BROKEN, lambda a, b: _lz4_header() + struct.pack("<I", 8) + b"\xff" * 8 + bytes(4)),
    "lz4-bad-block-after-records": Form(
        LZ4, BROKEN, lambda a, b: _lz4_header() + _lz4_block(a + b) + struct.pack("<I", 8) + b"\xff" * 8 + bytes(4)
    ),
    "lz4-block-too-large": Form(
        LZ4, BROKEN, lambda a, b: _lz4_header() + struct.pack("<I", 65537) + bytes(65537) + bytes(4)
    ),
    "lz4-block-gives-too-much": Form(
        LZ4, BROKEN, lambda a, b: _lz4_header() + _lz4_block(a + b + bytes(70000)) + bytes(4)
    ),
    "lz4-stored-65537": Form(
        LZ4, BROKEN, lambda a, b: _lz4_header() + struct.pack("<I", 65537 | 1 << 31) + bytes(65537) + bytes(4)
    ),
    "lz4-more-bytes": Form(LZ4, INVALID, lambda a, b: _lz4(a + b + b"\0")),
    "lz4-block-of-more-bytes": Form(
        LZ4, INVALID, lambda a, b: _lz4_header() + _lz4_block(a + b) + _lz4_block(b"\0", stored=True) + bytes(4)
    ),
    # zstd
    "zstd": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b)),
    "zstd-two-frames": Form(ZSTD, ACCEPTED, lambda a, b: _z(a) + _z(b)),
    "zstd-empty-first": Form(ZSTD, ACCEPTED, lambda a, b: _z(b"") + _z(a + b)),
    "zstd-empty-middle": Form(ZSTD, ACCEPTED, lambda a, b: _z(a) + _z(b"") + _z(b)),
    "zstd-empty-last": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b) + _z(b"")),
    "zstd-skippable-first": Form(ZSTD, ACCEPTED, lambda a, b: _skippable() + _z(a + b)),
    "zstd-skippable-middle": Form(ZSTD, ACCEPTED, lambda a, b: _z(a) + _skippable(kind=15) + _z(b)),
    "zstd-skippable-last": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b) + _skippable()),
    "zstd-skippable-empty-last": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b) + _skippable(b"")),
    "zstd-skippable-cut-last": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b) + _skippable()[:-3]),
    "zstd-skippable-huge-last": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + struct.pack("<II", 0x184D2A50, 0xFFFFFFF0)),
    "zstd-skippable-only": Form(ZSTD, INVALID, lambda a, b: _skippable()),
    "zstd-zeros": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + ZEROS),
    "zstd-one-zero": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + b"\0"),
    "zstd-three-zeros": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + bytes(3)),
    "zstd-four-zeros": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + bytes(4)),
    "zstd-many-zeros": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + bytes(4096)),
    "zstd-garbage": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + GARBAGE),
    "zstd-cut-magic-last": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b) + ZSTD_MAGIC[:2]),
    "zstd-magic-last": Form(ZSTD, ACCEPTED, lambda a, b: _z(a + b) + ZSTD_MAGIC),
    "zstd-cut-frame-last": Form(ZSTD, INVALID, lambda a, b: _z(a + b) + _z(b"zzzz")[:-2]),
    "zstd-cut": Form(ZSTD, BROKEN, lambda a, b: _z(a + b)[:-1]),
    "zstd-cut-half": Form(ZSTD, BROKEN, lambda a, b: _z(a + b)[: len(_z(a + b)) // 2]),
    "zstd-no-last-block": Form(ZSTD, BROKEN, lambda a, b: ZSTD_MAGIC + b"\0\x58" + _z_block(a + b, False)),
    "zstd-cut-last-block": Form(ZSTD, BROKEN, lambda a, b: ZSTD_MAGIC + b"\0\x58" + _z_block(a + b, False) + b"\1\0"),
    "zstd-empty-last-block": Form(
        ZSTD, ACCEPTED, lambda a, b: ZSTD_MAGIC + b"\0\x58" + _z_block(a + b, False) + _z_block(b"", True)
    ),
    "zstd-empty-stream": Form(ZSTD, INVALID, lambda a, b: _z(b"")),
    "zstd-nothing": Form(ZSTD, INVALID, lambda a, b: b""),
    "zstd-without-size": Form(ZSTD, ACCEPTED, lambda a, b: _z_raw(a + b, window=0x58)),
    "zstd-with-size": Form(ZSTD, ACCEPTED, lambda a, b: _z_raw(a + b, window=0x58, size=len(a + b))),
    "zstd-single-segment": Form(ZSTD, ACCEPTED, lambda a, b: _z_raw(a + b)),
    "zstd-size-less": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, window=0x58, size=len(a + b) - 1)),
    "zstd-size-more": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, window=0x58, size=len(a + b) + 1)),
    "zstd-checksum": Form(ZSTD, ACCEPTED, lambda a, b: _z_with_checksum(a + b, 0)),
    "zstd-bad-checksum": Form(ZSTD, BROKEN, lambda a, b: _z_with_checksum(a + b, 1)),
    "zstd-cut-checksum": Form(ZSTD, BROKEN, lambda a, b: _z_with_checksum(a + b, 0)[:-2]),
    "zstd-window-27": Form(ZSTD, ACCEPTED, lambda a, b: _z_raw(a + b, window=(27 - 10) << 3)),
    "zstd-window-above-27": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, window=(27 - 10) << 3 | 1)),
    "zstd-window-31": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, window=(31 - 10) << 3)),
    "zstd-window-41": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, window=0xFF)),
    "zstd-single-segment-huge": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, size=0xFFFFFFFF)),
    "zstd-reserved-bit": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, reserved=8)),
    "zstd-unused-bit": Form(ZSTD, ACCEPTED, lambda a, b: _z_raw(a + b, reserved=16)),
    "zstd-dictionary": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b, dictionary=7)),
    "zstd-reserved-block": Form(
        ZSTD, BROKEN, lambda a, b: _z_raw(a + b)[:9] + (len(a + b) << 3 | 7).to_bytes(3, "little") + a + b
    ),
    "zstd-old-format": Form(ZSTD, BROKEN, lambda a, b: bytes.fromhex("27b52ffd") + _z_raw(a + b)[4:]),
    "zstd-magicless": Form(ZSTD, BROKEN, lambda a, b: _z_raw(a + b)[4:]),
    "zstd-more-bytes": Form(ZSTD, INVALID, lambda a, b: _z(a + b + b"\0")),
    "zstd-frame-of-more-bytes": Form(ZSTD, INVALID, lambda a, b: _z(a + b) + _z(b"\0")),
    "zstd-bad-frame-after-records": Form(ZSTD, BROKEN, lambda a, b: _z(a + b) + _z_raw(b"zz")[:9] + b"\xff\xff\xff"),
}


def _deflate_flushed(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


def _gz_flushed(a: bytes, b: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return (
        packer.compress(a)
        + packer.flush(zlib.Z_SYNC_FLUSH)
        + packer.compress(b)
        + packer.flush(zlib.Z_FULL_FLUSH)
        + packer.flush()
    )


def _gz_header_crc(data: bytes, bad: int) -> bytes:
    header = b"\x1f\x8b\x08\x02" + bytes(4) + b"\0\xff"
    return header + struct.pack("<H", (zlib.crc32(header) & 0xFFFF) ^ bad) + _gz(data)[10:]


def _z_with_checksum(data: bytes, bad: int) -> bytes:
    return _z_raw(data, checksum=(xxh64(data) ^ bad) & 0xFFFFFFFF)
