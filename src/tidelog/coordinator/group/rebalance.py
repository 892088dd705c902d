"""The phases of a classic group (waiting for joins, waiting for the assignment, stable) and the deadline of each
phase.

The phase and its deadline are soft state. A new coordinator restores only the content of a `GroupRecord`: the members
and assignments of a stable generation, or the fact that the group is empty. As in Kafka, a rebalance in progress is
lost with the coordinator, and the members begin a new rebalance. Sources: KIP-62 (rebalance timeout), KIP-134 (initial
delay), KIP-345 (static members).
"""

from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.deadlines import Deadline, Deadlines
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.members import ClassicMember, ClassicMembers, topics_of
from tidelog.coordinator.group.records import GroupRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state import NEXT_STATE, GroupEvent, GroupState
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata
from tidelog.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.sync_group import SyncGroupResponse

NO_MEMBER_ID = ""
NEW_MEMBER_TIMED_OUT = "the rebalance that the new member waited for did not end in time"
RECORD_OVERHEAD_BYTES = 512
MEMBER_OVERHEAD_BYTES = 64
"""Upper bounds on the overhead of the group's record and of each member in the record, in bytes."""
UTF8_BYTES_MAX = 4
"""Maximum number of bytes that a character has in UTF-8."""


class RebalancingGroup:
    """The state machine of a classic group. Its events are members that join or leave, and deadlines.

    `ClassicGroup` adds the requests of clients.
    """

    __slots__ = (
        "_deadlines",
        "_delay_ms",
        "_is_first_rebalance",
        "_join_end",
        "_joined_during_delay",
        "_remaining_delay_ms",
        "_settings",
        "_subscriptions",
        "_sync_end",
        "_topics",
        "generation",
        "group_id",
        "members",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_ms",
    )

    def __init__(self, group_id: str, settings: GroupSettings, deadlines: Deadlines, now: Moment) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = now.wall_ms
        self.generation = 0
        self.protocol_type = ""
        """Empty until the first member joins."""
        self.protocol_name: str | None = None
        self.members = ClassicMembers()
        self._settings = settings
        self._deadlines = deadlines
        self._join_end = Deadline(self._end_join_phase)
        self._sync_end = Deadline(self._end_sync_phase)
        self._is_first_rebalance = False
        """Whether the current rebalance is a first rebalance: it began in an empty group and waits for more members."""
        self._joined_during_delay = False
        """Whether another member joined during the current delay of a first rebalance."""
        self._delay_ms = 0
        """Length of the current delay of a first rebalance, in milliseconds."""
        self._remaining_delay_ms = 0
        """Upper bound on the next delay, in milliseconds; 0 if no further delay is allowed."""
        self._subscriptions: list[bytes] | None = None
        """Encoded subscriptions that have not been decoded into `_topics` yet."""
        self._topics: frozenset[str] | None = None

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members subscribed to when the current generation began.

        Returns None if a subscription cannot be decoded, and before the first generation.
        """
        if self._subscriptions is not None:
            self._topics = topics_of(self._subscriptions)
            self._subscriptions = None
        return self._topics

    def _store_subscriptions(self) -> None:
        self._subscriptions = [member.metadata_for(self.protocol_name) for member in self.members]

    def shrink_to_fit(self, out: Decision, now: Moment) -> None:
        """Rebalance a group that has more members than `group.max.size` allows. Called after a load, because the
        setting may have changed.
        """
        if len(self.members) > self._settings.group_max_size:
            self._prepare_rebalance(out, now)

    def begin_rebalance(self, out: Decision, now: Moment) -> None:
        """Rebalance a classic group that a downgrade of a consumer group has just created. The new group's assignment
        is already out of date.
        """
        self._prepare_rebalance(out, now)

    def renew_sessions(self, now: Moment) -> None:
        for member in self.members:
            self._renew_session(member, now)

    def dissolve(self, error: ErrorCode, out: Decision) -> None:
        """End this group, because a consumer group replaces it. Parked requests are answered with `error`, and all
        deadlines are cleared.
        """
        for member in self.members:
            self._answer_parked(member, error, member.member_id, out)
            self._deadlines.clear(member.session)
        for member_id in list(self.members.pending):
            self._forget_pending(member_id)
        self._deadlines.clear(self._join_end)
        self._deadlines.clear(self._sync_end)

    def _rebalance_or_complete(self, out: Decision, now: Moment) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)
        else:
            self._prepare_rebalance(out, now)

    def _members_changed(self, out: Decision, now: Moment) -> None:
        """Rebalance the remaining members. Called after the removal of a member, or of a member id with which no client
        has joined yet.

        If the group already waits for joins, only check whether the join phase can end.
        """
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(out, now)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)

    def _prepare_rebalance(self, out: Decision, now: Moment) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._cancel_assignment(ErrorCode.REBALANCE_IN_PROGRESS, out, now)
        self._deadlines.clear(self._sync_end)
        self._is_first_rebalance = self.state is GroupState.EMPTY
        self._transition(GroupEvent.REBALANCE_NEEDED, now)
        if self._is_first_rebalance:
            self._joined_during_delay = False
            self._delay_ms = self._settings.initial_rebalance_delay_ms
            self._remaining_delay_ms = max(self.members.rebalance_timeout_ms - self._delay_ms, 0)
            self._deadlines.set(self._join_end, now.monotonic_ms + self._delay_ms)
        elif self.members.all_joined:
            self._complete_join(out, now)
        else:
            self._deadlines.set(self._join_end, now.monotonic_ms + self.members.rebalance_timeout_ms)

    def _maybe_complete_join(self, out: Decision, now: Moment) -> None:
        if not self._is_first_rebalance and self.members.all_joined:
            self._complete_join(out, now)

    def _end_join_phase(self, _: object, out: Decision, now: Moment) -> None:
        if self._is_first_rebalance and self._joined_during_delay and self._remaining_delay_ms:
            # Members are joining one after another, so wait longer, but at most for their rebalance timeout (KIP-134).
            self._joined_during_delay = False
            elapsed_ms = self._delay_ms
            self._delay_ms = min(self._settings.initial_rebalance_delay_ms, self._remaining_delay_ms)
            self._remaining_delay_ms = max(self._remaining_delay_ms - elapsed_ms, 0)
            self._deadlines.set(self._join_end, now.monotonic_ms + self._delay_ms)
        else:
            self._complete_join(out, now)

    def _complete_join(self, out: Decision, now: Moment) -> None:
        """End the join phase with the members that have joined. Static members remain in the group even if they have
        not joined.
        """
        self._deadlines.clear(self._join_end)
        self._is_first_rebalance = False
        for member in [m for m in self.members if m.join_reply is None and m.instance_id is None]:
            self._remove_timed_out(member, Timer.JOIN.value, out)
        if self.members and not self.members.elect_joined_leader():
            # Only static members remain, and none of them has joined: wait again, at most for the rebalance timeout.
            self._deadlines.set(self._join_end, now.monotonic_ms + self.members.rebalance_timeout_ms)
            return
        self.generation += 1
        self.members.unsynced.clear()
        if not self.members:
            self.protocol_name = None
            self._store_subscriptions()
            self._transition(GroupEvent.NOBODY_JOINED, now)
            out.records.append(self.record())
            return
        self.protocol_name = self.members.select_protocol()
        self._store_subscriptions()
        self._transition(GroupEvent.MEMBERS_JOINED, now)
        for member in self.members:
            reply = self.members.unpark_join(member)
            if reply is not None:
                is_leader = member.member_id == self.members.leader_id
                out.reply(reply, self._join_response(member, with_members=is_leader))
            self._renew_session(member, now)
            member.is_new = False
            self.members.unsynced[member.member_id] = None
        self._deadlines.set(self._sync_end, now.monotonic_ms + self.members.rebalance_timeout_ms)

    def _end_sync_phase(self, _: object, out: Decision, now: Moment) -> None:
        """Remove members that joined but did not send SyncGroup in time."""
        for member_id in list(self.members.unsynced):
            self._remove_timed_out(self.members.by_id[member_id], Timer.SYNC.value, out)
        self._prepare_rebalance(out, now)

    # Assignment

    def _cancel_assignment(self, error: ErrorCode, out: Decision, now: Moment) -> None:
        for member in self.members:
            member.assignment = b""
            if member.sync_reply is not None:
                sync_reply, member.sync_reply = member.sync_reply, None
                out.reply(sync_reply, SyncGroupResponse(error_code=error))
                self._renew_session(member, now)

    # Sessions

    def _renew_session(self, member: ClassicMember, now: Moment) -> None:
        self._deadlines.set(member.session, now.monotonic_ms + member.session_timeout_ms)

    def _expire_session(self, member_id: str, out: Decision, now: Moment) -> None:
        member = self.members.by_id[member_id]
        if not member.is_new and (member.join_reply is not None or member.sync_reply is not None):
            return  # the member waits for the answer to a parked request, and this answer renews the session
        self._remove_timed_out(member, NEW_MEMBER_TIMED_OUT if member.is_new else Timer.SESSION.value, out)
        self._members_changed(out, now)

    def _expire_pending(self, member_id: str, out: Decision, now: Moment) -> None:
        del self.members.pending[member_id]
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)

    def _forget_pending(self, member_id: str) -> bool:
        session = self.members.pending.pop(member_id, None)
        if session is None:
            return False
        self._deadlines.clear(session)
        return True

    def _remove_by_id(self, member_id: str, out: Decision, now: Moment) -> None:
        """Remove a member. If the id belongs to a client that has not joined with it yet, remove the id. Called when
        the group has too many members.
        """
        member = self.members.by_id.get(member_id)
        if member is not None:
            self._remove(member, out)
            self._members_changed(out, now)
        elif self._forget_pending(member_id):
            self._members_changed(out, now)

    def _remove_timed_out(self, member: ClassicMember, reason: str, out: Decision) -> None:
        """Remove a member that timed out. The removal is logged, because it does not follow from a client's request."""
        out.log("member removed group=%s member=%s reason=%s", self.group_id, member.member_id, reason)
        self._remove(member, out)

    def _remove(self, member: ClassicMember, out: Decision) -> None:
        self._answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID, out)
        self._deadlines.clear(member.session)
        self.members.remove(member)

    def _answer_parked(self, member: ClassicMember, error: ErrorCode, member_id: str, out: Decision) -> None:
        join_reply = self.members.unpark_join(member)
        if join_reply is not None:
            refuse_join(join_reply, member_id, error, out)
        if member.sync_reply is not None:
            sync_reply, member.sync_reply = member.sync_reply, None
            out.reply(sync_reply, SyncGroupResponse(error_code=error))

    # Answers and records

    def _join_response(
        self, member: ClassicMember, *, with_members: bool = False, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=self._joined_members() if with_members else [],
        )

    def _joined_members(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata_for(self.protocol_name),
            )
            for member in self.members
        ]

    def delete(self, now: Moment) -> None:
        """Mark an empty group as deleted. Member ids that clients have not joined with yet become invalid."""
        self._transition(GroupEvent.DELETED, now)
        for member_id in list(self.members.pending):
            self._forget_pending(member_id)

    def parked_replies(self) -> list[Reply]:
        """Return the replies of all parked requests."""
        replies = [member.join_reply for member in self.members if member.join_reply is not None]
        return replies + [member.sync_reply for member in self.members if member.sync_reply is not None]

    def record(self) -> GroupRecord:
        """Return the record of the group's current state, from which a new coordinator restores the group."""
        members = [
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata_for(self.protocol_name),
                assignment=member.assignment,
            )
            for member in self.members
        ]
        value = GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.members.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=members,
        )
        return GroupRecord(self.group_id, value)

    def _record_bytes(self) -> int:
        """Return an upper bound on the size of the batch with the group's record, in bytes."""
        names = len(self.group_id) + len(self.protocol_type or "") + len(self.protocol_name or "")
        size = RECORD_OVERHEAD_BYTES + UTF8_BYTES_MAX * names
        for member in self.members:
            names = len(member.member_id) + len(member.client_id) + len(member.instance_id or "")
            size += MEMBER_OVERHEAD_BYTES + UTF8_BYTES_MAX * names
            size += len(member.metadata_for(self.protocol_name)) + len(member.assignment)
        return size

    def _transition(self, event: GroupEvent, now: Moment) -> None:
        self.state = NEXT_STATE[self.state, event]
        self.state_since_ms = now.wall_ms


def refuse_join(reply: Reply, member_id: str, error: ErrorCode, out: Decision) -> None:
    out.reply(reply, JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=None))
