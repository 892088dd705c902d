"""Streams whose table was created again, or exchanged: the position belongs to another table."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import sqlalchemy as sa
from deltalake import write_deltalake

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.iceberg import iceberg, load_catalog
from tidelog.pipelines.sources.delta import DeltaDataSource, DeltaStreamReader
from tidelog.pipelines.sources.iceberg import IcebergDataSource, IcebergStreamReader
from tidelog.pipelines.sources.sql import SqlDataSource, SqlStreamReader

OTHER = r"the position of the stream belongs to another table \(.*\): .* tidelog pipeline replay NAME --from TIME$"


class DeltaSource:
    """A Delta table in a directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "t"

    def write(self, count: int) -> None:
        """Add versions to the table, and create it if necessary."""
        for number in range(count):
            write_deltalake(self.path, pa.table({"id": [number]}), mode="append")

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def reader(self) -> Any:
        options = {"location": str(self.path), "storageSecrets": "{}", "beginIsVersion": "False", "begin": "null"}
        return DeltaStreamReader(options, DeltaDataSource(options).schema())


class IcebergSource:
    """An Iceberg table in a directory."""

    def __init__(self, directory: Path) -> None:
        uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}"
        self.catalog = {"type": "sql", "uri": uri, "warehouse": warehouse}
        self.batches = 0

    def write(self, count: int) -> None:
        sink = opened(iceberg("lake.rows", catalog=self.catalog), None)
        for number in range(self.batches, self.batches + max(count, 1)):
            sink.write(Rows.numbers(number, number + min(count, 1)), number)
        self.batches += max(count, 1)

    def remove(self) -> None:
        load_catalog(list(self.catalog.items()), "test").drop_table("lake.rows")

    def reader(self) -> Any:
        options = {"table": "lake.rows", "catalogSecrets": json.dumps(list(self.catalog.items())), "begin": "earliest"}
        return IcebergStreamReader(options, IcebergDataSource(options).schema())


@pytest.fixture(params=[DeltaSource, IcebergSource], ids=["delta", "iceberg"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("count", [2, 9], ids=["fewer versions", "more versions"])
@pytest.mark.parametrize("has_id", [False, True], ids=["early position", "position"])
def test_a_table_that_was_created_again_is_not_continued(source: Any, has_id: bool, count: int, once: bool) -> None:
    source.write(5)
    end = source.reader().latestOffset({}, None)
    if not has_id:
        del end["table"]
        assert source.reader().latestOffset(end, None) == end
        source.write(1)
        end = source.reader().latestOffset(end, None)
        assert "table" in end
        del end["table"]
    source.remove()
    source.write(count)
    reader = source.reader()
    if once:
        reader.prepareForTriggerAvailableNow()
    if not has_id and (isinstance(source, IcebergSource) or count == 9):
        following = reader.latestOffset(end, None)
        if isinstance(source, IcebergSource):  # found in the history of the snapshots
            with pytest.raises(PipelineError, match=OTHER):
                reader.partitions(end, following)
        return
    with pytest.raises(PipelineError, match=OTHER):
        reader.latestOffset(end, None)
    if has_id:
        with pytest.raises(PipelineError, match=OTHER):
            source.reader().partitions({}, end)


def test_an_empty_iceberg_table_is_not_the_one_that_had_snapshots(tmp_path: Path) -> None:
    source = IcebergSource(tmp_path)
    source.write(2)
    end = source.reader().latestOffset({}, None)
    del end["table"]
    source.remove()
    source.write(0)
    reader = source.reader()
    with pytest.raises(PipelineError, match=OTHER):
        reader.latestOffset(end, None)
    with pytest.raises(PipelineError, match=OTHER):  # a plan of an early version
        reader.partitions(end, {"snapshot": ""})


@pytest.mark.parametrize("has_table", [False, True])
def test_another_table_or_column_of_a_database_is_not_continued(tmp_path: Path, has_table: bool) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name in ("a", "b"):
            connection.exec_driver_sql(f"create table {name} (id integer primary key, other integer)")
            connection.exec_driver_sql(f"insert into {name} values (1, 5), (2, 6)")
    engine.dispose()

    def reader(table: str, column: str) -> SqlStreamReader:
        options = {
            "secretUrl": url,
            "secretOptions": "{}",
            "table": table,
            "column": column,
            "isTimestamp": "False",
            "delayS": "0",
            "rowsPerBatch": "100",
            "begin": "null",
        }
        return SqlStreamReader(options, SqlDataSource(options).schema())

    end = reader("a", "id").latestOffset({}, None)  # type: ignore[arg-type]
    assert end == {"begin": None, "value": "2", "table": "a.id"}
    if not has_table:  # a position of an early version
        del end["table"]
        assert reader("a", "id").latestOffset(end, None) == end  # type: ignore[arg-type]
        assert len(reader("a", "id").partitions({}, end)) == 1
        return
    for table, column in (("b", "id"), ("a", "other")):
        with pytest.raises(PipelineError, match=rf"^sql {table}: {OTHER}"):
            reader(table, column).latestOffset(end, None)  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match=rf"^sql {table}: {OTHER}"):
            reader(table, column).partitions({}, end)
