"""Declare pipelines: a pipeline is an ordinary PySpark function with its sources and its sinks.

This module does not import PySpark, so that the command line can list pipelines without it.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyspark_tidelog.errors import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT_MODES = ("append", "update", "complete")
"""Spark's output modes: new rows only, changed rows, or all rows of the result after each micro-batch."""
BEGINS = ("earliest", "latest", "time")
"""Where a query without a checkpoint may begin. A source that cannot begin everywhere has an attribute `begins` with
some of these values."""


@dataclass(frozen=True)
class SourceContext:
    """The values with which a source opens its DataFrame."""

    spark: "SparkSession"
    bootstrap: str
    """Addresses of the brokers (HOST:PORT, separated by commas), for sources that do not name brokers themselves."""
    pipeline: str
    """Name of the pipeline."""
    is_streaming: bool
    """Whether to return a streaming DataFrame. A dry run reads a sample as a batch."""
    begin: str | int | None = None
    """Where a query without a checkpoint begins: `earliest`, `latest`, or a timestamp in milliseconds. None for the
    source's own choice."""
    rows_max: int | None = None
    """If `is_streaming` is false: upper bound on the number of rows to read; None for no limit."""
    has_started: bool = False
    """Whether a query of the pipeline has begun a micro-batch since the last reset or replay. Then the checkpoint says
    where to continue."""


@dataclass(frozen=True)
class SinkContext:
    """The values with which a sink writes the micro-batches of one query."""

    spark: "SparkSession"
    bootstrap: str
    pipeline: str
    query: str
    """Identifier of the query. It remains the same until the pipeline is reset or replayed. Together with the number of
    a micro-batch, it identifies the micro-batch, even after a restart."""
    output_mode: str
    """One of OUTPUT_MODES."""
    once: bool = False
    """Whether the query ends when it has processed what exists (`--once`)."""


class Opened(Protocol):
    """A sink that is open for one query."""

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch.

        After a failure, Spark repeats a micro-batch with the same `batch_id` and the same rows. An exactly-once sink
        does nothing if it has already written this micro-batch completely.
        """
        ...

    def close(self) -> None:
        """Release connections and files. Called when the query has stopped. An error after a run with `once` means that
        the pipeline has failed.
        """
        ...


class Source(Protocol):
    """Where rows come from."""

    def describe(self) -> str:
        """Return the source as one short text, as in `topic sales`."""
        ...

    def load(self, context: SourceContext) -> "DataFrame":
        """Return the rows of the source, as a streaming DataFrame if `context.is_streaming`."""
        ...


class Sink(Protocol):
    """Where rows go."""

    def describe(self) -> str: ...

    def open(self, context: SinkContext) -> Opened:
        """Prepare the target, on the driver, before the query starts. Raises PipelineError if the target cannot be
        used.
        """
        ...


@dataclass(frozen=True)
class Pipeline:
    """One declared pipeline. A function with several sinks returns a mapping from the names of its sinks to
    DataFrames. Spark runs one query for each sink.
    """

    name: str
    function: Callable[..., Any]
    sources: Mapping[str, Source]
    """By the name of the function's parameter."""
    sinks: Mapping[str, Sink]
    """By name. The only sink of a function that returns one DataFrame has the name of the pipeline."""
    trigger: str
    """Interval of micro-batches, as in `5 seconds`."""
    output_mode: str = "append"
    dead_letters: str | None = None
    """Topic that gets the records which a topic source cannot parse. If None, such a record stops the pipeline."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings for the session of this pipeline."""


ATTRIBUTE = "tidelog_pipeline"
"""Name of the attribute in which a declared function holds its Pipeline."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A legal name of a pipeline or a sink. The name becomes the name of a directory and a part of transactional ids."""
INTERVAL = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+)")
UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
}

Function = TypeVar("Function", bound=Callable[..., Any])


class PipelineError(Exception):
    """A pipeline cannot be declared, or cannot run. The message says what is wrong and, where possible, the remedy."""


class TemporaryError(PipelineError):
    """A pipeline cannot run now, for example because a server does not answer. Another attempt may succeed."""


def refused_begin(subject: str, accepted: str, context: SourceContext) -> PipelineError:
    """Return the error of a source that cannot begin at `context.begin`. `accepted` says where it can begin."""
    return PipelineError(
        f"{subject}: {accepted}: leave out --from. To read a topic from another position than its earliest records, set"
        " begin in the topic's declaration, as in topic(..., begin='latest'). If an earlier run or replay had --from,"
        " its value is stored; to remove it:"
        f" tidelog pipeline reset {context.pipeline}"
    )


