"""Bytes that other clients and real brokers wrote (tests/golden/wire/PROVENANCE.md)."""

import importlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tidelog.wire.apis import APIS
from tidelog.wire.batches import BatchHeader, Codec, TimestampType
from tidelog.wire.fields import snake_case
from tidelog.wire.frames import decode_response_header
from tidelog.wire.message import Message
from tidelog.wire.messages import consumer_protocol, control_records
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidelog.wire.messages.control_records import ControlRecordTypeSchema
from tidelog.wire.messages.fetch import FetchResponse
from tidelog.wire.messages.metadata import MetadataResponse
from tidelog.wire.messages.produce import ProduceRequest
from tidelog.wire.primitives import MalformedMessage, VersionNotInMessage
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"
MODULES = {api.module: api for api in APIS.values()}


def api_message(module: str, kind: str) -> type[Message]:
    api = MODULES[module]
    message: type[Message] = getattr(
        importlib.import_module(f"tidelog.wire.messages.{module}"), f"{api.name}{kind.title()}"
    )
    return message


def message_named(name: str) -> type[Message]:
    for module in (consumer_protocol, control_records):
        if hasattr(module, name):
            found: type[Message] = getattr(module, name)
            return found
    kind = "request" if name.endswith("Request") else "response"
    return api_message(snake_case(name.removesuffix(kind.title())), kind)


# kafkajs: a file for each message.

KAFKAJS = sorted((GOLDEN / "kafkajs" / "requests").glob("*/*.bin"))
KAFKAJS_CASES: list[tuple[type[Message], int, Path]] = []
for _path in KAFKAJS:
    _parts = re.match(r"v(\d+)_(request|response)", _path.name)
    if _parts:
        KAFKAJS_CASES.append((api_message(snake_case(_path.parent.name), _parts[2]), int(_parts[1]), _path))
SERVED = [case for case in KAFKAJS_CASES if case[0].min_version <= case[1]]
OUTSIDE = [case for case in KAFKAJS_CASES if case[1] < case[0].min_version]
NO_MESSAGE = "v1_response_missing_throttle_time.bin"
"""The answer of a broker that forgot a field."""
NAMELESS = {
    "describeGroups/v1_memberAssignment.bin",
    "describeGroups/v1_memberMetadata.bin",
    "fetch/v4_from_scala_producer_response.bin",
    "joinGroup/v2_assignerMetadata.bin",
}
"""Parts of messages, tested below by themselves."""


def case_id(case: object) -> str:
    return f"{case.parent.name}-{case.stem}" if isinstance(case, Path) else ""


@pytest.mark.parametrize(("message", "version", "path"), SERVED, ids=case_id)
def test_kafkajs(message: type[Message], version: int, path: Path) -> None:
    data = path.read_bytes()
    if path.name == NO_MESSAGE:
        with pytest.raises(MalformedMessage, match="cut short"):
            message.decode(data, 0, version)
        return
    decoded, end = message.decode(data, 0, version)
    assert end == len(data)
    assert decoded.encode(version) == data


def test_kafkajs_files_are_all_used() -> None:
    used = {path for _, _, path in KAFKAJS_CASES}
    assert {str(path.relative_to(path.parent.parent)) for path in KAFKAJS if path not in used} == NAMELESS
    assert (len(SERVED), len(OUTSIDE)) == (72, 31)


def test_versions_outside_the_target_are_these_and_refused() -> None:
    found = Counter((message.__name__, version) for message, version, _ in OUTSIDE)
    assert sorted(found) == [
        ("CreateAclsRequest", 0),
        ("CreateAclsResponse", 0),
        ("CreateTopicsRequest", 0),
        ("CreateTopicsRequest", 1),
        ("CreateTopicsResponse", 0),
        ("CreateTopicsResponse", 1),
        ("DeleteTopicsRequest", 0),
        ("DeleteTopicsResponse", 0),
        ("DescribeConfigsRequest", 0),
        ("DescribeConfigsResponse", 0),
        ("FetchRequest", 0),
        ("FetchRequest", 2),
        ("FetchResponse", 0),
        ("FetchResponse", 2),
        ("ListOffsetsRequest", 0),
        ("ListOffsetsResponse", 0),
        ("OffsetCommitRequest", 0),
        ("OffsetCommitResponse", 0),
        ("ProduceRequest", 2),
        ("ProduceResponse", 2),
    ]
    for message, version, path in OUTSIDE:
        with pytest.raises(VersionNotInMessage):
            message.decode(path.read_bytes(), 0, version)


def fetched(data: bytes, version: int) -> list[Record]:
    """The records of a fetch response; every batch's CRC holds."""
    response, _ = FetchResponse.decode(data, 0, version)
    records = []
    for topic in response.responses:
        for partition in topic.partitions:
            assert isinstance(partition.records, memoryview)
            for header in batches_in(partition.records):
                assert header.crc_ok()
                records += decode_records(partition.records, header.position)
    return records


