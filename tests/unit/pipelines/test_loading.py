"""Files that declare pipelines."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from pyspark import cloudpickle

from tidelog.pipelines.loading import load, send_functions_by_value

FILE = """
from tidelog.pipelines import pipeline, topic

def double(number):
    return 2 * number

@pipeline(source=topic("numbers"), sink=topic("doubles", partitions=1))
def doubles(numbers):
    return numbers
"""
WORKER = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(21))"


def test_functions_of_a_file_reach_a_process_that_cannot_import_it(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text(FILE)
    [pipeline] = load(str(tmp_path / "numbers.py"))
    send_functions_by_value(pipeline)
    double = vars(sys.modules[pipeline.function.__module__])["double"]
    command = [sys.executable, "-c", WORKER]
    result = subprocess.run(command, input=cloudpickle.dumps(double), capture_output=True, check=True, timeout=60)
    assert result.stdout == b"42\n"
