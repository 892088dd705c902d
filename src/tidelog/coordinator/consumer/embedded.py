"""What members of the classic protocol tell each other through their group: subscription and assignment, by names."""

from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.member import Target
from tidelog.coordinator.consumer.reconcile import Reported
from tidelog.model.ids import TopicId
from tidelog.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidelog.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from tidelog.metadata.image import MetadataImage

VERSION_BYTES = 2


def embedded_version(data: bytes) -> int:
    """Raises MalformedMessage."""
    if len(data) < VERSION_BYTES:
        raise MalformedMessage("an embedded message has no version")
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise MalformedMessage(f"an embedded message has version {version}")
    return min(version, ConsumerProtocolSubscription.max_version)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Raises MalformedMessage."""
    version = embedded_version(metadata)
    subscription, _ = ConsumerProtocolSubscription.decode(metadata, VERSION_BYTES, version)
    return subscription


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """No bytes at all are an empty assignment. Raises MalformedMessage."""
    if not data:
        return ConsumerProtocolAssignment()
    assignment, _ = ConsumerProtocolAssignment.decode(data, VERSION_BYTES, embedded_version(data))
    return assignment


def write_assignment(target: Target, version: int, image: "MetadataImage") -> bytes:
    """Topics that are gone are left out."""
    told = [
        TopicPartition(topic.name, list(partitions))
        for topic_id, partitions in target.items()
        if (topic := image.topics_by_id.get(TopicId(topic_id))) is not None
    ]
    return version.to_bytes(VERSION_BYTES, "big") + ConsumerProtocolAssignment(told).encode(version)


def reported(subscription: ConsumerProtocolSubscription, image: "MetadataImage") -> Reported:
    """What the member says that it has."""
    return {
        topic.topic_id: frozenset(told.partitions)
        for told in subscription.owned_partitions
        if (topic := image.topics.get(told.topic)) is not None
    }
