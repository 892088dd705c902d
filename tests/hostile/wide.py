"""Requests of a few megabytes with as many array items as possible, one for each API with arrays, and requests that
repeat one item.
"""

from collections.abc import Callable

from tidelog.wire.message import Message
from tidelog.wire.messages import (
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_replica_log_dirs,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    describe_transactions,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from tidelog.wire.records import Record, encode_batch
from wire_harness import encode_request

COUNT = 100_000
GROUP = "wide"


def _produce(topic: str) -> Message:
    data = [produce.PartitionProduceData(index=i, records=b"") for i in range(COUNT)]
    return produce.ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[produce.TopicProduceData(name=topic, partition_data=data)]
    )


def _produce_topics(topic: str) -> Message:
    topics = [
        produce.TopicProduceData(name=f"{topic}{i}", partition_data=[produce.PartitionProduceData(index=0)])
        for i in range(COUNT)
    ]
    return produce.ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)


def _fetch(topic: str) -> Message:
    partitions = [fetch.FetchPartition(partition=i, partition_max_bytes=1000) for i in range(COUNT)]
    return fetch.FetchRequest(
        max_bytes=1000, min_bytes=1 << 20, max_wait_ms=50, topics=[fetch.FetchTopic(topic=topic, partitions=partitions)]
    )


def _list_offsets(topic: str) -> Message:
    partitions = [list_offsets.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(COUNT)]
    return list_offsets.ListOffsetsRequest(topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=partitions)])


def _metadata(topic: str) -> Message:
    topics = [metadata.MetadataRequestTopic(name=f"{topic}{i}") for i in range(COUNT)]
    return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _metadata_creating(topic: str) -> Message:
    topics = [metadata.MetadataRequestTopic(name=f"{topic}{i}") for i in range(COUNT)]
    return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=True)


def _offset_commit(topic: str) -> Message:
    partitions = [
        offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=i) for i in range(COUNT)
    ]
    topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return offset_commit.OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)


def _largest_offset_commit(topic: str) -> Message:
    """As much as one batch of `__consumer_offsets` takes."""
    partitions = [
        offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=i) for i in range(9_500)
    ]
    topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return offset_commit.OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)


def _offset_fetch(topic: str) -> Message:
    topics = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(COUNT)))]
    return offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])


def _offset_fetch_groups(topic: str) -> Message:
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=f"{GROUP}{i}", topics=None) for i in range(COUNT)]
    return offset_fetch.OffsetFetchRequest(groups=groups)


def _offset_for_leader_epoch(topic: str) -> Message:
    partitions = [offset_for_leader_epoch.OffsetForLeaderPartition(partition=i) for i in range(COUNT)]
    topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic, partitions=partitions)]
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=topics)


def _describe_configs(topic: str) -> Message:
    resources = [describe_configs.DescribeConfigsResource(resource_type=2, resource_name=topic) for _ in range(COUNT)]
    return describe_configs.DescribeConfigsRequest(resources=resources, include_documentation=True)


def _describe_topic_partitions(topic: str) -> Message:
    topics = [describe_topic_partitions.TopicRequest(name=f"{topic}{i}") for i in range(COUNT)]
    return describe_topic_partitions.DescribeTopicPartitionsRequest(topics=topics)


def _create_topics(topic: str) -> Message:
    topics = [
        create_topics.CreatableTopic(name=f"{topic}.{i}", num_partitions=1, replication_factor=1) for i in range(COUNT)
    ]
    return create_topics.CreateTopicsRequest(topics=topics, timeout_ms=30_000)


def _validate_topics(topic: str) -> Message:
    """As many as one request may make, checked and described; dots in names make each be compared with all others."""
    topics = [
        create_topics.CreatableTopic(name=f"{topic}.{i}", num_partitions=1, replication_factor=1) for i in range(10_000)
    ]
    return create_topics.CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=True)


def _delete_topics(topic: str) -> Message:
    return delete_topics.DeleteTopicsRequest(topic_names=[f"{topic}{i}" for i in range(COUNT)], timeout_ms=30_000)


