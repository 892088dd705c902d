"""What the driver asks the brokers: which partitions there are, and where they begin and end."""

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
from tidelog.model.ids import TopicPartition

logger = logging.getLogger("tidelog.spark")


class OffsetLookupClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that planning needs."""

    def topics(self, names: list[str]) -> dict[str, Topic]: ...
    def all_topics(self) -> dict[str, Topic]: ...
    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]: ...


class Lookup:
    """Questions about the partitions of one subscription, at one isolation level."""

    def __init__(self, brokers: OffsetLookupClient, subscription: Subscription, isolation: int) -> None:
        self._brokers = brokers
        self._subscription = subscription
        self._isolation = isolation
        self._pattern = TopicPattern(subscription.pattern)

    def partitions(self) -> list[TopicPartition]:
        """Those that the subscription means at present; a pattern never means an internal topic.

        Raises UnknownTopicOrPartition for a topic that is named, and OptionError for a pattern that Java refuses.
        """
        chosen = self._subscription
        if chosen.partitions:
            return list(chosen.partitions)
        if chosen.topics:
            topics = self._brokers.topics(list(chosen.topics))
        else:
            public = {name: topic for name, topic in self._brokers.all_topics().items() if not topic.internal}
            topics = {name: public[name] for name in self._pattern.topics_among(public)}
        return [TopicPartition(name, number) for name in sorted(topics) for number in topics[name].leaders]

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._everywhere(partitions, EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The high watermarks; with read_committed, the last stable offsets."""
        return self._everywhere(partitions, LATEST)

    def resolve(self, option: str, bound: Bound, partitions: list[TopicPartition]) -> Offsets:
        """Offsets for a starting or ending option. Raises OptionError unless it names exactly these partitions."""
        if isinstance(bound, Everywhere):
            return self._everywhere(partitions, bound.where)
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
        found = self._list(timestamps)
        beyond = [tp for tp, offset in found.items() if offset < 0]
        if beyond and not bound.latest_if_none:
            raise OptionError(
                f"{describe(beyond)}: no record is as late as the starting timestamp; "
                "option startingOffsetsByTimestampStrategy=latest begins at the end then"
            )
        return found | self.latest(beyond)

    def _everywhere(self, partitions: Iterable[TopicPartition], where: int) -> Offsets:
        return self._list(dict.fromkeys(partitions, where))

    def _list(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        found = self._brokers.list_offsets(timestamps, self._isolation) if timestamps else {}
        return {tp: found[tp].offset for tp in timestamps}


def loss_reporter(fail: bool) -> Callable[[str], None]:
    """What to call with a description of offsets that are gone: raises DataLoss, or warns (`failOnDataLoss`)."""
    return _fail if fail else _warn


def _fail(what: str) -> None:
    raise DataLoss(f"{what}. Set option failOnDataLoss=false to go on with what is left.")


def _warn(what: str) -> None:
    logger.warning("data_loss %s", what)


def refuse_backward_ranges(wanted: Iterable[OffsetRange], ending: Bound) -> None:
    """Raises OptionError, named as Spark's Kafka source names it, for a range whose start is past its end."""
    for backward in wanted:
        if backward.size >= 0:
            continue
        tp = backward.topic_partition
        at_log_end = ending == Everywhere(LATEST) or (isinstance(ending, Specific) and ending.offsets[tp] == LATEST)
        end = "the log ends" if at_log_end else "the range ends"
        raise OptionError(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {tp}: {end} at {backward.end}, reading was to go on "
            f"at {backward.start}. Check the options for start and end, and whether the topic was deleted and made anew"
        )


def without_lost(ranges: Iterable[OffsetRange], earliest: Offsets, report: Callable[[str], None]) -> list[OffsetRange]:
    """The ranges as far as they still are in the log; what is not is reported."""
    kept = []
    for wanted in ranges:
        tp = wanted.topic_partition
        begins = earliest.get(tp, wanted.start)
        if wanted.end < wanted.start:
            report(f"{tp}: the log ends at {wanted.end}, reading was to go on at {wanted.start}")
            continue
        if wanted.start < begins and wanted.size:
            lost = min(begins, wanted.end)
            report(f"{tp}: offsets {wanted.start} to {lost - 1} are gone, the log begins at {begins}")
            wanted = wanted._replace(start=lost)
        kept.append(wanted)
    return kept


def _must_name(option: str, named: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> None:
    """Raises OptionError, named as Spark's Kafka source names it."""
    bound = "TIMESTAMP" if option.endswith("ByTimestamp") else "START"
    condition = f"[KAFKA_{bound}_OFFSET_DOES_NOT_MATCH_ASSIGNED]"
    missing = [tp for tp in partitions if tp not in named]
    surplus = [tp for tp in named if tp not in set(partitions)]
    if missing:
        raise OptionError(
            f"{condition} option {option} must name every partition that is read; it lacks {describe(missing)}"
        )
    if surplus:
        raise OptionError(f"{condition} option {option} names what is not read: {describe(surplus)}")
