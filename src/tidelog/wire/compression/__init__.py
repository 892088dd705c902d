"""The five codecs of record batches, in the formats that Kafka's clients read and write.

Each codec has one module for both directions. Every part of Tidelog that needs the records of a compressed batch
(validation of produced batches, recompression, look-ups by time, compaction, `tidelog log`, the Spark source) calls
`decompress`. `decompress` accepts and refuses the same streams as the readers of Kafka 4.3.1:

    gzip     one or several members; bytes after a member that do not begin another member are ignored
    snappy   bare, or xerial's framing, whose header may repeat; up to three bytes after the last chunk are ignored
    lz4      one frame of independent blocks; bytes after the frame are ignored; content checksums are not compared
    zstd     one or several frames, also skippable ones; a frame after a complete one may be cut short (zstd_stream)

Decompression stops at a size limit in bytes, because a few KB may decompress to gigabytes. The size that the stream
states is not trusted.
"""

from tidelog.wire.batches import Codec
from tidelog.wire.compression import gzip_stream, lz4_frame, snappy_stream, zstd_stream
from tidelog.wire.primitives import Buffer, MalformedMessage


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data`. Returns `data` itself for Codec.NONE.

    `level`: None for the default (for lz4, the fast compressor); otherwise 1 to 9 for gzip, 1 to 17 for lz4 (always the
    slow compressor), -131072 to 22 for zstd. Snappy has no levels.
    """
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        return gzip_stream.compress(data, level)
    if codec == Codec.SNAPPY:
        return snappy_stream.compress(memoryview(data))
    if codec == Codec.LZ4:
        return lz4_frame.compress(memoryview(data), level)
    if codec == Codec.ZSTD:
        return zstd_stream.compress(data, level)
    raise ValueError(f"compression codec {codec} is not known")


def decompress(codec: int, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress `data`. Returns `data` itself for Codec.NONE.

    Raises TooLargeDecompressed above `limit_bytes`, BrokenStream for data that Kafka's reader refuses, and
    MalformedMessage for an unknown codec.
    """
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        return gzip_stream.decompress(data, limit_bytes)
    if codec == Codec.SNAPPY:
        return snappy_stream.decompress(memoryview(data), limit_bytes)
    if codec == Codec.LZ4:
        return lz4_frame.decompress(memoryview(data), limit_bytes)
    if codec == Codec.ZSTD:
        return zstd_stream.decompress(data, limit_bytes)
    raise MalformedMessage(f"compression codec {codec} is not known")
