"""The Spark pipelines. They read the topic `order-events`, write the sales to Parquet, and send suggestions for
reorders to the topic `reorders`.

    python -m tidelog.demo.pipeline BOOTSTRAP DIRECTORY

The program starts Spark, waits for a line on stdin, and then processes the events that are in the topic. The next run
continues where the previous one stopped.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.demo.orders import EVENTS, REORDERS
from tidelog.pipelines import json, parquet, pipeline, topic
from tidelog.pipelines.declarations import Pipeline
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


def distinct(events: "DataFrame") -> "DataFrame":
    """Return the events without repetitions. The outbox may publish an event twice, with the same id in a header."""
    with_id = events.selectExpr("*", "CAST(CAST(kafka.headers[0].value AS STRING) AS LONG) AS event_id")
    return with_id.dropDuplicates(["event_id"])


def pipelines(directory: Path) -> list[Pipeline]:
    """Return the pipelines, which write files to `directory`."""
    events_topic = topic(EVENTS, value=json(EVENT))

    @pipeline(source=events_topic, sink=parquet(str(directory / "sales"), files=1))
    def sales(events: "DataFrame") -> "DataFrame":
        """Return units and pence of each accepted order, with its product and minute."""
        return distinct(events.where("outcome = 'accepted'")).selectExpr(
            "product",
            "description",
            "date_trunc('MINUTE', timestamp_millis(decided_ms)) AS minute",
            "CAST(quantity AS LONG) AS units",
            "CAST(quantity * price_pence AS LONG) AS pence",
        )

    @pipeline(
        source=events_topic,
        sink=topic(REORDERS, value=json(), key="product"),
        output_mode="update",
    )
    def reorders(events: "DataFrame") -> "DataFrame":
        """Return the lowest stock of each product that is short, and the units that could not be sold."""
        from pyspark.sql import functions as f

        by_product = distinct(events).groupBy("product")
        missed = f.sum(f.expr("IF(outcome = 'sold out', quantity, 0)")).alias("missed")
        return by_product.agg(f.min("stock_left").alias("stock_left"), missed).where(
            f.col("stock_left") < REORDER_BELOW
        )

    return [declared_pipeline(sales), declared_pipeline(reorders)]


def main(bootstrap: str, directory: Path) -> None:
    declared = pipelines(directory)
    spark = start_session(declared)
    spark.sparkContext.setLogLevel("OFF")
    print("ready", flush=True)
    sys.stdin.readline()
    run(declared, bootstrap=bootstrap, state=directory / "pipelines", spark=spark)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
