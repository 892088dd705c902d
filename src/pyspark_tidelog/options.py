"""Parse the options of a read and of a write. Options of Spark's Kafka source and sink have the same names here."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.exactly_once.decision import BatchIdentity
from pyspark_tidelog.offsets import (
    Bound,
    ByTimestamp,
    Everywhere,
    Specific,
    assignment,
    bound_from_text,
    partition_values,
    refuse_backward,
)
from pyspark_tidelog.settings import (
    CLIENT,
    GROUPS,
    JAVA_WHITESPACE,
    PREFIX,
    WITHOUT_EFFECT,
    Options,
    bootstrap,
    client_config,
)
from tidelog.client.blocking import ClientConfig
from tidelog.client.operations import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, FetchLimits
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import Codec

EXACTLY_ONCE_ID, EXACTLY_ONCE_BATCH = "exactlyOnceId", "exactlyOnceBatch"
ENABLE_IDEMPOTENCE, TRANSACTION_TIMEOUT = PREFIX + "enable.idempotence", PREFIX + "transaction.timeout.ms"
READ_WITH_EFFECT = (
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "groupId",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxPartitions",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "pushFilters",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    *(
        PREFIX + name
        for name in (
            *CLIENT,
            "check.crcs",
            "fetch.max.bytes",
            "fetch.max.wait.ms",
            "fetch.min.bytes",
            "isolation.level",
            "max.partition.fetch.bytes",
        )
    ),
)
WRITE_WITH_EFFECT = (
    "topic",
    "includeTimestamp",
    "checkpointLocation",
    "exactlyOnce",
    EXACTLY_ONCE_ID,
    EXACTLY_ONCE_BATCH,
    *(PREFIX + name for name in (*CLIENT, "acks", "batch.size", "compression.type", "delivery.timeout.ms")),
    ENABLE_IDEMPOTENCE,
)
CLIENT_WITHOUT_EFFECT = {PREFIX + name: reason for name, reason in WITHOUT_EFFECT.items()}
READ_WITHOUT_EFFECT = CLIENT_WITHOUT_EFFECT | {
    "fetchOffset.numRetries": "attempts are repeated until kafka.default.api.timeout.ms is over",
    "fetchOffset.retryIntervalMs": "the pause between attempts is kafka.retry.backoff.ms",
    "groupIdPrefix": GROUPS,
    **{
        name: "it is a setting of Kafka's producer"
        for name in WRITE_WITH_EFFECT
        if name.startswith(PREFIX) and name not in READ_WITH_EFFECT
    },
}
WRITE_WITHOUT_EFFECT = CLIENT_WITHOUT_EFFECT | {
    "includeHeaders": "if the rows have a column headers, it is always written",
    **{
        name: "it is a setting of Kafka's consumer"
        for name in READ_WITH_EFFECT
        if name.startswith(PREFIX) and name not in WRITE_WITH_EFFECT
    },
}
READ = (*READ_WITH_EFFECT, *READ_WITHOUT_EFFECT)
WRITE = (*WRITE_WITH_EFFECT, *WRITE_WITHOUT_EFFECT)
"""READ contains all options that a read accepts, and WRITE all options that a write accepts."""

READ_UNSUPPORTED = {"path": "topics are chosen with subscribe, subscribePattern or assign"}
WRITE_UNSUPPORTED = {"path": "the topic is chosen with option topic or a topic column"}
STREAMING_ONLY = dict.fromkeys(
    ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"), "a batch query has no triggers"
) | {"groupId": "only a streaming query commits its offsets"}
ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")

PARTITION_FETCH_BYTES = 8 << 20
"""Default of kafka.max.partition.fetch.bytes."""
BATCH_BYTES = 256 << 10
"""Default of kafka.batch.size."""
MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""Default of maxTriggerDelay, as in Spark's Kafka source."""
TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""Default of kafka.transaction.timeout.ms in an exactly-once write. Brokers do not accept more than their setting
transaction.max.timeout.ms, which has the same default."""
EXACTLY_ONCE_ID_CHARS_MAX = 200
TIME_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class Subscription(NamedTuple):
    """The chosen topics or partitions. Exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    pattern: str = ""


