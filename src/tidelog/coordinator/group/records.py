"""The records of classic groups and of offsets in `__consumer_offsets`, as Kafka 4.3 writes them.

A key consists of a 2-byte type and a message in version 0. A value consists of a 2-byte version and a message in this
version.
"""

from struct import Struct
from typing import TypeAlias

from tidelog.coordinator.consumer.records import ConsumerRecord, decode_consumer_record
from tidelog.wire.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from tidelog.wire.primitives import MalformedMessage

_TYPE = Struct(">h")
"""The form of a key's type and of a value's version."""
OFFSET_COMMIT_LEGACY_TYPE = 0
"""Only old versions of Kafka wrote this type. It is decoded like OFFSET_COMMIT_TYPE."""
OFFSET_COMMIT_TYPE = 1
GROUP_METADATA_TYPE = 2

_KEY_TYPES = {key_type: _TYPE.pack(key_type) for key_type in (OFFSET_COMMIT_TYPE, GROUP_METADATA_TYPE)}
_VALUE_VERSIONS = {version: _TYPE.pack(version) for version in range(5)}

GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_EXPIRING_VERSION = 1
"""The only record version with an expiry time. It is used if a client requests a retention time (OffsetCommit up to
v4)."""


class OffsetRecord:
    """The committed offset of one partition; a tombstone if `value` is None."""

    __slots__ = ("group", "partition", "topic", "value")

    def __init__(self, group: str, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        self.group = group
        self.topic = topic
        self.partition = partition
        self.value = value

    def encode(self) -> tuple[bytes, bytes | None]:
        key = _KEY_TYPES[OFFSET_COMMIT_TYPE] + OffsetCommitKey(self.group, self.topic, self.partition).encode(0)
        value = self.value
        if value is None:
            return key, None
        version = OFFSET_COMMIT_VERSION if value.expire_timestamp < 0 else OFFSET_COMMIT_EXPIRING_VERSION
        return key, _VALUE_VERSIONS[version] + value.encode(version)


class GroupRecord:
    """Generation, members and assignments of one group; a tombstone if `value` is None."""

    __slots__ = ("group", "value")

    def __init__(self, group: str, value: GroupMetadataValue | None) -> None:
        self.group = group
        self.value = value

    def encode(self) -> tuple[bytes, bytes | None]:
        key = _KEY_TYPES[GROUP_METADATA_TYPE] + GroupMetadataKey(self.group).encode(0)
        if self.value is None:
            return key, None
        return key, _VALUE_VERSIONS[GROUP_METADATA_VERSION] + self.value.encode(GROUP_METADATA_VERSION)


AnyRecord: TypeAlias = OffsetRecord | GroupRecord | ConsumerRecord


def decode_record(key: bytes, value: bytes | None) -> AnyRecord | None:
    """Decode a record. Returns None if the type is not supported, for example for the records of share and streams
    groups. Callers ignore such records.

    Raises MalformedMessage.
    """
    if len(key) < 2:
        raise MalformedMessage("a group record's key has no type")
    (key_type,) = _TYPE.unpack_from(key)
    if key_type in (OFFSET_COMMIT_LEGACY_TYPE, OFFSET_COMMIT_TYPE):
        commit_key, _ = OffsetCommitKey.decode(key, 2, 0)
        committed = None
        if value is not None:
            committed, _ = OffsetCommitValue.decode(value, 2, _value_version(value, OffsetCommitValue.max_version))
        return OffsetRecord(commit_key.group, commit_key.topic, commit_key.partition, committed)
    if key_type == GROUP_METADATA_TYPE:
        group_key, _ = GroupMetadataKey.decode(key, 2, 0)
        metadata = None
        if value is not None:
            metadata, _ = GroupMetadataValue.decode(value, 2, _value_version(value, GroupMetadataValue.max_version))
        return GroupRecord(group_key.group, metadata)
    return decode_consumer_record(key_type, key, value)


def _value_version(value: bytes, newest_known: int) -> int:
    if len(value) < 2:
        raise MalformedMessage("a group record's value has no version")
    version: int
    (version,) = _TYPE.unpack_from(value)
    if version < 0:
        raise MalformedMessage(f"a group record's value has version {version}")
    # Versions above `newest_known` only add tagged fields, which are skipped (KIP-915).
    return min(version, newest_known)
