"""Reads a Delta table without Spark's Delta jar. A stream reads the files that new versions of the table add.

The position of a stream is a version of the table, with the table's id. A micro-batch reads the files that were added
by the versions after its start position. The table's log names these files, so a repeated micro-batch reads the same
files.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.pipelines.declarations import PipelineError, SourceContext, TemporaryError
from tidelog.pipelines.sinks.delta_rules import has_mapped_columns
from tidelog.pipelines.sinks.object_errors import one_line, store_error, store_errors, without_secrets
from tidelog.pipelines.sinks.stores import is_url
from tidelog.pipelines.sources.columns import check_columns
from tidelog.pipelines.sources.identities import TABLE, check_table, other_table

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

NO_VERSION = -1
"""The position before a table's first version. If a stream begins here, its first micro-batch reads all rows of the
newest version."""
VERSIONS_MAX = 1000
"""Upper bound on the versions that one micro-batch reads."""


def load_delta(
    location: str, options: Mapping[str, str], begin_version: int | None, context: SourceContext
) -> "DataFrame":
    context.spark.dataSource.register(DeltaDataSource)
    begins_after_version = begin_version is not None and context.begin is None
    source_options = {
        "location": location,
        "storageSecrets": json.dumps(dict(options)),  # Spark hides the values of options with "secret" in the name
        "begin": json.dumps(begin_version if begins_after_version else context.begin),
        "beginIsVersion": str(begins_after_version),
        "declaredVersion": json.dumps(begin_version),
    }
    if context.is_streaming:
        return context.spark.readStream.format(DeltaDataSource.name()).options(**source_options).load()
    frame = context.spark.read.format(DeltaDataSource.name()).options(**source_options).load()
    return frame if context.rows_max is None else frame.limit(context.rows_max)


@dataclass(frozen=True)
class DeltaFile(InputPartition):
    """One Parquet file of the table, with the values of its partition columns."""

    path: str
    partition: tuple[tuple[str, str | None], ...]


class DeltaDataSource(DataSource):
    """The class behind `format("tidelog-delta")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog-delta"

    def schema(self) -> StructType:
        return DeltaLog(self.options).columns()

    def reader(self, schema: StructType) -> DataSourceReader:
        return DeltaReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DeltaStreamReader(self.options, schema)


class DeltaLog:
    """The versions of a Delta table and their files."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.location = options["location"]
        self.storage = json.loads(options["storageSecrets"])
        declared = json.loads(options.get("declaredVersion", "null"))
        # With a declared version, a reset is not enough: the pipeline would begin after that version again, and the
        # next versions may be gone, too.
        reset = (
            "Reset the pipeline" if declared is None else f"Leave out begin_version={declared}, and reset the pipeline"
        )
        self._remedy = f"{reset}: it then reads all rows of the newest version first"
        """What to do if a version is gone."""

    def table(self, version: int | None = None) -> "DeltaTable":
        """Return the table in its newest version or in `version`. Raises PipelineError if it cannot be read."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(self.location, version=version, storage_options=self.storage)
        except (DeltaError, OSError) as error:
            label = f"delta {self.location}"
            found = store_error(label, self.location, error, self.storage.items()) if is_url(self.location) else None
            text = without_secrets(one_line(str(error)), self.storage.items())
            raise found or PipelineError(f"{label}: the table cannot be read: {text}") from error
        if has_mapped_columns(table):
            raise PipelineError(f"delta {self.location}: the table uses column mapping, which this source cannot read")
        return table

    def columns(self) -> StructType:
        """Return the columns of the newest version of the table."""
        return columns_of(self.table())

    def newest(self) -> tuple[int, str]:
        """Return the newest version of the table, and the id that the table got when it was created."""
        table = self.table()
        return table.version(), str(table.metadata().id)

    def files(self, version: int) -> list[DeltaFile]:
        """Return all files of one version of the table."""
        import pyarrow as pa

        table = self.table(version)
        if (
            "deletionVectors" in (table.protocol().reader_features or ())
            and pa.table(table.deletion_vectors()).num_rows
        ):
            raise PipelineError(
                f"delta {self.location}: the table has deletion vectors, which this source cannot read: rewrite its "
                "files, as Spark's REORG TABLE ... APPLY (PURGE) does"
            )
        found = []
        for action in pa.table(table.get_add_actions()).to_pylist():
            values = action.get("partition_values") or action.get("partition") or {}
            texts = tuple((name, None if value is None else partition_text(value)) for name, value in values.items())
            found.append(DeltaFile(unquote(action["path"]), texts))
        return found

    def added_files(self, version: int) -> list[DeltaFile]:
        """Return the files with new rows in the commit of `version`.

        Raises PipelineError if the commit removes rows, or if the log no longer has this commit. Raises TemporaryError
        if the log cannot be read now.
        """
        name = f"_delta_log/{version:020}.json"
        try:
            with self.file_system().open_input_stream(name) as stream:
                actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        except FileNotFoundError as error:
            raise PipelineError(
                f"delta {self.location}: the log no longer has version {version}, so the rows of this version cannot "
                f"be read. {self._remedy} ({error})"
            ) from error
        except OSError as error:
            text = without_secrets(one_line(str(error)), self.storage.items())
            raise TemporaryError(
                f"delta {self.location}: version {version} of the log cannot be read: {text}"
            ) from error
        if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            raise PipelineError(
                f"delta {self.location}: version {version} updates or deletes rows, and a stream can only read rows "
                "that are appended. To begin after this version, reset the pipeline and declare its source as "
                f"delta(..., begin_version={version})"
            )
        adds = [action["add"] for action in actions if "add" in action]
        return [
            DeltaFile(unquote(add["path"]), tuple(add.get("partitionValues", {}).items()))
            for add in adds
            if add.get("dataChange", True)
        ]

    def read(self, file: DeltaFile, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one file. Raises PipelineError or TemporaryError if an object store refuses the read."""
        errors = (OSError,) if is_url(self.location) else ()
        with store_errors(f"delta {self.location}", self.location, self.storage.items(), errors):
            yield from read_file(self.file_system(), file, schema)

    def file_system(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.location, self.storage))


class DeltaReader(DataSourceReader):
    """Reads the newest version of a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from tidelog.pipelines.sinks.arrow_types import arrow_schema

        self._log = DeltaLog(options)
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        return list(self._log.files(self._log.table().version()))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, DeltaFile)
        return self._log.read(partition, self._schema)


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that are appended to a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from tidelog.pipelines.sinks.arrow_types import arrow_schema

        self._log = DeltaLog(options)
        self._columns = schema
        self._schema = arrow_schema(schema)
        self._begin = json.loads(options["begin"])
        self._begin_is_version = options["beginIsVersion"] == "True"
        self._target: tuple[int, str] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant. The first call of `latestOffset` chooses the version after which the query begins, and
        returns it as `begin`.
        """
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        latest, table_id = self._target if self._target is not None else self._log.newest()
        if not start:
            begin = min(self._begin_version(latest), latest)
            return {"begin": begin, "version": self._limited(begin, latest), TABLE: table_id}
        label = f"delta {self._log.location}"
        check_table(label, start, table_id)
        if start["version"] > latest:  # `check_table` finds no table id in positions of earlier versions of Tidelog
            raise other_table(label, f"the position is version {start['version']}, but the newest is {latest}")
        if start["version"] == latest:
            return start
        return {"version": self._limited(start["version"], latest), TABLE: table_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        label, table = f"delta {self._log.location}", self._log.table()
        check_table(label, end, str(table.metadata().id))
        check_columns(label, self._columns, columns_of(table))
        begin = start["version"] if start else end["begin"]
        if begin == NO_VERSION:
            return list(self._log.files(end["version"]))
        return [file for version in range(begin + 1, end["version"] + 1) for file in self._log.added_files(version)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, DeltaFile)
        return self._log.read(partition, self._schema)

    def _limited(self, begin: int, latest: int) -> int:
        return latest if begin == NO_VERSION else min(latest, begin + VERSIONS_MAX)

    def _begin_version(self, latest: int) -> int:
        """Return the version after which the query begins."""
        if self._begin_is_version:
            return int(self._begin)
        if self._begin == "latest":
            return latest
        if isinstance(self._begin, int):
            earlier = [
                entry["version"] for entry in self._log.table().history() if entry.get("timestamp", 0) < self._begin
            ]
            return max(earlier, default=NO_VERSION)
        return NO_VERSION


def columns_of(table: "DeltaTable") -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


def read_file(file_system: Any, file: DeltaFile, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Yield the rows of one Parquet file. Each row has all columns of the table: the values of partition columns are
    taken from `file.partition`, and other columns that the Parquet file does not have are null.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = dict(file.partition)
    with file_system.open_input_file(file.path) as stream:
        # Older versions of Spark write times as INT96. By default, they would be read as nanoseconds, which cannot
        # represent times outside the years 1677 to 2262.
        parquet = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        stored = [
            field.name for field in schema if field.name in parquet.schema_arrow.names and field.name not in values
        ]
        for batch in parquet.iter_batches(columns=stored):
            columns = []
            for field in schema:
                if field.name in stored:
                    columns.append(batch.column(batch.schema.get_field_index(field.name)).cast(field.type))
                else:
                    value = partition_value(values.get(field.name), field.type)
                    columns.append(pa.repeat(value, batch.num_rows))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def partition_value(text: str | None, data_type: "pa.DataType") -> "pa.Scalar":
    """Return the value of a partition column from its text in the table's log."""
    import pyarrow as pa

    if text is None or text == "":
        return pa.scalar(None, data_type)
    if pa.types.is_timestamp(data_type):
        naive = pa.scalar(text.removesuffix("Z").replace("T", " ")).cast(pa.timestamp("us"))
        return naive.cast(data_type)
    return pa.scalar(text).cast(data_type)


def partition_text(value: object) -> str:
    """Return the value of a partition column as text, in the form that `partition_value` reads."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return str(value)
