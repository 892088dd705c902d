"""Plan which brokers get the replicas of partitions, for `tidelog cluster reassign` and `drain`. Pure functions.

The rules, the most important one first:

1. Every replica is on an allowed broker.
2. A new replica is, if possible, on a rack that the partition does not use yet. Balancing never lowers the number of
   racks that a partition uses.
3. Brokers have about the same number of replicas, and are the preferred leader of about the same number of partitions.
4. As few replicas as possible are moved.

The same input always results in the same plan.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.cli.cluster_state import PartitionReplicas
from tidelog.cli.errors import CommandError, UsageError

KAFKA_VERSION = 1
"""Version of the JSON format of plans, which is the format of Kafka's tool kafka-reassign-partitions."""


class PlannedMove(NamedTuple):
    """New replicas of one partition."""

    topic: str
    partition: int
    before: list[int]
    after: list[int]

    @property
    def adding(self) -> list[int]:
        return [broker for broker in self.after if broker not in self.before]

    @property
    def removing(self) -> list[int]:
        return [broker for broker in self.before if broker not in self.after]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class _Placement:
    """The replicas of all partitions at the current stage of the plan."""

    def __init__(self, replicas: list[list[int]], brokers: Sequence[int], racks: Mapping[int, str | None]) -> None:
        self.replicas = replicas
        self.counts = dict.fromkeys(brokers, 0)
        """Number of replicas on each allowed broker."""
        self._racks = racks
        for brokers_of_partition in replicas:
            for broker in brokers_of_partition:
                if broker in self.counts:
                    self.counts[broker] += 1

    def rack(self, broker: int) -> object:
        """Return the broker's rack. A broker without a rack is treated as the only broker in a rack of its own."""
        return self._racks.get(broker) or broker

    def racks_used(self, replicas: Iterable[int]) -> int:
        return len({self.rack(broker) for broker in replicas})

    def add(self, index: int) -> None:
        """Add a replica on the best allowed broker. Brokers on racks that the partition does not use yet are preferred;
        of these, the broker with the fewest replicas is the best.
        """
        replicas = self.replicas[index]
        candidates = [broker for broker in self.counts if broker not in replicas]
        best = min(candidates, key=lambda broker: (-self.racks_used([*replicas, broker]), self.counts[broker], broker))
        replicas.append(best)
        self.counts[best] += 1

    def fill(self, index: int, count: int) -> None:
        """Add replicas until the partition has `count` of them."""
        while len(self.replicas[index]) < count:
            self.add(index)

    def move(self, index: int, source: int, target: int) -> None:
        replicas = self.replicas[index]
        replicas[replicas.index(source)] = target
        self.counts[source] -= 1
        self.counts[target] += 1

    def balance(self) -> None:
        """Move replicas from brokers with many replicas to brokers with fewer, as long as this makes the numbers more
        equal.
        """
        is_improving = True
        while is_improving:
            is_improving = False
            for source in sorted(self.counts, key=lambda broker: (-self.counts[broker], broker)):
                for target in sorted(self.counts, key=lambda broker: (self.counts[broker], broker)):
                    if self.counts[source] - self.counts[target] < 2:
                        break
                    is_improving = self._move_many(source, target) or is_improving

    def _move_many(self, source: int, target: int) -> bool:
        """Move replicas until the two brokers have about the same number. Return whether a replica was moved."""
        has_moved = False
        for index, replicas in enumerate(self.replicas):
            if self.counts[source] - self.counts[target] < 2:
                break
            if source not in replicas or target in replicas:
                continue
            moved = [target if broker == source else broker for broker in replicas]
            if self.racks_used(moved) >= self.racks_used(replicas):
                self.move(index, source, target)
                has_moved = True
        return has_moved

    def balance_leaders(self) -> None:
        """Reorder replicas, so that every broker is the preferred leader of about the same number of partitions."""
        leads = dict.fromkeys(self.counts, 0)
        for replicas in self.replicas:
            leads[replicas[0]] += 1
        is_improving = True
        while is_improving:
            is_improving = False
            for replicas in self.replicas:
                first = replicas[0]
                best = min(replicas, key=lambda broker: (leads[broker], broker))
                if leads[first] - leads[best] >= 2:
                    replicas.remove(best)
                    replicas.insert(0, best)
                    leads[first] -= 1
                    leads[best] += 1
                    is_improving = True


def plan_moves(
    partitions: Sequence[PartitionReplicas],
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    replicas: int | None = None,
    *,
    balance: bool = True,
) -> list[PlannedMove]:
    """Return the moves after which all replicas are on `brokers`.

    `replicas` is the new number of replicas of every partition. If it is None, no partition's number of replicas
    changes. Without `balance`, only replicas that are not on `brokers` move. Raises CommandError if there are fewer
    brokers than a partition needs.
    """
    for part in partitions:
        if (replicas or len(part.replicas)) > len(brokers):
            raise CommandError(
                f"partition {part} needs {replicas or len(part.replicas)} brokers for its replicas, and only "
                f"{len(brokers)} may be used ({', '.join(map(str, brokers))}); --replicas N lowers the number of "
                "replicas"
            )
    current_replicas = []
    for part in partitions:
        allowed = [broker for broker in part.replicas if broker in brokers]
        current_replicas.append(allowed if replicas is None else allowed[:replicas])
    placement = _Placement(current_replicas, brokers, racks)
    for index, part in enumerate(partitions):
        placement.fill(index, replicas or len(part.replicas))
    if balance:
        placement.balance()
        placement.balance_leaders()
    return _changes(partitions, placement)


