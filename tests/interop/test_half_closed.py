"""Clients that shut their sending side after their requests receive every answer, in order, and then the end.

`printf ... | nc`, proxies that forward an end of input, and clients in a hurry do that. Kafka reads no further while a
request is unanswered, so it sees the end of the input only behind the last answer.
"""

import importlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import pytest

from interop_harness.suite import NewTopicNamed, Unique
from process_harness.raw import RawConnection, response_class
from tidelog.api.registry import TABLE
from tidelog.testing import Cluster
from tidelog.wire.apis import APIS
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import decode_response_header
from tidelog.wire.message import Message
from tidelog.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from tidelog.wire.records import Record, encode_batch
from wire_harness import encode_request

WAIT_MS = 300
CLIENT = "half-closed"
TOPIC_RESOURCE = 2
FETCH_BY_NAME = PRODUCE_BY_NAME = 12


class Stage(NamedTuple):
    """What requests can name."""

    topic: str
    topic_id: bytes
    group: str
    unused: str
    """A name that no topic has."""
    broker_id: int
    """The broker that leads the topic's partitions."""


Build = Callable[[Stage], Message]


def _produce(stage: Stage) -> Message:
    data = [produce.PartitionProduceData(index=0, records=encode_batch([Record(value=b"v")]))]
    topic = produce.TopicProduceData(topic_id=stage.topic_id, partition_data=data)
    return produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _fetch(stage: Stage) -> Message:
    """Waits: there is nothing behind the offset that it names."""
    partitions = [fetch.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)]
    topics = [fetch.FetchTopic(topic_id=stage.topic_id, partitions=partitions)]
    return fetch.FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=1 << 20, topics=topics)


def _list_offsets(stage: Stage) -> Message:
    partitions = [list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name=stage.topic, partitions=partitions)]
    )


def _metadata_that_creates(stage: Stage) -> Message:
    topics = [metadata.MetadataRequestTopic(name=stage.unused)]
    return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=True)


def _offset_commit(stage: Stage) -> Message:
    partitions = [offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)]
    topics = [offset_commit.OffsetCommitRequestTopic(topic_id=stage.topic_id, partitions=partitions)]
    return offset_commit.OffsetCommitRequest(stage.group, generation_id_or_member_epoch=-1, topics=topics)


def _offset_fetch(stage: Stage) -> Message:
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=stage.group, topics=None)]
    return offset_fetch.OffsetFetchRequest(groups=groups)


def _offset_delete(stage: Stage) -> Message:
    partitions = [offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
    topics = [offset_delete.OffsetDeleteRequestTopic(name=stage.topic, partitions=partitions)]
    return offset_delete.OffsetDeleteRequest(group_id=stage.group, topics=topics)


def _join_group(stage: Stage) -> Message:
    return join_group.JoinGroupRequest(
        group_id=stage.group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range")],
    )


def _leave_group(stage: Stage) -> Message:
    members = [leave_group.MemberIdentity(member_id="nobody")]
    return leave_group.LeaveGroupRequest(group_id=stage.group, members=members)


def _create_topics(stage: Stage) -> Message:
    topics = [create_topics.CreatableTopic(name=stage.unused, num_partitions=3, replication_factor=1)]
    return create_topics.CreateTopicsRequest(topics=topics, timeout_ms=30_000)


def _delete_topics(stage: Stage) -> Message:
    topics = [delete_topics.DeleteTopicState(name=None, topic_id=stage.topic_id)]
    return delete_topics.DeleteTopicsRequest(topics=topics, timeout_ms=30_000)


def _delete_records(stage: Stage) -> Message:
    partitions = [delete_records.DeleteRecordsPartition(partition_index=0, offset=1)]
    topics = [delete_records.DeleteRecordsTopic(name=stage.topic, partitions=partitions)]
    return delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=30_000)


def _create_partitions(stage: Stage) -> Message:
    topics = [create_partitions.CreatePartitionsTopic(name=stage.topic, count=5)]
    return create_partitions.CreatePartitionsRequest(topics=topics, timeout_ms=30_000)


