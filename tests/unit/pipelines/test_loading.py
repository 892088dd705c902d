"""Files that declare pipelines."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from pyspark import cloudpickle

from tidelog.pipelines.declarations import PipelineError
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


def test_a_file_that_calls_sys_exit_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import sys\nsys.exit('no settings')\n")
    with pytest.raises(PipelineError, match=r"ends\.py:2: SystemExit: no settings"):
        load(str(tmp_path / "ends.py"))


MODULE = """
import enum

class Level(enum.Enum):
    HIGH = 3

def triple(number):
    return Level.HIGH.value * number
"""
IMPORTING = """
import local_numbers
from local_package.parts import add_one
from tidelog.pipelines import pipeline, topic

def compute(number):
    return add_one(local_numbers.triple(number))

@pipeline(source=topic("numbers"), sink=topic("results", partitions=1))
def results(numbers):
    return numbers
"""


@pytest.fixture
def _forgotten_modules() -> Iterator[None]:
    """Remove the modules that a test imports, so that the next test imports its own files."""
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] in ("local_numbers", "local_package")]:
        del sys.modules[name]


def write_modules(directory: Path) -> None:
    (directory / "local_numbers.py").write_text(MODULE)
    (directory / "local_package").mkdir(parents=True)
    (directory / "local_package" / "__init__.py").write_text("ONE = 1\n")
    (directory / "local_package" / "parts.py").write_text(
        "from local_package import ONE\ndef add_one(number):\n    return number + ONE\n"
    )


@pytest.mark.usefixtures("_forgotten_modules")
def test_modules_beside_the_file_reach_a_process_that_cannot_import_them(tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "results.py").write_text(IMPORTING)
    before = list(sys.path)
    [pipeline] = load(str(tmp_path / "results.py"))
    assert sys.path == before
    send_functions_by_value(pipeline)
    compute = vars(sys.modules[pipeline.function.__module__])["compute"]
    assert call_in_a_process_that_cannot_import_it(compute) == b"64\n"


@pytest.mark.usefixtures("_forgotten_modules")
def test_a_module_beside_the_file_that_another_one_hides_is_refused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_modules(tmp_path / name)
        (tmp_path / name / "results.py").write_text(IMPORTING)
    load(str(tmp_path / "first" / "results.py"))
    load(str(tmp_path / "first" / "results.py"))  # the same modules again
    with pytest.raises(PipelineError, match=r"imports local_numbers, but Python finds .*/first/.* before .*/second/"):
        load(str(tmp_path / "second" / "results.py"))


@pytest.mark.parametrize(
    ("name", "found"), [("sys", "a part of Python"), ("csv", r".*csv\.py"), ("pytest", ".*pytest")]
)
def test_a_module_with_the_name_of_an_installed_one_is_refused_if_it_is_imported(
    tmp_path: Path, name: str, found: str
) -> None:
    (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "results.py").write_text(FILE)
    load(str(tmp_path / "results.py"))
    (tmp_path / "results.py").write_text(f"import {name}\n" + FILE)
    with pytest.raises(PipelineError, match=rf"Python finds another module {name} \({found}.*\) before .*rename"):
        load(str(tmp_path / "results.py"))


def test_a_name_of_a_pipeline_comes_before_a_name_of_a_function(tmp_path: Path) -> None:
    file = tmp_path / "sales.py"
    file.write_text(
        """from tidelog.pipelines import parquet, pipeline, topic

def declared(each):
    @pipeline(source=topic(each), sink=parquet("/lake"), name=each)
    def made(rows):
        return rows
    return made

@pipeline(source=topic("a"), sink=parquet("/lake"), name="daily")
def hourly(rows):
    return rows

@pipeline(source=topic("b"), sink=parquet("/lake"), name="hourly")
def daily(rows):
    return rows

first, second = declared("first"), declared("second")
"""
    )
    assert [(each.name, each.function.__name__) for each in load(f"{file}:daily")] == [("daily", "hourly")]
    assert [each.name for each in load(f"{file}:second")] == ["second"]
    with pytest.raises(PipelineError, match=r"several pipelines have the function made: use one of .*: first, second$"):
        load(f"{file}:made")
