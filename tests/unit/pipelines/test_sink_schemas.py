"""Changes of columns and of nested fields, for sinks that write tables with a schema."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema
from pyspark.sql.pandas.types import from_arrow_type

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.delta_schema import fitting_type
from tidelog.pipelines.sinks.iceberg import iceberg, load_catalog
from tidelog.pipelines.sinks.keyed_rows import DELETED

A, B = pa.field("a", pa.int32()), pa.field("b", pa.string())
WITH_A, WITH_B = pa.struct([A]), pa.struct([A, B])


def rows(begin: int, values: list[Any], kind: pa.DataType) -> Rows:
    columns = {"id": list(range(begin, begin + len(values))), "s": pa.array(values, kind)}
    return Rows(pa.table(columns | {DELETED: [False] * len(values)}), tasks=1)


@pytest.fixture(params=["append", "merge", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Table":
    monkeypatch.setattr("tidelog.pipelines.sinks.keyed_rows.KeyedRows.prepare", lambda self, batch, sink: batch)
    return Table(request.param, tmp_path)


class Table:
    """A table whose only query appends or merges rows with an id and the column `s`."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.path = str(directory / "t")
        self.catalog = {"type": "sql", "uri": f"sqlite:///{directory}/c.db", "warehouse": f"file://{directory}"}
        self.batches = 0

    def write(self, batch: Rows, evolve: bool = True) -> None:
        if self.kind == "iceberg":
            sink = opened(iceberg("lake.rows", catalog=self.catalog, evolve=evolve), None)  # type: ignore[arg-type]
        else:
            key = "id" if self.kind == "merge" else None
            sink = opened(delta(self.path, key=key, evolve=evolve), None, "update" if key else "append")  # type: ignore[arg-type]
        try:
            sink.write(batch if self.kind == "merge" else batch.drop(DELETED), self.batches)  # type: ignore[arg-type]
        finally:
            self.batches += 1

    def values(self) -> list[Any]:
        """The column `s`, in the order of the ids. Two readers must agree."""
        if self.kind == "iceberg":
            found = load_catalog(list(self.catalog.items()), "test").load_table("lake.rows").scan().to_arrow()
            return list(found.sort_by("id").column("s").to_pylist())
        found = DeltaTable(self.path).to_pyarrow_table().sort_by("id").column("s").to_pylist()
        query = QueryBuilder().register("t", DeltaTable(self.path)).execute("select s from t order by id")
        assert pa.table(query.read_all()).column("s").to_pylist() == found
        return list(found)


def test_new_fields_of_structs_become_part_of_the_table(table: Table) -> None:
    table.write(rows(0, [{"a": 1}], WITH_A))
    table.write(rows(1, [{"a": 2, "b": "x"}], WITH_B))
    table.write(rows(2, [{"a": 3}], WITH_A))
    assert table.values() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": None}]


def test_new_fields_of_structs_in_arrays_become_part_of_the_table(table: Table) -> None:
    table.write(rows(0, [[{"a": 1}]], pa.list_(WITH_A)))
    table.write(rows(1, [[{"a": 2, "b": "x"}]], pa.list_(WITH_B)))
    assert table.values() == [[{"a": 1, "b": None}], [{"a": 2, "b": "x"}]]


def test_new_fields_are_an_error_without_evolve(table: Table) -> None:
    table.write(rows(0, [{"a": 1}], WITH_A))
    with pytest.raises(PipelineError, match=r"the table has no column s\.b; (delta|iceberg)\(\.\.\., evolve=True\)"):
        table.write(rows(1, [{"a": 2, "b": "x"}], WITH_B), evolve=False)
    assert table.values() == [{"a": 1}]


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([{"a": "x"}], pa.struct([pa.field("a", pa.string())]), r"column s\.a is int in the table and string in the"),
        (["x"], pa.string(), "column s is struct in the table and string in the rows"),
        ([[{"a": 1}]], pa.list_(WITH_A), "column s is struct in the table and array<struct<a:int>> in the rows"),
        (
            [{"A": 1}],
            pa.struct([pa.field("A", pa.int32())]),
            r"column s\.A of the rows differs only in case from (s\.)?a ",
        ),
    ],
)
def test_other_types_in_structs_are_an_error(table: Table, values: list[Any], kind: pa.DataType, message: str) -> None:
    table.write(rows(0, [{"a": 1}], WITH_A))
    if table.kind == "iceberg" and "differs only in case" not in message:
        message = "the columns of the rows do not fit the table"
    with pytest.raises(PipelineError, match=message):
        table.write(rows(1, values, kind))
    assert table.values() == [{"a": 1}]


