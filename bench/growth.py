#!/usr/bin/env python3
"""Whether a broker that holds more is slower: the same load beside 1 to 10,000 partitions, and on 1 to 50 GB of log.

    .venv/bin/python bench/growth.py [--partitions N,N,...] [--gigabytes N,N,...] [--rounds N] [--data DIR]
                                     [--json FILE] [--markdown FILE]

Each column is one broker in a directory of its own, filled first: every partition with a record, or four partitions
with so many GB. Then the rows of bench/compare.py run on other topics of each, in turns; medians. `restart` is the time
from the fork to the first answer: after SIGTERM, and after kill -9 in the middle of a produce. In brackets the ratio to
the first column of its kind, the median over the rounds: a flat line is the aim. The brokers are pinned to core 0 and
the load to core 1. Needs gcc, and room for the log. Whatever it starts it stops, whatever it writes it removes.
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
    """One data directory and the broker that runs in it; looks like `compare.Server` to `compare.measure`."""

    name, speaks = "tidelog", True

    def __init__(self, data: pathlib.Path, port: int) -> None:
        self.data, self.port = data, port
        self.start()

    def start(self) -> float:
        """Seconds until it answers."""
        command = compare.OWN["tidelog"].format(port=self.port, data=self.data).split()
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

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(120)


def load(*arguments: object, wait: bool = True) -> "subprocess.Popen[bytes]":
    command = ["taskset", "-c", "1", str(compare.build("load")), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    if wait and process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    return process


def fill_partitions(broker: Broker, count: int) -> None:
    """One small batch in each of `count` partitions, of topics of up to 1,000."""
    left = count
    while left:
        name, now = f"held{left}", min(left, 1000)
        compare.create_topic(broker.port, name, now)
        load("produce", broker.port, name, now, 161, 1, 1, 1)
        left -= now


def fill_bytes(broker: Broker, gigabytes: int) -> None:
    compare.create_topic(broker.port, "held", FILL_PARTITIONS)
    requests = gigabytes * 10**9 // (FILL_BATCH * FILL_PARTITIONS)
    load("produce", broker.port, "held", FILL_PARTITIONS, FILL_BATCH, 1000, requests, 2)


FILLS = {"partitions": fill_partitions, "GB": fill_bytes}


class Column:
    """One broker that holds `size` of a kind, and what was measured of it, a value for each round."""

    def __init__(self, root: pathlib.Path, port: int, kind: str, size: int) -> None:
        self.kind, self.name, self.figures = kind, f"{size:,} {kind}", Figures()
        self.broker = Broker(root / f"{size}-{kind}", port)
        FILLS[kind](self.broker, size)

    def note(self, what: str, value: float) -> None:
        self.figures.setdefault(what, []).append(value)


def say(*what: object) -> None:
    print(("\r" + ", ".join(map(str, what))).ljust(78), end="", file=sys.stderr, flush=True)


def rows(columns: list[Column], round_: int, of: int) -> None:
    """Every row on every column in turns: what the machine does meanwhile, it does to all of them alike."""
    topics = [f"bulk{round_}" if row == "bulk produce" else f"row{i}-{round_}" for i, row in enumerate(ROWS)]
    for row, topic in zip(ROWS, topics, strict=True):
        for column in columns:
            say(f"round {round_} of {of}", row, column.name)
            os.sync()  # what the last column wrote is not written back at this one's cost
            for what, value in compare.measure(column.broker, row, topic, True, f"bulk{round_}").items():
                if round_:
                    column.note(f"{row}: {what}", value)
    for column in columns:
        for row, topic in zip(ROWS, topics, strict=True):
            if row != "bulk fetch":  # which reads what bulk produce wrote
                compare.delete_topic(column.broker.port, topic, column.broker.data)


def restarts(columns: list[Column], round_: int, of: int) -> None:
    for column in columns:
        say(f"round {round_} of {of}", "restart", column.name)
        column.broker.stop()
        column.note("restart, clean: s", column.broker.start())
        topic = f"killed{round_}"
        compare.create_topic(column.broker.port, topic, FILL_PARTITIONS)
        busy = load("produce", column.broker.port, topic, FILL_PARTITIONS, FILL_BATCH, 1000, 10**6, 2, wait=False)
        time.sleep(2)  # what is written and not flushed yet is what a restart has to scan
        column.broker.stop(signal.SIGKILL)
        busy.wait()
        column.note("restart, killed: s", column.broker.start())
        compare.delete_topic(column.broker.port, topic, column.broker.data)


def table(columns: list[Column]) -> list[str]:
    """Medians; in brackets the median of the ratios, round by round, to the first column of the same kind."""
    lines = ["| figure | " + " | ".join(column.name for column in columns) + " |", "|---|" + "---:|" * len(columns)]
    for figure in columns[0].figures:
        cells = []
        for column in columns:
            values = column.figures[figure]
            first = next(c for c in columns if c.kind == column.kind)
            ratios = [mine / base for mine, base in zip(values, first.figures[figure], strict=True) if base]
            ratio = f" ({statistics.median(ratios):.2f})" if ratios and column is not first else ""
            cells.append(f"{statistics.median(values):,.4g}{ratio}")
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="1,100,10000")
    parser.add_argument("--gigabytes", default="1,10,50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path.cwd(), help="where the logs are made")
    parser.add_argument("--json", type=pathlib.Path, help="every figure of every round")
    parser.add_argument("--markdown", type=pathlib.Path, help="the table, for docs/performance.md")
    chosen = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="growth-", dir=chosen.data))
    columns: list[Column] = []
    try:
        for kind, sizes in (("partitions", chosen.partitions), ("GB", chosen.gigabytes)):
            for size in filter(None, sizes.split(",")):
                say("filling", size, kind)
                columns.append(Column(root, PORT + len(columns), kind, int(size)))
        for round_ in range(chosen.rounds + 1):
            turn = round_ % len(columns)
            rows(columns[turn:] + columns[:turn], round_, chosen.rounds)
        for column in columns:
            column.note("RSS MB", compare.rss(column.broker.process.pid))
        for round_ in range(1, chosen.rounds + 1):
            restarts(columns, round_, chosen.rounds)
    finally:
        for column in columns:
            with contextlib.suppress(ProcessLookupError):
                column.broker.stop(signal.SIGKILL)
        shutil.rmtree(root, ignore_errors=True)
    say("")
    lines = table(columns)
    print("\n" + "\n".join(lines))
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps({column.name: column.figures for column in columns}, indent=1))


if __name__ == "__main__":
    main()
