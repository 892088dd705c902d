"""Convert a group between the classic protocol and the consumer protocol (KIP-848) while it has members.

If `group.consumer.migration.policy` permits it, a group is upgraded when the first member of the consumer protocol
joins, and downgraded when the last such member leaves. Between these two events, the group is a consumer group that
may have members of both protocols.
"""

from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.embedded import embedded_version, read_assignment, read_subscription, write_assignment
from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.member import NO_TARGET, ClassicPart, Member, Owned, target_record, without_epochs
from tidelog.coordinator.consumer.state import PROTOCOL_TYPE, ConsumerGroup
from tidelog.coordinator.consumer.step import Step
from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.consumer.topics import metadata_hash
from tidelog.coordinator.decision import Moment
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.members import ClassicMember
from tidelog.coordinator.group.records import GroupRecord
from tidelog.coordinator.group.settings import GROUPS_MAX
from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import CoordinatorNotAvailable, ErrorCode, GroupIdNotFound
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata
from tidelog.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from tidelog.metadata.image import MetadataImage


def open_group(context: GroupContext, group_id: str, now: Moment, *, create: bool) -> Step:
    """Return a new step for one request to the group. With `create`, a missing group is created, and a classic group is
    upgraded, or replaced if it has no members.

    Raises GroupIdNotFound if `create` is false and the group is not a consumer group, or if `create` is true and a
    classic group cannot be upgraded. Raises CoordinatorNotAvailable if a new group would exceed GROUPS_MAX.
    """
    durable = context.durable.by_id.get(group_id)
    if durable is not None and durable.consumer is not None:
        return Step(context, durable.consumer, now)
    classic = context.classic_groups.get(group_id)
    if not create:
        kind = "does not exist" if durable is None and classic is None else "is not a group of the consumer protocol"
        raise GroupIdNotFound(f"group {group_id!r} {kind}")
    if durable is None and len(context.durable.by_id) >= GROUPS_MAX:
        raise CoordinatorNotAvailable(f"this coordinator has {GROUPS_MAX} groups already, which is the limit")
    step = Step(context, ConsumerGroup(group_id), now)
    if classic is not None and classic.state is not GroupState.EMPTY:
        _upgrade(step, classic)
        return step
    if durable is not None and durable.metadata is not None:
        step.out.records.append(GroupRecord(group_id, None))
    if classic is not None:
        step.on_finish(lambda: _forget_classic(context, classic, step))
    return step


# Upgrade


def _upgrade(step: Step, classic: ClassicGroup) -> None:
    """Set `step.group` to a new consumer group with the members of the classic group and their last assignments."""
    context = step.context
    group_id = classic.group_id
    if not context.consumer.migration.may_upgrade:
        raise GroupIdNotFound(
            f"group {group_id!r} is a classic group, and group.consumer.migration.policy forbids an upgrade"
        )
    if classic.protocol_type != PROTOCOL_TYPE:
        raise GroupIdNotFound(f"group {group_id!r} is not a group of consumers")
    if len(classic.members) > context.consumer.max_size:
        raise GroupIdNotFound(f"group {group_id!r} has more members than group.consumer.max.size")
    image = context.image_now()
    try:
        upgraded = _from_classic(classic, image)
    except MalformedMessage as error:
        raise GroupIdNotFound(f"group {group_id!r} cannot be upgraded: {error}") from None
    step.out.records.append(GroupRecord(group_id, None))
    step.out.records += upgraded.records_of_upgrade()
    step.group = upgraded
    step.epoch = upgraded.epoch
    step.ends_rebalance = classic.state is not GroupState.STABLE
    step.on_finish(lambda: _finish_upgrade(step, classic, upgraded))


def _finish_upgrade(step: Step, classic: ClassicGroup, upgraded: ConsumerGroup) -> None:
    _forget_classic(step.context, classic, step)
    for member in upgraded.members.values():
        assert member.classic is not None
        step.context.timers.set(
            Timer.SESSION, upgraded.group_id, member.member_id, member.classic.session_timeout_ms, step.now
        )
    step.out.log(
        "group upgraded to the consumer protocol group=%s members=%d", upgraded.group_id, len(upgraded.members)
    )


def _forget_classic(context: GroupContext, classic: ClassicGroup, step: Step) -> None:
    """Remove the classic group. Its parked requests (JoinGroup and SyncGroup) are answered with
    REBALANCE_IN_PROGRESS, so that the members join the consumer group.
    """
    classic.dissolve(ErrorCode.REBALANCE_IN_PROGRESS, step.out)
    context.classic_groups.pop(classic.group_id, None)


