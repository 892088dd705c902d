"""The checks of column names that sinks share."""

from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def check_names(columns: "StructType", sink: str, prefix: str = "") -> None:
    """Raise PipelineError, which names `sink`, if two columns, or two fields of a struct, have the same name or names
    that differ only in case. `prefix` is the name of the struct, with a dot at its end.

    After a join, rows may have two columns with one name. If a sink writes both to a file, many programs cannot read
    the file, and others return only one of the columns.
    """
    similar: dict[str, list[str]] = {}
    for name in columns.names:
        similar.setdefault(name.lower(), []).append(f"{prefix}{name}")
    for first, *others in similar.values():
        if others and others[0] == first:
            raise PipelineError(f"{sink}: the rows have two columns named {first}: drop or rename one")
        if others:
            raise PipelineError(f"{sink}: the columns {first} and {others[0]} differ only in case: rename one")
    for column in columns:
        _check_type(column.dataType, sink, f"{prefix}{column.name}")


def differs_in_case(sink: str, name: str, stored: str) -> PipelineError:
    """Return the error for rows with a column `name` that differs only in case from the table's column `stored`."""
    return PipelineError(
        f"{sink}: column {name} of the rows differs only in case from {stored} in the table: rename it"
    )


def _check_type(kind: "DataType", sink: str, name: str) -> None:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        check_names(kind, sink, f"{name}.")
    elif isinstance(kind, t.ArrayType):
        _check_type(kind.elementType, sink, f"{name}.element")
    elif isinstance(kind, t.MapType):
        _check_type(kind.keyType, sink, f"{name}.key")
        _check_type(kind.valueType, sink, f"{name}.value")