def _create_partitions(topic: str) -> Message:
    topics = [create_partitions.CreatePartitionsTopic(name=f"{topic}{i}", count=2) for i in range(COUNT)]
    return create_partitions.CreatePartitionsRequest(topics=topics, timeout_ms=30_000)


def _alter_configs(topic: str) -> Message:
    resources = [alter_configs.AlterConfigsResource(resource_type=2, resource_name=f"{topic}{i}") for i in range(COUNT)]
    return alter_configs.AlterConfigsRequest(resources=resources)


def _incremental_alter_configs(topic: str) -> Message:
    resources = [
        incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name=f"{topic}{i}")
        for i in range(COUNT)
    ]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources)


def _find_coordinator(topic: str) -> Message:
    return find_coordinator.FindCoordinatorRequest(coordinator_keys=[f"{GROUP}{i}" for i in range(COUNT)])


def _describe_groups(topic: str) -> Message:
    return describe_groups.DescribeGroupsRequest(groups=[f"{GROUP}{i}" for i in range(COUNT)])


def _list_groups(topic: str) -> Message:
    return list_groups.ListGroupsRequest(states_filter=[f"s{i}" for i in range(COUNT)])


def _leave_group(topic: str) -> Message:
    members = [leave_group.MemberIdentity(member_id=f"m{i}") for i in range(COUNT)]
    return leave_group.LeaveGroupRequest(group_id=GROUP, members=members)


def _sync_group(topic: str) -> Message:
    assignments = [sync_group.SyncGroupRequestAssignment(member_id=f"m{i}") for i in range(COUNT)]
    return sync_group.SyncGroupRequest(group_id=GROUP, member_id="m", assignments=assignments)


def _join_group(topic: str) -> Message:
    protocols = [join_group.JoinGroupRequestProtocol(name=f"p{i}") for i in range(COUNT)]
    return join_group.JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=30_000, protocol_type="consumer", protocols=protocols
    )


def _repeated_produce(topic: str) -> Message:
    batch = bytes(encode_batch([Record(b"k", b"v", 0)]))
    data = [produce.PartitionProduceData(index=0, records=batch) for _ in range(COUNT)]
    return produce.ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[produce.TopicProduceData(name=topic, partition_data=data)]
    )


def _repeated_fetch(topic: str) -> Message:
    partitions = [fetch.FetchPartition(partition=0, partition_max_bytes=1000) for _ in range(COUNT)]
    return fetch.FetchRequest(
        max_bytes=1000, max_wait_ms=50, topics=[fetch.FetchTopic(topic=topic, partitions=partitions)]
    )


def _repeated_list_offsets(topic: str) -> Message:
    partitions = [list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=partitions) for _ in range(COUNT)]
    )


def _repeated_delete_records(topic: str) -> Message:
    partitions = [delete_records.DeleteRecordsPartition(partition_index=0, offset=0) for _ in range(COUNT)]
    topics = [delete_records.DeleteRecordsTopic(name=topic, partitions=partitions)]
    return delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=1000)


def _repeated_metadata(topic: str) -> Message:
    return metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic) for _ in range(COUNT)])


def _repeated_offset_fetch(topic: str) -> Message:
    """Four bytes name an offset that was committed with 4 KB of metadata."""
    topics = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0] * COUNT)]
    return offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])


def _repeated_offset_fetch_groups(topic: str) -> Message:
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=None) for _ in range(COUNT)]
    return offset_fetch.OffsetFetchRequest(groups=groups)


def _repeated_offset_delete(topic: str) -> Message:
    partitions = [offset_delete.OffsetDeleteRequestPartition(0) for _ in range(COUNT)]
    return offset_delete.OffsetDeleteRequest(
        group_id=f"{GROUP}-none", topics=[offset_delete.OffsetDeleteRequestTopic(topic, partitions)]
    )


def _repeated_describe_groups(topic: str) -> Message:
    return describe_groups.DescribeGroupsRequest(groups=[GROUP] * COUNT)


def _repeated_delete_groups(topic: str) -> Message:
    return delete_groups.DeleteGroupsRequest(groups_names=[f"{GROUP}-none"] * COUNT)


