#!/usr/bin/env python3
"""Measures whether a broker with more data is slower: the same load with 1 to 10,000 partitions, and 1 to 50 GB of log.

    .venv/bin/python bench/growth.py [--partitions N,N,...] [--gigabytes N,N,...] [--rounds N] [--data DIR]
                                     [--json FILE] [--markdown FILE]

Each column is one broker with its own directory, which is filled first: every partition with a record, or four
partitions with the given number of GB. Then the rows of bench/compare.py run on other topics of each broker in turn.
The table shows medians. `restart` is the time from the fork to the first answer: after SIGTERM, and after kill -9
during a produce. In brackets is the ratio to the first column of its kind, as the median over the rounds: it should
stay near 1. The brokers are pinned to core 0 and the load to core 1. Needs gcc, and disk space for the log. It stops
everything that it starts, and removes everything that it writes.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import compare

PORT = 19980
ROWS = ("small produce", "bulk produce", "bulk fetch", "latency 1k/s")
FILL_BATCH = 1_000_000
FILL_PARTITIONS = 4
Figures = dict[str, list[float]]


class Broker:
    """One data directory and its broker. `compare.measure` uses it like a `compare.Server`."""

    name, has_topics = "tidelog", True

    def __init__(self, data: pathlib.Path, port: int) -> None:
        self.data, self.port = data, port
        self.start()

    def start(self) -> float:
        """Start the broker. Return the seconds until its first answer."""
        command = compare.BUILT_IN_COMMANDS["tidelog"].format(port=self.port, data=self.data).split()
        began = time.monotonic()
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            try:
                compare.exchange(self.port, 3, 1, struct.pack(">i", 0), 5)
                return time.monotonic() - began
            except (OSError, struct.error):
                if self.process.poll() is not None or time.monotonic() - began > 120:
                    raise SystemExit(f"the broker in {self.data} did not start") from None
                time.sleep(0.002)

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(signal_number)
        self.process.wait(120)


def load(*arguments: object, wait: bool = True) -> "subprocess.Popen[bytes]":
    command = ["taskset", "-c", "1", str(compare.build("load")), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    if wait and process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    return process


def fill_partitions(broker: Broker, count: int) -> None:
    """Write one small batch to each of `count` partitions, in topics of at most 1,000 partitions."""
    remaining = count
    while remaining:
        name, partitions = f"held{remaining}", min(remaining, 1000)
        compare.create_topic(broker.port, name, partitions)
        load("produce", broker.port, name, partitions, 161, 1, 1, 1)
        remaining -= partitions


def fill_bytes(broker: Broker, gigabytes: int) -> None:
    compare.create_topic(broker.port, "held", FILL_PARTITIONS)
    requests = gigabytes * 10**9 // (FILL_BATCH * FILL_PARTITIONS)
    load("produce", broker.port, "held", FILL_PARTITIONS, FILL_BATCH, 1000, requests, 2)


FILLS = {"partitions": fill_partitions, "GB": fill_bytes}


class Column:
    """One broker that holds `size` partitions or GB, and its figures, with a value for each round."""

    def __init__(self, root: pathlib.Path, port: int, kind: str, size: int) -> None:
        self.kind, self.name, self.figures = kind, f"{size:,} {kind}", Figures()
        self.broker = Broker(root / f"{size}-{kind}", port)
        FILLS[kind](self.broker, size)

    def add_value(self, figure: str, value: float) -> None:
        self.figures.setdefault(figure, []).append(value)


def show_progress(*parts: object) -> None:
    print(("\r" + ", ".join(map(str, parts))).ljust(78), end="", file=sys.stderr, flush=True)


def rows(columns: list[Column], round_: int, of: int) -> None:
    """Run every row on all columns one after another, so that other work of the machine affects all columns equally."""
    topics = [f"bulk{round_}" if row == "bulk produce" else f"row{i}-{round_}" for i, row in enumerate(ROWS)]
    for row, topic in zip(ROWS, topics, strict=True):
        for column in columns:
            show_progress(f"round {round_} of {of}", row, column.name)
            os.sync()  # otherwise the writeback of the previous column's data would slow this column
            for figure, value in compare.measure(column.broker, row, topic, True, f"bulk{round_}").items():
                if round_:
                    column.add_value(f"{row}: {figure}", value)
    for column in columns:
        for row, topic in zip(ROWS, topics, strict=True):
            if row != "bulk fetch":  # the row "bulk fetch" reads the topic of the row "bulk produce"
                compare.delete_topic(column.broker.port, topic, column.broker.data)


def restarts(columns: list[Column], round_: int, of: int) -> None:
    for column in columns:
        show_progress(f"round {round_} of {of}", "restart", column.name)
        column.broker.stop()
        column.add_value("restart, clean: s", column.broker.start())
        topic = f"killed{round_}"
        compare.create_topic(column.broker.port, topic, FILL_PARTITIONS)
        producer = load("produce", column.broker.port, topic, FILL_PARTITIONS, FILL_BATCH, 1000, 10**6, 2, wait=False)
        time.sleep(2)  # a restart has to scan the data that is written in this time and not flushed
        column.broker.stop(signal.SIGKILL)
        producer.wait()
        column.add_value("restart, killed: s", column.broker.start())
        compare.delete_topic(column.broker.port, topic, column.broker.data)


def table(columns: list[Column]) -> list[str]:
    """Return a table of medians, with the median of each round's ratio to the first column of the kind in brackets."""
    lines = ["| figure | " + " | ".join(column.name for column in columns) + " |", "|---|" + "---:|" * len(columns)]
    for figure in columns[0].figures:
        cells = []
        for column in columns:
            values = column.figures[figure]
            first = next(c for c in columns if c.kind == column.kind)
            ratios = [value / base for value, base in zip(values, first.figures[figure], strict=True) if base]
            ratio = f" ({statistics.median(ratios):.2f})" if ratios and column is not first else ""
            cells.append(f"{statistics.median(values):,.4g}{ratio}")
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="1,100,10000")
    parser.add_argument("--gigabytes", default="1,10,50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path.cwd(), help="the directory of the logs")
    parser.add_argument("--json", type=pathlib.Path, help="every figure of every round")
    parser.add_argument("--markdown", type=pathlib.Path, help="the table, for docs/performance.md")
    chosen = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="growth-", dir=chosen.data))
    columns: list[Column] = []
    try:
        for kind, sizes in (("partitions", chosen.partitions), ("GB", chosen.gigabytes)):
            for size in filter(None, sizes.split(",")):
                show_progress("filling", size, kind)
                columns.append(Column(root, PORT + len(columns), kind, int(size)))
        for round_ in range(chosen.rounds + 1):
            turn = round_ % len(columns)
            rows(columns[turn:] + columns[:turn], round_, chosen.rounds)
        for column in columns:
            column.add_value("RSS MB", compare.rss(column.broker.process.pid))
        for round_ in range(1, chosen.rounds + 1):
            restarts(columns, round_, chosen.rounds)
    finally:
        for column in columns:
            with contextlib.suppress(ProcessLookupError):
                column.broker.stop(signal.SIGKILL)
        shutil.rmtree(root, ignore_errors=True)
    show_progress("")
    lines = table(columns)
    print("\n" + "\n".join(lines))
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps({column.name: column.figures for column in columns}, indent=1))


if __name__ == "__main__":
    main()
