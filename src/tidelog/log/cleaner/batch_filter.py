"""Decide by Kafka's rules which records of a batch are kept by a compaction pass. Pure.

A record of an aborted transaction is removed. For other records, the offset map decides. The map covers only a part of
the log, and every record after this part is kept. In this part and before it, a record with a key is kept if the map
has no later record with this key, and a record without a key is removed. A tombstone is a record without a value. If
it is the last record of its key, the first pass that reads it gives its batch a delete horizon, which is a time. The
first pass after that time removes the tombstone (KIP-534). The marker of a transaction gets a delete horizon in the
first pass that finds no records of the transaction, and is removed in the same way. A batch without records is
removed, with two exceptions: the last batch of a producer, because a restart needs its sequence number, and the last
batch of the pass, because it preserves the end offset.
"""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    COUNT,
    LAST_OFFSET_DELTA,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Fields,
)
from tidelog.log.cleaner.records import (
    RawRecord,
    decompressed_records,
    delete_horizon,
    empty_batch,
    raw_records,
    rebuild_batch,
)
from tidelog.wire.batches import CONTROL_BIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.log.cleaner.offset_map import OffsetMap
    from tidelog.log.cleaner.transactions import Transactions
    from tidelog.runtime.interfaces import Buffer


class FilterResult(NamedTuple):
    """The result for one batch: the batch to write (None if no batch is written), and the numbers of records before and
    after the filtering.
    """

    batch: "Buffer | None"
    records_before: int
    records_after: int


class BatchFilter:
    """Filters the batches of a log in order. Raises ValueError for a batch that cannot be decoded."""

    __slots__ = ("_end_offset", "_map", "_new_horizon_ms", "_now_ms", "_producers", "_transactions")

    def __init__(
        self,
        offset_map: "OffsetMap",
        transactions: "Transactions",
        *,
        producers: "Mapping[int, tuple[int, int]]",
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """For `producers` and `end_offset`, see `CleanJob`."""
        self._map = offset_map
        self._transactions = transactions
        self._producers = producers
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._new_horizon_ms = now_ms + delete_retention_ms

    def apply(self, batch: "Buffer", fields: Fields) -> FilterResult:
        """Filter one batch. It must be complete and have a valid checksum. Batches must be passed in the order of
        the log. Raises ValueError.
        """
        records_before = fields[COUNT]
        if fields[ATTRIBUTES] & CONTROL_BIT:
            return self._apply_control(batch, fields)
        if self._transactions.track_records(fields):
            return self._without_records(fields)
        if not records_before:
            return self._without_records(fields)
        kept_records, has_tombstones, data = self._records_to_keep(batch, fields)
        if not kept_records:
            return self._without_records(fields)
        horizon_ms = delete_horizon(fields)
        gets_horizon = has_tombstones and horizon_ms is None
        if gets_horizon:
            horizon_ms = self._new_horizon_ms
        elif len(kept_records) == records_before:
            return FilterResult(batch, records_before, records_before)
        return FilterResult(rebuild_batch(fields, data, kept_records, horizon_ms), records_before, len(kept_records))

    def _apply_control(self, batch: "Buffer", fields: Fields) -> FilterResult:
        count = fields[COUNT]
        is_removable = self._transactions.track_marker(fields, batch)
        horizon_ms = delete_horizon(fields)
        if not count or (is_removable and horizon_ms is not None and horizon_ms <= self._now_ms):
            return self._without_records(fields)
        if is_removable and horizon_ms is None:
            data = decompressed_records(batch, fields)
            records = list(raw_records(data, count, fields[LAST_OFFSET_DELTA]))
            return FilterResult(rebuild_batch(fields, data, records, self._new_horizon_ms), count, count)
        return FilterResult(batch, count, count)

    def _records_to_keep(self, batch: "Buffer", fields: Fields) -> tuple[list[RawRecord], bool, bytes]:
        """Return three values: the kept records, whether they include tombstones, and the decompressed records of
        the batch.
        """
        base_offset = fields[BASE_OFFSET]
        data = decompressed_records(batch, fields)
        latest = self._map.latest_offset
        if base_offset > latest:
            records = list(raw_records(data, fields[COUNT], fields[LAST_OFFSET_DELTA]))
            return records, not all(record[5] for record in records), data
        horizon_ms = delete_horizon(fields)
        tombstones_expired = horizon_ms is not None and horizon_ms <= self._now_ms
        last_offset_of = self._map.last_offset_of
        kept_records = []
        has_tombstones = False
        for record in raw_records(data, fields[COUNT], fields[LAST_OFFSET_DELTA]):
            offset = base_offset + record[3]
            if offset <= latest:
                key = record[4]
                if key is None or offset < last_offset_of(key) or (tombstones_expired and not record[5]):
                    continue
            kept_records.append(record)
            has_tombstones = has_tombstones or not record[5]
        return kept_records, has_tombstones, data

    def _without_records(self, fields: Fields) -> FilterResult:
        """Return an empty result, or the batch without its records if its header must be preserved."""
        producer = self._producers.get(fields[PRODUCER_ID]) if fields[PRODUCER_ID] >= 0 else None
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        is_last_of_producer = False
        if producer is not None:
            last_data_offset, epoch = producer
            if last_data_offset >= 0:
                is_last_of_producer = last_offset == last_data_offset
            else:  # the producer has no batch with records: the marker of its last epoch is kept
                is_last_of_producer = bool(fields[ATTRIBUTES] & CONTROL_BIT) and fields[PRODUCER_EPOCH] == epoch
        if is_last_of_producer or last_offset + 1 == self._end_offset:
            return FilterResult(empty_batch(fields), fields[COUNT], 0)
        return FilterResult(None, fields[COUNT], 0)
