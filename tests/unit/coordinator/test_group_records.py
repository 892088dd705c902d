from pathlib import Path

import pytest

from tidelog.coordinator.group.durable import DurableGroups
from tidelog.coordinator.group.records import GroupRecord, OffsetRecord, decode_record
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata, OffsetCommitValue
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import batches_in, decode_records

GOLDEN = Path(__file__).parents[2] / "golden" / "groups"


def records_of(name: str) -> list[tuple[bytes, bytes | None]]:
    """Key and value of every record of a segment that is not a control record."""
    found = []
    for batch in batches_in((GOLDEN / name).read_bytes()):
        if not batch.is_control:
            found += [(record.key or b"", record.value) for record in decode_records(batch.buffer, batch.position)]
    return found


def kind_of(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")


@pytest.mark.parametrize("name", ["kafka-4.3.1-all-kinds.log", "kafka-4.3.1-classic.log", "kafka-4.3.1-retention.log"])
def test_what_kafka_wrote_is_written_byte_for_byte_the_same(name: str) -> None:
    known = 0
    for key, value in records_of(name):
        record = decode_record(key, value)
        if record is not None:
            assert record.encode() == (key, value)
            known += 1
    assert known >= 10


def test_every_version_and_kind_is_in_the_golden_files() -> None:
    seen = {
        (kind_of(key), None if value is None else int.from_bytes(value[:2], "big"))
        for path in GOLDEN.glob("*.log")
        for key, value in records_of(path.name)
    }
    assert {(1, 1), (1, 3), (1, 4), (1, None), (2, 3), (2, None), (3, 0), (5, 0), (8, None)} <= seen


@pytest.mark.parametrize("name", ["kafka-3.6.1.log", "kafka-3.1.0.log"])
def test_older_versions_are_read_and_written_as_today(name: str) -> None:
    for key, value in records_of(name):
        record = decode_record(key, value)
        assert record is not None
        key_again, value_again = record.encode()
        assert key_again == key
        again = decode_record(key_again, value_again)
        assert again is not None
        assert again.value == record.value


def test_the_state_that_an_old_broker_left() -> None:
    durable = DurableGroups()
    for number, (key, value) in enumerate(records_of("kafka-3.6.1.log")):
        record = decode_record(key, value)
        assert record is not None
        durable.replay(record, number + 1)
    group = durable.by_id["nodejs"]
    committed = group.committed_offset("belajarkafka", 0)
    assert committed is not None
    assert committed.offset > 19
    assert group.metadata is not None
    assert group.metadata.protocol_type == "consumer"


def test_a_record_of_another_kind_is_left_to_others() -> None:
    share_group_metadata = b"\0\x0b\0\1s"
    assert decode_record(share_group_metadata, b"\0\0\0\0\0\1\0") is None


def test_records_of_consumer_groups_are_written_as_kafka_writes_them() -> None:
    kinds = {}
    for key, value in records_of("kafka-4.3.1-all-kinds.log"):
        record = decode_record(key, value)
        assert record is not None
        assert record.encode() == (key, value)
        kinds[kind_of(key)] = None
    assert sorted(kinds) == [1, 2, 3, 5, 6, 7, 8]


def test_old_commit_keys_are_those_of_today() -> None:
    key, value = OffsetRecord("g", "t", 3, OffsetCommitValue(offset=7)).encode()
    record = decode_record(b"\0\0" + key[2:], value)
    assert isinstance(record, OffsetRecord)
    assert (record.group, record.topic, record.partition) == ("g", "t", 3)


def test_a_value_of_a_later_version_is_read_as_the_last_one_known() -> None:
    key, value = OffsetRecord("g", "t", 3, OffsetCommitValue(offset=7, topic_id=b"\1" * 16)).encode()
    assert value is not None
    record = decode_record(key, b"\0\x09" + value[2:])
    assert record is not None
    assert record.value == OffsetCommitValue(offset=7, topic_id=b"\1" * 16)


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_cut_record_is_malformed(cut: int) -> None:
    member = MemberMetadata("m", "i", "c", "/h", 1, 2, b"s", b"a")
    key, value = GroupRecord("g", GroupMetadataValue("consumer", 1, "range", "m", 5, [member])).encode()
    assert value is not None
    with pytest.raises(MalformedMessage):
        decode_record(key, value[:-cut])


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1", b"\0\2\0\5ab", b"\0\1\0\1g"])
def test_a_cut_key_is_malformed(key: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(key, None)


def test_a_negative_value_version_is_malformed() -> None:
    key, _ = GroupRecord("g", None).encode()
    with pytest.raises(MalformedMessage):
        decode_record(key, b"\xff\xff")
    with pytest.raises(MalformedMessage):
        decode_record(key, b"\0")


def test_only_the_last_record_of_a_key_counts() -> None:
    durable = DurableGroups()
    durable.replay(OffsetRecord("g", "t", 0, OffsetCommitValue(offset=1)), 1)
    durable.replay(OffsetRecord("g", "t", 0, OffsetCommitValue(offset=2)), 2)
    durable.replay(OffsetRecord("g", "t", 1, OffsetCommitValue(offset=3)), 3)
    durable.replay(OffsetRecord("g", "t", 1, None), 4)
    group = durable.by_id["g"]
    assert group.offsets == {"t": {0: OffsetCommitValue(offset=2)}}
    assert durable.next_offset("g") == 4


def test_a_group_is_gone_with_its_last_record() -> None:
    durable = DurableGroups()
    durable.replay(GroupRecord("g", GroupMetadataValue()), 1)
    durable.replay(OffsetRecord("g", "t", 0, OffsetCommitValue(offset=1)), 2)
    durable.replay(GroupRecord("g", None), 3)
    assert durable.by_id["g"].metadata is None
    durable.replay(OffsetRecord("g", "t", 0, None), 4)
    assert not durable.by_id
    assert durable.next_offset("g") == 4, "its absence is news, which must be committed before it is told"


def test_a_tombstone_of_nothing_changes_nothing() -> None:
    durable = DurableGroups()
    durable.replay(GroupRecord("g", None), 1)
    durable.replay(OffsetRecord("g", "t", 0, None), 2)
    assert not durable.by_id
    durable.replay(OffsetRecord("g", "t", 0, OffsetCommitValue()), 3)
    durable.replay(OffsetRecord("g", "other", 0, None), 4)
    assert list(durable.by_id["g"].offsets) == ["t"]
