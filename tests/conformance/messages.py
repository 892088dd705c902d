"""Encode and decode requests and answers with the library kio, which is not a part of the product.

A message is a tree of dict, list, int, str, bytes and None. Field names are those of Kafka's schemas in snake_case
(`timeout_ms`, `topic_data`). kio removes the unit `_ms` from names of durations and times; this module adds it again. A
topic id is the text of 22 characters that Kafka prints. Errors are numbers.
"""

import base64
import dataclasses
import datetime
import functools
import io
import struct
import types
import typing
import uuid
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from .values import BadText

Tree = Any
REQUEST_HEADER = struct.Struct(">hhih")
MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ZERO_ID = base64.urlsafe_b64encode(bytes(16)).decode().rstrip("=")

API_KEYS: dict[str, int] = {
    "".join(part.capitalize() for part in name.split("_")): key for key, name in api_key_map.items()
}
API_NAMES: dict[int, str] = {key: name for name, key in API_KEYS.items()}


class Undecodable(ValueError):
    """The bytes do not match the schema of their API and version exactly."""


def known_versions(api_key: int) -> range:
    """Return the versions for which kio has both request and response."""
    known = schema_name_map[api_key_map[api_key]]
    both = [v for v, kinds in known.items() if EntityType.request in kinds and EntityType.response in kinds]
    return range(min(both), max(both) + 1)


def is_known(api_key: int, version: int) -> bool:
    return api_key in api_key_map and version in known_versions(api_key)


def error_number(name: str) -> int:
    """Return the number of an error by its name, for example NOT_COORDINATOR. Raises KeyError."""
    return int(ErrorCode[name.lower()])


def error_name(number: int) -> str:
    return ErrorCode(number).name.upper()


def topic_id_text(identifier: uuid.UUID | None) -> str:
    return base64.urlsafe_b64encode(identifier.bytes if identifier else bytes(16)).decode().rstrip("=")


def topic_id_from_text(text: str) -> uuid.UUID | None:
    return None if text == ZERO_ID else uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, tree: Tree) -> bytes:
    """Return a whole frame without its length. Fields of other versions are left out.

    Raises BadText for a field that no version has.
    """
    message = load_request_schema(api_key, version)
    body = io.BytesIO()
    entity_writer(message)(body, _entity(message, tree, api_key))
    return (
        encode_header(api_key, version, correlation_id, client_id, message.__header_schema__.__version__)
        + body.getvalue()
    )


def encode_header(api_key: int, version: int, correlation_id: int, client_id: str | None, header_version: int) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    return (
        REQUEST_HEADER.pack(api_key, version, correlation_id, length) + name + (b"\0" if header_version == 2 else b"")
    )


def decode_request(frame: bytes) -> tuple[int, int, Tree]:
    """Return API key, version and tree of a frame that a client sent."""
    api_key, version, _, client_length = REQUEST_HEADER.unpack_from(frame)
    message = load_request_schema(api_key, version)
    position = REQUEST_HEADER.size + max(client_length, 0) + (message.__header_schema__.__version__ == 2)
    return api_key, version, _decode(message, frame, position)


def decode_answer(api_key: int, version: int, frame: bytes) -> Tree:
    """Return the tree of a response frame. Raises Undecodable, also if bytes follow the message."""
    message = load_response_schema(api_key, version)
    return _decode(message, frame, 4 + (message.__header_schema__.__version__ == 1))


def encode_answer(api_key: int, version: int, correlation_id: int, tree: Tree) -> bytes:
    message = load_response_schema(api_key, version)
    body = io.BytesIO()
    entity_writer(message)(body, _entity(message, tree, api_key))
    tags = b"\0" if message.__header_schema__.__version__ == 1 else b""
    return struct.pack(">i", correlation_id) + tags + body.getvalue()


def _decode(message: type[Any], frame: bytes, position: int) -> Tree:
    try:
        entity, size = entity_reader(message)(frame, position)
    except Exception as error:
        raise Undecodable(f"{message.__name__} v{message.__version__}: {error!r}: {frame.hex()[:400]}") from error
    if position + size != len(frame):
        raise Undecodable(f"{message.__name__} v{message.__version__}: {len(frame) - position - size} bytes too many")
    return _to_tree(entity)


