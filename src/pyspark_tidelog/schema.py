"""The columns of a topic, with the names and the order of Spark's Kafka source."""

from typing import TYPE_CHECKING

from pyspark_tidelog.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS = "headers"


def source_schema(include_headers: bool) -> "StructType":
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    columns = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        columns.append(StructField(HEADERS, ArrayType(header)))
    return StructType(columns)


def columns_of(schema: "StructType", include_headers: bool) -> tuple[str, ...]:
    """Return the names of a schema's columns. Raises SchemaError if one of them is not a column of the source.

    `spark.read.schema("value binary")` reads only this column, and transfers no other columns to Spark.
    """
    known = {field.name: field.dataType for field in source_schema(True)}
    for field in schema.fields:
        if field.name not in known:
            raise SchemaError(f"format tidelog has no column {field.name!r}; it has {', '.join(known)}")
        if field.name == HEADERS and not include_headers:
            raise SchemaError("the column 'headers' exists only with option includeHeaders=true")
        if field.dataType != known[field.name]:
            wanted, given = known[field.name].simpleString(), field.dataType.simpleString()
            raise SchemaError(f"the type of column {field.name!r} of format tidelog is {wanted}, not {given}")
    return tuple(schema.fieldNames())
