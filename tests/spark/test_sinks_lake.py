"""Delta and Parquet with a real Spark: every crash point, concurrent writers, and readers other than Spark."""

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import duckdb
import pyarrow.dataset as ds
from deltalake import DeltaTable

from sinks_harness.trials import batch_of, opened, run_to_end, stream_of
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.file import file
from tidelog.pipelines.sinks.parquet import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(spark: "SparkSession", begin: int, end: int) -> "DataFrame":
    return spark.range(begin, end, numPartitions=2).selectExpr("id", "concat('text ', id) as text")


def ids_in_delta(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table().column("id").to_pylist())


def ids_in_files(path: Path) -> list[int]:
    """Read by three readers that know nothing of the sink."""
    arrow = sorted(ds.dataset(path, format="parquet").to_table().column("id").to_pylist())
    duck = sorted(row[0] for row in duckdb.sql(f"select id from read_parquet('{path}/**/*.parquet')").fetchall())
    globbed = sorted(
        value for file in path.glob("**/*.parquet") for value in ds.dataset(file).to_table().column("id").to_pylist()
    )
    assert arrow == duck == globbed
    return arrow


def test_delta_appends_a_micro_batch_once(spark: "SparkSession", tmp_path: Path) -> None:
    sink = opened(delta(str(tmp_path / "t")), spark)
    sink.write(numbers(spark, 0, 50), 0)
    sink.write(numbers(spark, 0, 50), 0)
    sink.write(numbers(spark, 50, 80), 1)
    restarted = opened(delta(str(tmp_path / "t")), spark)
    restarted.write(numbers(spark, 50, 80), 1)
    restarted.write(numbers(spark, 80, 80), 2)
    assert ids_in_delta(tmp_path / "t") == list(range(80))
    another_query = opened(delta(str(tmp_path / "t")), spark, query="query-2")
    another_query.write(numbers(spark, 80, 90), 0)
    assert ids_in_delta(tmp_path / "t") == list(range(90))
    assert spark.read.parquet(str(tmp_path / "t")).count() == 90


def test_delta_merges_by_key(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = delta(str(path), key=["country", "id"], delete="op = 'd'", order_by="at")

    def changes(*rows: tuple[str | None, int, int, str, str]) -> "DataFrame":
        return spark.createDataFrame(list(rows), "country string, id long, at int, op string, name string")

    writer = opened(sink, spark)
    writer.write(
        changes(("FR", 1, 1, "c", "a"), ("FR", 1, 2, "u", "b"), ("DE", 1, 1, "c", "c"), (None, 7, 1, "c", "n")), 0
    )
    second = changes(("FR", 1, 3, "d", "b"), ("DE", 1, 2, "u", "d"), ("DE", 9, 1, "d", "x"), (None, 7, 2, "u", "m"))
    writer.write(second, 1)
    opened(sink, spark).write(second, 1)
    rows = DeltaTable(path).to_pyarrow_table(columns=["country", "id", "name"]).to_pylist()
    assert sorted((row["country"] or "", row["id"], row["name"]) for row in rows) == [("", 7, "m"), ("DE", 1, "d")]
    assert DeltaTable(path).version() == 2, "the table was created and two micro-batches were committed"
    with pytest.raises(PipelineError, match="several rows of one micro-batch have the key id=1: name a column"):
        opened(delta(str(path), key="id"), spark).write(changes(("A", 1, 1, "c", "a"), ("B", 1, 1, "c", "a")), 2)


def test_delta_gets_new_columns_and_keeps_types(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "t"
    writer = opened(delta(str(path), partition_by="country"), spark)
    writer.write(spark.sql("select 1L as id, 'São Tomé/1' as country"), 0)
    writer.write(
        spark.sql(
            "select 2 as id, cast(null as string) as country, 1.5D as price, timestamp'2026-01-01 10:00:00' as at"
        ),
        1,
    )
    rows = sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["country"], row["price"]) for row in rows] == [(1, "São Tomé/1", None), (2, None, 1.5)]
    assert str(rows[1]["at"]) == "2026-01-01 10:00:00+00:00"
    with pytest.raises(PipelineError, match="column id is bigint in the table and string in the rows"):
        writer.write(spark.sql("select 'x' as id, 'a' as country"), 2)
    with pytest.raises(
        PipelineError, match=r"the table has no column extra; delta\(\.\.\., evolve=True\) adds columns"
    ):
        opened(delta(str(path), evolve=False), spark).write(spark.sql("select 3L as id, 'a' as country, 1 as extra"), 2)
    with pytest.raises(PipelineError, match=r"partitioned by \['country'\], not \['id'\]"):
        opened(delta(str(path), partition_by="id"), spark)
    with pytest.raises(PipelineError, match="column gap has the type interval"):
        writer.write(spark.sql("select 3L as id, 'a' as country, interval 1 day as gap"), 2)


def test_delta_widens_fields_of_structs(spark: "SparkSession", tmp_path: Path) -> None:
    writer = opened(delta(str(tmp_path / "t")), spark)
    writer.write(spark.sql("select 1 as id, named_struct('a', 1L, 'b', array(1.5D)) as `s s`"), 0)
    writer.write(spark.sql("select 2 as id, named_struct('b', array(2.5F), 'new', 'x', 'a', 2) as `s s`"), 1)
    expected = [{"a": 1, "b": [1.5], "new": None}, {"a": 2, "b": [2.5], "new": "x"}]
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("id").column("s s").to_pylist() == expected


