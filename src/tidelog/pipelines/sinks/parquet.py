"""`parquet()`: a directory of Parquet files as the sink or the source of a pipeline.

Spark's own Parquet sink is exactly once only for Spark, because only Spark reads its list of valid files: after a
crash, other readers see the files of failed attempts too. This sink is exactly once for every reader that lists the
directory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext
from tidelog.pipelines.sinks.directory import DirectoryTarget, directory_target
from tidelog.pipelines.sinks.extras import load
from tidelog.pipelines.sinks.stores import LocalStore, is_url, local_path
from tidelog.pipelines.sinks.written_files import Layout, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def parquet(
    path: str,
    *,
    partition_by: str | Sequence[str] = (),
    files: int | None = None,
    compression: str = "zstd",
    schema: str | None = None,
) -> "Parquet":
    """Return the Parquet files in the directory `path`.

    As a sink: rows are appended. `partition_by` makes directories such as `country=FR/`. `files` is the number of files
    of a micro-batch; without it, each task writes its own. A micro-batch of one file becomes visible in one step.

    As a source: the rows of all files, and in a stream also those of new files. The files must appear in the directory
    by a rename. `schema` is needed if the directory is empty when the pipeline starts.
    """
    columns = tuple([partition_by] if isinstance(partition_by, str) else partition_by)
    if files is not None and files < 1:
        raise PipelineError(f"parquet {path}: files is {files}, and must be at least 1")
    return Parquet(path if is_url(path) else local_path(path), columns, files, compression, schema)


@dataclass(frozen=True)
class Parquet:
    """A directory of Parquet files: a sink and a source."""

    location: str
    partition_by: tuple[str, ...]
    files: int | None
    compression: str
    schema: str | None

    def describe(self) -> str:
        return f"parquet {self.location}"

    def open(self, context: SinkContext) -> Opened:
        load("pyarrow", "parquet()", "spark")
        layout = Layout(
            suffix=".staged",
            partition_by=self.partition_by,
            has_exact_directories=True,
            compression=self.compression,
        )
        return OpenedDirectory(
            directory_target(self.describe(), self.location, context, ".parquet"), layout, self.files
        )

    def load(self, context: SourceContext) -> "DataFrame":
        from tidelog.pipelines.sources.files import load_files

        return load_files(context, "parquet", self.location, self.schema, {})


@dataclass(frozen=True)
class OpenedDirectory:
    """A directory that is open for one query."""

    target: DirectoryTarget
    layout: Layout
    files: int | None

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        if self.target.finish(batch_id):
            return
        staging = self.target.staging(batch_id)
        layout = replace(self.layout, directory=staging)
        rows = batch if self.files is None else batch.repartition(self.files)
        written = write_files(rows, LocalStore(str(self.target.root)), layout, self.target.sink)
        if written:
            self.target.commit(batch_id, staging, written)

    def close(self) -> None:
        pass
