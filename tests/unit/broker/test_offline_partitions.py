"""Partitions whose log cannot be opened, beside others. The expectations are answers of Kafka 4.3.1 with a failed
data directory, except for the leader epoch, which Kafka's controller raises.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from process_harness.raw import RawConnection
from tidelog.coordinator.group.hashing import partition_of
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

TOPIC = "orders"
PARTITIONS = 3
HURT = 1
OFFSETS_PARTITIONS = 4
GROUPS = [f"g{number}" for number in range(12)]
LOST = partition_of("g0", OFFSETS_PARTITIONS)
NODE = 1


def is_lost(group: str) -> bool:
    return partition_of(group, OFFSETS_PARTITIONS) == LOST


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("offline") / "data"
    settings = {"offsets.topic.num.partitions": OFFSETS_PARTITIONS}
    with Broker(data=data, settings=settings) as running, connected(running) as client:
        client.create_topic(TOPIC, PARTITIONS)
        for index in range(PARTITIONS):
            client.produce(TOPIC, index, [b"x"])
        while coordinator(client, "g0"):
            pass
        assert [commit(client, group) for group in GROUPS] == [ErrorCode.NONE] * len(GROUPS)
    for name in (f"{TOPIC}-{HURT}", f"__consumer_offsets-{LOST}"):
        lose_records(data / name)
    with Broker(data=data, settings=settings) as running:
        with connected(running) as client:
            while client.ask(ListGroupsRequest(), 4).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # type: ignore[attr-defined]
                pass
        yield running


def lose_records(partition: Path) -> None:
    for path in partition.glob("*.log"):
        path.unlink()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawConnection]:
    with connected(broker) as client:
        yield client


def connected(broker: Broker) -> RawConnection:
    return RawConnection((broker.host, broker.port))


def coordinator(client: RawConnection, group: str) -> int:
    (found,) = client.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators  # type: ignore[attr-defined]
    assert (found.node_id == -1) == (found.error_code != 0)
    return int(found.error_code)


def commit(client: RawConnection, group: str) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    return int(client.ask(request, 8).topics[0].partitions[0].error_code)  # type: ignore[attr-defined]


def test_metadata_names_no_leader(client: RawConnection) -> None:
    answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 12)
    (topic,) = answer.topics  # type: ignore[attr-defined]
    assert topic.error_code == ErrorCode.NONE
    assert [
        (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas)
        for p in topic.partitions
    ] == [
        (0, NODE, 1, [NODE], [NODE], []),
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, 1, [NODE], [], [NODE]),
        (0, NODE, 1, [NODE], [NODE], []),
    ]


def test_described_it_has_no_leader_and_one_that_may_become_it(client: RawConnection) -> None:
    answer = client.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name=TOPIC)]), 0)
    (topic,) = answer.topics  # type: ignore[attr-defined]
    assert [
        (
            p.error_code,
            p.leader_id,
            p.isr_nodes,
            p.offline_replicas,
            p.eligible_leader_replicas,
            p.last_known_elr,
        )
        for p in topic.partitions
    ] == [
        (0, NODE, [NODE], [], [], []),
        (0, -1, [], [NODE], [NODE], [NODE]),
        (0, NODE, [NODE], [], [], []),
    ]


def test_its_records_and_offsets_are_refused_and_the_others_served(client: RawConnection) -> None:
    expected = [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    indexes = range(PARTITIONS)
    assert [client.produce(TOPIC, index, [b"y"]).error_code for index in indexes] == expected
    fetched = client.ask(
        FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic=TOPIC, partitions=[FetchPartition(partition=i, partition_max_bytes=1000) for i in indexes]
                )
            ],
        ),
        12,
    )
    assert [p.error_code for p in fetched.responses[0].partitions] == expected  # type: ignore[attr-defined]
    listed = client.ask(
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name=TOPIC, partitions=[ListOffsetsPartition(partition_index=i, timestamp=-1) for i in indexes]
                )
            ]
        ),
        5,
    )
    assert [p.error_code for p in listed.topics[0].partitions] == expected  # type: ignore[attr-defined]
    epochs = client.ask(
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in indexes]
                )
            ]
        ),
        4,
    )
    assert [p.error_code for p in epochs.topics[0].partitions] == expected  # type: ignore[attr-defined]
    deleted = client.ask(
        DeleteRecordsRequest(
            timeout_ms=1000,
            topics=[
                DeleteRecordsTopic(
                    name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=i, offset=0) for i in indexes]
                )
            ],
        ),
        2,
    )
    assert [p.error_code for p in deleted.topics[0].partitions] == expected  # type: ignore[attr-defined]


def test_groups_of_other_partitions_are_listed_and_served(client: RawConnection) -> None:
    answer = client.ask(ListGroupsRequest(), 4)
    assert answer.error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    listed = {group.group_id for group in answer.groups}  # type: ignore[attr-defined]
    assert listed == {group for group in GROUPS if not is_lost(group)}
    for group in GROUPS:
        lost = is_lost(group)
        assert coordinator(client, group) == (ErrorCode.COORDINATOR_NOT_AVAILABLE if lost else ErrorCode.NONE)
        assert commit(client, group) == (ErrorCode.NOT_COORDINATOR if lost else ErrorCode.NONE)
    described = client.ask(DescribeGroupsRequest(groups=GROUPS), 5)
    codes = {group.group_id: group.error_code for group in described.groups}  # type: ignore[attr-defined]
    assert codes == {g: ErrorCode.NOT_COORDINATOR if is_lost(g) else ErrorCode.NONE for g in GROUPS}
