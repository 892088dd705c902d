"""`topic()`: a topic as the source or the sink of a pipeline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tidelog.pipelines.brokers import connect, create_topic, partition_count
from tidelog.pipelines.declarations import (
    Opened,
    PipelineError,
    SinkContext,
    SourceContext,
    TemporaryError,
    option_text,
)
from tidelog.pipelines.failures import TOPIC_REMEDY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pyspark_tidelog.formats import Format

Tombstones = Literal["error", "keep", "skip"]

KAFKA_COLUMNS = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""The fields of the column `kafka`. A source with a value format has this column beside the fields of the value."""
OFFSETS_PER_TRIGGER = 1_000_000
"""Default of maxOffsetsPerTrigger, the limit of offsets in a micro-batch. The limit also bounds the work that
is repeated after a failure."""
TASK_OPTIONS = {"maxpartitions", "minpartitions", "maxrecordsperpartition"}
"""Options of the Spark source, in lower case, that determine the number of tasks."""
STARTING_OPTIONS = {"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"}
"""Options of the Spark source, in lower case, that say where a query begins."""
FAIL_ON_DATA_LOSS = "failondataloss"
"""Option of the Spark source, in lower case, that says what happens if records were removed before they were read."""
DECODED = "decoded"
"""Column with the result of decoding. It exists until records that cannot be parsed are separated from the others."""


def task_limit(spark: "SparkSession", options: Mapping[str, object]) -> dict[str, str]:
    """Return the options that limit the tasks that read topics: there are at most two such tasks for each core.

    Each task costs the JVM some ms, so many partitions would make each micro-batch slow. If the master is not local,
    there is no limit, because the number of cores may change. There is also no limit if `options` determine the number
    of tasks.
    """
    names = {name.lower() for name in options}
    if not (spark.sparkContext.master or "").startswith("local") or names & TASK_OPTIONS:
        return {}
    return {"maxPartitions": str(2 * spark.sparkContext.defaultParallelism)}


