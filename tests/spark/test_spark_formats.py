"""Formats in a real Spark: each value is a record or has a reason, and what is encoded can be decoded again."""

import json as jsonlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from pyspark.sql import Row
from pyspark.sql import functions as F

from pyspark_tidelog.formats import Format, avro, csv, decoded, json, protobuf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id int NOT NULL, name string, at timestamp, point struct<x: int>, sizes array<int>"
NESTED = "a struct<b: int not null, c: int>, d array<struct<e: int not null>>, f map<string, struct<g: int not null>>"
NOT_ONE = "the value is not exactly one JSON object"
JSON_ERRORS = [
    (None, "the value is null"),
    (b"", "the value is empty"),
    (b" \n", "the value is empty"),
    (b'{"id":1,"name":"\xff"}', "the value is not valid UTF-8"),
    (b'{"id":1', NOT_ONE),
    (b'{"id":1,', NOT_ONE),
    (b'{"id":1}x', NOT_ONE),
    (b'{"id":1} {"id":2}', NOT_ONE),
    (b'{"id":1}\n{"id":2}', NOT_ONE),
    (b'{"id":1},{"id":2}', NOT_ONE),
    (b'{"id":1}]', NOT_ONE),
    (b'{"id":1}}', NOT_ONE),
    (b'{"id":1}],[]]}', NOT_ONE),
    (b'{"id":1}],[]],"x":[[', NOT_ONE),
    (b'{"id":1}],[{"__end_of_tidelog_value__":1}]],"x":[[{"id":2}', NOT_ONE),
    (b'{"id":1}\x00', NOT_ONE),
    (b"null", NOT_ONE),
    (b"7", NOT_ONE),
    (b'"text"', NOT_ONE),
    (b"{'id':1}", NOT_ONE),
    (b'{"id":01}', NOT_ONE),
    (b"\xef\xbb\xbf{}", NOT_ONE),
    (b'[{"id":1}]', "the value is a JSON array, not a JSON object"),
    (b"[]", "the value is a JSON array, not a JSON object"),
    (b'{"id":"one"}', "the value does not fit the schema: id is not int"),
    (b'{"id":1.5}', "the value does not fit the schema: id is not int"),
    (b'{"id":99999999999}', "the value does not fit the schema: id is not int"),
    (b'{"id":1,"at":"yesterday"}', "the value does not fit the schema: at is not timestamp"),
    (b'{"id":1,"point":5}', "the value does not fit the schema: point is not struct<x:int>"),
    (b'{"id":1,"point":{"x":"q"}}', "the value does not fit the schema: a nested field has the wrong type"),
    (b'{"id":1,"sizes":[1,"x"]}', "the value does not fit the schema: sizes is not array<int>"),
    (b"{}", "the field id is required, but missing or null"),
    (b'{"id":null}', "the field id is required, but missing or null"),
]
JSON_RECORDS = [
    (b'{"id":1}', (1, None, None, None, None)),
    (b' {"id":2,"name":"\xc3\xa9","more":[{}]}\n', (2, "é", None, None, None)),
    (b'{"id":3,"name":5}', (3, "5", None, None, None)),
    (b'{"id":4,"at":"2024-05-06T07:08:09.5Z"}', (4, None, datetime(2024, 5, 6, 7, 8, 9, 500_000), None, None)),
    (b'{"id":5,"name":"}]","point":{"x":6},"sizes":[7,null]}', (5, "}]", None, Row(x=6), [7, None])),
]
CSV_SCHEMA = "id int NOT NULL, name string, price double"
CSV_ERRORS = [
    (None, "the value is null"),
    (b"", "the value is empty"),
    (b"\n", "the value is empty"),
    (b"1,\xff,2.5", "the value is not valid UTF-8"),
    (b"1,a,2.5\n2,b,3.5", "the value has more than one line"),
    (b'1,"a"\n,2.5', "the value has more than one line"),
    (b'1,"a,2.5', "a quoted field has no closing quote"),
    (b"1,a,2.5,x", "the value does not fit the schema of 3 fields: there are too many fields"),
    (b"1,a", "the value does not fit the schema of 3 fields: no value, or no valid value, in price (double)"),
    (b"x,a,2.5", "the value does not fit the schema of 3 fields: no value, or no valid value, in id (int)"),
    (
        b"x,,q",
        "the value does not fit the schema of 3 fields: no value, or no valid value, in id (int), name (string), "
        "price (double)",
    ),
    (b" 1 , a , 2.5 ", "the value does not fit the schema of 3 fields: no value, or no valid value, in id (int)"),
    (b",a,2.5", "the field id is required, but missing or null"),
]
CSV_RECORDS = [
    (b"1,a,2.5", (1, "a", 2.5)),
    (b"2,,\r\n", (2, None, None)),
    (b'3,"a ""b"", c\nd",1', (3, 'a "b", c\nd', 1.0)),
    (b'4,a"b,1', (4, 'a"b', 1.0)),
    (b'"5","","1"', (5, None, 1.0)),
]


def outcomes(spark: "SparkSession", form: Format, values: list[bytes | None]) -> list[tuple[Any, str | None]]:
    """The record and the error of each value."""
    frame = spark.createDataFrame(list(enumerate(values)), "n int, value binary")
    rows = frame.select("n", form.decode(F.col("value")).alias("decoded")).orderBy("n").collect()
    return [(row.decoded.record and tuple(row.decoded.record), row.decoded.error) for row in rows]