def pipeline(
    *,
    source: Source | Sequence[Source] | Mapping[str, Source],
    sink: Sink | Mapping[str, Sink],
    trigger: str = "5 seconds",
    name: str | None = None,
    output_mode: str = "append",
    dead_letters: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as a pipeline. The function itself is returned unchanged and can be called in tests.

    A single source, or a sequence of sources, is given to the function's parameters in order. A mapping gives each
    source to the parameter that its key names. If the sinks are a mapping, the function returns a mapping with the same
    keys. Raises PipelineError if the declaration is not consistent.
    """

    def declare(function: Function) -> Function:
        place = place_of(function)
        pipeline_name = name or function.__name__
        _check_name(place, "name", pipeline_name)
        if interval_ms(trigger) is None:
            raise PipelineError(f"{place}: trigger {trigger!r} is not an interval; write for example '5 seconds'")
        if output_mode not in OUTPUT_MODES:
            raise PipelineError(f"{place}: output_mode {output_mode!r} is not one of {', '.join(OUTPUT_MODES)}")
        if dead_letters is not None and (not isinstance(dead_letters, str) or not dead_letters):
            raise PipelineError(f"{place}: dead_letters must be the name of a topic, not {dead_letters!r}")
        declared = Pipeline(
            name=pipeline_name,
            function=function,
            sources=_sources_by_parameter(place, function, source),
            sinks=_sinks_by_name(place, pipeline_name, sink),
            trigger=trigger,
            output_mode=output_mode,
            dead_letters=dead_letters,
            settings=_checked_settings(place, settings),
        )
        setattr(function, ATTRIBUTE, declared)
        return function

    return declare


def interval_ms(text: str) -> int | None:
    """Return the milliseconds of an interval such as `5 seconds`, `0.5 s` or `1 minute`; None if `text` is not an
    interval.
    """
    match = INTERVAL.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    unit_ms = match and (UNITS_MS.get(match[2]) or UNITS_MS.get(match[2].removesuffix("s")))
    return int(float(match[1]) * unit_ms) if match and unit_ms else None


def interval_s(text: str, subject: str) -> float:
    """Return the seconds of an interval such as `5 seconds`. Raises PipelineError, which names `subject`."""
    interval = interval_ms(text)
    if interval is None:
        raise PipelineError(f"{subject}: {text!r} is not an interval; write for example '5 seconds'")
    return interval / 1000


def place_of(function: Callable[..., Any]) -> str:
    """Return the place of a function for messages: file name, line and function name."""
    code = getattr(function, "__code__", None)
    function_name = getattr(function, "__name__", repr(function))
    if code is None:
        return f"pipeline {function_name}"
    file_name = code.co_filename.rpartition("/")[2]
    return f"pipeline {function_name} ({file_name}:{code.co_firstlineno})"


def _check_name(place: str, kind: str, text: object) -> None:
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise PipelineError(
            f"{place}: {kind} {text!r} must have 1 to 100 letters, digits, dots, dashes or underscores, and must begin"
            " with a letter or a digit"
        )


def _sources_by_parameter(
    place: str, function: Callable[..., Any], source: Source | Sequence[Source] | Mapping[str, Source]
) -> dict[str, Source]:
    """Return the sources by the names of the function's parameters. Raises PipelineError."""
    parameters = [*inspect.signature(function).parameters.values()]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise PipelineError(
                f"{place}: parameter {parameter} is not allowed: a pipeline has one named parameter for each source"
            )
    names = [parameter.name for parameter in parameters]
    if isinstance(source, Mapping):
        by_name = dict(source)
        if set(by_name) != set(names):
            raise PipelineError(
                f"{place}: the sources have the names {_listed(by_name)}, but the parameters have the names"
                f" {_listed(names)}: use the same names"
            )
    else:
        sources = list(source) if isinstance(source, Sequence) else [source]
        if len(sources) != len(names):
            raise PipelineError(
                f"{place}: the declaration has {counted(len(sources), 'source')}, but the function has"
                f" {counted(len(names), 'parameter')} ({_listed(names)}): it needs one parameter for each source"
            )
        by_name = dict(zip(names, sources, strict=True))
    if not by_name:
        raise PipelineError(f"{place}: there is no source; give one, for example source=topic('sales')")
    for parameter_name, each in by_name.items():
        if not callable(getattr(each, "load", None)):
            raise PipelineError(
                f"{place}: the source of parameter {parameter_name} is {_kind(each)}, which cannot be read; use for"
                " example topic('sales')"
            )
    return {parameter_name: by_name[parameter_name] for parameter_name in names}


def _sinks_by_name(place: str, pipeline_name: str, sink: Sink | Mapping[str, Sink]) -> dict[str, Sink]:
    by_name = dict(sink) if isinstance(sink, Mapping) else {pipeline_name: sink}
    if not by_name:
        raise PipelineError(f"{place}: there is no sink; give one, for example sink=topic('totals')")
    for sink_name, each in by_name.items():
        _check_name(place, "the name of a sink", sink_name)
        if not callable(getattr(each, "open", None)):
            raise PipelineError(
                f"{place}: sink {sink_name} is {_kind(each)}, which cannot be written; use for example topic('totals')"
            )
    return by_name


def _checked_settings(place: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    checked = {}
    for key, value in (settings or {}).items():
        if not isinstance(key, str) or not key.startswith("spark."):
            raise PipelineError(
                f"{place}: setting {key!r} is not a setting of Spark: the names of Spark's settings begin with 'spark.'"
            )
        checked[key] = option_text(value)
    return checked


def option_text(value: object) -> str:
    """Return the value of an option as the text that Spark and the brokers expect, as in `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "(none)"


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str | int | None) else f"an object of type {type(value).__name__}"
