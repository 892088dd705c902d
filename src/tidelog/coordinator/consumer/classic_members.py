"""The requests of members that use the classic protocol in a consumer group (KIP-848): JoinGroup, SyncGroup,
Heartbeat and LeaveGroup.

The responses have the form of the classic protocol, but no member is the leader, because the broker computes the
assignment. SyncGroup returns the partitions that the member has now. A partition of its target assignment can be
missing, because another member has not given it up yet, or because this member must first give up other partitions.
"""

from tidelog.coordinator.consumer.embedded import (
    embedded_version,
    read_subscription,
    reported_partitions,
    write_assignment,
)
from tidelog.coordinator.consumer.fencing import remove
from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.heartbeats import (
    check_instance,
    check_memory,
    check_size,
    replace_static,
    static_member,
    update_pattern,
)
from tidelog.coordinator.consumer.member import NO_TARGET, ClassicPart, Member, MemberState, without_epochs
from tidelog.coordinator.consumer.migration import downgrade, is_downgraded_by_return
from tidelog.coordinator.consumer.settings import MigrationPolicy
from tidelog.coordinator.consumer.state import PROTOCOL_TYPE, ConsumerGroup
from tidelog.coordinator.consumer.step import Step
from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.classic import MEMBER_ID_REQUIRED_SINCE, JoinCall, protocols_of
from tidelog.coordinator.group.members import Protocols, protocols_to_vote_for
from tidelog.coordinator.group.rebalance import NO_MEMBER_ID, refuse_join
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.wire.primitives import MalformedMessage


def join(context: GroupContext, group: ConsumerGroup, joining: JoinCall, now: Moment) -> Decision:
    """Handle JoinGroup. The request is answered immediately, because no other member has to join. Raises ApiError."""
    request = joining.request
    if context.consumer.migration is MigrationPolicy.DISABLED:
        raise InconsistentGroupProtocol("group.consumer.migration.policy forbids classic members in consumer groups")
    check_size(context, group, request.member_id)
    protocols = protocols_of(request)
    _check_protocols(group, request.protocol_type, protocols)
    step = Step(context, group, now)
    is_new = request.member_id == NO_MEMBER_ID
    member_id = joining.fresh_id if is_new else request.member_id
    if is_new and request.group_instance_id is None and joining.version >= MEMBER_ID_REQUIRED_SINCE:
        refuse_join(joining.reply, member_id, ErrorCode.MEMBER_ID_REQUIRED, step.out)
        return step.finish()
    subscription = _subscription(protocols)
    current, predecessor = _current_member(step, member_id, request.group_instance_id, is_new=is_new)
    updated = _with_changes(current, joining, subscription, protocols)
    check_memory(group, current, updated)
    after = _apply_join(step, current, updated, predecessor, subscription)
    assert updated.classic is not None
    answer = JoinGroupResponse(
        generation_id=after.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=updated.classic.protocols[0][0],
        member_id=member_id,
    )
    step.out.reply(joining.reply, answer)
    return step.finish()


def _apply_join(
    step: Step, current: Member, updated: Member, predecessor: Member | None, subscription: ConsumerProtocolSubscription
) -> Member:
    """Write the records of the join, and return the new state of the member. The join may convert the group into a
    classic group.
    """
    context = step.context
    group = step.group
    replaced = None if predecessor is None else predecessor.member_id
    downgrades = predecessor is not None and is_downgraded_by_return(context, group, predecessor)
    pattern_changed, _ = update_pattern(step, current, updated)
    # A classic member has no regular expression. So if the expression has changed, it was removed, and no search for
    # its topics is needed.
    changed = step.update_member(current, updated, pattern_is_ready=pattern_changed, pattern_changed=pattern_changed)
    owned = reported_partitions(subscription, context.image_now())
    if downgrades:
        target_is_current = group.target_epoch >= step.epoch
        after = updated
        if target_is_current:
            target = group.targets.get(replaced or updated.member_id, NO_TARGET)
            after = step.reconcile(updated, replaced, group.target_epoch, target, owned, subscription_changed=False)
        downgrade(step, [], after, replaced, rebalance=not target_is_current)
        return after
    target_epoch, target = step.target(updated, replaced)
    after = step.reconcile(updated, replaced, target_epoch, target, owned, subscription_changed=changed)
    step.on_finish(lambda: _set_timers_after_join(step, after))
    return after


