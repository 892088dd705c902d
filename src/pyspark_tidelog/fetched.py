"""From the bytes of a fetch to the record batches that a reader may see: framing, checksums, control batches."""

from collections.abc import Iterable, Iterator

from pyspark_tidelog.errors import DamagedBatch
from tidelog.client.operations import READ_COMMITTED, Fetched
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, MAGIC, MIN_LENGTH, BatchHeader

CONTROL_ABORT = 0


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


def visible(headers: Iterable[BatchHeader], fetched: Fetched, isolation: int) -> Iterator[BatchHeader]:
    """The batches with records for a reader: no control batches; read_committed, none of an aborted transaction."""
    aborted: dict[int, None] = {}
    upcoming = sorted(fetched.aborted, key=lambda transaction: transaction[1], reverse=True)
    for header in headers:
        while upcoming and upcoming[-1][1] <= header.last_offset:
            aborted[upcoming.pop()[0]] = None
        if header.is_control:
            if _is_abort(header):
                aborted.pop(header.producer_id, None)
        elif isolation != READ_COMMITTED or not header.is_transactional or header.producer_id not in aborted:
            yield header


def _is_abort(header: BatchHeader) -> bool:
    """A control batch holds one record whose key says what it marks: version, type (16 bits each; KIP-98).

    Before the key stand the record's length, attributes, deltas of time and offset, and the key's length; each takes
    one byte, for the record is short and the only one. The batch is not compressed.
    """
    key = header.position + HEADER_BYTES + 5
    return bytes(header.buffer[key + 2 : key + 4]) == CONTROL_ABORT.to_bytes(2, "big")


def damaged(partition: TopicPartition, offset: int, what: str) -> DamagedBatch:
    return DamagedBatch(f"{partition} is damaged at offset {offset}: {what}")
