"""The groups of the consumer protocol (KIP-848) in one coordinator partition, as the coordinator's core uses them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.coordinator.consumer import classic_members, heartbeats
from tidelog.coordinator.consumer.describe import describe
from tidelog.coordinator.consumer.fencing import remove_timed_out_member
from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.heartbeats import HeartbeatCall
from tidelog.coordinator.consumer.member import Member, MemberState
from tidelog.coordinator.consumer.patterns import Resolver
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.consumer.timers import Timer, Timers, TimerSubject
from tidelog.coordinator.deadlines import Deadlines
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.classic import ClassicGroup, JoinCall
from tidelog.coordinator.group.rebalance import refuse_join
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    UnknownMemberId,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from tidelog.coordinator.group.durable import DurableGroups
    from tidelog.coordinator.group.offsets import OffsetCommit
    from tidelog.metadata.image import MetadataImage
    from tidelog.wire.messages.consumer_group_describe import DescribedGroup
    from tidelog.wire.messages.heartbeat import HeartbeatRequest
    from tidelog.wire.messages.leave_group import LeaveGroupRequest
    from tidelog.wire.messages.sync_group import SyncGroupRequest

MEMBER_EPOCH_SINCE = 9
"""The first version of OffsetCommit with which members of the consumer protocol may commit."""


class ConsumerGroups:
    """Handles the requests to groups of the consumer protocol, and contains their soft (not durable) state. The durable
    state of a group is `DurableGroup.consumer`.
    """

    def __init__(
        self,
        settings: GroupSettings,
        durable: "DurableGroups",
        classic_groups: dict[str, ClassicGroup],
        deadlines: Deadlines,
        image_now: "Callable[[], MetadataImage]",
    ) -> None:
        self.resolver = Resolver(lambda: self.context)
        timers = Timers(deadlines, self._remove_timed_out_member)
        self.context = GroupContext(settings, durable, classic_groups, deadlines, image_now, timers, self.resolver.wake)

    def find(self, group_id: str) -> ConsumerGroup | None:
        return self.context.group(group_id)

    # Events of the coordinator

    def loaded(self, now: Moment) -> None:
        """Start timers after a load: a new session for every member, and a new rebalance timeout for every member of
        the consumer protocol that must give up partitions. Also schedule searches for the topics that match the groups'
        regular expressions.
        """
        for group_id, durable in self.context.durable.by_id.items():
            group = durable.consumer
            if group is None:
                continue
            session_ms = self.context.session_timeout_ms(group_id)
            for member in group.members.values():
                self.context.timers.set(Timer.SESSION, group_id, member.member_id, session_ms, now)
                if member.state is MemberState.UNREVOKED and member.classic is None:
                    self.context.timers.set(
                        Timer.REBALANCE, group_id, member.member_id, member.rebalance_timeout_ms, now, member.epoch
                    )
            if group.patterns:
                self.resolver.refresh(group_id, now.monotonic_ms)

    def topics_changed(self, changed: dict[str, None], now: Moment) -> None:
        """React to topics that were created, deleted, recreated or got more partitions.

        If a group subscribes to such a topic, the next heartbeat of one of its members begins a new epoch, for which
        a new assignment is computed.
        """
        for group_id, durable in self.context.durable.by_id.items():
            group = durable.consumer
            if group is None:
                continue
            self.resolver.topics_changed(group, changed, now.monotonic_ms)
            if group_id not in self.context.groups_with_current_epoch:
                continue
            if not group.subscribed_topics().keys().isdisjoint(changed):
                del self.context.groups_with_current_epoch[group_id]

    def _remove_timed_out_member(self, subject: TimerSubject, out: Decision, now: Moment) -> None:
        remove_timed_out_member(self.context, subject, out, now)

    # Requests

    def heartbeat(self, beat: HeartbeatCall, now: Moment) -> Decision:
        """Handle ConsumerGroupHeartbeat. Raises ApiError."""
        return heartbeats.heartbeat(self.context, beat, now)

    def join(self, group: ConsumerGroup, joining: JoinCall, now: Moment) -> Decision:
        try:
            return classic_members.join(self.context, group, joining, now)
        except ApiError as error:
            out = Decision()
            refuse_join(joining.reply, joining.request.member_id, error.code, out)
            return out

    def sync(self, group: ConsumerGroup, request: "SyncGroupRequest", reply: Reply, now: Moment) -> Decision:
        return classic_members.sync(self.context, group, request, reply, now)

    def classic_heartbeat(self, group: ConsumerGroup, request: "HeartbeatRequest", now: Moment) -> ErrorCode:
        try:
            return classic_members.heartbeat(self.context, group, request, now)
        except ApiError as error:
            return error.code

    def leave(self, group: ConsumerGroup, request: "LeaveGroupRequest", reply: Reply, now: Moment) -> Decision:
        return classic_members.leave(self.context, group, request, reply, now)

    def forget(self, group_id: str) -> None:
        """Remove the soft state of a group that is being deleted or replaced by a classic group."""
        self.context.timers.forget_group(group_id)
        self.context.groups_with_current_epoch.pop(group_id, None)

    def describe(self, group_id: str) -> "DescribedGroup":
        """Describe a group. Raises GroupIdNotFound unless it is a group of the consumer protocol."""
        group = self.find(group_id)
        if group is None:
            exists = group_id in self.context.durable.by_id or group_id in self.context.classic_groups
            raise GroupIdNotFound(f"Group {group_id} {'is not a consumer group' if exists else 'not found'}.")
        return describe(group, self.context.consumer.assignors[0], self.context.image_now())

    # Offsets

    def check_commit(self, group: ConsumerGroup, commit: "OffsetCommit") -> None:
        """Raise ApiError unless the sender may commit these offsets now.

        A member may also commit a partition's offset with an older epoch, if it already had the partition in this
        older epoch (KIP-1251). For a wrong epoch, a producer that commits in a transaction gets ILLEGAL_GENERATION: no
        version of TxnOffsetCommit has STALE_MEMBER_EPOCH, and clients would treat that error as fatal.
        """
        if commit.generation < 0 and not group.members:
            return  # an administrator, or a consumer that assigns its partitions itself
        member = group.members.get(commit.member_id)
        if member is None:
            raise UnknownMemberId
        if member.classic is None and commit.version < MEMBER_EPOCH_SINCE:
            raise UnsupportedVersion
        if commit.generation == member.epoch:
            return
        stale = _stale_epoch_error(member, is_transactional=commit.is_transactional)
        if commit.generation > member.epoch:
            raise stale
        for offset in commit.offsets:
            epoch = member.assignment_epoch(offset.topic_id, offset.partition)
            if epoch is None or commit.generation < epoch:
                raise stale

    def check_fetch(self, group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
        """Raise ApiError unless the sender may fetch offsets. A client that is not a member sends neither a member id
        nor an epoch.
        """
        if member_id is None and epoch < 0:
            return
        member = group.members.get(member_id or "")
        if member is None:
            raise UnknownMemberId
        if epoch != member.epoch:
            raise _stale_epoch_error(member)


def _stale_epoch_error(member: Member, *, is_transactional: bool = False) -> ApiError:
    """Return the error for a request with another epoch than the member's.

    Members of the classic protocol and transactional producers do not know STALE_MEMBER_EPOCH. After ILLEGAL_GENERATION
    a producer aborts its transaction and continues.
    """
    if member.classic is not None or is_transactional:
        return IllegalGeneration()
    return ApiError(f"the member's epoch is {member.epoch}", ErrorCode.STALE_MEMBER_EPOCH)
