"""Times of Parquet's type INT96, as Spark writes them, in years that nanoseconds cannot represent."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from tidelog.pipelines.sources.delta import DeltaDataSource

TIMES = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1600, 1, 1, tzinfo=UTC), None]


def written(path: Path) -> pa.Schema:
    table = pa.table({"at": pa.array(TIMES, pa.timestamp("us", "UTC"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).metadata.schema.column(0).physical_type == "INT96"
    return table.schema


def test_a_delta_table_with_such_times_is_read(tmp_path: Path) -> None:
    tmp_path.joinpath("t").mkdir()
    schema = written(tmp_path / "t/a.parquet")
    table = DeltaTable.create(tmp_path / "t", schema)
    size = (tmp_path / "t/a.parquet").stat().st_size
    added = AddAction("a.parquet", size, {}, 0, True, '{"numRecords": 3}')
    table.create_write_transaction([added], "append", table.schema())
    options = {"location": str(tmp_path / "t"), "storageSecrets": "{}", "begin": "null", "beginIsVersion": "False"}
    source = DeltaDataSource(options)
    stream: Any = source.streamReader(source.schema())
    end = stream.latestOffset({}, None)
    parts = stream.partitions({}, end)
    assert [time for part in parts for rows in stream.read(part) for time in rows.column(0).to_pylist()] == TIMES
