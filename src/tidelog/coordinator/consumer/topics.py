"""Information about the topics of consumer groups, from a metadata image."""

from collections.abc import Iterable
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.member import Member

if TYPE_CHECKING:
    from tidelog.coordinator.consumer.state import ConsumerGroup
    from tidelog.metadata.image import MetadataImage


def topic_ids(image: "MetadataImage", names: Iterable[str]) -> frozenset[bytes]:
    """Return the ids of the topics that exist."""
    topics = image.topics
    return frozenset(topics[name].topic_id for name in names if name in topics)


def subscribed_names(group: "ConsumerGroup", member: Member) -> Iterable[str]:
    """Return the names of all topics that the member subscribes to. The topics that match its regular expression are
    missing until the first search for them has ended.
    """
    resolved = group.resolved.get(member.pattern) if member.pattern else None
    if resolved is None:
        return member.topics
    return (*member.topics, *resolved.topics)


def metadata_hash(image: "MetadataImage", names: Iterable[str]) -> int:
    """Return a 64-bit hash of topics; 0 if none of them exists.

    The hash changes when one of the topics is created, deleted or recreated, gets more partitions, or gets replicas in
    other racks.
    """
    topics = image.topics
    digest = blake2b(digest_size=8)
    has_topic = False
    # The hash is computed for each member that joins. If no broker has a rack, the loop over the partitions is skipped
    # to save time.
    has_racks = any(broker.rack is not None for broker in image.brokers.values())
    for name in sorted(names):
        topic = topics.get(name)
        if topic is None:
            continue
        has_topic = True
        digest.update(pack(">16sI", topic.topic_id, len(topic.partitions)))
        if not has_racks:
            digest.update(bytes(len(topic.partitions)))
            continue
        for state in topic.partitions:
            racks = [broker.rack for replica in state.replicas if (broker := image.brokers.get(replica)) is not None]
            digest.update("\0".join(sorted(rack for rack in racks if rack is not None)).encode() + b"\0")
    return int.from_bytes(digest.digest(), "big", signed=True) if has_topic else 0


def changed_names(old: "MetadataImage", new: "MetadataImage") -> dict[str, None]:
    """Return the names of topics that were created, deleted, recreated, or got more partitions."""
    if old.topics is new.topics:
        return {}
    changed: dict[str, None] = {}
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is not topic and (
            before is None or before.topic_id != topic.topic_id or len(before.partitions) != len(topic.partitions)
        ):
            changed[name] = None
    changed.update(dict.fromkeys(name for name in old.topics if name not in new.topics))
    return changed
