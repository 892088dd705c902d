"""Where the sources of a pipeline can begin. `tidelog pipeline replay` needs this information before it removes a
checkpoint, but it does not load the pipeline's file. So each run stores the information in the state directory.
"""

from collections.abc import Mapping
from typing import TypedDict

from tidelog.pipelines.declarations import BEGINS, Pipeline, PipelineError

KINDS = {"earliest": "earliest", "latest": "latest", "time": "a time"}
"""The possible values in the `begins` of a source, and the words for them in error messages."""


class AcceptedBegins(TypedDict):
    """Where one source can begin."""

    source: str
    """The description of the source."""
    begins: list[str]
    """Keys of KINDS."""


def begins_of(pipeline: Pipeline) -> dict[str, AcceptedBegins]:
    """Return where each source can begin, by the name of the function's parameter. A source without an attribute
    `begins` can begin anywhere.
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
                f" has changed since the last run, use tidelog pipeline reset {pipeline}, and then run the pipeline"
                " with --from"
            )
