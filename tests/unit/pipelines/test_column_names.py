"""Columns with the same name, or with names that differ only in case, are an error of every sink with names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
from pyspark.sql import types as t

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines import PipelineError, delta, file, http, iceberg, json, parquet, topic
from tidelog.pipelines.declarations import SinkContext
from tidelog.pipelines.sinks.column_names import check_names
from tidelog.pipelines.sinks.iceberg import load_catalog
from tidelog.pipelines.sinks.keyed_rows import columns_named
from tidelog.pipelines.topics import OpenedTopic


def catalog_in(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/c.db", "warehouse": f"file://{directory}"}


def rows_with(*names: str) -> Any:
    return Rows(pa.Table.from_arrays([pa.array([number]) for number in range(len(names))], names=list(names)), 1)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "http", "delta", "iceberg", "topic"])
def test_two_columns_with_one_name_are_refused(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    sinks: dict[str, Any] = {
        "parquet": parquet(path),
        "json": file(path, format="json"),
        "csv": file(path, format="csv", options={"HEADER": True}),
        "http": http("http://127.0.0.1:1/rows"),
        "delta": delta(path),
        "iceberg": iceberg("lake.rows", catalog=catalog_in(tmp_path)),
    }
    context = SinkContext(cast(Any, SimpleNamespace()), "127.0.0.1:1", "trial", "query-1", "append")
    target = OpenedTopic(topic("t", value=json()), context) if kind == "topic" else sinks[kind].open(context)
    with pytest.raises(PipelineError, match=f"{'file' if kind in ('json', 'csv') else kind} .*two columns named id"):
        target.write(rows_with("id", "v", "id"), 0)
    with pytest.raises(PipelineError, match="the columns id and ID differ only in case: rename one"):
        target.write(rows_with("id", "v", "ID"), 0)
    assert not list(tmp_path.glob("t/*.*"))


def test_fields_of_structs_are_compared_too() -> None:
    def struct(*names: str) -> t.StructType:
        return t.StructType([t.StructField(name, t.LongType()) for name in names])

    for kind, name in [
        (struct("a", "A"), "s.a and s.A"),
        (t.ArrayType(struct("a", "A")), "s.element.a and s.element.A"),
        (t.MapType(t.StringType(), t.ArrayType(struct("a", "A"))), "s.value.element.a and s.value.element.A"),
        (t.MapType(struct("a", "A"), t.StringType()), "s.key.a and s.key.A"),
    ]:
        with pytest.raises(PipelineError, match=f"parquet x: the columns {name} differ only in case"):
            check_names(t.StructType([t.StructField("s", kind)]), "parquet x")
    check_names(t.StructType([t.StructField("a", struct("a", "b")), t.StructField("b", struct("a"))]), "parquet x")


def test_iceberg_gets_no_column_whose_name_differs_only_in_case(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    sink = opened(iceberg("lake.rows", catalog=catalog), cast(Any, None))
    inner = pa.struct([("a", pa.int64())])
    sink.write(cast(Any, Rows(pa.table({"id": [1], "s": pa.array([{"a": 1}], inner)}), 1)), 0)
    with pytest.raises(PipelineError, match="column ID of the rows differs only in case from id in the table: rename"):
        sink.write(rows_with("ID"), 1)
    other = pa.array([{"A": 1}], pa.struct([("A", pa.int64())]))
    with pytest.raises(PipelineError, match=r"column s.A of the rows differs only in case from s.a in the table"):
        sink.write(cast(Any, Rows(pa.table({"id": [1], "s": other}), 1)), 1)
    table = load_catalog(list(catalog.items()), "test").load_table("lake.rows")
    assert sorted(table.schema().column_names) == ["id", "s", "s.a"]


def test_iceberg_without_evolve_keeps_types(tmp_path: Path) -> None:
    def table() -> str:
        return str(load_catalog(list(catalog.items()), "test").load_table("lake.rows").schema().find_type("id"))

    catalog = catalog_in(tmp_path)
    sink, evolving = (
        opened(iceberg("lake.rows", catalog=catalog, evolve=evolve), cast(Any, None)) for evolve in (False, True)
    )
    narrow, wide = (cast(Any, Rows(pa.table({"id": pa.array([1], kind)}), 1)) for kind in (pa.int32(), pa.int64()))
    sink.write(narrow, 0)
    with pytest.raises(PipelineError, match=r"column id is int in the table and long in the rows: cast it in .*evolve"):
        sink.write(wide, 1)
    assert table() == "int"
    evolving.write(wide, 1)
    assert table() == "long"
    sink.write(narrow, 2)
    assert table() == "long"


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("deleted", ["deleted"]),
        ("Deleted", ["deleted"]),
        (" `DELETED` ", ["deleted"]),
        ("`a``b`", ["a`B"]),
        ("deleted = 'yes'", []),
        ("not deleted", []),
        ("", []),
    ],
)
def test_the_column_of_deletions_is_found_in_any_case(condition: str, found: list[str]) -> None:
    assert columns_named(condition, ["id", "deleted", "a`B"]) == found