def _from_classic(classic: ClassicGroup, image: "MetadataImage") -> ConsumerGroup:
    """Return a consumer group with the members and assignments of a classic group.

    Raises MalformedMessage if a subscription or an assignment cannot be decoded, or if an assignment has user data.
    """
    group = ConsumerGroup(classic.group_id)
    epoch = max(classic.generation, 1)
    assigned: dict[tuple[bytes, int], None] = {}
    for classic_member in classic.members:
        name = classic.protocol_name or classic_member.protocols[0][0]
        subscription = read_subscription(classic_member.metadata_for(name))
        assignment = read_assignment(classic_member.assignment)
        if assignment.user_data:
            raise MalformedMessage("its client-side assignor has user data that would be lost")
        owned: Owned = {}
        for partitions_of_topic in assignment.assigned_partitions:
            topic = image.topics.get(partitions_of_topic.topic)
            for partition in partitions_of_topic.partitions:
                # The leader of the group may have assigned a partition to two members. Only the first of them gets it.
                if topic is not None and (topic.topic_id, partition) not in assigned:
                    assigned[topic.topic_id, partition] = None
                    owned.setdefault(topic.topic_id, {})[partition] = epoch
        member = Member(
            classic_member.member_id,
            classic_member.instance_id,
            subscription.rack_id or None,
            classic_member.client_id,
            classic_member.client_host,
            tuple(sorted(dict.fromkeys(subscription.topics))),
            rebalance_timeout_ms=classic_member.rebalance_timeout_ms,
            classic=ClassicPart(classic_member.session_timeout_ms, tuple(classic_member.protocols)),
            epoch=epoch,
            previous_epoch=epoch,
            owned=owned,
        )
        group.replay(member.metadata_record(group.group_id))
        group.replay(member.assignment_record(group.group_id))
        group.replay(target_record(group.group_id, member.member_id, without_epochs(owned)))
    group.replay(group.epoch_record(epoch, metadata_hash(image, group.topics)))
    group.replay(group.target_metadata_record(epoch, 0))
    return group


# Downgrade


def may_downgrade(step: Step, leaving_ids: list[str]) -> bool:
    """Return whether the group is converted into a classic group when the members `leaving_ids` leave."""
    context, group = step.context, step.group
    remaining_count = len(group.members) - len(leaving_ids)
    consumer_count = sum(group.members[member_id].classic is None for member_id in leaving_ids)
    # A downgrade is possible only when the last members of the consumer protocol leave, and classic members remain.
    if not consumer_count or group.classic_count + consumer_count != len(group.members) or remaining_count < 1:
        return False
    if not context.consumer.migration.may_downgrade or remaining_count > context.settings.group_max_size:
        step.out.log(
            "group is not downgraded to the classic protocol group=%s members=%d", group.group_id, remaining_count
        )
        return False
    return group.classic_count == remaining_count  # false if classic members leave at the same time


def is_downgraded_by_return(context: GroupContext, group: ConsumerGroup, replaced: Member) -> bool:
    """Return whether the group becomes a classic group when the static member `replaced` joins again with the classic
    protocol.
    """
    if replaced.classic is not None or group.classic_count != len(group.members) - 1:
        return False
    return context.consumer.migration.may_downgrade and len(group.members) <= context.settings.group_max_size


def downgrade(step: Step, leaving: list[str], joining: Member | None, replaced: str | None, *, rebalance: bool) -> None:
    """Write tombstones for the consumer group's records, and the record of a classic group without the members
    `leaving`.

    If `joining` is given, it replaces the static member with the id `replaced`. With `rebalance`, the classic group
    begins a rebalance.
    """
    group = step.group
    # The contents of the consumer group after the replay of the records that this step has written so far.
    after = ConsumerGroup(group.group_id)
    for member in group.members.values():
        if member.member_id != replaced:
            after.replay(member.metadata_record(group.group_id))
    if joining is not None:
        after.replay(joining.metadata_record(group.group_id))
    for pattern, resolved in group.resolved.items():
        after.replay(group.expression_record(pattern, resolved))
    after.has_partition_metadata = group.has_partition_metadata
    step.out.records += after.tombstones()
    members = [member for member_id, member in after.members.items() if member_id not in leaving]
    classic = _to_classic(step, members, joining, replaced)
    step.out.records.append(classic.record())
    step.on_finish(lambda: _finish_downgrade(step, classic, rebalance=rebalance))


def _finish_downgrade(step: Step, classic: ClassicGroup, *, rebalance: bool) -> None:
    context = step.context
    group_id = classic.group_id
    context.timers.forget_group(group_id)
    context.groups_with_current_epoch.pop(group_id, None)
    context.classic_groups[group_id] = classic
    classic.renew_sessions(step.now)
    if rebalance:
        classic.begin_rebalance(step.out, step.now)
    step.out.log("group downgraded to the classic protocol group=%s members=%d", group_id, len(classic.members))


def _to_classic(step: Step, members: list[Member], joining: Member | None, replaced: str | None) -> ClassicGroup:
    """Return a classic group that has these members, with their target assignments."""
    group = step.group
    context = step.context
    member_metadata = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.classic.session_timeout_ms,
        )
        for member in members
        if member.classic is not None
    ]
    value = GroupMetadataValue(PROTOCOL_TYPE, group.epoch, None, None, step.now.wall_ms, member_metadata)
    classic = ClassicGroup.from_record(group.group_id, value, context.settings, context.deadlines, step.now)
    for member in members:
        classic_member: ClassicMember = classic.members.by_id[member.member_id]
        assert member.classic is not None
        classic.members.set_protocols(classic_member, list(member.classic.protocols))
    classic.protocol_name = classic.members.select_protocol()
    image = context.image_now()
    for member in members:
        classic_member = classic.members.by_id[member.member_id]
        target_member_id = replaced if joining is not None and member.member_id == joining.member_id else None
        target = group.targets.get(target_member_id or member.member_id, NO_TARGET)
        version = embedded_version(classic_member.metadata_for(classic.protocol_name))
        classic_member.assignment = write_assignment(target, version, image)
    return classic
