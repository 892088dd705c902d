"""The state directory, the figures from Spark's reports, and their forms: table, lines, JSON, Prometheus."""

import json
import multiprocessing
import threading
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.pipeline_view import LineView, status_table
from tidelog.client.blocking import ClientConfig
from tidelog.client.operations import ListedOffset
from tidelog.pipelines import lag
from tidelog.pipelines.checkpoints import ObsoleteCheckpoints, place_of_checkpoints
from tidelog.pipelines.dead_letters import last_planned_batch, letter_writers, micro_batch_ranges
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.failures import HTTP_REMEDY, TOPIC_REMEDY, cause_text, is_permanent
from tidelog.pipelines.lag import LagMonitor
from tidelog.pipelines.metrics import MetricsServer, exposition
from tidelog.pipelines.state import Identity, PipelineState, stored_pipelines
from tidelog.pipelines.status import (
    RUNNING,
    WAITING,
    PipelineStatus,
    QueryStatus,
    status_of_document,
    update_from_progress,
)
from tidelog.wire.errors import RecordTooLarge

REPORT: dict[str, Any] = {
    "batchId": 3,
    "numInputRows": 500,
    "durationMs": {"triggerExecution": 250, "addBatch": 200},
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 10, "memoryUsedBytes": 2048, "numRowsDroppedByWatermark": 2},
        {"numRowsTotal": 5, "memoryUsedBytes": 1024, "numRowsDroppedByWatermark": 0},
    ],
    "sources": [{"endOffset": {"a": {"0": 7}, "@begun": {"a": {"0": 0}}}}, {"endOffset": {"b": {"0": 9, "1": 4}}}],
    "observedMetrics": {"records of source sales": {"records": 500, "unparsed": 4}, "other": {"records": 1}},
}


def figures() -> QueryStatus:
    query = QueryStatus("sales")
    update_from_progress(query, REPORT, ["x:1", "x:1"])
    query.lag_records, query.lag_ms, query.dead_letters = 1_200, 65_000, 4
    return query


def test_reports_are_added_up() -> None:
    query = figures()
    idle = {"batchId": 4, "numInputRows": 0, "durationMs": {"triggerExecution": 3, "latestOffset": 2}}
    update_from_progress(query, idle | {"sources": REPORT["sources"]}, ["x:1", "x:1"])
    update_from_progress(query, REPORT, ["x:1", "x:1"])
    assert (query.batches, query.rows, query.late_rows) == (2, 1_000, 4)
    assert (query.rows_per_s, query.batch_ms, query.state_rows, query.state_bytes) == (2_000.0, 250, 15, 3_072)
    assert query.offsets == {"x:1": {"a": {"0": 7}, "b": {"0": 9, "1": 4}}}


def test_a_status_survives_as_json_also_from_another_version() -> None:
    status = PipelineStatus("sales", RUNNING, restarts=2, error="broken", queries=[figures()])
    document = json.loads(json.dumps(status.document()))
    assert status_of_document(document) == status
    assert status_of_document(document | {"invented": 1, "queries": [{"sink": "x", "new": 2}]}).queries == [
        QueryStatus("x")
    ]


