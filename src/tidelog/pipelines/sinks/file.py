"""`file()`: files of lines, JSON or CSV in a directory, as the sink or the source of a pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark_tidelog.formats.base import is_true
from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext, option_text
from tidelog.pipelines.sinks.column_names import check_names
from tidelog.pipelines.sinks.extras import load
from tidelog.pipelines.sinks.parquet import OpenedDirectory, file_location, file_target, refuse_storage_options
from tidelog.pipelines.sinks.written_files import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUFFIXES = {"lines": ".txt", "json": ".json", "csv": ".csv"}
"""The end of the names of written files, by format."""
SPARK_FORMATS = {"lines": "text", "json": "json", "csv": "csv"}
"""Spark's name of each format."""


def file(
    path: str,
    *,
    format: str = "lines",
    schema: str | None = None,
    tail: bool = False,
    files: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "File":
    """Return the files at `path`: a directory or, for a source, also a file or a pattern such as `/var/log/app/*.log`.

    `format` is `lines`, `json` (one object in each line) or `csv`. `options` are those of Spark's formats text, json
    and csv.

    As a sink: rows are appended in new files, in the same way as by `parquet()`. `path` may then also be a URL of an
    object store, whose options are `storage_options`. For `lines`, the rows must have one column, of type string.
    `files` is the number of files that a micro-batch writes; without it, each task writes one file.

    As a source: each file is read once, so it must be complete when it appears in the directory: write it in another
    directory, and then rename it into this one. With `tail`, files of lines are read while other programs append to
    them. The columns are then `value`, `path` and `position`. The position is the number of bytes before the line in
    the file. `schema` names the columns of JSON and CSV files. Without it, they are inferred from the files that exist
    when the pipeline starts. A line that is malformed or does not fit the schema stops the pipeline, unless `options`
    contain Spark's option `mode`.

    Raises PipelineError if the arguments are not consistent.
    """
    if format not in SUFFIXES:
        raise PipelineError(f"file {path}: the format {format!r} is not one of {', '.join(SUFFIXES)}")
    if tail and format != "lines":
        raise PipelineError(f"file {path}: tail needs format='lines': parse the column `value` in the pipeline")
    if files is not None and files < 1:
        raise PipelineError(f"file {path}: files is {files}, and must be at least 1")
    location, storage = file_location("file", path, storage_options)
    texts = {name: option_text(value) for name, value in (options or {}).items()}
    return File(location, format, schema, tail, files, tuple(sorted(texts.items())), storage)


@dataclass(frozen=True)
class File:
    """Files in a directory: a sink and a source."""

    location: str
    format: str
    schema: str | None
    tail: bool
    files: int | None
    options: tuple[tuple[str, str], ...]
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of the object store, as pairs. They may contain secrets and are never printed."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Where a stream of this source can begin (see `declarations.BEGINS`)."""
        return ("earliest", "latest") if self.tail else ("earliest",)

    def describe(self) -> str:
        return f"file {self.location}"

    def open(self, context: SinkContext) -> Opened:
        load("pyarrow", "file()", "spark")
        target = file_target(self.describe(), self.location, self.storage, context, SUFFIXES[self.format])
        return OpenedFiles(self, OpenedDirectory(target, Layout(suffix=".staged", encoding="lines"), self.files))

    def load(self, context: SourceContext) -> "DataFrame":
        refuse_storage_options(self.describe(), self.storage)
        if self.tail:
            from tidelog.pipelines.sources.tail import check_begin, load_tail

            if context.is_streaming:
                return load_tail(self.location, context)
            check_begin(self.location, context)
            # A dry run reads only a sample of the lines, from any position.
            context = replace(context, begin=None)
        from tidelog.pipelines.sources.files import load_files

        frame = load_files(context, SPARK_FORMATS[self.format], self.location, self.schema, dict(self.options))
        if self.tail:  # The sample must have the same columns as the stream.
            return frame.selectExpr("value", "_metadata.file_path as path", "cast(null as bigint) as position")
        return frame


@dataclass(frozen=True)
class OpenedFiles:
    """A directory of files that is open for one query."""

    sink: File
    directory: OpenedDirectory

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        from pyspark.sql import functions

        from pyspark_tidelog.formats.csv_format import csv_line
        from pyspark_tidelog.formats.json_format import json_text

        sink, options = self.sink, dict(self.sink.options)
        directory = self.directory
        if sink.format == "lines":
            types = [column.dataType.simpleString() for column in batch.schema]
            if types != ["string"]:
                raise PipelineError(f"{sink.describe()}: files of lines need one column of type string, not {types}")
            lines = batch
        elif sink.format == "json":
            check_names(batch.schema, sink.describe())
            lines = batch.select(json_text(functions.struct("*"), options).alias("line"))
        else:
            if is_true(options, "header"):
                check_names(batch.schema, sink.describe())
                directory = replace(directory, layout=replace(directory.layout, header=csv_header(batch, options)))
            lines = batch.select(csv_line(functions.struct("*"), options).alias("line"))
        directory.write(lines, batch_id)

    def close(self) -> None:
        self.directory.close()


def csv_header(batch: "DataFrame", options: Mapping[str, str]) -> str:
    """Return the names of the columns as a line of CSV.

    Spark formats this line in the same way as the rows, so names are quoted under the same conditions as values. The
    line is computed from constants, so Spark starts no job for it.
    """
    from pyspark.sql import functions

    from pyspark_tidelog.formats.csv_format import csv_line

    names = [functions.lit(name).alias(f"name_{number}") for number, name in enumerate(batch.columns)]
    [[line]] = batch.sparkSession.sql("select 1").select(csv_line(functions.struct(*names), options)).collect()
    return str(line)
