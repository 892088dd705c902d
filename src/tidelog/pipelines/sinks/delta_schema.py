"""Compares the columns of a micro-batch with those of a Delta table."""

import re
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.column_names import check_names, differs_in_case
from tidelog.pipelines.sinks.keyed_rows import DELETED
from tidelog.pipelines.sinks.written_files import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

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
            raise PipelineError(
                f"{sink}: column {column.name} has or contains the type {found[0]}, which a Delta table cannot store:"
                " cast it to another type"
            )
    check_names(stored, sink)
    schema = arrow_schema(stored)
    return pa.schema([field.with_type(utc_type(field.type)).with_nullable(True) for field in schema])


def missing_columns(table: "DeltaTable", schema: "pa.Schema") -> "list[Field]":
    """Return the columns of `schema` that the table does not have."""
    from deltalake import Schema

    existing = {field.name for field in table.schema().fields}
    return [field for field in Schema.from_arrow(schema).fields if field.name not in existing]


def columns_with_new_fields(rows: "DataFrame", table: "DeltaTable") -> dict[str, list[str]]:
    """For each column, return the struct fields that it has in `rows` but not in the table. The name of a field
    includes its column: `address.city`.
    """
    types = {column.name: column.type for column in table.schema().fields}
    found = {
        column.name: new_fields(column.dataType, types[column.name], column.name)
        for column in rows.drop(DELETED).schema
        if column.name in types
    }
    return {name: fields for name, fields in found.items() if fields}


def new_fields(row: "DataType", stored: Any, name: str) -> list[str]:
    """Compare `row`, the type of a column or field in the rows, with `stored`, its type in the table. Return the names
    of the struct fields that only `row` has.
    """
    if stored.type == "struct":
        types = {field.name: field.type for field in stored.fields}
        return [
            each
            for field in getattr(row, "fields", ())
            for each in (
                new_fields(field.dataType, types[field.name], f"{name}.{field.name}")
                if field.name in types
                else [f"{name}.{field.name}"]
            )
        ]
    if stored.type == "array":
        return new_fields(getattr(row, "elementType", row), stored.element_type, f"{name}.element")
    return []


def widened(rows: "DataFrame", table: "DeltaTable", sink: str) -> "DataFrame":
    """Return `rows`, with narrower types converted to those of the table, also inside of arrays, maps and structs.

    The rows may have additional columns and struct fields, and may lack columns and struct fields that may be null in
    the table. But a struct in a map must have the same fields as in the table. Raises PipelineError for all other
    differences.
    """
    check_required(table.schema().fields, rows.columns, "", sink)
    types = {column.name: column.type for column in table.schema().fields}
    lower = {name.lower(): name for name in types}
    casts: dict[str, DataType] = {}
    for column in rows.schema:
        if column.name == DELETED:
            continue
        if column.name in types:
            wanted = fitting_type(column.dataType, types[column.name], column.name, sink)
            if wanted != column.dataType:
                casts[column.name] = wanted
        elif column.name.lower() in lower:
            raise differs_in_case(sink, column.name, lower[column.name.lower()])
    for name, wanted in casts.items():
        rows = rows.withColumn(name, rows[f"`{name.replace('`', '``')}`"].cast(wanted))
    return rows


def fitting_type(row: "DataType", stored: Any, name: str, sink: str, in_map: bool = False) -> "DataType":
    """Compare `row`, the type of a column or field in the rows, with `stored`, its type in the table. Return `row` with
    narrower types replaced by the wider types in `stored`.

    The fields of structs keep their order in `row`, because Spark converts a struct by the positions of its fields.
    Raises PipelineError if values of these types cannot be in the same column.
    """
    from pyspark.sql import types as spark

    if isinstance(row, spark.StructType) and stored.type == "struct":
        inner = {field.name: field.type for field in stored.fields}
        lower = {each.lower(): each for each in inner}
        check_required(stored.fields, row.names, f"{name}.", sink)
        if in_map and row.names != list(inner):
            # deltalake's query engine cannot read a map whose values have other fields than those of the table.
            raise PipelineError(
                f"{sink}: column {name}, a struct in a map, has the fields {', '.join(inner)} in the table and"
                f" {', '.join(row.names)} in the rows: give it the same fields in the same order"
            )
        fields = []
        for field in row.fields:
            data_type = field.dataType
            if field.name in inner:
                data_type = fitting_type(data_type, inner[field.name], f"{name}.{field.name}", sink, in_map)
            elif field.name.lower() in lower:
                raise differs_in_case(sink, f"{name}.{field.name}", lower[field.name.lower()])
            fields.append(spark.StructField(field.name, data_type, field.nullable))
        return spark.StructType(fields)
    if isinstance(row, spark.ArrayType) and stored.type == "array":
        element = fitting_type(row.elementType, stored.element_type, f"{name}.element", sink, in_map)
        return spark.ArrayType(element, row.containsNull)
    if isinstance(row, spark.MapType) and stored.type == "map":
        key = fitting_type(row.keyType, stored.key_type, f"{name}.key", sink, True)
        value = fitting_type(row.valueType, stored.value_type, f"{name}.value", sink, True)
        return spark.MapType(key, value, row.valueContainsNull)
    row_name, stored_name = row.simpleString(), spark_name(stored)
    if row_name == stored_name:
        return row
    if stored_name in WIDER.get(row_name, ()):
        kinds = [spark.ShortType(), spark.IntegerType(), spark.LongType(), spark.DoubleType()]
        return next(kind for kind in kinds if kind.simpleString() == stored_name)
    raise PipelineError(
        f"{sink}: column {name} is {stored_name} in the table and {row_name} in the rows: cast it in the pipeline"
    )


def check_required(stored: "list[Field]", names: list[str], prefix: str, sink: str) -> None:
    """Raise PipelineError if the rows do not have a field that must not be null in the table."""
    for field in stored:
        if not field.nullable and field.name not in names:
            raise PipelineError(
                f"{sink}: column {prefix}{field.name}, which must not be null in the table, is not in the rows"
            )


def check_partition_values(files: "list[WrittenFile]", table: "DeltaTable", sink: str) -> None:
    """Raise PipelineError for a partition value that is a date or time that deltalake cannot read from Delta's log."""
    types = {column.name: spark_name(column.type) for column in table.schema().fields}
    for file in files:
        for name, value in zip(table.metadata().partition_columns, file.partition, strict=True):
            if value is not None and types[name] in {"date", *TIMES} and not re.match(r"-?\d{4}-", value):
                raise PipelineError(
                    f"{sink}: column {name} is in partition_by and has the value {value}: a date or time in a"
                    " partition column must be in the years -9999 to 9999"
                )


def spark_name(stored: Any) -> str:
    """Return Spark's name of `stored`, a type in a Delta table; `array`, `map` or `struct` for a nested type."""
    return SPARK_NAMES.get(stored.type, str(stored.type).replace(" ", ""))


TIMES = ("timestamp", "timestamp_ntz")
SPARK_NAMES = {
    "string": "string", "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "float": "float",
    "double": "double", "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz", "timestampNtz": "timestamp_ntz",
}  # fmt: skip
"""Delta's names of simple types, and Spark's."""
