"""Measures how long a broker takes to start, and its memory and CPU when idle: medians on this machine.

    .venv/bin/python bench/startup.py [--rounds N] [--json]

`start` is `tidelog start` in an empty directory, from the fork to the ready line and to the first answer (ApiVersions).
`again` is the same in the directory of that run. `thread` and `process` are `tidelog.testing.Broker` from the call to
the return. The first round is not counted, because it fills the page cache and compiles files.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIDELOG = str(Path(sys.executable).with_name("tidelog"))
IDLE_S = 2.0

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""An ApiVersions request: key 18, version 0, correlation id 1, no client id."""

Samples = dict[str, list[float]]


def first_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(API_VERSIONS)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            body = stream.read(size)
    assert struct.unpack_from(">ih", body) == (1, 0), "an answer with this correlation id and no error"


def start(data: str, name: str, samples: Samples) -> None:
    began = time.perf_counter()
    command = [TIDELOG, "start", "--listen", "127.0.0.1:0", "--data", data, "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        ready = time.perf_counter()
        first_answer(line.split(" listening on ")[1].split()[0])
        answered = time.perf_counter()
        add(samples, f"{name}: ready, ms", (ready - began) * 1000)
        add(samples, f"{name}: first answer, ms", (answered - began) * 1000)
        status = Path(f"/proc/{broker.pid}/status")
        if status.exists():
            add(samples, f"{name}: resident, MB", resident_kb(status) / 1000)
            before = cpu_s(broker.pid)
            time.sleep(IDLE_S)
            add(samples, f"{name}: idle CPU, %", (cpu_s(broker.pid) - before) / IDLE_S * 100)
        stop_requested_at = time.perf_counter()
        broker.terminate()
        broker.wait()
        add(samples, f"{name}: stop, ms", (time.perf_counter() - stop_requested_at) * 1000)
    assert broker.returncode == 0, f"exit code {broker.returncode}"


def resident_kb(status: Path) -> int:
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def command_line(arguments: list[str], samples: Samples) -> None:
    began = time.perf_counter()
    subprocess.run([TIDELOG, *arguments], check=True, stdout=subprocess.DEVNULL)
    add(samples, f"tidelog {' '.join(arguments)}, ms", (time.perf_counter() - began) * 1000)


def embedded(process: bool, samples: Samples) -> None:
    from tidelog.testing import Broker

    began = time.perf_counter()
    with Broker(process=process) as broker:
        name = "process" if process else "thread"
        add(samples, f"testing.Broker in a {name}: ready, ms", (time.perf_counter() - began) * 1000)
        first_answer(broker.bootstrap)


def add(samples: Samples, name: str, value: float) -> None:
    samples.setdefault(name, []).append(value)


def round_of_all(samples: Samples) -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-startup-") as directory:
        start(f"{directory}/data", "start", samples)
        start(f"{directory}/data", "again", samples)
    command_line(["--help"], samples)
    command_line(["topic", "--help"], samples)
    embedded(False, samples)
    embedded(True, samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds that are counted (9)")
    parser.add_argument("--json", action="store_true", help="medians as one JSON object")
    options = parser.parse_args()
    round_of_all({})
    samples: Samples = {}
    for _ in range(options.rounds):
        round_of_all(samples)
    medians = {name: round(statistics.median(values), 2) for name, values in samples.items()}
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    print(f"{'median of ' + str(options.rounds):44} {'median':>8} {'min':>8} {'max':>8}")
    for name, values in samples.items():
        print(f"{name:44} {medians[name]:8.1f} {min(values):8.1f} {max(values):8.1f}")


if __name__ == "__main__":
    main()
