"""`parquet()`: a directory of Parquet files as the sink or the source of a pipeline.

Spark's own Parquet sink is exactly once only for Spark, because only Spark reads its list of valid files: after a
crash, other readers see the files of failed attempts too. This sink is exactly once for every reader that lists the
directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext
from tidelog.pipelines.sinks.bucket import OBJECT_BYTES_MAX, BucketTarget
from tidelog.pipelines.sinks.column_names import check_names
from tidelog.pipelines.sinks.directory import DirectoryTarget
from tidelog.pipelines.sinks.extras import load
from tidelog.pipelines.sinks.object_errors import refuse_credentials
from tidelog.pipelines.sinks.object_stores import SCHEMES
from tidelog.pipelines.sinks.stores import is_url, local_path
from tidelog.pipelines.sinks.targets import FileTarget
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
    storage_options: Mapping[str, str] | None = None,
) -> "Parquet":
    """Return the Parquet files in the directory `path`, or at a URL of an object store such as `s3://bucket/sales`.

    As a sink: rows are appended. `partition_by` makes directories such as `country=FR/`. `files` is the number of tasks
    that write a micro-batch; without it, Spark chooses this number. Each task writes its own file, and with
    `partition_by` one file in each directory. A micro-batch of one file becomes visible in one step.
    `storage_options` are options of the object store, with the same names as for `delta()`.

    As a source: the rows of all files, and in a stream also the rows of new files. The files must appear in the
    directory by a rename. `schema` is needed if the directory is empty when the pipeline starts. Spark reads the files,
    so `storage_options` have no effect and are refused.

    Raises PipelineError if the arguments are not consistent.
    """
    columns = tuple([partition_by] if isinstance(partition_by, str) else partition_by)
    if files is not None and files < 1:
        raise PipelineError(f"parquet {path}: files is {files}, and must be at least 1")
    location, storage = file_location("parquet", path, storage_options)
    return Parquet(location, columns, files, compression, schema, storage)


@dataclass(frozen=True)
class Parquet:
    """A directory of Parquet files: a sink and a source."""

    location: str
    partition_by: tuple[str, ...]
    files: int | None
    compression: str
    schema: str | None
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of the object store, as pairs. They may contain secrets and are never printed."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Where a stream of this source can begin (see `declarations.BEGINS`)."""
        return ("earliest",)

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
            file_target(self.describe(), self.location, self.storage, context, ".parquet"), layout, self.files
        )

    def load(self, context: SourceContext) -> "DataFrame":
        from tidelog.pipelines.sources.files import load_files

        refuse_storage_options(self.describe(), self.storage)
        return load_files(context, "parquet", self.location, self.schema, {})


@dataclass(frozen=True)
class OpenedDirectory:
    """A directory that is open for one query."""

    target: FileTarget
    layout: Layout
    files: int | None

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        self.target.check_newest(batch_id)
        if not self.target.finish(batch_id):
            self._write_files(batch, batch_id)
        self.target.remove_old_manifest(batch_id)

    def _write_files(self, batch: "DataFrame", batch_id: int) -> None:
        if self.layout.encoding == "parquet":
            check_names(batch.schema, self.target.sink)
        staging = self.target.staging(batch_id)
        size_max = OBJECT_BYTES_MAX if isinstance(self.target, BucketTarget) else None
        layout = replace(self.layout, directory=staging, file_bytes_max=size_max)
        rows = batch if self.files is None else batch.repartition(self.files)
        written = write_files(rows, self.target.store, layout, self.target.sink)
        if written:
            self.target.commit(batch_id, staging, written)

    def close(self) -> None:
        pass


def file_location(
    kind: str, path: str, storage_options: Mapping[str, str] | None
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return two values: the path or URL, and the options of the object store. `kind` is `parquet` or `file`.

    Raises PipelineError if the URL contains credentials, or if there are options, but no URL.
    """
    options = tuple(sorted((storage_options or {}).items()))
    if is_url(path):
        refuse_credentials(kind, path)
        return path.rstrip("/"), options
    if options:
        raise PipelineError(f"{kind} {path}: storage_options are for object stores, such as s3://bucket/{kind}")
    return local_path(path), options


def file_target(
    sink: str, location: str, options: tuple[tuple[str, str], ...], context: SinkContext, suffix: str
) -> FileTarget:
    """Return the target of one query: the directory, or the part of a bucket, at `location`.

    Raises PipelineError if the sink cannot write to `location`, or does not support the output mode of the query.
    Raises TemporaryError if an object store does not answer.
    """
    if context.output_mode != "append":
        raise PipelineError(f"{sink}: the output mode {context.output_mode} needs delta() or sql()")
    if not is_url(location):
        return DirectoryTarget(location, context.query, suffix, sink)
    scheme = location.partition("://")[0]
    if scheme not in SCHEMES:
        raise PipelineError(
            f"{sink}: this sink writes to URLs that begin with {', '.join(f'{each}://' for each in SCHEMES)}; "
            f"for {scheme}://, use delta() or iceberg()"
        )
    load("obstore", f"{sink}: an object store", "lake")
    target = BucketTarget(location, context.query, suffix, sink, options)
    target.check()
    return target


def refuse_storage_options(source: str, options: tuple[tuple[str, str], ...]) -> None:
    """Raise PipelineError if there are options, which a source of files cannot use."""
    if options:
        raise PipelineError(
            f"{source}: storage_options are for a sink. The files of a source are read by Spark itself: configure"
            " Spark with the jars of the object store, and with settings such as spark.hadoop.fs.s3a.endpoint"
        )