@pytest.mark.parametrize(
    "wrong", [{"restarts": True}, {"restart_in_s": False}, {"queries": [{"sink": "x", "rows": True}]}]
)
def test_a_truth_value_is_not_a_figure(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is of the type bool"):
        status_of_document(PipelineStatus("sales").document() | wrong)


def test_prometheus_reads_the_figures_over_http() -> None:
    statuses = [PipelineStatus("sales", RUNNING, restarts=1, queries=[figures(), QueryStatus("other")])]
    server = MetricsServer(0, lambda: statuses, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=10) as answer:
            assert answer.read().decode() == text
        with pytest.raises(urllib.error.HTTPError, match="404: only / and /metrics exist"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/other", timeout=10)
        with pytest.raises(PipelineError, match=f"--metrics-port: port {server.port} cannot be opened"):
            MetricsServer(server.port, lambda: statuses, "127.0.0.1")
    finally:
        server.close()
    assert text == exposition(statuses)
    lines = text.splitlines()
    assert 'tidelog_pipeline_up{pipeline="sales"} 1' in lines
    assert 'tidelog_pipeline_restarts_total{pipeline="sales"} 1' in lines
    assert 'tidelog_pipeline_rows_total{pipeline="sales",sink="sales"} 500' in lines
    assert 'tidelog_pipeline_lag_seconds{pipeline="sales",sink="sales"} 65.000' in lines
    assert "# TYPE tidelog_pipeline_dead_letters_total counter" in lines
    # The lag of the second query is not known, so there is no sample of it.
    assert not [line for line in lines if line.startswith("tidelog_pipeline_lag_records{") and "other" in line]


def test_the_table_has_a_row_for_each_query() -> None:
    statuses = [
        PipelineStatus("sales", RUNNING, queries=[figures()]),
        PipelineStatus("late", WAITING, restarts=3, error="x", queries=[]),
    ]
    rows = status_table(statuses).rows
    assert rows[0] == ["sales", "running", "2,000", "500", "1,200", "1 min 5 s", "0.2 s", "3.0 KiB", "2", "4", "0"]
    assert rows[1][:5] == ["late", "waiting", "-", "0", "-"]
    assert rows[1][-1] == "3"


def test_in_a_pipe_only_changes_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView(json=False)
    status = PipelineStatus("sales", RUNNING, queries=[figures()])
    for _ in range(3):
        view.show([status])
    status.state, status.error, status.restart_in_s = WAITING, "no answer", 2.0
    view.show([status])
    status.restart_in_s = 1.5
    view.show([status])
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "sales  running",
        "sales  500 rows in all  newest micro-batch 0.2 s, 2,000 rows/s  lag 1,200  state 15 rows  late 2  dead 4",
        "sales  waiting  no answer  (restart in 2 s)",
    ]


def test_json_lines_have_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    LineView(json=True).show([PipelineStatus("sales", RUNNING, queries=[figures()])])
    document = json.loads(capsys.readouterr().out)
    assert (document["pipeline"], document["state"], document["queries"][0]["dead_letters"]) == ("sales", "running", 4)


def test_a_reset_state_has_a_new_identity(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "sales")
    assert (state.exists, state.identity()) == (False, None)
    first = state.create_identity("latest")
    checkpoint = state.checkpoint(first, "sales")
    checkpoint.mkdir(parents=True)
    assert (state.identity(), [each.pipeline for each in stored_pipelines(tmp_path)]) == (first, ["sales"])
    state.reset()
    assert (state.exists, checkpoint.exists()) == (False, False)
    second = state.create_identity(5)
    assert second.id != first.id
    assert PipelineState(tmp_path, "sales").identity() == Identity(second.id, 5)
    (tmp_path / "sales/identity.json").write_text("{}")
    with pytest.raises(PipelineError, match=r"pipeline sales: .*identity.json is damaged \('id'\)"):
        state.identity()


def test_a_reset_removes_checkpoints_in_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, state = place_of_checkpoints("shared/"), PipelineState(tmp_path / "state", "sales")
    assert place == str(tmp_path / "shared")
    identity = state.create_identity(None, place)
    own = [f"sales.{identity.id}", f"sales.totals.{identity.id}"]
    others = ["sales.0a1b2c3d", "sales2.0a1b2c3d", f"other.{identity.id}"]
    for name in (*own, *others):
        (tmp_path / "shared" / name / "offsets").mkdir(parents=True)
    state.reset()
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == sorted(others)
    assert state.obsolete() == []


def test_checkpoints_that_only_spark_can_remove_are_listed_until_then(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "sales")
    first = state.create_identity(None, place_of_checkpoints("s3a://bucket/checkpoints/"))
    state.reset()
    second = state.create_identity(None, "hdfs:///checkpoints")
    state.reset()
    listed = [
        ObsoleteCheckpoints("s3a://bucket/checkpoints", "sales", first.id),
        ObsoleteCheckpoints("hdfs:///checkpoints", "sales", second.id),
    ]
    assert PipelineState(tmp_path, "sales").obsolete() == listed

    def remove(obsolete: ObsoleteCheckpoints) -> bool:
        if obsolete.place.startswith("hdfs"):
            raise OSError("no answer")
        return True

    state.remove_obsolete(remove)
    assert state.obsolete() == listed[1:]
    state.remove_obsolete(lambda _: True)
    assert state.obsolete() == []


@pytest.mark.parametrize("place", [None, "/shared/checkpoints", "hdfs:///checkpoints"])
def test_a_query_that_has_written_does_not_begin_again_without_its_checkpoint(
    tmp_path: Path, place: str | None
) -> None:
    state = PipelineState(tmp_path, "sales")
    identity = state.create_identity(None, place)
    complete: list[str] = []

    def check(checkpoints: str | None) -> None:
        state.check_checkpoint(identity, "sales", checkpoints, "/the/checkpoint", complete.__contains__)

    check(place)  # the query has written nothing, so it may begin
    state.mark_started(identity, "sales")
    with pytest.raises(
        PipelineError, match=r"the checkpoint /the/checkpoint is missing or empty: restore its newest state"
    ):
        check(place)
    complete.append("/the/checkpoint")
    check(place)
    with pytest.raises(PipelineError, match=r"its checkpoints are in .*, not in hdfs:///x: set --checkpoints to the"):
        check("hdfs:///x")
    state.reset()
    assert not state.has_started(identity)


def test_offsets_of_topics_with_the_same_name_are_kept_by_cluster() -> None:
    ends: list[Any] = [{"a": {"0": 7}}, {"a": {"0": 9}}, {"version": 3}, {"a": {"0": 8, "1": 2}, "b": {"0": 1}}, "{}"]
    query = QueryStatus("sales")
    report = REPORT | {"sources": [{"endOffset": end} for end in ends]}
    update_from_progress(query, report, ["old:1", "new:1", None, "old:1", "idle:1"])
    assert query.offsets == {"old:1": {"a": {"0": 7, "1": 2}, "b": {"0": 1}}, "new:1": {"a": {"0": 9}}}


def test_the_lag_of_all_topics_of_a_cluster_is_requested_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, list[str]]] = []

    class Cluster:
        def __init__(self, servers: str) -> None:
            self.servers = servers

        def list_offsets(self, wanted: Any, isolation: int) -> Any:
            requests.append((self.servers, [str(each) for each in wanted]))
            return dict.fromkeys(wanted, ListedOffset(10, -1))

        def close(self) -> None:
            pass

    clusters = {servers: Cluster(servers) for servers in ("a:1", "b:1")}
    monkeypatch.setattr(LagMonitor, "_client", lambda _, servers: clusters[servers])
    monkeypatch.setattr(LagMonitor, "_timestamp_ms", lambda *_: None)
    monitor = LagMonitor(list)
    offsets = {"a:1": {"here": {"0": 4}, "too": {"0": 10}}, "b:1": {"here": {"0": 9}}}
    try:
        assert monitor.measure(offsets) == (7, None)
    finally:
        monitor.close()
    assert requests == [("a:1", ["here-0", "too-0"]), ("b:1", ["here-0"])]


