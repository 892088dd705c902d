"""The streaming reader. It decides where a query begins and where each micro-batch ends.

Spark calls the position of a query an offset. Here it is the JSON of Spark's Kafka source, {"topic": {"0": 23}}: for
each partition, the next offset to read. Before Spark reads a micro-batch, it writes only the end of the micro-batch to
the query's checkpoint. If Spark replays the very first micro-batch, it asks for the start again, and "latest" may
then mean another offset. Therefore the end also records the beginnings of the micro-batch, under the key BEGINNINGS.
It records them for each partition that the start of the micro-batch does not name. In the first micro-batch these
are all partitions. In later micro-batches these are new partitions and the partitions of new topics. Thus a replay
reads the same offsets.

An offset has a meaning only in the topic in which it was read. So the end also records the ids of the topics, under the
key TOPIC_IDS.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_tidelog.batch_reader import read_partition, spark_partitions
from pyspark_tidelog.connecting import connect
from pyspark_tidelog.group_offsets import COMMIT_TIMEOUT_MS, GroupOffsets
from pyspark_tidelog.lookup import Lookup, loss_reporter, without_lost
from pyspark_tidelog.offsets import BEGINNINGS, TOPIC_IDS, Offsets, Specific, offsets_of, to_json_object
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import OffsetRange, limited_ends
from tidelog.client.blocking import Client
from tidelog.client.operations import LATEST
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING_READ: dict[str, Any] = {BEGINNINGS: {}}
"""The start of the first micro-batch. No other offset has empty BEGINNINGS."""

DISCOVERY_S = 1.0
"""Minimum time between two lookups of the list of partitions, in seconds. The ends of the partitions are looked up
at every call of `latestOffset`, unless `prepareForTriggerAvailableNow` has set a target."""


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query.

    One reader runs in a Python process beside the driver and answers Spark's requests for offsets. For the tasks,
    which read the records, Spark pickles another reader.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._report = loss_reporter(options.fail_on_data_loss)
        self._client: Client | None = None
        self._connected_lookup: Lookup | None = None
        self._partitions: list[TopicPartition] = []
        self._discovered_at = float("-inf")
        self._latest: Offsets | None = None
        self._target: Offsets | None = None
        self._batch_ended_at = float("-inf")
        self._reported: set[TopicPartition] = set()
        """Lost partitions for which `latestOffset` has logged a warning."""
        self._has_checked_ids = False
        """Whether this reader has compared the topic ids in one of Spark's offsets with those of the brokers."""
        self._group = GroupOffsets(options.group_id, self._connect_for_group) if options.group_id else None

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant. The first call of `latestOffset` decides at which offsets the query begins, and returns
        them under the key BEGINNINGS.
        """
        return NOTHING_READ

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadMinRows(options.min_offsets_per_trigger) if options.min_offsets_per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the target: the query reads up to the current end of each partition, and then stops."""
        lookup = self._lookup()
        self._target = self._latest = lookup.latest(lookup.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start` itself if there are no or too few offsets to read. For the
        first micro-batch, always return an end.
        """
        is_first_batch = start == NOTHING_READ
        read = offsets_of(start)
        self._report_to_group(read)
        # The beginnings are looked up before the ends, because an end must not be lower than its beginning.
        beginnings = self._initial_offsets() if is_first_batch else {}
        latest = self._target if self._target is not None else self._look_up_latest()
        read, latest = self._checked(start, read, latest)
        if new_partitions := [tp for tp in latest if tp not in read and tp not in beginnings]:
            beginnings |= self._lookup().earliest(new_partitions)
        begin = read | {tp: offset for tp, offset in beginnings.items() if tp in latest}
        if not is_first_batch and self._should_wait_for_more(begin, latest, limit):
            return start
        end = limited_ends(limit.max_rows, begin, latest) if isinstance(limit, ReadMaxRows) else latest
        if not is_first_batch and end == read:
            return start
        self._batch_ended_at = time.monotonic()
        beginnings = {tp: begin[tp] for tp in end if tp not in read}
        topics = {tp.topic for tp in end}
        ids = {topic: topic_id for topic, topic_id in self._topic_ids().items() if topic in topics}
        return (
            to_json_object(end)
            | ({BEGINNINGS: to_json_object(beginnings)} if beginnings else {})
            | ({TOPIC_IDS: dict(sorted(ids.items()))} if ids else {})
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the partitions from the last lookup, for the progress report of the query."""
        return to_json_object(self._latest) if self._latest is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the Spark partitions of one micro-batch.

        Unless failOnDataLoss is false, raises DataLoss if offsets to read are not in the log, or if a partition was
        deleted.
        """
        ends = offsets_of(end)
        # For a topic that was created again, the beginnings replace the offsets of the old topic, which are in `start`.
        begin = offsets_of(start) | offsets_of(end.get(BEGINNINGS, {}))
        self._check_replayed(end, begin)
        for tp in [tp for tp in begin if tp not in ends and tp not in self._reported]:
            self._report(f"{tp} no longer exists; it was read up to offset {begin[tp]}")
        earliest = self._lookup().earliest([tp for tp in ends if begin.get(tp) != ends[tp]])
        # A partition may have no beginning here if the checkpoint was written by Spark's own Kafka source, which reads
        # new partitions from their log start.
        requested = [OffsetRange(*tp, begin.get(tp, earliest.get(tp, end)), end) for tp, end in ends.items()]
        ranges = without_lost(requested, earliest, self._report)
        return spark_partitions(ranges, self._options)

    def _checked(self, start: dict[str, Any], read: Offsets, latest: Offsets) -> tuple[Offsets, Offsets]:
        """Compare the positions with the topics that exist, and report what is lost. Return `read` and `latest`.

        A broker that does not know a topic or its new partitions yet may have answered. If the end of the micro-batch
        lacked these partitions, their positions would be lost. So the topics of partitions that `latest` lacks are
        requested by name. A topic never has fewer partitions than before: a partition that the second answer lacks,
        too, keeps its position.

        A topic with another id than in `start` is another topic. The returned `read` lacks its partitions, so
        they are treated like the partitions of a new topic.
        """
        self._has_checked_ids = True
        lookup = self._lookup()
        missing = [tp for tp in read if tp not in latest]
        selected = {tp.topic for tp in missing if lookup.is_selected(tp)}
        topics = {name: lookup.existing_topic(name) for name in sorted(selected)}
        others = self._other_topics(start.get(TOPIC_IDS, {}))
        for topic in others:
            last = max((offset for tp, offset in read.items() if tp.topic == topic), default=0)
            self._report(_other_topic(topic, f"the old topic was read up to offset {last}"))
        read = {tp: offset for tp, offset in read.items() if tp.topic not in others}
        kept, known = {}, []
        for tp in missing:
            found = topics.get(tp.topic)
            if tp.topic in others:
                continue
            if found is None:
                cause = "no longer exists" if tp.topic in topics else "is no longer selected by the options"
                self._report(f"{tp} {cause}; it was read up to offset {read[tp]}")
                self._reported.add(tp)
                continue
            kept[tp] = read[tp]
            if tp.partition in found.leaders:
                known.append(tp)
        if not kept:
            return read, latest
        complete = latest | kept | lookup.latest(known)
        if self._target is not None:
            self._target = complete
        self._latest = complete
        return read, complete

    def _topic_ids(self) -> dict[str, str]:
        """Return the ids of the topics by name. Topics for which the brokers send no id are left out."""
        lookup = self._lookup()
        if not lookup.topic_ids:
            self._look_up_assigned()
        return lookup.topic_ids

    def _look_up_assigned(self) -> None:
        """Look up the ids of the topics of the option `assign`. Other lookups of partitions include the ids."""
        if assigned := self._options.subscription.partitions:
            self._lookup().look_up_ids({tp.topic for tp in assigned})

    def _check_replayed(self, end: dict[str, Any], begin: Offsets) -> None:
        """Before the first micro-batch of this reader, report topics whose ids differ from the ids in `end`, which an
        earlier run of the query may have returned. For later micro-batches, `latestOffset` checks the ids.
        """
        if self._has_checked_ids:
            return
        self._has_checked_ids = True
        topics = {tp.topic for tp, offset in offsets_of(end).items() if begin.get(tp) != offset}
        known = {topic: topic_id for topic, topic_id in end.get(TOPIC_IDS, {}).items() if topic in topics}
        if known:
            self._lookup().look_up_ids(known)
        for topic in self._other_topics(known):
            self._report(_other_topic(topic, "a micro-batch was planned with offsets of the old topic"))

    def _other_topics(self, known: dict[str, str]) -> list[str]:
        """Return the topics whose ids differ from those in `known`. A second lookup must confirm each difference."""
        if not known:
            return []
        lookup, ids = self._lookup(), self._topic_ids()
        others = [topic for topic, topic_id in known.items() if ids.get(topic, topic_id) != topic_id]
        if others:
            lookup.look_up_ids(others)
        return [topic for topic in others if lookup.topic_ids[topic] != known[topic]]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets to the group of the option `groupId`.

        The query itself does not need this, because its offsets are in its checkpoint. Spark does not call this method
        for a query's last micro-batch, so `latestOffset` also commits.
        """
        self._report_to_group(offsets_of(end))

    def stop(self) -> None:
        if self._group:
            self._group.close()
        if self._client:
            self._client.close()
            self._client = self._connected_lookup = None

    def _report_to_group(self, processed: Offsets) -> None:
        """If the option `groupId` is set, commit the offsets `processed` to this group. The query has processed all
        records before them.

        Raises OptionError if the group has members when the query starts.
        """
        if self._group is None:
            return
        self._group.refuse_members()
        self._group.commit(processed)

    def _connect_for_group(self) -> Client:
        client = self._options.client
        timeout_ms = min(COMMIT_TIMEOUT_MS, client.default_api_timeout_ms)
        return connect(self._options._replace(client=client._replace(default_api_timeout_ms=timeout_ms)))

    def _initial_offsets(self) -> Offsets:
        """Return the offsets at which the query begins.

        Offsets of 0 or more in the option `startingOffsets` are not changed. The other offsets are looked up now. If
        there is a target, they are limited to the target, because it was looked up earlier and may be lower.
        """
        starting = self._options.starting
        offsets = self._lookup().resolve("startingOffsets", starting, self._discover(0.0))
        specific = starting.offsets if isinstance(starting, Specific) else {}
        target = self._target or {}
        return {
            tp: offset if specific.get(tp, LATEST) >= 0 else min(offset, target.get(tp, offset))
            for tp, offset in offsets.items()
        }

    def _look_up_latest(self) -> Offsets:
        """Ask the brokers for the ends of the partitions. The ends are not cached, because `processAllAvailable` must
        read all records written before its call.
        """
        try:
            self._latest = self._lookup().latest(self._discover(DISCOVERY_S))
        except UnknownTopicOrPartition:  # a topic was deleted after the last lookup of partitions
            self._latest = self._lookup().latest(self._discover(0.0))
        return self._latest

    def _discover(self, age_max_s: float) -> list[TopicPartition]:
        """Return the partitions that the subscription matches, from a lookup that is not older than `age_max_s`."""
        now = time.monotonic()
        if now - self._discovered_at >= age_max_s:
            self._partitions = self._lookup().partitions()
            self._look_up_assigned()
            self._discovered_at = now
        return self._partitions

    def _should_wait_for_more(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> bool:
        """Return whether to wait because fewer offsets than `minOffsetsPerTrigger` are available.

        A query never waits if it has a target, if Spark asks for all available offsets, or if `maxTriggerDelay` has
        passed since the query's previous micro-batch.
        """
        min_offsets = self._options.min_offsets_per_trigger
        if not min_offsets or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = (time.monotonic() - self._batch_ended_at) * 1000
        available_offsets = sum(max(0, end - begin[tp]) for tp, end in latest.items())
        return available_offsets < min_offsets and waited_ms < self._options.max_trigger_delay_ms

    def _lookup(self) -> Lookup:
        """Return the query's `Lookup`. It is created only once, because it caches which topics a pattern matches."""
        if self._connected_lookup is None:
            self._client = connect(self._options)
            self._connected_lookup = Lookup(self._client, self._options.subscription, self._options.fetch.isolation)
        return self._connected_lookup


def _other_topic(topic: str, position: str) -> str:
    """Return the description of a loss: the name stands for another topic than before."""
    return (
        f"topic {topic} was deleted and created again, or the brokers are those of another cluster: the topic's id has"
        f" changed, so the query's position in it has no meaning ({position}). Start the query with a new checkpoint;"
        " in a pipeline: tidelog pipeline replay NAME --from TIME"
    )
