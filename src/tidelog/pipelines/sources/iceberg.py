"""Read an Iceberg table without Spark's Iceberg jar. A batch query reads the newest snapshot, and a stream reads the
files that new snapshots append.

The position of a stream is a snapshot of the table, with the table's id. A micro-batch begins after one snapshot and
ends with a later one. It reads the files that were added by the later snapshot and by the snapshots between the two. A
repeated micro-batch reads the same files. Snapshots that are not read yet must not expire.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.pipelines.declarations import PipelineError, SourceContext, TemporaryError, refused_begin
from tidelog.pipelines.sinks.iceberg import load_catalog, secrets_of
from tidelog.pipelines.sinks.object_errors import store_errors
from tidelog.pipelines.sources.columns import check_columns
from tidelog.pipelines.sources.iceberg_columns import TableColumns
from tidelog.pipelines.sources.identities import TABLE, check_table, other_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame

NO_SNAPSHOT = ""
"""The position before the first snapshot. If a stream begins here, its first micro-batch reads all rows of the newest
snapshot."""


def load_iceberg(name: str, catalog: str | tuple[tuple[str, str], ...], context: SourceContext) -> "DataFrame":
    if isinstance(context.begin, int):
        accepted = "a stream can begin with `earliest` or `latest`, but not with a timestamp"
        raise refused_begin(f"iceberg {name}", accepted, context)
    context.spark.dataSource.register(IcebergDataSource)
    options = {
        "table": name,
        "catalogSecrets": json.dumps(catalog),  # Spark hides the value of an option whose name contains 'secret'
        "begin": context.begin or "earliest",
    }
    if context.is_streaming:
        return context.spark.readStream.format(IcebergDataSource.name()).options(**options).load()
    frame = context.spark.read.format(IcebergDataSource.name()).options(**options).load()
    return frame if context.rows_max is None else frame.limit(context.rows_max)


@dataclass(frozen=True)
class IcebergFile(InputPartition):
    """One Parquet file of the table."""

    path: str


class IcebergDataSource(DataSource):
    """The class behind `format("tidelog-iceberg")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog-iceberg"

    def schema(self) -> StructType:
        return IcebergHistory(self.options).columns()

    def reader(self, schema: StructType) -> DataSourceReader:
        return IcebergReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return IcebergStreamReader(self.options, schema)


class IcebergHistory:
    """The snapshots of an Iceberg table and their files."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.name = options["table"]
        self.catalog = json.loads(options["catalogSecrets"])

    def table(self) -> "Table":
        from pyiceberg.exceptions import NoSuchTableError

        label = f"iceberg {self.name}"
        catalog = load_catalog(self.catalog, label)
        warehouse = str(catalog.properties.get("warehouse", ""))
        try:
            with store_errors(label, warehouse, secrets_of(self.catalog), (OSError,)):
                return catalog.load_table(self.name)
        except NoSuchTableError as error:
            raise PipelineError(f"{label}: there is no such table in the catalog") from error

    def columns(self) -> StructType:
        """Return the present columns of the table."""
        return _spark_columns(self.table())

    def newest(self) -> tuple[str, str]:
        """Return the id of the newest snapshot (NO_SNAPSHOT if there is none), and the id that the table got when it
        was created.
        """
        table = self.table()
        snapshot = table.current_snapshot()
        return NO_SNAPSHOT if snapshot is None else str(snapshot.snapshot_id), str(table.metadata.table_uuid)

    def files(self, snapshot: str) -> list[IcebergFile]:
        """Return all files of one snapshot. Raises PipelineError if some of their rows are deleted."""
        if snapshot == NO_SNAPSHOT:
            return []
        found = []
        for task in self.table().scan(snapshot_id=int(snapshot)).plan_files():
            if task.delete_files:
                raise PipelineError(
                    f"iceberg {self.name}: rows of the table were deleted by means of delete files, which this source"
                    " cannot read: compact the table first (Iceberg's procedure rewrite_data_files)"
                )
            found.append(IcebergFile(task.file.file_path))
        return found

    def added_files(self, begin: str, end: str) -> list[IcebergFile]:
        """Return the files that were appended by the snapshots after `begin`, up to and including `end`. The files of
        the oldest snapshot come first.
        """
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        table = self.table()
        if end == NO_SNAPSHOT:  # only an early version of Tidelog has planned micro-batches with this end
            raise other_table(f"iceberg {self.name}", f"it is snapshot {begin}, and the table has no snapshot")
        snapshots: list[Snapshot] = []
        identifier: int | None = int(end)
        while identifier is not None and str(identifier) != begin:
            snapshot = table.snapshot_by_id(identifier)
            if snapshot is None:
                raise PipelineError(
                    f"iceberg {self.name}: snapshot {identifier} has expired, so its rows cannot be read. Reset "
                    "the pipeline: it then reads all rows of the newest snapshot first"
                )
            snapshots.append(snapshot)
            identifier = snapshot.parent_snapshot_id
        if identifier is None and begin != NO_SNAPSHOT:
            raise other_table(f"iceberg {self.name}", f"snapshot {begin} is not in the history of snapshot {end}")
        found = []
        for snapshot in reversed(snapshots):
            operation = snapshot.summary.operation if snapshot.summary else Operation.APPEND
            if operation == Operation.REPLACE:
                continue  # the same rows in other files
            if operation != Operation.APPEND:
                raise PipelineError(
                    f"iceberg {self.name}: snapshot {snapshot.snapshot_id} has the operation {operation.value}, "
                    "and a stream can only read rows that are appended: reset the pipeline to begin with the current"
                    " rows"
                )
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id != snapshot.snapshot_id or manifest.content != ManifestContent.DATA:
                    continue
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    if entry.status == ManifestEntryStatus.ADDED:
                        found.append(IcebergFile(entry.data_file.file_path))
        return found


def _spark_columns(table: "Table") -> StructType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))


class IcebergReader(DataSourceReader):
    """Reads the newest snapshot of a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._history = IcebergHistory(options)
        self._rows = _FileRows(self._history, schema)

    def partitions(self) -> list[InputPartition]:
        return list(self._history.files(self._history.newest()[0]))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, IcebergFile)
        return self._rows.read(partition)


class IcebergStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that are appended to a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._history = IcebergHistory(options)
        self._rows = _FileRows(self._history, schema)
        self._begins_with_latest = options["begin"] == "latest"
        self._target: tuple[str, str] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant, because the first call of `latestOffset` decides where the query begins. The result of
        that call contains the decision as `begin`.
        """
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._history.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        newest, table_id = self._target if self._target is not None else self._history.newest()
        if not start:
            begin = newest if self._begins_with_latest else NO_SNAPSHOT
            return {"begin": begin, "snapshot": newest, TABLE: table_id}
        label = f"iceberg {self._history.name}"
        check_table(label, start, table_id)
        if newest == NO_SNAPSHOT != start["snapshot"]:
            # An earlier version of Tidelog has stored `start` without a table id, so `check_table` has accepted it.
            raise other_table(label, f"it is snapshot {start['snapshot']}, and the table has no snapshot")
        return start if start["snapshot"] == newest else {"snapshot": newest, TABLE: table_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        table = self._history.table()
        check_table(f"iceberg {self._history.name}", end, str(table.metadata.table_uuid))
        self._rows.check_present(table)
        begin = start["snapshot"] if start else end["begin"]
        if begin == NO_SNAPSHOT:
            return list(self._history.files(end["snapshot"]))
        return list(self._history.added_files(begin, end["snapshot"]))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, IcebergFile)
        return self._rows.read(partition)


class _FileRows:
    """Reads the rows of files, on the executors. Columns are found by their field ids."""

    def __init__(self, history: IcebergHistory, schema: StructType) -> None:
        from tidelog.pipelines.sinks.arrow_types import arrow_schema

        table = history.table()
        self._label = f"iceberg {history.name}"
        self._spark_schema = schema
        self._columns = TableColumns.of(table)
        self.check_present(table)
        self._schema = arrow_schema(schema)
        self._properties = dict(table.io.properties)
        self._location = table.location()

    def check_present(self, table: "Table") -> None:
        """Raise TemporaryError if the columns of the table have changed since this reader was created."""
        check_columns(self._label, self._spark_schema, _spark_columns(table))
        if TableColumns.of(table).names() != self._columns.names():
            raise TemporaryError(
                f"{self._label}: the columns of the table have changed: a column was dropped, and another one was added"
                " with the same name and type. The pipeline has to start again to read the present columns"
            )

    def read(self, file: IcebergFile) -> "Iterator[pa.RecordBatch]":
        with store_errors(self._label, self._location, self._properties.items(), (OSError,)):
            yield from self._rows(file)

    def _rows(self, file: IcebergFile) -> "Iterator[pa.RecordBatch]":
        import pyarrow.parquet as pq
        from pyiceberg.io import load_file_io

        file_io = load_file_io(self._properties, self._location)
        with file_io.new_input(file.path).open() as stream:
            # Older versions of Spark write times as INT96. Without this option, PyArrow would read them as
            # nanoseconds, which can represent only the years 1677 to 2262.
            parquet = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            projection = self._columns.projection(parquet.schema_arrow)
            names = projection.stored_names(parquet.schema_arrow, self._schema)
            for batch in parquet.iter_batches(columns=names):
                yield projection.batch(batch, self._schema)
