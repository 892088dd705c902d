"""Delta and Parquet with a real Spark: every crash point, concurrent writers, and readers other than Spark."""

import os
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import duckdb
import pyarrow.dataset as ds
from deltalake import DeltaTable

from sinks_harness.trials import batch_of, opened, run_to_end, stream_of
from tidelog.pipelines import PipelineError, delta, file, http, iceberg, parquet, pipeline
from tidelog.pipelines.failures import cause_text, is_permanent
from tidelog.pipelines.loading import declared_pipeline
from tidelog.pipelines.queries import refuse_shared_pages
from tidelog.pipelines.running import run
from tidelog.pipelines.sinks.http import Request
from tidelog.pipelines.sources.http import Endpoint, Page

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
    with pytest.raises(PipelineError, match="column gap has or contains the type interval"):
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


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_of_any_type_that_have_not_changed_are_read(spark: "SparkSession", tmp_path: Path, kind: str) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    table = delta(str(tmp_path / "t")) if kind == "delta" else iceberg("lake.t", catalog=catalog)
    row = spark.sql(
        "select 1 as a, 2L as b, cast(3 as double) as c, cast(4 as float) as d, 5.25 as e, 'f' as f, x'00' as g,"
        " true as h, date'2026-01-01' as i, timestamp'2026-01-01 01:02:03' as j, array(1, null) as l,"
        " map('k', named_struct('x', 1, 'y', array('z'))) as m, named_struct('x', timestamp'2026-01-01 00:00:00') as n"
    )
    writer = opened(table, spark)
    writer.write(row, 0)
    if kind == "delta":
        writer.write(row.selectExpr("*", "cast(j as timestamp_ntz) as k", "7S as o", "8Y as p"), 1)
    target = delta(str(tmp_path / "copy"))
    for _ in range(2):
        run_to_end(stream_of(table, spark), opened(target, spark), tmp_path / "checkpoint")
        writer.write(row, 2)
    assert DeltaTable(tmp_path / "copy").to_pyarrow_table().num_rows == (3 if kind == "delta" else 2)


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
        with pytest.raises(PipelineError, match="this sink writes to URLs that begin with s3"):
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