def test_a_column_that_differs_only_in_case_is_an_error(tmp_path: Path) -> None:
    sink = opened(delta(str(tmp_path / "t")), None)  # type: ignore[arg-type]
    sink.write(Rows(pa.table({"id": [1]})), 0)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="column ID of the rows differs only in case from id in the table: rename"):
        sink.write(Rows(pa.table({"ID": [1]})), 1)  # type: ignore[arg-type]


def test_fields_that_are_never_null_must_be_in_the_rows(tmp_path: Path) -> None:
    kind = pa.struct([A, B.with_nullable(False)])
    fields = [pa.field("id", pa.int64()), pa.field("n", pa.int64(), False), pa.field("s", kind)]
    DeltaTable.create(tmp_path / "t", pa.schema(fields))
    sink = opened(delta(str(tmp_path / "t")), None)  # type: ignore[arg-type]
    batch = rows(0, [{"a": 1}], WITH_A).drop(DELETED)
    with pytest.raises(PipelineError, match="column n, which must not be null in the table, is not in the rows"):
        sink.write(batch, 0)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"column s\.b, which must not be null in the table, is not in the rows"):
        sink.write(Rows(batch.table.append_column("n", pa.array([1]))), 0)  # type: ignore[arg-type]


def test_structs_in_maps_must_have_the_same_fields(tmp_path: Path) -> None:
    sink = opened(delta(str(tmp_path / "t")), None)  # type: ignore[arg-type]
    batch = rows(0, [[("k", {"a": 1})]], pa.map_(pa.string(), WITH_A)).drop(DELETED)
    sink.write(batch, 0)  # type: ignore[arg-type]
    sink.write(batch, 1)  # type: ignore[arg-type]
    other = rows(1, [[("k", {"a": 1, "b": "x"})]], pa.map_(pa.string(), WITH_B)).drop(DELETED)
    with pytest.raises(
        PipelineError, match=r"column s\.value, a struct in a map, has the fields a in the table and a, b"
    ):
        sink.write(other, 2)  # type: ignore[arg-type]


def test_narrower_types_are_widened_at_every_depth() -> None:
    """Fields keep the order and the names of the rows, because Spark converts structs by the position of fields."""
    kind = pa.struct(
        [
            pa.field("n", pa.int16()),
            pa.field("new", pa.string()),
            pa.field("l", pa.list_(pa.float32())),
            pa.field("m", pa.map_(pa.string(), pa.int32())),
            pa.field("b", pa.struct([pa.field("c", pa.int32())])),
        ]
    )
    stored = pa.struct(
        [
            pa.field("l", pa.list_(pa.float64())),
            pa.field("m", pa.map_(pa.string(), pa.int64())),
            pa.field("n", pa.int64()),
            pa.field("b", pa.struct([pa.field("c", pa.int32()), pa.field("d", pa.int64())])),
        ]
    )
    assert fitting(kind, stored) == "struct<n:bigint,new:string,l:array<double>,m:map<string,bigint>,b:struct<c:int>>"
    wide = pa.struct([pa.field("a", pa.int64())])
    with pytest.raises(PipelineError, match=r"column s\.element\.a is int in the table and bigint in the rows"):
        fitting(pa.list_(wide), pa.list_(WITH_A))
    with pytest.raises(PipelineError, match=r"column s\.value\.a is int in the table and bigint in the rows"):
        fitting(pa.map_(pa.string(), wide), pa.map_(pa.string(), WITH_A))


def fitting(row: pa.DataType, stored: pa.DataType) -> str:
    [column] = Schema.from_arrow(pa.schema([pa.field("s", stored)])).fields
    return fitting_type(from_arrow_type(row), column.type, "s", "delta /t").simpleString()
