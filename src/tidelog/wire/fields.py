"""Parse the lines that describe the fields of Kafka's messages: name, type, versions, default.

One line describes one field:

    TopicData []TopicProduceData 0+ nullable=1+ tag=0 default=null ignorable rigid

The parts of a line, in this order:

- Kafka's name of the field, its type, and the versions that have it;
- `nullable`: the versions in which the field may be null;
- `tag`: the field's tag (KIP-482);
- `default`: the default value, if it differs from the default of the type (zero, false, "", an empty array, null for
  `records`);
- `ignorable`: if a version does not have the field, the encoder drops the field's value silently;
- `rigid`: the field has no compact length, even in flexible versions.

The generated classes contain these lines (`Struct.FIELDS`). A codec is built from the lines when the codec is first
used.
"""

import re
from typing import NamedTuple

from tidelog.wire.primitives import NO_UUID

FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The format character of Python's module `struct` for each type of fixed size."""

FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
"""Encoded size in bytes of each type of fixed size."""

SIMPLE_TYPES = frozenset(FIXED_FORMATS) | {"string", "bytes", "records"}

Default = bool | int | float | str | bytes | None


class Versions(NamedTuple):
    """A range of versions from `first` to `last`, both included. The range is empty if `first` > `last`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == NEWEST:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NEWEST = 32767
"""The value of `last` in a range without an upper bound, such as `3+`."""
NO_VERSIONS = Versions(0, -1)


def versions_from_text(text: str) -> Versions:
    """Parse `none`, `3`, `3+` or `3-7`."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), NEWEST)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


class Field(NamedTuple):
    """One field of a struct. `type` has no brackets, even for an array. `attribute` is the field's name in Python."""

    name: str
    attribute: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Default
    ignorable: bool
    rigid: bool

    @property
    def is_struct(self) -> bool:
        return self.type not in SIMPLE_TYPES

    @property
    def is_optional_struct(self) -> bool:
        """Whether the field is a tagged struct that is never null on the wire. In Python it may be None, which means
        a struct with default values.
        """
        return self.is_struct and not self.is_array and self.tag is not None and self.nullable == NO_VERSIONS


def snake_case(name: str) -> str:
    """Convert a schema name to snake case: `TopicId` -> `topic_id`, `KRaftVersion` -> `k_raft_version`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def field_from_line(line: str) -> Field:
    """Parse the line of one field. Raises ValueError if the line is malformed."""
    name, type_name, versions, *words = line.split()
    is_array = type_name.startswith("[]")
    type_name = type_name.removeprefix("[]")
    options = dict(word.partition("=")[::2] for word in words)
    unknown = options.keys() - {"nullable", "tag", "default", "ignorable", "rigid"}
    if unknown:
        raise ValueError(f"unknown options {sorted(unknown)} in {line!r}")
    return Field(
        name=name,
        attribute=snake_case(name),
        type=type_name,
        is_array=is_array,
        versions=versions_from_text(versions),
        nullable=versions_from_text(options.get("nullable", "none")),
        tag=int(options["tag"]) if "tag" in options else None,
        default=_default(type_name, is_array, options.get("default")),
        ignorable="ignorable" in options,
        rigid="rigid" in options,
    )


def fields_from_lines(lines: str) -> list[Field]:
    return [field_from_line(line) for line in lines.split("\n") if line.strip()]


def _default(type_name: str, is_array: bool, text: str | None) -> Default:
    """Return the default as a Python value; None means null. Raises ValueError if the type is numeric and
    the text is not a number.

    For an array or struct, the result is None or "". Here, "" only means that the default is not null.
    """
    if text == "null":
        return None
    if is_array or type_name not in SIMPLE_TYPES:
        return ""  # not None: the default is an empty array or a struct of defaults
    if type_name == "bool":
        return text == "true"
    if type_name == "float64":
        return float(text or 0)
    if type_name in FIXED_FORMATS and type_name != "uuid":
        return int(text or "0", 0)
    return {"uuid": NO_UUID, "string": text or "", "bytes": b"", "records": None}[type_name]
