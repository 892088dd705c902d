"""Varints against known answers, and their limits."""

import json
from pathlib import Path

import pytest

from tidelog.wire.checksums import crc32c
from tidelog.wire.primitives import (
    MalformedMessage,
    read_uvarint,
    read_varint,
    read_varlong,
    skip_tagged_fields,
    uvarint,
    varint,
)

VECTORS = Path(__file__).resolve().parents[2] / "golden" / "wire" / "vectors"
ZIGZAG = json.loads((VECTORS / "varint_zigzag.json").read_text())["cases"]
CRC = json.loads((VECTORS / "crc32c.json").read_text())["cases"]


@pytest.mark.parametrize("case", ZIGZAG, ids=lambda case: case["hex"])
def test_zigzag_vectors(case: dict[str, object]) -> None:
    encoded, value = bytes.fromhex(str(case["hex"])), case["value"]
    assert isinstance(value, int)
    assert varint(value) == encoded
    assert read_varlong(b"?" + encoded, 1) == (value, 1 + len(encoded))
    if -(2**31) <= value < 2**31:
        assert read_varint(encoded + b"?", 0) == (value, len(encoded))


@pytest.mark.parametrize("case", CRC, ids=range(len(CRC)))
def test_crc32c_vectors(case: dict[str, object]) -> None:
    data = bytes.fromhex(str(case["input_hex"])) if "input_hex" in case else str(case["input"]).encode()
    assert crc32c(data) == case["expected"]
    assert crc32c(memoryview(bytearray(data))) == case["expected"]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded
    assert read_uvarint(b"?" + bytes.fromhex(encoded), 1) == (value, 1 + len(encoded) // 2)


@pytest.mark.parametrize("encoded", ["ffffffffff01", "ffffffff1f", "808080808000"])
def test_unsigned_too_long(encoded: str) -> None:
    with pytest.raises(MalformedMessage):
        read_uvarint(bytes.fromhex(encoded), 0)


def test_zigzag_too_long() -> None:
    with pytest.raises(MalformedMessage):
        read_varint(bytes.fromhex("ffffffffff01"), 0)
    with pytest.raises(MalformedMessage):
        read_varint(bytes.fromhex("ffffffff1f"), 0)
    with pytest.raises(MalformedMessage):
        read_varlong(b"\xff" * 10 + b"\x01", 0)
    with pytest.raises(MalformedMessage):
        read_varlong(b"\xff" * 9 + b"\x02", 0)


@pytest.mark.parametrize("encoded", ["", "80", "8080", "80808080"])
def test_cut_short(encoded: str) -> None:
    for read in (read_uvarint, read_varint, read_varlong):
        with pytest.raises(IndexError):
            read(bytes.fromhex(encoded), 0)


def test_extremes_of_64_bits() -> None:
    for value in (2**63 - 1, -(2**63)):
        assert read_varlong(varint(value), 0) == (value, 10)


def test_skip_tagged_fields() -> None:
    assert skip_tagged_fields(bytes.fromhex("00 02 aabb 8101 00 ff"), 0, 2) == 7
    many = bytes.fromhex("01") + bytes.fromhex("0500") * 128  # 128 is 80 01: its second byte is still to come
    assert skip_tagged_fields(many, 0, 0x80) == len(many)
