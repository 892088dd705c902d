"""A group goes from one protocol to the other while its members run (KIP-848, `group.consumer.migration.policy`).

Up when the first member of the consumer protocol joins, down when the last of them leaves; between the two, members of
both are in one consumer group.
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
from tidelog.coordinator.group.members import Member as ClassicMember
from tidelog.coordinator.group.records import GroupRecord
from tidelog.coordinator.group.settings import GROUPS_MAX
from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import CoordinatorNotAvailable, ErrorCode, GroupIdNotFound
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata
from tidelog.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from tidelog.metadata.image import MetadataImage


def open_group(context: GroupContext, group_id: str, now: Moment, *, create: bool) -> Step:
    """The step that a request to the group begins; the group may be made, or made of a classic one, by it.

    Raises GroupIdNotFound when there is no group of this kind and it is not to be made, or cannot be.
    """
    durable = context.durable.by_id.get(group_id)
    if durable is not None and durable.consumer is not None:
        return Step(context, durable.consumer, now)
    classic = context.classics.get(group_id)
    if not create:
        kind = "does not exist" if durable is None and classic is None else "is no group of the consumer protocol"
        raise GroupIdNotFound(f"group {group_id!r} {kind}")
    if durable is None and len(context.durable.by_id) >= GROUPS_MAX:
        raise CoordinatorNotAvailable(f"there are {GROUPS_MAX} groups here already")
    step = Step(context, ConsumerGroup(group_id), now)
    if classic is not None and classic.state is not GroupState.EMPTY:
        _upgrade(step, classic)
        return step
    if durable is not None and durable.metadata is not None:
        step.out.records.append(GroupRecord(group_id, None))
    if classic is not None:
        step.at_end(lambda: _forget_classic(context, classic, step))
    return step


# Up


def _upgrade(step: Step, classic: ClassicGroup) -> None:
    """`step.group` becomes what the classic group is, every member of it with what it was assigned last."""
    context = step.context
    group_id = classic.group_id
    if not context.consumer.migration.may_upgrade:
        raise GroupIdNotFound(f"group {group_id!r} is a classic one and group.consumer.migration.policy keeps it so")
    if classic.protocol_type != PROTOCOL_TYPE:
        raise GroupIdNotFound(f"group {group_id!r} is not one of consumers")
    if len(classic.members) > context.consumer.max_size:
        raise GroupIdNotFound(f"group {group_id!r} has more members than group.consumer.max.size")
    image = context.image_now()
    try:
        made = _from_classic(classic, image)
    except MalformedMessage as error:
        raise GroupIdNotFound(f"group {group_id!r} cannot be upgraded: {error}") from None
    step.out.records.append(GroupRecord(group_id, None))
    step.out.records += made.records()
    step.group = made
    step.epoch = made.epoch
    step.at_end(lambda: _upgraded(step, classic, made))


def _upgraded(step: Step, classic: ClassicGroup, made: ConsumerGroup) -> None:
    _forget_classic(step.context, classic, step)
    for member in made.members.values():
        assert member.classic is not None
        step.context.timers.set(
            Timer.SESSION, made.group_id, member.member_id, member.classic.session_timeout_ms, step.now
        )
    step.out.log("group upgraded to the consumer protocol group=%s members=%d", made.group_id, len(made.members))


def _forget_classic(context: GroupContext, classic: ClassicGroup, step: Step) -> None:
    """Whoever waits for the classic group is told to join again, and then finds the other one."""
    classic.dissolve(ErrorCode.REBALANCE_IN_PROGRESS, step.out)
    context.classics.pop(classic.group_id, None)


def _from_classic(classic: ClassicGroup, image: "MetadataImage") -> ConsumerGroup:
    """Raises MalformedMessage when the members do not speak the protocol of consumers, or an assignor of their own."""
    group = ConsumerGroup(classic.group_id)
    epoch = max(classic.generation, 1)
    taken: dict[tuple[bytes, int], None] = {}
    for known in classic.members:
        name = classic.protocol_name or known.protocols[0][0]
        subscription = read_subscription(known.metadata_for(name))
        assignment = read_assignment(known.assignment)
        if assignment.user_data:
            raise MalformedMessage("an assignor of its members' own has data that would be lost")
        owned: Owned = {}
        for told in assignment.assigned_partitions:
            topic = image.topics.get(told.topic)
            for partition in told.partitions:
                # A leader may have given a partition to two: here it has one owner.
                if topic is not None and (topic.topic_id, partition) not in taken:
                    taken[topic.topic_id, partition] = None
                    owned.setdefault(topic.topic_id, {})[partition] = epoch
        member = Member(
            known.member_id,
            known.instance_id,
            subscription.rack_id or None,
            known.client_id,
            known.client_host,
            tuple(sorted(dict.fromkeys(subscription.topics))),
            rebalance_timeout_ms=known.rebalance_timeout_ms,
            classic=ClassicPart(known.session_timeout_ms, tuple(known.protocols)),
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


# Down


def may_downgrade(step: Step, without: list[str]) -> bool:
    """Whether the group is a classic one when these members are gone."""
    context, group = step.context, step.group
    left = len(group.members) - len(without)
    consumers = sum(group.members[member_id].classic is None for member_id in without)
    if not consumers or group.classic_count + consumers != len(group.members) or left < 1:
        return False
    if not context.consumer.migration.may_downgrade or left > context.settings.group_max_size:
        step.out.log("group is not downgraded to the classic protocol group=%s members=%d", group.group_id, left)
        return False
    return group.classic_count == left


def may_downgrade_by(context: GroupContext, group: ConsumerGroup, replaced: Member) -> bool:
    """Whether the group is a classic one when this static member comes back as a member of the classic protocol."""
    if replaced.classic is not None or group.classic_count != len(group.members) - 1:
        return False
    return context.consumer.migration.may_downgrade and len(group.members) <= context.settings.group_max_size


def downgrade(step: Step, leaving: list[str], joining: Member | None, replaced: str | None, *, rebalance: bool) -> None:
    """The consumer group's records end, a classic group's begins. `joining` takes the place of `replaced`, a static
    member of the consumer protocol."""
    group = step.group
    after = ConsumerGroup(group.group_id)  # whose records there are, once those of the step so far are replayed
    for member in group.members.values():
        if member.member_id != replaced:
            after.replay(member.metadata_record(group.group_id))
    if joining is not None:
        after.replay(joining.metadata_record(group.group_id))
    for pattern, resolved in group.resolved.items():
        after.replay(group.expression_record(pattern, resolved))
    after.has_partition_metadata = group.has_partition_metadata
    step.out.records += after.end_records()
    members = [member for member_id, member in after.members.items() if member_id not in leaving]
    classic = _to_classic(step, members, joining, replaced)
    step.out.records.append(classic.record())
    step.at_end(lambda: _downgraded(step, classic, rebalance=rebalance))


def _downgraded(step: Step, classic: ClassicGroup, *, rebalance: bool) -> None:
    context = step.context
    group_id = classic.group_id
    context.timers.forget_group(group_id)
    context.checked.pop(group_id, None)
    context.classics[group_id] = classic
    classic.renew_sessions(step.now)
    if rebalance:
        classic.begin_rebalance(step.out, step.now)
    step.out.log("group downgraded to the classic protocol group=%s members=%d", group_id, len(classic.members))


def _to_classic(step: Step, members: list[Member], joining: Member | None, replaced: str | None) -> ClassicGroup:
    group = step.group
    context = step.context
    told = [
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
    value = GroupMetadataValue(PROTOCOL_TYPE, group.epoch, None, None, step.now.wall_ms, told)
    classic = ClassicGroup.from_record(group.group_id, value, context.settings, context.deadlines, step.now)
    for member in members:
        known: ClassicMember = classic.members.by_id[member.member_id]
        assert member.classic is not None
        classic.members.set_protocols(known, list(member.classic.protocols))
    classic.protocol_name = classic.members.select_protocol()
    image = context.image_now()
    for member in members:
        known = classic.members.by_id[member.member_id]
        held = replaced if joining is not None and member.member_id == joining.member_id else None
        target = group.targets.get(held or member.member_id, NO_TARGET)
        version = embedded_version(known.metadata_for(classic.protocol_name))
        known.assignment = write_assignment(target, version, image)
    return classic
