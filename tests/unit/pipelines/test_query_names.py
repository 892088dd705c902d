"""Sinks that are added, removed or renamed between two runs of a pipeline."""

from pathlib import Path
from typing import Any, cast

import pytest

from tidelog.pipelines.declarations import Pipeline, PipelineError
from tidelog.pipelines.queries import RunContext, checked_checkpoints
from tidelog.pipelines.query_names import query_names
from tidelog.pipelines.state import Identity, PipelineState


def declared(*sinks: str) -> Pipeline:
    return Pipeline("totals", print, {}, cast(Any, dict.fromkeys(sinks)), "5 seconds")


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    return PipelineState(tmp_path, "totals")


def run(state: PipelineState, identity: Identity, *sinks: str, writes: bool = True) -> dict[str, str]:
    """Start the pipeline, let each query write something, and return the identifiers of the queries."""
    names = query_names(declared(*sinks), state, identity)
    state.store_query_names(identity, names)
    for sink in sinks if writes else ():
        state.mark_started(identity, sink)
    return names


def test_a_query_keeps_its_identifier_when_sinks_are_added_and_removed(state: PipelineState) -> None:
    identity = state.create_identity(None)
    first = run(state, identity, "totals")
    assert first == {"totals": f"totals.{identity.id}"}
    both = run(state, identity, "extra", "totals")
    assert both == {"extra": f"totals.extra.{identity.id}"} | first
    assert run(state, identity, "totals") == first
    assert run(state, identity, "totals", "extra") == both
    state.reset()
    assert state.query_names(identity) == {}


def test_checkpoints_in_another_place_are_found_after_a_sink_was_added(state: PipelineState) -> None:
    identity = state.create_identity(None, "hdfs:///c")
    names = run(state, identity, "totals") | run(state, identity, "totals", "extra", writes=False)
    context = RunContext("127.0.0.1:1", True, "hdfs:///c")
    stored = f"hdfs:///c/totals.{identity.id}"
    places = checked_checkpoints(names, context, state, identity, lambda place: place == stored)
    assert places == {"totals": stored, "extra": f"hdfs:///c/totals.extra.{identity.id}"}


@pytest.mark.parametrize("is_early_version", [False, True])
def test_a_renamed_sink_is_refused(state: PipelineState, is_early_version: bool) -> None:
    identity = state.create_identity(None)
    run(state, identity, "totals")
    if is_early_version:
        (state.directory / f"{identity.id}.queries.json").unlink()
    message = (
        r"^pipeline totals: its sinks lake and database are new, and earlier runs wrote to totals, .* restore the name"
        r" \(sink=\{'totals': ...\}\), or begin again with: tidelog pipeline replay totals --from TIME. If the sink"
        rf" totals was removed on purpose, remove the file {state.started_path(identity, 'totals')}$"
    )
    with pytest.raises(PipelineError, match=message):
        query_names(declared("lake", "database"), state, identity)
    state.started_path(identity, "totals").unlink()
    assert set(run(state, identity, "lake", "database")) == {"lake", "database"}
    with pytest.raises(PipelineError, match=r"its sink tables is new, and earlier runs wrote to lake, which"):
        query_names(declared("tables", "database"), state, identity)


def test_sinks_that_were_not_written_to_may_be_renamed(state: PipelineState) -> None:
    identity = state.create_identity(None)
    run(state, identity, "a", "b", writes=False)
    state.mark_started(identity, "a")
    assert run(state, identity, "a", "c") == {
        "a": f"totals.a.{identity.id}",
        "c": f"totals.c.{identity.id}",
    }


def test_a_sink_may_be_removed_while_another_one_has_not_written_yet(state: PipelineState) -> None:
    identity = state.create_identity(None)
    run(state, identity, "a", "b", writes=False)
    state.mark_started(identity, "a")
    assert list(run(state, identity, "b")) == ["b"]


def test_a_state_of_an_early_version_is_continued(state: PipelineState) -> None:
    identity = state.create_identity(None)
    state.mark_started(identity, "a")
    state.mark_started(identity, "b")
    names = run(state, identity, "a", "b")
    assert names == {"a": f"totals.a.{identity.id}", "b": f"totals.b.{identity.id}"}


def test_a_damaged_file_is_named(state: PipelineState) -> None:
    identity = state.create_identity(None)
    run(state, identity, "a")
    (state.directory / f"{identity.id}.queries.json").write_text("[")
    with pytest.raises(PipelineError, match=r"queries.json is damaged .* or remove it, if no sink was ever added"):
        query_names(declared("a"), state, identity)
