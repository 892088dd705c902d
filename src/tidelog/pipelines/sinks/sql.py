"""`sql()`: a table of SQLite, MariaDB, MySQL or PostgreSQL as the sink or the source of a pipeline.

Spark's driver writes each micro-batch in one transaction of the database. The same transaction stores the number of the
micro-batch in the table BATCHES. So a micro-batch is written completely and once, or not at all. Executors cannot share
a transaction, so they do not write: the rows pass through the driver, partition by partition.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import BEGINS, Opened, PipelineError, SinkContext, SourceContext, TemporaryError
from tidelog.pipelines.sinks.batch_numbers import is_written
from tidelog.pipelines.sinks.extras import load
from tidelog.pipelines.sinks.keyed_rows import DELETED, KeyedRows, null_in_key, repeated
from tidelog.pipelines.sinks.outages import is_outage
from tidelog.pipelines.sinks.sql_sessions import prepare_sessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.exc import SQLAlchemyError

BATCHES = "tidelog_batches"
"""A further table in the sink's database. It contains the number of each query's last micro-batch."""
ROWS_PER_STATEMENT = 1000
"""Number of rows that one call of the database driver sends."""
ATTEMPTS_MAX = 5
"""Upper bound on the attempts to write a micro-batch if the database ends the transaction because of a deadlock."""


def sql(
    url: str,
    table: str,
    *,
    key: str | Sequence[str] | None = None,
    delete: str | None = None,
    order_by: str | None = None,
    incrementing: str | None = None,
    timestamp: str | None = None,
    delay: str = "5 seconds",
    rows_per_batch: int = 100_000,
    options: Mapping[str, Any] | None = None,
) -> "Sql":
    """Return the table of the database at `url`, a URL of SQLAlchemy such as
    `postgresql+psycopg://user:secret@host/db`, `mysql+pymysql://...` or `sqlite:////directory/file.db`.

    As a sink: the table is created if it does not exist. Rows are appended. With `key`, a row replaces the row with the
    same key. `delete` is a condition in Spark's SQL, or a boolean column, which is not stored: a row for which
    `delete` is true removes the stored row with the same key. `order_by` is a column: if several rows of a micro-batch
    have the same key, only the row with the largest value in this column is used. A null in a column of `key` is an
    error. With the output mode `complete`, each micro-batch replaces all rows.

    As a source of a stream: `incrementing` is a column whose values grow with each new row. Its alternative `timestamp`
    is a column with the time of the last change of a row. A row is read when its timestamp is older than `delay`. A
    micro-batch has at most `rows_per_batch` rows. It has more only if its last row and further rows have the same
    value in the column `incrementing` or `timestamp`.

    `options` are arguments of SQLAlchemy's `create_engine`.
    """
    keys = tuple([key] if isinstance(key, str) else key or ())
    if (delete or order_by) and not keys:
        raise PipelineError(f"sql {table}: delete and order_by need a key")
    if incrementing and timestamp:
        raise PipelineError(f"sql {table}: incrementing and timestamp exclude each other")
    keyed = KeyedRows(keys, delete, order_by) if keys else None
    return Sql(url, table, keyed, incrementing, timestamp, delay, rows_per_batch, dict(options or {}))


@dataclass(frozen=True)
class Sql:
    """A table of a database: a sink and a source."""

    url: str
    """May contain a password, and is never printed as it is."""
    table: str
    keyed: KeyedRows | None
    incrementing: str | None
    timestamp: str | None
    delay: str
    rows_per_batch: int
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"sql({self.table!r})"

    @property
    def begins(self) -> tuple[str, ...]:
        """Where a stream of this source can begin (see `declarations.BEGINS`)."""
        return ("earliest", "latest") if self.timestamp is None else BEGINS

    def describe(self) -> str:
        return f"sql {self.table}"

    def open(self, context: SinkContext) -> Opened:
        if context.output_mode == "update" and self.keyed is None:
            raise PipelineError(f"{self.describe()}: the output mode update needs a key, as in sql(..., key=['id'])")
        if context.output_mode == "complete" and self.keyed is not None:
            raise PipelineError(f"{self.describe()}: the output mode complete replaces all rows, so it takes no key")
        return OpenedSql(self, context.query, context.output_mode == "complete")

    def load(self, context: SourceContext) -> "DataFrame":
        load("sqlalchemy", "sql()", "sql")
        from tidelog.pipelines.sources.sql import load_sql

        return load_sql(self, context)

    def errors(self, engine: "Engine") -> "_DatabaseErrors":
        """Return a context manager that turns errors of the database into PipelineError. The messages do not contain
        the password of the URL.
        """
        return _DatabaseErrors(f"{self.describe()} at {engine.url.render_as_string(hide_password=True)}")

    def engine(self) -> "Engine":
        """Return a new engine, whose sessions use UTC. Raises PipelineError if the URL is wrong or the database's
        driver is not installed.
        """
        sqlalchemy = load("sqlalchemy", "sql()", "sql")
        # Each transaction has a connection of its own, so that no connection stays open in a task or after a failure.
        arguments = {"hide_parameters": True, "poolclass": sqlalchemy.pool.NullPool, **self.options}
        try:
            engine: Engine = sqlalchemy.create_engine(self.url, **arguments)
        except ImportError as error:
            raise PipelineError(f"{self.describe()}: {error}: run pip install 'tidelog[sql]'") from error
        except sqlalchemy.exc.ArgumentError as error:
            raise PipelineError(
                f"{self.describe()}: the URL of the database is wrong: write it as postgresql+psycopg://USER@HOST/NAME"
            ) from error
        prepare_sessions(engine)
        return engine


class OpenedSql:
    """A table that is open for one query."""

    def __init__(self, sink: Sql, query: str, replaces_rows: bool) -> None:
        import sqlalchemy

        self._sink = sink
        self._query = query
        self._replaces_rows = replaces_rows
        self._engine = sink.engine()
        self._table: Table | None = None
        self._batches = sqlalchemy.Table(
            BATCHES,
            sqlalchemy.MetaData(),
            sqlalchemy.Column("query", sqlalchemy.String(255), primary_key=True),
            sqlalchemy.Column("batch", sqlalchemy.BigInteger, nullable=False),
            mysql_engine="InnoDB",
        )
        with self._errors():
            self._batches.create(self._engine, checkfirst=True)
            self._register_query()

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch in one transaction, unless the database contains it already."""
        with self._errors():
            if self._is_written(batch_id):
                return
        rows = batch if self._sink.keyed is None else self._sink.keyed.prepare(batch, self._sink.describe())
        with self._errors():
            table = self._prepared(rows)
            self._repeat_after_deadlocks(lambda connection: self._write_rows(connection, table, rows, batch_id))

    def close(self) -> None:
        self._engine.dispose()

    def _write_rows(self, connection: "Connection", table: "Table", rows: "DataFrame", batch_id: int) -> None:
        """Write the rows in the transaction of `connection`.

        The first statement locks the query's row in BATCHES. A second Spark driver that runs the same query waits
        for the lock, and then finds that the micro-batch is written.
        """
        from tidelog.pipelines.sinks.sql_types import converters, delete_statement, insert_statement
        from tidelog.pipelines.sinks.sql_values import named_years

        columns = self._batches.c
        advance = self._batches.update().where(columns.query == self._query, columns.batch < batch_id)
        if connection.execute(advance.values(batch=batch_id)).rowcount == 0:
            return
        if self._replaces_rows:
            connection.execute(table.delete())
        key = self._sink.keyed.key if self._sink.keyed else ()
        names = [name for name in rows.columns if name != DELETED]
        stored = [column for column in rows.schema if column.name in names]
        convert = converters(stored, table, self._engine.dialect.name, self._sink.describe())
        insert = insert_statement(self._engine.dialect.name, table, names, key)
        remove = delete_statement(table, key) if key else None
        finds_repeated = self._sink.keyed is not None and self._sink.keyed.order_by is None
        keys: set[tuple[Any, ...]] = set()  # stays empty with `order_by`: then each key has one row
        found = named_years(rows.toLocalIterator(prefetchPartitions=True), rows.schema, self._sink.describe())
        for chunk in in_chunks(found):
            for row in chunk if key else ():
                if any(row[name] is None for name in key):
                    raise null_in_key(self._sink.describe(), key, [row[name] for name in key])
            for row in chunk if finds_repeated else ():
                values = tuple(convert[name](row[name]) for name in key)
                if values in keys:
                    raise repeated(self._sink.describe(), key, values)
                keys.add(values)
            written = [row for row in chunk if remove is None or not row[DELETED]]
            removed = [row for row in chunk if remove is not None and row[DELETED]]
            if written:
                connection.execute(insert, [{name: convert[name](row[name]) for name in names} for row in written])
            if removed and remove is not None:
                connection.execute(
                    remove, [{f"key_{name}": convert[name](row[name]) for name in key} for row in removed]
                )

    def _repeat_after_deadlocks(self, write: "Callable[[Connection], None]") -> None:
        from sqlalchemy.exc import DBAPIError

        for attempt in range(ATTEMPTS_MAX):
            try:
                with self._engine.begin() as connection:
                    write(connection)
            except DBAPIError as error:
                if attempt == ATTEMPTS_MAX - 1 or not is_deadlock(error):
                    raise
                time.sleep(0.05 * 2**attempt)
            else:
                return

    def _is_written(self, batch_id: int) -> bool:
        """Return whether the database contains the micro-batch.

        Raises PipelineError if the database contains a later micro-batch. Each micro-batch stores its number, even if
        it has no rows. So PipelineError is also raised if the stored number is smaller than the number of the previous
        micro-batch: an older copy of the database was restored.
        """
        sink, last = self._sink.describe(), self._last_batch()
        if 0 <= last < batch_id - 1:
            raise PipelineError(
                f"{sink}: the database contains the micro-batches of query {self._query} up to {last}, but the next one"
                f" is {batch_id}, so the database is older than the checkpoint, and rows are missing in the table:"
                " restore the newest state of the database, or begin again with: tidelog pipeline replay NAME --from"
                f" TIME. If the rows are not needed, set batch to {batch_id - 1} in the query's row of table {BATCHES}"
            )
        return is_written(sink, self._query, last, batch_id)

    def _last_batch(self) -> int:
        import sqlalchemy

        chosen = sqlalchemy.select(self._batches.c.batch).where(self._batches.c.query == self._query)
        with self._engine.connect() as connection:
            return int(connection.execute(chosen).scalar_one())

    def _register_query(self) -> None:
        """Add the query's row to BATCHES, unless it exists."""
        import sqlalchemy
        from sqlalchemy.exc import IntegrityError

        exists = sqlalchemy.select(self._batches.c.batch).where(self._batches.c.query == self._query)
        try:
            with self._engine.begin() as connection:
                if connection.execute(exists).first() is None:
                    connection.execute(self._batches.insert().values(query=self._query, batch=-1))
        except IntegrityError:  # another process has added the row
            pass

    def _prepared(self, rows: "DataFrame") -> "Table":
        """Return the table. Create it with the columns of the rows if it does not exist."""
        from tidelog.pipelines.sinks.sql_checks import check_columns, check_names, check_unique_indexes
        from tidelog.pipelines.sinks.sql_types import check_table, create_table, existing_table
        from tidelog.pipelines.sinks.sql_values import write_json_as_text

        if self._table is None:
            stored = rows.drop(DELETED).schema
            key = self._sink.keyed.key if self._sink.keyed else ()
            check_names(stored, self._sink.describe())
            table = existing_table(self._engine, self._sink.table)
            if table is None:
                create_table(self._engine, self._sink.table, stored, key)
                table = existing_table(self._engine, self._sink.table)
                assert table is not None
            check_columns(self._engine, table, stored, self._sink.describe())
            check_table(self._engine, table, stored, key, self._sink.describe())
            check_unique_indexes(self._engine, table, stored.names, key, self._sink.describe())
            write_json_as_text(table)
            self._table = table
        return self._table

    def _errors(self) -> "_DatabaseErrors":
        return self._sink.errors(self._engine)


@dataclass(frozen=True)
class _DatabaseErrors:
    """A context manager that turns errors of the database into PipelineError, and outages into TemporaryError.

    The message is the database's own. It does not contain the statement and its parameters, but the database may name
    the value that it refuses.
    """

    place: str
    """The table and the URL of the database, for the message. The URL contains no password."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        if isinstance(error, SQLAlchemyError):
            kind = TemporaryError if is_outage(error) else PipelineError
            raise kind(f"{self.place}: {error_text(error)}") from error


def error_text(error: "SQLAlchemyError") -> str:
    """Return the message of the database, without SQLAlchemy's text around it."""
    original = getattr(error, "orig", None)
    return str(original if original is not None else error).strip()


def is_deadlock(error: Any) -> bool:
    """Return whether the database ended the transaction because of other transactions: a deadlock, a conflict of
    serializable transactions, or a lock that was not free in time.
    """
    original = error.orig
    state = getattr(original, "sqlstate", None)
    code = original.args[0] if getattr(original, "args", None) else None
    return state in {"40001", "40P01"} or code in {1205, 1213} or "database is locked" in str(original)


def in_chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(rows, ROWS_PER_STATEMENT)):
        yield chunk