@pytest.mark.parametrize(
    ("format", "lines", "cause"),
    [
        ("json", '{"id": 1}\nnot json\n', "Unrecognized token 'not'"),
        ("json", '{"id": 1}\n{"id": "x"}\n', "Cannot parse the field name 'id' and the value x"),
        ("csv", "1,a\n2\n", "Malformed CSV record: 2"),
    ],
)
def test_a_malformed_line_of_a_file_stops_the_pipeline(
    spark: "SparkSession", tmp_path: Path, format: str, lines: str, cause: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/lines").write_text(lines)
    schema = "id long" if format == "json" else "id long, name string"

    def copy_with(options: dict[str, str], state: str) -> None:
        source = file(str(tmp_path / "in"), format=format, schema=schema, options=options)

        @pipeline(source=source, sink=parquet(str(tmp_path / "out")))
        def copied(rows: "DataFrame") -> "DataFrame":
            return rows

        run(copied, spark=spark, state=tmp_path / state, timeout_s=60)

    with pytest.raises(PipelineError, match=f"in/lines: a line is malformed: .*{cause}"):
        copy_with({}, "strict")
    copy_with({"mode": "DROPMALFORMED"}, "lenient")
    assert ids_in_files(tmp_path / "out") == [1]


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        ("name,id\n2,1\n", "Header: name, id, Schema: id, name"),
        ("id,name,more\n2,1,0\n", "Header length: 3, schema size: 2"),
    ],
)
def test_a_header_with_other_columns_stops_the_pipeline(
    spark: "SparkSession", tmp_path: Path, second: str, difference: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/first").write_text("id,name\n1,2\n")
    options = {"Header": True}
    for schema in ("id long, name string", None):
        source = file(str(tmp_path / "in"), format="csv", schema=schema, options=options)
        run_to_end(
            stream_of(source, spark), opened(parquet(str(tmp_path / "out")), spark), tmp_path / f"state {schema}"
        )
        (tmp_path / "in/second").write_text(second)
        with pytest.raises(Exception, match="CSV header") as raised:
            batch_of(
                file(f"{tmp_path}/in/s*", format="csv", schema="id long, name string", options=options), spark
            ).collect()
        cause = cause_text(raised.value)
        assert cause.startswith(f"file://{tmp_path}/in/second: the header has other columns than the schema")
        assert difference in cause
        assert is_permanent(raised.value)
        by_position = file(
            f"{tmp_path}/in/s*",
            format="csv",
            schema="name string, id long",
            options=options | {"EnforceSchema": True, "mode": "PERMISSIVE"},
        )
        assert batch_of(by_position, spark).count() == 1
        (tmp_path / "in/second").unlink()


def test_columns_are_not_inferred_from_malformed_lines(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"id": 1}\nnot json\n')
    for load in (batch_of, stream_of):
        with pytest.raises(PipelineError, match=r"the columns cannot be inferred.*MALFORMED_RECORD_IN_PARSING"):
            load(file(str(tmp_path / "*"), format="json"), spark)


def test_a_record_of_an_endpoint_that_does_not_fit_stops_the_pipeline(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    source = http("http://127.0.0.1:1/events", schema="id long")
    records = ['{"id": 1, "more": 2}', '{"id": null}', "{}"]
    monkeypatch.setattr(Endpoint, "page", lambda *_: Page(records, None))
    assert [row["id"] for row in batch_of(source, spark).collect()] == [1, None, None]
    for wrong, reason in (('{"id": "x"}', "id is not bigint"), ("7", "not exactly one JSON object")):
        records.append(wrong)
        with pytest.raises(Exception, match=reason) as raised:
            batch_of(source, spark).selectExpr("1 as one").collect()
        assert is_permanent(raised.value)
        assert cause_text(raised.value).startswith(
            "pipeline trial: a record of http http://127.0.0.1:1/*** cannot be parsed: the value"
        )
        records.pop()


def test_records_of_an_endpoint_keep_their_digits_and_characters(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    source = http("http://127.0.0.1:1/events", schema="amount decimal(30,2), name string")
    content = b'[{"amount": 12345678901234567.89, "name": "\\ud83d"}, {"amount": 1, "name": "\xc3\xa9"}]'
    monkeypatch.setattr(Request, "send", lambda *_: content)
    first, second = batch_of(source, spark).collect()
    assert (first.amount, first.name) == (Decimal("12345678901234567.89"), "?")
    assert second.name == "\u00e9"


def test_two_readers_of_an_endpoint_would_remove_each_others_pages(spark: "SparkSession", tmp_path: Path) -> None:
    source = http("http://127.0.0.1:1/events", staging=str(tmp_path / "pages"), schema="id long")
    another = http("http://127.0.0.1:1/events", staging=str(tmp_path / "others"), schema="id long")

    @pipeline(
        source={"events": source, "others": another},
        sink={"a": parquet(str(tmp_path / "a")), "b": parquet(str(tmp_path / "b"))},
    )
    def both(events: "DataFrame", others: "DataFrame") -> dict[str, "DataFrame"]:
        return {"a": events, "b": events.where("id > 1").union(others)}

    with pytest.raises(PipelineError, match="sinks a and b read the pages of http"):
        run(both, spark=spark, state=tmp_path / "state", timeout_s=60)
    events, others = stream_of(source, spark), stream_of(another, spark)
    texts = stream_of(http("http://127.0.0.1:1/events", staging=str(tmp_path / "pages")), spark)
    declared = declared_pipeline(both)
    refuse_shared_pages(declared, {"a": events, "b": others})
    refuse_shared_pages(declared, {"a": events.union(others), "b": spark.range(1)})
    refuse_shared_pages(declared, {"a": events.where("id > 1").union(events.where("id < 1")), "b": others})
    with pytest.raises(PipelineError, match=f"sink a reads the pages of http.* in {tmp_path}/pages twice,"):
        refuse_shared_pages(declared, {"a": texts.join(texts.alias("again"), "value"), "b": others})
    same = replace(declared, sources={"events": source, "others": source})
    with pytest.raises(PipelineError, match="sinks a and b read"):
        refuse_shared_pages(same, {"a": events, "b": stream_of(source, spark)})


def test_names_of_columns_are_quoted_as_values_of_csv(spark: "SparkSession", tmp_path: Path) -> None:
    frame = spark.range(1).selectExpr("id as `a;b`", '\'say "x"\' as `say "x"`', "'' as plain").coalesce(1)
    sink = opened(file(str(tmp_path), format="csv", options={"Header": True, "sep": ";"}), spark)
    sink.write(frame, 0)
    [written] = tmp_path.glob("*.csv")
    header, row = written.read_text().splitlines()
    assert header == '"a;b";"say \\"x\\"";plain'
    assert row == '0;"say \\"x\\"";""'
    assert spark.read.csv(str(written), sep=";", header=True).columns == frame.columns
