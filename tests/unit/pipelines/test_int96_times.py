"""Times of Parquet's type INT96, as Spark writes them, in years that nanoseconds cannot represent."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines import iceberg
from tidelog.pipelines.sources.delta import DeltaDataSource
from tidelog.pipelines.sources.iceberg import IcebergDataSource

TIMES = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1600, 1, 1, tzinfo=UTC), None]


def written(path: Path) -> pa.Schema:
    field = pa.field("at", pa.timestamp("us", "UTC"), metadata={"PARQUET:field_id": "1"})
    table = pa.Table.from_arrays([pa.array(TIMES, field.type)], schema=pa.schema([field]))
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).metadata.schema.column(0).physical_type == "INT96"
    return table.schema


def times_of(reader: Any) -> list[datetime | None]:
    return [time for part in reader.partitions() for rows in reader.read(part) for time in rows.column(0).to_pylist()]


def test_a_delta_table_with_such_times_is_read(tmp_path: Path) -> None:
    tmp_path.joinpath("t").mkdir()
    schema = written(tmp_path / "t/a.parquet")
    table = DeltaTable.create(tmp_path / "t", schema)
    size = (tmp_path / "t/a.parquet").stat().st_size
    added = AddAction("a.parquet", size, {}, 0, True, '{"numRecords": 3}')
    table.create_write_transaction([added], "append", table.schema())
    options = {"location": str(tmp_path / "t"), "storageSecrets": "{}", "begin": "null", "beginIsVersion": "False"}
    source = DeltaDataSource(options)
    reader: Any = source.reader(source.schema())
    assert times_of(reader) == TIMES


def test_an_iceberg_table_with_such_times_is_read(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    times = pa.table({"at": pa.array(TIMES, pa.timestamp("us", "UTC"))})
    opened(iceberg("lake.rows", catalog=catalog), cast(Any, None)).write(cast(Any, Rows(times, 1)), 0)
    [path] = tmp_path.glob("**/*.parquet")
    written(path)  # as if Spark had written the file
    pairs = json.dumps(sorted(catalog.items()))
    source = IcebergDataSource({"table": "lake.rows", "catalogSecrets": pairs, "begin": "earliest"})
    reader: Any = source.reader(source.schema())
    assert times_of(reader) == TIMES
