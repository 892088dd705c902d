"""The identifiers of the queries of a pipeline: one for each sink.

An exactly-once sink stores the number of a micro-batch under the identifier of its query. So a query keeps the
identifier that it had when it began, also if sinks are added to the declaration later.
"""

from tidelog.pipelines.declarations import Pipeline, PipelineError
from tidelog.pipelines.state import Identity, PipelineState


def query_names(pipeline: Pipeline, state: PipelineState, identity: Identity) -> dict[str, str]:
    """Return the identifier of the query of each declared sink: the stored one, or a new one. Nothing is stored.

    Raises PipelineError if a sink that was written to is not declared any more, and another sink is new. The new sink
    is probably the old one with another name, and its query would begin again.
    """
    stored = state.query_names(identity)
    started = state.started_sinks(identity)
    missing = sorted(started - set(pipeline.sinks))
    new = [sink for sink in pipeline.sinks if sink not in stored and sink not in started]
    if missing and new:
        word, verb = ("sink", "is") if len(new) == 1 else ("sinks", "are")
        raise PipelineError(
            f"pipeline {pipeline.name}: its {word} {' and '.join(new)} {verb} new, and earlier runs wrote to"
            f" {' and '.join(missing)}, which the declaration no longer has. If a sink was renamed, all rows would be"
            f" written to it again: restore the name{_advice(pipeline, missing)}, or begin again with: tidelog pipeline"
            f" replay {pipeline.name} --from TIME. If the sink {missing[0]} was removed on"
            f" purpose, remove the file {state.started_path(identity, missing[0])}"
        )
    return {sink: stored.get(sink) or query_name(pipeline, sink, identity) for sink in pipeline.sinks}


def query_name(pipeline: Pipeline, sink: str, identity: Identity) -> str:
    """Return the identifier of a query that begins now (see `SinkContext.query`)."""
    if list(pipeline.sinks) == [pipeline.name]:
        return f"{pipeline.name}.{identity.id}"
    return f"{pipeline.name}.{sink}.{identity.id}"


def _advice(pipeline: Pipeline, missing: list[str]) -> str:
    """If a sink that was declared without a name, as in sink=delta(...), is missing, return how to name it, else ""."""
    return f" (sink={{'{pipeline.name}': ...}})" if pipeline.name in missing else ""
