"""Compares the columns of rows with those of a format's schema, before the rows are encoded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_tidelog.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

WIDER = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
"""For each type, the types that have all of its values."""
INTEGERS = ("tinyint", "smallint", "int", "bigint")


def check_columns(rows: "StructType", schema: "StructType", prefix: str = "") -> bool:
    """Compare `rows`, the columns of the rows, with the columns of `schema`. The rows must have every column that is
    not nullable in `schema`. `prefix` is the name of the outer column, with a dot at its end.

    Return whether the types of `schema` have all values that the types of `rows` have. If not, each value must be
    checked before it is written. Raises SchemaError if a column is missing, is not in the schema, or has a type whose
    values would change.
    """
    check_names(rows.names, schema.names, [field.name for field in schema if not field.nullable], prefix)
    wanted = {field.name: field.dataType for field in schema}
    fits = [_check_type(field.dataType, wanted[field.name], f"{prefix}{field.name}") for field in rows]
    return all(fits)


def check_names(rows: Sequence[str], schema: Sequence[str], required: Sequence[str], prefix: str = "") -> None:
    """Raise SchemaError if a name in `rows` is not in `schema`, or if one in `required` is not in `rows`."""
    lower = {name.lower(): name for name in schema}
    for name in rows:
        if name not in schema:
            similar = lower.get(name.lower())
            remedy = "rename the column of the rows" if similar else "leave it out, or add it to the schema"
            raise SchemaError(
                f"the rows have a column {prefix}{name}, which the schema does not have"
                f"{f' (but it has {prefix}{similar})' if similar else ''}: {remedy}. The schema has {', '.join(schema)}"
            )
    missing = [f"{prefix}{name}" for name in required if name not in rows]
    if missing:
        raise SchemaError(
            f"the schema has a column {', '.join(missing)}, but the rows have only"
            f" {', '.join(rows)}: add it to the rows"
        )


def _check_type(row: "DataType", wanted: "DataType", name: str) -> bool:
    """Compare the type of one column, like `check_columns`."""
    from pyspark.sql import types as t

    if isinstance(row, t.StructType) and isinstance(wanted, t.StructType):
        return check_columns(row, wanted, f"{name}.")
    if isinstance(row, t.ArrayType) and isinstance(wanted, t.ArrayType):
        return _check_type(row.elementType, wanted.elementType, f"{name}.element")
    if isinstance(row, t.MapType) and isinstance(wanted, t.MapType):
        key_fits = _check_type(row.keyType, wanted.keyType, f"{name}.key")
        return _check_type(row.valueType, wanted.valueType, f"{name}.value") and key_fits
    row_name, wanted_name = row.simpleString(), wanted.simpleString()
    if row_name == wanted_name or isinstance(row, t.NullType) or wanted_name in WIDER.get(row_name, ()):
        return True
    if _may_fit(row, wanted):
        return False
    raise SchemaError(
        f"column {name} is {wanted_name} in the schema and {row_name} in the rows, so values could change: cast it, for"
        f" example cast({name} as {wanted_name}), or change the schema"
    )


def _may_fit(row: "DataType", wanted: "DataType") -> bool:
    """Return whether some values of the type `row` can be written as the type `wanted`. If so, each value must be
    checked.
    """
    from pyspark.sql import types as t

    if row.simpleString() in INTEGERS:
        # Dates, times and the values of an enumeration can be written as their numbers.
        return wanted.simpleString() in INTEGERS or isinstance(
            wanted, t.DecimalType | t.DateType | t.TimestampType | t.TimestampNTZType | t.StringType
        )
    if isinstance(row, t.DecimalType):
        return isinstance(wanted, t.DecimalType) and row.scale <= wanted.scale
    return isinstance(row, t.BinaryType | t.StringType) and isinstance(wanted, t.StringType)
