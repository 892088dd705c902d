"""Servers of ZooKeeper and etcd, started by `script/stores`."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "script/stores"


class Servers(NamedTuple):
    """Running servers of one store."""

    kind: str
    addresses: list[tuple[str, int]]
    pids: list[int]
    process: "subprocess.Popen[str]"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


def require_servers() -> None:
    """Skip the test if this machine has no servers of the stores and cannot get them."""
    result = subprocess.run([SCRIPT, "install"], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["script/stores failed"])[-1]
        pytest.skip(f"no servers of the stores: {reason}")


def start(kind: str, count: int = 1) -> Servers:
    """Start servers and wait until they answer."""
    require_servers()
    process = subprocess.Popen([SCRIPT, "start", kind, "--servers", str(count)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready: "), f"{kind} did not start"
    addresses, _, pids = line.removeprefix("ready: ").partition(" pids ")
    pairs = [text.rpartition(":") for text in addresses.split(",")]
    return Servers(kind, [(host, int(port)) for host, _, port in pairs], [int(pid) for pid in pids.split()], process)
