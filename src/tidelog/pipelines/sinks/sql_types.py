"""Maps the types of Spark to types of databases, creates and checks tables, and builds statements."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType
    from sqlalchemy import Engine, Table
    from sqlalchemy.engine.interfaces import ReflectedIndex
    from sqlalchemy.sql.dml import Delete, Insert
    from sqlalchemy.types import TypeEngine

KEY_TEXT_MAX = 255
"""Longest text or binary value of a key column in MariaDB and MySQL, in characters or bytes."""
SQLITE_DIGITS = 15
"""Number of decimal digits that a number in SQLite stores exactly."""


def column_type(column: "StructField", dialect: str, is_key: bool, collation: str) -> "TypeEngine[Any]":
    """Return the database's type for a column of Spark. Raises PipelineError if there is none.

    `collation` is the collation of text columns in MariaDB and MySQL.
    """
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql, postgresql

    data_type = column.dataType
    name = data_type.typeName()
    is_mysql = dialect in {"mysql", "mariadb"}
    if name in {"string", "char", "varchar"}:
        if not is_mysql:
            return sa.Text()
        return sa.String(KEY_TEXT_MAX, collation) if is_key else mysql.LONGTEXT(collation=collation)
    if name == "binary":
        if is_mysql:
            return sa.VARBINARY(KEY_TEXT_MAX) if is_key else mysql.LONGBLOB()
        return sa.LargeBinary()
    if name == "decimal":
        precision, scale = getattr(data_type, "precision", 10), getattr(data_type, "scale", 0)
        if dialect == "sqlite":
            # A number in SQLite is exact only up to SQLITE_DIGITS digits. A text keeps all digits.
            return sa.Text() if precision > SQLITE_DIGITS else sa.Numeric(precision, scale)
        return sa.Numeric(precision, scale)
    if name in {"timestamp", "timestamp_ntz"}:
        if is_mysql:
            return mysql.DATETIME(fsp=6)
        return sa.DateTime(timezone=name == "timestamp")
    if name in {"array", "map", "struct"}:
        return postgresql.JSONB() if dialect == "postgresql" else sa.JSON()
    simple: dict[str, TypeEngine[Any]] = {
        "boolean": sa.Boolean(),
        "byte": sa.SmallInteger(),
        "short": sa.SmallInteger(),
        "integer": sa.Integer(),
        "long": sa.BigInteger(),
        "float": sa.Double(),
        "double": sa.Double(),
        "date": sa.Date(),
    }
    if name not in simple:
        raise PipelineError(
            f"column {column.name} has the type {data_type.simpleString()}, which the database cannot store: cast it to"
            " another type"
        )
    return simple[name]


def create_table(engine: "Engine", name: str, columns: "StructType", key: Sequence[str]) -> None:
    """Create the table if it does not exist. Another process may create it at the same time."""
    import sqlalchemy as sa
    from sqlalchemy.exc import OperationalError, ProgrammingError

    dialect = engine.dialect.name
    # In Spark, texts that differ only in case, accents or trailing spaces are different keys. These collations also
    # distinguish such texts.
    is_mariadb = bool(getattr(engine.dialect, "is_mariadb", False))
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    definitions: list[Any] = [
        sa.Column(
            column.name,
            column_type(column, dialect, column.name in key, collation),
            primary_key=column.name in key,
            autoincrement=False,
        )
        for column in columns
    ]
    schema, _, table_name = name.rpartition(".")
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
    table = sa.Table(table_name, sa.MetaData(), *definitions, schema=schema or None, **options)
    try:
        table.create(engine, checkfirst=True)
    except (OperationalError, ProgrammingError):
        if existing_table(engine, name) is None:
            raise


def existing_table(engine: "Engine", name: str) -> "Table | None":
    import sqlalchemy as sa
    from sqlalchemy.exc import NoSuchTableError

    schema, _, table_name = name.rpartition(".")
    try:
        return sa.Table(table_name, sa.MetaData(), schema=schema or None, autoload_with=engine)
    except NoSuchTableError:
        return None


def check_table(engine: "Engine", table: "Table", columns: "StructType", key: Sequence[str], sink: str) -> None:
    """Raise PipelineError unless the table has all columns, supports transactions, and has a unique index on the
    columns of `key`, if there is a key.
    """
    import sqlalchemy as sa

    missing = [column for column in columns if column.name not in table.columns]
    if missing:
        preparer = engine.dialect.identifier_preparer
        additions = "; ".join(
            f"ALTER TABLE {preparer.format_table(table)} ADD COLUMN {preparer.quote(column.name)} "
            f"{column_type(column, engine.dialect.name, False, 'utf8mb4_bin').compile(engine.dialect)}"
            for column in missing
        )
        names = ", ".join(column.name for column in missing)
        raise PipelineError(f"{sink}: the table has no column {names}. Add it: {additions}")
    for name in key:
        if name not in columns.names:
            names = ", ".join(columns.names)
            raise PipelineError(f"{sink}: the key contains the column {name}, but the rows have only {names}")
    if key:
        indexes = sa.inspect(engine).get_indexes(table.name, table.schema)
        limited = [str(each["name"]) for each in indexes if each["unique"] and not _is_unrestricted(each)]
        if set(key) not in _unique_columns(engine, table, indexes):
            names = ", ".join(key)
            hint = ""
            if limited:
                hint = f" without a condition, an expression or a prefix (unlike {', '.join(limited)})"
            raise PipelineError(
                f"{sink}: the table has no primary key and no unique index on ({names}): create one{hint}"
            )
    kind = table.dialect_options["mysql"].get("engine") if engine.dialect.name in {"mysql", "mariadb"} else None
    if kind is not None and str(kind).lower() != "innodb":
        raise PipelineError(f"{sink}: the table has the engine {kind}, which has no transactions: use ENGINE=InnoDB")


def _unique_columns(engine: "Engine", table: "Table", indexes: "Sequence[ReflectedIndex]") -> list[set[str]]:
    """Return sets of columns. No two rows of the table may have the same values in all columns of a set."""
    import sqlalchemy as sa

    # MariaDB and MySQL also list each unique index as a constraint.
    limited = {each["name"] for each in indexes if not _is_unrestricted(each)}
    constraints = sa.inspect(engine).get_unique_constraints(table.name, table.schema)
    unique = [set(table.primary_key.columns.keys())]
    unique += [set(each["column_names"]) for each in constraints if each["name"] not in limited]
    unique += [
        {name for name in each["column_names"] if name is not None}
        for each in indexes
        if each["unique"] and each["name"] not in limited
    ]
    return unique


def _is_unrestricted(index: "ReflectedIndex") -> bool:
    """Return whether the index covers all rows and the whole values of its columns. A unique index with a condition
    (WHERE) does not apply to all rows. A unique index on an expression such as lower(name), or on a prefix such as
    name(10), may also refuse rows with different names.
    """
    options = index.get("dialect_options", {})
    # The value of _where is a clause or a text, and the value of _length is a dictionary.
    is_limited = any(
        value is not None and not (isinstance(value, dict) and not value)
        for option, value in options.items()
        if option.endswith(("_where", "_length"))
    )
    return not is_limited and not index.get("expressions") and None not in index["column_names"]


def insert_statement(dialect: str, table: "Table", names: Sequence[str], key: Sequence[str]) -> "Insert":
    """Return a statement that inserts a row. With a `key`, it updates the row with the same key, if there is one."""
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    others = [name for name in names if name not in key]
    if dialect in {"mysql", "mariadb"}:
        insert = mysql.insert(table)
        if not key:
            return insert
        # If all columns belong to the key, there is nothing to update. MySQL needs an assignment, so the key is
        # assigned to itself.
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in (others or key)})
    if dialect in {"postgresql", "sqlite"}:
        conflicting = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
        if not key:
            return conflicting
        if not others:
            return conflicting.on_conflict_do_nothing(index_elements=list(key))
        return conflicting.on_conflict_do_update(
            index_elements=list(key), set_={name: conflicting.excluded[name] for name in others}
        )
    if key:
        raise PipelineError(f"sql(): a key is possible with SQLite, MariaDB, MySQL and PostgreSQL, not with {dialect}")
    return table.insert()


def delete_statement(table: "Table", key: Sequence[str]) -> "Delete":
    """Return a statement that removes the row whose key columns equal the parameters `key_NAME`."""
    import sqlalchemy as sa

    return table.delete().where(*[table.c[name] == sa.bindparam(f"key_{name}") for name in key])


def converters(
    columns: "Iterable[StructField]", table: "Table", dialect: str, sink: str
) -> Mapping[str, Callable[[Any], Any]]:
    """For each column, return a function that converts a value of Spark's Row to a value for the database. The function
    raises PipelineError for a value that the database would change. The error's text begins with `sink`.
    """
    from tidelog.pipelines.sinks.sql_values import checked_converter

    return {
        column.name: checked_converter(
            column, table.c[column.name].type, dialect, _converter(column.dataType, dialect), sink
        )
        for column in columns
    }


def _converter(data_type: "DataType", dialect: str) -> Callable[[Any], Any]:
    name = data_type.typeName()
    if name == "binary":
        return lambda value: None if value is None else bytes(value)
    if name == "timestamp":
        # Times in PySpark's rows are local times of the driver, without a time zone, as `astimezone` assumes.
        if dialect == "postgresql":
            return lambda value: None if value is None else value.astimezone(UTC)
        return lambda value: None if value is None else value.astimezone(UTC).replace(tzinfo=None)
    if name in {"array", "map", "struct"}:
        return lambda value: None if value is None else json.dumps(_plain(value, data_type))
    if name == "decimal" and dialect == "sqlite":
        precision = getattr(data_type, "precision", 10)
        return lambda value: value if value is None or precision <= SQLITE_DIGITS else format(value, "f")
    return lambda value: value


def _plain(value: Any, data_type: "DataType") -> Any:
    """Return a value of Spark as a value that JSON has: lists, dictionaries, texts, numbers, truth values and None."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind: Any = data_type
    name = data_type.typeName()
    if name == "struct":
        return {field.name: _plain(value[field.name], field.dataType) for field in kind.fields}
    if name == "map":
        return {str(_plain(key, kind.keyType)): _plain(each, kind.valueType) for key, each in value.items()}
    if name == "array":
        return [_plain(each, kind.elementType) for each in value]
    if name == "timestamp":
        return value.astimezone(UTC).isoformat()  # see `_converter`
    if isinstance(value, date):  # also timestamp_ntz, which has no time zone
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    return str(value) if not isinstance(value, Decimal) else format(value, "f")
