"""The driver program: one streaming query from the input topic to a sink, with executors in their own processes.

    python -m spark_rounds_harness.driver SINK BOOTSTRAP INPUT TARGET FOLDER

It prints one line of JSON when the query has started, and one each time when it has processed further records. It runs
until it is killed, or until its stdin ends.
"""

import json
import select
import sys
from pathlib import Path

from spark_rounds_harness.sinks import SINKS, Target

JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Three JVMs share the cores with the query's Python processes, and live for seconds: they start fast."""
SETTINGS = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM,
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "100",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
}
OFFSETS_PER_TRIGGER = 300
POLL_S = 0.3


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
        .selectExpr(*SINKS[sink].contents.columns)
    )
    writer = SINKS[sink].write(frame, target)
    query = writer.option("checkpointLocation", str(target.folder / "checkpoint")).start()
    print(json.dumps({"end": 0}), flush=True)
    last_end = 0
    while query.isActive:
        # If the last driver was killed after its last commit, this one finds no records. Then only a report of an idle
        # query says what the query has processed.
        end_offset = query.lastProgress and query.lastProgress["sources"][0]["endOffset"]
        if end_offset and (end := sum(json.loads(end_offset)[source].values())) > last_end:
            last_end = end
            print(json.dumps({"end": end}), flush=True)
        if select.select([sys.stdin], [], [], POLL_S)[0] and not sys.stdin.read(1):
            query.stop()
            spark.stop()
            return
    raise SystemExit(f"the query ended: {query.exception()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