def _to_tree(value: Any) -> Tree:
    if dataclasses.is_dataclass(value):
        message: Any = type(value)
        return {
            field: _to_tree(getattr(value, name)) if kind != "uuid" else topic_id_text(getattr(value, name))
            for field, name, kind, _, _ in _fields(message)
        }
    if isinstance(value, tuple):
        return [topic_id_text(v) if isinstance(v, uuid.UUID) else _to_tree(v) for v in value]
    if isinstance(value, datetime.timedelta):
        return round(value / MILLISECOND)
    if isinstance(value, datetime.datetime):
        return round((value - EPOCH) / MILLISECOND)
    if isinstance(value, bool) or value is None:
        return value
    return _to_python_type(value)


def _to_python_type(value: Any) -> int | float | str | bytes:
    """Convert kio's types of numbers and texts, which are subclasses of Python's types, to Python's types."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    raise TypeError(f"values of kio like {value!r} are not supported")


@functools.cache
def _fields(message: Any) -> list[tuple[str, str, str | None, Any, Any]]:
    """Return (schema name, kio's name, kio's kind, type, default) of each field."""
    fields = []
    for field in dataclasses.fields(message):
        kind = field.metadata.get("kafka_type")
        timed = kind is not None and kind.startswith(("timedelta", "datetime"))
        fields.append((field.name + "_ms" if timed else field.name, field.name, kind, field.type, field.default))
    return fields


def _entity(message: Any, tree: Tree, api_key: int) -> Any:
    if not isinstance(tree, dict):
        raise BadText(f"{message.__name__} must be a map of fields, not {tree!r}")
    arguments = {}
    known = set()
    for field, name, kind, hint, default in _fields(message):
        known.add(field)
        if field in tree:
            arguments[name] = _field_value(hint, kind, tree[field], api_key)
        elif default is dataclasses.MISSING:
            arguments[name] = _zero(hint, kind, f"{message.__name__}.{field}", api_key)
    for field in tree.keys() - known:
        if field not in _field_names_of_all_versions(api_key, message.__name__):
            raise BadText(f"no version of {message.__name__} has a field {field}")
    return message(**arguments)


@functools.cache
def _field_names_of_all_versions(api_key: int, struct_name: str) -> set[str]:
    names: set[str] = set()
    for version in known_versions(api_key):
        for load in (load_request_schema, load_response_schema):
            for candidate in vars(__import__(load(api_key, version).__module__, fromlist=["_"])).values():
                if isinstance(candidate, type) and candidate.__name__ == struct_name:
                    names.update(field for field, *_ in _fields(candidate))
    return names


def _optional(hint: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether None is allowed."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        members = [a for a in typing.get_args(hint) if a is not type(None)]
        return members[0], len(members) < len(typing.get_args(hint))
    return hint, False


def _field_value(hint: Any, kind: str | None, value: Any, api_key: int) -> Any:
    inner, _ = _optional(hint)
    if kind == "uuid":
        return topic_id_from_text(value)
    if value is None:
        return None
    if typing.get_origin(inner) is tuple:
        item = typing.get_args(inner)[0]
        return tuple(_field_value(item, "uuid" if item is uuid.UUID else None, v, api_key) for v in value)
    if dataclasses.is_dataclass(inner):
        return _entity(inner, value, api_key)
    if kind is not None and kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if kind is not None and kind.startswith("datetime"):
        return EPOCH + datetime.timedelta(milliseconds=value)
    if kind == "error_code":
        return ErrorCode(value)
    return value


def _zero(hint: Any, kind: str | None, field: str, api_key: int) -> Any:
    inner, nullable = _optional(hint)
    if kind == "uuid":
        return None
    if nullable:
        raise BadText(f"{field} can be null and has no default: give it a value")
    if typing.get_origin(inner) is tuple:
        return ()
    if dataclasses.is_dataclass(inner):
        return _entity(inner, {}, api_key)
    if kind is not None and kind.startswith("timedelta"):
        return datetime.timedelta(0)
    for plain, zero in ((bool, False), (int, 0), (float, 0.0), (str, ""), (bytes, b"")):
        if issubclass(inner, plain):
            return zero
    raise BadText(f"{field} has no default: give it a value")
