"""Replica placement: choose the brokers of a new topic's partitions."""

from collections.abc import Sequence

from tidelog.metadata.image import MetadataImage


def place(image: MetadataImage, partitions: int, replication_factor: int, first: int = 0) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, the leader first. Leaders and followers rotate over the brokers.

    There must be at least `replication_factor` brokers. The first leader depends on the number of existing
    partitions (plus `first`, the number of topics that this request has placed before), so that many topics with one
    partition are spread as evenly as one topic with many.
    """
    brokers = list(image.brokers)
    start = image.partition_count + first
    return [_replicas(brokers, start + i, replication_factor) for i in range(partitions)]


def _replicas(brokers: Sequence[int], turn: int, replication_factor: int) -> tuple[int, ...]:
    count = len(brokers)
    leader = turn % count
    if count == 1:
        return (brokers[0],)
    # After each full round of leaders the followers shift by one, so that the partitions led by one broker have their
    # followers on different brokers, and its load spreads when it stops.
    shift = 1 + turn // count % (count - 1)
    others = (1 + (shift - 1 + i) % (count - 1) for i in range(replication_factor - 1))
    return (brokers[leader], *(brokers[(leader + distance) % count] for distance in others))
