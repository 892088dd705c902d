"""Remove members that leave or time out. Their partitions are then assigned to the other members."""

from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.member import STATIC_LEAVING_EPOCH, Member, member_tombstones
from tidelog.coordinator.consumer.migration import downgrade, may_downgrade
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.consumer.step import Step
from tidelog.coordinator.consumer.timers import Timer, TimerSubject
from tidelog.coordinator.consumer.topics import metadata_hash
from tidelog.coordinator.decision import Decision, Moment


def remove(step: Step, member_ids: list[str]) -> None:
    """Remove the members with these ids, which must be distinct. The removal may convert the group into a classic
    group.
    """
    group = step.group
    context = step.context
    if not member_ids:
        return
    if may_downgrade(step, member_ids):
        downgrade(step, member_ids, None, None, rebalance=True)
        return
    leaving = [group.members[member_id] for member_id in member_ids]
    for member_id in member_ids:
        step.out.records += member_tombstones(group.group_id, member_id)
    names = _unsubscribe(step, group, leaving)
    step.out.records.append(group.epoch_record(group.epoch + 1, metadata_hash(context.image_now(), names)))
    step.on_finish(lambda: _forget_timers(context, group.group_id, member_ids))


def _forget_timers(context: GroupContext, group_id: str, member_ids: list[str]) -> None:
    for member_id in member_ids:
        context.timers.forget(group_id, member_id)


def _unsubscribe(step: Step, group: ConsumerGroup, leaving: list[Member]) -> dict[str, None]:
    """Write tombstones for the regular expressions that only members in `leaving` have. Return the names of the topics
    that the other members subscribe to.
    """
    topics = dict(group.topics)
    patterns = dict(group.patterns)
    for member in leaving:
        for name in member.topics:
            topics[name] -= 1
        if member.pattern:
            patterns[member.pattern] -= 1
    names = dict.fromkeys(name for name, count in topics.items() if count)
    for pattern, count in patterns.items():
        if not count:
            step.out.records.append(group.expression_record(pattern, None))
        elif (resolved := group.resolved.get(pattern)) is not None:
            names.update(dict.fromkeys(resolved.topics))
    return names


def reserve_place(step: Step, member: Member) -> None:
    """Write a record which says that a static member left temporarily. The member's partitions remain reserved until
    its session ends.
    """
    absent_member = member._replace(
        epoch=STATIC_LEAVING_EPOCH,
        owned={topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.owned.items()},
        revoking={},
    )
    step.out.records.append(absent_member.assignment_record(step.group.group_id))


def remove_timed_out_member(context: GroupContext, subject: TimerSubject, out: Decision, now: Moment) -> None:
    """Remove a member because one of its timers expired."""
    group = context.group(subject.group_id)
    member = None if group is None else group.members.get(subject.member_id)
    if group is None or member is None:
        return
    if subject.timer is Timer.REBALANCE and member.epoch != subject.epoch:
        return  # the member has reached another epoch since the timer was set
    out.log("member removed group=%s member=%s reason=%s", subject.group_id, subject.member_id, subject.timer.value)
    step = Step(context, group, now)
    remove(step, [subject.member_id])
    decision = step.finish()
    out.records += decision.records
    out.replies += decision.replies
    out.lines += decision.lines
