"""The columns of an Iceberg table in files that were written before a column got its name."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import json
import pickle

import pyarrow as pa
from pyiceberg.types import LongType

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines import iceberg
from tidelog.pipelines.declarations import TemporaryError
from tidelog.pipelines.sinks.iceberg import load_catalog
from tidelog.pipelines.sources.iceberg import IcebergDataSource, IcebergReader, IcebergStreamReader

NESTED: dict[str, list[Any]] = {
    "id": [1, 2, 3, 4],
    "place": [{"x": 1, "y": "a"}, None, {"x": None, "y": "c"}, {"x": 4, "y": None}],
    "list": [[{"x": 1}, None], None, [], [{"x": 2}]],
    "map": [[("k", {"x": 1})], None, [], [("l", {"x": 2}), ("m", None)]],
}


def rows_of(number: int) -> pa.Table:
    place = pa.struct([("x", pa.int64()), ("y", pa.string())])
    inner = pa.struct([("x", pa.int64())])
    types = pa.schema(
        [("id", pa.int64()), ("place", place), ("list", pa.list_(inner)), ("map", pa.map_(pa.string(), inner))]
    )
    return pa.table({**NESTED, "id": [number + n for n in NESTED["id"]]}, schema=types)


class Lake:
    """One table. `is_foreign`: its rows are written by pyiceberg, so that its files have field ids."""

    def __init__(self, directory: Path, *, is_foreign: bool) -> None:
        warehouse = f"file://{directory}"
        catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": warehouse}
        self.options = {"table": "lake.rows", "catalogSecrets": json.dumps(list(catalog.items())), "begin": "earliest"}
        self.catalog: Any = load_catalog(list(catalog.items()), "test")
        self.sink = opened(iceberg("lake.rows", catalog=catalog), None)
        if is_foreign:
            self.catalog.create_namespace_if_not_exists("lake")
            self.catalog.create_table("lake.rows", schema=rows_of(0).schema)
        self.is_foreign = is_foreign
        self.batch = 0

    def write(self, rows: pa.Table) -> None:
        if self.is_foreign:
            self.table().append(rows)
        else:
            self.sink.write(Rows(rows), self.batch)
        self.batch += 1

    def table(self) -> Any:
        return self.catalog.load_table("lake.rows")

    def read(self) -> list[dict[str, Any]]:
        planned = IcebergReader(self.options, IcebergDataSource(self.options).schema())
        reader = pickle.loads(pickle.dumps(planned))  # Spark sends the reader to its executors
        return [row for part in planned.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    def stored(self) -> list[dict[str, Any]]:
        """Return the rows that were written. pyiceberg writes an empty list of structs in place of a null."""
        empty: list[Any] | None = [] if self.is_foreign else None
        return [
            row | {name: row[name] or (row[name] if row["id"] == 3 else empty) for name in ("list", "map")}
            for row in rows_of(0).to_pylist()
        ]


@pytest.fixture(params=[False, True], ids=["files of the sink", "files with field ids"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made = Lake(tmp_path, is_foreign=request.param)
    made.write(rows_of(0))
    return made


def test_a_renamed_column_keeps_its_values(lake: Lake) -> None:
    assert lake.read() == lake.stored()
    with lake.table().update_schema() as update:
        update.rename_column("id", "number")
        update.rename_column("place.x", "east")
        update.rename_column("list.x", "east")
        update.rename_column("map.value.x", "east")
        update.add_column(("place", "z"), LongType())
    renamed = [
        {
            "number": row["id"],
            "place": row["place"] and {"east": row["place"]["x"], "y": row["place"]["y"], "z": None},
            "list": row["list"] and [each and {"east": each["x"]} for each in row["list"]],
            "map": row["map"] and [(key, each and {"east": each["x"]}) for key, each in row["map"]],
        }
        for row in lake.stored()
    ]
    assert lake.read() == renamed


def test_columns_that_exchange_their_names_keep_their_values(tmp_path: Path) -> None:
    """In files without field ids, a name belongs to the column that got it last, as for every reader of Iceberg."""
    lake = Lake(tmp_path, is_foreign=True)
    lake.write(rows_of(0))
    with lake.table().update_schema() as update:
        update.add_column("other", LongType())
    with lake.table().update_schema() as update:
        update.rename_column("id", "first")
    with lake.table().update_schema() as update:
        update.rename_column("other", "id")
    assert [(row["first"], row["id"]) for row in lake.read()] == [(1, None), (2, None), (3, None), (4, None)]


def test_a_column_that_was_added_again_has_none_of_the_old_values(tmp_path: Path) -> None:
    """A name mapping cannot tell the two columns apart, so this holds for files with field ids."""
    lake = Lake(tmp_path, is_foreign=True)
    lake.write(rows_of(0))
    stream = IcebergStreamReader(lake.options, IcebergDataSource(lake.options).schema())
    with lake.table().update_schema() as update:
        update.delete_column("id")
    with lake.table().update_schema() as update:
        update.add_column("id", LongType())
    assert [row["id"] for row in lake.read()] == [None] * 4
    with pytest.raises(TemporaryError, match="a column was dropped, and another one was added with the same name"):
        stream.partitions({}, stream.latestOffset({}, None))  # type: ignore[arg-type]
