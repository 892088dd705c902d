"""The server-side assignors `uniform` and `range` (KIP-848).

Both try to leave partitions with the members that had them. As in Kafka, neither considers racks.
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
    """Sort key of the member: the group instance id, or the member id if the member has no instance id. An instance id
    does not change when the member restarts."""


Members = Mapping[str, AssigningMember]
Counts = Mapping[bytes, int]
"""Number of partitions by topic id, for all topics that any member subscribes to."""
Assignor = Callable[[Members, Counts], dict[str, Target]]


def assign_uniform(members: Members, counts: Counts) -> dict[str, Target]:
    """Assign partitions so that the members' numbers of partitions differ by at most one.

    If the members subscribe to different topics, there may be no such assignment. In this case, no move of a
    single partition to another member would make the result more even.
    """
    if not members:
        return {}
    first = next(iter(members.values())).topic_ids
    if all(member.topic_ids is first or member.topic_ids == first for member in members.values()):
        return _assign_evenly(members, counts, first)
    return _UnevenAssignment(members, counts).assign()


def assign_range(members: Members, counts: Counts) -> dict[str, Target]:
    """Split each topic's partitions among its subscribers. If no subscriber had partitions of the topic before, each
    one gets one range of partitions.

    Topics with the same subscribers and the same number of partitions are split in the same way. Therefore a
    member gets the same partition indexes in all these topics.
    """
    subscribers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
    for member_id in _sorted_member_ids(members):
        for topic_id in members[member_id].topic_ids:
            subscribers[topic_id].append(member_id)
    equal_topics: dict[tuple[tuple[str, ...], int], list[bytes]] = {}
    for topic_id, member_ids in subscribers.items():
        if member_ids:
            equal_topics.setdefault((tuple(member_ids), counts[topic_id]), []).append(topic_id)
    targets: dict[str, Target] = {member_id: {} for member_id in members}
    for (subscriber_ids, count), topic_ids in equal_topics.items():
        before = [members[member_id].target.get(topic_ids[0], ()) for member_id in subscriber_ids]
        for member_id, partitions in zip(subscriber_ids, _split(before, count), strict=True):
            if partitions:
                targets[member_id].update(dict.fromkeys(topic_ids, partitions))
    return {member_id: _reuse_if_equal(target, members[member_id].target) for member_id, target in targets.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _sorted_member_ids(members: Members) -> list[str]:
    return sorted(members, key=lambda member_id: members[member_id].order)


def _reuse_if_equal(target: Target, before: Target) -> Target:
    """Return `before` instead of an equal `target`. The caller of the assignor writes no record for a member whose
    target is the same object as before.
    """
    return before if target == before else target


def _quotas(current_counts: Sequence[int], count: int) -> list[int]:
    """Return how many of the `count` partitions each member gets. `current_counts` says how many each member has now.

    If `count` is not divisible by the number of members, some members get one partition more than the others. Members
    that now have more partitions than the smaller quota are preferred for the larger one.
    """
    minimum, remainder = divmod(count, len(current_counts))
    quotas = [minimum] * len(current_counts)
    # The sort is stable: members with the same key remain in the order of their index.
    by_preference = sorted(range(len(current_counts)), key=lambda index: current_counts[index] <= minimum)
    for index in by_preference[:remainder]:
        quotas[index] += 1
    return quotas


def _split(previous: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Split the partitions 0 to `count` - 1 among the members. Each member retains as many of its previous partitions
    as its quota allows.
    """
    existing = [[partition for partition in partitions if partition < count] for partitions in previous]
    quotas = _quotas([len(partitions) for partitions in existing], count)
    retained = [sorted(partitions)[:quota] for partitions, quota in zip(existing, quotas, strict=True)]
    retained_partitions = {partition for partitions in retained for partition in partitions}
    free = iter([partition for partition in range(count) if partition not in retained_partitions])
    pieces = []
    for partitions, quota in zip(retained, quotas, strict=True):
        added = [next(free) for _ in range(quota - len(partitions))]
        pieces.append(tuple(sorted(partitions + added)))
    return pieces