@pytest.mark.parametrize(
    ("name", "version", "codecs", "count"),
    [
        ("v4_response", 4, {Codec.NONE}, 3),
        ("v4_response_gzip", 4, {Codec.GZIP}, 6),
        ("v4_response_snappy", 4, {Codec.SNAPPY}, 1),
        ("v4_from_scala_producer_response", 4, {Codec.NONE}, 6),
        ("v6_response", 6, {Codec.NONE}, 3),
        ("v8_response", 8, {Codec.NONE}, 3),
        ("v10_response", 10, {Codec.NONE}, 3),
    ],
)
def test_kafkajs_fetched_records(name: str, version: int, codecs: set[Codec], count: int) -> None:
    data = (GOLDEN / "kafkajs" / "requests" / "fetch" / f"{name}.bin").read_bytes()
    records = fetched(data, version)
    assert len(records) == count
    response, _ = FetchResponse.decode(data, 0, version)
    assert {
        Codec(header.codec)
        for topic in response.responses
        for partition in topic.partitions
        for header in batches_in(partition.records or b"")  # type: ignore[arg-type]
    } == codecs


def test_old_message_sets_are_refused() -> None:
    """Magic 0 and 1, which Kafka 4 neither takes nor writes."""
    names = ["messages_v0_GZIP", "messages_v0_uncompressed"]
    for name in names:
        data = (GOLDEN / "kafkajs" / "protocol" / "messageSet" / f"{name}.bin").read_bytes()
        with pytest.raises(MalformedMessage, match="message format 0 is not supported"):
            decode_records(data, 4)  # after the size of the set
    for key in ("record_batch_data_v0", "record_batch_data_v1"):
        magic = int(key[-1])
        batches = json.loads((GOLDEN / "aiokafka" / "record_batches_v0_v1_v2.json").read_text())[key]["batches_hex"]
        data = b"".join(map(bytes.fromhex, batches))
        with pytest.raises(MalformedMessage, match=f"message format {magic} is not supported"):
            decode_records(data)
        with pytest.raises(MalformedMessage, match=f"message format {magic} is not supported"):
            list(batches_in(data))


def test_kafkajs_record_batches() -> None:
    folder = GOLDEN / "kafkajs" / "protocol" / "recordBatch"
    data = (folder / "v0_recordbatch.bin").read_bytes()
    header = BatchHeader(data)
    assert header.crc_ok()
    assert (header.codec, header.count) == (Codec.GZIP, 1)
    assert header.timestamp_type == TimestampType.LOG_APPEND_TIME
    (record,) = decode_records(data)
    assert record.timestamp == header.max_timestamp
    # Its header does not say that its records are zstd, though they are.
    data = (folder / "v0_recordbatch_zstd.bin").read_bytes()
    assert BatchHeader(data).crc_ok()
    with pytest.raises(MalformedMessage):
        decode_records(data)
    said = data[:22] + bytes([Codec.ZSTD]) + data[23:]
    assert len(decode_records(said)) == BatchHeader(data).count


# kafka-go: whole fetch responses, some with old message sets.


@pytest.mark.parametrize("path", sorted((GOLDEN / "kafka-go").glob("*.hex")), ids=lambda path: path.stem)
def test_kafka_go(path: Path) -> None:
    data = bytes.fromhex(path.read_text())
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    _, position = decode_response_header(data, 4, FetchResponse.api_key, 10)
    expected = json.loads((GOLDEN / "kafka-go" / "expected_messages.json").read_text())[path.name]
    if "v1" in path.stem:
        with pytest.raises(MalformedMessage, match="message format 1 is not supported"):
            fetched(data[position:], 10)
        return
    records = fetched(data[position:], 10)
    assert [(record.key, record.value) for record in records] == [
        (message["key"].encode(), message["value"].encode()) for message in expected
    ]


# sarama: vectors named in messages.txt.

VECTORS = json.loads((GOLDEN / "sarama" / "byte_vectors.json").read_text())
SARAMA = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in VECTORS}
SARAMA_CASES = [
    line.split() for line in (GOLDEN / "sarama" / "messages.txt").read_text().split("\n") if line and line[0] != "#"
]


@pytest.mark.parametrize(("name", "message", "version"), SARAMA_CASES, ids=[case[0] for case in SARAMA_CASES])
def test_sarama(name: str, message: str, version: str) -> None:
    kind = message_named(message)
    data = SARAMA[name]
    if version == "outside":
        with pytest.raises(VersionNotInMessage):
            kind.decode(data, 0, 0)
        return
    if issubclass(kind, ConsumerProtocolSubscription | ConsumerProtocolAssignment) or "CtrlRec" in name:
        assert int.from_bytes(data[:2], "big") == int(version)  # the version stands before the message
        data = data[2:]
    decoded, end = kind.decode(data, 0, int(version))
    assert end == len(data)
    assert decoded.encode(int(version)) == data


