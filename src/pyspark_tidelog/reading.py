"""What a task does: fetch the record batches of one range of offsets and hand them over as Arrow batches."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pyspark_tidelog.fetched import check, damaged, whole_batches
from pyspark_tidelog.lookup import loss_reporter
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.rows import ArrowRows
from tidelog.client.errors import GaveUp
from tidelog.client.operations import EARLIEST, LATEST, READ_COMMITTED, Fetched, FetchLimits, ListedOffset
from tidelog.client.visible import visible
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, BatchHeader
from tidelog.wire.errors import OffsetOutOfRange

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_BYTES_MIN = 64 << 10
RECORD_BYTES_GUESS = 256
SPARE = 1.2
"""How much more than the estimate is asked for: too little costs a round trip, too much is sent for nothing."""


class StartedFetch(Protocol):
    def result(self) -> Fetched: ...


class PartitionClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that a task needs."""

    def start_fetch(self, partition: TopicPartition, offset: int, limits: FetchLimits) -> StartedFetch: ...
    def list_offsets(
        self, timestamps: dict[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]: ...


class RangeReader:
    """Reads one range, once. The next fetch is on its way while the rows of the last are decoded and handed over."""

    def __init__(
        self, broker: PartitionClient, options: ReadOptions, wanted: OffsetRange, columns: tuple[str, ...]
    ) -> None:
        self._broker = broker
        self._options = options
        self._partition = wanted.topic_partition
        self._position = wanted.start
        self._end = wanted.end
        self._rows = ArrowRows(self._partition, columns)
        self._record_bytes = float(RECORD_BYTES_GUESS)
        self._report = loss_reporter(options.fail_on_data_loss)
        self._silent_since: float | None = None  # since the first of the empty answers that came one after another

    def record_batches(self) -> "Iterator[pa.RecordBatch]":
        """Raises DataLoss, DamagedBatch, and what the client raises."""
        started = self._start()
        while started is not None:
            try:
                fetched = started.result()
            except OffsetOutOfRange:
                self._skip_what_is_gone()
                started = self._start()
                continue
            low = self._position
            headers = whole_batches(self._partition, low, fetched.records)
            if headers:
                self._advance(headers)
            else:
                self._nothing_came(fetched)
            started = self._start()
            yield from self._rows.batches(self._checked(headers, fetched), low, self._end)

    def _start(self) -> StartedFetch | None:
        """Ask for what follows; None at the end of the range."""
        if self._position >= self._end:
            return None
        limits = self._options.fetch
        estimate = int((self._end - self._position) * self._record_bytes * SPARE) + HEADER_BYTES
        bytes_max = min(limits.partition_max_bytes, max(FETCH_BYTES_MIN, estimate))
        return self._broker.start_fetch(self._partition, self._position, limits._replace(partition_max_bytes=bytes_max))

    def _advance(self, headers: list[BatchHeader]) -> None:
        first, last = headers[0], headers[-1]
        size = last.position + last.size - first.position
        self._record_bytes = size / max(1, last.next_offset - first.base_offset)
        self._position = max(self._position, last.next_offset)
        self._silent_since = None

    def _checked(self, headers: list[BatchHeader], fetched: Fetched) -> Iterator[BatchHeader]:
        """Those with records for a reader, each found undamaged before it is handed on."""
        for header in visible(headers, fetched, self._options.fetch.isolation):
            if self._options.check_crcs:
                check(self._partition, header)
            yield header

    def _skip_what_is_gone(self) -> None:
        """The position is outside of the log: below it by retention, or above it after a truncation."""
        isolation = self._options.fetch.isolation
        earliest = self._broker.list_offsets({self._partition: EARLIEST}, isolation)[self._partition].offset
        if self._position < earliest:
            lost = min(earliest, self._end)
            self._report(
                f"{self._partition}: offsets {self._position} to {lost - 1} are gone, the log begins at {earliest}"
            )
            self._position = lost
        else:
            latest = self._broker.list_offsets({self._partition: LATEST}, isolation)[self._partition].offset
            self._end_early(latest)

    def _nothing_came(self, fetched: Fetched) -> None:
        """What was planned is there, so that it comes in time, or never: after an unclean election, say."""
        if len(fetched.records):
            raise damaged(self._partition, self._position, "the broker sent less than one record batch")
        if fetched.high_watermark < 0:  # HELD_BACK: nothing was told of the partition
            self._silent_since = None
            return
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        patience_ms = self._options.client.default_api_timeout_ms
        if (now - self._silent_since) * 1000 < patience_ms:
            return
        committed = self._options.fetch.isolation == READ_COMMITTED
        latest = fetched.last_stable_offset if committed else fetched.high_watermark
        if latest > self._position:  # the broker says itself that it is not lost
            raise GaveUp(
                f"{self._partition}: nothing came from offset {self._position} on for {patience_ms} ms, "
                f"although the log ends at {latest}"
            )
        self._end_early(latest)

    def _end_early(self, latest: int) -> None:
        self._report(
            f"{self._partition}: offsets {self._position} to {self._end - 1} are gone, the log ends at {latest}"
        )
        self._position = self._end
