"""The driver program: one streaming query from the input topic to a sink, with executors in their own processes.

    python -m spark_rounds_harness.driver SINK BOOTSTRAP INPUT TARGET FOLDER

It prints one line of JSON after each micro-batch, and runs until it is killed or its stdin ends.
"""

import json
import select
import sys
from pathlib import Path

from spark_rounds_harness.sinks import SINKS, Target

SETTINGS = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "100",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.sql.streaming.metricsEnabled": "false",
}
OFFSETS_PER_TRIGGER = 400
POLL_S = 0.1


def main(sink: str, bootstrap: str, source: str, target_name: str, folder: str) -> None:
    from pyspark_tidelog.session import local_session

    target = Target(bootstrap, target_name, Path(folder))
    spark = local_session("rounds", cores=2, settings=SETTINGS | {"spark.local.dir": str(target.folder / "scratch")})
    spark.sparkContext.setLogLevel("ERROR")
    frame = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        .load()
        .selectExpr("cast(value as string) as value")
    )
    writer = SINKS[sink].write(frame, target)
    query = writer.option("checkpointLocation", str(target.folder / "checkpoint")).start()
    last_batch = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > last_batch and progress["numInputRows"]:
            last_batch = progress["batchId"]
            end = json.loads(progress["sources"][0]["endOffset"])[source]
            print(json.dumps({"batch": last_batch, "end": sum(end.values())}), flush=True)
        if select.select([sys.stdin], [], [], POLL_S)[0] and not sys.stdin.read(1):
            query.stop()
            spark.stop()
            return
    raise SystemExit(f"the query ended: {query.exception()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
