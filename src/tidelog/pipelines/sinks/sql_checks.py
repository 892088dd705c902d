"""Finds tables of a database in which a sink would silently change or replace values."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.pipelines.declarations import PipelineError

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table

CONSTANT = re.compile(r"'.*'|-?[\d.]+", re.DOTALL)
"""A default of a column that is the same for each row, as MariaDB and MySQL write it."""


class IndexPart(NamedTuple):
    """One part of an index of MariaDB or MySQL."""

    column: str | None
    """None for an expression."""
    length: int | None
    """The number of characters or bytes at the beginning of a value that the index contains. None: all of them."""


def check_unique_indexes(engine: "Engine", table: "Table", names: Sequence[str], key: Sequence[str], sink: str) -> None:
    """Raise PipelineError if rows with the columns `names` could replace rows with another key.

    In MariaDB and MySQL, `ON DUPLICATE KEY UPDATE` replaces a row that has the same values in any unique index. The
    other databases compare only the key, and report an error for other unique indexes.
    """
    if engine.dialect.name not in {"mysql", "mariadb"}:
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