def test_delta_as_a_source(spark: "SparkSession", tmp_path: Path) -> None:
    table = delta(str(tmp_path / "t"), partition_by="day")
    writer = opened(table, spark)

    def days(begin: int, end: int) -> "DataFrame":
        return spark.range(begin, end).selectExpr("id", "date_add(date'2026-01-01', cast(id % 2 as int)) as day")

    writer.write(days(0, 10), 0)
    writer.write(days(10, 20), 1)
    target = delta(str(tmp_path / "copy"))
    run_to_end(stream_of(table, spark), opened(target, spark), tmp_path / "checkpoint")
    assert ids_in_delta(tmp_path / "copy") == list(range(20))
    writer.write(days(20, 25), 2)
    run_to_end(stream_of(table, spark), opened(target, spark), tmp_path / "checkpoint")
    assert ids_in_delta(tmp_path / "copy") == list(range(25))
    rows = {row["id"]: row["day"] for row in batch_of(table, spark).collect()}
    assert rows == {n: date(2026, 1, 1 + n % 2) for n in range(25)}
    assert batch_of(table, spark, rows_max=3).count() == 3
    late = delta(str(tmp_path / "t"), begin_version=2)
    run_to_end(stream_of(late, spark), opened(delta(str(tmp_path / "late")), spark), tmp_path / "late-checkpoint")
    assert ids_in_delta(tmp_path / "late") == list(range(20, 25))


class TestParquet:
    def test_a_micro_batch_appears_once(self, spark: "SparkSession", tmp_path: Path) -> None:
        path = tmp_path / "files"
        writer = opened(parquet(str(path)), spark)
        writer.write(numbers(spark, 0, 50), 0)
        writer.write(numbers(spark, 0, 50), 0)
        opened(parquet(str(path)), spark).write(numbers(spark, 50, 60), 1)
        assert ids_in_files(path) == list(range(60))
        assert spark.read.parquet(str(path)).count() == 60
        assert not list((path / "_tidelog/staged").iterdir())

    def test_partitions_and_one_file(self, spark: "SparkSession", tmp_path: Path) -> None:
        path = tmp_path / "files"
        rows = spark.sql("select id, if(id % 3 = 0, null, concat('a/é', id % 3)) as place from range(30)")
        opened(parquet(str(path), partition_by=["place"], files=1), spark).write(rows, 0)
        found = duckdb.sql(f"select place, count(*) from read_parquet('{path}/*/*.parquet') group by 1").fetchall()
        assert dict(found) == {None: 10, "a/é1": 10, "a/é2": 10}
        assert len(list(path.glob("place=*/*.parquet"))) == 3
        assert {row["place"] for row in spark.read.parquet(str(path)).collect()} == {None, "a/é1", "a/é2"}

    def test_as_source_and_sink_of_a_stream(self, spark: "SparkSession", tmp_path: Path) -> None:
        source, target = parquet(str(tmp_path / "in")), parquet(str(tmp_path / "out"), files=1)
        writer = opened(source, spark)
        for batch in range(2):
            writer.write(numbers(spark, 10 * batch, 10 * batch + 10), batch)
            run_to_end(stream_of(source, spark), opened(target, spark), tmp_path / "checkpoint")
            assert ids_in_files(tmp_path / "out") == list(range(10 * batch + 10))
        with pytest.raises(PipelineError, match="there are no files yet, so the columns are unknown"):
            stream_of(parquet(str(tmp_path / "none")), spark)
        with pytest.raises(PipelineError, match="the output mode update needs delta"):
            opened(target, spark, "update")
        with pytest.raises(PipelineError, match="this sink writes object stores with s3"):
            opened(parquet("hdfs://host/files"), spark)


def test_files_that_are_older_than_others_are_read_too(spark: "SparkSession", tmp_path: Path) -> None:
    source = file(str(tmp_path / "in"), format="json", schema="id long")
    target = opened(parquet(str(tmp_path / "out")), spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/new.json").write_text('{"id": 1}\n')
    run_to_end(stream_of(source, spark), target, tmp_path / "checkpoint")
    old = tmp_path / "old.json"
    old.write_text('{"id": 2}\n')
    os.utime(old, (1e9, 1e9))  # in the year 2001
    old.rename(tmp_path / "in/old.json")
    run_to_end(stream_of(source, spark), target, tmp_path / "checkpoint")
    assert ids_in_files(tmp_path / "out") == [1, 2]


def test_names_of_columns_are_quoted_as_values_of_csv(spark: "SparkSession", tmp_path: Path) -> None:
    frame = spark.range(1).selectExpr("id as `a;b`", '\'say "x"\' as `say "x"`', "'' as plain").coalesce(1)
    sink = opened(file(str(tmp_path), format="csv", options={"Header": True, "sep": ";"}), spark)
    sink.write(frame, 0)
    [written] = tmp_path.glob("*.csv")
    header, row = written.read_text().splitlines()
    assert header == '"a;b";"say \\"x\\"";plain'
    assert row == '0;"say \\"x\\"";""'
    assert spark.read.csv(str(written), sep=";", header=True).columns == frame.columns