def _repeated_leave_group(topic: str) -> Message:
    members = [leave_group.MemberIdentity(member_id="m") for _ in range(COUNT)]
    return leave_group.LeaveGroupRequest(group_id=GROUP, members=members)


def _repeated_owned_topics(topic: str) -> Message:
    """Of one topic, a partition in each entry."""
    owned = [consumer_group_heartbeat.TopicPartitions(bytes(15) + b"1", [i]) for i in range(COUNT)]
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        f"{GROUP}-consumer",
        "m",
        1,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[topic] * COUNT,
        topic_partitions=owned,
    )


def _repeated_describe_configs(topic: str) -> Message:
    resource = describe_configs.DescribeConfigsResource(2, topic, ["retention.ms"] * COUNT)
    return describe_configs.DescribeConfigsRequest(resources=[resource])


def _repeated_alter_configs(topic: str) -> Message:
    configs = [alter_configs.AlterableConfig("retention.ms", "1") for _ in range(COUNT)]
    return alter_configs.AlterConfigsRequest(resources=[alter_configs.AlterConfigsResource(2, topic, configs)])


def _repeated_create_topics(topic: str) -> Message:
    configs = [create_topics.CreatableTopicConfig("retention.ms", "1000") for _ in range(COUNT)]
    assignments = [create_topics.CreatableReplicaAssignment(0, [1] * COUNT)]
    topics = [
        create_topics.CreatableTopic("wide-repeated", 1, 1, configs=configs),
        create_topics.CreatableTopic("wide-repeated-2", -1, -1, assignments=assignments),
    ]
    return create_topics.CreateTopicsRequest(topics=topics, timeout_ms=30_000)


def _repeated_alter_client_quotas(topic: str) -> Message:
    entity = [alter_client_quotas.EntityData("user", "u") for _ in range(COUNT)]
    ops = [alter_client_quotas.OpData("producer_byte_rate", 1024.0) for _ in range(COUNT)]
    entries = [alter_client_quotas.EntryData(entity, ops)]
    return alter_client_quotas.AlterClientQuotasRequest(entries=entries, validate_only=True)


def _repeated_alter_log_dirs(topic: str) -> Message:
    topics = [alter_replica_log_dirs.AlterReplicaLogDirTopic(topic, [0] * COUNT)]
    dirs = [alter_replica_log_dirs.AlterReplicaLogDir("/no/such/directory", topics)]
    return alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=dirs)


def _describe_log_dirs(topic: str) -> Message:
    topics = [describe_log_dirs.DescribableLogDirTopic(topic, [*range(COUNT), *range(COUNT)])]
    return describe_log_dirs.DescribeLogDirsRequest(topics=topics)


def _add_partitions_to_txn(topic: str) -> Message:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(topic, list(range(COUNT)))]
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="wide", v3_and_below_producer_id=1, v3_and_below_topics=topics
    )


def _add_partitions_of_several(topic: str) -> Message:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(topic, [0])]
    entry = add_partitions_to_txn.AddPartitionsToTxnTransaction
    return add_partitions_to_txn.AddPartitionsToTxnRequest([entry(f"w{i}", 1, 0, True, topics) for i in range(COUNT)])


def _write_txn_markers(topic: str) -> Message:
    topics = [write_txn_markers.WritableTxnMarkerTopic(topic, list(range(COUNT)))]
    return write_txn_markers.WriteTxnMarkersRequest([write_txn_markers.WritableTxnMarker(1, 0, False, topics, 0)])


def _repeated_write_txn_markers(topic: str) -> Message:
    topics = [write_txn_markers.WritableTxnMarkerTopic(topic, [0] * COUNT)]
    return write_txn_markers.WriteTxnMarkersRequest([write_txn_markers.WritableTxnMarker(1, 0, False, topics, 0)])


def _txn_offset_commit(topic: str) -> Message:
    partitions = [txn_offset_commit.TxnOffsetCommitRequestPartition(i, 1) for i in range(COUNT)]
    topics = [txn_offset_commit.TxnOffsetCommitRequestTopic(topic, partitions)]
    return txn_offset_commit.TxnOffsetCommitRequest("wide", GROUP, 1, 0, topics=topics)


