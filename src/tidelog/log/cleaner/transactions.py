"""Find the batches of aborted transactions, and the markers that are no longer needed. Pure.

The batches must be given in the order of their offsets. If a compaction pass reads no record of a transaction, an
earlier pass has removed all of its records. Only then may the transaction's marker be removed.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop
from typing import TYPE_CHECKING

from tidelog.log.batch_scan import ATTRIBUTES, BASE_OFFSET, COUNT, LAST_OFFSET_DELTA, PRODUCER_ID, Fields
from tidelog.log.replay import end_marker
from tidelog.wire.batches import ABORT, COMMIT, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from tidelog.log.transaction_index import AbortedTransaction
    from tidelog.runtime.interfaces import Buffer


class Transactions:
    """Tracks the open transactions while a log is read.

    `aborted` contains aborted transactions, in any order. The caller must leave out those whose markers are before the
    first batch that is read: such a transaction would never end, and later records of its producer would count as
    aborted. `on_marker_kept` is called with each aborted transaction whose marker must be kept because records of the
    transaction were read.
    """

    def __init__(
        self,
        aborted: "Sequence[AbortedTransaction]",
        on_marker_kept: "Callable[[AbortedTransaction], object] | None" = None,
    ) -> None:
        self._upcoming = [(entry.first_offset, entry.last_offset, entry) for entry in aborted]
        heapify(self._upcoming)
        self._on_marker_kept = on_marker_kept
        self._aborting: dict[int, AbortedTransaction] = {}
        """The aborted transactions that have begun and not ended, by producer id."""
        self._aborting_with_records: dict[int, None] = {}
        """Producers whose aborted transaction has records that were read."""
        self._committing: dict[int, None] = {}
        """Producers whose transaction was not aborted and has records that were read."""

    def track_records(self, fields: Fields) -> bool:
        """Track a batch of records. Returns whether it belongs to an aborted transaction."""
        self._begin(fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA])
        if not fields[ATTRIBUTES] & TRANSACTIONAL_BIT:
            return False
        producer_id = fields[PRODUCER_ID]
        if producer_id in self._aborting:
            self._aborting_with_records[producer_id] = None
            return True
        self._committing[producer_id] = None
        return False

    def track_marker(self, fields: Fields, batch: "Buffer") -> bool:
        """Track a control batch. Returns whether it may be removed. It may be removed if it is empty, or if it ends
        a transaction of which no record was read.

        No other control batch may be removed. Raises ValueError if the batch cannot be decoded.
        """
        self._begin(fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA])
        if not fields[COUNT]:
            return True
        marker = end_marker(batch)
        producer_id = fields[PRODUCER_ID]
        if marker is not None and marker[0] == ABORT:
            aborted = self._aborting.pop(producer_id, None)
            if aborted is None or producer_id not in self._aborting_with_records:
                return True
            del self._aborting_with_records[producer_id]
            if self._on_marker_kept is not None:
                self._on_marker_kept(aborted)
            return False
        if marker is not None and marker[0] == COMMIT:
            if producer_id not in self._committing:
                return True
            del self._committing[producer_id]
        return False

    def _begin(self, last_offset: int) -> None:
        """Note the aborted transactions that begin at or before `last_offset`."""
        upcoming = self._upcoming
        while upcoming and upcoming[0][0] <= last_offset:
            aborted = heappop(upcoming)[2]
            self._aborting.setdefault(aborted.producer_id, aborted)
