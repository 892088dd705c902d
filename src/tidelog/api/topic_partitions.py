"""What the image says of a topic's partitions, for the two APIs that tell it: Metadata and DescribeTopicPartitions."""

from collections.abc import Iterable
from typing import TypeVar

from tidelog.metadata.image import NO_LEADER, MetadataImage, TopicImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_topic_partitions import DescribeTopicPartitionsResponsePartition
from tidelog.wire.messages.metadata import MetadataResponsePartition

P = TypeVar("P", MetadataResponsePartition, DescribeTopicPartitionsResponsePartition)


def partitions_of(topic: TopicImage, indexes: Iterable[int], image: MetadataImage, kind: type[P]) -> Steps[list[P]]:
    """These partitions of the topic, as `kind`."""
    partitions = []
    for index in indexes:
        state = topic.partitions[index]
        partitions.append(
            kind(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else ErrorCode.NONE,
                partition_index=index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[broker for broker in state.replicas if broker not in image.brokers],
            )
        )
        yield
    return partitions
