"""Filters, consumer groups and progress of reads in a real Spark, and values in all formats through a topic."""

import json as jsonlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Consumer, Producer
from pyspark.errors.exceptions.captured import StreamingQueryException
from spark_topic import Topic

from pyspark_tidelog.progress import Lag, LagTracker, lag_listener

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

QUERY_LIMIT_S = 120
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def topic(bootstrap: str) -> Topic:
    return Topic(bootstrap)


@pytest.fixture
def pushdown(spark: "SparkSession") -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def read(spark: "SparkSession", topic: Topic, **options: Any) -> "DataFrame":
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap)
    return reader.options(subscribe=topic.name, maxRecordsPerPartition=10, **options).load()


def read_tasks_and_values(frame: "DataFrame") -> tuple[int, list[int]]:
    """The number of tasks that read the topic, each at most 10 offsets, and the values. Without offsets to read, Spark
    runs one task.
    """
    rows = frame.selectExpr("cast(value as string)")
    return rows.rdd.getNumPartitions(), sorted(int(row[0]) for row in rows.collect())


@pytest.mark.usefixtures("pushdown")
def test_filters_limit_what_is_read(spark: "SparkSession", topic: Topic) -> None:
    """Value n has offset n // 2 of partition n % 2. Times go backwards in the second half."""
    producer = Producer({"bootstrap.servers": topic.bootstrap})
    times = [1_000_000 + n if n < 50 else 1_000_099 - n for n in range(100)]
    for n, time_ms in enumerate(times):
        producer.produce(topic.name, value=str(n), partition=n % 2, timestamp=time_ms)
    assert producer.flush(30) == 0

    def moment(ms: int) -> str:
        return f"timestamp_millis({ms})"

    cases: list[tuple[str, int, list[int]]] = [
        ("true", 10, list(range(100))),
        ("partition = 1", 5, list(range(1, 100, 2))),
        ("partition in (1, 7) and offset >= 40", 1, list(range(81, 100, 2))),
        ("offset > 9 and offset <= 20 and topic is not null", 4, list(range(20, 42))),
        ("partition = 3", 1, []),
        (f"timestamp >= {moment(1_000_040)}", 6, [n for n in range(100) if times[n] >= 1_000_040]),
        (f"timestamp < {moment(1_000_010)}", 10, [n for n in range(100) if times[n] < 1_000_010]),
        (f"timestamp > {moment(2_000_000)}", 1, []),
        ("partition = 0 or offset = 1", 10, [0, 2, 3, *range(4, 100, 2)]),
    ]
    for condition, tasks, values in cases:
        assert read_tasks_and_values(read(spark, topic, pushFilters=True).where(condition)) == (tasks, values), (
            condition
        )
    # Without the option, one DataFrame can be used for several queries.
    frame = read(spark, topic)
    assert read_tasks_and_values(frame.where("partition = 1")) == (10, list(range(1, 100, 2)))
    assert frame.count() == 100
    spark.conf.set(PUSHDOWN, "false")
    frame = read(spark, topic, pushFilters=True).where("partition = 1")
    assert read_tasks_and_values(frame) == (10, list(range(1, 100, 2)))


def start(spark: "SparkSession", topic: Topic, checkpoint: Path, name: str, **options: Any) -> "StreamingQuery":
    reader = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap)
    frame = reader.options(subscribe=topic.name, startingOffsets="earliest", **options).load()
    writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def lag_of_group(topic: Topic, group: str) -> list[tuple[int, int, int]]:
    """Partition, committed offset and lag, as the command line shows them."""
    command = [sys.executable, "-m", "tidelog", "group", "lag", group, "--bootstrap", topic.bootstrap, "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ, check=False)
    assert shown.returncode == 0, shown.stderr
    return [(row["partition"], row["committed"], row["lag"]) for row in jsonlib.loads(shown.stdout)]


def test_a_query_shows_its_offsets_and_lag(spark: "SparkSession", topic: Topic, tmp_path: Path) -> None:
    topic.send(range(100))
    lags: list[tuple[str | None, Lag]] = []
    listener = lag_listener(lambda _, name, lag: lags.append((name, lag)))
    spark.streams.addListener(listener)
    group = f"group-{topic.name}"
    try:
        query = start(spark, topic, tmp_path, "offsets", groupId=group, maxOffsetsPerTrigger=60)
        assert query.awaitTermination(QUERY_LIMIT_S)
        deadline = time.monotonic() + QUERY_LIMIT_S
        while len(lags) < 2 and time.monotonic() < deadline:  # Spark calls listeners some time after the query's end
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
    tracker = LagTracker()
    records = [lag.records for progress in query.recentProgress if (lag := tracker.add(progress))]
    assert records[:2] == [40, 0]
    assert [(name, lag.records) for name, lag in lags] == [("offsets", 40), ("offsets", 0)]
    # Also the last micro-batch is committed, although Spark does not call the source's commit for it.
    assert lag_of_group(topic, group) == [(0, 50, 0), (1, 50, 0)]
    topic.send(range(100, 103))
    assert lag_of_group(topic, group) == [(0, 50, 2), (1, 50, 1)]


def test_a_group_with_members_is_refused(spark: "SparkSession", topic: Topic, tmp_path: Path) -> None:
    group = f"group-{topic.name}"
    topic.send(range(4))
    consumer = Consumer({"bootstrap.servers": topic.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic.name])
    assert consumer.poll(30) is not None
    try:
        query = start(spark, topic, tmp_path, "refused", groupId=group)
        with pytest.raises(StreamingQueryException, match=f"option groupId: the group {group} has 1 member"):
            query.awaitTermination(QUERY_LIMIT_S)
    finally:
        consumer.close()
