"""Errors of sinks that write files and tables: they name the sink, and say whether another attempt may succeed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError, TemporaryError
from tidelog.pipelines.sinks import commits
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.iceberg import iceberg
from tidelog.pipelines.sinks.parquet import parquet


def sinks(directory: Path, *partition_by: str) -> list[Any]:
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
    return [
        delta(str(directory / "d"), partition_by=partition_by),
        parquet(str(directory / "p"), partition_by=partition_by),
        iceberg("lake.rows", catalog=catalog, partition_by=partition_by),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [(("place",), "there is no column place, which partition_by names"), (("id", "text"), "all columns are in")],
)
def test_wrong_partition_columns_are_an_error_that_names_the_sink(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    for sink in sinks(tmp_path, *names):
        with pytest.raises(PipelineError, match=f"^{sink.describe()}: {message}"):
            opened(sink, None).write(Rows.numbers(0, 5), 0)  # type: ignore[arg-type]


def test_conflicts_with_other_writers_may_end_with_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(commits, "time", SimpleNamespace(sleep=pauses.append))

    def conflict() -> None:
        raise KeyError("version 7 exists")

    with pytest.raises(TemporaryError, match=r"delta /t: other writers changed the table .* 20 attempts .*version 7"):
        commits.commit(conflict, KeyError, "delta /t")
    assert len(pauses) == commits.ATTEMPTS_MAX - 1
