"""A dry run reads a sample also of sources that begin at the end, and names what failed in one line."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from pyspark_tidelog.options import read_options
from tidelog.pipelines import PipelineError, pipeline, topic
from tidelog.pipelines.declarations import SourceContext
from tidelog.pipelines.dry_runs import errors_of_spark, sample
from tidelog.pipelines.failures import cause_text
from tidelog.pipelines.loading import declared_pipeline

SPARK = cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", defaultParallelism=2)))
JAVA = (
    "An error occurred while calling o362.collectToPython.\n: org.apache.spark.SparkException: [FAILED_READ_FILE]"
    " Encountered error while reading file file:///x/4.csv.  SQLSTATE: KD001\n\tat org.apache.spark.A.b(A.scala:1)\n"
    "Caused by: java.io.IOException: it is a directory\n\tat org.apache.C\n\t... 1 more\n"
)


def options_of(begin: Any, first: Any, is_streaming: bool = False, **options: Any) -> dict[str, str]:
    """The options of the source `topic("sales")`. `begin` is that of the declaration, and `first` that of --from."""
    source = topic("sales", begin=begin, options=options)
    return source._read_options(SourceContext(SPARK, "h:1", "p", is_streaming=is_streaming, begin=first))


@pytest.mark.parametrize(
    ("begin", "first", "options"),
    [
        ("latest", None, {}),
        (None, "latest", {}),
        (None, None, {"StartingOffsets": " Latest "}),
        (None, None, {"startingOffsets": json.dumps({"sales": {"0": 5, "1": -1}})}),
    ],
)
def test_a_sample_of_a_source_that_begins_at_the_end_begins_at_its_earliest_record(
    begin: Any, first: Any, options: dict[str, Any]
) -> None:
    chosen = options_of(begin, first, **options)
    assert {name: text for name, text in chosen.items() if name.lower() == "startingoffsets"} == {
        "startingOffsets": "earliest"
    }
    read_options(chosen, streaming=False)
    streaming = options_of(begin, first, is_streaming=True, **options)
    expected = "latest" if begin or first else next(iter(options.values()))
    assert [text for name, text in streaming.items() if name.lower() == "startingoffsets"][-1] == expected


def test_other_begins_of_a_sample_remain() -> None:
    assert options_of(5, None)["startingTimestamp"] == "5"
    for offsets in (json.dumps({"sales": {"0": 5}}), "no JSON", "[]"):
        assert options_of(None, None, startingOffsets=offsets)["startingOffsets"] == offsets


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            AnalysisException("[UNRESOLVED_COLUMN] there is no column x\n+- Plan"),
            "AnalysisException: [UNRESOLVED_COLUMN",
        ),
        (Py4JError(JAVA), "[FAILED_READ_FILE] Encountered error while reading file file:///x/4.csv. it is"),
        (ValueError("option x is unknown"), "ValueError: option x is unknown"),
        (
            ModuleNotFoundError("the package fastavro is missing"),
            "ModuleNotFoundError: the package fastavro is missing",
        ),
    ],
)
def test_an_error_of_a_source_names_the_source_and_the_cause(error: Exception, cause: str) -> None:
    def load(_: object) -> None:
        raise error

    source = SimpleNamespace(describe=lambda: "file /x", load=load)

    @pipeline(source=cast(Any, source), sink=topic("t"))
    def copied(rows: Any) -> Any:
        return rows

    with pytest.raises(PipelineError) as raised:
        sample(declared_pipeline(copied), SPARK, "h:1", 10, None)
    assert str(raised.value).startswith(f"pipeline copied, source rows (file /x): {cause}")
    assert "\n" not in str(raised.value)


def test_an_error_of_a_result_is_one_line() -> None:
    with (
        pytest.raises(PipelineError, match=r"pipeline p, result for t: .*it is a directory$"),
        errors_of_spark("pipeline p, result for t"),
    ):
        raise Py4JError(JAVA)
    assert cause_text(RuntimeError(JAVA.partition("Caused by")[0])).endswith("reading file file:///x/4.csv.")