def test_a_checkpoint_of_other_sources_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    (tmp_path / "offsets").mkdir()
    lines = ['{"products": {"0": 4}}', '{"version": 3, "index": 1}', '{"products": {"0": 2}}']
    (tmp_path / "offsets/0").write_text("v1\n{}\n" + "\n".join(lines))
    assert micro_batch_ranges(tmp_path, 0, [None, None, "eu"]) == {"eu": {"products": {"0": (2, 2)}}}
    with pytest.raises(PipelineError, match=r"has offsets of 3 sources, but the query has 1: if the sources"):
        micro_batch_ranges(tmp_path, 0, ["eu"])


def test_the_query_that_writes_the_dead_letters_of_a_source_remains(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    readers = {"a": {"orders"}, "b": {"orders", "returns"}}
    sources = ["orders", "returns", "unread"]
    state = PipelineState(tmp_path, "sales")
    identity = state.create_identity(None)

    def writers(readers: dict[str, set[str]]) -> dict[str, str]:
        chosen = letter_writers("sales", PipelineState(tmp_path, "sales").letter_writers(identity), sources, readers)
        state.store_letter_writers(identity, chosen)
        return chosen

    assert writers(readers) == {"orders": "a", "returns": "b"}
    assert writers(dict(reversed(readers.items()))) == {"orders": "a", "returns": "b"}
    assert writers({"new": {"orders", "unread"}} | readers) == {"orders": "a", "returns": "b", "unread": "new"}
    with pytest.raises(PipelineError, match=r"its sink a wrote the dead letters of the source orders, but now the"):
        writers({"b": {"orders", "returns"}, "new": {"unread"}})
    state.reset()
    assert state.letter_writers(identity) == {}
    assert [path.name for path in state.directory.iterdir()] == []


def _try_lock(directory: Path, results: Any) -> None:
    try:
        PipelineState(directory, "sales").lock()
    except PipelineError as error:
        results.put(str(error))


def test_only_one_process_runs_a_pipeline(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "sales")
    assert not state.is_running()
    state.lock()
    assert PipelineState(tmp_path, "sales").is_running()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_try_lock, args=(tmp_path, results))
    other.start()
    assert results.get(timeout=60).startswith("pipeline sales is running already with the state directory")
    other.join(60)
    state.unlock()
    assert not state.is_running()


