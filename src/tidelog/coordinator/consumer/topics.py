"""What a consumer group needs to know of the cluster's topics; all of it is read from an image."""

from collections.abc import Iterable
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.member import Member

if TYPE_CHECKING:
    from tidelog.coordinator.consumer.state import ConsumerGroup
    from tidelog.metadata.image import MetadataImage


def topic_ids(image: "MetadataImage", names: Iterable[str]) -> frozenset[bytes]:
    """Ids of those that exist."""
    topics = image.topics
    return frozenset(topics[name].topic_id for name in names if name in topics)


def names_read(group: "ConsumerGroup", member: Member) -> Iterable[str]:
    """All topics that the member reads. An expression that is not resolved yet stands for none."""
    resolved = group.resolved.get(member.pattern) if member.pattern else None
    if resolved is None:
        return member.topics
    return (*member.topics, *resolved.topics)


def metadata_hash(image: "MetadataImage", names: Iterable[str]) -> int:
    """64 bits that change when one of these topics is made, deleted or made anew, grows, or moves to another rack.

    0 if none of them exists.
    """
    topics = image.topics
    digest = blake2b(digest_size=8)
    found = False
    # Every member that joins asks for this: where nobody has a rack, partitions need not be looked at one by one.
    has_racks = any(broker.rack is not None for broker in image.brokers.values())
    for name in sorted(names):
        topic = topics.get(name)
        if topic is None:
            continue
        found = True
        digest.update(pack(">16sI", topic.topic_id, len(topic.partitions)))
        if not has_racks:
            digest.update(bytes(len(topic.partitions)))
            continue
        for state in topic.partitions:
            racks = [broker.rack for replica in state.replicas if (broker := image.brokers.get(replica)) is not None]
            digest.update("\0".join(sorted(rack for rack in racks if rack is not None)).encode() + b"\0")
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0


def changed_names(old: "MetadataImage", new: "MetadataImage") -> dict[str, None]:
    """Names of topics that are new, gone, made anew or grown."""
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
