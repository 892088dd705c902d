"""Filter fetched record batches: omit control batches and, with read_committed, batches of aborted transactions."""

from collections.abc import Iterable, Iterator

from tidelog.client.operations import READ_COMMITTED, Fetched
from tidelog.wire.batches import ABORT, HEADER_BYTES, BatchHeader


def visible_batches(headers: Iterable[BatchHeader], fetched: Fetched, isolation: int) -> Iterator[BatchHeader]:
    """Yield the batches whose records an application may see. Control batches are omitted. If `isolation` is
    READ_COMMITTED, batches of aborted transactions are omitted, too.
    """
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
    """Return whether a control batch is an abort marker. A control batch contains one record. The key of this record
    consists of a version and a type, each of which has 16 bits (KIP-98).

    Before the key are the record's length, attributes, timestamp delta, offset delta and key length. Each of these
    fields has one byte, because the batch has only one record, which is short. Control batches are not compressed.
    """
    key = header.position + HEADER_BYTES + 5
    return bytes(header.buffer[key + 2 : key + 4]) == ABORT.to_bytes(2, "big")
