"""The Spark pipeline. It reads the topic `order-events`, writes sales by product and minute to Parquet, and sends
suggestions for reorders to the topic `reorders`.

    python -m tidelog.demo.pipeline BOOTSTRAP DIRECTORY

The program starts Spark, waits for a line on stdin, and then processes the events that are in the topic. The next run
continues where the previous one stopped.

The declaration has one sink, which passes each micro-batch on to two other sinks. If the declaration had two sinks,
Spark would run two queries, which would read the topic twice and take longer to start.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidelog.demo.orders import EVENTS, REORDERS
from tidelog.pipelines import json, parquet, pipeline, topic
from tidelog.pipelines.declarations import Opened, Pipeline, Sink, SinkContext
from tidelog.pipelines.loading import declared_pipeline
from tidelog.pipelines.running import run
from tidelog.pipelines.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT = (
    "order_id STRING, product STRING, description STRING, quantity INT, price_pence INT, outcome STRING, "
    "stock_left INT, decided_ms LONG"
)
REORDER_BELOW = 10
"""If the stock of a product falls below this number of units, a reorder is suggested."""
OFFSETS_PER_BATCH = 20_000
SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings of Spark for a run of less than a minute: the JVM spends no time on its second compiler."""


def declared(directory: Path) -> Pipeline:
    """Return the pipeline, which writes Parquet files to `directory`/sales."""

    @pipeline(
        source=topic(EVENTS, value=json(EVENT), options={"maxOffsetsPerTrigger": OFFSETS_PER_BATCH}),
        sink=SalesAndReorders(parquet(str(directory / "sales"), files=1), topic(REORDERS, value=json(), key="product")),
        settings=SHORT_RUN,
    )
    def sale(events: "DataFrame") -> "DataFrame":
        """Return the events without repetitions. The outbox may publish an event twice, with the same id."""
        with_id = events.selectExpr("*", "CAST(CAST(kafka.headers[0].value AS STRING) AS LONG) AS event_id")
        return with_id.dropDuplicates(["event_id"]).drop("kafka", "event_id")

    return declared_pipeline(sale)


class SalesAndReorders(NamedTuple):
    """A sink that summarises each micro-batch for two other sinks. A micro-batch may be repeated after a failure. The
    two sinks recognise it by its number and write it only once, so this sink passes it on without a check.
    """

    sales: Sink
    reorders: Sink

    def describe(self) -> str:
        return f"{self.sales.describe()} and {self.reorders.describe()}"

    def open(self, context: SinkContext) -> Opened:
        return OpenedSalesAndReorders(self.sales.open(context), self.reorders.open(context))


class OpenedSalesAndReorders(NamedTuple):
    sales: Opened
    reorders: Opened

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        batch.persist()  # otherwise Spark would read the events once for each sink
        try:
            self.sales.write(sales(batch), batch_id)
            self.reorders.write(reorders(batch), batch_id)
        finally:
            batch.unpersist()

    def close(self) -> None:
        self.sales.close()
        self.reorders.close()


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
    """Return each product whose stock was below REORDER_BELOW in this batch, with the lowest stock and the number of
    units that could not be sold.
    """
    from pyspark.sql import functions as f

    missed = f.sum(f.expr("IF(outcome = 'sold out', quantity, 0)")).alias("missed")
    by_product = batch.groupBy("product").agg(f.min("stock_left").alias("stock_left"), missed)
    return by_product.where(f.col("stock_left") < REORDER_BELOW)


def main(bootstrap: str, directory: Path) -> None:
    sale = declared(directory)
    spark = start_session([sale])
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", flush=True)
    sys.stdin.readline()
    run(sale, bootstrap=bootstrap, state=directory / "pipelines", spark=spark)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
