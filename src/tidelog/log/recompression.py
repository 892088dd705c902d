"""Recompress a producer's batch with the codec of the topic's `compression.type`.

The records are decompressed and compressed as one block of bytes. Both steps run in native libraries. Between them,
the structure of each record is checked, since damaged records must not be stored. The batch's checksum is not enough:
it does not show damage that occurred before the producer computed it. Kafka instead rebuilds the batch from its
records. Kafka's batch has the same codec, offsets, timestamps and producer fields as the result of this module.
"""

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.validation import (
    EXAMINED_RECORDS_MAX,
    STORED_CODECS,
    NotInline,
    too_large,
    too_many_records,
    undecodable,
)
from tidelog.wire.batches import CODEC_MASK, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, LENGTH_END, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import RecordTooLarge
from tidelog.wire.primitives import Buffer, MalformedMessage, TooLargeDecompressed
from tidelog.wire.record_facts import check_records

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.wire.batches import BatchHeader

_LENGTH = Struct(">i")
_LENGTH_AT = 8
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_CRC = Struct(">I")
_CRC_AT = 17
LZ4_FAST = 9
"""Kafka's default level of lz4. It selects the fast compressor; all other levels select the slow one."""


class Recompression(NamedTuple):
    """The codec, level and size limit with which batches of a topic are recompressed."""

    codec: Codec
    level: int | None
    """None means the library's default."""
    batch_bytes_max: int
    """Value of max.message.bytes. The caller checks the batch before the recompression, and `recompress` checks the
    result."""


def recompression(config: "LogConfig") -> Recompression | None:
    """Return how the topic's batches are recompressed, or None if they are stored in the producer's codec."""
    codec = STORED_CODECS.get(config.compression_type)
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


def recompress(batch: Buffer, header: "BatchHeader", target: Recompression, inline_bytes_max: int = 0) -> bytearray:
    """Recompress `batch`, which the caller has checked, and return the result in a writable buffer. Blocks for the time
    of the compression. Thread-safe.

    Raises RecordListTooLarge if there are too many records, and RecordTooLarge if the decompressed records or the
    result are too large. Raises the ApiError of `undecodable` if the records cannot be decompressed or are malformed,
    or if their number is not the number in the header. If `inline_bytes_max` is not 0 and the decompressed records
    have more bytes than this, raises NotInline instead of RecordTooLarge.
    """
    from tidelog.wire.compression import compress, decompress

    if header.count > EXAMINED_RECORDS_MAX:
        raise too_many_records(header, "they have to be recompressed for the topic's compression.type")
    decompressed_bytes_max = inline_bytes_max or DECOMPRESSED_BYTES_MAX
    try:
        records = decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size], decompressed_bytes_max)
        check_records(records, header)
    except TooLargeDecompressed as error:
        if inline_bytes_max:
            raise NotInline from None
        raise RecordTooLarge(f"{error}; send smaller batches (producer: batch.size)") from error
    except MalformedMessage as error:
        raise undecodable(error, header, reads_whole_records=True) from error
    content = compress(target.codec, records, target.level)
    size = HEADER_BYTES + len(content)
    if size > target.batch_bytes_max:
        raise too_large(f"{size} bytes in the topic's compression.type", target.batch_bytes_max)
    result = bytearray(memoryview(batch)[:HEADER_BYTES])
    result += content
    _LENGTH.pack_into(result, _LENGTH_AT, size - LENGTH_END)
    _ATTRIBUTES.pack_into(result, _ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | target.codec)
    _CRC.pack_into(result, _CRC_AT, crc32c(memoryview(result)[_ATTRIBUTES_AT:]))
    return result
