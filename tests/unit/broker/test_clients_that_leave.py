"""Clients that send a long request and disconnect at once: the request is executed, and nothing stays in memory."""

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from process_harness.raw import RawConnection
from tidelog.testing import Broker
from tidelog.wire.message import Message
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.records import Record, encode_batch
from wire_harness import encode_request

PARTITIONS = 400
TOPIC = "wide"
SECONDS = 20.0
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with connected(running) as client:
            while client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0].error_code:  # type: ignore[attr-defined]
                pass
            client.create_topic(TOPIC, PARTITIONS)
        yield running


def connected(broker: Broker) -> RawConnection:
    return RawConnection((broker.host, broker.port))


def about_to_leave(broker: Broker) -> RawConnection:
    """A connection that the broker has taken from its host: one that is reset before is never seen."""
    client = connected(broker)
    client.ask(ApiVersionsRequest(), 2)
    return client


def hang_up(client: RawConnection, how: str) -> None:
    """Once the broker's host has every byte."""
    while struct.unpack("i", fcntl.ioctl(client.socket, termios.TIOCOUTQ, bytes(4)))[0]:
        time.sleep(0.0005)
    if how == "reset":
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.socket.close()


def until(expected: object, seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := seen()) != expected:
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.01)


def produce(topic: str, value: bytes, count: int = PARTITIONS) -> ProduceRequest:
    batch = encode_batch([Record(value=value)])
    data = [PartitionProduceData(index=index, records=batch) for index in range(count)]
    return ProduceRequest(acks=0, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def ends(client: RawConnection, topic: str) -> list[int]:
    wanted = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(PARTITIONS)]
    answer = client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=wanted)]), 5)
    return [p.offset for p in answer.topics[0].partitions]  # type: ignore[attr-defined]


def send(client: RawConnection, *requests: tuple[Message, int]) -> None:
    client.socket.sendall(b"".join(encode_request(request, version, 1, "gone") for request, version in requests))


@pytest.mark.parametrize("how", ["end", "reset"])
def test_records_without_acknowledgement(broker: Broker, how: str) -> None:
    with connected(broker) as client:
        before = ends(client, TOPIC)
        leaving = about_to_leave(broker)
        send(leaving, (produce(TOPIC, bytes(250)), 9), (produce(TOPIC, b"x", 3), 9), (produce(TOPIC, bytes(250)), 9))
        hang_up(leaving, how)
        until([n + 3 for n in before[:3]] + [n + 2 for n in before[3:]], lambda: ends(client, TOPIC))


@pytest.mark.parametrize("how", ["end", "reset"])
def test_commits(broker: Broker, how: str) -> None:
    group = f"group-{how}"
    wanted = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(PARTITIONS)))]

    def committed() -> list[int]:
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
        (answer,) = client.ask(asked, 8).groups  # type: ignore[attr-defined]
        return [p.committed_offset for p in answer.topics[0].partitions]

    with connected(broker) as client:
        partitions = [
            OffsetCommitRequestPartition(partition_index=i, committed_offset=i, committed_metadata="m" * 60)
            for i in range(PARTITIONS)
        ]
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
        leaving = about_to_leave(broker)
        send(leaving, (OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics), 8))
        hang_up(leaving, how)
        until(list(range(PARTITIONS)), committed)


@pytest.mark.parametrize("how", ["end", "reset"])
def test_topics(broker: Broker, how: str) -> None:
    names = {f"{how}-{number}-".ljust(230, "x") for number in range(100)}
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in sorted(names)]
    leaving = about_to_leave(broker)
    send(leaving, (CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7))
    hang_up(leaving, how)
    with connected(broker) as client:
        until(
            names,
            lambda: {topic.name for topic in client.ask(MetadataRequest(topics=None), 9).topics} & names,  # type: ignore[attr-defined]
        )


def test_a_stop_lets_them_end(tmp_path: Path) -> None:
    with Broker(process=True, data=tmp_path / "data") as broker:
        with connected(broker) as client:
            client.create_topic("t", PARTITIONS)
            leaving = about_to_leave(broker)
            send(leaving, *[(produce("t", bytes(250)), 9)] * 5)
            hang_up(leaving, "end")
            while not ends(client, "t")[0]:
                pass
        broker.restart()
        with connected(broker) as client:
            found = ends(client, "t")
        assert len(set(found)) == 1