def test_sarama_values() -> None:
    (partition,) = FetchResponse.decode(SARAMA["abortedTxnFetchResponseV12"], 0, 12)[0].responses[0].partitions
    assert partition.aborted_transactions
    request, _ = ProduceRequest.decode(SARAMA["produceRequestOneRecordV9"], 0, 9)
    assert request.topic_data[0].name == "topic"
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert [(record.key, record.value) for record in decode_records(records)] == [(b"\1\2\3\4", b"\5\6\7")]
    assert ControlRecordTypeSchema.decode(SARAMA["commitTxCtrlRecKey"], 2, 0)[0].type == 1


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["name"] == "packet"], ids=lambda v: v["hex"][-8:])
def test_sarama_hostile_metadata(vector: dict[str, str]) -> None:
    """Counts that no bytes stand behind."""
    for version in range(MetadataResponse.min_version, MetadataResponse.max_version + 1):
        with pytest.raises(MalformedMessage):
            MetadataResponse.decode(bytes.fromhex(vector["hex"]), 0, version)


def test_subscription_that_lacks_what_its_version_has() -> None:
    with pytest.raises(MalformedMessage):
        ConsumerProtocolSubscription.decode(SARAMA["groupMemberMetadataV1Bad"], 2, 1)


def test_kafkajs_group_metadata() -> None:
    """kafkajs says version 1 in its subscriptions and writes version 0."""
    folder = GOLDEN / "kafkajs"
    for path in (
        folder / "requests" / "describeGroups" / "v1_memberMetadata.bin",
        folder / "requests" / "joinGroup" / "v2_assignerMetadata.bin",
    ):
        with pytest.raises(MalformedMessage):
            ConsumerProtocolSubscription.decode(path.read_bytes(), 2, 1)
        subscription, end = ConsumerProtocolSubscription.decode(path.read_bytes(), 2, 0)
        assert subscription.topics[0].startswith("test-topic-")
        assert end == path.stat().st_size
    path = folder / "requests" / "describeGroups" / "v1_memberAssignment.bin"
    assignment, _ = ConsumerProtocolAssignment.decode(path.read_bytes(), 2, 0)
    assert assignment.assigned_partitions[0].topic.startswith("test-topic-")


# aiokafka: what brokers of Kafka 0.11 wrote.


def test_aiokafka_batches() -> None:
    data = json.loads((GOLDEN / "aiokafka" / "record_batches_v0_v1_v2.json").read_text())["record_batch_data_v2"]
    values, offsets = [], []
    for text in data["batches_hex"]:
        batch = bytes.fromhex(text)
        header = BatchHeader(batch)
        assert header.crc_ok()
        records = decode_records(batch)
        values.append([(record.value or b"").decode() for record in records])
        offsets += [record.offset for record in records]
        again = encode_batch(records, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
        assert again == batch
    assert values == data["expected"]["values"]
    assert offsets == [0, 1, 2, 3]
    assert decode_records(bytes.fromhex(data["batches_hex"][0]))[0].timestamp == data["expected"]["first_timestamp"]


# Segments of real brokers.


@pytest.mark.parametrize("path", sorted((GOLDEN / "segments").glob("*.log")), ids=lambda path: path.stem)
def test_segments(path: Path) -> None:
    data = path.read_bytes()
    position = next_offset = 0
    for header in batches_in(data):
        assert header.position == position
        assert header.base_offset == next_offset
        assert header.crc_ok()
        records = decode_records(data, position)
        assert [record.offset for record in records] == list(range(header.base_offset, header.next_offset))
        assert max(record.timestamp for record in records) == header.max_timestamp
        again = encode_batch(
            records,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        assert again == data[position : position + header.size]
        position += header.size
        next_offset = header.next_offset
    assert position == len(data)
    assert next_offset > 0


# Batches that Kafka's own classes wrote.

KAFKA_BATCHES = dict(
    line.split("\t") for line in (GOLDEN / "kafka" / "record_batches.tsv").read_text().split("\n")[1:] if line
)
KAFKA_RECORDS = [
    Record(b"key", b"value", 1_700_000_000_000, (), 0),
    Record(None, b"", 1_700_000_000_001, (), 1),
    Record(b"", None, 1_699_999_999_000, [("name", b"content"), ("größe", None)], 2),
    Record(None, b"0123456789" * 10_000, 1_700_000_000_002, (), 3),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_kafka(codec: Codec) -> None:
    batch = bytes.fromhex(KAFKA_BATCHES[codec.name.lower()])
    expected = KAFKA_RECORDS if codec else KAFKA_RECORDS[:3]
    header = BatchHeader(batch)
    assert header.crc_ok()
    assert header.codec == codec
    assert decode_records(batch) == expected
    ours = encode_batch(expected, codec=codec, leader_epoch=header.leader_epoch)
    if codec in (Codec.NONE, Codec.LZ4):  # the others' compressors differ
        assert ours == batch
    assert ours[57:61] == batch[57:61]
