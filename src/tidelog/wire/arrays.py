"""The long arrays of a message, in parts: who holds those can free a message of millions of things little by little.

Nothing is taken from the message: the parts are lists of their own, of what the message's lists hold.
"""

from typing import Any

from tidelog.model.steps import Steps
from tidelog.wire.decoding import struct_named
from tidelog.wire.facts import fields_from_lines
from tidelog.wire.message import Struct

PART_ITEMS = 512
"""Of one part, and the most that an array has of which no parts are made."""
STRUCTS_PER_STEP = 128


def parts_of(message: Struct) -> Steps[list[list[Any]]]:
    """What is in the message's arrays of more than `PART_ITEMS` elements, at whatever depth."""
    parts: list[list[Any]] = []
    structs: list[Any] = [message]
    left = STRUCTS_PER_STEP
    while structs:
        struct = structs.pop()
        for attribute, leads_on in _arrays_of(type(struct)):
            value = getattr(struct, attribute)
            if not value:
                continue
            if not isinstance(value, list):
                structs.append(value)
                continue
            if leads_on:
                structs += value
            if len(value) > PART_ITEMS:
                for start in range(0, len(value), PART_ITEMS):
                    parts.append(value[start : start + PART_ITEMS])
                    yield
        left -= 1
        if not left:
            left = STRUCTS_PER_STEP
            yield
    return parts


_arrays: dict[type[Struct], tuple[tuple[str, bool], ...]] = {}


def _arrays_of(kind: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """Attributes that are arrays, or structs with arrays in them, and whether their elements have arrays in them."""
    known = _arrays.get(kind)
    if known is None:
        found = []
        for field in fields_from_lines(kind.FIELDS):
            leads_on = field.is_struct and bool(_arrays_of(struct_named(kind, field.type)))
            if field.is_array or leads_on:
                found.append((field.attribute, leads_on))
        known = _arrays[kind] = tuple(found)
    return known
