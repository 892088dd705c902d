"""Declared pipelines in a real Spark, against a live broker."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tidelog.pipelines import PipelineError, pipeline, topic
from tidelog.pipelines.running import run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LIMIT_S = 120


@dataclass(frozen=True)
class Pairs:
    """A format of `product:quantity`."""

    @property
    def schema(self) -> StructType:
        return StructType([StructField("product", StringType()), StructField("quantity", IntegerType())])

    def decode(self, value: "Column") -> "Column":
        parts = f.split(value.cast("string"), ":")
        record = f.struct(
            parts[0].alias("product"), f.try_to_number(parts[1], f.lit("999999")).cast("int").alias("quantity")
        )
        is_good = value.isNotNull() & (f.size(parts) == 2) & record["quantity"].isNotNull()
        return f.struct(
            f.when(is_good, record).alias("record"),
            f.when(~f.coalesce(is_good, f.lit(False)), f.lit("not product:quantity")).alias("error"),
        )

    def encode(self, record: "Column") -> "Column":
        return f.to_json(record).cast("binary")


class Log:
    """Topics of one test, with two partitions each."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.suffix = uuid.uuid4().hex[:8]

    def create(self, name: str, partitions: int = 2) -> str:
        full_name = f"{name}-{self.suffix}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(full_name, partitions)])[full_name].result(30)
        return full_name

    def send(self, name: str, *values: str | None, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number, value in enumerate(values):
            producer.produce(name, value=value, partition=number % 2, **more)
        assert producer.flush(30) == 0

    def records(self, name: str) -> list[Any]:
        """Return all committed records of a topic."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "test", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        parts = consumer.list_topics(name, timeout=30).topics[name].partitions
        consumer.assign([TopicPartition(name, number, 0) for number in parts])
        messages: list[Any] = []
        at_end: list[int] = []
        while len(at_end) < len(parts):
            message = consumer.poll(30)
            assert message is not None, f"no answer from topic {name}"
            if message.error():
                at_end.append(message.partition())
            else:
                messages.append(message)
        consumer.close()
        return messages


@pytest.fixture
def log(bootstrap: str) -> Log:
    return Log(bootstrap)


def test_a_pipeline_continues_where_it_ended_and_puts_unparsable_records_aside(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    sales, totals, dead = log.create("sales"), f"totals-{log.suffix}", f"dead-{log.suffix}"

    @pipeline(
        source=topic(sales, value=Pairs()),
        sink=topic(totals, value=Pairs(), key="product", partitions=2),
        output_mode="update",
        dead_letters=dead,
    )
    def totals_by_product(sales: "DataFrame") -> "DataFrame":
        return sales.groupBy("product").agg(f.sum("quantity").alias("units"))

    log.send(sales, "tea:2", "tea:3", "coffee:1")
    first = run(totals_by_product, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)
    assert log.records(dead) == []
    log.send(sales, "tea:x", "tea:5", "cocoa", None, headers=[("trace", b"7")])
    second = run(totals_by_product, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)

    written = {(r.key(), r.value()) for r in log.records(totals)}
    assert written == {(b"tea", b'{"units":5}'), (b"coffee", b'{"units":1}'), (b"tea", b'{"units":10}')}
    letters = sorted(log.records(dead), key=lambda r: (r.value() or b"", r.offset()))
    assert [letter.value() for letter in letters] == [None, b"cocoa", b"tea:x"]
    headers = dict(letters[2].headers())
    assert {name: headers[name] for name in ("reason", "topic", "pipeline", "trace")} == {
        "reason": b"not product:quantity",
        "topic": sales.encode(),
        "pipeline": b"totals_by_product",
        "trace": b"7",
    }
    assert (headers["partition"], headers["offset"]) == (b"0", b"2")
    assert abs(int(headers["timestamp"]) - letters[2].timestamp()[1]) < 60_000
    counts = [each["totals_by_product"].queries[0] for each in (first, second)]
    assert [(count.rows, count.dead_letters) for count in counts] == [(3, 0), (4, 3)]


def test_without_a_dead_letter_topic_an_unparsable_record_stops_the_pipeline(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    sales, copies = log.create("sales"), log.create("copies")
    log.send(sales, "tea:2", "tea:3", "tea:4", "broken")

    @pipeline(source=topic(sales, value=Pairs()), sink=topic(copies, value=Pairs()))
    def copy(sales: "DataFrame") -> "DataFrame":
        return sales.groupBy().count() if sales.sparkSession is None else sales.select("product")

    with pytest.raises(PipelineError) as failure:
        run(copy, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)
    assert str(failure.value) == (
        f"pipeline copy: the record at {sales} partition 1 offset 1 cannot be parsed: not product:quantity. Set"
        " dead_letters='TOPIC' in the declaration to put such records aside"
    )


def test_two_sinks_and_two_pipelines_share_a_session(spark: "SparkSession", log: Log, tmp_path: Path) -> None:
    sales, small, large = log.create("sales"), log.create("small"), log.create("large")

    @pipeline(
        source={"orders": topic(sales, value=Pairs())},
        sink={"small": topic(small, value=Pairs()), "large": topic(large, value=Pairs(), key="product")},
        settings={"spark.sql.shuffle.partitions": "1"},
    )
    def divide(orders: "DataFrame") -> dict[str, "DataFrame"]:
        fields = orders.select("product", "quantity")
        return {"small": fields.where("quantity < 3"), "large": fields.where("quantity >= 3")}

    @pipeline(source=topic(sales), sink=topic("nowhere"))
    def fails(records: "DataFrame") -> "DataFrame":
        return records.select("value")

    log.send(sales, "tea:2", "tea:3", "tea:4")
    with pytest.raises(PipelineError, match="pipeline fails: topic nowhere does not exist: create it"):
        run([fails, divide], bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)
    assert [r.value() for r in log.records(small)] == [b'{"product":"tea","quantity":2}']
    assert sorted((r.key(), r.value()) for r in log.records(large)) == [
        (b"tea", b'{"quantity":3}'),
        (b"tea", b'{"quantity":4}'),
    ]
