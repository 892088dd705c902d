"""From the bytes of a fetch to the record batches that a reader may see: framing, checksums."""

from pyspark_tidelog.errors import DamagedBatch
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, MAGIC, MIN_LENGTH, BatchHeader


def whole_batches(partition: TopicPartition, position: int, records: memoryview) -> list[BatchHeader]:
    """The headers of the batches that are whole in `records`, which begins with the one that holds offset `position`.

    The last batch of a fetch may be cut: it is left out. Raises DamagedBatch where the chain of batches breaks.
    """
    headers = []
    at, expected = 0, 0
    while at + HEADER_BYTES <= len(records):
        header = BatchHeader(records, at)
        if header.length < MIN_LENGTH or header.last_offset_delta < 0 or header.base_offset < expected:
            raise damaged(partition, max(position, expected), "the header of a record batch is not one")
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


def check(partition: TopicPartition, header: BatchHeader) -> None:
    """Raises DamagedBatch when the bytes are not those that the CRC was made of."""
    if not header.crc_ok():
        raise damaged(
            partition,
            header.base_offset,
            f"offsets {header.base_offset} to {header.last_offset}: the CRC-32C is not {header.crc:#010x} as stated",
        )


def damaged(partition: TopicPartition, offset: int, what: str) -> DamagedBatch:
    return DamagedBatch(f"{partition} is damaged at offset {offset}: {what}")
