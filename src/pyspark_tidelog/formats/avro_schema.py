"""Converts an Avro schema to columns. The columns have the same types as with Spark's from_avro."""

from typing import TYPE_CHECKING, Any

from pyspark_tidelog.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

TIMES = ("local-timestamp-micros", "local-timestamp-millis", "timestamp-micros", "timestamp-millis")
LOGICAL_TYPES_KEPT = ("date", "decimal", *TIMES)
"""Logical types that have a column type of their own. A field of any other logical type becomes a column of the
underlying type: a `uuid` becomes a string."""
DECIMAL_DIGITS_MAX = 38
"""Upper bound on the number of digits of Spark's decimals."""


def without_other_logical_types(schema: Any) -> Any:
    """Return the schema without the logical types that have no column type, such as uuid and time-millis.

    fastavro then returns the underlying value and not an object that Arrow cannot convert.
    """
    if isinstance(schema, list):
        return [without_other_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    type_keys = ("type", "items", "values")
    result = {key: without_other_logical_types(value) if key in type_keys else value for key, value in schema.items()}
    if isinstance(schema.get("fields"), list):
        result["fields"] = [
            {key: without_other_logical_types(value) if key == "type" else value for key, value in field.items()}
            for field in schema["fields"]
        ]
    too_long = result.get("logicalType") == "decimal" and result.get("precision", 0) > DECIMAL_DIGITS_MAX
    if "logicalType" in result and (result["logicalType"] not in LOGICAL_TYPES_KEPT or too_long):
        del result["logicalType"]
    return result


def columns_of_schema(schema: Any) -> "StructType":
    """Return the columns of a parsed Avro schema (`fastavro.parse_schema`). If an Avro field has a default or may be
    null, its column is nullable: a row may be written without this column. Raises SchemaError if the schema is not a
    record, contains itself, or contains a type for which there is no column type.
    """
    from pyspark.sql.types import StructType

    kind = _Types().of(schema)
    if not isinstance(kind, StructType):
        raise SchemaError(f"the Avro schema must be a record, not {kind.simpleString()}")
    return kind


class _Types:
    """Converts the types of one schema. A named type may be used by its name after its definition."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open_records: list[str] = []

    def of(self, schema: Any) -> "DataType":
        from pyspark.sql import types as t

        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            primitive = _primitives().get(schema)
            if primitive is not None:
                return primitive
            if schema not in self._named:
                raise SchemaError(f"the Avro schema uses the type {schema!r}, which it does not define")
            return self.of(self._named[schema])
        kind = schema["type"]
        if "name" in schema:
            self._named[schema["name"]] = schema
        if (logical := self._logical(schema)) is not None:
            return logical
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "enum":
            return t.StringType()
        if kind == "fixed":
            return t.BinaryType()
        if kind == "array":
            return t.ArrayType(self.of(schema["items"]), True)
        if kind == "map":
            return t.MapType(t.StringType(), self.of(schema["values"]), True)
        return self.of(kind)

    def _record(self, schema: Any) -> "StructType":
        from pyspark.sql.types import StructField, StructType

        if schema["name"] in self._open_records:
            raise SchemaError(f"the Avro record {schema['name']} contains itself: Spark has no such column type")
        self._open_records.append(schema["name"])
        fields = [
            StructField(field["name"], self.of(field["type"]), "default" in field or _may_be_null(field["type"]))
            for field in schema["fields"]
        ]
        self._open_records.pop()
        return StructType(fields)

    def _union(self, branches: list[Any]) -> "DataType":
        from pyspark.sql import types as t

        kinds = [self.of(branch) for branch in branches if branch != "null"]
        if len(kinds) == 1:
            return kinds[0]
        names = {kind.simpleString() for kind in kinds}
        if names and names <= {"int", "bigint"}:
            return t.LongType()
        if names and names <= {"float", "double"}:
            return t.DoubleType()
        listed = ", ".join(kind.simpleString() for kind in kinds) or "null"
        raise SchemaError(
            f"the Avro schema has a union of {listed}, which cannot be one column: a union may have one type and null, "
            "or int and long, or float and double"
        )

    def _logical(self, schema: Any) -> "DataType | None":
        from pyspark.sql import types as t

        logical = schema.get("logicalType")
        if logical == "date":
            return t.DateType()
        if logical == "decimal":
            return t.DecimalType(schema["precision"], schema.get("scale", 0))
        if logical in ("timestamp-millis", "timestamp-micros"):
            return t.TimestampType()
        if logical in ("local-timestamp-millis", "local-timestamp-micros"):
            return t.TimestampNTZType()
        return None


def _may_be_null(kind: Any) -> bool:
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


def _primitives() -> "dict[str, DataType]":
    from pyspark.sql import types as t

    return {
        "boolean": t.BooleanType(),
        "int": t.IntegerType(),
        "long": t.LongType(),
        "float": t.FloatType(),
        "double": t.DoubleType(),
        "bytes": t.BinaryType(),
        "string": t.StringType(),
        "null": t.NullType(),
    }