@dataclass(frozen=True)
class Topic:
    """The declaration of one or several topics. This class implements Source and Sink."""

    names: tuple[str, ...]
    pattern: str | None = None
    value: "Format | None" = None
    key: "str | tuple[str, ...] | None" = None
    bootstrap: str | None = None
    begin: str | int | None = None
    group: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    exactly_once: bool = True
    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    tombstones: Tombstones = "error"

    def describe(self) -> str:
        if self.pattern is not None:
            return f"topics matching {self.pattern}"
        if not self.names:
            return "topics in column topic"
        return f"{'topic' if len(self.names) == 1 else 'topics'} {', '.join(self.names)}"

    # The source

    def load(self, context: SourceContext) -> "DataFrame":
        """Return the rows of the topics. A record that cannot be parsed makes the query fail."""
        return self.parsed(self.records(context), context.pipeline, f"records of {self.describe()}")

    def records(self, context: SourceContext) -> "DataFrame":
        """Return the columns of the Spark source. With a value format, there is also the column DECODED: a struct of
        `record` and `error`, where exactly one of the two is null.
        """
        reader = context.spark.readStream if context.is_streaming else context.spark.read
        frame = reader.format("tidelog").options(**self._read_options(context)).load()
        return self.decoded(frame if context.rows_max is None else frame.limit(context.rows_max))

    def read_range(self, context: SourceContext, ranges: Mapping[str, Mapping[str, tuple[int, int]]]) -> "DataFrame":
        """Return the records of `ranges` as a batch, with the columns that `records` returns. `ranges` is topic ->
        partition -> (begin, end), where `end` is exclusive.
        """
        parts = {topic: {p: r for p, r in numbers.items() if r[0] < r[1]} for topic, numbers in ranges.items()}
        parts = {topic: numbers for topic, numbers in parts.items() if numbers}
        options = {
            "kafka.bootstrap.servers": self.bootstrap or context.bootstrap,
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({topic: [int(p) for p in numbers] for topic, numbers in parts.items()}),
            "startingOffsets": json.dumps({t: {p: r[0] for p, r in numbers.items()} for t, numbers in parts.items()}),
            "endingOffsets": json.dumps({t: {p: r[1] for p, r in numbers.items()} for t, numbers in parts.items()}),
        }
        options |= self.options_of_ranges()
        return self.decoded(context.spark.read.format("tidelog").options(**options).load())

    def options_of_ranges(self) -> dict[str, str]:
        """Return the declared options that also hold for `read_range`: settings of the client, and `failOnDataLoss`.
        As in Spark, the case of their names does not matter.
        """
        return {
            name: text
            for name, text in self.options.items()
            if name.lower().startswith("kafka.") or name.lower() == FAIL_ON_DATA_LOSS
        }

    def decoded(self, frame: "DataFrame") -> "DataFrame":
        """Add the column DECODED, if the topic has a value format."""
        if self.value is None:
            return frame
        from pyspark.sql import functions as f

        return frame.withColumn(DECODED, self.value.decode(f.col("value")))

    def parsed(self, records: "DataFrame", pipeline: str, metric: str, *, drop_unparsed: bool = False) -> "DataFrame":
        """Return the fields of the values and the column `kafka`. Without a value format, return `records` itself.

        A record that cannot be parsed makes the query fail; with `drop_unparsed` it is left out. The query has an
        observed metric named `metric` with two numbers: `records` is the number of all records, and `unparsed` is the
        number of records that cannot be parsed.
        """
        if self.value is None:
            return records
        from pyspark.sql import functions as f

        unparsed = self.unparsed()
        # The observation also ensures that each record is decoded once, because Spark does not move filters below it.
        observed = records.observe(
            metric, f.count(f.lit(1)).alias("records"), f.count(f.when(unparsed, 1)).alias("unparsed")
        )
        if self.tombstones == "skip":
            # This filter follows the observation. So the observed number of records includes tombstones, and says
            # whether all offsets were read.
            observed = observed.where(f.col("value").isNotNull())
        if drop_unparsed:
            kept = observed.where(~unparsed)
        else:
            place = f.concat_ws(" ", f.col("topic"), f.lit("partition"), "partition", f.lit("offset"), "offset")
            message = f.concat(
                f.lit(f"pipeline {pipeline}: the record at topic "),
                place,
                f.lit(" cannot be parsed: "),
                f.col(f"{DECODED}.error"),
                f.lit(TOPIC_REMEDY),
            )
            # The condition raises the error, or is true. It is a filter, and not a column, so that Spark cannot leave
            # it out when the pipeline's function uses no field of the record.
            kept = observed.where(f.when(unparsed, f.raise_error(message).cast("boolean")).otherwise(f.lit(True)))
        fields = [f.col(DECODED)["record"][name].alias(name) for name in self._field_names()]
        return kept.select(*fields, f.struct(*KAFKA_COLUMNS).alias("kafka"))

    def unparsed(self) -> "Column":
        """Return the condition for records that cannot be parsed. It uses columns that `records` returns."""
        from pyspark.sql import functions as f

        failed = f.col(f"{DECODED}.error").isNotNull()
        return failed if self.tombstones == "error" else failed & f.col("value").isNotNull()

    def _field_names(self) -> list[str]:
        assert self.value is not None
        schema: StructType = self.value.schema
        if "kafka" in schema.fieldNames():
            raise PipelineError(
                f"{self.describe()}: a field of the records is named 'kafka', which is the name of the column with"
                " key, topic, partition and offset: rename the field in the schema"
            )
        return list(schema.fieldNames())

    def _read_options(self, context: SourceContext) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": self.bootstrap or context.bootstrap,
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            **task_limit(context.spark, self.options),
        }
        if self.pattern is not None:
            options["subscribePattern"] = self.pattern
        elif self.names:
            options["subscribe"] = ",".join(self.names)
        else:
            raise PipelineError(f"pipeline {context.pipeline}: topic() without a name is only a sink; name a topic")
        begin = context.begin if context.begin is not None else self.begin
        if isinstance(begin, int):
            options |= {"startingTimestamp": str(begin), "startingOffsetsByTimestampStrategy": "latest"}
        else:
            options["startingOffsets"] = begin or "earliest"
        if context.is_streaming:
            options["maxOffsetsPerTrigger"] = str(OFFSETS_PER_TRIGGER)
            if self.group is not None:
                options["groupId"] = self.group
        # --from overrides the declaration.
        is_overridden = context.begin is not None
        declared = {k: v for k, v in self.options.items() if not is_overridden or k.lower() not in STARTING_OPTIONS}
        return options | declared

    # The sink

    def open(self, context: SinkContext) -> Opened:
        if self.pattern is not None or len(self.names) > 1:
            raise PipelineError(
                f"pipeline {context.pipeline}: {self.describe()} cannot be a sink: name one topic, or use topic() with"
                " a column 'topic'"
            )
        for name in self.names:
            self._ensure_exists(context, name)
        return OpenedTopic(self, context)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key columns of a sink; empty if the declaration does not name any."""
        return (self.key,) if isinstance(self.key, str) else self.key or ()

    def columns_apart_from_key(self, columns: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return two lists of the columns of a result: those that are written as headers and topic of the record, and
        those that are encoded as its value. `topic` is in the first list only if the declaration names no topic. The
        key columns are in neither list: these are the declared ones, or the column `key` if none are declared.
        """
        separate = ["headers"] if "headers" in columns else []
        if not self.names and "topic" in columns:
            separate.append("topic")
        key_names = self.key_names or ("key",)
        return separate, [name for name in columns if name not in (*key_names, *separate)]

    def _ensure_exists(self, context: SinkContext, name: str) -> None:
        ensure_topic(
            self.bootstrap or context.bootstrap,
            name,
            self.partitions,
            self.settings,
            f"pipeline {context.pipeline}",
            f"or declare topic({name!r}, partitions=N) to create it",
        )


