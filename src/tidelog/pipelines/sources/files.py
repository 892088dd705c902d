"""Reads files with Spark's own file source: each file once, older files first."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_tidelog.formats.base import is_true, with_defaults
from tidelog.pipelines.declarations import PipelineError, SourceContext, refused_begin
from tidelog.pipelines.failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
"""Spark's error conditions for a path that does not exist, and for a directory without files."""

MAX_FILE_AGE = "maxFileAge"
"""An option of Spark's file source. A stream never reads a file that is older than the newest known file by more than
this age. Spark's default is a week, so an older file that is moved into the directory would be left out without an
error."""
ANY_AGE = "365000d"
"""With this value of MAX_FILE_AGE, a thousand years, a stream reads files of any age."""

STRICT = {"mode": "FAILFAST"}
"""With this option, a line that is not JSON or CSV, or does not fit the schema, causes an error. By default, Spark
would read such a line as a row of nulls."""
CHECKED_HEADER = {"enforceSchema": "false"}
"""With this option, Spark compares the first line of each CSV file with the columns. By default, Spark ignores
the names in this line, and reads the columns of a file by their position, even if the file has another order."""
SETS_MALFORMED = ("mode", "columnnameofcorruptrecord")
"""Options, in lower case, that determine how Spark treats malformed lines."""
CORRUPT_RECORD = "_corrupt_record"
"""Spark stores malformed lines in a column with this name, if the schema has it."""


def load_files(
    context: SourceContext, kind: str, path: str, schema: str | None, options: Mapping[str, str]
) -> "DataFrame":
    """Return the rows of the files at `path`: a directory, a file or a pattern. `kind` is Spark's name of their format.

    Raises PipelineError if the columns are unknown: without a `schema`, they are inferred from the files that exist.
    Also raises PipelineError if `context.begin` is neither None nor "earliest", because Spark's source reads all files.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException

    if context.begin not in {None, "earliest"}:
        raise refused_begin(f"{kind} {path}", "a stream begins with the oldest file", context)

    if kind in ("json", "csv") and not _sets_malformed(schema, options):
        options = STRICT | dict(options)
    if kind == "csv" and is_true(options, "header"):
        options = with_defaults(options, CHECKED_HEADER)
    if not context.is_streaming:
        reader = context.spark.read.format(kind).options(**options)
        try:
            frame = (reader.schema(schema) if schema else reader).load(path)
        except AnalysisException as error:
            raise PipelineError(f"{kind} {path}: {error.getMessage() or error}") from error
        except Py4JJavaError as error:
            raise _malformed(kind, path, error) from None
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
                f"{kind} {path}: there are no files yet, so the columns are unknown: name the columns in schema, as in "
                f'schema="id long, name string" ({first_line(str(error))})'
            ) from error
        except Py4JJavaError as error:
            raise _malformed(kind, path, error) from None
        return context.spark.readStream.format(kind).options(**stream_options).schema(columns).load(path)
    stream = context.spark.readStream.format(kind).options(**stream_options)
    return (stream.schema(schema) if schema else stream).load(path)


def _sets_malformed(schema: str | None, options: Mapping[str, str]) -> bool:
    """Return whether the declaration determines how Spark treats malformed lines."""
    return CORRUPT_RECORD in (schema or "") or any(name.lower() in SETS_MALFORMED for name in options)


def _malformed(kind: str, path: str, error: Exception) -> PipelineError:
    """Return the error for files whose columns cannot be inferred, perhaps because a line is malformed."""
    cause = first_line(str(error).partition("SparkException: ")[2] or str(error))
    return PipelineError(
        f"{kind} {path}: the columns cannot be inferred, perhaps because a line is malformed: correct the files, or"
        f' name the columns in schema, as in schema="id long, name string" ({cause})'
    )
