"""A read_committed consumer of a simulated cluster: it drops aborted transactions as Kafka's consumers do."""

from collections.abc import Iterator

from simulation_harness.cluster_ledger import Violation
from tidelog.client.operations import READ_COMMITTED, Fetched, FetchLimits
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import ABORT
from tidelog.wire.messages.control_records import ControlRecordTypeSchema
from tidelog.wire.records import batches_in, decode_records

LIMITS = FetchLimits(max_wait_ms=200, max_bytes=1 << 20, partition_max_bytes=1 << 15, isolation=READ_COMMITTED)


def committed_records(partition: TopicPartition, start: int, fetched: Fetched) -> tuple[list[tuple[int, bytes]], int]:
    """Return the offsets and values of the records from `start` on that a consumer passes on, and the next offset.

    Raises Violation: `NotAboveLastStableOffset`, or `WholeBatches` for a wrong checksum.
    """
    stable = fetched.last_stable_offset
    if stable > fetched.high_watermark:
        text = f"{partition}: the last stable offset {stable} is above the high watermark {fetched.high_watermark}"
        raise Violation("NotAboveLastStableOffset", text, partition)
    aborted = sorted(((first, producer_id) for producer_id, first in fetched.aborted), reverse=True)
    aborted_producers: set[int] = set()
    records: list[tuple[int, bytes]] = []
    next_offset = start
    for header in batches_in(fetched.records):
        if header.next_offset > stable:
            text = f"{partition} at {header.next_offset - 1}, the last stable offset is {stable}"
            raise Violation("NotAboveLastStableOffset", text, partition)
        if not header.crc_ok():
            raise Violation("WholeBatches", f"{partition} at {header.base_offset}: wrong checksum", partition)
        next_offset = max(next_offset, header.next_offset)
        while aborted and aborted[-1][0] < header.next_offset:
            aborted_producers.add(aborted.pop()[1])
        if header.is_control:
            if _is_abort(fetched, header.position):
                aborted_producers.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in aborted_producers:
            records += _records_from(fetched, header.position, start)
    return records, next_offset


def _is_abort(fetched: Fetched, position: int) -> bool:
    marker = decode_records(fetched.records, position)[0]
    kind, _ = ControlRecordTypeSchema.decode(marker.key or b"", 2, 0)
    return bool(kind.type == ABORT)


def _records_from(fetched: Fetched, position: int, start: int) -> Iterator[tuple[int, bytes]]:
    for record in decode_records(fetched.records, position):
        if record.offset >= start:
            yield record.offset, bytes(record.value or b"")
