"""Describe a topic's partitions, for Metadata and DescribeTopicPartitions.

If this broker leads a partition and the partition's log is offline, the partition is described as Kafka's controller
describes it: without a leader, and without the former leader in the ISR. The leader epoch remains the same, since no
other broker has become the leader. (If a higher epoch were sent, clients would ignore later metadata with the actual
epoch.)
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
    description_class: type[P],
) -> Steps[list[P]]:
    """Return one object of `description_class` for each of the partitions `indexes`. DescribeTopicPartitions uses the
    same error codes as Metadata.
    """
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
            description_class(
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
