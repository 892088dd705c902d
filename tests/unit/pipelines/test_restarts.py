"""Restarts with pauses, and the end of a run, with queries that a test ends as it likes."""

import errno
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.pipelines import running
from tidelog.pipelines.declarations import Pipeline, PipelineError, TemporaryError, pipeline
from tidelog.pipelines.loading import declared_pipeline
from tidelog.pipelines.queries import RunContext
from tidelog.pipelines.running import ONCE_RESTARTS_MAX, PAUSE_MAX_S, Run, RunningPipeline
from tidelog.pipelines.state import PipelineState
from tidelog.pipelines.status import DONE, FAILED, RUNNING, STARTING, STOPPED, WAITING, QueryStatus
from tidelog.pipelines.stopping import NotStopped
from tidelog.pipelines.topics import topic

WAIT_S = 20


@pipeline(source=topic("a"), sink=topic("b"))
def copy(records: Any) -> Any:
    return records


class ScriptedQuery:
    """A query that does what its test says."""

    def __init__(self) -> None:
        self.status = QueryStatus("copy")
        self.is_active = True
        self.failure: Exception | None = None
        self.in_batch = False
        self.stops_requested = 0

    def exception(self) -> Exception | None:
        return self.failure

    def update_status(self) -> None:
        pass

    def is_in_batch(self) -> bool:
        return self.in_batch and self.is_active

    def request_stop(self) -> None:
        self.stops_requested += 1

    def stop(self) -> None:
        self.is_active = False

    def fail(self, error: Exception) -> None:
        self.failure, self.is_active = error, False


class Script:
    """The queries of all starts of one pipeline, and the errors of starts that fail."""

    def __init__(self) -> None:
        self.queries: list[ScriptedQuery] = []
        self.start_error: Exception | None = None

    def __call__(self, *arguments: object) -> list[ScriptedQuery]:
        if self.start_error is not None:
            raise self.start_error
        self.queries.append(ScriptedQuery())
        return [self.queries[-1]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    monkeypatch.setattr(running, "start_queries", script)
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: spark)
    return script


def start(each: RunningPipeline, now_s: float) -> None:
    """Start the pipeline, and wait until `step` knows the result."""
    each.start()
    step_until_started(each, now_s)


def step_until_started(each: RunningPipeline, now_s: float) -> None:
    wait_for_ending(each)
    each.step(now_s)
    if each._starting is not None:
        each._starting._thread.join(WAIT_S)
        each.step(now_s)
    assert each.status.state != STARTING


def wait_for_ending(each: RunningPipeline) -> None:
    """Wait until the queries of the last start have ended. The next `step` notices it."""
    if each._ending is not None:
        each._ending._thread.join(WAIT_S)
        assert each._ending.has_ended


def running_pipeline(tmp_path: Path, *, once: bool = False) -> RunningPipeline:
    spark: Any = None
    run, state = RunContext("127.0.0.1:9092", once), PipelineState(tmp_path, "copy")
    state.create_identity(None)
    return RunningPipeline(declared_pipeline(copy), spark, run, state)


def test_pauses_double_and_a_success_ends_the_series(script: Script, tmp_path: Path) -> None:
    each, now_s = running_pipeline(tmp_path), 0.0
    start(each, now_s)
    pauses = []
    for _ in range(8):
        script.queries[-1].fail(RuntimeError("no answer"))
        each.step(now_s)
        assert (each.status.state, each.status.error) == (WAITING, "RuntimeError: no answer")
        assert each.status.restart_in_s is not None
        pauses.append(each.status.restart_in_s)
        each.step(now_s + pauses[-1] - 0.01)
        assert each.status.state == WAITING
        now_s += pauses[-1]
        step_until_started(each, now_s)
        assert each.status.state == RUNNING
    assert pauses == [1, 2, 4, 8, 16, 32, PAUSE_MAX_S, PAUSE_MAX_S]
    assert each.status.restarts == 8
    query = script.queries[-1]
    query.update_status = lambda: setattr(query.status, "batches", query.status.batches + 1)  # type: ignore[method-assign]
    each.step(now_s)
    query.fail(RuntimeError("no answer"))
    each.step(now_s)
    assert each.status.restart_in_s == 1.0


def test_the_settings_of_a_run_override_those_of_its_pipelines(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides: list[dict[str, str]] = []
    ended = ScriptedQuery()
    ended.is_active = False
    monkeypatch.setattr(running, "start_queries", lambda *_: [ended])
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: overrides.append({**settings}))
    spark: Any = object()
    running.run(copy, spark=spark, state=tmp_path, settings={"spark.sql.session.timeZone": "CET"})
    assert overrides == [{"spark.sql.session.timeZone": "CET"}]


