"""Run a pipeline's function on a sample of its sources, as a batch query. Nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tidelog.pipelines.declarations import Pipeline, PipelineError, Source, SourceContext
from tidelog.pipelines.failures import cause_text
from tidelog.pipelines.loading import send_functions_by_value
from tidelog.pipelines.queries import results_of
from tidelog.pipelines.topics import DECODED, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SourceSample(NamedTuple):
    description: str
    records: int
    unparsed: dict[str, int]
    """Number of records that cannot be parsed, by reason."""
    example: str
    """Place of the first record that cannot be parsed; empty if there is none."""


class Sample(NamedTuple):
    sources: list[SourceSample]
    results: "dict[str, DataFrame]"
    """The results of the function, by the names of the sinks."""


def sample(pipeline: Pipeline, spark: "SparkSession", bootstrap: str, rows_max: int, begin: str | int | None) -> Sample:
    """Read at most `rows_max` records of each source, and call the function. Raises PipelineError.

    The results are computed later, when the caller reads them. Spark's errors are also raised then. So the caller
    reads the results within `errors_of_spark`.
    """
    # This must happen before the sources are loaded: a source's format may be a class that the pipeline's file defines.
    send_functions_by_value(pipeline)
    context = SourceContext(spark, bootstrap, pipeline.name, is_streaming=False, begin=begin, rows_max=rows_max)
    frames: dict[str, DataFrame] = {}
    sources = []
    for parameter, source in pipeline.sources.items():
        with errors_of_spark(f"pipeline {pipeline.name}, source {parameter} ({source.describe()})", ValueError):
            frames[parameter], sampled = _sample_of(parameter, source, context)
        sources.append(sampled)
    return Sample(sources, results_of(pipeline, frames))


@contextmanager
def errors_of_spark(subject: str, *others: type[Exception]) -> Iterator[None]:
    """Turn errors of Spark and `others` into PipelineError, which names `subject` and the cause in one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PipelineError:
        raise
    except (PySparkException, Py4JError, ImportError, *others) as error:
        raise PipelineError(f"{subject}: {cause_text(error)}") from error


def _sample_of(parameter: str, source: Source, context: SourceContext) -> "tuple[DataFrame, SourceSample]":
    from pyspark.sql import functions as f

    if not isinstance(source, Topic) or source.value is None:
        # The sample is kept by Spark, so that a source whose data changes is read only once.
        frame = source.load(context).persist()
        return frame, SourceSample(source.describe(), frame.count(), {}, "")
    records = source.records(context).persist()
    frame = source.parsed(records, context.pipeline, f"sample of {parameter}", drop_unparsed=True)
    unparsed = records.where(source.unparsed())
    reasons = unparsed.groupBy(f.col(f"{DECODED}.error").alias("reason")).agg(
        f.count(f.lit(1)).alias("count"), f.min(f.struct("topic", "partition", "offset")).alias("first")
    )
    rows = reasons.sort("reason").collect()
    first = min((row["first"] for row in rows), default=None)
    example = "" if first is None else f"{first[0]} partition {first[1]} offset {first[2]}"
    counts = {row["reason"]: row["count"] for row in rows}
    return frame, SourceSample(source.describe(), records.count(), counts, example)
