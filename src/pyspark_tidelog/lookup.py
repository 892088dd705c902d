"""While a query is planned, ask the brokers which partitions exist and where their logs begin and end."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pyspark_tidelog.errors import DataLoss, OptionError
from pyspark_tidelog.offsets import Bound, ByTimestamp, Everywhere, Offsets, Specific, describe
from pyspark_tidelog.options import Subscription
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.topic_pattern import TopicPattern
from tidelog.client.cluster import Topic
from tidelog.client.operations import EARLIEST, LATEST, ListedOffset
from tidelog.model.ids import NO_TOPIC_ID, TopicPartition
from tidelog.wire.errors import UnknownTopicOrPartition

logger = logging.getLogger("tidelog.spark")


class OffsetLookupClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that planning needs."""

    def topics(self, names: list[str]) -> dict[str, Topic]: ...
    def all_topics(self) -> dict[str, Topic]: ...
    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]: ...


class Lookup:
    """Looks up partitions and offsets of one subscription, at one isolation level."""

    def __init__(self, brokers: OffsetLookupClient, subscription: Subscription, isolation: int) -> None:
        self._brokers = brokers
        self._subscription = subscription
        self._isolation = isolation
        self._pattern = TopicPattern(subscription.pattern)
        self.topic_ids: dict[str, str] = {}
        """The ids of the topics, as hexadecimal texts, from the last answer for each topic. If a broker sends no id
        for a topic, this dictionary does not contain the topic."""

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the subscription matches now. A pattern never matches an internal topic. The
        partitions of the option `assign` are returned without a check that they exist.

        Raises UnknownTopicOrPartition if a named topic does not exist, and OptionError if Java rejects the pattern.
        """
        subscription = self._subscription
        if subscription.partitions:
            return list(subscription.partitions)
        if subscription.topics:
            topics = self._brokers.topics(list(subscription.topics))
        else:
            public = {name: topic for name, topic in self._brokers.all_topics().items() if not topic.internal}
            topics = {name: public[name] for name in self._pattern.topics_among(public)}
        self._store_ids(topics)
        return [TopicPartition(name, number) for name in sorted(topics) for number in topics[name].leaders]

    def look_up_ids(self, names: Iterable[str]) -> None:
        """Update `topic_ids` for these topics. Raises UnknownTopicOrPartition if one of them does not exist."""
        self._store_ids(self._brokers.topics(sorted(names)))

    def is_selected(self, partition: TopicPartition) -> bool:
        """Return whether the subscription matches the partition, if the partition exists."""
        subscription = self._subscription
        if subscription.partitions:
            return partition in subscription.partitions
        if subscription.topics:
            return partition.topic in subscription.topics
        return partition.topic in self._pattern.topics_among([partition.topic])

    def existing_topic(self, name: str) -> Topic | None:
        """Return a topic, or None if it does not exist. Not every broker knows a new topic at once. So if a broker
        answers that the topic does not exist, the request is repeated before this answer is accepted.
        """
        try:
            topics = self._brokers.topics([name])
        except UnknownTopicOrPartition:
            return None
        self._store_ids(topics)
        return topics[name]

    def _store_ids(self, topics: Mapping[str, Topic]) -> None:
        self.topic_ids |= {
            name: topic.topic_id.hex() for name, topic in topics.items() if topic.topic_id != NO_TOPIC_ID
        }

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._everywhere(partitions, EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the high watermarks; with read_committed, the last stable offsets."""
        return self._everywhere(partitions, LATEST)

    def first_at_or_after(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offset of each partition's first record whose timestamp is the given one or a later one; -1 for a
        partition without such a record.
        """
        return self._list(timestamps_ms)

    def resolve(self, option: str, bound: Bound, partitions: list[TopicPartition]) -> Offsets:
        """Return, for each partition, the offset at which reading starts or ends. `option` is startingOffsets or
        endingOffsets.

        Raises OptionError if the option lists partitions, each with a value, and these are not exactly `partitions`.
        Also raises OptionError if a partition has no record with the starting timestamp or a later one, unless
        startingOffsetsByTimestampStrategy is latest.
        """
        if isinstance(bound, Everywhere):
            return self._everywhere(partitions, bound.timestamp)
        if isinstance(bound, Specific):
            _must_name(option, bound.offsets, partitions)
            symbolic = {tp: offset for tp, offset in bound.offsets.items() if offset < 0}
            return dict(bound.offsets) | self._list(symbolic)
        return self._by_timestamp(option, bound, partitions)

    def _by_timestamp(self, option: str, bound: ByTimestamp, partitions: list[TopicPartition]) -> Offsets:
        if isinstance(bound.timestamps, int):
            timestamps: Mapping[TopicPartition, int] = dict.fromkeys(partitions, bound.timestamps)
        else:
            timestamps = bound.timestamps
            _must_name(option + "ByTimestamp", timestamps, partitions)
        # The ends are requested first. So a record that arrives between the two requests is not before the end, and
        # it will be read.
        ends = self.latest(timestamps) if bound.latest_if_none else {}
        offsets = self._list(timestamps)
        without_record = [tp for tp, offset in offsets.items() if offset < 0]
        if without_record and not bound.latest_if_none:
            raise OptionError(
                f"{describe(without_record)}: no record has the starting timestamp or a later one; "
                "set option startingOffsetsByTimestampStrategy=latest to begin at the end of such partitions"
            )
        return offsets | {tp: ends[tp] for tp in without_record}

    def _everywhere(self, partitions: Iterable[TopicPartition], timestamp: int) -> Offsets:
        return self._list(dict.fromkeys(partitions, timestamp))

    def _list(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        offsets = self._brokers.list_offsets(timestamps, self._isolation) if timestamps else {}
        return {tp: offsets[tp].offset for tp in timestamps}


def loss_reporter(fail: bool) -> Callable[[str], None]:
    """Return a function that accepts a description of missing offsets. It raises DataLoss if `fail` is true, and
    logs a warning otherwise.
    """
    return _fail if fail else _warn


def _fail(loss: str) -> None:
    raise DataLoss(f"{loss}. Set option failOnDataLoss=false to read the remaining offsets.")


def _warn(loss: str) -> None:
    logger.warning("data_loss %s", loss)


def refuse_backward_ranges(ranges: Iterable[OffsetRange], ending: Bound) -> None:
    """Raise OptionError, with the error class of Spark's Kafka source, if the start of a range is after its end."""
    for requested in ranges:
        if requested.size >= 0:
            continue
        tp = requested.topic_partition
        at_log_end = ending == Everywhere(LATEST) or (isinstance(ending, Specific) and ending.offsets[tp] == LATEST)
        end = "the log ends" if at_log_end else "the range ends"
        raise OptionError(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {tp}: {end} at {requested.end}, but reading "
            f"starts at {requested.start}. Check the options for start and end, and whether the topic was recreated"
        )


def without_lost(ranges: Iterable[OffsetRange], earliest: Offsets, report: Callable[[str], None]) -> list[OffsetRange]:
    """Return the parts of the ranges that are still in the log, and report the missing parts."""
    remaining = []
    for requested in ranges:
        tp = requested.topic_partition
        log_start = earliest.get(tp, requested.start)
        if requested.end < requested.start:
            report(f"{tp}: the log ends at {requested.end}, but reading starts at {requested.start}")
            continue
        if requested.start < log_start and requested.size:
            begin = min(log_start, requested.end)
            report(f"{tp}: offsets {requested.start} to {begin - 1} are gone, the log begins at {log_start}")
            requested = requested._replace(start=begin)
        remaining.append(requested)
    return remaining


def _must_name(option: str, values: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> None:
    """Raise OptionError, with the error class of Spark's Kafka source, unless the keys of `values` are `partitions`."""
    bound = "TIMESTAMP" if option.endswith("ByTimestamp") else "START"
    condition = f"[KAFKA_{bound}_OFFSET_DOES_NOT_MATCH_ASSIGNED]"
    missing = [tp for tp in partitions if tp not in values]
    surplus = [tp for tp in values if tp not in set(partitions)]
    if missing:
        raise OptionError(
            f"{condition} option {option} must name every partition that is read; missing: {describe(missing)}"
        )
    if surplus:
        raise OptionError(f"{condition} option {option} names partitions that are not read: {describe(surplus)}")
