"""Values that Spark has and Python or a target does not have."""

import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.delta_schema import check_partition_values
from tidelog.pipelines.sinks.file import file
from tidelog.pipelines.sinks.iceberg import iceberg, load_catalog
from tidelog.pipelines.sinks.keyed_rows import DELETED
from tidelog.pipelines.sinks.parquet import parquet
from tidelog.pipelines.sinks.written_files import WrittenFile
from tidelog.pipelines.sources.delta import DeltaDataSource

NOT_UTF8 = pa.array([b"\xff\xfe", b"a", None], pa.binary()).view(pa.string())
DAY_US = 86_400_000_000
COLUMNS = {
    "text": NOT_UTF8,
    "late day": pa.array([3_000_000, 1, 2], pa.int32()).view(pa.date32()),
    "early day": pa.array([-800_000, 1, 2], pa.int32()).view(pa.date32()),
    "late time": pa.array([3_000_000 * DAY_US, 1, 2], pa.timestamp("us", "UTC")),
    "early time": pa.array([-800_000 * DAY_US, 1, 2], pa.timestamp("us")),
}


def write(sink: Any, values: pa.Array) -> None:
    rows = Rows(pa.table({"id": pa.array([1, 2, 3]), "v": values}), tasks=1)
    opened(sink, None).write(rows, 0)  # type: ignore[arg-type]


def raw(values: Any) -> list[Any]:
    """The values as bytes or integers, which Python has."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_date(values.type):
        return list(values.view(pa.int32()).to_pylist())
    return list(values.view(pa.int64() if pa.types.is_timestamp(values.type) else pa.binary()).to_pylist())


@pytest.mark.parametrize("name", COLUMNS)
def test_values_that_python_does_not_have_are_stored(tmp_path: Path, name: str) -> None:
    values = COLUMNS[name]
    write(parquet(str(tmp_path / "p")), values)
    assert raw(ds.dataset(tmp_path / "p", format="parquet").to_table().column("v")) == raw(values)
    write(delta(str(tmp_path / "d")), values)
    actions = pa.table(DeltaTable(tmp_path / "d").get_add_actions(flatten=True))
    [added] = actions.select(["num_records", "null_count.v", "min.id"]).to_pylist()
    assert added == {"num_records": 3, "null_count.v": values.null_count, "min.id": 1}
    assert raw(ds.dataset(DeltaTable(tmp_path / "d").file_uris()).to_table().column("v")) == raw(values)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    write(iceberg("lake.rows", catalog=catalog), values)
    table = load_catalog(list(catalog.items()), "test").load_table("lake.rows")
    [task] = table.scan().plan_files()
    found = ds.dataset(task.file.file_path.removeprefix("file://"), format="parquet").to_table()
    assert raw(found.column("v")) == raw(values)
    assert set(task.file.lower_bounds) == {1}, "the id has a minimum"
    assert task.file.null_value_counts[2] == values.null_count
    assert not [each for each in table.properties if each.startswith("write.metadata")]


def test_lines_are_written_as_bytes(tmp_path: Path) -> None:
    rows = Rows(pa.table({"line": NOT_UTF8}), tasks=1)
    opened(file(str(tmp_path / "f")), None).write(rows, 0)  # type: ignore[arg-type]
    [written] = (tmp_path / "f").glob("*.txt")
    assert written.read_bytes() == b"\xff\xfe\na\n\n"


@pytest.mark.parametrize("name", COLUMNS)
def test_such_values_in_partition_columns(tmp_path: Path, name: str) -> None:
    values = COLUMNS[name]
    names = {
        "text": ["\ufffd\ufffd", "__HIVE_DEFAULT_PARTITION__", "a"],
        "late day": ["10183-09-21", "1970-01-02", "1970-01-03"],
        "early day": ["-0221-09-04", "1970-01-02", "1970-01-03"],
        "late time": ["10183-09-21 00%3A00%3A00.000000", *(f"1970-01-01 00%3A00%3A00.00000{n}" for n in (1, 2))],
        "early time": ["-0221-09-04 00%3A00%3A00.000000", *(f"1970-01-01 00%3A00%3A00.00000{n}" for n in (1, 2))],
    }[name]
    write(parquet(str(tmp_path / "p"), partition_by="v"), values)
    assert sorted(each.name for each in tmp_path.glob("p/v=*")) == sorted(f"v={each}" for each in names)
    sink = delta(str(tmp_path / "d"), partition_by="v")
    if name.startswith("late"):
        with pytest.raises(PipelineError, match="column v is in partition_by and has the value 10183-09-21"):
            write(sink, values)
        assert not list(tmp_path.glob("d/**/*.parquet")), "nothing refers to the files"
    else:
        write(sink, values)
        assert len(DeltaTable(tmp_path / "d").file_uris()) == 3
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    with pytest.raises(PipelineError, match="partitioned by column v, and this column has a text that is not UTF-8"):
        write(iceberg("lake.rows", catalog=catalog, partition_by="v"), values)
    assert not list(tmp_path.glob("lake*/**/*.parquet"))


@pytest.mark.parametrize("name", COLUMNS)
def test_values_that_cannot_be_merged_are_an_error(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake would fail with an error that does not name the column, or make the table unreadable."""
    monkeypatch.setattr("tidelog.pipelines.sinks.keyed_rows.KeyedRows.prepare", lambda self, batch, sink: batch)
    sink = opened(delta(str(tmp_path / "d"), key="id"), None, "update")  # type: ignore[arg-type]
    columns = {"id": [1, 2, 3], "v": COLUMNS[name], DELETED: [False] * 3}
    expected = "a text that is not UTF-8" if name == "text" else "a date or time outside of the years 1 to 9999"
    with pytest.raises(PipelineError, match=f"column v has {expected}, which deltalake cannot merge: replace"):
        sink.write(Rows(pa.table(columns), tasks=1), 0)  # type: ignore[arg-type]
    rows = pa.table({"id": [2, 3], "v": COLUMNS[name].slice(1, 2), DELETED: [False] * 2})
    sink.write(Rows(rows, tasks=1), 1)  # type: ignore[arg-type]
    assert DeltaTable(tmp_path / "d").to_pyarrow_table().num_rows == 2


