"""The phases of a classic group: waiting for joins, waiting for the assignment, stable; and the deadlines of each.

Soft state. Only what a `GroupRecord` says outlives the broker: the members and assignments of a stable generation, and
that a group is empty. A rebalance under way is lost with the coordinator, as in Kafka, and the members begin it anew.
Sources: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members).
"""

from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.deadlines import Deadline, Deadlines
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.members import Member, Members, topics_of
from tidelog.coordinator.group.records import GroupRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state import NEXT, GroupEvent, GroupState
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata
from tidelog.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.sync_group import SyncGroupResponse

NO_MEMBER_ID = ""
NOT_TAKEN_IN = "the rebalance that the new member waited for did not end in time"
RECORD_OVERHEAD_BYTES = 512
MEMBER_OVERHEAD_BYTES = 64


class RebalancingGroup:
    """A group that moves by itself: members come and go, time passes. `ClassicGroup` adds what clients ask of it."""

    __slots__ = (
        "_deadlines",
        "_delay_left_ms",
        "_delay_ms",
        "_join_end",
        "_newcomer",
        "_settings",
        "_starting",
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
        """Empty until somebody joined."""
        self.protocol_name: str | None = None
        self.members = Members()
        self._settings = settings
        self._deadlines = deadlines
        self._join_end = Deadline(self._join_phase_over)
        self._sync_end = Deadline(self._sync_phase_over)
        self._starting = False  # in the first rebalance after being empty, which waits for more members
        self._newcomer = False  # somebody joined during the present delay of that rebalance
        self._delay_ms = 0
        self._delay_left_ms = 0
        self._subscriptions: list[bytes] | None = None  # metadata of which `_topics` are not read yet
        self._topics: frozenset[str] | None = None

    def subscribed_topics(self) -> frozenset[str] | None:
        """What the members of the present generation read, as they said when it began.

        None unless that is known exactly; nothing is known before the first generation.
        """
        if self._subscriptions is not None:
            self._topics = topics_of(self._subscriptions)
            self._subscriptions = None
        return self._topics

    def _note_subscriptions(self) -> None:
        self._subscriptions = [member.metadata_for(self.protocol_name) for member in self.members]

    def shrink_to_fit(self, out: Decision, now: Moment) -> None:
        """After a load: rebalance a group that is larger than `group.max.size` allows now."""
        if len(self.members) > self._settings.group_max_size:
            self._prepare_rebalance(out, now)

    def begin_rebalance(self, out: Decision, now: Moment) -> None:
        """The members' assignment is out of date from the start."""
        self._prepare_rebalance(out, now)

    def renew_sessions(self, now: Moment) -> None:
        for member in self.members:
            self._renew_session(member, now)

    def dissolve(self, error: ErrorCode, out: Decision) -> None:
        """This is no classic group any more: whoever waits is answered with `error`, nothing is due."""
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
        """Somebody left: those who are still there rebalance."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(out, now)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)

    def _prepare_rebalance(self, out: Decision, now: Moment) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._refuse_assignment(ErrorCode.REBALANCE_IN_PROGRESS, out, now)
        self._deadlines.clear(self._sync_end)
        self._starting = self.state is GroupState.EMPTY
        self._enter(GroupEvent.REBALANCE_NEEDED, now)
        if self._starting:
            self._newcomer = False
            self._delay_ms = self._settings.initial_rebalance_delay_ms
            self._delay_left_ms = max(self.members.rebalance_timeout_ms - self._delay_ms, 0)
            self._deadlines.set(self._join_end, now.monotonic_ms + self._delay_ms)
        elif self.members.all_joined:
            self._complete_join(out, now)
        else:
            self._deadlines.set(self._join_end, now.monotonic_ms + self.members.rebalance_timeout_ms)

    def _maybe_complete_join(self, out: Decision, now: Moment) -> None:
        if not self._starting and self.members.all_joined:
            self._complete_join(out, now)

    def _join_phase_over(self, _: object, out: Decision, now: Moment) -> None:
        if self._starting and self._newcomer and self._delay_left_ms:
            # Members come in one after another: wait on, though never longer than they agreed to (KIP-134).
            self._newcomer = False
            elapsed_ms = self._delay_ms
            self._delay_ms = min(self._settings.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms = max(self._delay_left_ms - elapsed_ms, 0)
            self._deadlines.set(self._join_end, now.monotonic_ms + self._delay_ms)
        else:
            self._complete_join(out, now)

    def _complete_join(self, out: Decision, now: Moment) -> None:
        """End the join phase with whoever is there; static members keep their place though they did not come."""
        self._deadlines.clear(self._join_end)
        self._starting = False
        for member in [m for m in self.members if m.join_reply is None and m.instance_id is None]:
            self._remove_late(member, Timer.JOIN.value, out)
        if self.members and not self.members.elect_joined_leader():
            # Only static members that are away: wait until one comes or its session ends.
            self._deadlines.set(self._join_end, now.monotonic_ms + self.members.rebalance_timeout_ms)
            return
        self.generation += 1
        self.members.unsynced.clear()
        if not self.members:
            self.protocol_name = None
            self._note_subscriptions()
            self._enter(GroupEvent.NOBODY_JOINED, now)
            out.records.append(self.record())
            return
        self.protocol_name = self.members.select_protocol()
        self._note_subscriptions()
        self._enter(GroupEvent.MEMBERS_JOINED, now)
        for member in self.members:
            reply = self.members.take_join(member)
            if reply is not None:
                leads = member.member_id == self.members.leader_id
                out.reply(reply, self._joined(member, with_members=leads))
            self._renew_session(member, now)
            member.is_new = False
            self.members.unsynced[member.member_id] = None
        self._deadlines.set(self._sync_end, now.monotonic_ms + self.members.rebalance_timeout_ms)

    def _sync_phase_over(self, _: object, out: Decision, now: Moment) -> None:
        """Members that took part in the join and never asked for their assignment are gone."""
        for member_id in list(self.members.unsynced):
            self._remove_late(self.members.by_id[member_id], Timer.SYNC.value, out)
        self._prepare_rebalance(out, now)

    # Assignment

    def _refuse_assignment(self, error: ErrorCode, out: Decision, now: Moment) -> None:
        for member in self.members:
            member.assignment = b""
            if member.sync_reply is not None:
                waiting, member.sync_reply = member.sync_reply, None
                out.reply(waiting, SyncGroupResponse(error_code=error))
                self._renew_session(member, now)

    # Sessions

    def _renew_session(self, member: Member, now: Moment) -> None:
        self._deadlines.set(member.session, now.monotonic_ms + member.session_timeout_ms)

    def _session_over(self, member_id: str, out: Decision, now: Moment) -> None:
        member = self.members.by_id[member_id]
        if not member.is_new and (member.join_reply is not None or member.sync_reply is not None):
            return  # it waits for us, not we for it; the answer renews the session
        self._remove_late(member, NOT_TAKEN_IN if member.is_new else Timer.SESSION.value, out)
        self._members_changed(out, now)

    def _pending_over(self, member_id: str, out: Decision, now: Moment) -> None:
        del self.members.pending[member_id]
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)

    def _forget_pending(self, member_id: str) -> bool:
        session = self.members.pending.pop(member_id, None)
        if session is None:
            return False
        self._deadlines.clear(session)
        return True

    def _drop(self, member_id: str, out: Decision, now: Moment) -> None:
        """Remove a member that has no place any more, whether it joined or only got its id."""
        member = self.members.by_id.get(member_id)
        if member is not None:
            self._remove(member, out)
            self._members_changed(out, now)
        elif self._forget_pending(member_id):
            self._members_changed(out, now)

    def _remove_late(self, member: Member, reason: str, out: Decision) -> None:
        """Remove a member whose time is up, and say why in the log: nobody asked for that."""
        out.log("member removed group=%s member=%s reason=%s", self.group_id, member.member_id, reason)
        self._remove(member, out)

    def _remove(self, member: Member, out: Decision) -> None:
        self._answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID, out)
        self._deadlines.clear(member.session)
        self.members.remove(member)

    def _answer_parked(self, member: Member, error: ErrorCode, member_id: str, out: Decision) -> None:
        joining = self.members.take_join(member)
        if joining is not None:
            refuse_join(joining, member_id, error, out)
        if member.sync_reply is not None:
            syncing, member.sync_reply = member.sync_reply, None
            out.reply(syncing, SyncGroupResponse(error_code=error))

    # Answers and records

    def _joined(
        self, member: Member, *, with_members: bool = False, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=self._told_members() if with_members else [],
        )

    def _told_members(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata_for(self.protocol_name),
            )
            for member in self.members
        ]

    def delete(self, now: Moment) -> None:
        """Nothing is left of an empty group; ids that were handed out are void."""
        self._enter(GroupEvent.DELETED, now)
        for member_id in list(self.members.pending):
            self._forget_pending(member_id)

    def parked(self) -> list[Reply]:
        """Everyone who waits for an answer."""
        replies = [member.join_reply for member in self.members if member.join_reply is not None]
        return replies + [member.sync_reply for member in self.members if member.sync_reply is not None]

    def record(self) -> GroupRecord:
        """What outlives the coordinator of the group as it is now."""
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
        """At least what the batch with the group's record takes."""
        size = RECORD_OVERHEAD_BYTES + 3 * len(self.group_id)
        for member in self.members:
            names = len(member.member_id) + len(member.client_id) + len(member.instance_id or "")
            size += MEMBER_OVERHEAD_BYTES + 3 * names
            size += len(member.metadata_for(self.protocol_name)) + len(member.assignment)
        return size

    def _enter(self, event: GroupEvent, now: Moment) -> None:
        self.state = NEXT[self.state, event]
        self.state_since_ms = now.wall_ms


def refuse_join(reply: Reply, member_id: str, error: ErrorCode, out: Decision) -> None:
    out.reply(reply, JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=None))
