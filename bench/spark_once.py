#!/usr/bin/env python3
"""Compares exactly-once writes of format("tidelog") with at-least-once writes: rows/s, and the time of a micro-batch.

    bench/spark_once.py [--bootstrap HOST:PORT] [--rows N] [--size BYTES] [--tasks N] [--cores N] [--rounds N]

Without --bootstrap it starts a broker of this checkout, with its log on /dev/shm. The rows are cached in Spark before
the first write. Both kinds of writes take turns. The table shows medians: of writes of all rows, and of writes of 100
rows, which take about as long as a small micro-batch.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = {"at least once": {}, "exactly once": {"exactlyOnce": "true", "exactlyOnceId": "bench"}}
SMALL_ROWS = 100


@contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    from tidelog.testing import Broker

    shared = "/dev/shm"
    folder = tempfile.TemporaryDirectory(dir=shared if pathlib.Path(shared).is_dir() else None)
    with folder as data, Broker(process=True, data=data, settings={"num.partitions": 4}) as started:
        yield started.bootstrap


class Writes:
    """Numbered writes of one kind."""

    def __init__(self, bootstrap: str, kind: str) -> None:
        topic = "bench-" + kind.replace(" ", "-")
        self._options = {"kafka.bootstrap.servers": bootstrap, "topic": topic} | KINDS[kind]
        self._batch = time.time_ns()  # larger than the numbers of earlier runs

    def seconds(self, rows: "DataFrame") -> float:
        self._batch += 1
        writer = rows.write.format("tidelog").mode("append").options(**self._options)
        if "exactlyOnce" in self._options:
            writer = writer.option("exactlyOnceBatch", self._batch)
        began = time.monotonic()
        writer.save()
        return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    from pyspark_tidelog.session import local_session

    with broker(chosen.bootstrap) as bootstrap:
        spark = local_session("bench", cores=chosen.cores)
        spark.sparkContext.setLogLevel("ERROR")
        value = f"lpad(cast(id as string), {chosen.size}, 'x') as value"
        rows = spark.range(0, chosen.rows, numPartitions=chosen.tasks).selectExpr(value).cache()
        small = spark.range(0, SMALL_ROWS, numPartitions=chosen.tasks).selectExpr(value).cache()
        rows.count(), small.count()
        writes = {kind: Writes(bootstrap, kind) for kind in KINDS}
        taken: dict[tuple[str, bool], list[float]] = {}
        for number in range(-1, chosen.rounds):
            for kind, each in writes.items():
                for is_small, frame in ((False, rows), (True, small)):
                    seconds = each.seconds(frame)
                    if number >= 0:  # the first round is not counted: imports, compiled code
                        taken.setdefault((kind, is_small), []).append(seconds)
                    print(f"{kind}, {SMALL_ROWS if is_small else chosen.rows} rows: {seconds:.2f} s", file=sys.stderr)
        spark.stop()
    print(f"| write | rows/s of {chosen.size} B | seconds for {SMALL_ROWS} rows |\n|---|---:|---:|")
    for kind in KINDS:
        rate = chosen.rows / statistics.median(taken[kind, False])
        print(f"| {kind} | {rate:,.0f} | {statistics.median(taken[kind, True]):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
