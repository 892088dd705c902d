"""Copy the references in a message's long arrays into short lists, so that the message can be freed in steps.

A message may hold millions of objects. Freeing all of them at once would block the event loop for too long. While
the short lists refer to the objects, it is cheap to free the message; afterwards the lists are freed one after
another. The message itself is not changed.
"""

from typing import Any

from tidelog.model.steps import Steps
from tidelog.wire.decoding import struct_named
from tidelog.wire.fields import fields_from_lines
from tidelog.wire.message import Struct

PART_ITEMS = 512
"""Maximum number of elements in one part. Arrays with at most this many elements are not split."""
STRUCTS_PER_STEP = 128
"""Number of structs that are searched for arrays between two yields."""


def parts_of(message: Struct) -> Steps[list[list[Any]]]:
    """Return the elements of all arrays with more than `PART_ITEMS` elements, at any depth. They are returned in
    lists of at most `PART_ITEMS` elements.
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


_array_attributes: dict[type[Struct], tuple[tuple[str, bool], ...]] = {}


def _arrays_of(struct_class: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the attributes that are arrays or contain arrays. Each attribute has a flag that says whether its
    struct type contains arrays.
    """
    attributes = _array_attributes.get(struct_class)
    if attributes is None:
        array_attributes = []
        for field in fields_from_lines(struct_class.FIELDS):
            contains_arrays = field.is_struct and bool(_arrays_of(struct_named(struct_class, field.type)))
            if field.is_array or contains_arrays:
                array_attributes.append((field.attribute, contains_arrays))
        attributes = _array_attributes[struct_class] = tuple(array_attributes)
    return attributes
