"""Starting bounds, ending bounds and offsets, in the JSON format of Spark's Kafka source.

{"topic": {"0": 23, "1": -2}} has an offset for each partition: -2 means the earliest and -1 the latest.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from pyspark_tidelog.errors import OptionError
from tidelog.client.operations import EARLIEST, LATEST
from tidelog.model.ids import TopicPartition

INT64_MAX = (1 << 63) - 1
BEGINNINGS = "@begun"
"""The key of an additional entry in the position of a streaming query (see `stream_reader`): the offsets from which a
micro-batch reads partitions that its start position does not contain. It is not a legal name of a topic, because it
contains an @."""
TOPIC_IDS = "@ids"
"""The key of another additional entry: the id of each topic, as hexadecimal text. The entry is missing if the position
was stored by Spark's Kafka source or by an earlier version of this source, and with brokers that do not send ids."""

Offsets: TypeAlias = dict[TopicPartition, int]


class Everywhere(NamedTuple):
    """The same bound for every partition: EARLIEST or LATEST."""

    timestamp: int


class Specific(NamedTuple):
    """For each partition that is read: an offset, or EARLIEST, or LATEST."""

    offsets: Mapping[TopicPartition, int]


class ByTimestamp(NamedTuple):
    """The offset of the first record whose timestamp is the requested one or a later one. `timestamps`, in
    milliseconds, contains a value for each partition, or is one number for all partitions.
    """

    timestamps: Mapping[TopicPartition, int] | int
    latest_if_none: bool
    """Whether the bound is the end of the partition if all records of the partition are earlier than the timestamp. If
    this is false, such a partition is an error."""


Bound: TypeAlias = Everywhere | Specific | ByTimestamp


def bound_from_text(option: str, text: str) -> Bound:
    """Parse `earliest`, `latest`, or JSON with an offset for each partition. Raises OptionError."""
    keyword = text.lower()
    if keyword in ("earliest", "latest"):
        return Everywhere(EARLIEST if keyword == "earliest" else LATEST)
    if not text.startswith("{"):
        raise OptionError(f'option {option} is {text!r}: it must be earliest, latest or JSON: {{"topic":{{"0":23}}}}')
    return Specific(partition_values(option, text, at_least=EARLIEST))


def refuse_backward(starting: Bound, ending: Bound) -> None:
    """If both bounds have an offset for each partition, or both have a timestamp for each partition, compare them.

    Raise OptionError if they name different partitions, or if a start is after its end. No broker is needed. Spark's
    Kafka source refuses the same bounds. Each error text begins with that source's error class, in brackets.
    """
    if isinstance(starting, Specific) and isinstance(ending, Specific):
        kind, starts, ends = "offset", starting.offsets, ending.offsets
    elif isinstance(starting, ByTimestamp) and isinstance(ending, ByTimestamp):
        if isinstance(starting.timestamps, int) or isinstance(ending.timestamps, int):
            return
        kind, starts, ends = "timestamp", starting.timestamps, ending.timestamps
    else:
        return
    if unmatched := starts.keys() ^ ends.keys():
        raise OptionError(
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] the starting and the ending "
            f"{kind}s name different partitions: these are not in both: {describe(unmatched)}"
        )
    for tp in sorted(starts):
        if starts[tp] > ends[tp] >= 0:
            raise OptionError(
                f"[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {tp}: the starting {kind} {starts[tp]} "
                f"is past the ending {kind} {ends[tp]} (topic {tp.topic}, partition {tp.partition})"
            )


def partition_values(option: str, text: str, *, at_least: int) -> Offsets:
    """Parse {"topic": {"0": value}}. Raises OptionError, which names the invalid part."""
    document = _json(option, text)
    values: Offsets = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise OptionError(f'option {option}: topic {topic!r} needs an object of partitions, like {{"0":23}}')
        for number, value in partitions.items():
            if not number.isdecimal():
                raise OptionError(f"option {option}: {number!r} of topic {topic!r} is not a partition's number")
            if type(value) is not int or not at_least <= value <= INT64_MAX:
                raise OptionError(
                    f"option {option}: {topic}-{number} is {value!r}: it must be a whole number from {at_least} "
                    f"to {INT64_MAX}"
                )
            values[TopicPartition(topic, int(number))] = value
    if not values:
        raise OptionError(f"option {option} names no partition")
    return values


def assignment(option: str, text: str) -> list[TopicPartition]:
    """Parse {"topic": [0, 1]}. Raises OptionError."""
    partitions: dict[TopicPartition, None] = {}
    for topic, numbers in _json(option, text).items():
        if not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
            raise OptionError(f"option {option}: topic {topic!r} needs a list of partition numbers, like [0,1]")
        partitions |= dict.fromkeys(TopicPartition(topic, n) for n in numbers)
    if not partitions:
        raise OptionError(f"option {option} names no partition")
    return list(partitions)


def to_json_object(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return the offsets as nested dictionaries for JSON. The keys are sorted, so that equal offsets have equal
    texts.
    """
    document: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        document.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return document


def from_json_object(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {TopicPartition(topic, int(n)): offset for topic, values in document.items() for n, offset in values.items()}


def offsets_of(position: Mapping[str, Any]) -> Offsets:
    """Return the offsets in the position of a streaming query, without the additional entries."""
    return from_json_object({topic: values for topic, values in position.items() if is_topic(topic)})


def is_topic(key: str) -> bool:
    """Return whether a key in the position of a streaming query is a topic's name, and not the key of an additional
    entry.
    """
    return not key.startswith("@")


def describe(partitions: Iterable[TopicPartition]) -> str:
    """Return a text like `a-0, a-1, b-0`. It names the first ten partitions and the number of the remaining ones."""
    names = [str(tp) for tp in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _json(option: str, text: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {option} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise OptionError(f"option {option} is not a JSON object with topics as its keys")
    return document
