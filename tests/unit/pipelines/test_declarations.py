"""Declarations of pipelines are checked before Spark starts, and loaded from files without importing PySpark."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog.pipelines import PipelineError, file, pipeline, topic
from tidelog.pipelines.declarations import interval_ms, interval_s
from tidelog.pipelines.loading import load, split_reference

GOOD = """
from tidelog.pipelines import pipeline, topic

@pipeline(source=topic("a"), sink=topic("b"))
def first(records):
    return records

@pipeline(source=[topic("a"), topic("b")], sink={"x": topic("c"), "y": topic("d")}, name="joined")
def second(left, right):
    return {"x": left, "y": right}
"""


def one(records: Any) -> Any:
    return records


def two(left: Any, right: Any) -> Any:
    return left


def any_number(*records: Any) -> Any:
    return records


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            one,
            {"source": [topic("a"), topic("b")]},
            r"the declaration has 2 sources, but the function has 1 parameter \(records\)",
        ),
        (
            two,
            {"source": topic("a")},
            r"the declaration has 1 source, but the function has 2 parameters \(left, right\)",
        ),
        (two, {"source": {"left": topic("a"), "rihgt": topic("b")}}, "but the parameters have the names left, rig"),
        (any_number, {"source": topic("a")}, r"parameter \*records: Any is not allowed"),
        (one, {"source": "a"}, "the source of parameter records is 'a', which cannot be read; use for example topic"),
        (one, {"sink": "b"}, "sink one is 'b', which cannot be written"),
        (one, {"sink": {}}, "there is no sink"),
        (one, {"sink": {"a/b": topic("b")}}, "the name of a sink 'a/b' must have"),
        (one, {"trigger": "often"}, "trigger 'often' is not an interval; write for example '5 seconds'"),
        (one, {"output_mode": "upsert"}, "output_mode 'upsert' is not one of append, update, complete"),
        (one, {"name": "../x"}, "name '../x' must have"),
        (one, {"dead_letters": ""}, "dead_letters must be the name of a topic"),
        (one, {"settings": {"cores": "2"}}, "setting 'cores' is not a setting of Spark"),
    ],
)
def test_a_wrong_declaration_names_the_function_and_the_remedy(
    function: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as failure:
        pipeline(**({"source": topic("a"), "sink": topic("b")} | arguments))(function)
    assert str(failure.value).startswith(f"pipeline {function.__name__} (test_declarations.py:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a", "pattern": "b"}, "topic a: give either a name or a pattern"),
        ({"name": "a", "begin": "yesterday"}, "begin 'yesterday' must be"),
        ({"name": "a", "value": "json"}, "value 'json' is not a format"),
        ({"name": "a", "partitions": 0}, "partitions must be at least 1"),
        ({"name": "a", "tombstones": "drop"}, "tombstones 'drop' must be"),
        ({"name": ["a", ""]}, "'' is not a topic's name"),
        (
            {"name": "a", "begin": "latest", "options": {"StartingTimestamp": 1}},
            "begin and the option StartingTimestamp",
        ),
    ],
)
def test_a_wrong_topic_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        topic(**arguments)


def test_intervals() -> None:
    texts = ["5 seconds", "500 ms", "1 minute", "2s", "1 h", "5", "-1 s", "5 fortnights", ""]
    assert [interval_ms(text) for text in texts] == [5_000, 500, 60_000, 2_000, 3_600_000, None, None, None, None]
    assert [interval_s(text, "sql orders") for text in ("500 ms", "0.25 seconds", "2 m")] == [0.5, 0.25, 120.0]
    with pytest.raises(PipelineError, match="sql orders: 'soon' is not an interval; write for example '5 seconds'"):
        interval_s("soon", "sql orders")


def test_a_file_is_loaded_without_its_directory_on_the_path(tmp_path: Path) -> None:
    file = tmp_path / "sales.py"
    file.write_text(GOOD)
    before = list(sys.path)
    assert [(p.name, list(p.sources), list(p.sinks)) for p in load(str(file))] == [
        ("first", ["records"], ["first"]),
        ("joined", ["left", "right"], ["x", "y"]),
    ]
    assert [p.name for p in load(f"{file}:second")] == [p.name for p in load(f"{file}:joined")] == ["joined"]
    assert sys.path == before
    assert "sales" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file .*/sales.py"),
        ("x = 1", "declares no pipeline: put @pipeline"),
        (
            "import sales_helpers",
            "no module sales_helpers: install it, or put its file into the directory of sales.py",
        ),
        (
            'from pyspark.sql.functions import udf\n@udf("long")\ndef one(x): return 1',
            r"sales.py:2: this needs Spark, which starts after the file is loaded.* such as LongType\(\)",
        ),
        ("\n\n1 / 0", "sales.py:3: ZeroDivisionError: division by zero"),
        ("\ndef f(:\n", "sales.py:2: SyntaxError"),
        (GOOD.replace('name="joined"', 'name="first"'), "two pipelines are named first"),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "sales.py").write_text(text)
    with pytest.raises(PipelineError, match=message):
        load(str(tmp_path / "sales.py"))


def test_an_error_in_an_imported_module_names_the_import_and_the_module(tmp_path: Path) -> None:
    (tmp_path / "sales_helpers_2.py").write_text("def f(:\n")
    (tmp_path / "sales.py").write_text("\n\nimport sales_helpers_2\n")
    with pytest.raises(PipelineError, match=r"sales.py:3: SyntaxError: .*\(sales_helpers_2.py, line 1\)"):
        load(str(tmp_path / "sales.py"))
    (tmp_path / "sales.py").write_text("\nraise SyntaxError('odd')\n")
    with pytest.raises(PipelineError, match=r"sales.py:2: SyntaxError: odd"):
        load(str(tmp_path / "sales.py"))


def test_a_missing_name_lists_the_names_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "sales.py").write_text(GOOD)
    with pytest.raises(PipelineError, match="declares no pipeline third; it has first, joined"):
        load(f"{tmp_path / 'sales.py'}:third")


def test_references() -> None:
    assert [split_reference(text) for text in ("a/b.py", "a/b.py:c", "C:b.py")] == [
        ("a/b.py", ""),
        ("a/b.py", "c"),
        ("C:b.py", ""),
    ]


def test_declaring_imports_no_pyspark(tmp_path: Path) -> None:
    (tmp_path / "sales.py").write_text(GOOD)
    program = f"import sys; from tidelog.pipelines.loading import load; load({str(tmp_path / 'sales.py')!r});"
    program += "sys.exit([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pyarrow', 'numpy')] != [])"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_options_of_files_are_the_texts_that_spark_expects() -> None:
    options = {"header": True, "maxCharsPerColumn": 100}
    assert dict(file("out", format="csv", options=options).options) == {"header": "true", "maxCharsPerColumn": "100"}
