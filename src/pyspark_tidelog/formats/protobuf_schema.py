"""Converts the type of a Protobuf message to columns, messages to rows, and rows to messages.

A message of google/protobuf/wrappers.proto becomes a value that may be null. A google.protobuf.Timestamp becomes a
timestamp.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark_tidelog.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = tuple(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)


def columns_of_message(descriptor: Any, outer: tuple[str, ...] = ()) -> "StructType":
    """Return the columns of a message. Raises SchemaError if it contains itself, or has no fields."""
    from pyspark.sql.types import StructField, StructType

    if descriptor.full_name in outer:
        raise SchemaError(f"the message {descriptor.full_name} contains itself: Spark has no such column type")
    if not descriptor.fields:
        raise SchemaError(f"the message {descriptor.full_name} has no fields: Spark has no such column type")
    inner = (*outer, descriptor.full_name)
    return StructType([StructField(field.name, _column_type(field, inner), True) for field in descriptor.fields])


def _column_type(field: Any, outer: tuple[str, ...]) -> "DataType":
    from pyspark.sql.types import ArrayType, MapType

    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_value_type(entry["key"], outer), _value_type(entry["value"], outer), True)
    kind = _value_type(field, outer)
    return ArrayType(kind, True) if field.is_repeated else kind


def _value_type(field: Any, outer: tuple[str, ...]) -> "DataType":
    from pyspark.sql import types as t

    if field.message_type is not None:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return t.TimestampType()
        if name in WRAPPERS:
            return _value_type(field.message_type.fields_by_name["value"], outer)
        return columns_of_message(field.message_type, outer)
    types: dict[int, DataType] = {
        field.CPPTYPE_INT32: t.IntegerType(),
        field.CPPTYPE_INT64: t.LongType(),
        field.CPPTYPE_UINT32: t.LongType(),
        field.CPPTYPE_UINT64: t.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: t.DoubleType(),
        field.CPPTYPE_FLOAT: t.FloatType(),
        field.CPPTYPE_BOOL: t.BooleanType(),
        field.CPPTYPE_ENUM: t.StringType(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return t.BinaryType() if field.type == field.TYPE_BYTES else t.StringType()
    return types[field.cpp_type]


def record_of_message(message: Any) -> dict[str, Any]:
    """Return the fields of a message. A field that may be absent becomes null if it is absent.

    Raises ValueError or OverflowError for a Timestamp outside the years 1 to 9999.
    """
    return {field.name: _field_value(message, field) for field in message.DESCRIPTOR.fields}


def _field_value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        kind = field.message_type.fields_by_name["value"]
        return [(key, _single_value(kind, value[key])) for key in value]
    if field.is_repeated:
        return [_single_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single_value(field, value)


def _single_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return value.ToDatetime(UTC)
        return value.value if name in WRAPPERS else record_of_message(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def fill_message(message: Any, record: dict[str, Any]) -> None:
    """Set the fields of an empty message. A null leaves its field absent, or with its default."""
    for field in message.DESCRIPTOR.fields:
        value = record.get(field.name)
        if value is None:
            continue
        if _is_map(field):
            _fill_map(getattr(message, field.name), field.message_type.fields_by_name["value"], dict(value))
        elif field.is_repeated:
            target = getattr(message, field.name)
            for item in value:
                if field.message_type is not None:
                    _fill_single(target.add(), field, item)
                else:
                    target.append(_scalar(field, item))
        elif field.message_type is not None:
            target = getattr(message, field.name)
            target.SetInParent()
            _fill_single(target, field, value)
        else:
            setattr(message, field.name, _scalar(field, value))


def _fill_map(target: Any, field: Any, values: dict[Any, Any]) -> None:
    for key, value in values.items():
        if field.message_type is not None:
            _fill_single(target[key], field, value)
        else:
            target[key] = _scalar(field, value)


def _fill_single(target: Any, field: Any, value: Any) -> None:
    name = field.message_type.full_name
    if name == TIMESTAMP:
        target.FromDatetime(value if isinstance(value, datetime) else value.to_pydatetime())
    elif name in WRAPPERS:
        target.value = _scalar(field.message_type.fields_by_name["value"], value)
    else:
        fill_message(target, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        return int(value) if known is None else known.number
    return int(value) if field.cpp_type == field.CPPTYPE_UINT64 else value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
