"""The state of one consumer group as its records describe it, and values that are derived from this state. Only
`replay` changes the state and these values.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tidelog.coordinator.consumer.member import Member, Target, member_tombstones, target_of, target_record
from tidelog.coordinator.consumer.records import (
    CURRENT_ASSIGNMENT,
    GROUP_METADATA,
    MEMBER_METADATA,
    PARTITION_METADATA,
    REGULAR_EXPRESSION,
    TARGET_MEMBER,
    TARGET_METADATA,
    ConsumerRecord,
)
from tidelog.coordinator.group.members import protocols_to_vote_for
from tidelog.wire.messages.group_records import (
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)

PROTOCOL_TYPE = "consumer"
FIRST_EPOCH = 1
"""The epoch of a group for which no record states an epoch."""
MEMBER_OVERHEAD_BYTES = 1000
"""Estimated memory of one member apart from its subscription, in bytes."""
TOPIC_OVERHEAD_BYTES = 60
"""Estimated memory of one topic in a member's subscription, apart from the topic's name, in bytes."""


class ConsumerGroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MatchedTopics(NamedTuple):
    """The result of a search: the topics that match a regular expression."""

    topics: tuple[str, ...]
    """Topic names, sorted."""
    version: int
    """The position of the metadata image at the end of the search."""
    time_ms: int
    """Wall-clock time of the end of the search, in milliseconds."""


class ConsumerGroup:
    """One consumer group. The time to replay a record does not depend on the number of members.

    When a group is loaded, its records are not replayed in the order in which they were written. Therefore the order
    of records with different keys must not matter.
    """

    __slots__ = (
        "_replay_by_kind",
        "assignors",
        "classic_count",
        "classic_protocols",
        "epoch",
        "group_id",
        "has_epoch",
        "has_partition_metadata",
        "members",
        "metadata_hash",
        "owners",
        "patterns",
        "resolved",
        "static_ids",
        "subscriptions_bytes",
        "target_epoch",
        "target_time_ms",
        "targets",
        "topics",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.has_epoch = False
        """Whether a record states the epoch."""
        self.metadata_hash = 0
        """Hash of the subscribed topics when the epoch began; see the function `metadata_hash` in the module
        `topics`."""
        self.target_epoch = 0
        """The epoch in which `targets` was computed; 0 if `targets` was never computed."""
        self.target_time_ms = 0
        """Wall-clock time at which `targets` was computed, in milliseconds."""
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        """Target assignment by member id. A member that is missing here has an empty target assignment."""
        self.resolved: dict[str, MatchedTopics] = {}
        """Topics that match each regular expression. An expression is missing until its topics have been searched."""
        self.has_partition_metadata = False
        """Whether the log has a record of the kind PARTITION_METADATA. Old versions of Kafka wrote such records. If
        there is one, this broker writes a tombstone for it."""
        self.static_ids: dict[str, str] = {}
        """Member id by group instance id."""
        self.owners: dict[bytes, dict[int, str]] = {}
        """For each partition, by topic id and partition index: the id of the member that has the partition or must give
        it up."""
        self.topics: dict[str, int] = {}
        """Number of members that subscribe to each topic name."""
        self.patterns: dict[str, int] = {}
        """Number of members that subscribe to each regular expression."""
        self.assignors: dict[str, int] = {}
        """Number of members that prefer each assignor."""
        self.classic_protocols: dict[str, int] = {}
        """Number of classic members that support each protocol."""
        self.classic_count = 0
        """Number of members that speak the classic protocol."""
        self.subscriptions_bytes = 0
        """Estimated memory of the members and their subscriptions, in bytes."""
        self._replay_by_kind: dict[int, Callable[[ConsumerRecord], None]] = {
            GROUP_METADATA: self._replay_group,
            PARTITION_METADATA: self._replay_partition_metadata,
            MEMBER_METADATA: self._replay_member,
            TARGET_METADATA: self._replay_target_metadata,
            TARGET_MEMBER: self._replay_target,
            CURRENT_ASSIGNMENT: self._replay_assignment,
            REGULAR_EXPRESSION: self._replay_expression,
        }

    # Queries

    @property
    def state(self) -> ConsumerGroupState:
        """Kafka's state of the group. Takes time proportional to the number of members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_settled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_blank(self) -> bool:
        """Whether the group has no records any more, apart from committed offsets."""
        return not (
            self.has_epoch
            or self.has_partition_metadata
            or self.members
            or self.targets
            or self.resolved
            or self.target_epoch
        )

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Return the id of the member that has the partition or must give it up; None if no member has it."""
        partitions = self.owners.get(topic_id)
        return None if partitions is None else partitions.get(partition)

    def subscribed_topics(self) -> dict[str, None]:
        """Return the names of all topics that any member subscribes to, including topics that do not exist. For a
        regular expression, these are the topics that its last search matched.
        """
        names = dict.fromkeys(self.topics)
        for pattern in self.patterns:
            if (resolved := self.resolved.get(pattern)) is not None:
                names.update(dict.fromkeys(resolved.topics))
        return names

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that the largest number of members prefers; `default` if no member prefers one."""
        return max(self.assignors, key=self.assignors.__getitem__) if self.assignors else default

    # Records

    def epoch_record(self, epoch: int, metadata_hash: int) -> ConsumerRecord:
        return ConsumerRecord(GROUP_METADATA, self.group_id, "", ConsumerGroupMetadataValue(epoch, metadata_hash))

    def target_metadata_record(self, epoch: int, time_ms: int) -> ConsumerRecord:
        value = ConsumerGroupTargetAssignmentMetadataValue(epoch, time_ms)
        return ConsumerRecord(TARGET_METADATA, self.group_id, "", value)

    def expression_record(self, pattern: str, resolved: MatchedTopics | None) -> ConsumerRecord:
        value = None
        if resolved is not None:
            value = ConsumerGroupRegularExpressionValue(list(resolved.topics), resolved.version, resolved.time_ms)
        return ConsumerRecord(REGULAR_EXPRESSION, self.group_id, pattern, value)

    def records_of_upgrade(self) -> list[ConsumerRecord]:
        """Return the records that create the group when it is converted from a classic group, in Kafka's order.

        A classic group has no regular expressions, so the list has no records of regular expressions.
        """
        group_id = self.group_id
        return [
            *(member.metadata_record(group_id) for member in self.members.values()),
            self.epoch_record(self.epoch, self.metadata_hash),
            *(target_record(group_id, member_id, self.targets.get(member_id, {})) for member_id in self.members),
            self.target_metadata_record(self.target_epoch, self.target_time_ms),
            *(member.assignment_record(group_id) for member in self.members.values()),
        ]

    def tombstones(self) -> list[ConsumerRecord]:
        """Return tombstones for all records of the group except its offsets, in Kafka's order."""
        group_id = self.group_id
        by_member = [member_tombstones(group_id, member_id) for member_id in self.members]
        # Kafka deletes only groups without members, and then always writes the tombstone of PARTITION_METADATA. When
        # Kafka converts a group with members, it writes this tombstone only if such a record exists.
        includes_partition_metadata = self.has_partition_metadata or not self.members
        kinds = [PARTITION_METADATA, GROUP_METADATA] if includes_partition_metadata else [GROUP_METADATA]
        return [
            *(record for records in by_member for record in records[:2]),
            ConsumerRecord(TARGET_METADATA, group_id, "", None),
            *(records[2] for records in by_member),  # the tombstones of the members' metadata
            *(self.expression_record(pattern, None) for pattern in self.resolved),
            *(ConsumerRecord(kind, group_id, "", None) for kind in kinds),
        ]

    # Replay

    def replay(self, record: ConsumerRecord) -> None:
        self._replay_by_kind[record.kind](record)

    def _replay_group(self, record: ConsumerRecord) -> None:
        value: ConsumerGroupMetadataValue | None = record.value
        self.has_epoch = value is not None
        self.epoch, self.metadata_hash = (FIRST_EPOCH, 0) if value is None else (value.epoch, value.metadata_hash)

    def _replay_partition_metadata(self, record: ConsumerRecord) -> None:
        self.has_partition_metadata = record.value is not None

    def _replay_member(self, record: ConsumerRecord) -> None:
        member = self.members.get(record.name)
        if record.value is not None:
            self._put(record.name, (member or Member(record.name)).with_metadata(record.value))
        elif member is not None:
            self._put(record.name, None)

    def _replay_assignment(self, record: ConsumerRecord) -> None:
        member = self.members.get(record.name)
        if record.value is not None:
            self._put(record.name, (member or Member(record.name)).with_assignment(record.value))
        elif member is not None:
            self._put(record.name, member.without_assignment())

    def _replay_target_metadata(self, record: ConsumerRecord) -> None:
        value: ConsumerGroupTargetAssignmentMetadataValue | None = record.value
        if value is None:
            self.target_epoch = self.target_time_ms = 0
        else:
            self.target_epoch, self.target_time_ms = value.assignment_epoch, value.assignment_timestamp

    def _replay_target(self, record: ConsumerRecord) -> None:
        if record.value is None:
            self.targets.pop(record.name, None)
        else:
            self.targets[record.name] = target_of(record.value)

    def _replay_expression(self, record: ConsumerRecord) -> None:
        value: ConsumerGroupRegularExpressionValue | None = record.value
        if value is None:
            self.resolved.pop(record.name, None)
        else:
            self.resolved[record.name] = MatchedTopics(tuple(value.topics), value.version, value.timestamp)

    # Members, and the maps and counts derived from them

    def _put(self, member_id: str, new: Member | None) -> None:
        old = self.members.get(member_id)
        if new is None:
            del self.members[member_id]
        else:
            self.members[member_id] = new
        if old is not None:
            self._remove_derived(old, new)
        if new is not None:
            self._add_derived(old, new)

    def _remove_derived(self, old: Member, new: Member | None) -> None:
        """Remove the instance id, the subscription and the partitions of `old` from the maps and counts, each one
        only if it is not the same in `new`.
        """
        instance_id = old.instance_id
        keeps_instance_id = new is not None and new.instance_id == instance_id
        if instance_id is not None and not keeps_instance_id and self.static_ids.get(instance_id) == old.member_id:
            del self.static_ids[instance_id]
        if new is None or not _same_subscription(old, new):
            self._count_subscription(old, -1)
        if new is None or old.owned is not new.owned or old.revoking is not new.revoking:
            for part in (old.owned, old.revoking):
                for topic_id, partitions in part.items():
                    self._release(topic_id, partitions, old.member_id)

    def _add_derived(self, old: Member | None, new: Member) -> None:
        """Add the instance id of `new` to the map of static members. Add the subscription and the partitions of
        `new` to the maps and counts, each one only if it is not the same in `old`.
        """
        if new.instance_id is not None:
            self.static_ids[new.instance_id] = new.member_id
        if old is None or not _same_subscription(old, new):
            self._count_subscription(new, 1)
        if old is None or old.owned is not new.owned or old.revoking is not new.revoking:
            for part in (new.owned, new.revoking):
                for topic_id, partitions in part.items():
                    owners = self.owners.setdefault(topic_id, {})
                    for partition in partitions:
                        owners[partition] = new.member_id

    def _release(self, topic_id: bytes, partitions: dict[int, int], member_id: str) -> None:
        owners = self.owners.get(topic_id)
        if owners is None:
            return
        for partition in partitions:
            if owners.get(partition) == member_id:
                del owners[partition]
        if not owners:
            del self.owners[topic_id]

    def _count_subscription(self, member: Member, change: int) -> None:
        for topic in member.topics:
            _count(self.topics, topic, change)
        if member.pattern:
            _count(self.patterns, member.pattern, change)
        if member.assignor is not None:
            _count(self.assignors, member.assignor, change)
        if member.classic is not None:
            self.classic_count += change
            for name in protocols_to_vote_for(member.classic.protocols):
                _count(self.classic_protocols, name, change)
        self.subscriptions_bytes += change * subscription_bytes(member)


def subscription_bytes(member: Member) -> int:
    """Return the estimated memory of the member and its subscription, in bytes."""
    size = MEMBER_OVERHEAD_BYTES + len(member.pattern)
    size += sum(TOPIC_OVERHEAD_BYTES + len(topic) for topic in member.topics)
    if member.classic is not None:
        size += sum(len(name) + len(metadata) for name, metadata in member.classic.protocols)
    return size


def _same_subscription(old: Member, new: Member) -> bool:
    return (
        old.topics == new.topics
        and old.pattern == new.pattern
        and old.assignor == new.assignor
        and old.classic == new.classic
    )


def _count(counts: dict[str, int], name: str, change: int) -> None:
    count = counts.get(name, 0) + change
    if count:
        counts[name] = count
    else:
        del counts[name]
