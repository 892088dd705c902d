"""Sinks and sources with an object store and a real Spark: executors take credentials from their environment."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")
pytest.importorskip("moto", reason="needs a server of the S3 protocol")

import pyarrow.dataset as ds

from sinks_harness.object_stores import KEY, REGION, SECRET, Bucket, object_server
from sinks_harness.trials import batch_of, opened
from tidelog.pipelines import delta, file, iceberg, parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bucket(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A new bucket, whose credentials are in the environment of the driver and of the executors, and nowhere else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)  # Spark started before
    with object_server() as server:
        yield server.bucket()


def test_executors_write_and_read_a_bucket(spark: "SparkSession", bucket: Bucket, tmp_path: Path) -> None:
    store, url = bucket.server.options, f"s3://{bucket.name}"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{url}/lake"}
    catalog |= {"s3.endpoint": bucket.server.endpoint, "s3.region": REGION}
    in_delta = delta(f"{url}/sales", partition_by="country", storage_options=store)
    in_iceberg = iceberg("shop.sales", catalog=catalog)
    in_files = parquet(f"{url}/parquet", partition_by="country", storage_options=store)
    in_lines = file(f"{url}/json", format="json", files=1, storage_options=store)
    sales = spark.range(0, 20, numPartitions=2).selectExpr("id", "if(id % 2 = 0, 'FR', 'DE') as country")
    for sink in (in_delta, in_iceberg, in_files, in_lines):
        opened(sink, spark).write(sales, 0)
        opened(sink, spark).write(sales, 0)
    rows = [{"id": number, "country": ["FR", "DE"][number % 2]} for number in range(20)]
    for source in (in_delta, in_iceberg):
        assert _sorted([row.asDict() for row in batch_of(source, spark).collect()]) == _sorted(rows)
    exported = ds.dataset("parquet", filesystem=bucket.objects, format="parquet", partitioning="hive").to_table()
    assert _sorted(exported.to_pylist()) == _sorted(rows)
    [lines] = [name for name in bucket.names("json") if name.endswith(".json") and "_tidelog" not in name]
    text = bucket.objects.open_input_stream(lines).read().decode()
    assert _sorted([json.loads(line) for line in text.splitlines()]) == _sorted(rows)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])
