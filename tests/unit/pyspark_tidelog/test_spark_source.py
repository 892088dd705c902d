"""The source and the sink as Spark sees them: schemas, refusals, rounds of batches."""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

import pyspark_tidelog
from pyspark_tidelog import batch_reader, writer
from pyspark_tidelog.batch_reader import RangePartition, read_partition
from pyspark_tidelog.errors import OptionError, SchemaError
from pyspark_tidelog.options import ReadOptions, read_options
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.rows import TYPES
from pyspark_tidelog.schema import columns_of, source_schema
from pyspark_tidelog.writer import TidelogStreamWriter, TidelogWriter, check_columns, split_into_rounds
from tidelog.model.ids import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
STRICT_HEADERS = ArrayType(
    StructType([StructField("key", StringType(), False), StructField("value", BinaryType())]), False
)


def struct(**columns: str | DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


PLAIN = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "integer",
}


def test_the_source_is_registered_under_its_name() -> None:
    assert pyspark_tidelog.DefaultSource.name() == "tidelog"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pyspark_tidelog.nothing  # noqa: B018


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    assert source_schema(False) == struct(**PLAIN)
    assert source_schema(True) == struct(**PLAIN, headers=HEADERS)
    source = pyspark_tidelog.DefaultSource({"includeheaders": "true"})
    assert source.schema() == source_schema(True)


def test_arrow_types_are_exactly_those_that_spark_expects() -> None:
    expected = to_arrow_schema(source_schema(True), timezone="UTC")
    assert {field.name: field.type for field in expected} == dict(TYPES)


def test_a_schema_may_choose_columns() -> None:
    assert columns_of(struct(offset="long", value="binary"), False) == ("offset", "value")
    for schema, message in [
        (struct(vlaue="binary"), "format tidelog has no column 'vlaue'; it has key, value"),
        (struct(value="string"), "the type of column 'value' of format tidelog is binary, not string"),
        (struct(headers=HEADERS), "only with option includeHeaders=true"),
    ]:
        with pytest.raises(SchemaError, match=message):
            columns_of(schema, False)


def test_readers_and_writers_check_their_options() -> None:
    source = pyspark_tidelog.DefaultSource({**SERVERS, "subscribe": "t", "endingoffsets": "latest"})
    assert source.reader(source.schema()) is not None
    with pytest.raises(OptionError, match="endingOffsets has no meaning in a streaming query"):
        source.streamReader(source.schema())
    with pytest.raises(OptionError, match="option subscribe is not known"):
        source.writer(struct(value="binary"), False)
    sink = pyspark_tidelog.DefaultSource({**SERVERS, "topic": "t"})
    assert isinstance(sink.writer(struct(value="binary"), False), TidelogWriter)
    assert isinstance(sink.streamWriter(struct(value="binary"), False), TidelogStreamWriter)
    once = {**SERVERS, "topic": "t", "exactlyOnce": "true"}
    named = pyspark_tidelog.DefaultSource({**once, "exactlyOnceId": "q", "exactlyOnceBatch": "0"})
    assert isinstance(named.writer(struct(value="binary"), False), TidelogWriter)
    with pytest.raises(OptionError, match="exactlyOnce needs exactlyOnceId and exactlyOnceBatch in a batch write"):
        pyspark_tidelog.DefaultSource(once).writer(struct(value="binary"), False)
    with pytest.raises(OptionError, match="exactlyOnceId and exactlyOnceBatch are for batch writes"):
        named.streamWriter(struct(value="binary"), False)
    for make in (sink.writer, sink.streamWriter):
        with pytest.raises(OptionError, match="a topic only accepts appended rows"):
            make(struct(value="binary"), True)
    with pytest.raises(OptionError, match="no topic is chosen"):
        pyspark_tidelog.DefaultSource(SERVERS).reader(source_schema(False))


def test_a_task_waits_for_records_as_long_as_the_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connected(Exception):
        pass

    def connect(options: ReadOptions) -> None:
        raise Connected(options.client.default_api_timeout_ms)

    monkeypatch.setattr(batch_reader, "connect", connect)
    given = {**SERVERS, "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "1234"}
    partition = RangePartition(OffsetRange("t", 0, 0, 1))
    with pytest.raises(Connected, match="1234"):
        next(read_partition(read_options(given, streaming=False), ("value",), partition))


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        (struct(key="binary"), "t", "there is no column named value"),
        (struct(value="integer"), "t", "column value must be binary or string, not int"),
        (struct(Value="binary"), "t", "there is no column named value"),
        (
            StructType(
                [StructField("value", StringType()), StructField("a", StringType()), StructField("a", BinaryType())]
            ),
            "t",
            "two columns are named 'a'",
        ),
        (struct(value="binary", topic="integer"), None, "column topic must be string, not int"),
        (struct(value="binary", partition="long"), "t", "column partition must be int, not bigint"),
        (
            struct(value="binary", headers=MapType(StringType(), StringType())),
            "t",
            "column headers must be array<struct<key:string,value:binary>>, not map<string,string>",
        ),
        (struct(value="binary"), None, "no topic is chosen: give option topic or a topic column"),
    ],
)
def test_columns_that_are_not_written(schema: StructType, topic: str | None, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_columns(schema, topic)


def test_columns_that_are_written() -> None:
    everything = struct(key="string", value="string", headers=STRICT_HEADERS, topic="string", partition="integer")
    check_columns(everything, None)
    check_columns(struct(value="binary"), "t")
    check_columns(struct(value="binary", topic="integer"), "t")
    other_case = ArrayType(StructType([StructField("KEY", StringType()), StructField("Value", BinaryType())]))
    check_columns(struct(value="binary", offset="long", Key="integer", headers=other_case), "t")


def test_the_timestamp_column_must_be_a_timestamp_if_it_is_written() -> None:
    check_columns(struct(value="binary", timestamp="long"), "t")
    check_columns(struct(value="binary", timestamp="timestamp"), "t", include_timestamp=True)
    with pytest.raises(SchemaError, match="column timestamp must be timestamp, not bigint"):
        check_columns(struct(value="binary", timestamp="long"), "t", include_timestamp=True)
    with pytest.raises(SchemaError, match="there is no column named timestamp"):
        check_columns(struct(value="binary"), "t", include_timestamp=True)


def test_rounds_hold_one_batch_of_each_partition_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (TopicPartition("t", n) for n in range(3))
    batches = {
        a: [bytearray(b"a1"), bytearray(b"a2"), bytearray(b"a3")],
        b: [bytearray(b"b1")],
        c: [bytearray(b"c1")] * 2,
    }
    assert [list(together) for together in split_into_rounds(batches)] == [[a, b, c], [a, c], [a]]
    assert [bytes(together[a]) for together in split_into_rounds(batches)] == [b"a1", b"a2", b"a3"]
    monkeypatch.setattr(writer, "ROUND_BYTES", 4)
    assert [list(together) for together in split_into_rounds(batches)] == [[a, b], [c], [a, c], [a]]