def _changes(partitions: Sequence[PartitionReplicas], placement: _Placement) -> list[PlannedMove]:
    return [
        PlannedMove(part.topic, part.partition, part.replicas, after)
        for part, after in zip(partitions, placement.replicas, strict=True)
        if after != part.replicas
    ]


def plan_drain(
    partitions: Sequence[PartitionReplicas], broker: int, others: Sequence[int], racks: Mapping[int, str | None]
) -> list[PlannedMove]:
    """Return the moves that replace `broker` by one of the `others`. All other replicas remain on their brokers.

    `partitions` are all partitions of the cluster. Raises CommandError if there are too few other brokers.
    """
    for part in partitions:
        if broker in part.replicas and not set(others) - set(part.replicas):
            raise CommandError(
                f"broker {broker} cannot be emptied: no other active broker is free for its replica of {part}, which "
                f"has the replicas {', '.join(map(str, part.replicas))}. Add a broker first, or lower the number of "
                "replicas with tidelog cluster reassign --replicas N"
            )
    placement = _Placement([[b for b in part.replicas if b != broker] for part in partitions], others, racks)
    for index, part in enumerate(partitions):
        if broker not in part.replicas:
            continue
        placement.fill(index, len(part.replicas))
        # The new broker gets the old broker's position in the list, so it may become the preferred leader.
        replicas = placement.replicas[index]
        replicas.insert(part.replicas.index(broker), replicas.pop())
    return _changes(partitions, placement)


def lead_elsewhere(partitions: Sequence[PartitionReplicas], broker: int) -> list[PlannedMove]:
    """For each partition whose preferred leader is `broker`, return a move that makes `broker` the last one in the list
    of replicas.

    No data moves. Partitions with one replica are omitted.
    """
    moves = []
    for part in partitions:
        if part.replicas[:1] == [broker] and len(part.replicas) > 1:
            moves.append(PlannedMove(part.topic, part.partition, part.replicas, [*part.replicas[1:], broker]))
    return moves


def plan_document(moves: Iterable[PlannedMove], *, before: bool = False) -> dict[str, Any]:
    """Return the plan in the format of kafka-reassign-partitions; with `before`, the plan that would undo it."""
    return {
        "version": KAFKA_VERSION,
        "partitions": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "replicas": move.before if before else move.after,
            }
            for move in moves
        ],
    }


def moves_from_document(document: Any, partitions: Sequence[PartitionReplicas]) -> list[PlannedMove]:
    """Return a move for each partition whose replicas in the plan differ from its current replicas. Raises UsageError
    for a malformed plan, and for a plan that names log directories, because Tidelog does not support them in a plan.
    Raises CommandError for a partition that does not exist.
    """
    current = {(part.topic, part.partition): part.replicas for part in partitions}
    try:
        if document["version"] != KAFKA_VERSION:
            raise UsageError(f"the plan has version {document['version']!r}, not {KAFKA_VERSION}")
        entries = [entry_of_plan(entry) for entry in document["partitions"]]
    except (KeyError, TypeError) as error:
        raise UsageError(
            'the plan is not of the form {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": '
            f"[1, 2, 3]}}]}}: {type(error).__name__} {error}"
        ) from None
    counts = Counter((topic, partition) for topic, partition, _ in entries)
    moves = []
    for topic, partition, replicas in entries:
        if counts[topic, partition] > 1:
            raise UsageError(f"the plan contains {topic}-{partition} {counts[topic, partition]} times")
        if (topic, partition) not in current:
            raise CommandError(
                f"there is no partition {topic}-{partition}; tidelog topic describe shows the partitions"
            )
        if current[topic, partition] != replicas:
            moves.append(PlannedMove(topic, partition, current[topic, partition], replicas))
    return moves


def entry_of_plan(entry: Any) -> tuple[str, int, list[int]]:
    """Return the topic, the partition and the replicas of an entry of a plan. Raises KeyError or TypeError for a
    malformed entry, and UsageError for replicas that no partition can have and for names of log directories.
    """
    topic, partition, replicas = entry["topic"], entry["partition"], entry["replicas"]
    if not isinstance(topic, str) or not _is_number(partition) or not isinstance(replicas, list):
        raise TypeError(f"in {json.dumps(entry)}")
    if not replicas or not all(map(_is_number, replicas)) or len(set(replicas)) != len(replicas):
        raise UsageError(
            f"the plan for {topic}-{partition} must list the numbers of one or more different brokers, not"
            f" {json.dumps(replicas)}"
        )
    # Kafka's tool writes "any" for each replica. If a plan has a path instead, the tool moves the replica there.
    if any(directory != "any" for directory in entry.get("log_dirs") or ()):
        raise UsageError(
            f"the plan for {topic}-{partition} has log_dirs, which are not supported: remove them, and use tidelog log"
            " dirs --move after the moves"
        )
    return topic, partition, replicas


def _is_number(value: object) -> bool:
    """Return whether a JSON value is a number that can identify a broker or a partition. `true` is not a number."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
