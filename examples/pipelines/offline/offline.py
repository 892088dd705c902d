"""Load a whole topic into Parquet, continue with a live stream where the load ended, and fill a topic from Parquet.

    python offline.py load TOPIC DIRECTORY [HOST:PORT]
    python offline.py follow TOPIC DIRECTORY [HOST:PORT]
    python offline.py fill TOPIC DIRECTORY [HOST:PORT]

`load` reads with several tasks and ends with the records that exist when it begins. `follow` copies the later records,
and ends when there are no more. Together they have each record once. `fill` writes the records of both to a topic.
"""

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_TASK = 100_000
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def load(spark: "SparkSession", bootstrap: str, topic: str, directory: str) -> None:
    """Write all records that the topic has now to DIRECTORY/loaded. A partition is read by several tasks."""
    records = (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .option("maxRecordsPerPartition", RECORDS_PER_TASK)
        .load()
    )
    records.select(*COLUMNS).write.mode("errorifexists").parquet(f"{directory}/loaded")


def loaded_ends(spark: "SparkSession", directory: str) -> dict[int, int]:
    """Return the offset after the last loaded record of each partition."""
    rows = spark.read.parquet(f"{directory}/loaded").groupBy("partition").agg({"offset": "max"}).collect()
    return {partition: last_offset + 1 for partition, last_offset in rows}


def follow(spark: "SparkSession", bootstrap: str, topic: str, directory: str) -> None:
    """Write the records after the loaded ones to DIRECTORY/live. A second call continues where the first one ended."""
    ends = loaded_ends(spark, directory)
    numbers = range(partition_count(bootstrap, topic))
    starting = {topic: {str(number): ends.get(number, -2) for number in numbers}}  # -2: from the earliest offset
    records = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", json.dumps(starting))
        .load()
    )
    query = (
        records.select(*COLUMNS)
        .writeStream.format("parquet")
        .option("path", f"{directory}/live")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def fill(spark: "SparkSession", bootstrap: str, topic: str, directory: str) -> None:
    """Write the stored records to another topic, with their keys, headers and times, in the order of each partition.

    The write is exactly once by its id: a second attempt, also after a failure, writes nothing that is there already.
    """
    rows = everything(spark, directory)
    ordered = rows.repartition("partition").sortWithinPartitions("partition", "offset")
    (
        ordered.select("key", "value", "headers", "partition", "timestamp")
        .write.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("includeTimestamp", "true")
        .option("exactlyOnce", "true")
        .option("exactlyOnceId", f"fill-{topic}")
        .option("exactlyOnceBatch", "0")
        .mode("append")
        .save()
    )


def everything(spark: "SparkSession", directory: str) -> "DataFrame":
    return spark.read.parquet(f"{directory}/loaded").union(spark.read.parquet(f"{directory}/live"))


def partition_count(bootstrap: str, topic: str) -> int:
    from confluent_kafka.admin import AdminClient

    return len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions)


COMMANDS = {"load": load, "follow": follow, "fill": fill}

if __name__ == "__main__":
    from pyspark_tidelog.session import local_session

    command, topic, directory, *rest = sys.argv[1:]
    session = local_session("offline", cores=2)
    session.sparkContext.setLogLevel("ERROR")
    COMMANDS[command](session, (rest or ["127.0.0.1:9092"])[0], topic, directory)
    print(f"{command}: done")
