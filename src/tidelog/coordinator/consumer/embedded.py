"""Messages that the classic protocol embeds in its requests and responses: subscriptions and assignments."""

from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.member import Target
from tidelog.coordinator.consumer.reconcile import ReportedPartitions
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
    """Return the version in which to decode an embedded message. It is the version that the message states, but at most
    the newest known version. Raises MalformedMessage.
    """
    if len(data) < VERSION_BYTES:
        raise MalformedMessage("an embedded message has no version")
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise MalformedMessage(f"an embedded message has version {version}")
    return min(version, ConsumerProtocolSubscription.max_version)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription. Raises MalformedMessage."""
    version = embedded_version(metadata)
    subscription, _ = ConsumerProtocolSubscription.decode(metadata, VERSION_BYTES, version)
    return subscription


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment. Empty `data` means an empty assignment. Raises MalformedMessage."""
    if not data:
        return ConsumerProtocolAssignment()
    assignment, _ = ConsumerProtocolAssignment.decode(data, VERSION_BYTES, embedded_version(data))
    return assignment


def write_assignment(target: Target, version: int, image: "MetadataImage") -> bytes:
    """Encode an assignment. Deleted topics are omitted."""
    assigned = [
        TopicPartition(topic.name, list(partitions))
        for topic_id, partitions in target.items()
        if (topic := image.topics_by_id.get(TopicId(topic_id))) is not None
    ]
    return version.to_bytes(VERSION_BYTES, "big") + ConsumerProtocolAssignment(assigned).encode(version)


def reported_partitions(subscription: ConsumerProtocolSubscription, image: "MetadataImage") -> ReportedPartitions:
    """Return the partitions that the member reports as its own. Deleted topics are omitted."""
    return {
        topic.topic_id: frozenset(assigned.partitions)
        for assigned in subscription.owned_partitions
        if (topic := image.topics.get(assigned.topic)) is not None
    }