def test_a_run_whose_end_fails_leaves_no_lock(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None
    run = Run([declared_pipeline(copy)], spark, bootstrap="127.0.0.1:9092", state=tmp_path)

    def fail() -> None:
        raise RuntimeError("the JVM has ended")

    monkeypatch.setattr(run.pipelines[0], "stop_now", fail)
    with pytest.raises(RuntimeError, match="the JVM has ended"), run:
        assert PipelineState(tmp_path, "copy").is_running()
    assert not PipelineState(tmp_path, "copy").is_running()


def test_a_start_that_fails_is_tried_again(script: Script, tmp_path: Path) -> None:
    each = running_pipeline(tmp_path)
    script.start_error = PipelineError("topic b does not exist")
    start(each, 0)
    assert (each.status.state, each.status.error) == (WAITING, "topic b does not exist")
    script.start_error = None
    step_until_started(each, 1)
    assert each.status.state == RUNNING


def test_once_tries_only_temporary_failures_again(script: Script, tmp_path: Path) -> None:
    each = running_pipeline(tmp_path, once=True)
    start(each, 0)
    for now_s in range(0, 1000, 100):
        script.queries[-1].fail(RuntimeError("no answer"))
        each.step(now_s)
        step_until_started(each, now_s + PAUSE_MAX_S)
    each.step(now_s)
    assert (each.status.state, each.status.restarts, each.has_ended) == (FAILED, ONCE_RESTARTS_MAX, True)
    other = running_pipeline(tmp_path, once=True)
    start(other, 0)
    script.queries[-1].fail(PipelineError("the key column is missing"))
    other.step(0)
    assert (other.status.state, other.status.restarts) == (FAILED, 0)
    third = running_pipeline(tmp_path, once=True)
    start(third, 0)
    script.queries[-1].stop()
    third.step(0)
    assert third.status.state == DONE


def test_a_stop_lets_a_micro_batch_end_and_ignores_its_refusal_to_go_on(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = None
    with Run([declared_pipeline(copy)], spark, bootstrap="127.0.0.1:9092", state=tmp_path) as started:
        started.start()
        step_until_started(started.pipelines[0], 0)
        query = script.queries[0]
        query.in_batch = True
        calls = []

        def while_waiting() -> None:
            calls.append(query.is_active)
            if len(calls) == 3:
                query.fail(RuntimeError("StopRequested"))

        monkeypatch.setattr(running, "POLL_S", 0.0)
        started.stop(60, while_waiting)
        assert (calls[:3], query.stops_requested) == ([True] * 3, 1)
        assert started.statuses[0].state == STOPPED
        assert started.statuses[0].error is None


def test_a_failure_during_a_stop_is_shown(script: Script, tmp_path: Path) -> None:
    each = running_pipeline(tmp_path)
    start(each, 0)
    each.request_stop()
    script.queries[0].fail(RuntimeError("no space left"))
    each.step(0)
    assert (each.status.state, each.status.error) == (FAILED, "RuntimeError: no space left")


def test_another_beginning_is_accepted_until_something_is_written(script: Script, tmp_path: Path) -> None:
    spark: Any = None
    declared, state = declared_pipeline(copy), PipelineState(tmp_path, "copy")
    begins = []
    for begin in ("latest", "earliest", None):
        with Run([declared], spark, bootstrap="127.0.0.1:9092", state=tmp_path, begin=begin):
            identity = state.identity()
            assert identity is not None
            begins.append(identity.begin)
    state.mark_started(identity, "copy")
    with Run([declared], spark, bootstrap="127.0.0.1:9092", state=tmp_path, begin=5):
        assert state.identity() == identity
    assert begins == ["latest", "earliest", "earliest"]


def test_once_tries_an_outage_again(script: Script, tmp_path: Path) -> None:
    each = running_pipeline(tmp_path, once=True)
    script.start_error = TemporaryError("no answer from the cluster")
    start(each, 0)
    assert each.status.state == WAITING


def test_a_second_run_with_the_same_state_is_refused_and_leaves_the_first_one_alone(
    script: Script, tmp_path: Path
) -> None:
    spark: Any = None
    declared = declared_pipeline(copy)
    with Run([declared], spark, bootstrap="127.0.0.1:9092", state=tmp_path, begin="latest") as first:
        first.start()
        step_until_started(first.pipelines[0], 0)
        with pytest.raises(PipelineError, match="pipeline copy is running already"):
            Run([declared], spark, bootstrap="127.0.0.1:9092", state=tmp_path).__enter__()
        assert first.statuses[0].state == RUNNING
        assert PipelineState(tmp_path, "copy").is_running()
    status = PipelineState(tmp_path, "copy").read_status()
    identity = PipelineState(tmp_path, "copy").identity()
    assert status is not None
    assert identity is not None
    assert (status["state"], identity.begin) == (STOPPED, "latest")


def test_a_start_makes_no_identity_because_it_would_have_no_checkpoints(script: Script, tmp_path: Path) -> None:
    spark: Any = None
    run, state = RunContext("127.0.0.1:9092", False, "s3://bucket/checkpoints"), PipelineState(tmp_path, "copy")
    with pytest.raises(AssertionError):
        RunningPipeline(declared_pipeline(copy), spark, run, state).start()
    assert state.identity() is None


def test_the_end_of_a_run_is_bounded_and_names_what_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = None
    stuck, failing, other = ScriptedQuery(), ScriptedQuery(), ScriptedQuery()
    may_end = threading.Event()
    stops = []

    def hang() -> None:
        stops.append(threading.current_thread())
        may_end.wait(60)

    def time_out() -> None:
        raise NotStopped("sink b: the query has not ended")

    monkeypatch.setattr(stuck, "stop", hang)
    monkeypatch.setattr(failing, "stop", time_out)
    monkeypatch.setattr(running, "start_queries", lambda *_: [stuck, failing, other])
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: spark)
    monkeypatch.setattr(running, "STOP_MAX_S", 0.2)
    try:
        with Run([declared_pipeline(copy)], spark, bootstrap="127.0.0.1:9092", state=tmp_path) as started:
            started.start()
            step_until_started(started.pipelines[0], 0)
            started.stop(0)
        assert len(stops) == 1, "the end of the block does not wait again"
        assert not other.is_active
    finally:
        may_end.set()
    status = PipelineState(tmp_path, "copy").read_status()
    assert status is not None
    assert status["state"] == STOPPED
    assert status["error"].startswith("pipeline copy: sink b: the query has not ended; 1 of 3 queries")


def test_a_slow_start_does_not_hold_up_the_other_pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None
    slow_begun, may_end, script = threading.Event(), threading.Event(), Script()

    def queries_of(pipeline: Pipeline, *_: object) -> list[ScriptedQuery]:
        if pipeline.name == "slow":
            slow_begun.set()
            assert may_end.wait(WAIT_S)
        return script()

    monkeypatch.setattr(running, "start_queries", queries_of)
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: spark)
    declared = declared_pipeline(copy)
    with Run([declared, replace(declared, name="slow")], spark, bootstrap="127.0.0.1:9092", state=tmp_path) as started:
        each, slow = started.pipelines
        each.start()
        step_until_started(each, 0)
        slow.start()
        assert slow_begun.wait(WAIT_S)
        script.queries[0].stop()
        started.step()
        assert [status.state for status in started.statuses] == [DONE, STARTING]
        slow.request_stop()
        may_end.set()
        step_until_started(slow, 0)
        assert script.queries[1].stops_requested == 1, "a stop during the start reaches the queries"


