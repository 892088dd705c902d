"""Jobs that run unchanged but for the format's name, and what is known of them beforehand.

A text may name the data: {a} and {raw_a} are two topics of two partitions, {b} one of one partition, {target} is the
topic that a job writes to. `{{` is a brace.
"""

from typing import NamedTuple

SAME = ""


class Job(NamedTuple):
    name: str
    options: dict[str, str]
    columns: tuple[str, ...] = ()
    """Of a write: the expressions of the row that it writes four times."""
    mode: str = "append"
    fails: bool = False
    """Whether the job fails, in Spark's own source too, unless `differs`."""
    names: tuple[str, ...] = ()
    """What both errors say."""
    differs: str = SAME
    """Where format tidelog refuses what Spark's source takes: a part of its message."""
    in_slice: bool = False
    """Whether it runs in `script/test` as well as in `script/test --full`."""


SUBSCRIBE = {"subscribe": "{a}"}
HERE = '{{"{a}":{{"0":%s,"1":%s}}}}'


def offsets(first: int, second: int) -> str:
    return HERE % (first, second)


def read(name: str, *, slice: bool = False, differs: str = SAME, **options: object) -> Job:
    given = {key.replace("__", "."): str(value) for key, value in options.items()}
    chosen = {} if {"subscribePattern", "assign", "SubScribe"} & given.keys() else SUBSCRIBE
    return Job(name, chosen | given, differs=differs, in_slice=slice)


def bad(name: str, *names: str, slice: bool = False, **options: object) -> Job:
    return read(name, slice=slice, **options)._replace(fails=True, names=names)


