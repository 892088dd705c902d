#!/usr/bin/env python3
"""Servers that speak the Kafka protocol side by side, in one run: rates, latency, CPU for the same work, start, memory.

    bench/compare.py [--rounds N] [--data DIR] [--rows LIST] [--together] [--json FILE] [--markdown FILE]
                     [NAME[=COMMAND] ...]

`reference` (the C reference, a lower bound on the work) always runs and is what ratios are of. `kafka` alone stands for
Apache Kafka started by script/kafka, `tidelog` alone for this checkout's broker. Any other server is NAME=COMMAND with
{port} and {data} in it:
    bench/compare.py kafka tidelog other='other-server --port {port} --data-dir {data}'
The server is pinned to core 0 and the load to core 1 unless --together. The default data folder is on /dev/shm: a
machine's disk is noisy, and what is compared is the broker's work; use --data to compare on a disk. A server runs all
its rounds in one life, after a round that is not counted (a JVM's compiler needs it); the reference runs before and
after the others. Every row has a fresh log: the topic of the row before is deleted. The table shows medians, and the
ratio to the reference's. `cpu` is the server's CPU time for the row's work, the steadiest figure here.
Needs gcc; Java and mvn for kafka. Whatever it starts it stops.
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
OWN = {
    "kafka": f"{HERE.parent / 'script' / 'kafka'} start --port {{port}} --data {{data}}"
    " --set log.segment.delete.delay.ms=100",
    "tidelog": f"{HERE.parent / '.venv' / 'bin' / 'tidelog'} start --listen 127.0.0.1:{{port}} --data {{data}}"
    " --set log.segment.delete.delay.ms=100",
}
TICK = os.sysconf("SC_CLK_TCK")
LIMIT = 90  # seconds for one row
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


def build(name: str) -> pathlib.Path:
    source, binary = HERE / f"{name}.c", BUILD / name
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-O2", "-msse4.2", "-w", "-o", binary, source], check=True)
    return binary


def exchange(port: int, key: int, version: int, body: bytes, timeout: float = 30) -> bytes:
    """One request in header version 1; the response after its correlation id."""
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
    wanted = b"".join(struct.pack(">iq", i, -1) for i in range(partitions))
    ask = struct.pack(">iih", -1, 1, len(name)) + name.encode() + struct.pack(">i", partitions) + wanted
    for _ in range(200):  # until every partition's leader answers ListOffsets
        answer = exchange(port, 2, 1, ask)[4 + 2 + len(name) + 4 :]
        if all(struct.unpack_from(">h", answer, 22 * i + 4)[0] == 0 for i in range(partitions)):
            return
        time.sleep(0.05)
    raise SystemExit(f"topic {name} was created but has no leaders")


def delete_topic(port: int, name: str, data: pathlib.Path) -> None:
    """Returns when its files are gone, for those servers that keep a directory of the topic's name in `data`."""
    names = struct.pack(">ih", 1, len(name)) + name.encode() + struct.pack(">i", 20000)
    exchange(port, 20, 3, names)
    for _ in range(600):
        if not any(data.glob(f"{name}-*")):
            return
        time.sleep(0.05)
    raise SystemExit(f"topic {name} was deleted and is still in {data}")


def tree(pid: int) -> list[int]:
    found, queue = [], [pid]
    while queue:
        p = queue.pop()
        found.append(p)
        try:
            for task in pathlib.Path(f"/proc/{p}/task").iterdir():
                queue += map(int, (task / "children").read_text().split())
        except OSError:
            pass
    return found


def cpu(pid: int) -> float:
    total = 0
    for p in tree(pid):
        try:
            fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / TICK


