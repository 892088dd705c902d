"""Read one range of offsets in a task: fetch its record batches and pass them on as Arrow batches."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pyspark_tidelog.fetched import check_crc, damaged, whole_batches
from pyspark_tidelog.lookup import loss_reporter
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.rows import ArrowRows
from tidelog.client.errors import GaveUp
from tidelog.client.operations import EARLIEST, LATEST, READ_COMMITTED, Fetched, FetchLimits, ListedOffset
from tidelog.client.visible import visible_batches
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import HEADER_BYTES, BatchHeader
from tidelog.wire.errors import OffsetOutOfRange

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_BYTES_MIN = 64 << 10
"""A fetch allows at least this number of bytes of records in its answer, unless kafka.max.partition.fetch.bytes is
smaller."""
RECORD_BYTES_GUESS = 256
"""Expected size of a record, in bytes, before the first records have been fetched."""
ESTIMATE_FACTOR = 1.2
"""The number of bytes that a fetch requests, divided by the number that it is expected to need. If it requests too
few bytes, one more round trip is necessary. If it requests too many, bytes are transferred that are not used."""


class StartedFetch(Protocol):
    def result(self) -> Fetched: ...


class PartitionClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that a task needs."""

    def start_fetch(self, partition: TopicPartition, offset: int, limits: FetchLimits) -> StartedFetch: ...
    def list_offsets(
        self, timestamps: dict[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]: ...


class RangeReader:
    """Reads one range of offsets. An instance cannot be used twice. While the rows of one fetch are decoded and
    passed on, the next fetch is in flight.
    """

    def __init__(
        self, broker: PartitionClient, options: ReadOptions, offset_range: OffsetRange, columns: tuple[str, ...]
    ) -> None:
        self._broker = broker
        self._options = options
        self._partition = offset_range.topic_partition
        self._position = offset_range.start
        self._end = offset_range.end
        self._rows = ArrowRows(self._partition, columns)
        self._record_bytes = float(RECORD_BYTES_GUESS)
        self._report = loss_reporter(options.fail_on_data_loss)
        self._empty_since: float | None = None
        """The arrival time of the first answer in the current series of answers without records. None before the first
        answer, and if the latest answer had records or was throttled."""

    def arrow_batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of the range. Raises DataLoss, DamagedBatch, and the errors of the client."""
        started = self._start()
        while started is not None:
            try:
                fetched = started.result()
            except OffsetOutOfRange:
                self._handle_missing_offset()
                started = self._start()
                continue
            low = self._position
            headers = whole_batches(self._partition, low, fetched.records)
            if headers:
                self._advance(headers)
            else:
                self._handle_empty_answer(fetched)
            started = self._start()
            yield from self._rows.batches(self._checked_batches(headers, fetched), low, self._end)

    def _start(self) -> StartedFetch | None:
        """Start the next fetch; return None at the end of the range."""
        if self._position >= self._end:
            return None
        limits = self._options.fetch
        estimate = int((self._end - self._position) * self._record_bytes * ESTIMATE_FACTOR) + HEADER_BYTES
        bytes_max = min(limits.partition_max_bytes, max(FETCH_BYTES_MIN, estimate))
        return self._broker.start_fetch(self._partition, self._position, limits._replace(partition_max_bytes=bytes_max))

    def _advance(self, headers: list[BatchHeader]) -> None:
        first, last = headers[0], headers[-1]
        size = last.position + last.size - first.position
        self._record_bytes = size / max(1, last.next_offset - first.base_offset)
        self._position = max(self._position, last.next_offset)
        self._empty_since = None

    def _checked_batches(self, headers: list[BatchHeader], fetched: Fetched) -> Iterator[BatchHeader]:
        """Yield the batches that the isolation level makes visible. If `check_crcs` is set, check the CRC of each
        of these batches before it is yielded.
        """
        for header in visible_batches(headers, fetched, self._options.fetch.isolation):
            if self._options.check_crcs:
                check_crc(self._partition, header)
            yield header

    def _handle_missing_offset(self) -> None:
        """Handle a fetch that failed with OffsetOutOfRange. Report the offsets that are lost, if any.

        If the log begins after the position, continue at the beginning of the log. If the log ends before the position,
        end the range. Otherwise the log has changed since the fetch, for example because a new leader had not yet
        received the newest high watermark: nothing is lost, so pause, and the next fetch begins at the same position.
        """
        isolation = self._options.fetch.isolation
        earliest = self._broker.list_offsets({self._partition: EARLIEST}, isolation)[self._partition].offset
        if self._position < earliest:
            begin = min(earliest, self._end)
            self._report(
                f"{self._partition}: offsets {self._position} to {begin - 1} are gone, the log begins at {earliest}"
            )
            self._position = begin
        else:
            latest = self._broker.list_offsets({self._partition: LATEST}, isolation)[self._partition].offset
            if latest < self._position:
                self._end_early(latest)
            elif self._is_overdue():
                self._end_or_give_up(latest)
            else:
                time.sleep(self._options.client.backoff.first_ms / 1000)

    def _handle_empty_answer(self, fetched: Fetched) -> None:
        """Handle an answer without a complete batch.

        The records existed when the range was planned. Either the next fetches return them, or they were lost, for
        example in an unclean leader election. If no fetch returns records within the client's
        `default_api_timeout_ms`, compare the position with the offset at which the log ends: if the log continues after
        the position, raise GaveUp, otherwise report the loss and end the range. (`batch_reader` sets this timeout to
        the poll timeout.) If the answer has bytes but no complete batch, raise DamagedBatch at once.
        """
        if len(fetched.records):
            raise damaged(self._partition, self._position, "the broker sent less than one complete record batch")
        if fetched.high_watermark < 0:  # the broker throttled the fetch, so its answer omits the partition
            self._empty_since = None
            return
        if self._is_overdue():
            read_committed = self._options.fetch.isolation == READ_COMMITTED
            self._end_or_give_up(fetched.last_stable_offset if read_committed else fetched.high_watermark)

    def _is_overdue(self) -> bool:
        """Return whether no fetch has returned records within the client's `default_api_timeout_ms`. The time begins
        with the first call of this method after `_empty_since` was set to None.
        """
        now = time.monotonic()
        if self._empty_since is None:
            self._empty_since = now
        return (now - self._empty_since) * 1000 >= self._options.client.default_api_timeout_ms

    def _end_or_give_up(self, latest: int) -> None:
        """Raise GaveUp if the log continues after the position, otherwise report the loss and end the range.

        `latest` is as in `_end_early`.
        """
        if latest > self._position:  # the log continues, so the records are not lost
            timeout_ms = self._options.client.default_api_timeout_ms
            raise GaveUp(
                f"{self._partition}: no record at or after offset {self._position} was received for {timeout_ms} ms, "
                f"although the log continues to offset {self._end_text(latest)}"
            )
        self._end_early(latest)

    def _end_early(self, latest: int) -> None:
        """Report the rest of the range as lost, and end the range.

        `latest` is the offset at which the readable part of the log ends: the high watermark, or, with read_committed,
        the last stable offset.
        """
        self._report(
            f"{self._partition}: offsets {self._position} to {self._end - 1} are gone, "
            f"the log ends at {self._end_text(latest)}"
        )
        self._position = self._end

    def _end_text(self, latest: int) -> str:
        is_stable_offset = self._options.fetch.isolation == READ_COMMITTED
        return f"{latest} (last stable offset)" if is_stable_offset else str(latest)