def ensure_topic(
    bootstrap: str, name: str, partitions: int | None, settings: Mapping[str, str], subject: str, remedy: str
) -> None:
    """Create the topic with `partitions`, unless it exists. Raises PipelineError if it does not exist and `partitions`
    is None; the message begins with `subject` and ends with `remedy`.
    """
    from tidelog.client.errors import ClientError

    with connect(bootstrap) as client:
        if partition_count(client, name) is not None:
            return
        if partitions is None:
            raise PipelineError(
                f"{subject}: topic {name} does not exist: create it (tidelog topic create {name} --partitions N),"
                f" {remedy}"
            )
        try:
            create_topic(client, name, partitions, settings)
        except ClientError as error:
            raise TemporaryError(f"topic {name} cannot be created: {error}") from error


class OpenedTopic:
    """Writes micro-batches to a topic."""

    def __init__(self, topic: Topic, context: SinkContext) -> None:
        self._topic = topic
        self._context = context

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        topic = self._topic
        options = {"kafka.bootstrap.servers": topic.bootstrap or self._context.bootstrap}
        if topic.names:
            options["topic"] = topic.names[0]
        if topic.exactly_once:
            options |= exactly_once_options(self._context.query, batch_id)
        self._encoded(batch).write.format("tidelog").mode("append").options(**(options | dict(topic.options))).save()

    def close(self) -> None:
        pass

    def _encoded(self, batch: "DataFrame") -> "DataFrame":
        """Return the columns for the Spark sink. With a value format, these are value and, if they exist, key, headers
        and topic. Without a value format, these are the columns of `batch`; if the declaration names key columns, the
        column `key` is made of the key columns.
        """
        from pyspark.sql import functions as f

        topic, subject = self._topic, f"pipeline {self._context.pipeline}: {self._topic.describe()}"
        key_names = topic.key_names
        for name in key_names:
            if name not in batch.columns:
                raise PipelineError(
                    f"{subject}: the key column {name!r} is not in the result, which has {', '.join(batch.columns)}"
                )
        key = self._key(batch, key_names)
        if topic.value is None:
            if "value" not in batch.columns:
                raise PipelineError(
                    f"{subject}: the result has no column 'value', only {', '.join(batch.columns)}: add it, or give the"
                    " topic a format, for example value=json()"
                )
            return batch if key is None else batch.withColumn("key", key)
        separate_names, value_names = topic.columns_apart_from_key(batch.columns)
        if key is None and "key" in batch.columns:
            key = _text(f.col("key")) if dict(batch.dtypes)["key"] != "binary" else f.col("key")
        if not value_names:
            raise PipelineError(
                f"{subject}: all columns of the result ({', '.join(batch.columns)}) are written as key, headers or"
                " topic, so nothing is left for the value: add a column"
            )
        value = topic.value.encode(f.struct(*(f.col(_quoted(name)) for name in value_names)))
        if key is not None:
            # If all columns of the value are null, the row is a tombstone: it deletes its key in a compacted topic.
            is_deletion = f.lit(True)
            for name in value_names:
                is_deletion &= f.col(_quoted(name)).isNull()
            value = f.when(~is_deletion, value)
        columns = [value.alias("value"), *(f.col(name) for name in separate_names)]
        return batch.select(*([key.alias("key")] if key is not None else []), *columns)

    def _key(self, batch: "DataFrame", names: Sequence[str]) -> "Column | None":
        from pyspark.sql import functions as f

        if not names:
            return None
        if len(names) == 1:
            name = names[0]
            kind = dict(batch.dtypes)[name]
            column = f.col(_quoted(name))
            return column if kind == "binary" else _text(f.to_json(column) if kind.startswith("struct") else column)
        return _text(f.to_json(f.struct(*(f.col(_quoted(name)) for name in names))))