def _repeated_describe_transactions(topic: str) -> Message:
    return describe_transactions.DescribeTransactionsRequest(["wide"] * COUNT)


def _list_transactions(topic: str) -> Message:
    return list_transactions.ListTransactionsRequest([f"State{i}" for i in range(COUNT)], list(range(COUNT)))


WIDE: dict[str, tuple[Callable[[str], Message], int]] = {
    "produce": (_produce, 11),
    "produce-topics": (_produce_topics, 11),
    "fetch": (_fetch, 12),
    "list-offsets": (_list_offsets, 8),
    "metadata": (_metadata, 12),
    "metadata-creating": (_metadata_creating, 12),
    "offset-commit": (_offset_commit, 8),
    "offset-commit-largest": (_largest_offset_commit, 8),
    "offset-fetch": (_offset_fetch, 8),
    "offset-fetch-groups": (_offset_fetch_groups, 8),
    "offset-for-leader-epoch": (_offset_for_leader_epoch, 4),
    "describe-configs": (_describe_configs, 4),
    "describe-topic-partitions": (_describe_topic_partitions, 0),
    "create-topics": (_create_topics, 7),
    "create-topics-validated": (_validate_topics, 7),
    "delete-topics": (_delete_topics, 5),
    "create-partitions": (_create_partitions, 3),
    "alter-configs": (_alter_configs, 2),
    "incremental-alter-configs": (_incremental_alter_configs, 1),
    "find-coordinator": (_find_coordinator, 4),
    "describe-groups": (_describe_groups, 5),
    "list-groups": (_list_groups, 4),
    "leave-group": (_leave_group, 4),
    "sync-group": (_sync_group, 5),
    "join-group": (_join_group, 7),
    "describe-log-dirs": (_describe_log_dirs, 4),
    "add-partitions-to-txn": (_add_partitions_to_txn, 3),
    "add-partitions-of-several": (_add_partitions_of_several, 5),
    "write-txn-markers": (_write_txn_markers, 1),
    "txn-offset-commit": (_txn_offset_commit, 3),
    "list-transactions": (_list_transactions, 2),
    "repeated-write-txn-markers": (_repeated_write_txn_markers, 1),
    "repeated-describe-transactions": (_repeated_describe_transactions, 0),
    "repeated-produce": (_repeated_produce, 11),
    "repeated-fetch": (_repeated_fetch, 12),
    "repeated-list-offsets": (_repeated_list_offsets, 8),
    "repeated-delete-records": (_repeated_delete_records, 2),
    "repeated-metadata": (_repeated_metadata, 12),
    "repeated-offset-fetch": (_repeated_offset_fetch, 8),
    "repeated-offset-fetch-groups": (_repeated_offset_fetch_groups, 8),
    "repeated-offset-delete": (_repeated_offset_delete, 0),
    "repeated-describe-groups": (_repeated_describe_groups, 5),
    "repeated-delete-groups": (_repeated_delete_groups, 2),
    "repeated-leave-group": (_repeated_leave_group, 4),
    "repeated-owned-topics": (_repeated_owned_topics, 1),
    "repeated-describe-configs": (_repeated_describe_configs, 4),
    "repeated-alter-configs": (_repeated_alter_configs, 2),
    "repeated-create-topics": (_repeated_create_topics, 7),
    "repeated-alter-client-quotas": (_repeated_alter_client_quotas, 1),
    "repeated-alter-log-dirs": (_repeated_alter_log_dirs, 2),
}
"""What builds the request, and its version."""


def fetch_request(topic: str, count: int) -> bytes:
    """The frame of a fetch of so many partitions, most of which do not exist."""
    partitions = [fetch.FetchPartition(partition=i, partition_max_bytes=1000) for i in range(count)]
    asked = fetch.FetchTopic(topic=topic, partitions=partitions)
    return encode_request(fetch.FetchRequest(max_bytes=1000, max_wait_ms=50, topics=[asked]), 12, 1, "wide")


def wide_request(name: str, topic: str) -> bytes:
    """The frame of one of `WIDE`."""
    build, version = WIDE[name]
    return encode_request(build(topic), version, 1, "wide")