def _describe_configs(stage: Stage) -> Message:
    resources = [describe_configs.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=stage.topic)]
    return describe_configs.DescribeConfigsRequest(resources=resources)


def _alter_configs(stage: Stage) -> Message:
    configs = [alter_configs.AlterableConfig(name="retention.ms", value="100000000")]
    resource = alter_configs.AlterConfigsResource(TOPIC_RESOURCE, stage.topic, configs)
    return alter_configs.AlterConfigsRequest(resources=[resource])


def _incremental_alter_configs(stage: Stage) -> Message:
    configs = [incremental_alter_configs.AlterableConfig(name="retention.ms", value="100000001")]
    resource = incremental_alter_configs.AlterConfigsResource(TOPIC_RESOURCE, stage.topic, configs)
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def _alter_client_quotas(stage: Stage) -> Message:
    entity = [alter_client_quotas.EntityData(entity_type="client-id", entity_name=stage.group)]
    ops = [alter_client_quotas.OpData(key="consumer_byte_rate", value=1e9)]
    return alter_client_quotas.AlterClientQuotasRequest(entries=[alter_client_quotas.EntryData(entity, ops)])


def _consumer_group_heartbeat(stage: Stage) -> Message:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=stage.group,
        member_id="member-of-its-own-choice",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[stage.topic],
        topic_partitions=[],
    )


def _elect_leaders(stage: Stage) -> Message:
    partitions = [elect_leaders.TopicPartitions(topic=stage.topic, partitions=[0, 1])]
    return elect_leaders.ElectLeadersRequest(topic_partitions=partitions, timeout_ms=30_000)


def _reassign(stage: Stage) -> Message:
    partition = alter_partition_reassignments.ReassignablePartition(0, [stage.broker_id])
    topics = [alter_partition_reassignments.ReassignableTopic(stage.topic, [partition])]
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=topics)


def _describe_quorum(stage: Stage) -> Message:
    partitions = [describe_quorum.PartitionData(partition_index=0)]
    topics = [describe_quorum.TopicData("__cluster_metadata", partitions)]
    return describe_quorum.DescribeQuorumRequest(topics=topics)


def _describe_producers(stage: Stage) -> Message:
    return describe_producers.DescribeProducersRequest(topics=[describe_producers.TopicRequest(stage.topic, [0, 1])])


def _write_txn_markers(stage: Stage) -> Message:
    """Ends the transaction of a producer that has none."""
    topics = [write_txn_markers.WritableTxnMarkerTopic(stage.topic, [0, 1])]
    marker = write_txn_markers.WritableTxnMarker(producer_id=1 << 40, transaction_result=True, topics=topics)
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


REQUESTS: dict[int, Build] = {
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata_that_creates,
    8: _offset_commit,
    9: _offset_fetch,
    10: lambda stage: find_coordinator.FindCoordinatorRequest(coordinator_keys=[stage.group]),
    11: _join_group,
    13: _leave_group,
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    22: lambda stage: init_producer_id.InitProducerIdRequest(stage.group, 60_000),
    27: _write_txn_markers,
    32: _describe_configs,
    33: _alter_configs,
    35: lambda stage: describe_log_dirs.DescribeLogDirsRequest(topics=None),
    37: _create_partitions,
    43: _elect_leaders,
    44: _incremental_alter_configs,
    45: _reassign,
    47: _offset_delete,
    49: _alter_client_quotas,
    55: _describe_quorum,
    61: _describe_producers,
    65: lambda stage: describe_transactions.DescribeTransactionsRequest([stage.group]),
    68: _consumer_group_heartbeat,
    75: lambda stage: describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=stage.topic)]
    ),
}
"""By API key. The other APIs are asked with the defaults of their requests, which most of them refuse."""


def request_of(api_key: int, stage: Stage) -> Message:
    build = REQUESTS.get(api_key)
    if build is not None:
        return build(stage)
    info = APIS[api_key]
    module = importlib.import_module(f"tidelog.wire.messages.{info.module}")
    return cast("Message", getattr(module, f"{info.name}Request")())


