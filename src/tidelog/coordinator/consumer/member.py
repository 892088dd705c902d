"""One member of a consumer group as its records say: what it subscribes to, and how far its assignment has come."""

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
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""A static member is away for a while: its place and its partitions stay its own (KIP-345 in KIP-848's words)."""

Owned = dict[bytes, dict[int, int]]
"""Topic id -> partition -> the epoch in which the member got it. No topic is empty. Never changed once made."""
Target = dict[bytes, tuple[int, ...]]
"""Topic id -> partitions in ascending order. No topic is empty. Never changed once made."""

NOTHING_OWNED: Owned = {}
NO_TARGET: Target = {}


class MemberState(IntEnum):
    """The numbers are those of the records."""

    STABLE = 0
    """All that its epoch's target says is assigned."""
    UNREVOKED = 1
    """Asked to give up partitions, which it still has."""
    UNRELEASED = 2
    """Some partitions of its target are still another member's."""
    UNKNOWN = 127


class ClassicPart(NamedTuple):
    """What only a member of the classic protocol has."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) in the member's order of preference."""


class Member(NamedTuple):
    """Immutable; a change makes a new one."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Names that it subscribes to, each once, in order."""
    pattern: str = ""
    """A regular expression that it subscribes to, or none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicPart | None = None
    """None for a member that speaks the consumer protocol."""
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    owned: Owned = NOTHING_OWNED
    revoking: Owned = NOTHING_OWNED

    def is_settled(self, epoch: int) -> bool:
        """Whether it has all that the target of that epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """When it got the partition that it has, or is giving up. None if it has not."""
        for partitions in (self.owned.get(topic_id), self.revoking.get(topic_id)):
            if partitions is not None and partition in partitions:
                return partitions[partition]
        return None

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "Member":
        told = value.classic_member_metadata
        classic = None
        if told is not None:
            classic = ClassicPart(
                told.session_timeout_ms, tuple((p.name, p.metadata) for p in told.supported_protocols)
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
            state = MemberState.UNKNOWN  # of a later Kafka
        return self._replace(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=state,
            owned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> "Member":
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
            assigned_partitions=_told(self.owned),
            partitions_pending_revocation=_told(self.revoking),
        )
        return ConsumerRecord(CURRENT_ASSIGNMENT, group, self.member_id, value)


def target_record(group: str, member_id: str, target: Target) -> ConsumerRecord:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[TopicPartition(topic_id, list(partitions)) for topic_id, partitions in target.items()]
    )
    return ConsumerRecord(TARGET_MEMBER, group, member_id, value)


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Target:
    return {told.topic_id: tuple(sorted(told.partitions)) for told in value.topic_partitions if told.partitions}


def end_records(group: str, member_id: str) -> list[ConsumerRecord]:
    """Nothing is left of the member, in the order that a replay needs."""
    return [
        ConsumerRecord(CURRENT_ASSIGNMENT, group, member_id, None),
        ConsumerRecord(TARGET_MEMBER, group, member_id, None),
        ConsumerRecord(MEMBER_METADATA, group, member_id, None),
    ]


def without_epochs(owned: Owned) -> Target:
    return {topic_id: tuple(sorted(partitions)) for topic_id, partitions in owned.items()}


def _owned(told: list[TopicPartitions], epoch: int) -> Owned:
    """A broker before Kafka 4.3 wrote no epochs: then the member's own stands for them."""
    owned: Owned = {}
    for topic in told:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [epoch] * len(topic.partitions)
        if topic.partitions:
            owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def _told(owned: Owned) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id, list(p), list(p.values())) for topic_id, p in owned.items()]