def test_a_start_that_the_end_of_a_run_does_not_wait_for_stops_its_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = None
    may_end, stopped, query = threading.Event(), threading.Event(), ScriptedQuery()

    def queries_of(*_: object) -> list[ScriptedQuery]:
        assert may_end.wait(WAIT_S)
        return [query]

    monkeypatch.setattr(query, "stop", stopped.set)
    monkeypatch.setattr(running, "start_queries", queries_of)
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: spark)
    monkeypatch.setattr(running, "STOP_MAX_S", 0.01)
    with Run([declared_pipeline(copy)], spark, bootstrap="127.0.0.1:9092", state=tmp_path) as started:
        started.start()
    [status] = started.statuses
    assert (status.state, status.error) == (STOPPED, "pipeline copy: its start has not ended within 0.01 s")
    may_end.set()
    assert stopped.wait(WAIT_S)


def test_a_start_that_calls_sys_exit_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "start_queries", lambda *_: sys.exit(3))
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: spark)
    each = running_pipeline(tmp_path, once=True)
    start(each, 0)
    assert (each.status.state, each.status.error) == (FAILED, "SystemExit was raised (for example by sys.exit()): 3")


def test_a_run_continues_if_the_figures_cannot_be_written(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spark: Any = None
    write_status, is_full = PipelineState.write_status, True

    def write(state: PipelineState, status: dict[str, Any]) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_status(state, status)

    monkeypatch.setattr(PipelineState, "write_status", write)
    with Run([declared_pipeline(copy)], spark, bootstrap="127.0.0.1:9092", state=tmp_path) as started:
        started.start()
        step_until_started(started.pipelines[0], 0)
        started.write_status()
        started.write_status()
        assert [record.getMessage() for record in caplog.records] == [
            "status_not_written pipeline=copy [Errno 28] No space left on device"
        ]
        is_full = False
        started.write_status()
        status = PipelineState(tmp_path, "copy").read_status()
        assert status is not None
        assert status["state"] == RUNNING
        is_full = True
        started.write_status()
    assert len(caplog.records) == 2, "the end of the block does not raise the error, and does not log it again"


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningPipeline, threading.Event]]:
    """A pipeline with two queries: the first has failed, and the second does not end before the event is set."""
    failing, slow, may_end = ScriptedQuery(), ScriptedQuery(), threading.Event()
    monkeypatch.setattr(slow, "stop", lambda: may_end.wait(WAIT_S))
    starts = iter([[failing, slow], [ScriptedQuery()]])
    monkeypatch.setattr(running, "start_queries", lambda *_: next(starts))
    monkeypatch.setattr(running, "pipeline_session", lambda spark, pipeline, settings: spark)
    each = running_pipeline(tmp_path)
    start(each, 0)
    failing.fail(RuntimeError("no answer"))
    yield each, may_end
    may_end.set()


