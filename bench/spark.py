#!/usr/bin/env python3
"""Compares reads of a topic by format("tidelog") and by Spark's own JVM Kafka connector, from the same broker.

    bench/spark.py [--bootstrap HOST:PORT] [--records N] [--size BYTES] [--partitions N] [--cores N] [--rounds N]
                   [--jvm DIR]

Without --bootstrap it starts a broker of this checkout, with its log on /dev/shm; pass Apache Kafka's address to read
from Kafka. If the topic does not exist, it is created and filled. Each Spark runs all rounds, in turn with the other,
after some rounds that are not counted (a JVM's compiler needs them). The table shows medians and the ratio. `cpu` is
the CPU time of a round in Spark and its Python workers, without the broker's: it varies least on a machine that does
other work. The exit code is 1 if the rate is below 1.3 times the connector's.

The connector runs in a separate environment. The first run creates it in --jvm (default ~/.cache/tidelog-bench): the
newest PySpark that the connector is published for, from PyPI, and its jars by mvn. This script's Python needs
tidelog[spark]. Java 17 or newer runs both.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compare import cpu

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tidelog-bench"
CONNECTOR = "4.1.1"
BAR = 1.3
UNCOUNTED = 3

POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>spark-connector</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{CONNECTOR}</version>
</dependency></dependencies></project>"""


def connector(folder: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Return the Python with the connector's PySpark, and the jars. The first call installs them."""
    home = folder / f"spark-connector-{CONNECTOR}"
    python, jars = home / "venv" / "bin" / "python", home / "jars"
    if not (home / "complete").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(POM)
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"pyspark=={CONNECTOR}"], check=True)
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        subprocess.run(["mvn", "-q", "-B", "-f", home / "pom.xml", *copy], check=True, stdout=sys.stderr)
        (home / "complete").touch()
    return python, ",".join(map(str, sorted(jars.glob("*.jar"))))


class Spark:
    """A child process with one Spark, which reads the topic at each call of `read`."""

    def __init__(self, form: str, python: pathlib.Path, bootstrap: str, topic: str, cores: int, jars: str) -> None:
        from pyspark_tidelog.java import ensure_java

        self.form = form
        environment = os.environ | {"JAVA_HOME": str(ensure_java()), "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [python, HERE / "spark_reader.py", form, bootstrap, topic, str(cores), jars]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.version = self._line()["version"]
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def read(self, rows: int, size: int) -> None:
        before = cpu(self.child.pid)
        assert self.child.stdin
        self.child.stdin.write("read\n")
        self.child.stdin.flush()
        result = self._line()
        if (result["rows"], result["bytes"]) != (rows, rows * size):
            raise SystemExit(f"format {self.form} read {result}, not {rows} rows of {size} bytes")
        self.seconds.append(result["seconds"])
        self.cpu.append(cpu(self.child.pid) - before)

    def close(self) -> None:
        assert self.child.stdin
        self.child.stdin.close()
        self.child.wait()

    def _line(self) -> dict[str, float]:
        assert self.child.stdout
        for line in self.child.stdout:
            if line.startswith("{"):
                result: dict[str, float] = json.loads(line)
                return result
        raise SystemExit(f"the Spark of format {self.form} ended")


def fill(bootstrap: str, topic: str, records: int, size: int, partitions: int) -> None:
    """Create and fill the topic if it does not exist. Records go to the partitions in turn, 1,000 at a time."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    except KafkaException:  # the topic exists
        consumer = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, i), 30)[1] for i in range(partitions)]
        consumer.close()
        if sum(ends) == records:
            return
        raise SystemExit(f"topic {topic} exists with {sum(ends)} records, not {records}: delete it") from None
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 500_000, "linger.ms": 5})
    value = bytes(i * 7 % 256 for i in range(size))
    for i in range(records):
        if i % 1000 == 0:
            producer.poll(0)
        while True:
            try:
                producer.produce(topic, value=value, partition=i // 1000 % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise SystemExit("the records could not be written")


@contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    from tidelog.testing import Broker

    shared = "/dev/shm"
    folder = tempfile.TemporaryDirectory(dir=shared if pathlib.Path(shared).is_dir() else None)
    with folder as data, Broker(process=True, data=data) as started:
        yield started.bootstrap


def table(tidelog: Spark, jvm: Spark, rows: int) -> float:
    """Print the table, and return the ratio of the rates."""

    def figures(spark: Spark) -> tuple[float, float]:
        return rows / statistics.median(spark.seconds) / 1e6, statistics.median(spark.cpu)

    (ours, our_cpu), (theirs, their_cpu) = figures(tidelog), figures(jvm)
    print(f"| {'read':28} | {'M rows/s':>8} | {'cpu s':>6} |\n|{'-' * 30}|{'-' * 10}|{'-' * 8}|")
    print(f"| {'tidelog, Spark ' + str(tidelog.version):28} | {ours:8.2f} | {our_cpu:6.1f} |")
    print(f"| {'JVM connector, Spark ' + str(jvm.version):28} | {theirs:8.2f} | {their_cpu:6.1f} |")
    print(f"| {'ratio':28} | {ours / theirs:8.2f} | {our_cpu / their_cpu:6.2f} |")
    return ours / theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--topic", default="bench-spark")
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jvm", type=pathlib.Path, default=CACHE)
    chosen = parser.parse_args()
    python, jars = connector(chosen.jvm)
    with broker(chosen.bootstrap) as bootstrap:
        began = time.monotonic()
        fill(bootstrap, chosen.topic, chosen.records, chosen.size, chosen.partitions)
        print(f"{chosen.records} records of {chosen.size} B ready in {time.monotonic() - began:.0f} s", file=sys.stderr)
        sparks = [
            Spark("tidelog", pathlib.Path(sys.executable), bootstrap, chosen.topic, chosen.cores, ""),
            Spark("kafka", python, bootstrap, chosen.topic, chosen.cores, jars),
        ]
        for number in range(UNCOUNTED + chosen.rounds):
            for spark in sparks:
                spark.read(chosen.records, chosen.size)
                print(f"{spark.form}: {spark.seconds[-1]:.2f} s, cpu {spark.cpu[-1]:.1f} s", file=sys.stderr)
                if number < UNCOUNTED:
                    spark.seconds.clear()
                    spark.cpu.clear()
        for spark in sparks:
            spark.close()
    return int(table(*sparks, chosen.records) < BAR)


if __name__ == "__main__":
    sys.exit(main())
