"""The Spark pipeline. It reads the topic `order-events`, writes sales by product and minute to Parquet, and sends
suggestions for reorders to the topic `reorders`.

    python -m tidelog.demo.pipeline BOOTSTRAP DIRECTORY

The program starts Spark, waits for a line on stdin, and then processes the events that are in the topic. It uses
structured streaming with a checkpoint: the next run continues where the previous one stopped. A micro-batch that is
replayed overwrites its own Parquet files.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tidelog.session import local_session
from tidelog.demo.orders import EVENTS, REORDERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT = (
    "order_id STRING, product STRING, description STRING, quantity INT, price_pence INT, outcome STRING, "
    "stock_left INT, decided_ms LONG"
)
REORDER_BELOW = 10
"""If the stock of a product falls below this number of units, a reorder is suggested."""
OFFSETS_PER_BATCH = 20_000
SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings of Spark for a run of less than a minute: the JVM spends no time on its second compiler."""


def events(spark: "SparkSession", bootstrap: str) -> "DataFrame":
    """Return the stream of distinct events. The outbox may publish an event twice, with the same id."""
    from pyspark.sql import functions as f

    records = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", EVENTS)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_BATCH)
        .load()
    )
    return (
        records.select(
            f.expr("CAST(headers[0].value AS STRING)").cast("long").alias("event_id"),
            f.from_json(f.col("value").cast("string"), EVENT).alias("event"),
        )
        .dropDuplicates(["event_id"])
        .select("event.*")
    )


def run(spark: "SparkSession", bootstrap: str, directory: Path) -> None:
    """Process the events that are in the topic now, and return."""

    def write(batch: "DataFrame", batch_id: int) -> None:
        batch.persist()
        sales(batch).write.mode("overwrite").parquet(str(directory / "sales" / f"batch={batch_id}"))
        suggestions = reorders(batch).write.format("tidelog").mode("append")
        suggestions.option("kafka.bootstrap.servers", bootstrap).option("topic", REORDERS).save()
        batch.unpersist()

    query = (
        events(spark, bootstrap)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def sales(batch: "DataFrame") -> "DataFrame":
    """Return units and pence sold, by product and minute."""
    from pyspark.sql import functions as f

    return (
        batch.where("outcome = 'accepted'")
        .groupBy("product", f.expr("date_trunc('MINUTE', timestamp_millis(decided_ms))").alias("minute"))
        .agg(
            f.first("description").alias("description"),
            f.sum("quantity").alias("units"),
            f.sum(f.col("quantity") * f.col("price_pence")).alias("pence"),
        )
    )


def reorders(batch: "DataFrame") -> "DataFrame":
    """Return a record for each product whose stock was below REORDER_BELOW in this batch. The record's key is the
    product. The record's value is JSON with the lowest stock and the number of units that could not be sold.
    """
    from pyspark.sql import functions as f

    short = (
        batch.groupBy("product")
        .agg(
            f.min("stock_left").alias("stock_left"),
            f.sum(f.expr("IF(outcome = 'sold out', quantity, 0)")).alias("missed"),
        )
        .where(f.col("stock_left") < REORDER_BELOW)
    )
    return short.select(
        f.col("product").cast("binary").alias("key"),
        f.to_json(f.struct("product", "stock_left", "missed")).cast("binary").alias("value"),
    )


def main(bootstrap: str, directory: Path) -> None:
    spark = local_session("flash-sale", settings=SHORT_RUN)
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", flush=True)
    sys.stdin.readline()
    run(spark, bootstrap, directory)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
