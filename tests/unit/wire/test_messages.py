"""Message classes and their codecs, on chosen messages."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.create_topics import CreateTopicsRequest
from tidelog.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.wire.primitives import (
    FieldNotInVersion,
    MalformedMessage,
    UnencodableValue,
    VersionNotInMessage,
)


def produce(records: Any, partitions: int = 1) -> ProduceRequest:
    return ProduceRequest(
        acks=1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name="orders",
                partition_data=[PartitionProduceData(index=index, records=records) for index in range(partitions)],
            )
        ],
    )


def test_bytes_of_a_produce_request() -> None:
    expected = bytes.fromhex("ffff 0001 00007530 00000001 0006 6f7264657273 00000001 00000000 00000003 aabbcc")
    assert produce(b"\xaa\xbb\xcc").encode(7) == expected
    expected = bytes.fromhex("00 0001 00007530 02 07 6f7264657273 02 00000000 04 aabbcc 00 00 00")
    assert produce(b"\xaa\xbb\xcc").encode(9) == expected


@pytest.mark.parametrize("buffer", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
@pytest.mark.parametrize("version", [3, 7, 9])
def test_decode_from_any_buffer_at_any_position(buffer: Any, version: int) -> None:
    encoded = produce(b"\xaa\xbb\xcc").encode(version)
    message, position = ProduceRequest.decode(buffer(b"???" + encoded + b"!"), 3, version)
    assert position == 3 + len(encoded)
    assert message == produce(b"\xaa\xbb\xcc")
    assert type(message.topic_data[0].partition_data[0].records) is memoryview


def test_decoded_records_are_a_view_of_the_buffer() -> None:
    frame = bytearray(produce(b"\xaa\xbb\xcc").encode(7))
    records = ProduceRequest.decode(memoryview(frame), 0, 7)[0].topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0] = 0x11
    assert frame[-3:] == b"\x11\xbb\xcc"


def test_defaults_are_kafkas_and_lists_are_not_shared() -> None:
    request = FetchRequest()
    assert (request.max_bytes, request.session_epoch, request.replica_id, request.rack_id) == (2**31 - 1, -1, -1, "")
    request.topics.append(FetchTopic())
    assert FetchRequest().topics == []
    assert MetadataRequest().topics == []  # nullable, but not null by default
    assert MetadataRequest(topics=None).topics is None


def test_a_tagged_struct_is_none_when_it_holds_its_defaults() -> None:
    data = PartitionData(records=b"")
    explicit = PartitionData(records=b"", diverging_epoch=EpochEndOffset())
    for version in (12, 18):
        encoded = [
            FetchResponse(responses=[FetchableTopicResponse(partitions=[p])]).encode(version) for p in (data, explicit)
        ]
        assert encoded[0] == encoded[1]
        decoded, _ = FetchResponse.decode(encoded[1], 0, version)
        assert decoded.responses[0].partitions[0].diverging_epoch is None


def test_tagged_fields_are_written_in_order_only_when_set() -> None:
    request = FetchRequest(replica_id=-1, cluster_id="c", replica_state=ReplicaState(replica_id=1, replica_epoch=2))
    encoded = request.encode(18)
    assert encoded.endswith(bytes.fromhex("02 00 02 0263 01 0d 00000001 0000000000000002 00"))
    assert FetchRequest.decode(encoded, 0, 18) == (request, len(encoded))
    assert FetchRequest().encode(18).endswith(b"\x00")


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    unknown = bytes.fromhex("02 64 03 aabbcc 8101 00")  # two: tag 100 of three bytes, tag 129 of none
    body = bytes.fromhex("00 0001 00007530 02 07 6f7264657273 02 00000000 04 aabbcc")
    encoded = body + unknown + unknown + unknown
    assert ProduceRequest.decode(encoded, 0, 9) == (produce(b"\xaa\xbb\xcc"), len(encoded))
    # Beside known ones too, before and after them.
    known = FetchRequest(cluster_id="c").encode(18)
    assert known.endswith(bytes.fromhex("01 00 02 0263"))
    mixed = known[:-5] + bytes.fromhex("03 00 02 0263 64 01 ff c801 00")
    assert FetchRequest.decode(mixed, 0, 18) == (FetchRequest(cluster_id="c"), len(mixed))


def test_a_tagged_field_that_is_not_of_its_stated_size() -> None:
    known = FetchRequest(cluster_id="c").encode(18)
    wrong = known[:-5] + bytes.fromhex("01 00 03 0263 00")
    with pytest.raises(MalformedMessage, match="ClusterId does not exactly fill its tagged field"):
        FetchRequest.decode(wrong, 0, 18)


def test_nullable_struct() -> None:
    for cursor in (None, Cursor(topic_name="t", partition_index=3)):
        request = DescribeTopicPartitionsRequest(cursor=cursor)
        encoded = request.encode(0)
        assert DescribeTopicPartitionsRequest.decode(encoded, 0, 0) == (request, len(encoded))


def test_a_field_that_the_version_lacks() -> None:
    with pytest.raises(FieldNotInVersion, match=r"HeartbeatRequest.group_instance_id is not in version 2"):
        HeartbeatRequest(group_instance_id="a").encode(2)
    assert HeartbeatRequest(group_instance_id="a").encode(3)
    # rack_id is ignorable, last_fetched_epoch in a nested struct is not.
    assert FetchRequest(rack_id="r").encode(10) == FetchRequest().encode(10)
    with pytest.raises(FieldNotInVersion, match=r"FetchPartition.last_fetched_epoch is not in version 11"):
        FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(last_fetched_epoch=4)])]).encode(11)
    with pytest.raises(FieldNotInVersion, match="node_endpoints"):
        ProduceResponse(node_endpoints=[SimpleNamespace()]).encode(9)  # type: ignore[list-item]


def test_a_field_that_the_version_lacks_decodes_as_its_default() -> None:
    decoded, _ = HeartbeatRequest.decode(HeartbeatRequest(group_id="g").encode(0), 0, 0)
    assert decoded.group_instance_id is None


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatRequest(generation_id=2**31),
        HeartbeatRequest(group_id="x" * 32_768),
        HeartbeatRequest(generation_id="one"),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_range(message: HeartbeatRequest) -> None:
    with pytest.raises(UnencodableValue, match="HeartbeatRequest v0"):
        message.encode(0)


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_versions_that_the_message_lacks(version: int) -> None:
    with pytest.raises(VersionNotInMessage, match=f"ProduceRequest has no version {version}"):
        ProduceRequest().encode(version)
    with pytest.raises(VersionNotInMessage):
        ProduceRequest.decode(b"", 0, version)
    with pytest.raises(VersionNotInMessage):
        ProduceRequest.pieces_encoder(version)(ProduceRequest())


@pytest.mark.parametrize("version", [7, 9])
def test_every_cut_is_malformed(version: int) -> None:
    whole = produce(b"\xaa\xbb\xcc", partitions=2).encode(version)
    for size in range(len(whole)):
        with pytest.raises(MalformedMessage):
            ProduceRequest.decode(whole[:size], 0, version)


@pytest.mark.parametrize(
    ("version", "body", "reason"),
    [
        (7, "ffff 0001 00000000 ffffffff", "TopicData is null or has a negative length"),
        (7, "ffff 0001 00000000 7fffffff", "TopicData has an impossible count"),
        (7, "ffff 0001 00000000 00000001 ffff 00000000", "Name is null or has a negative length"),
        (7, "0002 fffe 0001 00000000 00000000", "a string that is not UTF-8"),
        (7, "7fff 0001 00000000 00000000", "cut short"),
        (9, "00 0001 00000000 00", "TopicData is null or has a negative length"),
        (9, "00 0001 00000000 ffffffff0f", "TopicData has an impossible count"),
        (9, "00 0001 00000000 ffffffffff0f", "varint"),
        (9, "ffffffff0f 0001 00000000 01 00", "too long"),
        (9, "00 0001 00000000 01 ffffffff0f", "cut short"),
    ],
)
def test_malformed(version: int, body: str, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        ProduceRequest.decode(bytes.fromhex(body), 0, version)


def test_any_negative_length_of_a_nullable_field_is_null() -> None:
    body = bytes.fromhex("8000 0001 00000000 00000000")
    assert ProduceRequest.decode(body, 0, 7)[0].transactional_id is None


def test_pieces_join_everything_but_the_records() -> None:
    region: Any = SimpleNamespace(size=5)  # as runtime.interfaces.FileRegion: never read here
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    PartitionData(partition_index=0, records=region),
                    PartitionData(partition_index=1, records=None),
                    PartitionData(partition_index=2, records=b""),
                    PartitionData(partition_index=3, records=[memoryview(b"abc"), b"de"]),
                ],
            )
        ]
    )
    for version in (4, 11, 12, 18):
        pieces: list[Any] = response.pieces_encoder(version)(response)
        assert [type(piece) for piece in pieces] == [bytes, SimpleNamespace, bytes, memoryview, bytes, bytes][
            : len(pieces)
        ]
        assert pieces[1] is region
        whole = b"".join(b"12345" if piece is region else piece for piece in pieces)
        decoded, end = FetchResponse.decode(whole, 0, version)
        assert end == len(whole)
        assert [p.records for p in decoded.responses[0].partitions] == [b"12345", None, b"", b"abcde"]


def test_encode_wants_records_in_memory() -> None:
    region: Any = SimpleNamespace(size=5)
    with pytest.raises(TypeError):
        produce(region).encode(7)


def test_messages_without_records_are_one_piece() -> None:
    heartbeat = HeartbeatRequest(group_id="g")
    assert HeartbeatRequest.pieces_encoder(4)(heartbeat) == [heartbeat.encode(4)]
    assert ApiVersionsRequest.pieces_encoder(0)(ApiVersionsRequest()) == [b""]


def test_equality_and_form() -> None:
    assert HeartbeatRequest(group_id="a") == HeartbeatRequest(group_id="a")
    assert HeartbeatRequest(group_id="a") != HeartbeatRequest(group_id="b")
    assert HeartbeatRequest() != ApiVersionsRequest()
    assert repr(MetadataRequest(topics=[MetadataRequestTopic(topic_id=bytes(15) + b"\1", name=None)])).startswith(
        "MetadataRequest(topics=[MetadataRequestTopic(topic_id=00000000000000000000000000000001, name=None)], "
    )
    assert "secret" not in repr(SaslAuthenticateRequest(auth_bytes=b"secret"))


def test_class_facts() -> None:
    facts = (CreateTopicsRequest.name, CreateTopicsRequest.api_key, CreateTopicsRequest.flexible_from)
    assert facts == ("CreateTopics", 19, 5)
    assert (CreateTopicsRequest.min_version, CreateTopicsRequest.max_version) == (2, 7)


def test_codecs_are_built_at_first_use() -> None:
    """Imports stay cheap: neither the table of APIs nor a message module brings the code that builds codecs."""
    program = """
import sys
import tidelog.wire.apis, tidelog.wire.frames, tidelog.wire.messages.produce
loaded = [name for name in sys.modules if name.startswith("tidelog.")]
assert "tidelog.wire.decoding" not in loaded and "tidelog.wire.encoding" not in loaded, loaded
messages = [name for name in loaded if name.startswith("tidelog.wire.messages.")]
assert messages == ["tidelog.wire.messages.produce"], messages
assert "tidelog.runtime.interfaces" not in loaded and "asyncio" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
