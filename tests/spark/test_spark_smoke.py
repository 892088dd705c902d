"""The source and the sink in a real Spark, against a live broker: our own, or the one that `--against` names."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Producer
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.captured import StreamingQueryException
from spark_topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
QUERY_LIMIT_S = 120


@pytest.fixture
def topic(bootstrap: str) -> Topic:
    return Topic(bootstrap)


def read(spark: "SparkSession", topic: Topic, **options: object) -> "DataFrame":
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap)
    return reader.options(**{"subscribe": topic.name, **options}).load()  # type: ignore[arg-type]


def values(frame: "DataFrame") -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr("cast(value as string)").collect())


def offsets(topic: Topic, first: int, second: int) -> str:
    return json.dumps({topic.name: {"0": first, "1": second}})


class Stream:
    """A streaming query from a topic to Parquet files, with its checkpoint."""

    def __init__(self, spark: "SparkSession", topic: Topic, folder: Path) -> None:
        self.spark, self.topic, self.folder = spark, topic, folder

    def start(self, trigger: dict[str, Any], **options: object) -> "StreamingQuery":
        reader = self.spark.readStream.format("tidelog").option("kafka.bootstrap.servers", self.topic.bootstrap)
        frame = reader.options(**{"subscribe": self.topic.name, **options}).load()  # type: ignore[arg-type]
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.option("path", str(self.folder / "files")).trigger(**trigger).start()

    def run(self, **options: object) -> "StreamingQuery":
        """To the end of what is there."""
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(QUERY_LIMIT_S)
        return query

    def values(self) -> list[int]:
        """Of every file that was written, committed or not."""
        return values(self.spark.read.schema("value binary").parquet(str(self.folder / "files")))


@pytest.fixture
def stream(spark: "SparkSession", topic: Topic, tmp_path: Path) -> Stream:
    return Stream(spark, topic, tmp_path)


def test_a_batch_read_has_the_columns_of_sparks_kafka_source(spark: "SparkSession", topic: Topic) -> None:
    producer = Producer({"bootstrap.servers": topic.bootstrap})
    headers = [("trace", b"\x00\xff"), ("trace", None), ("empty", b"")]
    producer.produce(topic.name, key="k", value="v", partition=1, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(topic.name, value=None, partition=1, timestamp=1_700_000_000_124)
    assert producer.flush(30) == 0
    plain = read(spark, topic)
    assert plain.columns == COLUMNS
    first, second = read(spark, topic, includeHeaders=True).orderBy("offset").collect()
    assert (bytes(first["key"]), bytes(first["value"]), second["key"], second["value"]) == (b"k", b"v", None, None)
    assert [(h["key"], h["value"] and bytes(h["value"])) for h in first["headers"]] == headers
    assert second["headers"] is None
    assert [first[name] for name in ("topic", "partition", "offset", "timestampType")] == [topic.name, 1, 0, 0]
    [[milliseconds]] = plain.where("offset = 0").selectExpr("unix_millis(timestamp)").collect()
    assert milliseconds == 1_700_000_000_123


def test_bounds_codecs_and_splits(spark: "SparkSession", topic: Topic) -> None:
    for i, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        topic.send(range(100 * i, 100 * i + 100), codec, timestamp=1_000_000 + i)
    assert values(read(spark, topic)) == list(range(500))
    some = read(spark, topic, startingOffsets=offsets(topic, 10, -2), endingOffsets=offsets(topic, 20, 5))
    assert values(some) == sorted([*range(20, 40, 2), *range(1, 11, 2)])
    later = read(spark, topic, startingTimestamp=1_000_003, endingTimestamp=1_000_004, minPartitions=5)
    assert values(later) == list(range(300, 400))
    assert later.rdd.getNumPartitions() >= 5
    joined = read(spark, topic, maxPartitions=1)
    assert joined.rdd.getNumPartitions() == 1
    rows = [(row["partition"], row["offset"]) for row in joined.collect()]
    assert rows == [(partition, offset) for partition in range(2) for offset in range(250)]
    narrow = spark.read.schema("offset long, value binary").format("tidelog")
    narrow = narrow.option("kafka.bootstrap.servers", topic.bootstrap).option("subscribePattern", topic.name)
    assert narrow.load().agg({"offset": "sum"}).collect()[0][0] == 2 * sum(range(250))


def test_a_stream_goes_on_where_it_stopped(stream: Stream, topic: Topic) -> None:
    topic.send(range(100))
    query = stream.start({"processingTime": "0 seconds"}, startingOffsets="earliest", maxPartitions=1)
    query.processAllAvailable()
    for first in range(100, 140, 20):
        topic.send(range(first, first + 20))
        query.processAllAvailable()
        assert stream.values() == list(range(first + 20))
    query.stop()
    topic.send(range(140, 200))
    query = stream.run(startingOffsets="earliest")
    assert stream.values() == list(range(200))
    assert query.lastProgress["numInputRows"] == 60
    end = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert (end[topic.name], set(end)) == ({"0": 100, "1": 100}, {topic.name, "@ids"})
    assert set(end["@ids"]) == {topic.name}


def test_latest_is_where_the_query_began_even_if_its_first_batch_is_replayed(stream: Stream, topic: Topic) -> None:
    """As after a crash between the first entry of the offset log and its commit."""
    topic.send(range(50))
    query = stream.start({"processingTime": "0 seconds"})
    query.processAllAvailable()
    query.stop()
    topic.send(range(50, 90))
    shutil.rmtree(stream.folder / "checkpoint" / "commits")
    stream.run()
    assert stream.values() == list(range(50, 90))


def test_available_now_in_limited_batches(stream: Stream, topic: Topic) -> None:
    topic.send(range(100))
    query = stream.run(startingOffsets="earliest", maxOffsetsPerTrigger=30)
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(rows) == 100
    assert max(rows) <= 32
    assert stream.values() == list(range(100))


def test_what_is_written_is_what_other_clients_read(spark: "SparkSession", topic: Topic) -> None:
    rows = spark.range(1000).selectExpr(
        "if(id % 10 = 0, null, cast(id as string)) as key",
        "cast(concat('value ', id) as binary) as value",
        "if(id % 2 = 0, array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))), null) as headers",
    )
    writer = rows.write.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap).option("topic", topic.name)
    writer.option("kafka.compression.type", "lz4").option("kafka.batch.size", "2000").mode("append").save()
    messages = topic.received(1000)
    assert sorted(m.value() for m in messages) == sorted(b"value %d" % n for n in range(1000))
    for message in messages:
        n = int(message.value().split()[1])
        assert message.key() == (None if n % 10 == 0 else b"%d" % n)
        assert message.headers() == ([("n", b"%d" % n)] if n % 2 == 0 else None)
    assert {message.partition() for message in messages if message.key() is None} == {0, 1}


def test_keys_go_where_java_puts_them(spark: "SparkSession", topic: Topic) -> None:
    """As librdkafka does with Java's partitioner."""
    keys = [b"key %d" % n for n in range(100)]
    producer = Producer({"bootstrap.servers": topic.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic.name, key=key, value="other")
    assert producer.flush(30) == 0
    rows = spark.range(100).selectExpr("concat('key ', id) as key", "'ours' as value")
    writer = rows.write.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap).option("topic", topic.name)
    writer.mode("append").save()
    messages = topic.received(200)
    places = {who: {m.key(): m.partition() for m in messages if m.value() == who} for who in (b"ours", b"other")}
    assert places[b"ours"] == places[b"other"]
    assert sorted(places[b"ours"]) == sorted(keys)


