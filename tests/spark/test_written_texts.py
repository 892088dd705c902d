"""JSON and CSV that sinks write, in a real Spark: no digit of a time and no column is lost."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from pyspark.sql import functions as F

from pyspark_tidelog.formats import avro, csv, decoded, json
from sinks_harness.trials import opened
from tidelog.pipelines import PipelineError, file, topic
from tidelog.pipelines.declarations import SinkContext
from tidelog.pipelines.sinks.http import json_bodies
from tidelog.pipelines.topics import OpenedTopic, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def two_times(spark: "SparkSession") -> "DataFrame":
    """Two rows whose times differ by one microsecond."""
    instant = "timestamp'2024-05-06T07:08:09.00000{}Z'"
    local = "timestamp_ntz'2024-05-06T07:08:09.00000{}'"
    rows = [f"select {n} id, {instant.format(n)} at, {local.format(n)} local" for n in (1, 2)]
    return spark.sql(" union all ".join(rows)).coalesce(1)


def sent_to(sink: "Topic", rows: "DataFrame") -> list[Any]:
    """The rows that a sink of the type `topic` gives to the Spark sink."""
    context = SinkContext(rows.sparkSession, "127.0.0.1:1", "trial", "query-1", "append")
    return OpenedTopic(sink, context)._encoded(rows).collect()


def test_keys_of_several_columns_contain_microseconds(spark: "SparkSession") -> None:
    rows = two_times(spark).withColumn("both", F.struct("at", "local"))
    for key in (["at"], ["local"], ["id", "at"], ["at", "local"], "both"):
        found = {
            bytes(row.key)
            for row in sent_to(topic("t", value=json(), key=key), rows.drop("id" if key != ["id", "at"] else ""))
        }
        assert len(found) == 2, key
    [first, _] = sent_to(topic("t", value=json(), key=["at", "local"]), rows)
    assert jsonlib.loads(first.key) == {"at": "2024-05-06T07:08:09.000001Z", "local": "2024-05-06T07:08:09.000001"}


@pytest.mark.parametrize(
    "form", [json("id int, at timestamp, local timestamp_ntz"), csv("id int, at timestamp, local timestamp_ntz")]
)
def test_values_of_a_topic_contain_microseconds(spark: "SparkSession", form: Any) -> None:
    rows = two_times(spark)
    encoded = rows.select(form.encode(F.struct(*rows.columns)).alias("value"))
    records, corrupt = decoded(encoded, form)
    assert records.collect() == rows.collect()
    assert corrupt.isEmpty()


@pytest.mark.parametrize("format", ["json", "csv"])
def test_files_contain_microseconds(spark: "SparkSession", tmp_path: Path, format: str) -> None:
    rows = two_times(spark)
    opened(file(str(tmp_path), format=format), spark).write(rows, 0)
    read = spark.read.format(format).schema(rows.schema).load(str(tmp_path))
    assert read.collect() == rows.collect()


def test_an_endpoint_gets_microseconds(spark: "SparkSession") -> None:
    bodies = [row.body for row in json_bodies(two_times(spark)).collect()]
    assert jsonlib.loads(bodies[0]) == {
        "id": 1,
        "at": "2024-05-06T07:08:09.000001Z",
        "local": "2024-05-06T07:08:09.000001",
    }


def test_options_replace_the_formats_of_times(spark: "SparkSession", tmp_path: Path) -> None:
    options = {"TimestampFormat": "yyyy", "timestampNTZFormat": "MM"}
    opened(file(str(tmp_path), format="csv", options=options), spark).write(two_times(spark).limit(1), 0)
    assert [path.read_text() for path in tmp_path.glob("*.csv")] == ["1,2024,05\n"]


def test_a_file_of_csv_with_one_column_may_contain_nulls(spark: "SparkSession", tmp_path: Path) -> None:
    rows = spark.sql("select 'a' text union all select null union all select '' union all select ' b '").coalesce(1)
    opened(file(str(tmp_path / "default"), format="csv"), spark).write(rows, 0)
    [written] = (tmp_path / "default").glob("*.csv")
    assert written.read_text() == 'a\n""\n""\n b \n'
    assert spark.read.schema("text string").csv(str(written)).count() == 4
    options = {"Delimiter": ";", "quote": "'", "nullValue": "-", "quoteAll": True}
    opened(file(str(tmp_path / "options"), format="csv", options=options), spark).write(rows, 0)
    [written] = (tmp_path / "options").glob("*.csv")
    assert written.read_text().splitlines()[:2] == ["'a'", "'-'"]


def test_a_line_of_csv_has_the_order_of_its_schema(spark: "SparkSession") -> None:
    rows = spark.sql("select 2 b, 1 a")
    form = csv("a int, b int")
    [row] = sent_to(topic("t", value=form), rows)
    assert bytes(row.value) == b"1,2"
    assert [bytes(r[0]) for r in rows.select(form.encode(F.struct("b", "a"))).collect()] == [b"1,2"]
    with pytest.raises(Exception, match="the schema has the columns a, b, but the rows also have other columns"):
        rows.select(form.encode(F.struct("b", "a", F.lit(3).alias("`c")))).collect()
    none = F.lit(None).cast("struct<b: int, a: int>")
    assert [r[0] for r in rows.select(form.encode(none)).collect()] == [None]


def test_a_sink_refuses_columns_that_its_format_would_leave_out(spark: "SparkSession") -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    rows = spark.sql("select 1 n, 2 more")
    for form in (avro(schema), csv("n int")):
        with pytest.raises(PipelineError, match=r"pipeline trial: topic t: .*a column more, which the schema does not"):
            sent_to(topic("t", value=form), rows)
        assert len(sent_to(topic("t", value=form, key="more"), rows)) == 1
    with pytest.raises(Exception, match="a column more, which the schema does not have"):
        rows.select(avro(schema).encode(F.struct("n", "more"))).collect()
    with pytest.raises(Exception, match="a row does not fit the Avro schema"):
        spark.sql("select 1L << 40 n").select(avro(schema).encode(F.struct("n"))).collect()
