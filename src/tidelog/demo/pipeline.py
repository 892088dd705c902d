"""The pipeline on Spark: `order-events` to sales by product and minute in Parquet, and to suggestions in `reorders`.

    python -m tidelog.demo.pipeline BOOTSTRAP DIRECTORY

Starts Spark at once, and reads what the topic holds when a line comes on stdin. Structured streaming with a checkpoint:
run it again and it goes on where it stopped. A batch that is replayed overwrites its own files.
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
OFFSETS_PER_BATCH = 20_000


def events(spark: "SparkSession", bootstrap: str) -> "DataFrame":
    """The stream of distinct events: the outbox may publish one twice, its id tells."""
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
    """Process what the topic holds now, and return."""

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
    """Units and pence sold, by product and minute."""
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
    """What runs short, and how much was asked for in vain: key product, value JSON."""
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
    spark = local_session("flash-sale")
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", flush=True)
    sys.stdin.readline()
    run(spark, bootstrap, directory)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