class HalfClosing(RawConnection):
    """Sends some requests, shuts its sending side, and reads the answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._asked: list[tuple[Message, int]] = []

    def send(self, *requests: tuple[Message, int], more: bytes = b"", client: str = CLIENT) -> None:
        """With `more` bytes behind the requests; then the end."""
        frames = [encode_request(request, version, i, client) for i, (request, version) in enumerate(requests)]
        self._asked += requests
        self.socket.sendall(b"".join(frames) + more)
        self.socket.shutdown(socket.SHUT_WR)

    def answers(self) -> list[Any]:
        """One for each request, in their order; nothing but the end comes behind them."""
        found = []
        for i, (request, version) in enumerate(self._asked):
            frame = self.receive_frame()
            correlation, position = decode_response_header(frame, 0, request.api_key, version)
            assert correlation == i, "an answer to another request"
            answer, end = response_class(request.api_key).decode(frame, position, version)
            assert end == len(frame), "bytes behind the answer"
            found.append(answer)
        assert self.socket.recv(1) == b"", "bytes behind the last answer"
        return found


@pytest.fixture
def address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[HalfClosing]:
    with HalfClosing(address) as connected:
        yield connected


@pytest.fixture
def stage(address: tuple[str, int], new_topic: NewTopicNamed, unique: Unique) -> Stage:
    return stage_with(address, new_topic("half-closed", partitions=2), unique("half-closed"), unique("unused"))


def stage_with(address: tuple[str, int], topic: str, group: str, unused: str) -> Stage:
    """A topic of two partitions, with a record in the first; a group with a coordinator that has begun."""
    with RawConnection(address) as other:
        asked = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
        described = cast("metadata.MetadataResponse", other.ask(asked, 12))
        assert other.produce(topic, 0, [b"first", b"second"]).error_code == ErrorCode.NONE
        until_coordinated(other, group)
    (found,) = described.topics
    return Stage(topic, found.topic_id, group, unused, found.partitions[0].leader_id)


def until_coordinated(other: RawConnection, group: str) -> None:
    """Kafka answers FindCoordinator before the coordinator has begun."""
    deadline = time.monotonic() + 30
    wanted = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None)])
    while True:
        asked = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        found = cast("find_coordinator.FindCoordinatorResponse", other.ask(asked, 6))
        if not found.coordinators[0].error_code:
            fetched = cast("offset_fetch.OffsetFetchResponse", other.ask(wanted, 9))
            if not fetched.groups[0].error_code:
                return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize("api_key", TABLE, ids=lambda key: APIS[key].name)
def test_every_api_answers(client: HalfClosing, stage: Stage, api_key: int) -> None:
    began = time.monotonic()
    client.send((request_of(api_key, stage), TABLE[api_key].max_version))
    client.answers()
    if api_key == fetch.FetchRequest.api_key:
        assert time.monotonic() - began >= WAIT_MS / 1000


def test_a_fetch_is_answered_by_what_another_client_appends(client: HalfClosing, stage: Stage, bootstrap: str) -> None:
    request = cast("fetch.FetchRequest", _fetch(stage))
    request.max_wait_ms = 30_000
    client.send((request, 13))
    host, _, port = bootstrap.rpartition(":")
    with RawConnection((host, int(port))) as other:
        other.produce(stage.topic, 1, [b"news"])
    (answer,) = client.answers()
    assert answer.responses[0].partitions[0].high_watermark == 1


def test_requests_of_which_several_are_unanswered_are_all_answered_in_order(client: HalfClosing, stage: Stage) -> None:
    late = (_fetch(stage), 13)
    client.send(
        (_produce(stage), 13), (_produce(stage), 13), late, (_create_topics(stage), 7), (_produce(stage), 13), late,
        (_offset_commit(stage), 10), (_list_offsets(stage), 10),
    )  # fmt: skip
    answers = client.answers()
    assert [answers[i].responses[0].partition_responses[0].base_offset for i in (0, 1, 4)] == [2, 3, 4]
    assert answers[3].topics[0].error_code == ErrorCode.NONE
    assert answers[7].topics[0].partitions[0].offset == 5


def test_thousands_of_requests_are_all_answered(client: HalfClosing, stage: Stage) -> None:
    client.send(*[(_list_offsets(stage), 10)] * 5000, (_fetch(stage), 13), *[(_list_offsets(stage), 10)] * 1000)
    assert len(client.answers()) == 6001


@pytest.mark.parametrize("more", [b"\0", b"\0\0\1\0", b"\0\0\1\0" + bytes(200)], ids=["length", "begun", "half"])
def test_a_request_whose_end_never_comes_takes_nothing_from_those_before(
    client: HalfClosing, stage: Stage, more: bytes
) -> None:
    client.send((_fetch(stage), 13), (_list_offsets(stage), 10), more=more)
    assert len(client.answers()) == 2


def test_a_produce_request_that_wants_no_answer_is_carried_out(
    client: HalfClosing, stage: Stage, address: tuple[str, int]
) -> None:
    request = cast("produce.ProduceRequest", _produce(stage))
    request.acks = 0
    frames = [encode_request(request, 13, i, CLIENT) for i in range(3)]
    client.socket.sendall(b"".join(frames))
    client.send((_produce(stage), 13))
    (answer,) = client.answers()
    assert answer.responses[0].partition_responses[0].base_offset == 5
    with HalfClosing(address) as other:
        other.socket.sendall(frames[0])
        other.send()
        assert other.answers() == []


def test_nothing_asked_is_the_end_at_once(client: HalfClosing) -> None:
    client.send()
    assert client.answers() == []


def test_long_requests_are_answered(address: tuple[str, int], stage: Stage, new_topic: NewTopicNamed) -> None:
    """Thousands of entries: each is decoded, handled and answered in many turns."""
    wide = new_topic("half-closed-wide", partitions=100)
    batch = encode_batch([Record(value=b"v" * 2000)])
    data = [produce.PartitionProduceData(index=i, records=batch) for i in range(100)]
    names = [f"{stage.unused}-{i}" for i in range(5000)]
    commits = [offset_commit.OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in range(5000)]
    asked: list[tuple[Message, int]] = [
        (
            produce.ProduceRequest(
                acks=-1, timeout_ms=30_000, topic_data=[produce.TopicProduceData(name=wide, partition_data=data)]
            ),
            PRODUCE_BY_NAME,
        ),
        (
            metadata.MetadataRequest(
                topics=[metadata.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
            ),
            12,
        ),
        (
            fetch.FetchRequest(
                max_wait_ms=WAIT_MS,
                min_bytes=1 << 30,
                max_bytes=1 << 20,
                topics=[
                    fetch.FetchTopic(
                        topic=wide, partitions=[fetch.FetchPartition(partition=i, fetch_offset=1) for i in range(5000)]
                    )
                ],
            ),
            FETCH_BY_NAME,
        ),
        (
            list_offsets.ListOffsetsRequest(
                topics=[
                    list_offsets.ListOffsetsTopic(
                        name=wide,
                        partitions=[
                            list_offsets.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(5000)
                        ],
                    )
                ]
            ),
            10,
        ),
        (
            offset_commit.OffsetCommitRequest(
                stage.group,
                generation_id_or_member_epoch=-1,
                topics=[offset_commit.OffsetCommitRequestTopic(name=wide, partitions=commits)],
            ),
            9,
        ),
        (find_coordinator.FindCoordinatorRequest(coordinator_keys=names), 6),
        (delete_topics.DeleteTopicsRequest(topic_names=names[:1000], timeout_ms=30_000), 5),
    ]
    for request in asked:
        with HalfClosing(address) as one:
            one.send(request)
            one.answers()
    with HalfClosing(address) as all_of_them:
        all_of_them.send(*asked)
        all_of_them.answers()


def test_joining_and_synchronizing_wait_for_the_others(address: tuple[str, int], stage: Stage) -> None:
    request = cast("join_group.JoinGroupRequest", _join_group(stage))
    with RawConnection(address) as leader, HalfClosing(address) as joining, HalfClosing(address) as synchronizing:
        first = cast("join_group.JoinGroupResponse", leader.ask(request, 3))
        assert first.leader == first.member_id
        joining.send((request, 3))  # waits until the other has joined anew
        until_rebalancing(leader, stage.group, first)
        request.member_id = first.member_id
        again = cast("join_group.JoinGroupResponse", leader.ask(request, 3))
        (joined,) = joining.answers()
        assert joined.generation_id == again.generation_id == first.generation_id + 1
        assert len(again.members) == 2

        def sync(member_id: str, *assigned: str) -> Message:
            given = [sync_group.SyncGroupRequestAssignment(member_id=m, assignment=m.encode()) for m in assigned]
            return sync_group.SyncGroupRequest(stage.group, again.generation_id, member_id, assignments=given)

        synchronizing.send((sync(joined.member_id), 2))  # waits for what the leader assigns
        leader.ask(sync(first.member_id, first.member_id, joined.member_id), 2)
        (synchronized,) = synchronizing.answers()
        assert bytes(synchronized.assignment) == joined.member_id.encode()


def until_rebalancing(leader: RawConnection, group: str, first: "join_group.JoinGroupResponse") -> None:
    """A member that joined is known once the leader is told to join anew."""
    heartbeat = importlib.import_module("tidelog.wire.messages.heartbeat").HeartbeatRequest
    assigned = [sync_group.SyncGroupRequestAssignment(member_id=first.member_id)]
    leader.ask(sync_group.SyncGroupRequest(group, first.generation_id, first.member_id, assignments=assigned), 2)
    deadline = time.monotonic() + 30
    while True:
        answer: Any = leader.ask(heartbeat(group, first.generation_id, first.member_id), 2)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)


VERSION_1 = {"add": 3, "offsets": 4, "produce": 11, "commit": 4, "end": 4}
"""The versions of the requests of a transaction that a producer of transaction version 1 sends."""
VERSION_2 = {"add": 3, "offsets": 4, "produce": 13, "commit": 5, "end": 5}
"""With transaction version 2, Produce and TxnOffsetCommit would also add the partition and the group themselves."""


@pytest.mark.parametrize("versions", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
@pytest.mark.parametrize("together", [True, False], ids=["one connection", "a connection each"])
def test_every_request_of_a_transaction_is_answered(
    address: tuple[str, int], stage: Stage, versions: dict[str, int], *, together: bool
) -> None:
    name = stage.group
    producer = until_initialized(address, name)
    of_producer = (producer.producer_id, producer.producer_epoch)
    batch = encode_batch(
        [Record(value=b"v")],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = [produce.PartitionProduceData(index=0, records=batch)]
    topic = produce.TopicProduceData(name=stage.topic, topic_id=stage.topic_id, partition_data=data)
    offsets = [txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    asked: list[tuple[Message, int]] = [
        (
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(stage.topic, [0, 1])],
            ),
            versions["add"],
        ),
        (produce.ProduceRequest(name, -1, 30_000, [topic]), versions["produce"]),
        (add_offsets_to_txn.AddOffsetsToTxnRequest(name, *of_producer, name), versions["offsets"]),
        (
            txn_offset_commit.TxnOffsetCommitRequest(
                name, name, *of_producer, topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(stage.topic, offsets)]
            ),
            versions["commit"],
        ),
        (describe_transactions.DescribeTransactionsRequest([name]), 0),
        (list_transactions.ListTransactionsRequest(producer_id_filters=[producer.producer_id]), 0),
        (_describe_producers(stage), 0),
        (end_txn.EndTxnRequest(name, *of_producer, committed=True), versions["end"]),
    ]
    answers: list[Any] = []
    for requests in [asked] if together else [[request] for request in asked]:
        with HalfClosing(address) as one:
            one.send(*requests)
            answers += one.answers()
    added, written, added_group, committed, described, listed, producers, ended = answers
    added_codes = [p.partition_error_code for t in added.results_by_topic_v3_and_below for p in t.results_by_partition]
    assert added_codes == [0, 0]
    assert (written.responses[0].partition_responses[0].error_code, added_group.error_code) == (0, 0)
    assert committed.topics[0].partitions[0].error_code == 0
    assert described.transaction_states[0].transaction_state == "Ongoing"
    assert [state.transactional_id for state in listed.transaction_states] == [name]
    assert len(producers.topics[0].partitions[0].active_producers) == 1
    assert ended.error_code == 0
    again = until_initialized(address, name)  # waits for the markers of the end
    assert again.producer_epoch > producer.producer_epoch


def until_initialized(address: tuple[str, int], transactional_id: str) -> "init_producer_id.InitProducerIdResponse":
    """Ask with half-closed connections until the coordinator has begun, or has written the markers of an end."""
    looked_for = find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
    deadline = time.monotonic() + 30
    while True:
        with HalfClosing(address) as one:
            one.send((looked_for, 6), (init_producer_id.InitProducerIdRequest(transactional_id, 60_000), 5))
            _, answer = one.answers()
        if answer.error_code == ErrorCode.NONE:
            return cast("init_producer_id.InitProducerIdResponse", answer)
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


@pytest.mark.tidelog_only("starts brokers of its own")
def test_every_api_answers_at_every_broker_of_a_cluster() -> None:
    """Also where the controller, a leader, a coordinator or followers are other brokers, which are asked first."""
    with Cluster(3, settings={"offsets.topic.num.partitions": 12}) as cluster:
        cluster.wait_until_in_sync()
        for number in cluster.numbers:
            host, _, port = cluster.address(number).rpartition(":")
            address = (host, int(port))
            topic = f"half-closed-{number}"
            with RawConnection(address) as other:
                group = group_coordinated_by(other, number)
                others = [n for n in cluster.numbers if n != number]
                partitions = [
                    create_topics.CreatableReplicaAssignment(0, [number, *others]),
                    create_topics.CreatableReplicaAssignment(1, [*others, number]),
                ]
                created = create_topics.CreatableTopic(topic, -1, -1, assignments=partitions)
                other.ask(create_topics.CreateTopicsRequest([created], timeout_ms=30_000), 7)
            stage = stage_with(address, topic, group, f"unused-{number}")
            for api_key in TABLE:
                if APIS[api_key].name == "UnregisterBroker":
                    continue  # its default names no broker, and is refused at once
                with HalfClosing(address) as one:
                    one.send((request_of(api_key, stage), TABLE[api_key].max_version))
                    one.answers()


def group_coordinated_by(other: RawConnection, number: int) -> str:
    names = [f"group-{i}" for i in range(100)]
    deadline = time.monotonic() + 30
    while True:
        asked = find_coordinator.FindCoordinatorRequest(coordinator_keys=names)
        found = cast("find_coordinator.FindCoordinatorResponse", other.ask(asked, 6))
        for coordinator in found.coordinators:
            if not coordinator.error_code and coordinator.node_id == number:
                return coordinator.key
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_throttled_requests_are_answered_one_after_another(
    client: HalfClosing, stage: Stage, address: tuple[str, int], unique: Unique
) -> None:
    name = unique("throttled")
    entity = [alter_client_quotas.EntityData(entity_type="client-id", entity_name=name)]
    ops = [alter_client_quotas.OpData(key="producer_byte_rate", value=1000.0)]
    with RawConnection(address) as other:
        other.ask(alter_client_quotas.AlterClientQuotasRequest(entries=[alter_client_quotas.EntryData(entity, ops)]), 1)
    batch = encode_batch([Record(value=bytes(12_000))])
    data = [produce.PartitionProduceData(index=0, records=batch)]
    topics = [produce.TopicProduceData(topic_id=stage.topic_id, partition_data=data)]
    request = produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
    began = time.monotonic()
    client.send((request, 13), (_list_offsets(stage), 10), client=name)
    first, second = client.answers()
    assert first.throttle_time_ms > 0
    assert time.monotonic() - began >= first.throttle_time_ms / 1000
    assert second.topics[0].partitions[0].offset == 3