def test_the_end_of_the_queries_of_a_failed_pipeline_holds_up_nothing(
    failed: tuple[RunningPipeline, threading.Event],
) -> None:
    each, may_end = failed
    for now_s in (0, 1, 100):
        each.step(now_s)  # returns although a query has not ended
        assert (each.status.state, each.status.error, each.status.restarts) == (WAITING, "RuntimeError: no answer", 0)
    may_end.set()
    step_until_started(each, 100)
    assert (each.status.state, each.status.restarts) == (RUNNING, 1)


def test_a_run_does_not_end_before_the_queries_of_a_failed_pipeline(
    failed: tuple[RunningPipeline, threading.Event],
) -> None:
    each, may_end = failed
    each.step(0)
    each.request_stop()
    assert (each.status.state, each.has_ended) == (STOPPED, False)
    may_end.set()
    each.stop_now()
    assert (each.status.state, each.status.error, each.has_ended) == (STOPPED, "RuntimeError: no answer", True)


@pytest.mark.parametrize("fails_before", [True, False])
def test_a_sink_that_cannot_be_closed_does_not_end_the_run(
    script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, fails_before: bool
) -> None:
    def fail() -> None:
        raise RuntimeError("the connection is lost")

    each = running_pipeline(tmp_path)
    start(each, 0)
    query = script.queries[0]
    query.stop = fail  # type: ignore[method-assign]
    query.is_active = False
    if fails_before:
        query.fail(RuntimeError("no answer"))
    each.step(0)
    wait_for_ending(each)
    each.step(0)
    cause = "RuntimeError: the connection is lost"
    assert caplog.messages == [f"pipeline_end_failed pipeline=copy {cause}"]
    expected = (WAITING, "RuntimeError: no answer", False) if fails_before else (FAILED, cause, True)
    assert (each.status.state, each.status.error, each.has_ended) == expected


def test_a_query_of_a_failed_pipeline_that_does_not_end_is_left_alone(
    failed: tuple[RunningPipeline, threading.Event], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    each, _ = failed
    monkeypatch.setattr(running, "STOP_MAX_S", 0.01)
    each.step(0)
    step_until_started(each, 1)
    assert (each.status.state, each.status.error) == (RUNNING, "RuntimeError: no answer")
    assert "1 of 2 queries have not ended, or have not closed their sinks, within 0.01 s" in caplog.text


def test_the_end_of_a_run_names_the_queries_of_a_failed_pipeline_that_have_not_ended(
    failed: tuple[RunningPipeline, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    each, _ = failed
    monkeypatch.setattr(running, "STOP_MAX_S", 0.01)
    each.step(0)
    each.request_stop()
    each.stop_now()
    assert each.status.error is not None
    assert each.status.error.startswith("RuntimeError: no answer; 1 of 2 queries have not ended")


def test_pipelines_that_have_not_stopped_are_not_called_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = None
    may_end = threading.Event()
    run = Run([declared_pipeline(copy)], spark, bootstrap="127.0.0.1:9092", state=tmp_path)
    monkeypatch.setattr(running, "RUN_STOP_MAX_S", 0.01)
    monkeypatch.setattr(run.pipelines[0], "stop_now", lambda: may_end.wait(WAIT_S))
    try:
        with pytest.raises(NotStopped, match=r"^1 of 1 pipelines have not stopped within 0\.01 s$"):
            run.stop(0)
    finally:
        may_end.set()