def _text(column: "Column") -> "Column":
    return column.cast("string").cast("binary")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def exactly_once_options(query: str, batch_id: int) -> dict[str, str]:
    """Return the options of the Spark sink that cause one micro-batch to be written exactly once."""
    return {"exactlyOnce": "true", "exactlyOnceId": query, "exactlyOnceBatch": str(batch_id)}


def topic(
    name: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    value: "Format | None" = None,
    key: "str | Sequence[str] | None" = None,
    bootstrap: str | None = None,
    begin: str | int | None = None,
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
    exactly_once: bool = True,
    partitions: int | None = None,
    settings: Mapping[str, Any] | None = None,
    tombstones: Tombstones = "error",
) -> Topic:
    """Declare topics as a source or a sink.

    A source without `value` has the columns of the Spark source. With `value=json(...)`, a source has a column for each
    field of the record, and the column `kafka` with key, topic, partition, offset, timestamp and headers. `pattern`, a
    regular expression of Java, selects topics by name. `begin` is where a new query begins: `earliest` (the default),
    `latest`, or milliseconds since the epoch. `group` is the consumer group to which the query commits its offsets.
    `tombstones` says what happens to records with a null value: `error` (they are treated as records that cannot be
    parsed), `keep` (all fields are null), or `skip`.

    A sink without the argument `value` writes the column `value` and, if they exist, the columns `key`, `headers`,
    `topic` and `partition`. The argument `key` names the key columns: several are written as a JSON object, a single
    one as text (a binary column unchanged). Without this argument, a column named `key` is the key. With a format, all
    columns except headers and those of the key are encoded as the value. If a row has a key and all columns of its
    value are null, it is written as a tombstone, which deletes the key in a compacted topic. If `partitions` is given,
    a missing topic is created, with `settings`. Without `name`, the column `topic` names the topic of each row, and is
    not encoded in the value.

    `options` are further options of format("tidelog").
    """
    names = (name,) if isinstance(name, str) else tuple(name or ())
    subject = f"topic {', '.join(names)}" if names else "topic()"
    if pattern is not None and names:
        raise PipelineError(f"{subject}: give either a name or a pattern, not both")
    for each in names:
        if not isinstance(each, str) or not each:
            raise PipelineError(f"{subject}: {each!r} is not a topic's name")
    if isinstance(begin, str) and begin not in ("earliest", "latest"):
        raise PipelineError(f"{subject}: begin {begin!r} must be 'earliest', 'latest' or milliseconds since the epoch")
    starting = [each for each in options or {} if str(each).lower() in STARTING_OPTIONS]
    if begin is not None and starting:
        raise PipelineError(f"{subject}: begin and the option {starting[0]} both say where to begin: leave out one")
    if value is not None and not (
        callable(getattr(value, "decode", None)) and callable(getattr(value, "encode", None))
    ):
        raise PipelineError(f"{subject}: value {value!r} is not a format; use for example value=json('id int')")
    if partitions is not None and partitions < 1:
        raise PipelineError(f"{subject}: partitions must be at least 1, not {partitions}")
    if tombstones not in ("error", "keep", "skip"):
        raise PipelineError(f"{subject}: tombstones {tombstones!r} must be 'error', 'keep' or 'skip'")
    return Topic(
        names=names,
        pattern=pattern,
        value=value,
        key=key if isinstance(key, str) or key is None else tuple(key),
        bootstrap=bootstrap,
        begin=begin,
        group=group,
        options={each: option_text(text) for each, text in (options or {}).items()},
        exactly_once=exactly_once,
        partitions=partitions,
        settings={each: option_text(text) for each, text in (settings or {}).items()},
        tombstones=tombstones,
    )
