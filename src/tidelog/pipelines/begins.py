"""Where the sources of a pipeline can begin. `replay` must know it before it removes a checkpoint, and does not load
the pipeline's file. So each run stores it in the state directory.
"""

from collections.abc import Mapping
from typing import TypedDict

from tidelog.pipelines.declarations import BEGINS, Pipeline, PipelineError

KINDS = {"earliest": "earliest", "latest": "latest", "time": "a time"}
"""The values of `begins` of a source, with their names for people."""


class AcceptedBegins(TypedDict):
    """Where one source can begin."""

    source: str
    """The description of the source."""
    begins: list[str]
    """Keys of KINDS."""


def begins_of(pipeline: Pipeline) -> dict[str, AcceptedBegins]:
    """Return where each source can begin, by the name of the function's parameter. A source of the user's own that does
    not say it may begin anywhere.
    """
    return {
        parameter: AcceptedBegins(source=source.describe(), begins=sorted(getattr(source, "begins", BEGINS)))
        for parameter, source in pipeline.sources.items()
    }


def check_begin(pipeline: str, accepted: Mapping[str, AcceptedBegins], begin: str | int) -> None:
    """Raise PipelineError if a source cannot begin at `begin`: `earliest`, `latest` or milliseconds since the epoch."""
    kind = "time" if isinstance(begin, int) else begin
    for parameter, each in accepted.items():
        if kind not in each["begins"]:
            possible = " or ".join(name for key, name in KINDS.items() if key in each["begins"])
            raise PipelineError(
                f"pipeline {pipeline}: source {parameter} ({each['source']}) can begin at {possible}, but not at"
                f" {KINDS.get(kind, kind)}, so nothing was removed: choose another value of --from. If the declaration"
                f" has changed since the last run: tidelog pipeline reset {pipeline}, and then run it with --from"
            )
