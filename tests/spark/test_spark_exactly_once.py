"""The exactly-once sink in a real Spark, and rounds of kills."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import AnalysisException, PySparkException

from spark_rounds_harness.checker import NotExactlyOnce, check
from spark_rounds_harness.rounds import Life
from spark_rounds_harness.sinks import Target, read_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

QUERY_LIMIT_S = 240
ROUNDS = 2


class Copy:
    """A query that copies a topic of three partitions to another one."""

    def __init__(self, spark: "SparkSession", bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._checkpoint = folder / "checkpoint"
        self._source = f"{folder.name}-in"
        self.count = 0
        self.target = Target(bootstrap, f"{folder.name}-out", folder)
        topics = [NewTopic(self._source, 3), NewTopic(self.target.name, 2)]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics(topics).values():
            created.result(30)

    def add_records(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for number in range(self.count, self.count + count):
            producer.produce(self._source, str(number), partition=number % 2)  # partition 2 remains empty
        assert producer.flush(60) == 0
        self.count += count

    def run(self, **options: object) -> "StreamingQuery":
        """Copy the records that there are, in micro-batches of at most 200."""
        options = {"kafka.bootstrap.servers": self._bootstrap, "topic": self.target.name} | options
        frame = (
            self._spark.readStream.format("tidelog")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 200)
            .load()
        )
        writer = frame.select("value").writeStream.format("tidelog").options(**options)  # type: ignore[arg-type]
        writer = writer.option("exactlyOnce", "true").option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_LIMIT_S)
        return query

    def forget_commits(self, first: int) -> None:
        """Remove the entries about finished micro-batches from the checkpoint, from number `first` on, as if the driver
        had died before it wrote them.
        """
        for path in (self._checkpoint / "commits").iterdir():
            if (number := path.name.strip(".").split(".")[0]).isdecimal() and int(number) >= first:
                path.unlink()


@pytest.fixture
def copy(spark: "SparkSession", bootstrap: str, tmp_path: Path) -> Copy:
    return Copy(spark, bootstrap, tmp_path)


def test_a_replayed_micro_batch_is_not_written_again(copy: Copy) -> None:
    copy.add_records(400)
    query = copy.run()
    assert [progress["numInputRows"] for progress in query.recentProgress] == [200, 200]
    check(read_topic(copy.target), copy.count)
    copy.forget_commits(1)
    copy.add_records(100)
    copy.run()
    check(read_topic(copy.target), copy.count)


def test_a_query_with_a_new_checkpoint_writes_everything_again(copy: Copy, tmp_path: Path) -> None:
    copy.add_records(100)
    copy.run()
    shutil.rmtree(tmp_path / "checkpoint")
    copy.run()
    with pytest.raises(NotExactlyOnce, match="of 100 records: 100 written more than once"):
        check(read_topic(copy.target), copy.count)


def write(frame: "DataFrame", copy: Copy, batch: int, **options: object) -> None:
    named = {"kafka.bootstrap.servers": copy.target.bootstrap, "topic": copy.target.name, "exactlyOnce": "true"}
    named |= {"exactlyOnceId": copy.target.name, "exactlyOnceBatch": str(batch)}
    named |= {name.replace("__", "."): str(value) for name, value in options.items()}
    frame.write.format("tidelog").mode("append").options(**named).save()


def test_a_batch_write_is_written_once_and_a_failed_one_not_at_all(spark: "SparkSession", copy: Copy) -> None:
    first = spark.range(0, 100, numPartitions=3).selectExpr("cast(id as string) as value")
    failing = spark.range(100, 200, numPartitions=2).selectExpr(
        "if(id = 199, raise_error('bad row'), cast(id as string)) as value"
    )
    write(first, copy, 0)
    with pytest.raises(PySparkException, match="bad row"):
        write(failing, copy, 1)
    # Spark stops the other tasks of a failed job, whose transactions remain open until the next write.
    committed = (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", copy.target.bootstrap)
        .option("subscribe", copy.target.name)
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    assert committed.select("value").distinct().count() == committed.count() == 100
    write(spark.range(100, 200).selectExpr("cast(id as string) as value"), copy, 1)
    write(first, copy, 0)
    check(read_topic(copy.target), 200)
    write(spark.range(200, 300).selectExpr("cast(id as string) as value"), copy, 3)
    with pytest.raises(PySparkException, match=r"batch 2 .* its 100 rows are not in the topic"):
        write(first, copy, 2)
    check(read_topic(copy.target), 300)
    with pytest.raises(AnalysisException, match=r"kafka.acks must be all with exactlyOnce"):
        write(first, copy, 2, kafka__acks=1)


def test_rounds_of_kills(bootstrap: str, tmp_path: Path) -> None:
    """`script/spark-rounds` runs more of them. The checker must find a planted double and a planted loss."""
    life = Life("topic", bootstrap, tmp_path, seed=1)
    try:
        for number in range(1, ROUNDS + 1):
            assert life.run_round(number).processes > 0
    finally:
        life.close()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(life.target.name, "7")
    assert producer.flush(60) == 0
    with pytest.raises(NotExactlyOnce, match=r"1 written more than once, such as \['7'\]$"):
        life.check()
    count = life.count
    life.add_records(2)
    with pytest.raises(NotExactlyOnce, match=rf"2 lost, such as \[{count}, {count + 1}\]; 1 written more than once"):
        life.check()
