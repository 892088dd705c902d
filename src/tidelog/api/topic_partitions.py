"""The description of a topic's partitions that Metadata and DescribeTopicPartitions share.

A partition whose log is offline is described as by Kafka's controller: it has no leader, and the former leader is
not in sync. The leader epoch does not change, since no other broker becomes leader; clients ignore metadata with an
older leader epoch.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from tidelog.metadata.image import NO_LEADER, MetadataImage, TopicImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_topic_partitions import DescribeTopicPartitionsResponsePartition
from tidelog.wire.messages.metadata import MetadataResponsePartition

if TYPE_CHECKING:
    from tidelog.replication.partitions import Partitions

P = TypeVar("P", MetadataResponsePartition, DescribeTopicPartitionsResponsePartition)


def partitions_of(
    topic: TopicImage,
    indexes: Iterable[int],
    image: MetadataImage,
    partitions: "Partitions",
    kind: type[P],
) -> Steps[list[P]]:
    """Describe the partitions `indexes` of the topic by objects of `kind`. Their error codes are those of Metadata."""
    descriptions = []
    for index in indexes:
        state = topic.partitions[index]
        leader, isr = state.leader, list(state.isr)
        offline = [replica for replica in state.replicas if not image.is_online(replica)]
        if leader == partitions.node_id and partitions.is_offline(topic.name, index):
            isr = [broker for broker in isr if broker != leader]
            if leader not in offline:
                offline.append(leader)
            leader = NO_LEADER
        descriptions.append(
            kind(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=isr,
                offline_replicas=offline,
            )
        )
        yield
    return descriptions