READS = [
    read("everything"),
    read("headers", includeHeaders="true", slice=True),
    read("several topics", subscribe=" {a} ,,{b}, {a}"),
    read(
        "names of options in any case",
        SubScribe="{a}",
        STARTINGOFFSETS="EARLIEST",
        EndingOffsets=" Latest ",
        slice=True,
    ),
    read("assigned", assign='{{"{a}":[1],"{b}":[0]}}'),
    read("offsets", startingOffsets=offsets(3, -2), endingOffsets=offsets(7, -1), slice=True),
    read("empty ranges", startingOffsets=offsets(3, 4), endingOffsets=offsets(3, 4)),
    read("timestamps", startingTimestamp=3000, endingTimestamp=6000),
    read(
        "timestamps of partitions",
        startingOffsetsByTimestamp=offsets(3000, 5000),
        endingOffsetsByTimestamp=offsets(6000, 7000),
    ),
    read("an ending timestamp past the end", endingTimestamp=99_000),
    read(
        "a timestamp hides offsets",
        startingTimestamp=3000,
        startingOffsets="latest",
        endingTimestamp=6000,
        endingOffsets="earliest",
        slice=True,
    ),
    read(
        "a timestamp hides those of partitions", startingTimestamp=3000, startingOffsetsByTimestamp=offsets(9000, 9000)
    ),
    read(
        "timestamps of partitions hide offsets",
        startingOffsetsByTimestamp=offsets(3000, 5000),
        startingOffsets="nonsense",
    ),
    read("latest where no record is that late", startingTimestamp=99_000, startingOffsetsByTimestampStrategy="LATEST"),
    read("start by time, end by offset", startingTimestamp=3000, endingOffsets=offsets(9, 9)),
    read(
        "a starting time past the ending time with nothing between",
        startingTimestamp=3900,
        endingTimestamp=3600,
        slice=True,
    ),
    read("split", minPartitions=7, maxRecordsPerPartition=3),
    read(
        "every option of Spark's source",
        slice=True,
        startingOffsets="earliest",
        failOnDataLoss="False",
        minPartitions=3,
        maxOffsetsPerTrigger=5,
        minOffsetsPerTrigger=2,
        maxTriggerDelay="10s",
        groupIdPrefix="team",
        kafkaConsumer__pollTimeoutMs=20_000,
        fetchOffset__numRetries=2,
        fetchOffset__retryIntervalMs=20,
        kafka__group__id="spark-jobs",
        kafka__isolation__level="read_committed",
        kafka__session__timeout__ms=10_000,
        kafka__max__poll__records=100,
        kafka__receive__buffer__bytes=100_000,
        KAFKA__Client__Id="job",
        kafka__security__protocol="PLAINTEXT",
        kafka__metadata__max__age__ms=1000,
    ),
    read("pattern found anywhere", subscribePattern="{a}"),
    read("pattern with anchors", subscribePattern="^{a}$"),
    read("pattern of Java only", subscribePattern=r"(?<=^raw-)\Q{a}\E|{b}[a-z&&[^b]]*+$", slice=True),
    read("pattern that meets nothing", subscribePattern="^no such topic$"),
    read("pattern with blanks around it", subscribePattern="  {b}  "),
    # errors
    bad(
        "start offset past end offset",
        "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "{a}",
        "partition 1",
        "5",
        "3",
        startingOffsets=offsets(0, 5),
        endingOffsets=offsets(9, 3),
        slice=True,
    ),
    bad(
        "start time past end time of a partition",
        "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "timestamp",
        "{a}",
        "partition 0",
        "5000",
        "4000",
        startingOffsetsByTimestamp=offsets(5000, 0),
        endingOffsetsByTimestamp=offsets(4000, 9000),
        slice=True,
    ),
    bad(
        "start time past end time",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "{a}",
        startingTimestamp=6000,
        endingTimestamp=3000,
        slice=True,
    ),
    bad(
        "start time past end offset",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "{a}",
        startingTimestamp=6000,
        endingOffsets=offsets(1, 1),
    ),
    bad(
        "start offset past end time",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "{a}",
        startingOffsets=offsets(9, 9),
        endingTimestamp=3000,
    ),
    bad(
        "start offset past the end of the log",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "{a}",
        "500",
        startingOffsets=offsets(500, 0),
        slice=True,
    ),
    bad(
        "the same without failOnDataLoss",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "{a}",
        "500",
        startingOffsets=offsets(500, 0),
        failOnDataLoss="false",
    ),
    bad(
        "ends of other partitions than starts",
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        "{a}-1",
        startingOffsets='{{"{a}":{{"0":1}}}}',
        endingOffsets=offsets(2, 2),
    ),
    bad(
        "a partition is missing",
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        "{a}-1",
        startingOffsets='{{"{a}":{{"0":1}}}}',
    ),
    bad(
        "a partition's time is missing",
        "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        "{a}-1",
        startingOffsetsByTimestamp='{{"{a}":{{"0":1}}}}',
    ),
    bad("no record is that late", "{a}-", startingTimestamp=99_000),
    bad("no subscription", "subscribe", assign="")._replace(options={}),
    bad("two subscriptions", "subscribe", "assign", subscribe="{a}", assign='{{"{a}":[0]}}'),
    bad("no topic", "subscribe", subscribe=" , "),
    bad("empty pattern", "subscribePattern", subscribePattern=" "),
    bad("no regular expression", "Unclosed group", "a(b", subscribePattern="a(b", slice=True),
    bad("a batch from the latest", "latest", startingOffsets="latest"),
    bad("a batch of a partition from the latest", "latest", startingOffsets=offsets(-1, 0)),
    bad("a batch to the earliest", "earliest", endingOffsets="earliest"),
    bad("neither a word nor JSON", "soonest", startingOffsets="soonest"),
    bad(
        "minOffsetsPerTrigger above the maximum",
        "maxOffsetsPerTrigger",
        "5",
        "4",
        minOffsetsPerTrigger=5,
        maxOffsetsPerTrigger=4,
    ),
    bad("minPartitions of none", "minPartitions", minPartitions=0),
    bad("auto.offset.reset", "auto.offset.reset", "startingOffsets", kafka__auto__offset__reset="earliest"),
    bad("key.deserializer", "key.deserializer", kafka__key__deserializer="x"),
    bad("value.deserializer", "value.deserializer", kafka__value__deserializer="x"),
    bad("enable.auto.commit", "enable.auto.commit", kafka__enable__auto__commit="true"),
    bad("interceptor.classes", "interceptor.classes", kafka__interceptor__classes="x"),
    bad("unknown topic", subscribe="{a}-none", fetchOffset__numRetries=1, fetchOffset__retryIntervalMs=1),
    # where format tidelog says more
    read(
        "an option that nobody knows",
        startingOfsets="earliest",
        differs="option startingofsets is not known to format tidelog; did you mean startingOffsets?",
    ),
    read(
        "TLS",
        kafka__ssl__protocol="TLS",
        differs="option kafka.ssl.protocol is not accepted by format tidelog: connections are in plaintext",
    ),
    read("an assigned partition that does not exist", assign='{{"{a}":[0,7]}}', differs="{a}-7"),
]

STREAMS = [
    read("everything", startingOffsets="earliest"),
    read("limited", startingOffsets="earliest", maxOffsetsPerTrigger=7, includeHeaders="true"),
    read(
        "both limits", startingOffsets="earliest", maxOffsetsPerTrigger=7, minOffsetsPerTrigger=2, maxTriggerDelay="1s"
    ),
    read("pattern", subscribePattern="{a}", startingTimestamp=3000, startingOffsets="latest", slice=True),
    read("offsets", startingOffsets=offsets(3, -1), kafka__group__id="g", failOnDataLoss="false"),
    bad("an end", "ending", endingOffsets="latest", slice=True),
    bad("ends of partitions", "ending", endingOffsetsByTimestamp=offsets(1, 1)),
    bad("auto.offset.reset", "auto.offset.reset", kafka__auto__offset__reset="latest"),
    bad("start past the end of the log", "{a}-0", "500", startingOffsets=offsets(500, 0)),
]


