"""Choose the replica from which a consumer should fetch (KIP-392), as Kafka's RackAwareReplicaSelector does."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.metadata.image import MetadataImage
    from tidelog.replication.partition import Partition

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The only class that `replica.selector.class` may name."""
RACK_SINCE: Final = 11
"""The first version of Fetch in which a consumer names its rack, and may fetch from followers."""


def preferred_replica(image: "MetadataImage", partition: "Partition", rack: str, fetch_offset: int) -> int | None:
    """Return the broker id of the follower from which the consumer should fetch: among the in-sync followers in the
    consumer's rack whose logs contain the fetch offset, the follower that has fetched furthest.

    Return None if the leader itself is in this rack, if there is no such follower, or if this broker is not the leader.
    """
    replica = partition.replica
    isr = replica.isr
    if isr is None or not replica.leads or _rack(image, replica.node_id) == rack:
        return None
    candidates = [
        (follower.end_offset, follower.caught_up_ms, broker)
        for broker, follower in isr.followers.items()
        if broker in isr.committed
        and follower.log_start_offset <= fetch_offset <= follower.end_offset
        and _rack(image, broker) == rack
    ]
    return max(candidates)[2] if candidates else None


def _rack(image: "MetadataImage", broker_id: int) -> str | None:
    """Return the rack of a broker, or None if the broker has no rack, is fenced or is not registered."""
    broker = image.brokers.get(broker_id)
    return None if broker is None or broker.fenced else broker.rack
