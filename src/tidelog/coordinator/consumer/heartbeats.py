"""ConsumerGroupHeartbeat: the request with which members join, renew their sessions, change their subscriptions, and
leave (KIP-848).
"""

from typing import NamedTuple

from tidelog.coordinator.consumer.fencing import remove, reserve_place
from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    Member,
    Owned,
    member_tombstones,
    target_record,
)
from tidelog.coordinator.consumer.migration import open_group
from tidelog.coordinator.consumer.patterns import check_pattern
from tidelog.coordinator.consumer.reconcile import ReportedPartitions
from tidelog.coordinator.consumer.settings import ConsumerSettings
from tidelog.coordinator.consumer.state import ConsumerGroup, subscription_bytes
from tidelog.coordinator.consumer.step import Step
from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.settings import METADATA_BYTES_MAX
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    FencedInstanceId,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
)
from tidelog.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

OWN_ID_SINCE = 1
"""The first version of ConsumerGroupHeartbeat in which a member chooses its own id (KIP-1082)."""


class HeartbeatCall(NamedTuple):
    """A heartbeat request and its sender."""

    request: ConsumerGroupHeartbeatRequest
    reply: Reply
    client_id: str
    client_host: str
    version: int
    fresh_id: str
    """A new random id, used for a member that joins without an id. Only version 0 permits such a join."""


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, settings: ConsumerSettings) -> None:
    """Raise ApiError if the request contradicts itself or the settings."""
    epoch = request.member_epoch
    if not request.member_id and (version >= OWN_ID_SINCE or epoch > 0 or epoch == LEAVING_EPOCH):
        raise InvalidRequest("the member has no id")
    if not request.group_id:
        raise InvalidRequest("the group has no id")
    if request.instance_id == "":
        raise InvalidRequest("the group instance id is empty")
    if request.rack_id == "":
        raise InvalidRequest("the rack id is empty")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise InvalidRequest("a member that joins must send its rebalance timeout")
        if request.topic_partitions is None or request.topic_partitions:
            raise InvalidRequest("a member that joins must send an empty list of partitions")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise InvalidRequest("a member that joins must send its subscription")
    elif epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        raise InvalidRequest("only a static member can leave temporarily")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise InvalidRequest(f"the member epoch {epoch} is not valid")
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise ApiError(
            f"assignor {request.server_assignor!r} is not supported, only {', '.join(settings.assignors)}",
            ErrorCode.UNSUPPORTED_ASSIGNOR,
        )


def heartbeat(context: GroupContext, beat: HeartbeatCall, now: Moment) -> Decision:
    """Handle one heartbeat. Raises ApiError."""
    request = beat.request
    if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
        return _leave(context, beat, now)
    joins = request.member_epoch == JOINING_EPOCH
    step = open_group(context, request.group_id, now, create=joins)
    group = step.group
    check_size(context, group, request.member_id)
    reported = _reported_partitions(request)
    current, replaced = _current_member(step, beat, reported)
    updated = _with_changes(current, beat)
    check_memory(group, current, updated)
    pattern_changed, pattern_is_ready = update_pattern(step, current, updated)
    changed = step.update_member(current, updated, pattern_is_ready=pattern_is_ready, pattern_changed=pattern_changed)
    target_epoch, target = step.target(updated, replaced)
    after = step.reconcile(updated, replaced, target_epoch, target, reported, subscription_changed=changed)
    session_ms = context.session_timeout_ms(group.group_id)
    step.on_finish(lambda: context.timers.set(Timer.SESSION, group.group_id, after.member_id, session_ms, now))
    response = ConsumerGroupHeartbeatResponse(
        member_id=after.member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=context.heartbeat_interval_ms(group.group_id),
    )
    if joins or _has_all_fields(request) or not same_partitions(current.owned, after.owned):
        response.assignment = Assignment(
            [TopicPartitions(topic_id, list(partitions)) for topic_id, partitions in after.owned.items()]
        )
    step.out.reply(beat.reply, response)
    return step.finish()


# Identity of the member


def check_size(context: GroupContext, group: ConsumerGroup, member_id: str) -> None:
    """Raise GroupMaxSizeReached if a new member `member_id` would exceed `group.consumer.max.size`."""
    size_max = context.consumer.max_size
    if len(group.members) >= size_max and member_id not in group.members:
        raise GroupMaxSizeReached(f"the group has {len(group.members)} members, group.consumer.max.size is {size_max}")


def check_memory(group: ConsumerGroup, current: Member, updated: Member) -> None:
    """Raise GroupMaxSizeReached if the member's subscription needs more memory than before, and the subscriptions of
    the whole group would exceed METADATA_BYTES_MAX. A member that replaces a static member is compared with the
    replaced member.
    """
    old = group.members.get(current.member_id)
    if old is None and current.instance_id is not None:
        old = static_member(group, current.instance_id)
    growth = subscription_bytes(updated) - (0 if old is None else subscription_bytes(old))
    if growth > 0 and group.subscriptions_bytes + growth > METADATA_BYTES_MAX:
        raise GroupMaxSizeReached("the subscriptions of the group's members need too much memory")


