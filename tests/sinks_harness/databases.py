"""Servers of databases, started by `script/databases`."""

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TABLES = (f"t{n}" for n in itertools.count())
"""Names of tables; each is used once."""
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


def query(url: str, statement: str) -> list[Any]:
    """Execute a statement, and return its rows."""
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()
