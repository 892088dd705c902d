"""Which brokers hold a new topic's partitions."""

from collections.abc import Sequence

from tidelog.metadata.image import MetadataImage


def place(image: MetadataImage, partitions: int, replication_factor: int, first: int = 0) -> list[tuple[int, ...]]:
    """Replicas of each partition, the leader first: leaders go round the brokers, and so do the followers of each.

    Needs as many brokers as replicas. Where the round begins depends on how many partitions there are already, so that
    many topics of one partition spread as well as one topic of many.
    """
    brokers = list(image.brokers)
    start = image.partition_count + first
    return [_replicas(brokers, start + i, replication_factor) for i in range(partitions)]


def _replicas(brokers: Sequence[int], turn: int, replication_factor: int) -> tuple[int, ...]:
    count = len(brokers)
    leader = turn % count
    if count == 1:
        return (brokers[0],)
    # The followers' distance to the leader grows with every whole round: when a broker stops, its load spreads.
    shift = 1 + turn // count % (count - 1)
    others = (1 + (shift - 1 + i) % (count - 1) for i in range(replication_factor - 1))
    return (brokers[leader], *(brokers[(leader + distance) % count] for distance in others))
