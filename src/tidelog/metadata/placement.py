"""Replica placement: choose the brokers of new partitions, and check assignments that a client chose. Pure functions.

The rules, the most important one first:

1. the replicas of a partition are on as many racks as possible, so that the loss of a rack loses as few of them as
possible; 2. every broker leads about as many of the new partitions as every other broker; 3. every broker has about as
many replicas of the new partitions as every other broker, as far as the racks allow it.

Only active brokers are used while there are enough of them. The same image and request give the same placement.
"""

from collections.abc import Sequence

from tidelog.metadata.image import MetadataImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode


def place_in_steps(
    image: MetadataImage, partitions: int, replication_factor: int, first: int = 0
) -> Steps[list[tuple[int, ...]]]:
    """Return the replicas of each partition, the leader first. Leaders and followers rotate over the active brokers.

    There must be at least `replication_factor` registered brokers, and an active one. The first leader depends on the
    number of existing partitions (plus `first`, the number of topics that this request has placed before), so that many
    topics with one partition are spread as evenly as one topic with many.
    """
    active = [broker.broker_id for broker in image.brokers.values() if broker.active]
    inactive = [broker.broker_id for broker in image.brokers.values() if not broker.active]
    factor = min(replication_factor, len(active))
    rest = tuple(inactive[: replication_factor - factor])
    racks = {broker: image.brokers[broker].rack for broker in active}
    start = image.partition_count + first
    if len(set(racks.values())) <= 1:
        return [_rotated_replicas(active, turn, factor) + rest for turn in range(start, start + partitions)]
    placement = _RackPlacement(racks)
    placed = []
    for turn in range(start, start + partitions):
        placed.append(placement.replicas(turn, factor) + rest)
        yield
    return placed


def _rotated_replicas(brokers: Sequence[int], turn: int, replication_factor: int) -> tuple[int, ...]:
    count = len(brokers)
    leader = turn % count
    if count == 1:
        return (brokers[0],)
    # After each full round of leaders the followers shift by one, so that the partitions led by one broker have their
    # followers on different brokers, and its load spreads when it stops.
    shift = 1 + turn // count % (count - 1)
    distances = (1 + (shift - 1 + i) % (count - 1) for i in range(replication_factor - 1))
    return (brokers[leader], *(brokers[(leader + distance) % count] for distance in distances))


class _RackPlacement:
    """Places partitions over brokers in several racks. A broker without a rack counts as in a rack of its own kind."""

    def __init__(self, racks: dict[int, str | None]) -> None:
        """`racks` has the rack of each broker."""
        self._racks = racks
        brokers_by_rack: dict[str | None, list[int]] = {}
        for broker, rack in racks.items():
            brokers_by_rack.setdefault(rack, []).append(broker)
        # Take one broker of each rack in turn, so that consecutive leaders are in different racks.
        longest = max(map(len, brokers_by_rack.values()))
        self._brokers = [
            brokers[position]
            for position in range(longest)
            for brokers in brokers_by_rack.values()
            if position < len(brokers)
        ]
        self._replica_counts = dict.fromkeys(self._brokers, 0)
        """Number of replicas that this placement has put on each broker."""

    def replicas(self, turn: int, replication_factor: int) -> tuple[int, ...]:
        count = len(self._brokers)
        leader = self._brokers[turn % count]
        chosen = [leader]
        rack_uses = dict.fromkeys(self._racks.values(), 0)
        rack_uses[self._racks[leader]] = 1
        # As in `_rotated_replicas`, the first candidate shifts after each full round of leaders.
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

    Raises ApiError (INVALID_REPLICA_ASSIGNMENT) unless they are registered brokers, each once. None as the replication
    factor allows any number of replicas.
    """
    if not replicas:
        raise ApiError("an assignment names no broker", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if len(replicas) > len(image.brokers):
        message = "an assignment names a broker twice, or one that is not registered"
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
    """Return the first ISR of a new partition: its active replicas. Raises ApiError if there is none."""
    isr = tuple(replica for replica in replicas if image.is_active(replica))
    if not isr:
        message = f"all brokers that partition {partition} is assigned to are fenced or in controlled shutdown"
        raise ApiError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return isr
