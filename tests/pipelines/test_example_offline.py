"""A whole topic in Parquet, a live stream that continues, and a topic filled from both; computed again by DuckDB."""

import gzip
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.client.blocking import Client
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.mirror_cluster import MirrorCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples/pipelines"
PARTITIONS = 3


def module() -> Any:
    spec = importlib.util.spec_from_file_location("offline_example", EXAMPLES / "offline/offline.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def readings() -> list[list[str]]:
    """Lines of series, time and value."""
    lines = gzip.decompress((EXAMPLES / "data/nab_series.csv.gz").read_bytes()).decode().splitlines()
    return [line.split(",") for line in lines[1:6001]]


def write(bootstrap: str, topic: str, rows: list[list[str]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "partitioner": "murmur2"})
    for number, (series, time, value) in enumerate(rows):
        producer.produce(topic, value, series, timestamp=1_400_000_000_000 + number, headers=[("time", time.encode())])
    assert producer.flush(60) == 0


def test_loaded_and_live_files_have_each_record_once(
    bootstrap: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    example = module()
    monkeypatch.setattr(example, "RECORDS_PER_TASK", 900)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = ("offline-readings", "offline-again")
    topics = [NewTopic(name, PARTITIONS, config={"retention.ms": "-1"}) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(30)
    rows = readings()
    write(bootstrap, names[0], rows[:4000])
    lake = str(tmp_path)
    example.load(spark, bootstrap, names[0], lake)
    write(bootstrap, names[0], rows[4000:5000])
    example.follow(spark, bootstrap, names[0], lake)
    write(bootstrap, names[0], rows[5000:])
    example.follow(spark, bootstrap, names[0], lake)

    database = duckdb.connect()
    files = f"read_parquet(['{lake}/loaded/*.parquet', '{lake}/live/*.parquet'])"
    assert database.execute(f"select count(*) from read_parquet('{lake}/loaded/*.parquet')").fetchone() == (4000,)
    repeated = f'select partition, "offset" from {files} group by all having count(*) > 1'
    assert database.execute(repeated).fetchall() == []
    stored = database.execute(
        f"select decode(key), count(*), sum(decode(value)::double) from {files} group by all order by all"
    ).fetchall()
    database.execute("create table readings (series text, time text, value double)")
    database.executemany("insert into readings values (?, ?, ?)", rows)
    assert [(key, count, pytest.approx(total)) for key, count, total in stored] == database.execute(
        "select series, count(*), sum(value) from readings group by all order by all"
    ).fetchall()

    for _ in range(2):  # the second time it writes nothing
        example.fill(spark, bootstrap, names[1], lake)
    with Client(bootstrap) as client:
        cluster = MirrorCluster(client)
        assert records(cluster, names[1]) == records(cluster, names[0])


def records(cluster: MirrorCluster, topic: str) -> list[list[tuple[object, ...]]]:
    found = []
    for number in range(PARTITIONS):
        tp = TopicPartition(topic, number)
        part = cluster.records(tp, 0, cluster.ends([tp])[tp])
        found.append([(r.key, r.value, r.timestamp, list(r.headers)) for r in part])
    return found
