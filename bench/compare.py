#!/usr/bin/env python3
"""Compares servers that speak the Kafka protocol in one run: rates, latency, CPU for the same work, start, memory.

    bench/compare.py [--rounds N] [--data DIR] [--rows LIST] [--together] [--json FILE] [--markdown FILE]
                     [NAME[=COMMAND] ...]

`reference` (the C reference, a lower bound on the work) always runs, and ratios are relative to it. `kafka` without a
command is Apache Kafka, started by script/kafka; `tidelog` without a command is this checkout's broker. Any other
server is NAME=COMMAND with {port} and {data} in it:
    bench/compare.py kafka tidelog other='other-server --port {port} --data-dir {data}'
The server is pinned to core 0 and the load to core 1 unless --together. The default data folder is on /dev/shm: times
on a disk vary, and the comparison is of the broker's work; use --data to compare on a disk. A server runs all its
rounds without a restart, after one round that is not counted (a JVM's compiler needs it); the reference runs before and
after the others. Every row has an empty log: the topic of the previous row is deleted. The table shows medians, and the
ratio to the reference's. `cpu` is the server's CPU time for the row's work; it varies least of all figures.
Needs gcc; Java and mvn for kafka. It stops everything that it starts.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tidelog-bench"
BUILT_IN_COMMANDS = {
    "kafka": f"{HERE.parent / 'script' / 'kafka'} start --port {{port}} --data {{data}}"
    " --set log.segment.delete.delay.ms=100",
    "tidelog": f"{HERE.parent / '.venv' / 'bin' / 'tidelog'} start --listen 127.0.0.1:{{port}} --data {{data}}"
    " --set log.segment.delete.delay.ms=100",
}
TICK = os.sysconf("SC_CLK_TCK")
ROW_TIMEOUT_S = 90  # seconds for one row
TOUCHED_MB = 1536  # more than the log of any row

# name: (mode, partitions, arguments after PORT TOPIC)
ROWS = {
    "bulk produce": ("produce", 4, "4 1000000 1000 300 4"),
    "bulk fetch": ("fetch", 4, "4 1048576 1190000000"),
    "1 KB records produce": ("produce", 4, "4 16384 16 8000 5"),
    "small produce": ("mconn", 100, "161 100 100000"),
    "latency 1k/s": ("lat", 1, "161 1000 5 0"),
    "latency 10k/s": ("lat", 1, "161 10000 5 0"),
}

AllFigures = dict[str, dict[str, dict[str, list[float]]]]
"""The values of all rounds, by row, figure and server."""


def build(name: str) -> pathlib.Path:
    source, binary = HERE / f"{name}.c", BUILD / name
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-O2", "-msse4.2", "-w", "-o", binary, source], check=True)
    return binary


def exchange(port: int, key: int, version: int, body: bytes, timeout: float = 30) -> bytes:
    """Send one request with header version 1. Return the response after its correlation id."""
    frame = struct.pack(">hhih", key, version, 1, 5) + b"bench" + body
    with socket.create_connection(("127.0.0.1", port), timeout) as s:
        s.sendall(struct.pack(">i", len(frame)) + frame)
        with s.makefile("rb") as r:
            (size,) = struct.unpack(">i", r.read(4))
            return r.read(size)[4:]


def create_topic(port: int, name: str, partitions: int) -> None:
    topic = struct.pack(">h", len(name)) + name.encode() + struct.pack(">ihii", partitions, 1, 0, 0)
    answer = exchange(port, 19, 2, struct.pack(">i", 1) + topic + struct.pack(">i?", 20000, False))
    at = 8 + 2 + len(name)  # throttle time, array size, name
    (error,) = struct.unpack(">h", answer[at : at + 2])
    if error:
        raise SystemExit(f"CreateTopics {name}: error code {error}")
    positions = b"".join(struct.pack(">iq", i, -1) for i in range(partitions))
    request = struct.pack(">iih", -1, 1, len(name)) + name.encode() + struct.pack(">i", partitions) + positions
    for _ in range(200):  # repeat until the leaders of all partitions answer ListOffsets
        answer = exchange(port, 2, 1, request)[4 + 2 + len(name) + 4 :]
        if all(struct.unpack_from(">h", answer, 22 * i + 4)[0] == 0 for i in range(partitions)):
            return
        time.sleep(0.05)
    raise SystemExit(f"topic {name} was created but has no leaders")


def delete_topic(port: int, name: str, data: pathlib.Path) -> None:
    """Delete a topic, and wait until no directory in `data` has its name. (Not every server has such directories.)"""
    names = struct.pack(">ih", 1, len(name)) + name.encode() + struct.pack(">i", 20000)
    exchange(port, 20, 3, names)
    for _ in range(600):
        if not any(data.glob(f"{name}-*")):
            return
        time.sleep(0.05)
    raise SystemExit(f"topic {name} was deleted, but its directories are still in {data}")


def process_tree(pid: int) -> list[int]:
    pids, queue = [], [pid]
    while queue:
        p = queue.pop()
        pids.append(p)
        try:
            for task in pathlib.Path(f"/proc/{p}/task").iterdir():
                queue += map(int, (task / "children").read_text().split())
        except OSError:
            pass
    return pids


def cpu(pid: int) -> float:
    total = 0
    for p in process_tree(pid):
        try:
            fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / TICK


def rss(pid: int) -> float:
    sizes = [0]
    for p in process_tree(pid):
        with contextlib.suppress(OSError):
            sizes += [int(x) for x in re.findall(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{p}/status").read_text())]
    return sum(sizes) / 1024


class Server:
    """One running server. `has_topics` is false for the reference, which needs an empty log for each row."""

    def __init__(self, name: str, command: str, port: int, data: pathlib.Path, pin: bool):
        self.name, self.port, self.data, self.has_topics = name, port, data, name != "reference"
        data.mkdir(parents=True, exist_ok=True)
        words = shlex.split(command.format(port=port, data=data))
        began = time.monotonic()
        log = open(data.parent / f"{data.name}.log", "w")  # noqa: SIM115 - open while the server runs
        self.process = subprocess.Popen(
            (["taskset", "-c", "0"] if pin else []) + words, stdout=log, stderr=log, start_new_session=True
        )
        while True:
            try:
                if self.has_topics:
                    exchange(port, 3, 1, struct.pack(">i", 0), 5)
                else:
                    socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except (OSError, struct.error):
                if self.process.poll() is not None or time.monotonic() - began > 60:
                    raise SystemExit(f"{name} did not start: see {log.name}") from None
                time.sleep(0.002)
        self.started = time.monotonic() - began

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            for p in process_tree(self.process.pid):
                os.kill(p, 9)
        shutil.rmtree(self.data, ignore_errors=True)


def measure(server: Server, row: str, topic: str, pin: bool, fetch_from: str) -> dict[str, float]:
    mode, partitions, arguments = ROWS[row]
    if server.has_topics and mode != "fetch":
        create_topic(server.port, topic, partitions)
    command = (["taskset", "-c", "1"] if pin else []) + [str(build("load")), mode, str(server.port)]
    command += [fetch_from if mode == "fetch" else topic, *arguments.split()]
    if mode != "fetch":
        touch_memory(server.data.parent)
    before = cpu(server.process.pid)
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=ROW_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"\n{server.name}, {row}: no result after {ROW_TIMEOUT_S} s", file=sys.stderr)
        return {"failed": 1}
    spent = cpu(server.process.pid) - before
    if out.returncode:
        print(f"\n{server.name}, {row}: {out.stderr.strip()}", file=sys.stderr)
        return {"failed": 1}
    figures = {"cpu s": spent}
    if rate := re.search(r"([\d.]+) MB/s", out.stdout):
        figures["MB/s"] = float(rate[1])
    if mode == "mconn":
        figures["requests/s"] = float(re.search(r"(\d+) req/s", out.stdout)[1])
        del figures["MB/s"]
    for line in out.stdout.splitlines():
        label = "ack" if line.strip().startswith("ack") else "e2e" if "e2e" in line else "rtt"
        for q in ("p50", "p99"):
            if hit := re.search(rf"\b{q}=(\d+)us", line):
                figures[f"{label} {q} us"] = float(hit[1])
    return figures


def touch_memory(root: pathlib.Path) -> None:
    """Touch memory immediately before a row, because in a virtual machine the first access to memory that was unused
    for seconds is slow.
    """
    with open(root / "touch", "wb") as file:
        for _ in range(TOUCHED_MB):
            file.write(bytes(1 << 20))
    (root / "touch").unlink()


def rows_of(all_figures: AllFigures, names: list[str]) -> list[tuple[str, str, list[str]]]:
    """Return (row name, figure, cells). A cell is a server's median, with its ratio to the reference in brackets."""
    table = []
    for row, figures in all_figures.items():
        for figure, values in figures.items():
            base = statistics.median(values["reference"]) if "reference" in values else None
            cells = []
            for n in names:
                if n not in values:
                    cells.append("-")
                    continue
                median = statistics.median(values[n])
                cells.append(f"{median:,.4g}" + (f" ({median / base:.2f})" if base and n != "reference" else ""))
            table.append((row, figure, cells))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated: " + ", ".join(ROWS))
    parser.add_argument("--together", action="store_true", help="let server and load use both cores")
    parser.add_argument("--json", type=pathlib.Path, help="every figure of every round")
    parser.add_argument("--markdown", type=pathlib.Path, help="the table, for docs/performance.md")
    chosen = parser.parse_args()
    pin, rows = not chosen.together, chosen.rows.split(",")
    if "bulk fetch" in rows and "bulk produce" not in rows:
        rows.insert(0, "bulk produce")
    root = pathlib.Path(tempfile.mkdtemp(prefix="compare-", dir=chosen.data))
    commands = {"reference": f"{build('reference')} {{port}} {{data}} 1"}
    for s in chosen.servers:
        name, _, command = s.partition("=")
        commands[name] = command or BUILT_IN_COMMANDS[name]
    all_figures: AllFigures = {}

    def add_figures(row: str, name: str, figures: dict[str, float]) -> None:
        for figure, value in figures.items():
            all_figures.setdefault(row, {}).setdefault(figure, {}).setdefault(name, []).append(value)

    try:
        for run_number, name in enumerate(["reference", *(n for n in commands if n != "reference"), "reference"]):
            port = 19092 + 100 * run_number  # below the ephemeral ports, which the sockets of clients use
            folder = root / f"{name}-{run_number}"
            server = Server(name, commands[name], port, folder, pin)
            try:
                if server.has_topics:
                    time.sleep(2)
                    busy = cpu(server.process.pid)
                    time.sleep(3)
                    idle = (cpu(server.process.pid) - busy) / 3 * 100
                    add_figures(
                        "start", name, {"s": server.started, "idle RSS MB": rss(server.process.pid), "idle CPU %": idle}
                    )
                for round_ in range(chosen.rounds + 1):
                    bulk = f"bulk{round_}"
                    for i, row in enumerate(rows):
                        print(f"\r{name}, round {round_} of {chosen.rounds}: {row}".ljust(78), end="", file=sys.stderr)
                        if not server.has_topics and row != "bulk fetch":
                            server.stop()
                            server = Server(name, commands[name], port, folder, pin)
                        figures = measure(server, row, bulk if row == "bulk produce" else f"row{i}-{round_}", pin, bulk)
                        if round_:
                            add_figures(row, name, figures)
                        if server.has_topics and row != "bulk produce":
                            topic = bulk if row == "bulk fetch" else f"row{i}-{round_}"
                            delete_topic(port, topic, folder)
                if server.has_topics:
                    add_figures("after the load", name, {"RSS MB": rss(server.process.pid)})
            finally:
                server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print("\r".ljust(78), file=sys.stderr)
    names = list(commands)
    table = rows_of(all_figures, names)
    print(f"{'row':22}{'figure':14}" + "".join(f"{n:>22}" for n in names))
    for row, figure, cells in table:
        print(f"{row:22}{figure:14}" + "".join(f"{c:>22}" for c in cells))
    if chosen.markdown:
        lines = ["| row | figure | " + " | ".join(names) + " |", "|---|---|" + "---:|" * len(names)]
        lines += [f"| {row} | {figure} | " + " | ".join(cells) + " |" for row, figure, cells in table]
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(all_figures, indent=1))


if __name__ == "__main__":
    main()
