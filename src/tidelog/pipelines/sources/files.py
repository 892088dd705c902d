"""Reads files with Spark's own file source: each file once, older files first."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import PipelineError, SourceContext
from tidelog.pipelines.failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
"""Spark's error conditions for a path that does not exist, and for a directory without files."""

MAX_FILE_AGE = "maxFileAge"
"""An option of Spark's file source. A stream never reads a file that is older than the newest known file by more than
this. Spark's default is a week, so a file that is moved into the directory later would be left out without an error."""
ANY_AGE = "365000d"
"""A value of this option that lets a stream read files of any age, in a form that Spark accepts."""


def load_files(
    context: SourceContext, kind: str, path: str, schema: str | None, options: Mapping[str, str]
) -> "DataFrame":
    """Return the rows of the files at `path`: a directory, a file or a pattern. `kind` is a name of Spark's formats.

    Raises PipelineError if the columns are unknown: without a `schema`, they are inferred from the files that exist.
    """
    from pyspark.errors import AnalysisException

    if not context.is_streaming:
        reader = context.spark.read.format(kind).options(**options)
        try:
            frame = (reader.schema(schema) if schema else reader).load(path)
        except AnalysisException as error:
            raise PipelineError(f"{kind} {path}: {error.getMessage() or error}") from error
        return frame if context.rows_max is None else frame.limit(context.rows_max)
    stream_options = dict(options)
    if all(name.lower() != MAX_FILE_AGE.lower() for name in options):
        stream_options[MAX_FILE_AGE] = ANY_AGE
    if schema is None and kind != "text":
        try:
            columns = context.spark.read.format(kind).options(**options).load(path).schema
        except AnalysisException as error:
            if error.getCondition() not in NO_FILES:
                raise PipelineError(f"{kind} {path}: {first_line(str(error))}") from error
            raise PipelineError(
                f"{kind} {path}: there are no files yet, so the columns are unknown: name them in schema, as in "
                f'schema="id long, name string" ({first_line(str(error))})'
            ) from error
        return context.spark.readStream.format(kind).options(**stream_options).schema(columns).load(path)
    stream = context.spark.readStream.format(kind).options(**stream_options)
    return (stream.schema(schema) if schema else stream).load(path)
