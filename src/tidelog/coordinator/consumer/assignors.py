"""The assignors that run on the broker: `uniform` and `range` (KIP-848). Both move only what must move.

Neither looks at racks, as in Kafka: a partition's replicas have no place of their own yet.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tidelog.coordinator.consumer.member import Target


class AssigningMember(NamedTuple):
    """What an assignor knows of one member."""

    topic_ids: frozenset[bytes]
    """Topics that it reads and that exist. Members with the same subscription share one set."""
    target: Target
    """What it was to have until now."""
    order: str
    """Members are looked at in this order: the group instance id, which outlives a restart, or the member id."""


Members = Mapping[str, AssigningMember]
Counts = Mapping[bytes, int]
"""Topic id -> partitions, of all topics that anybody reads."""
Assignor = Callable[[Members, Counts], dict[str, Target]]


def uniform(members: Members, counts: Counts) -> dict[str, Target]:
    """Everybody has as many partitions as the others, or one more. Where members read different topics: as evenly as
    moving single partitions between two members makes it."""
    if not members:
        return {}
    first = next(iter(members.values())).topic_ids
    if all(member.topic_ids is first or member.topic_ids == first for member in members.values()):
        return _uniform_alike(members, counts, first)
    return _Uneven(members, counts).assign()


def assign_range(members: Members, counts: Counts) -> dict[str, Target]:
    """Each topic is cut in as many pieces as it has readers. Topics with the same readers and number of partitions are
    cut alike, so that equal partitions of topics that belong together go to one member."""
    readers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
    for member_id in _in_order(members):
        for topic_id in members[member_id].topic_ids:
            readers[topic_id].append(member_id)
    alike: dict[tuple[tuple[str, ...], int], list[bytes]] = {}
    for topic_id, member_ids in readers.items():
        if member_ids:
            alike.setdefault((tuple(member_ids), counts[topic_id]), []).append(topic_id)
    targets: dict[str, Target] = {member_id: {} for member_id in members}
    for (sharing, count), topic_ids in alike.items():
        before = [members[member_id].target.get(topic_ids[0], ()) for member_id in sharing]
        for member_id, partitions in zip(sharing, _cut(before, count), strict=True):
            if partitions:
                targets[member_id].update(dict.fromkeys(topic_ids, partitions))
    return {member_id: _unchanged(target, members[member_id].target) for member_id, target in targets.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": assign_range}


def _in_order(members: Members) -> list[str]:
    return sorted(members, key=lambda member_id: members[member_id].order)


def _unchanged(target: Target, before: Target) -> Target:
    """The same object where nothing changed, so that no record is written."""
    return before if target == before else target


def _quotas(held: Sequence[int], count: int) -> list[int]:
    """How many each may have of `count`: those who have more than the least keep one more, as far as that goes."""
    least, more = divmod(count, len(held))
    quotas = [least] * len(held)
    by_need = sorted(range(len(held)), key=lambda place: held[place] <= least)  # stable: else by place
    for place in by_need[:more]:
        quotas[place] += 1
    return quotas


def _cut(before: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Partitions 0 to `count` in pieces, each as near to the one before as its size allows."""
    existing = [[partition for partition in held if partition < count] for held in before]
    quotas = _quotas([len(held) for held in existing], count)
    kept = [sorted(held)[:quota] for held, quota in zip(existing, quotas, strict=True)]
    taken = {partition for held in kept for partition in held}
    free = iter([partition for partition in range(count) if partition not in taken])
    pieces = []
    for held, quota in zip(kept, quotas, strict=True):
        gained = [next(free) for _ in range(quota - len(held))]
        pieces.append(tuple(sorted(held + gained)))
    return pieces


def _uniform_alike(members: Members, counts: Counts, topic_ids: frozenset[bytes]) -> dict[str, Target]:
    order = _in_order(members)
    topics = sorted(topic_ids)
    held: list[list[tuple[bytes, int]]] = []
    for member_id in order:
        target = members[member_id].target
        held.append([(topic, p) for topic in topics for p in target.get(topic, ()) if p < counts[topic]])
    quotas = _quotas([len(partitions) for partitions in held], sum(counts[topic] for topic in topics))
    taken: set[tuple[bytes, int]] = set()
    for partitions, quota in zip(held, quotas, strict=True):
        del partitions[quota:]
        taken.update(partitions)
    free = iter([(topic, p) for topic in topics for p in range(counts[topic]) if (topic, p) not in taken])
    targets = {}
    for member_id, partitions, quota in zip(order, held, quotas, strict=True):
        gained = [next(free) for _ in range(quota - len(partitions))]
        targets[member_id] = _unchanged(_grouped(partitions + gained), members[member_id].target)
    return targets