class ReadOptions(NamedTuple):
    bootstrap: str
    client: ClientConfig
    subscription: Subscription
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int
    """Minimum number of Spark partitions. If it is 0, only `max_records_per_partition` splits a topic partition."""
    max_partitions: int
    """Maximum number of Spark partitions. If it is 0, each Spark partition reads one range of a topic partition."""
    max_records_per_partition: int
    """Limit of records for one Spark partition. 0 means no limit."""
    max_offsets_per_trigger: int
    """0 means no limit."""
    min_offsets_per_trigger: int
    max_trigger_delay_ms: int
    fetch: FetchLimits
    check_crcs: bool
    group_id: str | None
    """The consumer group to which a streaming query commits its offsets. None for no group."""
    push_filters: bool
    """Whether a batch query may read less because of its filters. The module `filters` describes the danger."""
    poll_timeout_ms: int
    """Longest time, in milliseconds, that a task waits for records that existed when the query was planned."""


class WriteOptions(NamedTuple):
    bootstrap: str
    client: ClientConfig
    topic: str | None
    """None if each row has its topic in the column `topic`."""
    acks: int
    codec: Codec
    batch_bytes: int
    include_timestamp: bool
    """Whether the records get their timestamps from the column `timestamp`."""
    idempotent: bool
    """Whether a batch whose answer is lost, and which is sent again, is appended only once."""
    exactly_once: bool
    transaction_timeout_ms: int
    """Time limit of a task's transaction, from its first row to the end of the micro-batch. Only if `exactly_once`."""
    identity: BatchIdentity | None
    """Identifies an exactly-once batch write. None in other writes. In a stream, Spark numbers the micro-batches."""