def _set_timers_after_join(step: Step, member: Member) -> None:
    """Start a new session, and the timer for the SyncGroup request that must follow within the rebalance timeout."""
    assert member.classic is not None
    timers = step.context.timers
    group_id = step.group.group_id
    timers.cancel(Timer.JOIN, group_id, member.member_id)
    timers.set(Timer.SESSION, group_id, member.member_id, member.classic.session_timeout_ms, step.now)
    timers.set(Timer.SYNC, group_id, member.member_id, member.rebalance_timeout_ms, step.now)


def _check_protocols(group: ConsumerGroup, protocol_type: str, protocols: Protocols) -> None:
    """Raise ApiError unless the protocol type is PROTOCOL_TYPE and at least one of `protocols` is supported by all
    classic members of the group.

    The members need a common protocol because the group may later be converted into a classic group.
    """
    supported = protocol_type == PROTOCOL_TYPE and any(
        group.classic_protocols.get(name, 0) == group.classic_count for name in protocols_to_vote_for(protocols)
    )
    if not supported:
        raise InconsistentGroupProtocol(
            "the protocol type is not consumer, or no protocol of the member is supported by all classic members"
        )


def _subscription(protocols: Protocols) -> ConsumerProtocolSubscription:
    try:
        return read_subscription(protocols[0][1])
    except MalformedMessage as error:
        raise ApiError(f"the member's subscription cannot be read: {error}", ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _current_member(
    step: Step, member_id: str, instance_id: str | None, *, is_new: bool
) -> tuple[Member, Member | None]:
    """Return two values. The first one is the current state of the member, or a new member. The second one is the
    static member that the new member replaces, or None.
    """
    group = step.group
    if instance_id is None:
        return group.members.get(member_id) or Member(member_id), None
    member = static_member(group, instance_id)
    if is_new:
        if member is None:
            return Member(member_id), None
        return replace_static(step, member, member_id), member
    if member is None:
        raise UnknownMemberId(f"group {group.group_id!r} has no member of instance {instance_id!r}")
    check_instance(member, member_id)
    return member, None


def _with_changes(
    current: Member, joining: JoinCall, subscription: ConsumerProtocolSubscription, protocols: Protocols
) -> Member:
    request = joining.request
    return current._replace(
        instance_id=request.group_instance_id if request.group_instance_id is not None else current.instance_id,
        rack_id=subscription.rack_id or current.rack_id,
        client_id=joining.client_id,
        client_host=joining.client_host,
        topics=tuple(sorted(dict.fromkeys(subscription.topics))),
        pattern="",
        rebalance_timeout_ms=joining.rebalance_timeout_ms,
        classic=ClassicPart(request.session_timeout_ms, tuple(protocols)),
    )


# SyncGroup, Heartbeat and LeaveGroup


def sync(context: GroupContext, group: ConsumerGroup, request: SyncGroupRequest, reply: Reply, now: Moment) -> Decision:
    """Handle SyncGroup: answer with the member's assignment. Assignments in the request are ignored."""
    step = Step(context, group, now)
    try:
        member = _check_sync(context, group, request, now)
        assert member.classic is not None
        version = embedded_version(member.classic.protocols[0][1])
        assignment = write_assignment(without_epochs(member.owned), version, context.image_now())
    except ApiError as error:
        step.out.reply(reply, SyncGroupResponse(error_code=error.code))
        return step.finish()
    context.timers.cancel(Timer.SYNC, group.group_id, member.member_id)
    _renew_session(context, group, member, now)
    answer = SyncGroupResponse(
        protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
    )
    step.out.reply(reply, answer)
    return step.finish()


def _check_sync(context: GroupContext, group: ConsumerGroup, request: SyncGroupRequest, now: Moment) -> Member:
    member = _classic_member(group, request.member_id, request.group_instance_id)
    assert member.classic is not None
    if request.generation_id != member.epoch:
        raise IllegalGeneration
    if request.protocol_type not in (None, PROTOCOL_TYPE):
        raise InconsistentGroupProtocol
    if request.protocol_name not in (None, member.classic.protocols[0][0]):
        raise InconsistentGroupProtocol
    if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        _expect_join(context, group, member, now)
        raise RebalanceInProgress
    return member


def heartbeat(context: GroupContext, group: ConsumerGroup, request: HeartbeatRequest, now: Moment) -> ErrorCode:
    """Handle Heartbeat. Returns NONE, or REBALANCE_IN_PROGRESS if the member has to join again. Raises ApiError."""
    member = _classic_member(group, request.member_id, request.group_instance_id)
    if request.generation_id != member.epoch:
        raise IllegalGeneration
    _renew_session(context, group, member, now)
    if (
        member.epoch < group.target_epoch
        or member.state is MemberState.UNREVOKED
        or (member.state is MemberState.UNRELEASED and not _waits_for_other_members(group, member))
    ):
        _expect_join(context, group, member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(
    context: GroupContext, group: ConsumerGroup, request: LeaveGroupRequest, reply: Reply, now: Moment
) -> Decision:
    """Handle LeaveGroup. The request names each member by its member id, or by its group instance id and an empty
    member id.
    """
    step = Step(context, group, now)
    leaving_ids: dict[str, None] = {}
    responses = []
    for identity in request.members:
        error = ErrorCode.NONE
        try:
            leaving_ids[_leaving_member_id(group, identity.member_id, identity.group_instance_id)] = None
        except ApiError as refused:
            error = refused.code
        responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error))
    remove(step, list(leaving_ids))
    step.out.reply(reply, LeaveGroupResponse(members=responses))
    return step.finish()


