"""Convert trees of fields (dicts and lists) to generated messages."""

from importlib import import_module
from typing import Any

from tidelog.wire.apis import APIS

MODULES = {info.name: info.module for info in APIS.values()}


def request_of(api: str, fields: dict[str, Any]) -> Any:
    """Return the request message of `api`. Nested dicts become the nested structs of the same field."""
    return _struct(import_module(f"tidelog.wire.messages.{MODULES[api]}"), f"{api}Request", fields)


def _struct(module: Any, name: str, fields: dict[str, Any]) -> Any:
    kind = getattr(module, name)
    types = dict(line.split()[:2] for line in kind.FIELDS.strip().splitlines())
    by_attribute = dict(zip(kind.__slots__, types.values(), strict=True))
    values = {}
    for field, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            element = by_attribute[field].removeprefix("[]")
            values[field] = [_struct(module, element, part) for part in value]
        else:
            values[field] = value
    return kind(**values)
