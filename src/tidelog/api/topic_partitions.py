"""What is said of a topic's partitions, for the two APIs that tell it: Metadata and DescribeTopicPartitions.

A partition whose log is offline is told of as Kafka does once its controller knows: without a leader and out of sync.
Its leader epoch stays, since nobody else leads meanwhile: clients take no metadata that is older than what they have.
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
    """These partitions of the topic, as `kind`; the error is Metadata's."""
    found = []
    for index in indexes:
        state = topic.partitions[index]
        leader, isr = state.leader, list(state.isr)
        offline = [broker for broker in state.replicas if broker not in image.brokers]
        if partitions.is_offline(topic.name, index):
            isr = [broker for broker in isr if broker != leader]
            if leader not in offline:
                offline.append(leader)
            leader = NO_LEADER
        found.append(
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
    return found
