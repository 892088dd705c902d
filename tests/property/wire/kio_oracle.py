"""Messages of kio (PyPI), an independent implementation, built from ours field by field."""

import datetime
import importlib
import io
import uuid
from dataclasses import Field as KioField
from dataclasses import fields as kio_fields
from typing import Any, get_args

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import TZAware, i32Timedelta, i64Timedelta

from tidelog.wire.decoding import struct_named
from tidelog.wire.fields import Field, fields_from_lines
from tidelog.wire.message import Message, Struct

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LATEST_MS = 253_402_300_799_000
"""The last millisecond that Python's datetime can say, less a second."""
ERROR_CODES = sorted(code.value for code in ErrorCode)


def kio_class(message: type[Message], version: int, module: str, kind: str) -> Any:
    return getattr(importlib.import_module(f"kio.schema.{module}.v{version}.{kind}"), message.__name__)


def kio_kinds(entity: Any, message: type[Struct], version: int) -> dict[tuple[str, str], str]:
    """(struct, attribute) -> the name of kio's type, where it narrows what the wire could carry."""
    kinds: dict[tuple[str, str], str] = {}
    for field, theirs in _pairs(entity, message, version):
        if field.is_struct:
            kinds |= kio_kinds(_entity_of(theirs), struct_named(message, field.type), version)
        else:
            kinds[message.__name__, field.attribute] = _kind(theirs)
    return kinds


def narrowed(kafka_type: str, value: Any) -> Any:
    """The nearest value that kio can represent: it has no unknown error codes and only whole seconds from 1970 on."""
    if kafka_type == "error_code":
        return ERROR_CODES[value % len(ERROR_CODES)]
    if kafka_type == "datetime_i64?" and value == -1:
        return value
    if kafka_type.startswith("datetime_i64"):
        return value % LATEST_MS // 1000 * 1000
    if kafka_type == "timedelta_i64":
        return value % LATEST_MS
    return value


def to_kio(entity: Any, message: Struct, version: int) -> Any:
    values = {}
    for field, theirs in _pairs(entity, type(message), version):
        value = getattr(message, field.attribute)
        if value is None and field.is_optional_struct:
            value = struct_named(type(message), field.type)()
        if value is not None and field.is_struct:
            inner = _entity_of(theirs)
            value = (
                tuple(to_kio(inner, item, version) for item in value)
                if field.is_array
                else to_kio(inner, value, version)
            )
        elif value is not None:
            kafka_type = _kind(theirs)
            value = tuple(_simple(kafka_type, item) for item in value) if field.is_array else _simple(kafka_type, value)
        values[theirs.name] = value
    return entity(**values)


def kio_encode(entity: Any) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


def kio_decode(entity: Any, data: bytes) -> Any:
    value, size = entity_reader(entity)(data, 0)
    assert size == len(data)
    return value


def _simple(kafka_type: str, value: Any) -> Any:
    if kafka_type == "uuid":
        return uuid.UUID(bytes=value) if any(value) else None
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type == "timedelta_i32":
        return i32Timedelta.parse(datetime.timedelta(milliseconds=value))
    if kafka_type == "timedelta_i64":
        return i64Timedelta.parse(datetime.timedelta(milliseconds=value))
    if kafka_type == "datetime_i64?" and value == -1:
        return None
    if kafka_type.startswith("datetime_i64"):
        return TZAware.parse(EPOCH + datetime.timedelta(milliseconds=value))
    return value


def _kind(field: KioField[Any]) -> str:
    """The name of kio's type; with a question mark for a time that may be missing, which is -1 on the wire."""
    name: str = field.metadata["kafka_type"]
    return f"{name}?" if name == "datetime_i64" and type(None) in get_args(field.type) else name


_found_pairs: dict[tuple[Any, int], list[tuple[Field, KioField[Any]]]] = {}


def _pairs(entity: Any, message: type[Struct], version: int) -> list[tuple[Field, KioField[Any]]]:
    """Our fields of the version beside kio's: the same names in the same order, less units and trailing underscores."""
    if (entity, version) in _found_pairs:
        return _found_pairs[entity, version]
    ours = [field for field in fields_from_lines(message.FIELDS) if version in field.versions]
    theirs = list(kio_fields(entity))
    names = [field.attribute.removesuffix("_ms") for field in ours]
    assert names == [field.name.removesuffix("_ms").rstrip("_") for field in theirs], (entity, version)
    return _found_pairs.setdefault((entity, version), list(zip(ours, theirs, strict=True)))


def _entity_of(field: KioField[Any]) -> Any:
    """The entity class inside `X`, `X | None`, `tuple[X, ...]` or both."""
    found: Any = field.type
    while get_args(found):
        found = next(part for part in get_args(found) if part not in (type(None), Ellipsis))
    return found
