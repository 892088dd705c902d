"""Servers of databases, started by `script/databases`."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "script/databases"


@contextmanager
def database(kind: str, directory: Path) -> Iterator[str]:
    """Run a server and yield its URL. Skips the test if this machine has no such server and cannot get one."""
    if kind == "sqlite":
        yield f"sqlite:///{directory}/database.db"
        return
    installed = subprocess.run([SCRIPT, "install", kind], capture_output=True, text=True, check=False)
    if installed.returncode:
        reason = (installed.stderr.strip().splitlines() or ["script/databases failed"])[-1]
        pytest.skip(f"no {kind}: {reason}")
    process = subprocess.Popen([SCRIPT, "start", kind], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: "), f"{kind} did not start"
        yield line.removeprefix("ready: ").split(" pid ")[0]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close() if process.stdout else None
