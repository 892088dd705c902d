"""Small requests that need much memory or time: records that decompress to a large size, and invalid records.

The broker looks at the records of compacted topics, of times that a topic refuses, and where ListOffsets seeks a time.
"""

import time
from collections.abc import Iterator

import pytest
from beside import WellBehaved

from process_harness import amount, note
from process_harness.observed import peak_resident_bytes, resident_bytes
from process_harness.raw import RawConnection
from tidelog.testing import Broker
from tidelog.wire.batches import Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch

RECORDS = amount(150_000, 900_000)
ROUNDS = amount(2, 20)
WAIT_MS_MAX = 400.0
GROWTH_BYTES_MAX = 400 << 20
ATTEMPTS = 3
TIMES_MS = (0, 1, 1_000_000)
"""Of no record, of the first ones, of none."""
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("bombs") / "data"
    with Broker(process=True, data=data, settings={"message.max.bytes": 16 << 20}) as running:
        with RawConnection((running.host, running.port)) as client:
            create(client, "compacted", {"cleanup.policy": "compact"})
            create(client, "plain", {})
            create(client, "timely", {"message.timestamp.before.max.ms": "1000"})
        yield running
        assert " ERROR " not in running.log()


def create(client: RawConnection, name: str, settings: dict[str, str]) -> None:
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert isinstance(answer, CreateTopicsResponse)
    assert answer.topics[0].error_code == ErrorCode.NONE


def send(client: RawConnection, topic: str, batch: bytes | bytearray) -> int:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    answer = client.ask(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data]), 9)
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


def seek(client: RawConnection, topic: str, time_ms: int) -> ListOffsetsResponse:
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=time_ms)])
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)
    assert isinstance(answer, ListOffsetsResponse)
    return answer


@pytest.mark.parametrize("topic", ["compacted", "plain", "timely"])
@pytest.mark.parametrize("codec", CODECS)
def test_bombs_do_not_hold_others(broker: Broker, topic: str, codec: Codec) -> None:
    batch = encode_batch([Record(b"k", None, 0)] * RECORDS, codec=codec)
    before = resident_bytes(broker.pid)
    for attempt in range(ATTEMPTS):  # what holds the loop does so every time, a busy machine does not
        client = WellBehaved(broker, f"victim-{topic}-{codec.name}-{attempt}")
        try:
            with RawConnection((broker.host, broker.port), timeout_s=60) as attacker:
                for _ in range(ROUNDS):
                    code = send(attacker, topic, batch)
                    for time_ms in TIMES_MS if topic != "timely" else ():
                        assert seek(attacker, topic, time_ms).topics[0].partitions[0].error_code == ErrorCode.NONE
            account = client.account()
        finally:
            client.kill()
        if account["max_ms"] < WAIT_MS_MAX:
            break
    growth = peak_resident_bytes(broker.pid) - before
    note(
        f"bombs: {RECORDS} records in {len(batch) >> 10} KB to a {topic} topic, {codec.name}: code {code}; meanwhile "
        f"longest {account['max_ms']:.0f} ms, {growth >> 20} MB more memory at most"
    )
    assert code == (ErrorCode.INVALID_TIMESTAMP if topic == "timely" else ErrorCode.NONE)
    assert account["max_ms"] < WAIT_MS_MAX
    assert growth < GROWTH_BYTES_MAX


@pytest.mark.parametrize("codec", list(Codec))
def test_records_that_are_none_take_no_partition_offline(broker: Broker, codec: Codec) -> None:
    topic = f"none-{codec.name.lower()}"
    now = round(time.time() * 1000)
    batch, old = (encode_batch([Record(b"k", bytes(100), stamp)], codec=codec) for stamp in (now, 5))
    for broken in (batch, old):
        broken[61:] = b"\xff" * (len(broken) - 61)
        broken[17:21] = crc32c(memoryview(broken)[21:]).to_bytes(4, "big")
    with RawConnection((broker.host, broker.port)) as client:
        create(client, topic, {})
        assert send(client, topic, batch) == ErrorCode.NONE
        # Records that would be deleted at once by their time are read first, and refused as Kafka refuses all of these.
        assert send(client, topic, old) == ErrorCode.UNKNOWN_SERVER_ERROR
        for time_ms in (-3, 0, now, now + 1):
            assert seek(client, topic, time_ms).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert client.produce(topic, 0, [b"goes on"]).error_code == ErrorCode.NONE
        code, records = client.fetch(topic, 0, 1)
        assert (code, [record.value for record in records]) == (ErrorCode.NONE, [b"goes on"])