def test_a_stream_into_a_topic(spark: "SparkSession", topic: Topic, tmp_path: Path) -> None:
    target = Topic(topic.bootstrap)
    topic.send(range(200))
    source = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap)
    frame = source.option("subscribe", topic.name).option("startingOffsets", "earliest").load()
    chosen = frame.selectExpr("value", "partition", f"'{target.name}' as topic")
    sink = chosen.writeStream.format("tidelog").option("kafka.bootstrap.servers", topic.bootstrap)
    query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_LIMIT_S)
    assert {(int(m.value()), m.partition()) for m in target.received(200)} == {(n, n % 2) for n in range(200)}


def test_what_is_wrong_is_said(spark: "SparkSession", topic: Topic, stream: Stream) -> None:
    with pytest.raises(PySparkException, match="option subcribe is not known to format tidelog"):
        read(spark, topic, subcribe="x").collect()
    with pytest.raises(PySparkException, match="topic 'no-such-topic'"):
        read(spark, topic, subscribe="no-such-topic").collect()
    with pytest.raises(PySparkException, match=f"{topic.name}-1: the log ends at 0, but reading starts at 5"):
        read(spark, topic, startingOffsets=offsets(topic, 0, 5)).collect()
    with pytest.raises(AnalysisException, match="column value must be binary or string, not bigint"):
        spark.range(1).selectExpr("id as value").write.format("tidelog").options(
            **{"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name}
        ).mode("append").save()
    with pytest.raises(
        PySparkException, match=f"column partition has the value 7; topic {topic.name} has 2 partitions"
    ):
        spark.range(1).selectExpr("7 as partition", "'v' as value").write.format("tidelog").options(
            **{"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name}
        ).mode("append").save()
    query = stream.start({"availableNow": True}, endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="endingOffsets has no meaning in a streaming query"):
        query.awaitTermination(QUERY_LIMIT_S)
