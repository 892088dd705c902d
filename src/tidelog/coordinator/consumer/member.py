"""One member of a consumer group, as its records describe it: its subscription and the progress of its assignment."""

from enum import IntEnum
from typing import NamedTuple

from tidelog.coordinator.consumer.records import CURRENT_ASSIGNMENT, MEMBER_METADATA, TARGET_MEMBER, ConsumerRecord
from tidelog.wire.messages.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
    TopicPartitions,
)

JOINING_EPOCH = 0
"""The epoch in the heartbeat of a member that joins."""
LEAVING_EPOCH = -1
"""The epoch in the heartbeat of a member that leaves."""
STATIC_LEAVING_EPOCH = -2
"""Epoch of a static member that left temporarily. Its partitions remain reserved for it (KIP-345, KIP-848)."""

Owned = dict[bytes, dict[int, int]]
"""The epoch in which a member got each of its partitions, by topic id and partition. Topics without partitions are
omitted. Such a dict is never changed after its creation."""
Target = dict[bytes, tuple[int, ...]]
"""Assigned partitions in ascending order, by topic id. Topics without partitions are omitted. Such a dict is never
changed after its creation."""

NOTHING_OWNED: Owned = {}
NO_TARGET: Target = {}


class MemberState(IntEnum):
    """Reconciliation state of a member. The numbers are the values in the records."""

    STABLE = 0
    """The member has its whole target assignment."""
    UNREVOKED = 1
    """The member must give up partitions, and has not confirmed yet that it has done so."""
    UNRELEASED = 2
    """Other members still have partitions of this member's target assignment."""
    UNKNOWN = 127
    """The record contains another number, which a later version of Kafka wrote."""


class ClassicPart(NamedTuple):
    """The fields that only members of the classic protocol have."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Pairs of name and metadata, in the member's order of preference."""


class Member(NamedTuple):
    """A member. The object is immutable: each change creates a new object."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Names of the subscribed topics, sorted and without duplicates."""
    pattern: str = ""
    """The subscribed regular expression, or ""."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicPart | None = None
    """None if the member speaks the consumer protocol."""
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    owned: Owned = NOTHING_OWNED
    """The partitions that the member has, without those that it must give up."""
    revoking: Owned = NOTHING_OWNED
    """The partitions that the member must give up."""

    def is_settled(self, epoch: int) -> bool:
        """Return whether the member has the whole target assignment of `epoch`."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which the member got a partition; None if the member neither has the partition nor is
        giving it up.
        """
        for partitions in (self.owned.get(topic_id), self.revoking.get(topic_id)):
            if partitions is not None and partition in partitions:
                return partitions[partition]
        return None

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "Member":
        metadata = value.classic_member_metadata
        classic = None
        if metadata is not None:
            classic = ClassicPart(
                metadata.session_timeout_ms, tuple((p.name, p.metadata) for p in metadata.supported_protocols)
            )
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=tuple(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=classic,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> "Member":
        try:
            state = MemberState(value.state)
        except ValueError:
            state = MemberState.UNKNOWN
        return self._replace(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=state,
            owned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> "Member":
        """Return the member as it is after the replay of a tombstone of its current assignment."""
        return self._replace(
            epoch=LEAVING_EPOCH,
            previous_epoch=LEAVING_EPOCH,
            state=MemberState.STABLE,
            owned=NOTHING_OWNED,
            revoking=NOTHING_OWNED,
        )

    # Records

    def metadata_record(self, group: str) -> ConsumerRecord:
        classic = None
        if self.classic is not None:
            protocols = [ClassicProtocol(name, metadata) for name, metadata in self.classic.protocols]
            classic = ClassicMemberMetadata(self.classic.session_timeout_ms, protocols)
        value = ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.topics),
            subscribed_topic_regex=self.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=classic,
        )
        return ConsumerRecord(MEMBER_METADATA, group, self.member_id, value)

    def assignment_record(self, group: str) -> ConsumerRecord:
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_partition_lists(self.owned),
            partitions_pending_revocation=_partition_lists(self.revoking),
        )
        return ConsumerRecord(CURRENT_ASSIGNMENT, group, self.member_id, value)


def target_record(group: str, member_id: str, target: Target) -> ConsumerRecord:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[TopicPartition(topic_id, list(partitions)) for topic_id, partitions in target.items()]
    )
    return ConsumerRecord(TARGET_MEMBER, group, member_id, value)


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Target:
    return {topic.topic_id: tuple(sorted(topic.partitions)) for topic in value.topic_partitions if topic.partitions}


def member_tombstones(group: str, member_id: str) -> list[ConsumerRecord]:
    """Return tombstones for all records of the member. The last one is the tombstone of the member's metadata."""
    return [
        ConsumerRecord(CURRENT_ASSIGNMENT, group, member_id, None),
        ConsumerRecord(TARGET_MEMBER, group, member_id, None),
        ConsumerRecord(MEMBER_METADATA, group, member_id, None),
    ]


def without_epochs(owned: Owned) -> Target:
    return {topic_id: tuple(sorted(partitions)) for topic_id, partitions in owned.items()}


def _owned(topics: list[TopicPartitions], epoch: int) -> Owned:
    """Decode partitions with their epochs. Brokers before Kafka 4.3 wrote no epochs. For their records, the result
    contains the member's epoch, `epoch`.
    """
    owned: Owned = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [epoch] * len(topic.partitions)
        if topic.partitions:
            owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def _partition_lists(owned: Owned) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id, list(p), list(p.values())) for topic_id, p in owned.items()]
