#!/usr/bin/env python3
"""Compares format("tidelog") with Spark's own JVM Kafka connector in one Spark, against the same broker.

    bench/spark.py [--bootstrap HOST:PORT] [--records N] [--partitions N] [--cores N] [--warm-ups N] [--rounds N]
                   [--fetch-wait-ms N] [--max-partitions N] [--tcp-sockets] [--rows LIST]

Without --bootstrap it starts a broker of this checkout, with its log on /dev/shm; pass the address of Apache Kafka to
compare with it as the broker. A row of the table is an action and a kind of value. Actions:

    read     a batch read of the whole topic with an aggregate
    write    a batch write into a new topic
    stream   a streaming query with a new checkpoint, from the beginning to the end, in four micro-batches

Values are 100 bytes, 1 KB (a fifth of the records), or JSON of 5 fields (half of the records), which reads and streams
parse by from_json, and which writes make by to_json. The two formats take turns, in rounds after --warm-ups that are
not counted: the JVM still compiles in them. The table shows medians of the rounds: rows per second, and `cpu`, the CPU
seconds of Spark and its Python workers, without that of the broker. `rate` and `cpu ratio` say how many times better
format("tidelog") is. On a machine that does other work the CPU time varies least. The exit code is 1 if a rate is below
twice that of the connector.

The connector waits at the end of each partition, apparently because it asks for the partition's end on the connection
on which its fetch of the next records already waits, for up to fetch.max.wait.ms. With 12 partitions, 2 cores and the
default of 500 ms these are 3 s for each query, however many rows it reads. Such a constant would hide the rates, so
both formats read with --fetch-wait-ms (10 by default). With 500 the table shows what a user sees without this setting.

format("tidelog") reads with --max-partitions tasks (by default two for each core, as in pipelines), and the connector,
which has no such option, with a task for each topic partition. Spark talks to its Python workers through Unix domain
sockets, as in every `local_session`. With --tcp-sockets it uses TCP, which is Spark's default. This concerns only
format("tidelog"): the connector has no Python workers.

Times are from the start of the query to its end, with the start of Python processes, which takes a streaming query
0.3 s of CPU time or more. --rows chooses rows, for example `read-100,write-json`. The connector's jars come from
script/spark-kafka. This script's Python needs tidelog[spark]. Java 17 or newer runs Spark.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from compare import TICK, process_tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BAR = 2.0
FORMATS = ("tidelog", "kafka")
ACTIONS = ("read", "write", "stream")
SCHEMA = "id bigint, product string, quantity int, price double, at timestamp"
KINDS = {"100": 1.0, "1024": 0.2, "json": 0.5}
"""The kinds of values, with their share of --records."""
MICRO_BATCHES = 4


class Round(NamedTuple):
    seconds: float
    cpu_s: float


class Bench:
    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        partitions: int,
        wait_ms: int,
        max_partitions: int,
        broker_pid: int | None,
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.wait_ms = wait_ms
        self.max_partitions = max_partitions
        self.broker_pid = broker_pid
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.filled: dict[str, str] = {}

    def new_topic(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self.admin.create_topics([NewTopic(name, self.partitions)])[name].result(30)
        return name

    def rows(self, kind: str, count: int) -> DataFrame:
        frame = self.spark.range(0, count, 1, self.partitions)
        if kind != "json":
            return frame.select(F.rpad(F.col("id").cast("string"), int(kind), "x").cast("binary").alias("value"))
        frame = frame.selectExpr(
            "id",
            "concat('product-', id % 1000) as product",
            "cast(id % 7 as int) as quantity",
            "id % 1000 / 100D as price",
            "timestamp_millis(1700000000000 + id) as at",
        )
        return frame.select(F.to_json(F.struct("*")).cast("binary").alias("value"))

    def write(self, form: str, kind: str, count: int, topic: str) -> None:
        writer = self.rows(kind, count).write.format(form).option("kafka.bootstrap.servers", self.bootstrap)
        writer.option("topic", topic).mode("append").save()

    def topic_with(self, kind: str, count: int) -> str:
        if kind not in self.filled:
            self.filled[kind] = self.new_topic()
            self.write("tidelog", kind, count, self.filled[kind])
        return self.filled[kind]

    def source_options(self, form: str) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.bootstrap, "kafka.fetch.max.wait.ms": str(self.wait_ms)}
        return options | ({"maxPartitions": str(self.max_partitions)} if form == "tidelog" else {})

    def read(self, form: str, kind: str, count: int) -> None:
        frame = self.spark.read.format(form).options(**self.source_options(form))
        frame = values_of(frame.option("subscribe", self.topic_with(kind, count)).load(), kind)
        [row] = frame.selectExpr("count(checked)", "sum(checked)").collect()
        if row[0] != count:
            raise SystemExit(f"format {form} read {row[0]} rows, not {count}")

    def stream(self, form: str, kind: str, count: int) -> None:
        reader = self.spark.readStream.format(form).options(**self.source_options(form))
        reader = reader.option("subscribe", self.topic_with(kind, count)).option("startingOffsets", "earliest")
        # Each partition's share of the limit is rounded down. Without the additional offset of each partition, a fifth
        # micro-batch would read the rest.
        limit = -(-count // MICRO_BATCHES) + self.partitions
        frame = values_of(reader.option("maxOffsetsPerTrigger", limit).load(), kind)
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            done = sum(progress["numInputRows"] for progress in query.recentProgress)
        if done != count:
            raise SystemExit(f"format {form} streamed {done} rows, not {count}")

    def run(self, action: str, form: str, kind: str, count: int) -> Round:
        topic = self.new_topic() if action == "write" else self.topic_with(kind, count)
        before, began = self._cpu_s_by_pid(), time.perf_counter()
        if action == "write":
            self.write(form, kind, count, topic)
        elif action == "read":
            self.read(form, kind, count)
        else:
            self.stream(form, kind, count)
        seconds = time.perf_counter() - began
        result = Round(seconds, sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in self._cpu_s_by_pid().items()))
        if action == "write":
            self.admin.delete_topics([topic])[topic].result(30)
        return result

    def _cpu_s_by_pid(self) -> dict[int, float]:
        """Return the CPU seconds of Spark's processes that run now, with those of their children that have ended, such
        as the Python process of a streaming query. Processes that are idle for a minute end in between, so the sum of
        all processes could become smaller.
        """
        seconds = {}
        for pid in set(process_tree(os.getpid())) - set(process_tree(self.broker_pid) if self.broker_pid else ()):
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                seconds[pid] = sum(map(int, fields[11:15])) / TICK
        return seconds


def values_of(frame: DataFrame, kind: str) -> DataFrame:
    """A column `checked`, for which each value must be read; of JSON, each field."""
    if kind != "json":
        return frame.select(F.length("value").alias("checked"))
    parsed = frame.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
    return parsed.selectExpr("r.id + length(r.product) + r.quantity + r.price + unix_millis(r.at) as checked")


@contextlib.contextmanager
def broker(bootstrap: str | None) -> Iterator[tuple[str, int | None]]:
    if bootstrap:
        yield bootstrap, None
        return
    from tidelog.testing import Broker

    shared = "/dev/shm"
    folder = tempfile.TemporaryDirectory(dir=shared if pathlib.Path(shared).is_dir() else None)
    with folder as data, Broker(process=True, data=data) as started:
        yield started.bootstrap, started.pid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--warm-ups", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fetch-wait-ms", type=int, default=10)
    parser.add_argument("--max-partitions", type=int)
    parser.add_argument("--tcp-sockets", action="store_true")
    parser.add_argument("--rows", default=",".join(f"{action}-{kind}" for kind in KINDS for action in ACTIONS))
    chosen = parser.parse_args()
    from pyspark_tidelog.session import local_session

    jars = subprocess.run([ROOT / "script/spark-kafka"], check=True, capture_output=True, text=True).stdout.strip()
    settings = {"spark.jars": jars, "spark.driver.memory": "1g"}
    if chosen.tcp_sockets:
        settings["spark.python.unix.domain.socket.enabled"] = "false"
    spark = local_session("bench", cores=chosen.cores, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    is_below = False
    print(f"| Spark {spark.version} | tidelog rows/s | cpu s | connector rows/s | cpu s | rate | cpu ratio |")
    print("|---|---|---|---|---|---|---|")
    with broker(chosen.bootstrap) as (bootstrap, pid):
        max_partitions = chosen.max_partitions or 2 * chosen.cores
        bench = Bench(spark, bootstrap, chosen.partitions, chosen.fetch_wait_ms, max_partitions, pid)
        for name in chosen.rows.split(","):
            action, kind = name.split("-")
            count = int(chosen.records * KINDS[kind])
            rounds: dict[str, list[Round]] = {form: [] for form in FORMATS}
            for number in range(chosen.warm_ups + chosen.rounds):
                for form in FORMATS:
                    done = bench.run(action, form, kind, count)
                    print(f"{name} {form}: {done.seconds:.2f} s, cpu {done.cpu_s:.1f} s", file=sys.stderr, flush=True)
                    if number >= chosen.warm_ups:
                        rounds[form].append(done)
            ours, theirs = (Round(*map(statistics.median, zip(*rounds[form], strict=True))) for form in FORMATS)
            rate = theirs.seconds / ours.seconds
            is_below |= rate < BAR
            print(
                f"| {name} | {count / ours.seconds:,.0f} | {ours.cpu_s:.1f} | {count / theirs.seconds:,.0f} "
                f"| {theirs.cpu_s:.1f} | {rate:.2f} | {theirs.cpu_s / max(0.01, ours.cpu_s):.2f} |",
                flush=True,
            )
    spark.stop()
    return int(is_below)


if __name__ == "__main__":
    sys.exit(main())
