"""Arrow types of the columns of Spark. All timestamps with a time zone are in UTC."""

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """Return the Arrow schema in which Spark expects rows with these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # from PySpark 4.3 on
        options["timezone"] = "UTC"
    return to_arrow_schema(schema, **options)


def in_utc(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return the same rows. In each timestamp that has a time zone, UTC replaces the time zone of Spark's session."""
    import pyarrow as pa

    fields = [field.with_type(utc_type(field.type)).with_nullable(True) for field in batch.schema]
    schema = pa.schema(fields)
    if schema == batch.schema:
        return batch
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def utc_type(data_type: "pa.DataType") -> "pa.DataType":
    """Return the type with UTC in place of every other time zone. The fields inside the type become nullable, because
    rows that are written later may lack them.
    """
    import pyarrow as pa

    def converted(field: "pa.Field") -> "pa.Field":
        return field.with_type(utc_type(field.type)).with_nullable(True)

    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(data_type):
        return pa.list_(converted(data_type.value_field))
    if pa.types.is_map(data_type):
        return pa.map_(data_type.key_field.with_type(utc_type(data_type.key_type)), converted(data_type.item_field))
    if pa.types.is_struct(data_type):
        return pa.struct([converted(child) for child in data_type])
    return data_type