def _leaving_member_id(group: ConsumerGroup, member_id: str, instance_id: str | None) -> str:
    if instance_id is None:
        if member_id not in group.members:
            raise UnknownMemberId
        return member_id
    member = static_member(group, instance_id)
    if member is None:
        raise UnknownMemberId
    if member_id != NO_MEMBER_ID:
        check_instance(member, member_id)
    return member.member_id


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is None:
        member = group.members.get(member_id)
    else:
        member = static_member(group, instance_id)
        if member is not None:
            check_instance(member, member_id)
    if member is None or member.classic is None:
        raise UnknownMemberId
    return member


def _renew_session(context: GroupContext, group: ConsumerGroup, member: Member, now: Moment) -> None:
    assert member.classic is not None
    context.timers.set(Timer.SESSION, group.group_id, member.member_id, member.classic.session_timeout_ms, now)


def _expect_join(context: GroupContext, group: ConsumerGroup, member: Member, now: Moment) -> None:
    if not context.timers.is_set(Timer.JOIN, group.group_id, member.member_id):
        context.timers.set(Timer.JOIN, group.group_id, member.member_id, member.rebalance_timeout_ms, now)


def _waits_for_other_members(group: ConsumerGroup, member: Member) -> bool:
    """Return whether another member still has a partition of the target assignment of `member`.

    If so, and if `member` is UNRELEASED, the response to its heartbeat tells it to join again only if there is a newer
    target assignment. It is not enough that other missing partitions have become free.
    """
    for topic_id, partitions in group.targets.get(member.member_id, NO_TARGET).items():
        owned = member.owned.get(topic_id, {})
        for partition in partitions:
            if partition not in owned and group.owner(topic_id, partition) is not None:
                return True
    return False
