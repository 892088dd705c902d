"""Compares the columns of a micro-batch with those of a Delta table."""

import re
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.keyed_rows import DELETED

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field
    from pyspark.sql import DataFrame

UNSUPPORTED = re.compile(r"\b(void|variant|interval[\w ]*|time\(\d+\)|geo\w+)")
"""Types of Spark that a Delta table cannot store, in the notation of `DataType.simpleString`."""
WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
"""For each type, the types to which its values can be converted without a loss."""


def stored_schema(rows: "DataFrame", sink: str) -> "pa.Schema":
    """Return the Arrow schema of the columns to store. Raises PipelineError for a type that Delta does not have."""
    import pyarrow as pa

    from tidelog.pipelines.sinks.arrow_types import arrow_schema, utc_type

    stored = rows.drop(DELETED).schema
    for column in stored:
        if found := UNSUPPORTED.search(column.dataType.simpleString()):
            raise PipelineError(f"{sink}: column {column.name} has the type {found[0]}: cast it to another type")
    seen: dict[str, str] = {}
    for name in stored.names:
        if name.lower() in seen:
            raise PipelineError(f"{sink}: the columns {seen[name.lower()]} and {name} differ only in case: rename one")
        seen[name.lower()] = name
    schema = arrow_schema(stored)
    return pa.schema([field.with_type(utc_type(field.type)).with_nullable(True) for field in schema])


def missing_columns(table: "DeltaTable", schema: "pa.Schema") -> "list[Field]":
    """Return the columns of `schema` that the table does not have."""
    from deltalake import Schema

    existing = {field.name for field in table.schema().fields}
    return [field for field in Schema.from_arrow(schema).fields if field.name not in existing]


def widened(rows: "DataFrame", table: "DeltaTable", sink: str) -> "DataFrame":
    """Return `rows`, with narrower types converted to those of the table. Raises PipelineError for other differences of
    simple types. Nested types are not compared.
    """
    types = {column.name: spark_type(column) for column in table.schema().fields}
    casts: dict[str, str] = {}
    for column in rows.schema:
        row_type, table_type = column.dataType.simpleString(), types.get(column.name)
        if column.name == DELETED or table_type is None or table_type == row_type:
            continue
        if table_type in WIDER.get(row_type, ()):
            casts[column.name] = table_type
        elif is_simple(table_type) and is_simple(row_type):
            raise PipelineError(
                f"{sink}: column {column.name} is {table_type} in the table and {row_type} in the rows: cast it in the"
                " pipeline"
            )
    for name, table_type in casts.items():
        rows = rows.withColumn(name, rows[name].cast(table_type))
    return rows


def spark_type(column: Any) -> str:
    """Return the type of a column of a Delta table in Spark's notation; an empty string for a nested type."""
    name = getattr(column.type, "type", "")
    if name not in SPARK_NAMES and not str(name).startswith("decimal"):
        return ""
    return SPARK_NAMES.get(name, str(name).replace(" ", ""))


def is_simple(type_name: str) -> bool:
    return bool(type_name) and "<" not in type_name


SPARK_NAMES = {
    "string": "string", "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "float": "float",
    "double": "double", "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz", "timestampNtz": "timestamp_ntz",
}  # fmt: skip
"""Delta's names of simple types, and Spark's."""
