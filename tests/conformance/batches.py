"""Encode record batches for requests, valid and damaged ones, and decode the batches of answers for the comparison.

This module uses no code of the product on purpose: a mistake in the product must not also be in the requests.
"""

import gzip
import struct
import zlib
from typing import Any

import cramjam
from crc32c import crc32c

from .forms import FORMS

HEADER = struct.Struct(">qiibIhiqqqhii")  # the 61 bytes of a batch, magic 2
HEADER_FIELDS = (
    *("base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"),
    *("base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count"),
)
CRC_AT = 17
CHECKED_FROM = 21
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BASE_TIMESTAMP_MS = 1_750_000_000_000  # 2025-06-15; fixed, so that recorded requests are the same each time
LZ4_FRAME = bytes.fromhex("04224d18604082")  # independent blocks of 64 KiB: Kafka refuses linked ones
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def batch(
    *,
    records: int = 1,
    codec: str = "none",
    key: str | None = "k",
    value: str | None = "v",
    size: int | None = None,
    headers: int = 0,
    timestamp: int = BASE_TIMESTAMP_MS,
    step_ms: int = 1,
    timestamps: list[int] | None = None,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
    count: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    length: int | None = None,
    crc: str = "good",
    garbage: int | None = None,
    form: str | None = None,
    truncate: int = 0,
) -> bytes:
    """Return one record batch.

    A "#" in `key` and `value` is replaced by the record's number. A value is repeated until it has `size` bytes.
    `count`, `last_offset_delta`, `max_timestamp` and `length` replace the correct values in the header. `attributes`
    are added to the header's bits. `garbage` is a number of bytes 0xff that replace the records. `crc="bad"` flips a
    bit of the checksum. `truncate` is a number of bytes that are cut off at the end. A `base_timestamp` does not change
    the records' timestamps, only their deltas. `form` is the name of a form of `forms.py`, which then also determines
    the codec.
    """
    times = timestamps if timestamps is not None else [timestamp + i * step_ms for i in range(records)]
    base = base_timestamp if base_timestamp is not None else times[0] if times else timestamp
    body = b"".join(
        _record(i, time - base, _text(key, i), _repeat_to(_text(value, i), size), headers)
        for i, time in enumerate(times)
    )
    if garbage is not None:
        body = b"\xff" * garbage
    if form is not None:
        codec = FORMS[form].codec
        body = FORMS[form].payload(body)
    else:
        body = compress(codec, body)
    bits = attributes | CODECS[codec] | log_append_time << 3 | transactional << 4 | control << 5
    header = HEADER.pack(
        base_offset,
        len(body) + HEADER.size - 12 if length is None else length,
        leader_epoch,
        magic,
        0,
        bits,
        len(times) - 1 if last_offset_delta is None else last_offset_delta,
        base,
        (max(times) if times else timestamp) if max_timestamp is None else max_timestamp,
        producer,
        epoch,
        sequence,
        len(times) if count is None else count,
    )
    whole = bytearray(header + body)
    checksum = crc32c(bytes(whole[CHECKED_FROM:]))
    struct.pack_into(">I", whole, CRC_AT, checksum ^ (crc == "bad"))
    return bytes(whole[: len(whole) - truncate])


def message_set(*, magic: int = 1, value: str = "v") -> bytes:
    """Return one message in a format before magic 2, with a correct CRC-32."""
    content = struct.pack(">bb", magic, 0) + (struct.pack(">q", BASE_TIMESTAMP_MS) if magic == 1 else b"")
    content += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value.encode()
    message = struct.pack(">I", zlib.crc32(content)) + content
    return struct.pack(">qi", 0, len(message)) + message


def compress(codec: str, data: bytes) -> bytes:
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    if codec == "snappy":  # the framing that Java clients write
        block = bytes(cramjam.snappy.compress_raw(data))
        return XERIAL + struct.pack(">i", len(block)) + block
    if codec == "lz4":
        block = bytes(cramjam.lz4.compress_block(data, store_size=False))
        return LZ4_FRAME + struct.pack("<I", len(block)) + block + bytes(4)
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(data))
    return data


def decompress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.decompress(data)
    if codec == 2:
        if not data.startswith(XERIAL[:8]):
            return bytes(cramjam.snappy.decompress_raw(data))
        blocks, position = [], len(XERIAL)
        while position < len(data):
            (size,) = struct.unpack_from(">i", data, position)
            blocks.append(bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + size])))
            position += 4 + size
        return b"".join(blocks)
    if codec == 3:
        return bytes(cramjam.lz4.decompress(data))
    if codec == 4:
        return bytes(cramjam.zstd.decompress(data))
    return data


def _text(template: str | None, index: int) -> bytes | None:
    return None if template is None else template.replace("#", str(index)).encode()


def _repeat_to(value: bytes | None, size: int | None) -> bytes | None:
    if size is None:
        return value
    pattern = value or b"v"
    return (pattern * (size // len(pattern) + 1))[:size]


def _record(index: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: int) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(index) + _with_length(key) + _with_length(value) + varint(headers)
    for h in range(headers):
        body += _with_length(b"h%d" % h) + _with_length(None if h == 1 else b"x")
    return varint(len(body)) + body


def _with_length(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def varint(number: int) -> bytes:
    """Encode a zigzag varint: seven bits per byte, the least significant ones first."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def decode_batches(data: bytes) -> list[dict[str, Any]]:
    """Return the header fields and the records' bytes of each batch. An incomplete last batch is {"cut": its bytes}.

    The field `crc` is "sound" or "wrong" instead of the checksum itself, because the checksum covers fields that may
    differ between two brokers (producer ids). Compressed records are decompressed, and their length is left out,
    because other releases of a compressor produce other bytes.
    """
    batches: list[dict[str, Any]] = []
    position = 0
    while position < len(data):
        end = (
            position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if len(data) - position >= 12
            else -1
        )
        if end < position + HEADER.size or end > len(data):
            batches.append({"cut": data[position:]})
            break
        batches.append(_decode_batch(data[position:end]))
        position = end
    return batches


def _decode_batch(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = dict(zip(HEADER_FIELDS, HEADER.unpack_from(data), strict=True))
    fields["crc"] = "sound" if crc32c(data[CHECKED_FROM:]) == fields["crc"] else "wrong"
    codec = fields["attributes"] & 7
    body = data[HEADER.size :]
    if codec:
        del fields["length"]
        try:
            body = decompress(codec, body)
        except Exception:  # damaged on purpose: the compressed bytes are compared
            fields["undecompressed"] = True
    fields["records"] = body
    return fields