def _current_member(step: Step, beat: HeartbeatCall, reported: ReportedPartitions | None) -> tuple[Member, str | None]:
    """Return two values. The first one is the current state of the member, or a new member. The second one is the id of
    the static member that this member replaces, or None.
    """
    request = beat.request
    group = step.group
    joins = request.member_epoch == JOINING_EPOCH
    member_id = request.member_id or beat.fresh_id
    if request.instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            if not joins:
                raise UnknownMemberId(f"group {group.group_id!r} has no member {member_id!r}")
            return Member(member_id), None
        check_epoch(member, request.member_epoch, reported)
        return member, None
    member = static_member(group, request.instance_id)
    if not joins:
        if member is None:
            raise UnknownMemberId(f"group {group.group_id!r} has no member of instance {request.instance_id!r}")
        check_instance(member, member_id)
        check_epoch(member, request.member_epoch, reported)
        return member, None
    if member is None:
        return group.members.get(member_id) or Member(member_id), None
    if member.classic is None and member.epoch != STATIC_LEAVING_EPOCH:
        raise ApiError(
            f"instance {request.instance_id!r} is member {member.member_id!r}, which has not left",
            ErrorCode.UNRELEASED_INSTANCE_ID,
        )
    return replace_static(step, member, member_id), member.member_id


def static_member(group: ConsumerGroup, instance_id: str) -> Member | None:
    member_id = group.static_ids.get(instance_id)
    return None if member_id is None else group.members[member_id]


def check_instance(member: Member, member_id: str) -> None:
    if member.member_id != member_id:
        raise FencedInstanceId(f"instance {member.instance_id!r} is member {member.member_id!r} now")


def check_epoch(member: Member, epoch: int, reported: ReportedPartitions | None) -> None:
    """Raise ApiError unless the epoch is the member's current epoch, its previous epoch or JOINING_EPOCH.

    The previous epoch is accepted because the member may have missed the last response. A member that sends its
    previous epoch must report its partitions, and may report only partitions that it has in its current epoch.
    """
    if epoch == JOINING_EPOCH or epoch == member.epoch:
        return
    may_have_missed_response = epoch < member.epoch and epoch == member.previous_epoch
    if not may_have_missed_response or reported is None or not _is_subset(reported, member.owned):
        raise ApiError(
            f"member epoch {epoch} is not the current epoch {member.epoch}: give up all partitions and join again",
            ErrorCode.FENCED_MEMBER_EPOCH,
        )


def _is_subset(reported: ReportedPartitions, owned: Owned) -> bool:
    return all(partitions <= owned.get(topic_id, {}).keys() for topic_id, partitions in reported.items())


def replace_static(step: Step, member: Member, member_id: str) -> Member:
    """Replace the static member `member`, which joins again under the new id `member_id`. The new member has the
    subscription and the partitions of the old member.
    """
    group = step.group
    replacement = member._replace(member_id=member_id, epoch=0, previous_epoch=0)
    step.out.records += member_tombstones(group.group_id, member.member_id)
    step.out.records.append(replacement.metadata_record(group.group_id))
    step.out.records.append(target_record(group.group_id, member_id, group.targets.get(member.member_id, {})))
    step.out.records.append(replacement.assignment_record(group.group_id))
    step.on_finish(lambda: step.context.timers.forget(group.group_id, member.member_id))
    return replacement


# Content of the heartbeat


def _with_changes(current: Member, beat: HeartbeatCall) -> Member:
    """Return the member with the changes of the heartbeat. A null field or a timeout of -1 means no change."""
    request = beat.request
    names = request.subscribed_topic_names
    return current._replace(
        instance_id=request.instance_id if request.instance_id is not None else current.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else current.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=current.topics if names is None else tuple(sorted(dict.fromkeys(names))),
        pattern=current.pattern if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms != -1
        else current.rebalance_timeout_ms,
        assignor=request.server_assignor if request.server_assignor is not None else current.assignor,
        classic=None,
    )


def update_pattern(step: Step, current: Member, updated: Member) -> tuple[bool, bool]:
    """Process a change of the member's regular expression. If no other member has the old expression, write a tombstone
    for this expression. If no member had the new expression before, schedule a search for the topics that match it.

    Return two values. The first one is whether the expression has changed. The second one is whether it has changed and
    the topics that match the new expression are already known. Raises ApiError for an invalid expression.
    """
    old, new = current.pattern, updated.pattern
    if old == new:
        return False, False
    group = step.group
    if old and group.patterns.get(old) == 1:
        step.out.records.append(group.expression_record(old, None))
    if not new:
        return True, True
    if new in group.patterns:
        return True, new in group.resolved
    check_pattern(group, new)
    step.on_finish(lambda: step.context.schedule_search(group.group_id, step.now.monotonic_ms))
    return True, False


def _reported_partitions(request: ConsumerGroupHeartbeatRequest) -> ReportedPartitions | None:
    if request.topic_partitions is None:
        return None
    reported: dict[bytes, set[int]] = {}
    for topic in request.topic_partitions:
        reported.setdefault(topic.topic_id, set()).update(topic.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in reported.items()}


def _has_all_fields(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether the heartbeat contains all fields. A member sends all fields after an error, because it may have
    missed responses.
    """
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None


def same_partitions(before: Owned, after: Owned) -> bool:
    """Return whether both contain the same partitions. Their epochs may differ."""
    if before is after:
        return True
    return before.keys() == after.keys() and all(before[t].keys() == after[t].keys() for t in before)


# Leaving


def _leave(context: GroupContext, beat: HeartbeatCall, now: Moment) -> Decision:
    request = beat.request
    step = open_group(context, request.group_id, now, create=False)
    group = step.group
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            raise UnknownMemberId(f"group {group.group_id!r} has no member {request.member_id!r}")
    else:
        member = static_member(group, request.instance_id)
        if member is None:
            raise UnknownMemberId(f"group {group.group_id!r} has no member of instance {request.instance_id!r}")
        check_instance(member, request.member_id)
    if request.member_epoch == STATIC_LEAVING_EPOCH:
        reserve_place(step, member)
    else:
        remove(step, [member.member_id])
    response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    step.out.reply(beat.reply, response)
    return step.finish()