def read_options(texts: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options. Raises OptionError if one of them is invalid."""
    options = Options(texts)
    options.refuse_unknown(READ, READ_UNSUPPORTED)
    options.warn_without_effect(READ_WITHOUT_EFFECT if streaming else READ_WITHOUT_EFFECT | STREAMING_ONLY)
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
        options.integer(name, 0)
    if streaming and (ending_options := [name for name in ENDING if name in options]):
        raise OptionError(f"option {ending_options[0]} has no meaning in a streaming query, which does not end")
    isolation = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
    defaults = FetchLimits()
    max_wait_ms = options.integer(PREFIX + "fetch.max.wait.ms", defaults.max_wait_ms)
    client = client_config(options, "tidelog-spark-source")
    starting, ending = _starting(options, streaming=streaming), _ending(options)
    refuse_backward(starting, ending)
    return ReadOptions(
        bootstrap=bootstrap(options),
        client=client,
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        min_partitions=options.integer("minPartitions", 0, at_least=1),
        max_partitions=_max_partitions(options),
        max_records_per_partition=options.integer("maxRecordsPerPartition", 0, at_least=1, at_most=1 << 62),
        max_offsets_per_trigger=options.integer("maxOffsetsPerTrigger", 0, at_least=1, at_most=1 << 62),
        min_offsets_per_trigger=_min_offsets(options),
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        fetch=FetchLimits(
            max_wait_ms=max_wait_ms,
            min_bytes=options.integer(PREFIX + "fetch.min.bytes", defaults.min_bytes),
            max_bytes=options.integer(PREFIX + "fetch.max.bytes", defaults.max_bytes),
            partition_max_bytes=options.integer(
                PREFIX + "max.partition.fetch.bytes", PARTITION_FETCH_BYTES, at_least=1
            ),
            isolation=options.choice(PREFIX + "isolation.level", isolation, "read_uncommitted"),
        ),
        check_crcs=options.flag(PREFIX + "check.crcs", True),
        group_id=options.required_text("groupId") if "groupId" in options else None,
        push_filters=options.flag("pushFilters", False),
        poll_timeout_ms=options.integer("kafkaConsumer.pollTimeoutMs", client.default_api_timeout_ms, at_least=1),
    )


def write_options(texts: Mapping[str, str]) -> WriteOptions:
    """Parse the options. Raises OptionError if one of them is invalid."""
    options = Options(texts)
    exactly_once = options.flag("exactlyOnce", False)
    options.refuse_unknown(WRITE, WRITE_UNSUPPORTED)
    without_effect = {k: v for k, v in WRITE_WITHOUT_EFFECT.items() if not (exactly_once and k == TRANSACTION_TIMEOUT)}
    options.warn_without_effect(without_effect)
    options.flag("includeHeaders", False)
    topic = options.required_text("topic") if "topic" in options else None
    client = client_config(options, "tidelog-spark-sink")
    delivery_timeout_ms = options.integer(PREFIX + "delivery.timeout.ms", client.delivery_timeout_ms, at_least=1)
    acks = options.choice(PREFIX + "acks", {"all": -1, "-1": -1, "1": 1, "0": 0}, "all")
    if exactly_once and acks != -1:
        raise OptionError(
            f"option {PREFIX}acks must be all with exactlyOnce: otherwise, a failure of a leader can lose records"
        )
    if acks == 0:
        # Without acknowledgements, rows could be lost without an error.
        options.warn_without_effect({PREFIX + "acks": "the sink waits for acknowledgements, as with acks=1"})
        acks = 1
    idempotent = options.flag(ENABLE_IDEMPOTENCE, acks == -1)
    if exactly_once and not idempotent:
        raise OptionError(f"option {ENABLE_IDEMPOTENCE} cannot be false with exactlyOnce: transactions need it")
    if idempotent and acks != -1:
        raise OptionError(f"option {ENABLE_IDEMPOTENCE} needs {PREFIX}acks=all, as in Kafka's producer")
    transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    if exactly_once:
        transaction_timeout_ms = options.integer(TRANSACTION_TIMEOUT, TRANSACTION_TIMEOUT_MS, at_least=1)
    return WriteOptions(
        bootstrap=bootstrap(options),
        client=client._replace(delivery_timeout_ms=delivery_timeout_ms),
        topic=topic,
        acks=acks,
        codec=Codec(options.choice(PREFIX + "compression.type", CODECS, "none")),
        batch_bytes=max(1, options.integer(PREFIX + "batch.size", BATCH_BYTES, at_most=1 << 30)),
        include_timestamp=options.flag("includeTimestamp", False),
        idempotent=idempotent,
        exactly_once=exactly_once,
        transaction_timeout_ms=transaction_timeout_ms,
        identity=_identity(options, exactly_once),
    )


def _identity(options: Options, exactly_once: bool) -> BatchIdentity | None:
    """Return the identity of an exactly-once batch write; None if neither of its two options is set."""
    given_names = [name for name in (EXACTLY_ONCE_ID, EXACTLY_ONCE_BATCH) if name in options]
    if not given_names:
        return None
    if not exactly_once:
        raise OptionError(f"option {given_names[0]} has no meaning without exactlyOnce=true: set exactlyOnce, too")
    query = options.required_text(EXACTLY_ONCE_ID)
    if len(query) > EXACTLY_ONCE_ID_CHARS_MAX or not query.isprintable():
        raise OptionError(
            f"option {EXACTLY_ONCE_ID} must have at most {EXACTLY_ONCE_ID_CHARS_MAX} printable characters"
        )
    options.required_text(EXACTLY_ONCE_BATCH)
    return BatchIdentity(query, options.integer(EXACTLY_ONCE_BATCH, 0, at_most=(1 << 62)))


def _max_partitions(options: Options) -> int:
    if (number := options.integer("maxPartitions", 0, at_least=1)) and "maxRecordsPerPartition" in options:
        raise OptionError(
            "options maxPartitions and maxRecordsPerPartition cannot be combined: the first limits the number of"
            " tasks, and the second needs more tasks for more records"
        )
    if number and (least := options.integer("minPartitions", 0, at_least=1)) > number:
        raise OptionError(f"option minPartitions is {least}, which is more than maxPartitions, {number}")
    return number


def _subscription(options: Options) -> Subscription:
    name = options.at_most_one("subscribe", "subscribePattern", "assign")
    if name is None:
        raise OptionError("no topic is chosen: give option subscribe, subscribePattern or assign")
    text = options.required_text(name)
    if name == "assign":
        return Subscription(partitions=tuple(assignment(name, text)))
    if name == "subscribe":
        topics = dict.fromkeys(filter(None, (topic.strip(JAVA_WHITESPACE) for topic in text.split(","))))
        if not topics:
            raise OptionError("option subscribe names no topic")
        return Subscription(topics=tuple(topics))
    return Subscription(pattern=text)


def _starting(options: Options, *, streaming: bool) -> Bound:
    bound = _bound(options, "starting") or Everywhere(LATEST if streaming else EARLIEST)
    if not streaming and (bound == Everywhere(LATEST) or _has_offset(bound, LATEST)):
        raise OptionError("option startingOffsets cannot be latest (-1) in a batch query: it would read nothing")
    return bound


def _ending(options: Options) -> Bound:
    bound = _bound(options, "ending") or Everywhere(LATEST)
    if bound == Everywhere(EARLIEST) or _has_offset(bound, EARLIEST):
        raise OptionError("option endingOffsets cannot be earliest (-2): nothing would be read")
    return bound


def _has_offset(bound: Bound, offset: int) -> bool:
    return isinstance(bound, Specific) and offset in bound.offsets.values()


def _bound(options: Options, side: str) -> Bound | None:
    """Parse the starting or the ending bound; `side` is "starting" or "ending". Return None if no option sets it.

    If several options set the bound, only one is parsed: the one that comes first in Spark's order, which is Timestamp,
    OffsetsByTimestamp, Offsets.
    """
    offsets, by_timestamp, single_timestamp = f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp"
    name = options.first_of(single_timestamp, by_timestamp, offsets)
    strategy = {"error": 0, "latest": 1}
    latest_if_none = side == "ending" or bool(options.choice("startingOffsetsByTimestampStrategy", strategy, "error"))
    if name is None:
        return None
    if name == offsets:
        return bound_from_text(offsets, options.required_text(offsets))
    if name == single_timestamp:
        return ByTimestamp(options.integer(single_timestamp, 0, at_most=(1 << 63) - 1), latest_if_none)
    return ByTimestamp(partition_values(by_timestamp, options.required_text(by_timestamp), at_least=0), latest_if_none)


def _min_offsets(options: Options) -> int:
    min_offsets = options.integer("minOffsetsPerTrigger", 0, at_least=1, at_most=1 << 62)
    max_offsets = options.integer("maxOffsetsPerTrigger", 0, at_least=1, at_most=1 << 62)
    if min_offsets and max_offsets and min_offsets > max_offsets:
        raise OptionError(f"option minOffsetsPerTrigger ({min_offsets}) is above maxOffsetsPerTrigger ({max_offsets})")
    return min_offsets


def _duration_ms(options: Options, name: str, default_ms: int) -> int:
    """Parse a duration like 15m, 30s or 500ms, as Spark does. A number without a unit is in milliseconds."""
    if name not in options:
        return default_ms
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", options.text(name).lower())
    unit = match and TIME_UNITS_MS.get(match[2] or "ms")
    if not match or not unit:
        raise OptionError(f"option {name} is {options.text(name)!r}: it must be a time like 15m, 30s or 500ms")
    return int(int(match[1]) * unit)
