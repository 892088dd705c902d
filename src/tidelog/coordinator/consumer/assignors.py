"""The server-side assignors `uniform` and `range` (KIP-848).

Both move as few partitions between members as possible. As in Kafka, neither considers racks.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tidelog.coordinator.consumer.member import Target


class AssigningMember(NamedTuple):
    """The information about one member that an assignor uses."""

    topic_ids: frozenset[bytes]
    """Ids of the existing topics that the member subscribes to. Members with equal subscriptions may share one object.
    """
    target: Target
    """The member's previous target assignment."""
    order: str
    """Sort key of the member: its group instance id, which does not change when it restarts, or else its member id."""


Members = Mapping[str, AssigningMember]
Counts = Mapping[bytes, int]
"""Number of partitions by topic id, for all topics that any member subscribes to."""
Assignor = Callable[[Members, Counts], dict[str, Target]]


def assign_uniform(members: Members, counts: Counts) -> dict[str, Target]:
    """Assign partitions so that the members' numbers of partitions differ by at most one.

    That may be impossible if the members subscribe to different topics. In this case, the result is an assignment that
    no move of a single partition between two members can make more even.
    """
    if not members:
        return {}
    first = next(iter(members.values())).topic_ids
    if all(member.topic_ids is first or member.topic_ids == first for member in members.values()):
        return _assign_evenly(members, counts, first)
    return _UnevenAssignment(members, counts).assign()


def assign_range(members: Members, counts: Counts) -> dict[str, Target]:
    """Split each topic's partitions into one range for each of its subscribers.

    Topics with the same subscribers and the same number of partitions are split in the same way, so that
    the partitions with the same number in all these topics are assigned to one member.
    """
    readers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
    for member_id in _sorted_member_ids(members):
        for topic_id in members[member_id].topic_ids:
            readers[topic_id].append(member_id)
    equal_topics: dict[tuple[tuple[str, ...], int], list[bytes]] = {}
    for topic_id, member_ids in readers.items():
        if member_ids:
            equal_topics.setdefault((tuple(member_ids), counts[topic_id]), []).append(topic_id)
    targets: dict[str, Target] = {member_id: {} for member_id in members}
    for (sharing, count), topic_ids in equal_topics.items():
        before = [members[member_id].target.get(topic_ids[0], ()) for member_id in sharing]
        for member_id, partitions in zip(sharing, _split(before, count), strict=True):
            if partitions:
                targets[member_id].update(dict.fromkeys(topic_ids, partitions))
    return {member_id: _reuse_if_equal(target, members[member_id].target) for member_id, target in targets.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _sorted_member_ids(members: Members) -> list[str]:
    return sorted(members, key=lambda member_id: members[member_id].order)


def _reuse_if_equal(target: Target, before: Target) -> Target:
    """Return the object `before` if it equals the target. The caller then writes no record for the member."""
    return before if target == before else target


def _quotas(held: Sequence[int], count: int) -> list[int]:
    """Return how many of the `count` partitions each member gets. `held` contains how many each member has now.

    If `count` is not divisible by the number of members, some members get one partition more. Members that have more
    than the minimum now are preferred.
    """
    minimum, remainder = divmod(count, len(held))
    quotas = [minimum] * len(held)
    # The sort is stable: members with the same key remain in the order of their index.
    by_preference = sorted(range(len(held)), key=lambda index: held[index] <= minimum)
    for index in by_preference[:remainder]:
        quotas[index] += 1
    return quotas


def _split(before: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Split the partitions 0 to `count` - 1 among the members. Each member retains as many of its previous partitions
    as its quota allows.
    """
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


def _assign_evenly(members: Members, counts: Counts, topic_ids: frozenset[bytes]) -> dict[str, Target]:
    order = _sorted_member_ids(members)
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
        targets[member_id] = _reuse_if_equal(_group_by_topic(partitions + gained), members[member_id].target)
    return targets


def _group_by_topic(partitions: list[tuple[bytes, int]]) -> Target:
    target: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        target.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(numbers) for topic_id, numbers in target.items()}


class _UnevenAssignment:
    """The assignor `uniform` for members with different subscriptions.

    First, members retain their partitions. Second, the members with the fewest partitions get the free partitions.
    Third, single partitions are moved from members with more partitions to members with fewer.
    """

    def __init__(self, members: Members, counts: Counts) -> None:
        self._members = members
        self._counts = counts
        self._order = {member_id: place for place, member_id in enumerate(_sorted_member_ids(members))}
        self._load = dict.fromkeys(self._order, 0)
        self._readers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
        self._held: dict[bytes, dict[str, list[int]]] = {topic_id: {} for topic_id in self._readers}
        """The partitions assigned so far, by topic id and member id."""
        for member_id in self._order:
            for topic_id in members[member_id].topic_ids:
                self._readers[topic_id].append(member_id)

    def assign(self) -> dict[str, Target]:
        # Topics with few subscribers are assigned first. The topics with many subscribers can then even out the
        # remaining differences.
        topics = sorted((t for t, readers in self._readers.items() if readers), key=lambda t: len(self._readers[t]))
        free = {topic_id: self._keep_current(topic_id) for topic_id in topics}
        for topic_id in topics:
            self._assign_free(topic_id, free[topic_id])
        # Each move makes the loads of two members more equal, so the loop ends.
        moved = True
        while moved:
            moved = False
            for topic_id in topics:
                moved |= self._balance(topic_id)
        targets: dict[str, Target] = {member_id: {} for member_id in self._members}
        for topic_id, held in self._held.items():
            for member_id, partitions in held.items():
                if partitions:
                    targets[member_id][topic_id] = tuple(sorted(partitions))
        return {
            member_id: _reuse_if_equal(target, self._members[member_id].target) for member_id, target in targets.items()
        }

    def _keep_current(self, topic_id: bytes) -> list[int]:
        """Assign the topic's partitions to the members that had them. Return the partitions that no member had."""
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

    def _assign_free(self, topic_id: bytes, free: list[int]) -> None:
        heap = self._heap(self._readers[topic_id])
        for partition in free:
            load, place, member_id = heappop(heap)
            self._held[topic_id].setdefault(member_id, []).append(partition)
            self._load[member_id] = load + 1
            heappush(heap, (load + 1, place, member_id))

    def _balance(self, topic_id: bytes) -> bool:
        """Move partitions of one topic from its most loaded to its least loaded subscribers. Return whether a partition
        was moved.
        """
        least_loaded = self._heap(self._readers[topic_id])
        most_loaded = [
            (-load, place, member_id) for load, place, member_id in least_loaded if self._held[topic_id].get(member_id)
        ]
        heapify(most_loaded)
        moved = False
        while most_loaded:
            minus_load, giving_place, giver = heappop(most_loaded)
            if -minus_load != self._load[giver] or not self._held[topic_id].get(giver):
                continue
            while least_loaded[0][0] != self._load[least_loaded[0][2]]:  # skip entries whose load has changed since
                heappop(least_loaded)
            load, taking_place, taker = least_loaded[0]
            if self._load[giver] - load < 2:
                break
            self._held[topic_id].setdefault(taker, []).append(self._held[topic_id][giver].pop())
            moved = True
            self._load[giver] -= 1
            self._load[taker] += 1
            for place, member_id in ((giving_place, giver), (taking_place, taker)):
                heappush(least_loaded, (self._load[member_id], place, member_id))
                heappush(most_loaded, (-self._load[member_id], place, member_id))
        return moved
