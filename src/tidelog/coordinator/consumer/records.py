"""The records of consumer groups in `__consumer_offsets`, as Kafka 4.3 writes them (KIP-848).

The class `ConsumerRecord` represents all kinds of records. `KINDS` lists the messages of their keys and values. The
state of a group is the result of replaying its records.
"""

from struct import Struct
from typing import Any, NamedTuple

from tidelog.wire.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from tidelog.wire.primitives import MalformedMessage

# The kinds of records. Each number is the type in the record's key.
GROUP_METADATA = 3
PARTITION_METADATA = 4
"""Brokers before Kafka 4.1 wrote this kind of record; later brokers write only tombstones of this kind."""
MEMBER_METADATA = 5
TARGET_METADATA = 6
TARGET_MEMBER = 7
CURRENT_ASSIGNMENT = 8
REGULAR_EXPRESSION = 16

_TYPE = Struct(">h")


class Kind(NamedTuple):
    """The message classes for one kind of record."""

    key: Any
    value: Any
    key_has_name: bool
    """Whether the key also contains a member id or a regular expression."""


KINDS: dict[int, Kind] = {
    GROUP_METADATA: Kind(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, False),
    PARTITION_METADATA: Kind(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, False),
    MEMBER_METADATA: Kind(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, True),
    TARGET_METADATA: Kind(ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, False),
    TARGET_MEMBER: Kind(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, True),
    CURRENT_ASSIGNMENT: Kind(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, True),
    REGULAR_EXPRESSION: Kind(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, True),
}


class ConsumerRecord:
    """One record of a consumer group; a tombstone if `value` is None."""

    __slots__ = ("group", "kind", "name", "value")

    def __init__(self, kind: int, group: str, name: str, value: Any) -> None:
        self.kind = kind
        self.group = group
        self.name = name
        """A member id or regular expression; empty for a record of the whole group."""
        self.value = value

    def encode(self) -> tuple[bytes, bytes | None]:
        kind = KINDS[self.kind]
        key = kind.key(self.group, self.name) if kind.key_has_name else kind.key(self.group)
        encoded = _TYPE.pack(self.kind) + key.encode(0)
        return encoded, None if self.value is None else _TYPE.pack(0) + self.value.encode(0)

    def __repr__(self) -> str:
        return f"ConsumerRecord({self.kind}, {self.group!r}, {self.name!r}, {self.value!r})"


def decode_consumer_record(key_type: int, key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """Decode a record. Returns None if `key_type` is not the type of a consumer group's record. Raises
    MalformedMessage.
    """
    kind = KINDS.get(key_type)
    if kind is None:
        return None
    decoded_key, _ = kind.key.decode(key, 2, 0)
    name = ""
    if kind.key_has_name:
        name = decoded_key.regular_expression if key_type == REGULAR_EXPRESSION else decoded_key.member_id
    if value is None:
        return ConsumerRecord(key_type, decoded_key.group_id, name, None)
    if len(value) < 2 or value[0] & 0x80:
        raise MalformedMessage("a consumer group record's value has no version")
    # Later versions only add tagged fields, which are skipped (KIP-915).
    decoded, _ = kind.value.decode(value, 2, 0)
    return ConsumerRecord(key_type, decoded_key.group_id, name, decoded)
