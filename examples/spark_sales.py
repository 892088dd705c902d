"""Counts sales by product with Spark Structured Streaming: from topic `sales` to totals in topic `totals`.

    pip install '.[spark]'              # in a clone of the repository
    tidelog start                       # in a terminal of its own
    python examples/spark_sales.py [HOST:PORT]

It processes what is there and stops; run it again with the same checkpoint directory and it goes on.
"""

import sys
import tempfile

from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pyspark_tidelog.session import local_session


def sell(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(600):
        product = ("tea", "coffee", "cocoa")[number % 3]
        producer.produce("sales", key=product, value=str(1 + number % 2))
    producer.flush()


def main(bootstrap: str) -> None:
    sell(bootstrap)
    spark = local_session("sales", cores=2)
    spark.sparkContext.setLogLevel("ERROR")
    sales = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "sales")
        .option("startingOffsets", "earliest")
        .load()
    )
    totals = (
        sales.groupBy(f.col("key").cast("string").alias("key"))
        .agg(f.sum(f.col("value").cast("string").cast("long")).alias("units"))
        .select("key", f.to_json(f.struct("units")).alias("value"))
    )

    def write(batch: DataFrame, _: int) -> None:
        """Changed totals, not only new ones: Spark's Python sinks take those by foreachBatch."""
        writer = batch.write.format("tidelog").mode("append")
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", "totals").save()

    query = (
        totals.writeStream.foreachBatch(write)
        .option("checkpointLocation", tempfile.mkdtemp(prefix="sales-checkpoint-"))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = spark.read.format("tidelog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "totals")
    rows = written.load().selectExpr("cast(key as string) as key", "cast(value as string) as value").collect()
    for row in sorted(rows):
        print(f"{row['key']}: {row['value']}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
