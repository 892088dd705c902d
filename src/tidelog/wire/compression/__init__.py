"""The five codecs of record batches, in the framings that Kafka's clients read and write.

One module for each codec, both directions. Every part of Tidelog that needs the records of a compressed batch calls
`decompress`: validation of produced batches, recompression, look-ups by time, compaction, `tidelog log`, the Spark
source. It takes what the readers of Kafka 4.3.1 take, and refuses what they refuse:

    gzip     members one after another; bytes after a member that begin no other are ignored
    snappy   bare, or xerial's framing, whose header may come again; up to three bytes after the last chunk are ignored
    lz4      one frame of independent blocks; what follows it is ignored; checksums of the content are not compared
    zstd     frames one after another, skippable ones too; a cut frame after whole ones is ignored if it gives no bytes

Decompression stops at a limit, whatever the stream claims: a few KB can say that they are gigabytes.
"""

from tidelog.wire.batches import Codec
from tidelog.wire.compression import gzip_stream, lz4_frame, snappy_stream, zstd_stream
from tidelog.wire.primitives import Buffer, MalformedMessage


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """`data` in the codec's framing; `data` itself for Codec.NONE.

    `level`: None for the library's default; gzip 1 to 9, lz4 1 to 17 (the slow kind of lz4), zstd -131072 to 22.
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
    """The bytes that were compressed; `data` itself for Codec.NONE.

    Raises TooLargeDecompressed above `limit_bytes`, BrokenStream for data that Kafka's reader refuses, MalformedMessage
    for an unknown codec.
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
