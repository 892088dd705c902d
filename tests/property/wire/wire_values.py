"""Hypothesis strategies for messages, made from the table of facts, and their projection on one version.

A drawn value is a tree of plain Python values for the fields of all versions together. `project` makes a message of it
that one version can carry.
"""

import importlib
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tidelog.wire.apis import APIS
from tidelog.wire.decoding import struct_named
from tidelog.wire.fields import NO_VERSIONS, Field, fields_from_lines
from tidelog.wire.message import Message, Struct

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "50"))
"""Examples for each message; each is tried in every version."""

wire_settings = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="TIDELOG_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)

RECORD_MODULES = (
    "consumer_protocol",
    "control_records",
    "group_records",
    "raft_records",
    "share_group_records",
    "share_records",
    "storage_records",
    "streams_group_records",
    "transaction_records",
)

Adjust = Callable[[str, str, Any], Any]
"""(struct, attribute, value) -> the value to use instead."""
Tree = dict[str, Any]


def message_module(name: str) -> Any:
    return importlib.import_module(f"tidelog.wire.messages.{name}")


def api_messages() -> list[type[Message]]:
    return [
        getattr(message_module(api.module), f"{api.name}{kind}")
        for api in APIS.values()
        for kind in ("Request", "Response")
    ]


def record_messages() -> list[type[Message]]:
    return [
        value
        for name in RECORD_MODULES
        for value in vars(message_module(name)).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    ]


KIO_DATA = (
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ControlRecordTypeSchema",
    "EndTxnMarker",
    "KRaftVersionRecord",
    "LeaderChangeMessage",
    "SnapshotFooterRecord",
    "SnapshotHeaderRecord",
    "VotersRecord",
)
"""What kio has beside requests and responses."""


@cache
def message_named(name: str) -> type[Message]:
    return next(message for message in (*api_messages(), *record_messages()) if message.__name__ == name)


_fields: dict[type[Struct], list[Field]] = {}
_trees: dict[type[Struct], st.SearchStrategy["Tree"]] = {}


def fields_of(kind: type[Struct]) -> list[Field]:
    if kind not in _fields:
        _fields[kind] = fields_from_lines(kind.FIELDS)
    return _fields[kind]


def versions_of(message: type[Message]) -> range:
    return range(message.min_version, message.max_version + 1)


INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
# Sizes around the steps of compact lengths: one byte up to 126 (127 with the null's place), then two.
TEXTS = st.text(max_size=6) | st.sampled_from(["", "a" * 126, "b" * 127, "ü" * 64, "c" * 300])
CONTENTS = st.binary(max_size=6) | st.sampled_from([b"", b"\x00" * 126, b"\x01" * 127, b"\x02" * 20_000])


def _integers(kind: str) -> st.SearchStrategy[int]:
    low, high = INTEGERS[kind]
    return st.sampled_from([0, 1, -1 if low else 1, low, high]) | st.integers(low, high)


SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "uuid": st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
    "string": TEXTS,
    "bytes": CONTENTS,
    "records": CONTENTS,
    **{kind: _integers(kind) for kind in INTEGERS},
}


def trees(kind: type[Struct]) -> st.SearchStrategy[Tree]:
    """Values for every field of every version."""
    if kind not in _trees:
        _trees[kind] = st.fixed_dictionaries({f.attribute: _values(kind, f) for f in fields_of(kind)})
    return _trees[kind]


def _values(kind: type[Struct], field: Field) -> st.SearchStrategy[Any]:
    values = trees(struct_named(kind, field.type)) if field.is_struct else SIMPLE[field.type]
    if field.is_array:
        # Now and then more elements than a one-byte compact count can say.
        repeated = st.builds(lambda value, count: [value] * count, values, st.sampled_from([126, 127, 130]))
        values = st.lists(values, max_size=3)
        values = values | repeated if not field.is_struct else values
    if field.nullable != NO_VERSIONS or field.is_optional_struct or field.type == "records":
        return st.none() | values
    return values


def as_drawn(_struct: str, _attribute: str, value: Any) -> Any:
    return value


def project(kind: type[Struct], tree: Tree, version: int, adjust: Adjust = as_drawn) -> Any:
    """The struct with the fields of `version` from the tree, and defaults elsewhere."""
    name = kind.__name__
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if version not in field.versions:
            continue
        value = tree[field.attribute]
        if value is None:
            if version in field.nullable or field.is_optional_struct:
                values[field.attribute] = None
            elif field.type == "records":
                values[field.attribute] = b""
        elif not field.is_struct:
            many = value if field.is_array else [value]
            many = [adjust(name, field.attribute, item) for item in many]
            values[field.attribute] = many if field.is_array else many[0]
        elif field.is_array:
            values[field.attribute] = [project(struct_named(kind, field.type), item, version, adjust) for item in value]
        else:
            inner = struct_named(kind, field.type)
            found = project(inner, value, version, adjust)
            values[field.attribute] = None if field.is_optional_struct and found == inner() else found
    return kind(**values)
