"""`delta()`: a Delta table as the sink or the source of a pipeline, without Spark's Delta jar.

Without a key, the executors write Parquet files. With a key, deltalake merges the rows in the driver. In both cases the
driver commits with deltalake, once for each micro-batch: the commit contains the identifier of the query and the number
of the micro-batch as a `txn` action of Delta's protocol. At the beginning of a micro-batch, and again before each
attempt to commit, the driver compares this number with the newest number of the query in the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext
from tidelog.pipelines.sinks.batch_numbers import is_written
from tidelog.pipelines.sinks.commits import commit
from tidelog.pipelines.sinks.delta_rules import check_rules, required_fields
from tidelog.pipelines.sinks.extras import load
from tidelog.pipelines.sinks.keyed_rows import KeyedRows
from tidelog.pipelines.sinks.object_errors import one_line, refuse_credentials, store_error, store_errors
from tidelog.pipelines.sinks.object_stores import with_limits
from tidelog.pipelines.sinks.stores import DeltaStore, LocalStore, Store, is_url, local_path
from tidelog.pipelines.sinks.written_files import (
    Layout,
    WrittenFile,
    check_partition_columns,
    removed_on_error,
    write_files,
)
from tidelog.runtime.clock import SystemClock

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame


def delta(
    path: str,
    *,
    key: str | Sequence[str] | None = None,
    delete: str | None = None,
    order_by: str | None = None,
    partition_by: str | Sequence[str] = (),
    evolve: bool = True,
    storage_options: Mapping[str, str] | None = None,
    begin_version: int | None = None,
) -> "Delta":
    """Return the Delta table at `path`, a directory or a URL of an object store such as `s3://bucket/table`.

    As a sink: the table is created by the first micro-batch, with `partition_by`. Without `key`, rows are appended.
    With `key`, a row replaces the stored row with the same key. `delete` is a condition in Spark's SQL, or a boolean
    column, which is not stored. If `delete` is true for a row, the stored row with the same key is removed. `order_by`
    is a column: if several rows of one micro-batch have the same key, only the row with the largest value in this
    column is used. With the output mode `complete`, each micro-batch replaces all rows. With `evolve`, new columns of
    the rows are added to the table; without it, they are an error. `storage_options` are passed to deltalake; set
    credentials in the environment instead.

    As a source: the pipeline reads the rows of the table. A stream also reads the rows that are appended to the table
    later. If `begin_version` is set, a stream begins after this version of the table. Otherwise it begins with all
    rows.
    """
    keys = tuple([key] if isinstance(key, str) else key or ())
    columns = tuple([partition_by] if isinstance(partition_by, str) else partition_by)
    options = tuple(sorted((storage_options or {}).items()))
    if is_url(path):
        refuse_credentials("delta", path)
        options = tuple(sorted(with_limits(dict(options)).items()))
    location = path if is_url(path) else local_path(path)
    if (delete or order_by) and not keys:
        raise PipelineError(f"delta {path}: delete and order_by need a key")
    return Delta(location, KeyedRows(keys, delete, order_by) if keys else None, columns, evolve, options, begin_version)


@dataclass(frozen=True)
class Delta:
    """A Delta table: a sink and a source."""

    location: str
    keyed: KeyedRows | None
    partition_by: tuple[str, ...]
    evolve: bool
    options: tuple[tuple[str, str], ...]
    """Options of the object store, as pairs. They may contain secrets and are never printed."""
    begin_version: int | None

    def __repr__(self) -> str:
        return f"delta({self.location!r})"

    def describe(self) -> str:
        return f"delta {self.location}"

    def open(self, context: SinkContext) -> Opened:
        load("deltalake", "delta()", "lake")
        if context.output_mode == "update" and self.keyed is None:
            raise PipelineError(f"{self.describe()}: the output mode update needs a key, as in delta(..., key=['id'])")
        if context.output_mode == "complete" and self.keyed is not None:
            raise PipelineError(f"{self.describe()}: the output mode complete replaces all rows, so it takes no key")
        opened = OpenedDelta(self, f"tidelog-{context.query}", context.output_mode == "complete")
        opened.check_table()
        return opened

    def load(self, context: SourceContext) -> "DataFrame":
        load("deltalake", "delta()", "lake")
        from tidelog.pipelines.sources.delta import load_delta

        return load_delta(self.location, dict(self.options), self.begin_version, context)


class OpenedDelta:
    """A Delta table that is open for one query."""

    def __init__(self, sink: Delta, application: str, replaces_rows: bool) -> None:
        self._sink = sink
        self._application = application
        """Identifier of the query in the table's log."""
        self._replaces_rows = replaces_rows
        self._table: DeltaTable | None = None
        self._store: Store
        if is_url(sink.location):
            self._store = DeltaStore(sink.location, sink.options, sink.describe())
        else:
            self._store = LocalStore(sink.location, sink.describe())

    def check_table(self) -> None:
        """Raise PipelineError if the table exists and cannot be used, for example because its partition columns are
        not the declared ones."""
        table = self._load()
        if table is not None and self._sink.partition_by:
            existing = tuple(table.metadata().partition_columns)
            if existing != self._sink.partition_by:
                raise self._error(f"the table is partitioned by {list(existing)}, not {list(self._sink.partition_by)}")

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch with one commit, unless the table contains it already."""
        with self._store_errors():
            self._write(batch, batch_id)

    def close(self) -> None:
        self._table = None

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Raise PipelineError or TemporaryError in place of errors of an object store."""
        from deltalake.exceptions import DeltaError

        if not is_url(self._sink.location):
            yield
            return
        with store_errors(self._sink.describe(), self._sink.location, self._sink.options, (DeltaError, OSError)):
            yield

    def _write(self, batch: "DataFrame", batch_id: int) -> None:
        from tidelog.pipelines.sinks.delta_schema import check_partition_values

        existing = self._load()
        if existing is not None and self._is_written(existing, batch_id):
            return
        if self._sink.keyed is not None:
            self._merge(self._sink.keyed.prepare(batch, self._sink.describe()), existing, batch_id)
            return
        rows, table = self._prepared(batch, existing)
        names = tuple(table.metadata().partition_columns)
        layout = Layout(partition_by=names, has_statistics=True, required=required_fields(table))
        files = write_files(rows, self._store, layout, self._sink.describe())
        with removed_on_error(self._store, files):
            check_partition_values(files, table, self._sink.describe())
        if files or self._replaces_rows:
            self._commit(batch_id, lambda table, properties: self._add_files(table, files, properties))

    def _merge(self, rows: "DataFrame", existing: "DeltaTable | None", batch_id: int) -> None:
        from tidelog.pipelines.sinks.delta_merge import changes_of, merge

        rows, table = self._prepared(rows, existing)
        key = self._sink.keyed.key if self._sink.keyed else ()
        changes = changes_of(rows, table, key, self._sink.describe())
        if changes.num_rows:
            sink = self._sink.describe()
            self._commit(batch_id, lambda table, properties: merge(table, changes, key, properties, sink))

    def _commit(self, batch_id: int, change: "Callable[[DeltaTable, CommitProperties], None]") -> None:
        """Call `change` to commit the micro-batch with its number, unless the table contains this micro-batch already.

        If the commit conflicts with another writer's commit, load the table again and repeat.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        transaction = Transaction(self._application, batch_id, SystemClock.now_ms())
        properties = CommitProperties(app_transactions=[transaction])

        def attempt() -> None:
            table = self._load()
            if table is None:
                raise self._error("the table was removed while the query ran")
            if not self._is_written(table, batch_id):
                change(table, properties)

        commit(attempt, CommitFailedError, self._sink.describe())

    def _add_files(self, table: "DeltaTable", files: list[WrittenFile], properties: "CommitProperties") -> None:
        from deltalake.transaction import AddAction, RemoveAction

        names = table.metadata().partition_columns
        time_ms = SystemClock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(zip(names, file.partition, strict=True)),
                modification_time=time_ms,
                data_change=True,
                stats=file.statistics,
            )
            for file in files
        ]
        mode = "overwrite" if self._replaces_rows else "append"
        table.create_write_transaction(actions, mode, table.schema(), names, commit_properties=properties)

    def _is_written(self, table: "DeltaTable", batch_id: int) -> bool:
        """Return whether the loaded version of the table contains this micro-batch. Raises PipelineError if it contains
        a later one.
        """
        version = table.transaction_version(self._application)
        return is_written(self._sink.describe(), self._application, version, batch_id)

    def _load(self) -> "DeltaTable | None":
        """Return the newest version of the table, or None if there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            if self._table is None:
                self._table = DeltaTable(self._sink.location, storage_options=dict(self._sink.options))
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError) as error:
            sink = self._sink
            remote = is_url(sink.location)
            found = store_error(sink.describe(), sink.location, error, sink.options) if remote else None
            raise found or self._error(f"the table cannot be read: {one_line(str(error))}") from error
        return self._table

    def _prepared(self, rows: "DataFrame", table: "DeltaTable | None") -> "tuple[DataFrame, DeltaTable]":
        """Return the rows with the table's types, and the table with all columns of the rows.

        If necessary, creates the table, or adds columns and fields of structs. These steps change no row, so they do
        no harm if the micro-batch is repeated after a crash.
        """
        from deltalake import DeltaTable, Schema

        from tidelog.pipelines.sinks.delta_schema import (
            columns_with_new_fields,
            missing_columns,
            stored_schema,
            widened,
        )

        schema = stored_schema(rows, self._sink.describe())
        if table is None:
            check_partition_columns(rows, self._sink.partition_by, self._sink.describe())
            DeltaTable.create(
                self._sink.location,
                schema,
                mode="ignore",
                partition_by=list(self._sink.partition_by),
                storage_options=dict(self._sink.options),
            )
            table = self._load()
            assert table is not None
        check_rules(table, rows.columns, self._sink.keyed is not None, self._sink.describe())
        rows = widened(rows, table, self._sink.describe())
        schema = stored_schema(rows, self._sink.describe())
        added, with_new_fields = missing_columns(table, schema), columns_with_new_fields(rows, table)
        new = [field.name for field in added] + [name for names in with_new_fields.values() for name in names]
        if new and not self._sink.evolve:
            raise self._error(f"the table has no column {', '.join(new)}; delta(..., evolve=True) adds columns")
        if new:
            # For a column that exists, deltalake adds the fields that its structs do not have.
            extended = [field for field in Schema.from_arrow(schema).fields if field.name in with_new_fields]
            table.alter.add_columns(added + extended)
            table = self._load()
            assert table is not None
        return rows, table

    def _error(self, text: str) -> PipelineError:
        return PipelineError(f"{self._sink.describe()}: {text}")
