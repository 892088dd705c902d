"""Find the record batches in the bytes that a fetch returned, and check the checksums of the batches."""

from pyspark_tidelog.errors import DamagedBatch
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, MAGIC, MIN_LENGTH, BatchHeader


def whole_batches(partition: TopicPartition, position: int, records: memoryview) -> list[BatchHeader]:
    """Return the headers of the complete batches in `records`, which a fetch from offset `position` returned.

    The last batch of a fetch may be incomplete. It is then omitted. Raises DamagedBatch if a header is invalid, if a
    batch begins before the end of the previous one, or if the message format is not supported.
    """
    headers = []
    at, expected = 0, 0
    while at + HEADER_BYTES <= len(records):
        header = BatchHeader(records, at)
        if header.length < MIN_LENGTH or header.last_offset_delta < 0 or header.base_offset < expected:
            raise damaged(partition, max(position, expected), "the header of a record batch is invalid")
        if header.magic != MAGIC:
            raise damaged(
                partition, header.base_offset, f"message format {header.magic} is not supported, only {MAGIC}"
            )
        if at + header.size > len(records):
            break
        headers.append(header)
        at += header.size
        expected = header.next_offset
    return headers


def check_crc(partition: TopicPartition, header: BatchHeader) -> None:
    """Check the batch's CRC. Raises DamagedBatch if the bytes do not match it."""
    if not header.crc_ok():
        raise damaged(
            partition,
            header.base_offset,
            f"offsets {header.base_offset} to {header.last_offset}: the CRC-32C is not the stated {header.crc:#010x}",
        )


def damaged(partition: TopicPartition, offset: int, reason: str) -> DamagedBatch:
    return DamagedBatch(f"{partition} is damaged at offset {offset}: {reason}")
