"""`compression.type`: a producer's batch in the codec that its topic wants.

The records are decompressed and compressed as one stretch of bytes, both outside of Python. Of each record only the
length is read: the batch must hold as many records as it states. Kafka builds such a batch anew from its records; its
codec, offsets, timestamps and producer fields are the same.
"""

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.validation import NotInline, too_large, undecodable
from tidelog.wire.batches import CODEC_MASK, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, LENGTH_END, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.primitives import Buffer, MalformedMessage, TooLargeDecompressed
from tidelog.wire.record_facts import check_record_count

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.wire.batches import BatchHeader

_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec is not Codec.NONE}}
_LENGTH = Struct(">i")
_LENGTH_AT = 8
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_CRC = Struct(">I")
_CRC_AT = 17
LZ4_FAST = 9
"""Kafka's default level of lz4, by which it means the fast kind; other levels are the slow kind's."""


class Recompression(NamedTuple):
    """What a topic wants of its batches."""

    codec: Codec
    level: int | None
    """None: the library's own."""
    batch_bytes_max: int
    """max.message.bytes: it counts before, by the caller, and after."""


def recompression(config: "LogConfig") -> Recompression | None:
    """None when batches are kept as they come."""
    codec = _CODECS.get(config.compression_type)
    if codec is None:
        return None
    level: int | None = None
    if codec is Codec.GZIP and config.compression_gzip_level > 0:
        level = config.compression_gzip_level
    elif codec is Codec.LZ4 and config.compression_lz4_level != LZ4_FAST:
        level = config.compression_lz4_level
    elif codec is Codec.ZSTD:
        level = config.compression_zstd_level
    return Recompression(codec, level, config.max_message_bytes)


def recompress(batch: Buffer, header: "BatchHeader", wanted: Recompression, inline_bytes_max: int = 0) -> bytearray:
    """The checked `batch` anew in the wanted codec, writable. Blocks for as long as compression takes; on any thread.

    Raises RecordTooLarge; the ApiError of `undecodable` for records that cannot be decompressed or are not as many as
    the header states; NotInline when they are more than `inline_bytes_max` decompressed (0: no such limit).
    """
    from tidelog.wire.compression import compress, decompress

    limit = inline_bytes_max or DECOMPRESSED_BYTES_MAX
    try:
        records = decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size], limit)
        check_record_count(records, header)
    except TooLargeDecompressed as error:
        if inline_bytes_max:
            raise NotInline from None
        raise too_large(
            f"{header.size} bytes that are more than {limit} decompressed", wanted.batch_bytes_max
        ) from error
    except MalformedMessage as error:
        raise undecodable(error, header) from error
    content = compress(wanted.codec, records, wanted.level)
    size = HEADER_BYTES + len(content)
    if size > wanted.batch_bytes_max:
        raise too_large(f"{size} bytes in the topic's compression.type", wanted.batch_bytes_max)
    result = bytearray(memoryview(batch)[:HEADER_BYTES])
    result += content
    _LENGTH.pack_into(result, _LENGTH_AT, size - LENGTH_END)
    _ATTRIBUTES.pack_into(result, _ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | wanted.codec)
    _CRC.pack_into(result, _CRC_AT, crc32c(memoryview(result)[_ATTRIBUTES_AT:]))
    return result