def test_an_empty_text_in_a_partition_column_is_a_null(tmp_path: Path) -> None:
    """As in Spark, which refuses to read a directory named `v=`."""
    values = pa.array(["", None, "a"])
    write(parquet(str(tmp_path / "p"), partition_by="v"), values)
    assert sorted(each.name for each in tmp_path.glob("p/v=*")) == ["v=__HIVE_DEFAULT_PARTITION__", "v=a"]
    rows = ds.dataset(tmp_path / "p", format="parquet", partitioning="hive").to_table().sort_by("id").to_pylist()
    assert [row["v"] for row in rows] == [None, None, "a"]
    write(delta(str(tmp_path / "d"), partition_by="v"), values)
    assert DeltaTable(tmp_path / "d").to_pyarrow_table().sort_by("id").column("v").to_pylist() == [None, None, "a"]
    assert not (tmp_path / "d" / "v=").exists()


@pytest.mark.parametrize("day", ["+10000-01-01", "-10000-01-01"])
def test_a_day_in_a_partition_must_have_a_year_of_four_digits(tmp_path: Path, day: str) -> None:
    table = DeltaTable.create(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("day", pa.date32())]), partition_by=["day"]
    )
    check_partition_values([WrittenFile("f", 1, 1, ["-0044-03-15"], "", [])], table, "delta")
    with pytest.raises(PipelineError, match=r"column day is in partition_by .* must be in the years -9999 to 9999"):
        check_partition_values([WrittenFile("f", 1, 1, [day], "", [])], table, "delta")


ZERO_TIME = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
"""Go and .NET write this time where they have none."""


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_readers_find_rows_with_years_before_1000(tmp_path: Path, partitioned: bool, zone: str | None) -> None:
    """Readers leave out files by the minima and maxima in the table's log, and read partition values from there."""
    times = [ZERO_TIME, datetime.datetime(200, 5, 5, 1, 2, 3, 4, tzinfo=datetime.UTC), datetime.datetime(2024, 5, 5)]
    times = [each.replace(tzinfo=datetime.UTC if zone else None) for each in times]
    path = str(tmp_path / "d")
    write(delta(path, partition_by="v" if partitioned else ()), pa.array(times, pa.timestamp("us", zone)))
    limit = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC if zone else None)
    for operator, expected in (("<", [1, 2]), (">", [3])):
        found = DeltaTable(path).to_pyarrow_table(filters=[("v", operator, limit)])
        assert sorted(found.column("id").to_pylist()) == expected
        kind = "timestamptz" if zone else "timestamp"
        statement = f"select id from t where v {operator} {kind} '2000-01-01T00:00:00' order by id"
        queried = QueryBuilder().register("t", DeltaTable(path)).execute(statement).read_all()
        assert pa.table(queried).column("id").to_pylist() == expected
    source = DeltaDataSource({"location": path, "storageSecrets": "{}", "begin": "null", "beginIsVersion": "False"})
    reader = source.reader(source.schema())
    read = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]  # type: ignore[union-attr]
    assert sorted(row["v"] for row in read) == times
