"""`iceberg()`: an Iceberg table as the sink or the source of a pipeline, without Spark's Iceberg jar.

The executors write Parquet files. The driver adds them to the table with pyiceberg, in one commit for each micro-batch.
The commit also sets a property of the table to the number of the micro-batch. The catalog accepts a commit only if the
table has not changed since the driver loaded it. If it has changed, the driver loads it again. Then it repeats the
commit, unless the property shows that the table contains the micro-batch already.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext, TemporaryError
from tidelog.pipelines.sinks.batch_numbers import is_written
from tidelog.pipelines.sinks.column_names import differs_in_case
from tidelog.pipelines.sinks.commits import commit
from tidelog.pipelines.sinks.extras import load
from tidelog.pipelines.sinks.object_errors import one_line, store_errors, without_secrets
from tidelog.pipelines.sinks.outages import is_outage
from tidelog.pipelines.sinks.stores import IcebergStore
from tidelog.pipelines.sinks.written_files import Layout, check_partition_columns, remove_files, write_files

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame

QUERY_PROPERTY = "tidelog.query"
"""Property of a snapshot: identifier of the query that made it."""
BATCH_PROPERTY = "tidelog.batch"
"""Property of a snapshot: number of its micro-batch. The number of a query's last micro-batch is also stored as a
property of the table. This property remains when snapshots expire. Its name is `tidelog.batch.` followed by a hash of
the query's identifier."""


def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str] = "default",
    partition_by: str | Sequence[str] = (),
    evolve: bool = True,
) -> "Iceberg":
    """Return the Iceberg table `table`. The name has the form `namespace.name`.

    `catalog` is the name of a catalog in pyiceberg's configuration, or the properties of a catalog, such as
    `{"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake"}`. The property `name`, by default
    `default`, is the catalog's name. A SQL catalog finds only tables that were created under the same catalog name.

    As a sink: the namespace and the table are created by the first micro-batch; `partition_by` names the columns by
    whose values the table is partitioned. Rows are appended; with the output mode `complete`, each micro-batch
    replaces all rows. With `evolve`, new columns of the rows are added to the table, and columns are widened, as from
    int to long; without it, these are errors.

    As a source: the rows of the table. A stream also reads the rows that are appended to the table later.
    """
    properties = catalog if isinstance(catalog, str) else tuple(sorted(catalog.items()))
    columns = tuple([partition_by] if isinstance(partition_by, str) else partition_by)
    if "." not in table:
        raise PipelineError(f"iceberg {table}: the name of a table must contain its namespace, as in sales.{table}")
    return Iceberg(table, properties, columns, evolve)


@dataclass(frozen=True)
class Iceberg:
    """An Iceberg table: a sink and a source."""

    name: str
    catalog: str | tuple[tuple[str, str], ...]
    """Name or properties of the catalog. The properties may contain secrets and are never printed."""
    partition_by: tuple[str, ...]
    evolve: bool

    def __repr__(self) -> str:
        return f"iceberg({self.name!r})"

    @property
    def begins(self) -> tuple[str, ...]:
        """Where a stream of this source can begin (see `declarations.BEGINS`)."""
        return ("earliest", "latest")

    def describe(self) -> str:
        return f"iceberg {self.name}"

    def open(self, context: SinkContext) -> Opened:
        load("pyiceberg", "iceberg()", "lake")
        if context.output_mode == "update":
            remedy = "delta(..., key=[...]) or sql(..., key=[...])"
            raise PipelineError(f"{self.describe()}: the output mode update needs {remedy}")
        return OpenedIceberg(self, context.query, context.output_mode == "complete")

    def load(self, context: SourceContext) -> "DataFrame":
        load("pyiceberg", "iceberg()", "lake")
        from tidelog.pipelines.sources.iceberg import load_iceberg

        return load_iceberg(self.name, self.catalog, context)


