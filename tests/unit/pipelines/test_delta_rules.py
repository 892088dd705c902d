"""Rules of a Delta table: values that must not be null, conditions, and columns that the writer must compute."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.keyed_rows import DELETED

LONG = pa.int64()
TEXT = pa.string()
WITH_CITY = pa.struct([pa.field("city", TEXT)])
WITH_PLACE = pa.struct([pa.field("place", WITH_CITY)])
REQUIRED_CITY = pa.field("city", TEXT, nullable=False)
REQUIRED_STRUCT = pa.struct([REQUIRED_CITY])
REQUIRED_ELEMENT = pa.field("element", LONG, nullable=False)


@pytest.fixture(autouse=True)
def _rows_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.pipelines.sinks.keyed_rows.KeyedRows.prepare", lambda self, batch, sink: batch)


def write(path: str, columns: dict[str, Any], mode: str = "append", batch: int = 0) -> None:
    """Append rows, or with the mode `update` merge them by `id`."""
    table = pa.table(columns)
    if mode == "update":
        table = table.append_column(DELETED, pa.array([False] * table.num_rows))
    sink = opened(delta(path, key="id" if mode == "update" else None), None, mode)  # type: ignore[arg-type]
    sink.write(Rows(table, tasks=1), batch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "kind", "accepted", "refused", "name"),
    [
        (pa.field("v", TEXT, nullable=False), TEXT, "a", None, "v"),
        (pa.field("v", REQUIRED_STRUCT), WITH_CITY, None, {"city": None}, "v.city"),
        (
            pa.field("v", pa.struct([pa.field("place", REQUIRED_STRUCT)])),
            WITH_PLACE,
            {"place": None},
            {"place": {"city": None}},
            "v.place.city",
        ),
        (pa.field("v", pa.list_(REQUIRED_STRUCT)), pa.list_(WITH_CITY), [None, {"city": "a"}], [{}], "v.element.city"),
        (pa.field("v", pa.list_(REQUIRED_ELEMENT)), pa.list_(LONG), [], [1, None], "v.element"),
        (
            pa.field("v", pa.map_(TEXT, pa.field("value", LONG, nullable=False))),
            pa.map_(TEXT, LONG),
            [("a", 1)],
            [("a", 1), ("b", None)],
            "v.value",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_null_is_refused_where_the_table_has_none(
    tmp_path: Path, column: pa.Field, kind: pa.DataType, accepted: Any, refused: Any, name: str, mode: str
) -> None:
    path = str(tmp_path / "t")
    DeltaTable.create(path, Schema.from_arrow(pa.schema([pa.field("id", LONG), column])))
    # A row that is left out of the array stands before and after the others, so that the arrays are slices.
    values = pa.array([refused, accepted, accepted, refused], kind)[1:3]
    write(path, {"id": pa.array([1, 2], LONG), "v": values}, mode)
    with pytest.raises(PipelineError, match=rf"^delta {path}: column {name} is null in a row, but must not be null"):
        write(path, {"id": pa.array([3, 4], LONG), "v": pa.array([accepted, refused], kind)}, mode, batch=1)
    stored = DeltaTable(path).to_pyarrow_table(columns=["id"])
    assert sorted(stored.column("id").to_pylist()) == [1, 2]
    assert len(list((tmp_path / "t").glob("**/*.parquet"))) == 1, "the files of the failed task are removed"


RULES = {
    "constraint": ([Field("id", "long"), Field("v", "long")], r"the table has the constraint small \(v < 5\)"),
    "invariant": (
        [
            Field("id", "long"),
            Field("v", "long", metadata={"delta.invariants": json.dumps({"expression": {"expression": "v < 5"}})}),
        ],
        "column v has the invariant v < 5",
    ),
    "generated": (
        [Field("id", "long"), Field("v", "long", metadata={"delta.generationExpression": "id + 1"})],
        r"the table computes column v as id \+ 1",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_that_only_a_merge_follows(tmp_path: Path, rule: str) -> None:
    path = str(tmp_path / "t")
    fields, message = RULES[rule]
    DeltaTable.create(path, Schema(fields))
    if rule == "constraint":
        DeltaTable(path).alter.add_constraint({"small": "v < 5"})
    for mode in ("append", "complete"):
        with pytest.raises(PipelineError, match=f"^delta {path}: {message}, which is followed only in a merge: use"):
            write(path, {"id": pa.array([1], LONG), "v": pa.array([2], LONG)}, mode)
    write(path, {"id": pa.array([1], LONG), "v": pa.array([2], LONG)}, "update")
    with pytest.raises(PipelineError, match=f"^delta {path}: rows do not follow a rule of the table, .* 1 rows failed"):
        write(path, {"id": pa.array([1], LONG), "v": pa.array([7], LONG)}, "update", batch=1)
    assert DeltaTable(path).to_pyarrow_table().to_pylist() == [{"id": 1, "v": 2}]


@pytest.mark.parametrize("mode", ["append", "complete", "update"])
def test_columns_that_the_sink_cannot_compute(tmp_path: Path, mode: str) -> None:
    for name, rules, message in (
        ("identity", {"delta.identity.start": 1, "delta.identity.step": 1}, "column v is an identity column"),
        ("default", {"CURRENT_DEFAULT": "5"}, "column v has the default 5, .*: add the column to the rows"),
    ):
        path = str(tmp_path / name)
        DeltaTable.create(path, Schema([Field("id", "long"), Field("v", "long", metadata=rules)]))
        with pytest.raises(PipelineError, match=f"^delta {path}: {message}"):
            write(path, {"id": pa.array([1], LONG)}, mode)
    write(path, {"id": pa.array([1], LONG), "v": pa.array([2], LONG)}, mode)
    assert DeltaTable(path).to_pyarrow_table().to_pylist() == [{"id": 1, "v": 2}]


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_table_with_mapped_columns_is_refused(tmp_path: Path, mode: str) -> None:
    """In its files, the columns have other names: readers would find only nulls in the new files."""
    path = str(tmp_path / "t")
    schema = Schema([Field("id", "long")])
    DeltaTable.create(path, schema, configuration={"delta.columnMapping.mode": "name"})
    with pytest.raises(PipelineError, match=f"^delta {path}: the table uses column mapping, which this sink cannot"):
        write(path, {"id": pa.array([1], LONG)}, mode)