def write(
    name: str, *columns: str, slice: bool = False, mode: str = "append", differs: str = SAME, **options: object
) -> Job:
    given = {key.replace("__", "."): str(value) for key, value in options.items()}
    return Job(name, {"topic": "{target}"} | given, columns, mode, differs=differs, in_slice=slice)


def unwritten(
    name: str, *columns: str, says: tuple[str, ...], slice: bool = False, mode: str = "append", **options: object
) -> Job:
    return write(name, *columns, slice=slice, mode=mode, **options)._replace(fails=True, names=says)


def by_column(job: Job) -> Job:
    return job._replace(options={key: value for key, value in job.options.items() if key != "topic"})


HEADER = "array(named_struct('key', 'h', 'value', binary('x'))) headers"
WRITES = [
    write("another column", "'v' value", "1 other", slice=True),
    write(
        "every column",
        "string(id) key",
        "binary('v') value",
        "int(id % 2) partition",
        HEADER,
        "'{target}' topic",
        "map(1, 2) m",
        slice=True,
    ),
    write("columns of other case are other columns", "'v' value", "'k' Key", "1 VALUES"),
    write(
        "columns of types that only Spark knows",
        "'v' value",
        "time'12:00:00' d",
        "null n",
        "timestamp_ntz'2020-01-01' t",
        "cast(1 as decimal(38,2)) e",
    ),
    by_column(write("topic by column", "'v' value", "'{target}' topic", slice=True)),
    write("topic by option and by column", "'v' value", "'other' topic"),
    write("a topic column of another type beside the option", "'v' value", "1 topic", slice=True),
    write("blanks around the topic", "'v' value", topic=" {target} "),
    write("null value", "cast(null as string) value", "'k' key"),
    write("null partitions", "'v' value", "'k' key", "cast(null as int) partition"),
    write(
        "header fields in another case",
        "'v' value",
        "array(named_struct('KEY', 'a', 'Value', binary('x'))) headers",
        slice=True,
    ),
    write(
        "null headers and a header without a value",
        "'v' value",
        "if(id = 0, null, array(named_struct('key', 'a', 'value', cast(null as binary)))) headers",
    ),
    write(
        "a value and a key that are no text",
        "cast(X'FF00' as string) value",
        "cast(X'EDA080FE' as string) key",
        slice=True,
    ),
    write("empty headers", "'v' value", "cast(array() as array<struct<key:string,value:binary>>) headers"),
    write(
        "options of the producer",
        "'v' value",
        KAFKA__Acks="all",
        kafka__linger__ms=5,
        kafka__retries=3,
        kafka__batch__size=0,
        kafka__buffer__memory=33554432,
        kafka__max__block__ms=30000,
        kafka__compression__type="zstd",
        kafka__enable__idempotence="false",
        includeHeaders="true",
        kafka__client__id="w",
        slice=True,
    ),
    unwritten("a value that is no text", "1 value", says=("value", "int", "string", "binary"), slice=True),
    unwritten("a value of no type", "null value", says=("value", "void")),
    unwritten("a key that is no text", "'v' value", "1 key", says=("key", "int", "string", "binary")),
    unwritten("a partition of another type", "'v' value", "1L partition", says=("partition", "bigint", "int")),
    unwritten(
        "headers of another type",
        "'v' value",
        "array(named_struct('key', 'a', 'value', 'x')) headers",
        says=("headers", "array<struct<key:string,value:string>>"),
    ),
    unwritten("no value", "'v' Value", says=("value",)),
    by_column(unwritten("no topic", "'v' value", says=("topic", "option"))),
    by_column(unwritten("a topic of another type", "'v' value", "1 topic", says=("topic", "int", "string"))),
    by_column(unwritten("a null topic", "'v' value", "cast(null as string) topic", says=("null", "topic", "option"))),
    unwritten("a negative partition", "'v' value", "-1 partition", kafka__max__block__ms=500, says=("-1", "partition")),
    unwritten(
        "a header without a key",
        "'v' value",
        "array(named_struct('key', cast(null as string), 'value', binary('a'))) headers",
        says=(),
    ),
    unwritten("overwrite", "'v' value", mode="overwrite", says=("append",)),
    unwritten("ignore", "'v' value", mode="ignore", says=("mode", "Append")),
    unwritten("key.serializer", "'v' value", kafka__key__serializer="x", says=("key.serializer",)),
    write("no mode", "'v' value", mode="errorifexists", differs='cannot be written in the "ErrorIfExists" mode'),
    write("acks=0", "'v' value", kafka__acks=0, slice=True),
    write("two columns of a name", "'v' value", "'x' value", differs="two columns are named 'value'"),
    write(
        "an idempotent producer",
        "'v' value",
        kafka__enable__idempotence="true",
    ),
]
