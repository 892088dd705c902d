"""Finds tables of a database in which a sink would silently change or replace values."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.column_names import differs_in_case

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType
    from sqlalchemy import Engine, Table

CONSTANT = re.compile(r"'.*'|-?[\d.]+", re.DOTALL)
"""A default of a column that is the same for each row, as MariaDB and MySQL write it."""
INTEGERS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
"""Spark's types of whole numbers, with their greatest number of decimal digits."""
DOUBLE_DIGITS, SINGLE_DIGITS = 15, 6
"""Number of decimal digits that a floating-point number of 64 and of 32 bits keeps."""


class IndexPart(NamedTuple):
    """One part of an index of MariaDB or MySQL."""

    column: str | None
    """None for an expression."""
    length: int | None
    """The number of characters or bytes at the beginning of a value that the index contains. None: all of them."""


def check_names(columns: "StructType", sink: str) -> None:
    """Raise PipelineError if two columns have the same name: only the values of one of them would be stored."""
    for number, name in enumerate(columns.names):
        if name in columns.names[:number]:
            raise PipelineError(
                f"{sink}: two columns have the name {name}, as after a join: select one of them, or rename one"
            )


def check_columns(engine: "Engine", table: "Table", columns: "StructType", sink: str) -> None:
    """Raise PipelineError if the database would change values of `columns` in `table`, or if a column differs from one
    of the table only in case. Other columns that the table does not have are left out.
    """
    lower = {stored.name.lower(): stored.name for stored in table.columns}
    for column in columns:
        if column.name in table.columns:
            stored = table.columns[column.name].type
            if not keeps_values(column.dataType, stored, engine.dialect.name):
                raise PipelineError(
                    f"{sink}: column {column.name} is {stored.compile(engine.dialect)} in the table and"
                    f" {column.dataType.simpleString()} in the rows, so the database would change or refuse values:"
                    " cast the column in the pipeline, or change its type in the table"
                )
        elif column.name.lower() in lower:
            raise differs_in_case(sink, column.name, lower[column.name.lower()])


def keeps_values(row: "DataType", stored: Any, dialect: str) -> bool:
    """Return whether a column of the type `stored` keeps all values of the Spark type `row`, or refuses them itself.

    Types without a rule here are accepted, such as texts and types that only one database has.
    """
    import sqlalchemy as sa

    name = row.typeName()
    if isinstance(stored, sa.Boolean | sa.Integer):
        # MariaDB and MySQL have only integers for truth values.
        return name in {"boolean", *INTEGERS} or (name == "decimal" and getattr(row, "scale", 0) == 0)
    if isinstance(stored, sa.Float):
        return _float_keeps(row, stored, dialect)
    if isinstance(stored, sa.Numeric):
        return _numeric_keeps(row, stored, dialect)
    if isinstance(stored, sa.DateTime):
        return name in {"timestamp", "timestamp_ntz", "date"}
    if isinstance(stored, sa.Date):
        return name == "date"
    return True


def _float_keeps(row: "DataType", stored: Any, dialect: str) -> bool:
    """Return whether a column of floating-point numbers keeps all values of `row`."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql

    name = row.typeName()
    is_single = (dialect == "postgresql" and isinstance(stored, sa.REAL)) or (
        isinstance(stored, mysql.FLOAT) and dialect in {"mysql", "mariadb"}
    )
    if getattr(stored, "scale", None) is not None:  # FLOAT(7, 2) of MariaDB and MySQL rounds to two digits
        return False
    if name in {"float", "double"}:
        return name == "float" or not is_single
    digits = INTEGERS.get(name, getattr(row, "precision", 0) if name == "decimal" else 0)
    return 0 < digits <= (SINGLE_DIGITS if is_single else DOUBLE_DIGITS)


def _numeric_keeps(row: "DataType", stored: Any, dialect: str) -> bool:
    """Return whether a column of decimal numbers keeps all values of `row`, or refuses those with too many digits."""
    from tidelog.pipelines.sinks.sql_types import SQLITE_DIGITS

    name = row.typeName()
    if name in {"boolean", *INTEGERS}:
        return True
    if name != "decimal":
        return False
    precision, scale = getattr(row, "precision", 10), getattr(row, "scale", 0)
    if dialect == "sqlite" and precision > SQLITE_DIGITS:
        return False  # SQLite stores the number as a floating-point number
    # Without a scale, PostgreSQL and SQLite keep all digits.
    return stored.scale is None or stored.scale >= scale


def check_unique_indexes(engine: "Engine", table: "Table", names: Sequence[str], key: Sequence[str], sink: str) -> None:
    """Raise PipelineError if rows with the columns `names` could replace rows with another key. Without a key, no
    row is replaced.

    In MariaDB and MySQL, `ON DUPLICATE KEY UPDATE` replaces a row that has the same values in any unique index. The
    other databases compare only the key, and report an error for other unique indexes.
    """
    if not key or engine.dialect.name not in {"mysql", "mariadb"}:
        return
    place, rows_key = engine.dialect.identifier_preparer.format_table(table), ", ".join(key)
    for index, parts in unique_indexes(engine, place).items():
        whole = {part.column for part in parts if part.length is None}
        if set(key) <= whole or not all(_can_be_equal(table, part.column, names) for part in parts):
            continue
        quoted = engine.dialect.identifier_preparer.quote(index)
        covered = ", ".join(
            (part.column or "an expression") + ("" if part.length is None else f" (first {part.length})")
            for part in parts
        )
        raise PipelineError(
            f"{sink}: rows with different keys ({rows_key}) would replace each other, because the table also has the"
            f" unique index {index} on {covered}, and {engine.dialect.name} replaces a row that is equal in any unique"
            f" index. Remove it: ALTER TABLE {place} DROP INDEX {quoted}; or let its columns be the key of sql()"
        )


def unique_indexes(engine: "Engine", place: str) -> dict[str, list[IndexPart]]:
    """Return the unique indexes of a table of MariaDB or MySQL, with the primary key, by their names."""
    found: dict[str, list[IndexPart]] = {}
    with engine.connect() as connection:
        for row in connection.exec_driver_sql(f"SHOW INDEX FROM {place}").mappings():
            if not row["Non_unique"]:
                found.setdefault(row["Key_name"], []).append(IndexPart(row["Column_name"], row["Sub_part"]))
    return found


def _can_be_equal(table: "Table", column: str | None, names: Sequence[str]) -> bool:
    """Return whether two inserted rows can be equal in this part of a unique index. They cannot if the rows do not have
    the column, and the database gives it a null, which equals no other null, or a new number.
    """
    if column is None or column in names:
        return True
    described = table.columns[column]
    default = getattr(described.server_default, "arg", None)
    return described.computed is not None or (default is not None and CONSTANT.fullmatch(str(default)) is not None)
