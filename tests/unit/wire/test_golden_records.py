"""Records of internal topics compared with the bytes of Apache Kafka's own classes (tests/golden/wire/kafka)."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.model.ids import uuid_from_text
from tidelog.wire.batches import BatchHeader
from tidelog.wire.decoding import struct_named
from tidelog.wire.fields import fields_from_lines
from tidelog.wire.message import Message, Struct
from tidelog.wire.messages import (
    group_records,
    raft_records,
    share_group_records,
    share_records,
    storage_records,
    streams_group_records,
    transaction_records,
)
from tidelog.wire.records import batches_in, decode_records

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"
MODULES = (
    group_records,
    raft_records,
    share_group_records,
    share_records,
    storage_records,
    streams_group_records,
    transaction_records,
)
MESSAGES: dict[str, type[Message]] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Message) and value is not Message
}
ROWS = [
    line.split("\t")
    for line in (GOLDEN / "kafka" / "record_messages.tsv").read_text().split("\n")
    if line and not line.startswith("#")
]


def from_json(kind: type[Struct], values: dict[str, Any]) -> Any:
    """A message of values in Kafka's JSON form: names in camel case, bytes and ids in base64."""
    found: dict[str, Any] = {}
    for field in fields_from_lines(kind.FIELDS):
        name = field.name[0].lower() + field.name[1:]
        if name not in values:
            continue
        value = values[name]
        many = value if field.is_array and value is not None else [value]
        if field.is_struct:
            inner = struct_named(kind, field.type)
            many = [item and from_json(inner, item) for item in many]
        elif field.type == "uuid":
            many = [uuid_from_text(item) for item in many]
        elif field.type == "bytes":
            many = [item if item is None else base64.b64decode(item) for item in many]
        found[field.attribute] = many if field.is_array and value is not None else many[0]
    return kind(**found)


@pytest.mark.parametrize(
    ("name", "version", "values", "data"), ROWS, ids=[f"{row[0]}-v{row[1]}-{number}" for number, row in enumerate(ROWS)]
)
def test_kafka_writes_the_same(name: str, version: str, values: str, data: str) -> None:
    message = from_json(MESSAGES[name], json.loads(values))
    encoded = bytes.fromhex(data)
    assert message.encode(int(version)) == encoded
    assert MESSAGES[name].decode(encoded, 0, int(version)) == (message, len(encoded))


def test_every_record_is_there_in_every_version() -> None:
    there = {(row[0], int(row[1])) for row in ROWS}
    assert there == {
        (name, version)
        for name, message in MESSAGES.items()
        for version in range(message.min_version, message.max_version + 1)
    }


KINDS: dict[int, tuple[type[Message], type[Message]]] = {
    0: (group_records.LegacyOffsetCommitKey, group_records.OffsetCommitValue),
    1: (group_records.OffsetCommitKey, group_records.OffsetCommitValue),
    2: (group_records.GroupMetadataKey, group_records.GroupMetadataValue),
}
"""What stands in `__consumer_offsets` by the key's leading number; values begin with their version."""


@pytest.mark.parametrize(
    "path", sorted((GOLDEN / "segments").glob("*__consumer_offsets*.log")), ids=lambda path: path.stem
)
def test_consumer_offsets_of_real_brokers(path: Path) -> None:
    data = path.read_bytes()
    seen = 0
    for header in batches_in(data):
        for record in decode_records(data, header.position):
            assert record.key is not None
            key_kind, value_kind = KINDS[int.from_bytes(record.key[:2], "big")]
            key, end = key_kind.decode(record.key, 2, 0)
            assert end == len(record.key)
            assert key.encode(0) == record.key[2:]
            assert key.group  # type: ignore[attr-defined]
            if record.value is not None:
                version = int.from_bytes(record.value[:2], "big")
                value, end = value_kind.decode(record.value, 2, version)
                assert end == len(record.value)
                assert value.encode(version) == record.value[2:]
            seen += 1
    assert seen == sum(BatchHeader(data, header.position).count for header in batches_in(data))
    assert seen
