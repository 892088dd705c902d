"""The streaming reader: where a query begins, how far each micro-batch goes, and what is durable of that.

An offset of this source is the JSON of Spark's Kafka source, {"topic": {"0": 23}}: the next offset to be read of each
partition. Spark writes the end of a micro-batch to the query's checkpoint before it reads anything, and nothing else:
the start of the very first one it asks for again whenever it replays it, when "latest" has moved on. So the end itself
says, under BEGUN, where the micro-batch began for each partition that its start does not name: all of them in the first
micro-batch, later those that were added to a topic. A replay then reads the same offsets, whatever has happened since.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_tidelog.batch_reader import RangePartition, read_range
from pyspark_tidelog.connecting import connect
from pyspark_tidelog.lookup import Lookup, loss_reporter, without_lost
from pyspark_tidelog.offsets import Offsets, Specific, from_json_object, to_json_object
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import OffsetRange, cut_to, split
from tidelog.client.blocking import Client
from tidelog.client.operations import LATEST
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    import pyarrow as pa

BEGUN = "@begun"
"""Not a topic: a topic's name has no @."""
NOTHING_READ: dict[str, Any] = {BEGUN: {}}
"""The start of the first micro-batch. No other offset says that it begun nowhere."""

DISCOVERY_S = 1.0
"""Partitions are looked for at most this often; their ends are asked for at every call."""


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one in a process beside the driver, asks it for offsets, and pickles another for the tasks' reads."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._report = loss_reporter(options.fail_on_data_loss)
        self._client: Client | None = None
        self._connected_lookup: Lookup | None = None
        self._partitions: list[TopicPartition] = []
        self._discovered = float("-inf")
        self._latest: Offsets | None = None
        self._target: Offsets | None = None
        self._batch_ended = float("-inf")

    def initialOffset(self) -> dict[str, Any]:
        """Always the same: where it is, the first end says."""
        return NOTHING_READ

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadMinRows(options.min_offsets_per_trigger) if options.min_offsets_per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what the query reads before it stops."""
        lookup = self._lookup()
        self._target = self._latest = lookup.latest(lookup.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; `start` itself, when there is nothing (enough) to read."""
        first = start == NOTHING_READ
        read = offsets_of(start)
        begun = self._initial() if first else {}  # before the ends, which must not lie before it
        latest = self._target if self._target is not None else self._latest_now()
        if new := [tp for tp in latest if tp not in read and tp not in begun]:
            begun |= self._lookup().earliest(new)
        begin = read | {tp: offset for tp, offset in begun.items() if tp in latest}
        if not first and self._too_little(begin, latest, limit):
            return start
        end = cut_to(limit.max_rows, begin, latest) if isinstance(limit, ReadMaxRows) else latest
        if not first and end == read:
            return start
        self._batch_ended = time.monotonic()
        begun = {tp: begin[tp] for tp in end if tp not in read}
        return to_json_object(end) | ({BEGUN: to_json_object(begun)} if begun else {})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: where the partitions ended when they were last asked."""
        return to_json_object(self._latest) if self._latest is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises DataLoss for what the log no longer holds."""
        until = offsets_of(end)
        begin = offsets_of(end.get(BEGUN, {})) | offsets_of(start)
        for tp in [tp for tp in begin if tp not in until]:
            self._report(f"{tp} is gone; it was read up to offset {begin[tp]}")
        earliest = self._lookup().earliest([tp for tp in until if begin.get(tp) != until[tp]])
        # Not named at all: a checkpoint of Spark's own Kafka source, which reads such partitions from their beginning.
        wanted = [OffsetRange(*tp, begin.get(tp, earliest.get(tp, end)), end) for tp, end in until.items()]
        ranges = without_lost(wanted, earliest, self._report)
        options = self._options
        return [RangePartition(r) for r in split(ranges, options.min_partitions, options.max_records_per_partition)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_range(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint holds the offsets. (Spark does not call it for a query's last batch.)"""

    def stop(self) -> None:
        if self._client:
            self._client.close()
            self._client = self._connected_lookup = None

    def _initial(self) -> Offsets:
        """Where the query begins. "Latest" is not beyond the target, which may have been taken a moment before."""
        starting = self._options.starting
        found = self._lookup().resolve("startingOffsets", starting, self._discover(0.0))
        given = starting.offsets if isinstance(starting, Specific) else {}
        target = self._target or {}
        return {tp: at if given.get(tp, LATEST) >= 0 else min(at, target.get(tp, at)) for tp, at in found.items()}

    def _latest_now(self) -> Offsets:
        """Never from a cache: `processAllAvailable` relies on it that what was written before is seen."""
        try:
            self._latest = self._lookup().latest(self._discover(DISCOVERY_S))
        except UnknownTopicOrPartition:  # deleted since
            self._latest = self._lookup().latest(self._discover(0.0))
        return self._latest

    def _discover(self, age_max_s: float) -> list[TopicPartition]:
        now = time.monotonic()
        if now - self._discovered >= age_max_s:
            self._partitions = self._lookup().partitions()
            self._discovered = now
        return self._partitions

    def _too_little(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> bool:
        """Whether to wait for more (`minOffsetsPerTrigger`). A query that is to stop at its target does not wait."""
        least = self._options.min_offsets_per_trigger
        if not least or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = (time.monotonic() - self._batch_ended) * 1000
        there = sum(max(0, end - begin[tp]) for tp, end in latest.items())
        return there < least and waited_ms < self._options.max_trigger_delay_ms

    def _lookup(self) -> Lookup:
        """The same for as long as the query runs, since it remembers which topics a pattern chooses."""
        if self._connected_lookup is None:
            self._client = connect(self._options)
            self._connected_lookup = Lookup(self._client, self._options.subscription, self._options.fetch.isolation)
        return self._connected_lookup


def offsets_of(document: Mapping[str, Any]) -> Offsets:
    return from_json_object({topic: values for topic, values in document.items() if topic != BEGUN})
