"""Copy the references in a message's long arrays into short lists, so that the message can be freed in steps.

A message may hold millions of objects, and freeing them all at once would block the event loop for too long. While
the short lists hold references to the objects, dropping the message is cheap; afterwards the lists are freed one
after another. The message itself is not changed.
"""

from typing import Any

from tidelog.model.steps import Steps
from tidelog.wire.decoding import struct_named
from tidelog.wire.fields import fields_from_lines
from tidelog.wire.message import Struct

PART_ITEMS = 512
"""Elements in one part. Arrays with at most this many elements are not split."""
STRUCTS_PER_STEP = 128
"""Structs that are searched for arrays between two yields."""


def parts_of(message: Struct) -> Steps[list[list[Any]]]:
    """Return the elements of all arrays with more than `PART_ITEMS` elements, at any depth, in lists of at most that
    size.
    """
    parts: list[list[Any]] = []
    structs: list[Any] = [message]
    structs_left = STRUCTS_PER_STEP
    while structs:
        struct = structs.pop()
        for attribute, contains_arrays in _arrays_of(type(struct)):
            value = getattr(struct, attribute)
            if not value:
                continue
            if not isinstance(value, list):
                structs.append(value)
                continue
            if contains_arrays:
                structs += value
            if len(value) > PART_ITEMS:
                for start in range(0, len(value), PART_ITEMS):
                    parts.append(value[start : start + PART_ITEMS])
                    yield
        structs_left -= 1
        if not structs_left:
            structs_left = STRUCTS_PER_STEP
            yield
    return parts


_arrays: dict[type[Struct], tuple[tuple[str, bool], ...]] = {}


def _arrays_of(kind: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the attributes that are or contain arrays, each with a flag: whether its struct type contains arrays."""
    attributes = _arrays.get(kind)
    if attributes is None:
        array_attributes = []
        for field in fields_from_lines(kind.FIELDS):
            contains_arrays = field.is_struct and bool(_arrays_of(struct_named(kind, field.type)))
            if field.is_array or contains_arrays:
                array_attributes.append((field.attribute, contains_arrays))
        attributes = _arrays[kind] = tuple(array_attributes)
    return attributes