@pytest.mark.parametrize(
    ("form", "errors", "records"),
    [(json(SCHEMA), JSON_ERRORS, JSON_RECORDS), (csv(CSV_SCHEMA), CSV_ERRORS, CSV_RECORDS)],
    ids=["json", "csv"],
)
def test_each_value_is_a_record_or_has_a_reason(
    spark: "SparkSession", form: Format, errors: list[Any], records: list[Any]
) -> None:
    found = outcomes(spark, form, [value for value, _ in errors + records])
    assert found == [(None, reason) for _, reason in errors] + [(record, None) for _, record in records]


def test_nested_fields_can_be_required(spark: "SparkSession") -> None:
    values = [b"{}", b'{"a":{"b":1},"d":[{"e":2},null],"f":{"k":{"g":3}}}', b'{"a":{"c":1}}', b'{"d":[{"e":1},{}]}']
    found = outcomes(spark, json(NESTED), [*values, b'{"f":{"k":{}}}'])
    assert [error for _, error in found] == [
        None,
        None,
        "the field a.b is required, but missing or null",
        "the field d[].e is required, but missing or null",
        "the field f[].g is required, but missing or null",
    ]


def test_a_line_whose_only_field_is_null_is_not_empty(spark: "SparkSession") -> None:
    form = csv("a string")
    rows = spark.createDataFrame([("x",), (None,)], "a string")
    encoded = rows.select(form.encode(F.struct("a")).alias("value"))
    assert sorted((bytes(row.value) for row in encoded.collect()), key=len) == [b"x", b'""']
    records, corrupt = decoded(encoded, form)
    assert {row.a for row in records.collect()} == {"x", None}
    assert corrupt.isEmpty()


def test_fields_of_the_wrong_type_are_named_if_spark_has_a_path_for_them(spark: "SparkSession") -> None:
    form = json("`it's` int, `really?` int, `a.b` int, `it's c.d` int, nested struct<x: int>")
    values = [b'{"it\'s":"x"}', b'{"really?":"x"}', b'{"a.b":"x"}', b'{"it\'s c.d":"x"}', b'{"nested":5}']
    unknown = "it's c.d or a nested field has the wrong type"
    reasons = ["it's is not int", "really? is not int", "a.b is not int", unknown, "nested is not struct<x:int>"]
    assert [error for _, error in outcomes(spark, form, values)] == [
        f"the value does not fit the schema: {reason}" for reason in reasons
    ]


@pytest.mark.parametrize("options", [{}, {"quoteAll": True}, {"sep": ";"}, {"sep": "\t", "quote": "'"}])
def test_writing_csv_needs_no_schema(spark: "SparkSession", options: dict[str, Any]) -> None:
    texts = {name: str(value).lower() if value is True else value for name, value in options.items()}
    rows = spark.createDataFrame(
        [("x", 1), (None, None), ("", 2), (' a "b", c\nd; ', 3), ("1", None)], "a string, b int"
    )
    for columns in (["a", "b"], ["a"]):
        schema = rows.select(*columns).schema
        with_schema, without = (form.encode(F.struct(*columns)) for form in (csv(schema, texts), csv(options=texts)))
        for row in rows.select(with_schema.alias("expected"), without.alias("found")).collect():
            assert row.found == row.expected
    none = F.lit(None).cast(rows.schema)
    assert [row[0] for row in spark.range(1).select(csv().encode(none)).collect()] == [None]


def test_decoded_separates_good_rows_from_corrupt_ones(spark: "SparkSession") -> None:
    values = [(b"k", b'{"id":1}', 7), (None, b"no", 8)]
    frame = spark.createDataFrame(values, "key binary, value binary, offset bigint")
    records, corrupt = decoded(frame, json("id int"))
    assert records.collect() == [Row(id=1, kafka=Row(key=bytearray(b"k"), offset=7))]
    assert corrupt.collect() == [Row(key=None, value=bytearray(b"no"), offset=8, error=NOT_ONE)]


AVRO = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


def every_kind_of_protobuf() -> Any:
    from google.protobuf import descriptor_pb2

    return descriptor_pb2.FieldDescriptorProto


def test_encoded_records_are_decoded_again(spark: "SparkSession") -> None:
    rows = spark.sql(
        "select id, if(id % 2 = 0, null, concat('n', id)) name, timestamp_micros(id * 1000001) at, "
        "map('a', cast(id as int)) tags, cast(id / 100 as decimal(9,2)) price from range(5)"
    )
    ddl = "id bigint, name string, at timestamp, tags map<string, int>, price decimal(9,2)"
    forms: dict[str, Format] = {
        "json": json(ddl),
        "avro": avro(AVRO),
        "avro with a registry": avro(registry={3: jsonlib.dumps(AVRO)}),
    }
    expected = rows.collect()
    for name, form in forms.items():
        encoded = rows.select(form.encode(F.struct(*rows.columns)).alias("value"))
        again, corrupt = decoded(encoded, form)
        assert again.schema.simpleString() == rows.schema.simpleString(), name
        assert again.collect() == expected, name
        assert corrupt.isEmpty(), name


def test_protobuf_messages_are_encoded_and_decoded(spark: "SparkSession") -> None:
    form = protobuf(every_kind_of_protobuf())
    rows = spark.sql(
        "select 'a' name, 3 number, 'LABEL_REPEATED' label, named_struct('packed', true) options union all "
        "select null, 4, null, null"
    )
    encoded = rows.select(form.encode(F.struct(*rows.columns)).alias("value"))
    records, corrupt = decoded(encoded, form)
    chosen = records.select("name", "number", "label", "options.packed").collect()
    assert chosen == [("a", 3, "LABEL_REPEATED", True), (None, 4, None, None)]
    assert corrupt.isEmpty()
    [(record, error)] = outcomes(spark, form, [b"\xff\xff"])
    assert record is None
    assert "is not a message google.protobuf.FieldDescriptorProto" in str(error)
