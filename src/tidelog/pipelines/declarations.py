"""Declares pipelines: a plain PySpark function with its sources and its sinks.

The classes here hold the declaration only. They do not import PySpark, so that the command line lists pipelines without
starting Spark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT_MODES = ("append", "update", "complete")
"""Spark's output modes: new rows only, changed rows, or all rows of the result after each micro-batch."""


@dataclass(frozen=True)
class SourceContext:
    """What a source needs to open its DataFrame."""

    spark: "SparkSession"
    bootstrap: str
    """HOST:PORT of the brokers, several with commas, for sources that name none themselves."""
    pipeline: str
    """Name of the pipeline."""
    is_streaming: bool
    """Whether to return a streaming DataFrame. A dry run reads a sample as a batch."""
    begin: str | int | None = None
    """Where a query without a checkpoint begins: `earliest`, `latest`, or a timestamp in milliseconds. None for the
    source's own choice."""
    rows_max: int | None = None
    """Upper bound on the number of rows of a batch read; None for no limit."""


@dataclass(frozen=True)
class SinkContext:
    """What a sink needs to write the micro-batches of one query."""

    spark: "SparkSession"
    bootstrap: str
    pipeline: str
    query: str
    """Identifier of the query: the same as long as its checkpoint exists, different after a reset. Together with the
    number of a micro-batch it names the micro-batch for ever."""
    output_mode: str
    """One of OUTPUT_MODES."""


class Opened(Protocol):
    """A sink that is open for one query."""

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch.

        Spark repeats a micro-batch with the same `batch_id` and the same rows after a failure. A sink that is exactly
        once writes such a micro-batch only if it has not yet been written completely.
        """
        ...

    def close(self) -> None: ...


class Source(Protocol):
    """Where rows come from."""

    def describe(self) -> str:
        """Return the source as one short text, as in `topic sales`."""
        ...

    def load(self, context: SourceContext) -> "DataFrame": ...


class Sink(Protocol):
    """Where rows go."""

    def describe(self) -> str: ...

    def open(self, context: SinkContext) -> Opened:
        """Prepare the target, on the driver, before the query starts. Raises PipelineError if it cannot be used."""
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
    """Topic of the records that cannot be parsed. None: such a record stops the pipeline."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings for the session of this pipeline."""


ATTRIBUTE = "tidelog_pipeline"
"""Attribute of a declared function that holds its Pipeline."""

Function = TypeVar("Function", bound=Callable[..., Any])


class PipelineError(Exception):
    """A pipeline cannot be declared, or cannot run. The message names the pipeline, the cause and the remedy."""


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

    A single source, or a sequence of sources, is given to the function's parameters in order. Raises PipelineError if
    the declaration is not consistent.
    """
    raise NotImplementedError