def load_catalog(catalog: str | Sequence[Sequence[str]], label: str) -> "Catalog":
    """Return the catalog. Error messages begin with `label`: the kind and the name of the sink or source.

    Raises PipelineError if the catalog cannot be loaded, and TemporaryError if it does not answer. The
    message does not list the properties, but contains the error of the catalog's library, which may name an address.
    """
    from pyiceberg.catalog import load_catalog as load_by_name

    try:
        if isinstance(catalog, str):
            return load_by_name(catalog)
        properties = {str(pair[0]): str(pair[1]) for pair in catalog}
        return load_by_name(properties.pop("name", "default"), **properties)
    except Exception as error:  # each kind of catalog has errors of its own
        named = f"the catalog {catalog}" if isinstance(catalog, str) else "the catalog"
        text = f"{type(error).__name__}: {without_secrets(one_line(str(error)), secrets_of(catalog))}"
        kind = TemporaryError if is_outage(error) else PipelineError
        raise kind(f"{label}: {named} cannot be loaded: {text}") from error


def secrets_of(catalog: str | Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Return the properties of a catalog, which may contain secrets; empty if `catalog` is only a name."""
    return () if isinstance(catalog, str) else tuple((str(pair[0]), str(pair[1])) for pair in catalog)


class OpenedIceberg:
    """An Iceberg table that is open for one query."""

    def __init__(self, sink: Iceberg, query: str, replaces_rows: bool) -> None:
        self._sink = sink
        self._query = query
        self._property = f"{BATCH_PROPERTY}.{hashlib.sha256(query.encode()).hexdigest()[:16]}"
        self._replaces_rows = replaces_rows
        self._catalog = load_catalog(sink.catalog, sink.describe())
        self._warehouse = str(self._catalog.properties.get("warehouse", ""))

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch with one commit, unless the table contains it already."""
        with store_errors(self._sink.describe(), self._warehouse, secrets_of(self._sink.catalog), (OSError,)):
            self._write(batch, batch_id)

    def close(self) -> None:
        pass

    def _write(self, batch: "DataFrame", batch_id: int) -> None:
        table = self._load()
        if table is not None and self._is_written(table, batch_id):
            return
        table = self._prepared(batch, table)
        names = partition_columns(table, self._sink.describe())
        location = table.location().rstrip("/")
        store = IcebergStore(location, tuple(table.io.properties.items()), self._sink.describe())
        layout = Layout(directory="data/", partition_by=names, keeps_partition_columns=True)
        files = write_files(batch, store, layout, self._sink.describe())
        if files or self._replaces_rows:
            unbounded = {name for file in files for name in file.unbounded}
            if found := sorted(unbounded.intersection(names)):
                remove_files(store, [file.path for file in files])
                raise self._error(
                    f"the table is partitioned by column {found[0]}, and this column has a text that is not UTF-8, or a"
                    " date or time outside of the years 1 to 9999: pyiceberg cannot store such a value of a partition"
                )
            self._commit([f"{location}/{file.path}" for file in files], batch_id, unbounded)

    def _commit(self, paths: list[str], batch_id: int, unbounded: Collection[str]) -> None:
        """Add the files in a commit, unless another process has written this micro-batch. If the commit fails because
        the table has changed, try again.

        For the columns in `unbounded`, the table's metadata gets no minimum and no maximum.
        """
        from pyiceberg.exceptions import CommitFailedException

        def attempt() -> None:
            table = self._load()
            if table is None:
                raise self._error("the table was removed while the query ran")
            if self._is_written(table, batch_id):
                return
            # pyiceberg fails on the minimum or maximum of these columns. With this setting, it stores only counts. Only
            # the copy of the properties in memory is changed.
            for name in unbounded:
                table.metadata.properties[f"write.metadata.metrics.column.{name}"] = "counts"
            with table.transaction() as transaction:
                self._change(transaction, paths, batch_id)

        commit(attempt, CommitFailedException, self._sink.describe())

    def _change(self, transaction: "Transaction", paths: list[str], batch_id: int) -> None:
        from pyiceberg.expressions import AlwaysTrue

        properties = {QUERY_PROPERTY: self._query, BATCH_PROPERTY: str(batch_id)}
        if self._replaces_rows and transaction.table_metadata.current_snapshot() is not None:
            transaction.delete(AlwaysTrue(), snapshot_properties=properties)
        if paths:
            # The files have new names, so pyiceberg need not check that none of them is in the table already. For this
            # check, it would read the entries of all the table's files.
            transaction.add_files(paths, snapshot_properties=properties, check_duplicate_files=False)
        transaction.set_properties({self._property: str(batch_id)})

    def _is_written(self, table: "Table", batch_id: int) -> bool:
        stored = int(table.properties.get(self._property, "-1"))
        return is_written(self._sink.describe(), self._query, stored, batch_id)

    def _load(self) -> "Table | None":
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._catalog.load_table(self._sink.name)
        except NoSuchTableError:
            return None
        # By default, pyiceberg repeats a commit after a conflict without comparing the number of the micro-batch. With
        # this setting, it does not repeat a commit. Only the copy of the properties in memory is changed.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def _prepared(self, rows: "DataFrame", table: "Table | None") -> "Table":
        """Return the table with all columns of `rows`. Creates the table, or adds columns, if necessary."""
        from pyiceberg.exceptions import ValidationError

        from tidelog.pipelines.sinks.delta_schema import stored_schema

        schema = stored_schema(rows, self._sink.describe())
        if table is None:
            check_partition_columns(rows, self._sink.partition_by, self._sink.describe(), may_be_all=True)
            table = self._create(schema)
        self._check_partitions(table)
        transaction = table.transaction()
        try:
            with transaction.update_schema() as update:
                update.union_by_name(schema)
        except (ValueError, ValidationError) as error:
            raise self._error(f"the columns of the rows do not fit the table: {error}") from error
        self._check_changes(table.schema(), transaction.table_metadata.schema())
        return transaction.commit_transaction()

    def _check_changes(self, before: "Schema", after: "Schema") -> None:
        """Raise PipelineError unless the schema of the table may change from `before` to `after`."""
        # Names of fields in structs, such as s.b, are names of columns too.
        added = sorted({*after.column_names} - {*before.column_names})
        lower = {name.lower(): name for name in before.column_names}
        for name in added:
            if name.lower() in lower:
                raise differs_in_case(self._sink.describe(), name, lower[name.lower()])
        if self._sink.evolve:
            return
        if added:
            raise self._error(f"the table has no column {', '.join(added)}; iceberg(..., evolve=True) adds columns")
        for name in before.column_names:
            old, new = before.find_type(name), after.find_type(name)
            if old.is_primitive and old != new:
                raise self._error(
                    f"column {name} is {old} in the table and {new} in the rows: cast it in the pipeline, or let"
                    " iceberg(..., evolve=True) widen the column of the table"
                )

    def _check_partitions(self, table: "Table") -> None:
        """Raise PipelineError if the declaration names other partition columns than those of the table."""
        wanted, existing = self._sink.partition_by, partition_columns(table, self._sink.describe())
        if wanted and set(wanted) != set(existing):
            raise self._error(f"the table is partitioned by {list(existing)}, not {list(wanted)}")

    def _create(self, schema: Any) -> "Table":
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.partitioning import PartitionSpec

        namespace = self._sink.name.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        try:
            with (
                self._catalog.create_table_transaction(
                    self._sink.name, schema, partition_spec=PartitionSpec()
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                for name in self._sink.partition_by:
                    spec.add_identity(name)
        except TableAlreadyExistsError:  # another process has created it
            pass
        return self._catalog.load_table(self._sink.name)

    def _error(self, text: str) -> PipelineError:
        return PipelineError(f"{self._sink.describe()}: {text}")


def partition_columns(table: "Table", label: str) -> tuple[str, ...]:
    """Return the columns by whose values the table is partitioned.

    Raises PipelineError if the table is partitioned by something that is computed from a column, such as the day of a
    time. pyiceberg accepts only files whose rows all belong to one partition, and the executors separate rows only by
    the values of columns.
    """
    from pyiceberg.transforms import IdentityTransform

    names = []
    for field in table.spec().fields:
        if not isinstance(field.transform, IdentityTransform):
            raise PipelineError(
                f"{label}: the table is partitioned by the transform {field.transform}; partition it by columns only"
            )
        names.append(table.schema().find_column_name(field.source_id) or "")
    return tuple(names)
