"""Counts sales by product with Spark Structured Streaming: from topic `shop-sales` to totals in topic `shop-totals`.

    pip install '.[spark]'              # in a clone of the repository
    tidelog start                       # in a terminal of its own
    python examples/spark_sales.py [HOST:PORT [DIRECTORY]]       run it twice: it continues to count

It processes the records that the topic holds, and stops. Spark's checkpoint, with the totals so far, is in DIRECTORY,
by default ./sales-totals. It belongs to the topics of this broker; for new topics use a new directory.
"""

import sys
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pyspark_tidelog.session import local_session

SALES = "shop-sales"
TOTALS = "shop-totals"


def sell(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(600):
        product = ("tea", "coffee", "cocoa")[number % 3]
        producer.produce(SALES, key=product, value=str(1 + number % 2))
    producer.flush()


def main(bootstrap: str, directory: Path) -> None:
    sell(bootstrap)
    spark = local_session("sales", cores=2)
    spark.sparkContext.setLogLevel("ERROR")
    sales = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", SALES)
        .option("startingOffsets", "earliest")
        .load()
    )
    totals = (
        sales.groupBy(f.col("key").cast("string").alias("key"))
        .agg(f.sum(f.col("value").cast("string").cast("long")).alias("units"))
        .select("key", f.to_json(f.struct("units")).alias("value"))
    )

    def write(batch: DataFrame, _: int) -> None:
        """Write changed totals, not only new ones: Spark's Python sinks accept those only through foreachBatch."""
        writer = batch.write.format("tidelog").mode("append")
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", TOTALS).save()

    query = (
        totals.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory.absolute()))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = spark.read.format("tidelog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOTALS)
    rows = written.load().selectExpr("cast(key as string) as key", "cast(value as string) as value", "offset")
    latest = rows.groupBy("key").agg(f.max_by("value", "offset").alias("value"))  # a key has one partition
    for row in latest.sort("key").collect():
        print(f"{row['key']}: {row['value']}")
    spark.stop()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "127.0.0.1:9092", Path(given[1] if len(given) > 1 else "sales-totals"))
