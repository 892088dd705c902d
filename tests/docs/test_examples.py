"""Every program in examples/ runs, and says what it should."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.testing import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 240


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


def run(tmp_path: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    # librdkafka's complaints about a broker that has stopped: a client that outlived it.
    assert "|FAIL|" not in done.stderr, done.stderr
    return done.stdout


def test_produce_consume(tmp_path: Path, bootstrap: str) -> None:
    told = run(tmp_path, str(EXAMPLES / "produce_consume.py"), bootstrap)
    assert told.count("is record") == 10
    assert told.endswith("read and committed 10 orders\n")


@pytest.mark.parametrize("program", ["exactly_once.py", "exactly_once_aiokafka.py", "exactly_once_kafka_python.py"])
def test_exactly_once(program: str, tmp_path: Path, bootstrap: str) -> None:
    told = run(tmp_path, str(EXAMPLES / program), bootstrap)
    assert told == "30 bookings of 30 payments, the first: booked payment 0\n"


def test_asyncio_client(tmp_path: Path) -> None:
    assert run(tmp_path, str(EXAMPLES / "asyncio_client.py")) == "average of 100 readings: 24.95\n"


def test_kafka_python_client(tmp_path: Path, bootstrap: str) -> None:
    told = run(tmp_path, str(EXAMPLES / "kafka_python_client.py"), bootstrap)
    assert told == "offset 21: hour 21\noffset 22: hour 22\noffset 23: hour 23\n"


def test_with_fixture() -> None:
    """By its own header, and with no plugin of pytest but Tidelog's: not with those that the project's tests have."""
    program = EXAMPLES / "test_with_fixture.py"
    header = re.search(r"^pytest (.*)$", program.read_text(), re.MULTILINE)
    assert header
    command = [sys.executable, "-m", "pytest", "-p", "tidelog.testing.pytest_plugin", *header[1].split()]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = kept | {"PYTHONPATH": str(EXAMPLES.parent / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_embedded_counts_on_after_a_restart(tmp_path: Path) -> None:
    starts = ["was none"]
    for number in (1, 2, 3):
        told = run(tmp_path, str(EXAMPLES / "embedded.py"), str(tmp_path / "events"))
        found = re.fullmatch(
            r"this is start number (\d); it (started on [\d-]+ at [\d:]+), the one before (.*)\n", told
        )
        assert found, told
        assert (int(found[1]), found[3]) == (number, starts[-1])
        starts.append(found[2])


def test_spark_sales_counts_on_when_it_is_run_again(tmp_path: Path, bootstrap: str) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    for units in (300, 600):
        told = run(tmp_path, str(EXAMPLES / "spark_sales.py"), bootstrap, "totals")
        totals = [line for line in told.splitlines() if ": {" in line]
        assert totals == [f'{product}: {{"units":{units}}}' for product in ("cocoa", "coffee", "tea")]


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert not [path.name for path in EXAMPLES.glob("*.py") if path.name not in text]