def rss(pid: int) -> float:
    sizes = [0]
    for p in tree(pid):
        with contextlib.suppress(OSError):
            sizes += [int(x) for x in re.findall(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{p}/status").read_text())]
    return sum(sizes) / 1024


class Server:
    """One running server. `speaks` is false for the reference: it knows no topics, wants an empty log for each row."""

    def __init__(self, name: str, command: str, port: int, data: pathlib.Path, pin: bool):
        self.name, self.port, self.data, self.speaks = name, port, data, name != "reference"
        data.mkdir(parents=True, exist_ok=True)
        words = shlex.split(command.format(port=port, data=data))
        began = time.monotonic()
        log = open(data.parent / f"{data.name}.log", "w")  # noqa: SIM115 - the server's for its life
        self.process = subprocess.Popen(
            (["taskset", "-c", "0"] if pin else []) + words, stdout=log, stderr=log, start_new_session=True
        )
        while True:
            try:
                if self.speaks:
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
            for p in tree(self.process.pid):
                os.kill(p, 9)
        shutil.rmtree(self.data, ignore_errors=True)


def measure(server: Server, row: str, topic: str, pin: bool, fetch_from: str) -> dict[str, float]:
    mode, partitions, arguments = ROWS[row]
    if server.speaks and mode != "fetch":
        create_topic(server.port, topic, partitions)
    command = (["taskset", "-c", "1"] if pin else []) + [str(build("load")), mode, str(server.port)]
    command += [fetch_from if mode == "fetch" else topic, *arguments.split()]
    if mode != "fetch":
        touch_memory(server.data.parent)
    before = cpu(server.process.pid)
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print(f"\n{server.name}, {row}: nothing after {LIMIT} s", file=sys.stderr)
        return {"failed": 1}
    spent = cpu(server.process.pid) - before
    if out.returncode:
        print(f"\n{server.name}, {row}: {out.stderr.strip()}", file=sys.stderr)
        return {"failed": 1}
    found = {"cpu s": spent}
    if rate := re.search(r"([\d.]+) MB/s", out.stdout):
        found["MB/s"] = float(rate[1])
    if mode == "mconn":
        found["requests/s"] = float(re.search(r"(\d+) req/s", out.stdout)[1])
        del found["MB/s"]
    for line in out.stdout.splitlines():
        label = "ack" if line.strip().startswith("ack") else "e2e" if "e2e" in line else "rtt"
        for q in ("p50", "p99"):
            if hit := re.search(rf"\b{q}=(\d+)us", line):
                found[f"{label} {q} us"] = float(hit[1])
    return found


def touch_memory(root: pathlib.Path) -> None:
    """Right before a row: memory that a virtual machine has not used for seconds is slow to touch the first time."""
    with open(root / "touch", "wb") as file:
        for _ in range(TOUCHED_MB):
            file.write(bytes(1 << 20))
    (root / "touch").unlink()


def rows_of(seen: dict[str, dict[str, dict[str, list[float]]]], names: list[str]) -> list[tuple[str, str, list[str]]]:
    """Row, figure, and for each server the median, with its ratio to the reference's in brackets."""
    table = []
    for row, figures in seen.items():
        for what, values in figures.items():
            base = statistics.median(values["reference"]) if "reference" in values else None
            cells = []
            for n in names:
                if n not in values:
                    cells.append("-")
                    continue
                middle = statistics.median(values[n])
                cells.append(f"{middle:,.4g}" + (f" ({middle / base:.2f})" if base and n != "reference" else ""))
            table.append((row, what, cells))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated: " + ", ".join(ROWS))
    parser.add_argument("--together", action="store_true", help="both cores for everyone")
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
        commands[name] = command or OWN[name]
    seen: dict[str, dict[str, dict[str, list[float]]]] = {}

    def note(row: str, name: str, figures: dict[str, float]) -> None:
        for what, value in figures.items():
            seen.setdefault(row, {}).setdefault(what, {}).setdefault(name, []).append(value)

    try:
        for visit, name in enumerate(["reference", *(n for n in commands if n != "reference"), "reference"]):
            port = 19092 + 100 * visit  # below the ephemeral ports: a client's own socket must not take it
            folder = root / f"{name}-{visit}"
            server = Server(name, commands[name], port, folder, pin)
            try:
                if server.speaks:
                    time.sleep(2)
                    busy = cpu(server.process.pid)
                    time.sleep(3)
                    idle = (cpu(server.process.pid) - busy) / 3 * 100
                    note(
                        "start", name, {"s": server.started, "idle RSS MB": rss(server.process.pid), "idle CPU %": idle}
                    )
                for round_ in range(chosen.rounds + 1):
                    bulk = f"bulk{round_}"
                    for i, row in enumerate(rows):
                        print(f"\r{name}, round {round_} of {chosen.rounds}: {row}".ljust(78), end="", file=sys.stderr)
                        if not server.speaks and row != "bulk fetch":
                            server.stop()
                            server = Server(name, commands[name], port, folder, pin)
                        figures = measure(server, row, bulk if row == "bulk produce" else f"row{i}-{round_}", pin, bulk)
                        if round_:
                            note(row, name, figures)
                        if server.speaks and row != "bulk produce":
                            topic = bulk if row == "bulk fetch" else f"row{i}-{round_}"
                            delete_topic(port, topic, folder)
                if server.speaks:
                    note("after the load", name, {"RSS MB": rss(server.process.pid)})
            finally:
                server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print("\r".ljust(78), file=sys.stderr)
    names = list(commands)
    table = rows_of(seen, names)
    print(f"{'row':22}{'figure':14}" + "".join(f"{n:>22}" for n in names))
    for row, what, cells in table:
        print(f"{row:22}{what:14}" + "".join(f"{c:>22}" for c in cells))
    if chosen.markdown:
        lines = ["| row | figure | " + " | ".join(names) + " |", "|---|---|" + "---:|" * len(names)]
        lines += [f"| {row} | {what} | " + " | ".join(cells) + " |" for row, what, cells in table]
        chosen.markdown.write_text("\n".join(lines) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main()