def test_ranges_of_a_micro_batch_come_from_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    first = {"a": {"0": 5, "1": 2}, "@begun": {"a": {"0": 3, "1": 2}}}
    second = {"a": {"0": 9, "1": 2, "2": 4}, "@begun": {"a": {"2": 1}}, "@ids": {"a": "00ff"}}
    (offsets / "0").write_text("v1\n{}\n" + json.dumps(first) + "\n-")
    (offsets / "1").write_text("v1\n{}\n" + json.dumps(second) + "\n" + json.dumps({"b": {"0": 1}}))
    sources = ["left", "right"]
    assert micro_batch_ranges(tmp_path, 0, sources)["left"] == {"a": {"0": (3, 5), "1": (2, 2)}}
    ranges = micro_batch_ranges(tmp_path, 1, sources)
    assert ranges["left"] == {"a": {"0": (5, 9), "1": (2, 2), "2": (1, 4)}}
    assert list(ranges) == ["left", "right"]
    # A stateful query has a micro-batch without new records: Spark stores the same position again.
    (offsets / "2").write_text("v1\n{}\n" + json.dumps(second) + "\n-")
    assert micro_batch_ranges(tmp_path, 2, sources)["left"] == {"a": {"0": (9, 9), "1": (2, 2), "2": (4, 4)}}
    (offsets / "2").unlink()
    (offsets / ".1.crc").touch()
    assert (last_planned_batch(tmp_path), last_planned_batch(tmp_path / "missing")) == (1, -1)
    with pytest.raises(PipelineError, match="the offsets of micro-batch 2 cannot be read from"):
        micro_batch_ranges(tmp_path, 2, sources)


@pytest.mark.parametrize("remedy", [TOPIC_REMEDY, HTTP_REMEDY])
def test_the_cause_of_a_failure_is_one_line(remedy: str) -> None:
    raised = f"pipeline a: the record at t partition 0 offset 1 cannot be parsed: x{remedy}"
    spark_error = RuntimeError(f"[STREAM_FAILED] Query [...]\n... {raised} SQLSTATE: P0001\nat org.apache...")
    assert cause_text(spark_error) == raised
    assert is_permanent(spark_error)
    python_error = RuntimeError(
        "[STREAM_FAILED] terminated\nTraceback (most recent call last):\n  File x\n"
        "pyspark_tidelog.errors.DataLoss: a-0: offsets 0 to 4 are gone\n\tat org.apache"
    )
    assert cause_text(python_error) == "DataLoss: a-0: offsets 0 to 4 are gone"
    assert not is_permanent(python_error)
    assert cause_text(ValueError("one\ntwo")) == "ValueError: one"
    no_session = "[SESSION_OR_CONTEXT_NOT_EXISTS] SparkContext or SparkSession should be created first."
    in_worker = RuntimeError(
        f"Job aborted\nTraceback\npyspark.errors.exceptions.base.PySparkRuntimeError: {no_session}\n"
    )
    assert cause_text(in_worker).startswith(
        f"PySparkRuntimeError: {no_session} (a function that runs in Spark's workers"
    )


class GaveUp(Exception):
    """An error whose name does not say that it is one."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (GaveUp("no answer from 10.0.0.1:9092\nHint: is a broker running?"), "GaveUp: no answer from 10.0.0.1:9092"),
        (RecordTooLarge("2 MB\n\nOtherError: not the cause"), "RecordTooLarge: 2 MB"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_cause_is_the_error_at_the_end_of_a_traceback(error: Exception, cause: str) -> None:
    def fail() -> None:
        try:
            raise ValueError("the first one")
        except ValueError as first:
            raise error from first

    with pytest.raises(type(error)) as failure:
        fail()
    text = "".join(traceback.format_exception(failure.value))
    spark_error = RuntimeError(
        "[STREAM_FAILED] Query [...]\norg.apache.spark.SparkException: Job aborted due to stage failure\n:"
        f" org.apache.spark.api.python.PythonException: {text}\n\tat org.apache.spark.x\nDriver stacktrace:"
    )
    assert cause_text(spark_error) == cause


def test_a_measurement_that_is_given_up_does_not_replace_the_last_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "INTERVAL_S", 0.0)
    monkeypatch.setattr(lag, "CONFIG", ClientConfig(default_api_timeout_ms=10))
    begun, may_end = threading.Event(), threading.Event()

    def measure(*_: object) -> tuple[int, int]:
        begun.set()
        assert may_end.wait(20)
        return 7, 7

    monkeypatch.setattr(LagMonitor, "measure", measure)
    query = QueryStatus("sales", offsets={"a:1": {"t": {"0": 1}}})
    monitor = LagMonitor(lambda: [PipelineStatus("sales", RUNNING, queries=[query])])
    assert begun.wait(20)
    monitor.finish()
    may_end.set()
    monitor._thread.join(20)
    assert not monitor._thread.is_alive()
    assert (query.lag_records, query.lag_ms) == (None, None)