def _grouped(partitions: list[tuple[bytes, int]]) -> Target:
    target: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        target.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(numbers) for topic_id, numbers in target.items()}


class _Uneven:
    """`uniform` for members that read different topics: keep, fill up the least loaded, then move single partitions."""

    def __init__(self, members: Members, counts: Counts) -> None:
        self._members = members
        self._counts = counts
        self._order = {member_id: place for place, member_id in enumerate(_in_order(members))}
        self._load = dict.fromkeys(self._order, 0)
        self._readers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
        self._held: dict[bytes, dict[str, list[int]]] = {topic_id: {} for topic_id in self._readers}
        """Topic id -> member id -> partitions."""
        for member_id in self._order:
            for topic_id in members[member_id].topic_ids:
                self._readers[topic_id].append(member_id)

    def assign(self) -> dict[str, Target]:
        # Topics with few readers first: those with many can even out what they leave.
        topics = sorted((t for t, readers in self._readers.items() if readers), key=lambda t: len(self._readers[t]))
        free = {topic_id: self._keep(topic_id) for topic_id in topics}
        for topic_id in topics:
            self._fill(topic_id, free[topic_id])
        # Each move makes the loads of two members more alike, so that this ends.
        moved = True
        while moved:
            moved = False
            for topic_id in topics:
                moved |= self._level(topic_id)
        targets: dict[str, Target] = {member_id: {} for member_id in self._members}
        for topic_id, held in self._held.items():
            for member_id, partitions in held.items():
                if partitions:
                    targets[member_id][topic_id] = tuple(sorted(partitions))
        return {member_id: _unchanged(target, self._members[member_id].target) for member_id, target in targets.items()}

    def _keep(self, topic_id: bytes) -> list[int]:
        """Returns the partitions that nobody had."""
        count = self._counts[topic_id]
        taken: set[int] = set()
        for member_id in self._readers[topic_id]:
            had = self._members[member_id].target.get(topic_id, ())
            kept = [partition for partition in had if partition < count and partition not in taken]
            if kept:
                self._held[topic_id][member_id] = kept
                self._load[member_id] += len(kept)
                taken.update(kept)
        return [partition for partition in range(count) if partition not in taken]

    def _heap(self, member_ids: list[str]) -> list[tuple[int, int, str]]:
        heap = [(self._load[member_id], self._order[member_id], member_id) for member_id in member_ids]
        heapify(heap)
        return heap

    def _fill(self, topic_id: bytes, free: list[int]) -> None:
        heap = self._heap(self._readers[topic_id])
        for partition in free:
            load, place, member_id = heappop(heap)
            self._held[topic_id].setdefault(member_id, []).append(partition)
            self._load[member_id] = load + 1
            heappush(heap, (load + 1, place, member_id))

    def _level(self, topic_id: bytes) -> bool:
        """Move partitions of the topic from the most to the least loaded of its readers. False if none had to move."""
        least = self._heap(self._readers[topic_id])
        most = [(-load, place, member_id) for load, place, member_id in least if self._held[topic_id].get(member_id)]
        heapify(most)
        moved = False
        while most:
            minus_load, giving_place, giver = heappop(most)
            if -minus_load != self._load[giver] or not self._held[topic_id].get(giver):
                continue
            while least[0][0] != self._load[least[0][2]]:  # entries of loads that have changed since
                heappop(least)
            load, taking_place, taker = least[0]
            if self._load[giver] - load < 2:
                break
            self._held[topic_id].setdefault(taker, []).append(self._held[topic_id][giver].pop())
            moved = True
            self._load[giver] -= 1
            self._load[taker] += 1
            for place, member_id in ((giving_place, giver), (taking_place, taker)):
                heappush(least, (self._load[member_id], place, member_id))
                heappush(most, (-self._load[member_id], place, member_id))
        return moved
