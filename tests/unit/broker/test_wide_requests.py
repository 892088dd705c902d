"""Requests that name hundreds of partitions are answered like many small requests."""

from collections.abc import Iterator
from threading import Timer

import pytest

from process_harness.raw import RawConnection
from tidelog.testing import Broker
from tidelog.wire.batches import Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch
from wire_harness import encode_request

CRC_AT, ATTRIBUTES_AT = 17, 21
PARTITIONS = 300
MISSING = 50
TOPIC = "wide"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with RawConnection((running.host, running.port)) as client:
            client.create_topic(TOPIC, PARTITIONS)
            client.create_topic("other", PARTITIONS)
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawConnection]:
    with RawConnection((broker.host, broker.port)) as connected:
        yield connected


def produced(client: RawConnection, topic: str, acks: int = 1) -> ProduceResponse:
    """A record in each partition, the one in partition 0 twice in one request; some partitions do not exist."""
    data = [
        PartitionProduceData(index=index, records=encode_batch([Record(value=b"%d" % index + bytes(40))]))
        for index in [*range(PARTITIONS + MISSING), 0]
    ]
    request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    answer = client.ask(request, 11)
    assert isinstance(answer, ProduceResponse)
    return answer


def fetched(client: RawConnection, request: FetchRequest, version: int = 12) -> FetchResponse:
    answer = client.ask(request, version)
    assert isinstance(answer, FetchResponse)
    assert answer.error_code == ErrorCode.NONE
    return answer


def asking(topic: str, offset: int, count: int = PARTITIONS, **fields: int) -> FetchRequest:
    partitions = [FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1 << 20) for i in range(count)]
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=partitions)], max_bytes=50 << 20, **fields)


def test_produce_and_fetch(client: RawConnection) -> None:
    (topic,) = produced(client, TOPIC).responses
    codes = [answer.error_code for answer in topic.partition_responses]
    assert codes == [ErrorCode.NONE] * PARTITIONS + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * MISSING
    assert [answer.base_offset for answer in topic.partition_responses[:PARTITIONS]] == [0] * PARTITIONS
    answer = fetched(client, asking(TOPIC, 0, PARTITIONS + MISSING, max_wait_ms=0))
    (told,) = answer.responses
    assert [data.partition_index for data in told.partitions] == list(range(PARTITIONS + MISSING))
    for data in told.partitions[:PARTITIONS]:
        assert data.high_watermark == 1
        assert data.records is not None
    assert told.partitions[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_parked_fetch_is_woken_by_what_it_watches(broker: Broker, client: RawConnection) -> None:
    with RawConnection((broker.host, broker.port)) as producer:
        end = fetched(client, asking("other", 0, max_wait_ms=0)).responses[0].partitions[250].high_watermark
        timer = Timer(0.1, producer.produce, ("other", 250, [b"news"]))
        timer.start()
        answer = fetched(client, asking("other", end, max_wait_ms=20_000, min_bytes=1))
        timer.join()
    (told,) = answer.responses
    assert len(told.partitions) == PARTITIONS
    assert [data.partition_index for data in told.partitions if data.records] == [250]


def test_a_parked_fetch_ends_in_time_and_watches_no_more(client: RawConnection) -> None:
    client.create_topic("quiet", PARTITIONS)
    answer = fetched(client, asking("quiet", 0, max_wait_ms=50, min_bytes=1 << 20))
    (told,) = answer.responses
    assert len(told.partitions) == PARTITIONS


def test_an_incremental_session_tells_of_what_changed(client: RawConnection) -> None:
    client.create_topic("session", PARTITIONS)
    first = fetched(client, asking("session", 0, max_wait_ms=0, session_epoch=0))
    assert first.session_id
    client.produce("session", 7, [b"x"])
    request = FetchRequest(session_id=first.session_id, session_epoch=1, max_wait_ms=0, max_bytes=1 << 20)
    (told,) = fetched(client, request).responses
    assert [data.partition_index for data in told.partitions] == [7]
    request = FetchRequest(session_id=first.session_id, session_epoch=2, max_wait_ms=50, max_bytes=1 << 20)
    assert [len(topic.partitions) for topic in fetched(client, request).responses] == [1]  # its records, still


def test_a_commit_is_seen_whole(client: RawConnection) -> None:
    while client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0].error_code:  # type: ignore[attr-defined]
        pass
    partitions = [
        OffsetCommitRequestPartition(partition_index=i, committed_offset=i, committed_metadata="m" * 60)
        for i in range(PARTITIONS + MISSING)
    ]
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    commit = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    (answer,) = client.ask(commit, 8).topics  # type: ignore[attr-defined]
    codes = {p.partition_index: p.error_code for p in answer.partitions}
    assert [codes[i] for i in range(PARTITIONS)] == [ErrorCode.NONE] * PARTITIONS
    assert codes[PARTITIONS] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wanted = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(PARTITIONS)))]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    (group,) = client.ask(request, 8).groups  # type: ignore[attr-defined]
    assert [p.committed_offset for p in group.topics[0].partitions] == list(range(PARTITIONS))


def test_without_acknowledgements_a_refusal_that_comes_late_hangs_up_and_the_rest_is_there(
    broker: Broker, client: RawConnection
) -> None:
    count = 20
    config = CreatableTopicConfig(name="compression.type", value="gzip")
    topic = CreatableTopic(name="packed", num_partitions=count, replication_factor=1, configs=[config])
    client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    sound = encode_batch([Record(value=bytes(30_000))])
    broken = bytearray(sound)
    broken[ATTRIBUTES_AT + 1] |= Codec.SNAPPY  # which its records are not
    broken[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(broken)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    data = [PartitionProduceData(index=i, records=bytes(broken if i == 3 else sound)) for i in range(count)]
    request = ProduceRequest(
        acks=0, timeout_ms=30_000, topic_data=[TopicProduceData(name="packed", partition_data=data)]
    )
    with RawConnection((broker.host, broker.port)) as producer:
        producer.socket.sendall(encode_request(request, 9, 1, "wide"))
        assert producer.socket.recv(1) == b""
    wanted = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(count)]
    answer = client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name="packed", partitions=wanted)]), 5)
    assert [p.offset for p in answer.topics[0].partitions] == [int(i != 3) for i in range(count)]  # type: ignore[attr-defined]
