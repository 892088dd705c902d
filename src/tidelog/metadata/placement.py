"""Replica placement: choose the brokers of new partitions, and check assignments that a client chose. Pure functions.

The rules, with the most important rule first:

1. The replicas of a partition are on as many racks as possible, so that few of them are lost if a rack fails.
2. All brokers lead about the same number of the new partitions.
3. All brokers have about the same number of replicas of the new partitions, as far as the racks allow this.

If there are enough active brokers, only these are used. The same image and request always result in the same placement.
"""

from collections.abc import Sequence

from tidelog.metadata.image import MetadataImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode


def place_in_steps(
    image: MetadataImage, partitions: int, replication_factor: int, created_before: int = 0
) -> Steps[list[tuple[int, ...]]]:
    """Return the replicas of each partition, the leader first. Leaders and followers rotate over the active brokers.

    There must be at least `replication_factor` registered brokers, and at least one active broker. `created_before` is
    the number of topics that were placed earlier for the same request. The first leader depends on the number of
    existing partitions plus `created_before`. As a result, 100 topics with one partition each are spread as evenly as
    one topic with 100 partitions.
    """
    active = [broker.broker_id for broker in image.brokers.values() if broker.active]
    inactive = [broker.broker_id for broker in image.brokers.values() if not broker.active]
    factor = min(replication_factor, len(active))
    inactive_replicas = tuple(inactive[: replication_factor - factor])
    racks = {broker: image.brokers[broker].rack for broker in active}
    start = image.partition_count + created_before
    if len(set(racks.values())) <= 1:
        return [
            _rotated_replicas(active, turn, factor) + inactive_replicas for turn in range(start, start + partitions)
        ]
    placement = _RackPlacement(racks)
    replicas = []
    for turn in range(start, start + partitions):
        replicas.append(placement.replicas(turn, factor) + inactive_replicas)
        yield
    return replicas


def _rotated_replicas(brokers: Sequence[int], turn: int, replication_factor: int) -> tuple[int, ...]:
    """Return the replicas of one partition. `turn` is the number of the partition in the order of placement."""
    count = len(brokers)
    leader = turn % count
    if count == 1:
        return (brokers[0],)
    # After each full round of leaders, the followers are shifted by one broker. So the partitions of one leader have
    # their followers on different brokers, and these share the load when the leader stops.
    shift = 1 + turn // count % (count - 1)
    distances = (1 + (shift - 1 + i) % (count - 1) for i in range(replication_factor - 1))
    return (brokers[leader], *(brokers[(leader + distance) % count] for distance in distances))


class _RackPlacement:
    """Distributes partitions over brokers in several racks. All brokers without a rack are treated as one rack."""

    def __init__(self, racks: dict[int, str | None]) -> None:
        """`racks` contains the rack of each broker."""
        self._racks = racks
        brokers_by_rack: dict[str | None, list[int]] = {}
        for broker, rack in racks.items():
            brokers_by_rack.setdefault(rack, []).append(broker)
        # The list contains one broker of each rack in turn, so that consecutive leaders are in different racks.
        rack_size_max = max(map(len, brokers_by_rack.values()))
        self._brokers = [
            brokers[position]
            for position in range(rack_size_max)
            for brokers in brokers_by_rack.values()
            if position < len(brokers)
        ]
        self._replica_counts = dict.fromkeys(self._brokers, 0)
        """Number of replicas that were placed on each broker up to now."""

    def replicas(self, turn: int, replication_factor: int) -> tuple[int, ...]:
        """Return the replicas of one partition. `turn` is the number of the partition in the order of placement."""
        count = len(self._brokers)
        leader = self._brokers[turn % count]
        chosen = [leader]
        rack_uses = dict.fromkeys(self._racks.values(), 0)
        rack_uses[self._racks[leader]] = 1
        # As in `_rotated_replicas`, the first candidate is shifted by one broker after each full round of leaders.
        shift = turn + 1 + turn // count
        candidates = [broker for i in range(count) if (broker := self._brokers[(shift + i) % count]) != leader]
        for _ in range(replication_factor - 1):
            best = min(candidates, key=lambda broker: (rack_uses[self._racks[broker]], self._replica_counts[broker]))
            candidates.remove(best)
            chosen.append(best)
            rack_uses[self._racks[best]] += 1
        for broker in chosen:
            self._replica_counts[broker] += 1
        return tuple(chosen)


def check_assignment(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None = None
) -> tuple[int, ...]:
    """Return the replicas that a client chose for one partition.

    Raises ApiError (INVALID_REPLICA_ASSIGNMENT) if a broker is not registered or is named twice, or if the number of
    replicas is not `replication_factor`. If `replication_factor` is None, any number except 0 is allowed.
    """
    if not replicas:
        raise ApiError("an assignment names no broker", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if len(replicas) > len(image.brokers):
        message = "an assignment names a broker twice, or a broker that is not registered"
        raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    for broker in replicas:
        if broker not in image.brokers:
            raise ApiError(f"broker {broker} is not registered", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if len(dict.fromkeys(replicas)) != len(replicas):
        raise ApiError("an assignment names a broker twice", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise ApiError("every partition must have the same number of replicas", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return tuple(replicas)


def first_isr(image: MetadataImage, partition: int, replicas: Sequence[int]) -> tuple[int, ...]:
    """Return the first ISR of a new partition: its active replicas. Raises ApiError if no replica is active."""
    isr = tuple(replica for replica in replicas if image.is_active(replica))
    if not isr:
        message = f"partition {partition} is assigned only to brokers that are fenced or in controlled shutdown"
        raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return isr
