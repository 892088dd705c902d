"""Queries with a stand-in for Spark's query: their start, and their figures."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tidelog.pipelines import file, http, parquet, pipeline, queries, topic
from tidelog.pipelines.declarations import Pipeline, PipelineError
from tidelog.pipelines.loading import declared_pipeline
from tidelog.pipelines.queries import RunContext, RunningQuery, start_queries
from tidelog.pipelines.state import PipelineState


class StartingQuery:
    """In place of Spark's query: each read of its status returns the next message."""

    def __init__(self, messages: list[str], active: list[bool]) -> None:
        self.messages = messages
        self.active = active

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self.messages.pop(0)}

    @property
    def isActive(self) -> bool:
        return self.active.pop(0) if self.active else True


def waited(monkeypatch: pytest.MonkeyPatch, messages: list[str], active: list[bool]) -> int:
    """Wait for the sources of a query, and return the number of pauses."""
    pauses: list[float] = []
    monkeypatch.setattr(queries.time, "sleep", pauses.append)
    query = RunningQuery("sink", cast(Any, None), lambda: None)
    query._query = cast(Any, StartingQuery(messages, active))
    waiter = threading.Thread(target=query.wait_for_sources, daemon=True)
    waiter.start()
    waiter.join(20)
    assert not waiter.is_alive()
    return len(pauses)


def test_the_next_query_waits_until_the_sources_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = ["Initializing StreamExecution", "Initializing sources", "Getting offsets from ...", "unread"]
    assert waited(monkeypatch, messages, []) == 2
    assert messages == ["unread"]


def test_a_query_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, ["Initializing sources"], [True, False]) == 1


def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "SOURCES_START_MAX_S", 0.0)
    assert waited(monkeypatch, [], []) == 0


def test_dead_letters_are_counted_once_although_the_sink_computes_the_rows_twice() -> None:
    reports = [report(0, unparsed=0), report(1, unparsed=6), report(2, unparsed=0)]
    spark_query = SimpleNamespace(lastProgress=lambda: reports[-1], recentProgress=lambda: reports)
    sink = SimpleNamespace(write=lambda *_: None)
    query = RunningQuery("sink", cast(Any, sink), lambda: None)
    query._query = cast(Any, SimpleNamespace(_jsq=spark_query))
    query._has_query.set()
    query.dead_letters = cast(Any, SimpleNamespace(write=lambda batch: 3 if batch in (1, 3) else 0))
    for batch in range(4):
        query._write(cast(Any, None), batch)
    query.update_status()
    assert (query.status.batches, query.status.dead_letters) == (3, 3)
    reports.append(report(3, unparsed=3))
    query.update_status()
    query.update_status()
    assert (query.status.batches, query.status.dead_letters) == (4, 6)


def report(batch: int, *, unparsed: int) -> Any:
    document = {
        "timestamp": f"2026-01-01T00:00:0{batch}Z",
        "batchId": batch,
        "numInputRows": 9,
        "durationMs": {"triggerExecution": 10, "addBatch": 5},
        "observedMetrics": {"records of source sales": {"records": 9, "unparsed": unparsed}},
    }
    return SimpleNamespace(json=lambda: json.dumps(document))


@pytest.mark.parametrize(("error", "raised"), [(RuntimeError("py4j"), RuntimeError), (None, PipelineError)])
def test_a_query_that_cannot_start_closes_its_sink(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, raised: type[Exception]
) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    from pyspark.errors import PySparkException

    closed: list[bool] = []
    sink = SimpleNamespace(close=lambda: closed.append(True))
    query = RunningQuery("sink", cast(Any, sink), lambda: None)

    def fail(*_: object, **__: object) -> None:
        raise error or PySparkException("no")

    monkeypatch.setattr(query, "start", fail)
    context: Any = MagicMock()
    with pytest.raises(raised):
        queries._start_query(
            Pipeline("p", print, {}, {}, "5 seconds"), query, context, context, context, "/c", {}, {}, once=True
        )
    assert closed == [True]


def test_the_cause_of_a_failed_start_is_raised_although_the_sink_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")

    def fail(text: str) -> None:
        raise RuntimeError(text)

    query = RunningQuery("sink", cast(Any, SimpleNamespace(close=lambda: fail("connection lost"))), lambda: None)
    monkeypatch.setattr(query, "start", lambda *_, **__: fail("the JVM has ended"))
    context: Any = MagicMock()
    with pytest.raises(RuntimeError, match="the JVM has ended"):
        queries._start_query(
            Pipeline("p", print, {}, {}, "5 seconds"), query, context, context, context, "/c", {}, {}, once=True
        )
    assert caplog.messages == ["pipeline_stop_failed pipeline=p RuntimeError: connection lost"]


def test_a_query_whose_end_fails_closes_its_sink() -> None:
    closed: list[bool] = []
    query = RunningQuery("sink", cast(Any, SimpleNamespace(close=lambda: closed.append(True))), lambda: None)
    query._query = MagicMock()
    query._query.stop.side_effect = RuntimeError("the JVM has ended")
    with pytest.raises(RuntimeError, match="the JVM has ended"):
        query.stop()
    assert closed == [True]


def test_a_function_that_calls_sys_exit_is_a_failure() -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    declared = Pipeline("p", lambda: sys.exit("no rows"), {}, {}, "5 seconds")
    with pytest.raises(PipelineError, match=r"the function raised SystemExit: no rows$"):
        queries.results_of(declared, {})


def test_a_sink_that_calls_sys_exit_fails_its_query() -> None:
    query = RunningQuery("sink", cast(Any, SimpleNamespace(write=lambda *_: sys.exit(1))), lambda: None)
    query._has_query.set()
    query._query = MagicMock()
    with pytest.raises(queries.WriteFailed, match="SystemExit"):
        query._write(cast(Any, None), 0)
    assert isinstance(query.exception(), PipelineError)


@pytest.mark.parametrize("source", [file("in", format="json", schema="id long"), topic("sales")])
def test_dead_letters_without_a_source_that_has_them_are_refused(source: Any, tmp_path: Path) -> None:
    @pipeline(source=source, sink=parquet(str(tmp_path)), dead_letters="dead")
    def copied(rows: Any) -> Any:
        return rows

    declared = declared_pipeline(copied)
    state = PipelineState(tmp_path, declared.name)
    identity = state.create_identity(None)
    with pytest.raises(PipelineError, match="pipeline copied: dead_letters is set, but no source supports it"):
        start_queries(declared, MagicMock(), RunContext("127.0.0.1:1", once=True), state, identity)


@pytest.mark.parametrize(
    ("readers", "message"),
    [
        ({"a": 2, "b": 1}, r"sinks a and b read the pages of http\(\) in /pages, and"),
        ({"a": 2}, r"sink a reads the pages of http\(\) in /pages twice, and"),
        ({"a": 3}, r"sink a reads the pages of http\(\) in /pages 3 times, and"),
    ],
)
def test_each_reader_of_pages_is_named_once(
    readers: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    monkeypatch.setattr(queries, "streams_with_option", lambda count, _: ["/pages"] * count)
    declared = Pipeline("p", print, {"pages": http("http://host/x")}, {}, "5 seconds")
    with pytest.raises(PipelineError, match=message):
        queries.refuse_shared_pages(declared, cast(Any, readers))
