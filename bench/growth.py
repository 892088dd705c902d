#!/usr/bin/env python3
"""Whether a broker that holds more is slower: the same load beside 1 to 10,000 partitions, and on 1 to 50 GB of log.

    .venv/bin/python bench/growth.py [--partitions N,N,...] [--gigabytes N,N,...] [--rounds N] [--data DIR]
                                     [--json FILE] [--markdown FILE]

Each column is one broker in a directory of its own, filled first: every partition with a record, or four partitions
with so many GB. Then the rows of bench/compare.py run on other topics; medians. `restart` is the time from the fork to
the first answer: after SIGTERM, and after kill -9 in the middle of a produce. In brackets the ratio to the first column
of its kind: a flat line is the aim. The broker is pinned to core 0 and the load to core 1. Needs gcc, and room for the
log. Whatever it starts it stops, whatever it writes it removes.
"""

import argparse
import contextlib
import json
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

    name, speaks, port = "tidelog", True, PORT

    def __init__(self, data: pathlib.Path) -> None:
        self.data = data
        self.start()

    def start(self) -> float:
        """Seconds until it answers."""
        command = compare.OWN["tidelog"].format(port=PORT, data=self.data).split()
        began = time.monotonic()
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            try:
                compare.exchange(PORT, 3, 1, struct.pack(">i", 0), 5)
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
        compare.create_topic(PORT, name, now)
        load("produce", PORT, name, now, 161, 1, 1, 1)
        left -= now


def fill_bytes(broker: Broker, gigabytes: int) -> None:
    compare.create_topic(PORT, "held", FILL_PARTITIONS)
    requests = gigabytes * 10**9 // (FILL_BATCH * FILL_PARTITIONS)
    load("produce", PORT, "held", FILL_PARTITIONS, FILL_BATCH, 1000, requests, 2)


def measure(broker: Broker, rounds: int, note: Figures) -> None:
    for round_ in range(rounds + 1):
        for i, row in enumerate(ROWS):
            print(f"\r{broker.data.name}, round {round_} of {rounds}: {row}".ljust(78), end="", file=sys.stderr)
            topic = f"bulk{round_}" if row == "bulk produce" else f"row{i}-{round_}"
            figures = compare.measure(broker, row, topic, True, f"bulk{round_}")
            if round_:
                for what, value in figures.items():
                    note.setdefault(f"{row}: {what}", []).append(value)
    note["RSS MB"] = [compare.rss(broker.process.pid)]


def restarts(broker: Broker, rounds: int, note: Figures) -> None:
    for _ in range(rounds):
        broker.stop()
        note.setdefault("restart, clean: s", []).append(broker.start())
    for round_ in range(rounds):
        compare.create_topic(PORT, f"killed{round_}", FILL_PARTITIONS)
        busy = load("produce", PORT, f"killed{round_}", FILL_PARTITIONS, FILL_BATCH, 1000, 10**6, 2, wait=False)
        time.sleep(2)  # what is written and not flushed yet is what a restart has to scan
        broker.stop(signal.SIGKILL)
        busy.wait()
        note.setdefault("restart, killed: s", []).append(broker.start())


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
    kinds = (("partitions", chosen.partitions, fill_partitions), ("GB", chosen.gigabytes, fill_bytes))
    columns: dict[str, Figures] = {}
    first: dict[str, str] = {}
    try:
        for kind, sizes, fill in kinds:
            for size in filter(None, sizes.split(",")):
                name = f"{int(size):,} {kind}"
                first[name] = first.get(kind) or first.setdefault(kind, name)
                broker = Broker(root / f"{size}-{kind}")
                try:
                    fill(broker, int(size))
                    measure(broker, chosen.rounds, columns.setdefault(name, {}))
                    restarts(broker, chosen.rounds, columns[name])
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        broker.stop(signal.SIGKILL)
                    shutil.rmtree(broker.data, ignore_errors=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print("\r".ljust(78), file=sys.stderr)
    lines = ["| figure | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for figure in next(iter(columns.values())):
        cells = []
        for name, figures in columns.items():
            middle = statistics.median(figures[figure])
            base = statistics.median(columns[first[name]][figure])
            cells.append(f"{middle:,.4g}" + (f" ({middle / base:.2f})" if first[name] != name and base else ""))
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(columns, indent=1))


if __name__ == "__main__":
    main()
