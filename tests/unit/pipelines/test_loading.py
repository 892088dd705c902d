"""Files that declare pipelines."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from pyspark import cloudpickle

from tidelog.pipelines.loading import load, send_functions_by_value

FILE = '''
import dataclasses
import enum
from typing import NamedTuple

from tidelog.pipelines import pipeline, topic

def double(number):
    return 2 * number

class Unit(enum.Enum):
    PIECE = 1
    DOZEN = 12

class Part(NamedTuple):
    number: int
    unit: Unit

@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    unit: Unit = Unit.PIECE

    def pieces(self, times):
        part = Part(**vars(dataclasses.replace(self, number=times * self.number)))
        assert [field.name for field in dataclasses.fields(self)] == ["number", "unit"]
        assert self != Order(0) and part.unit is Unit.DOZEN
        return part.number * part.unit.value

@dataclasses.dataclass(frozen=True)
class Doubled(Order):
    """A class of the file that another class of the file extends."""

    def pieces(self, times):
        return double(super().pieces(times))

order = Doubled(2, Unit.DOZEN)

@pipeline(source=topic("numbers"), sink=topic("doubles", partitions=1))
def doubles(numbers):
    return numbers
'''
WORKER = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(21))"


def call_in_a_process_that_cannot_import_it(function: Any) -> bytes:
    """Call the function with the argument 21, and return what its result is printed as."""
    command = [sys.executable, "-c", WORKER]
    return subprocess.run(
        command, input=cloudpickle.dumps(function), capture_output=True, check=True, timeout=60
    ).stdout


def test_functions_and_classes_of_a_file_reach_a_process_that_cannot_import_it(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text(FILE)
    [pipeline] = load(str(tmp_path / "numbers.py"))
    send_functions_by_value(pipeline)
    names = vars(sys.modules[pipeline.function.__module__])
    assert call_in_a_process_that_cannot_import_it(names["double"]) == b"42\n"
    assert call_in_a_process_that_cannot_import_it(names["order"].pieces) == b"1008\n"