def _assign_evenly(members: Members, counts: Counts, topic_ids: frozenset[bytes]) -> dict[str, Target]:
    """Assign the partitions of the topics `topic_ids`, to which all members subscribe."""
    member_ids = _sorted_member_ids(members)
    topics = sorted(topic_ids)
    assigned: list[list[tuple[bytes, int]]] = []  # in the order of `member_ids`
    for member_id in member_ids:
        target = members[member_id].target
        assigned.append([(topic, p) for topic in topics for p in target.get(topic, ()) if p < counts[topic]])
    quotas = _quotas([len(partitions) for partitions in assigned], sum(counts[topic] for topic in topics))
    retained_partitions: set[tuple[bytes, int]] = set()
    for partitions, quota in zip(assigned, quotas, strict=True):
        del partitions[quota:]
        retained_partitions.update(partitions)
    free = iter([(topic, p) for topic in topics for p in range(counts[topic]) if (topic, p) not in retained_partitions])
    targets = {}
    for member_id, partitions, quota in zip(member_ids, assigned, quotas, strict=True):
        added = [next(free) for _ in range(quota - len(partitions))]
        targets[member_id] = _reuse_if_equal(_group_by_topic(partitions + added), members[member_id].target)
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
        self._order = {member_id: order for order, member_id in enumerate(_sorted_member_ids(members))}
        self._partition_counts = dict.fromkeys(self._order, 0)
        """Number of partitions assigned to each member so far."""
        self._subscribers: dict[bytes, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
        self._assigned: dict[bytes, dict[str, list[int]]] = {topic_id: {} for topic_id in self._subscribers}
        """The partitions assigned so far, by topic id and member id."""
        for member_id in self._order:
            for topic_id in members[member_id].topic_ids:
                self._subscribers[topic_id].append(member_id)

    def assign(self) -> dict[str, Target]:
        # Topics with few subscribers are assigned first. After that, the topics with many subscribers can balance
        # the remaining differences.
        topics = sorted(
            (t for t, subscribers in self._subscribers.items() if subscribers), key=lambda t: len(self._subscribers[t])
        )
        free = {topic_id: self._retain_current(topic_id) for topic_id in topics}
        for topic_id in topics:
            self._assign_free(topic_id, free[topic_id])
        # Each move makes the numbers of partitions of two members more equal, so the loop ends.
        moved = True
        while moved:
            moved = False
            for topic_id in topics:
                moved |= self._balance(topic_id)
        targets: dict[str, Target] = {member_id: {} for member_id in self._members}
        for topic_id, assigned in self._assigned.items():
            for member_id, partitions in assigned.items():
                if partitions:
                    targets[member_id][topic_id] = tuple(sorted(partitions))
        return {
            member_id: _reuse_if_equal(target, self._members[member_id].target) for member_id, target in targets.items()
        }

    def _retain_current(self, topic_id: bytes) -> list[int]:
        """Assign the topic's partitions to the subscribers that had them. Return the remaining partitions."""
        count = self._counts[topic_id]
        retained_partitions: set[int] = set()
        for member_id in self._subscribers[topic_id]:
            previous = self._members[member_id].target.get(topic_id, ())
            retained = [
                partition for partition in previous if partition < count and partition not in retained_partitions
            ]
            if retained:
                self._assigned[topic_id][member_id] = retained
                self._partition_counts[member_id] += len(retained)
                retained_partitions.update(retained)
        return [partition for partition in range(count) if partition not in retained_partitions]

    def _heap(self, member_ids: list[str]) -> list[tuple[int, int, str]]:
        heap = [(self._partition_counts[member_id], self._order[member_id], member_id) for member_id in member_ids]
        heapify(heap)
        return heap

    def _assign_free(self, topic_id: bytes, free: list[int]) -> None:
        heap = self._heap(self._subscribers[topic_id])
        for partition in free:
            partition_count, order, member_id = heappop(heap)
            self._assigned[topic_id].setdefault(member_id, []).append(partition)
            self._partition_counts[member_id] = partition_count + 1
            heappush(heap, (partition_count + 1, order, member_id))

    def _balance(self, topic_id: bytes) -> bool:
        """Move partitions of one topic from its most loaded to its least loaded subscribers. Return whether a partition
        was moved.
        """
        least_loaded = self._heap(self._subscribers[topic_id])
        most_loaded = [
            (-partition_count, order, member_id)
            for partition_count, order, member_id in least_loaded
            if self._assigned[topic_id].get(member_id)
        ]
        heapify(most_loaded)
        moved = False
        while most_loaded:
            negative_count, source_order, source = heappop(most_loaded)
            # Skip entries that contain an old number of partitions, and members without partitions of this topic.
            if -negative_count != self._partition_counts[source] or not self._assigned[topic_id].get(source):
                continue
            while least_loaded[0][0] != self._partition_counts[least_loaded[0][2]]:
                heappop(least_loaded)
            partition_count, destination_order, destination = least_loaded[0]
            if self._partition_counts[source] - partition_count < 2:
                break
            self._assigned[topic_id].setdefault(destination, []).append(self._assigned[topic_id][source].pop())
            moved = True
            self._partition_counts[source] -= 1
            self._partition_counts[destination] += 1
            for order, member_id in ((source_order, source), (destination_order, destination)):
                heappush(least_loaded, (self._partition_counts[member_id], order, member_id))
                heappush(most_loaded, (-self._partition_counts[member_id], order, member_id))
        return moved
