"""What clients ask of one group of the classic protocol: join, sync, heartbeat, leave, and whether they may commit.

Sources: KIP-62, KIP-345 (static members), KIP-394 (member ids), KIP-559 (protocol type and name), KIP-814 (leader).
"""

from typing import NamedTuple

from tidelog.coordinator.deadlines import Deadline, Deadlines
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.members import Member, Protocols, metadata_bytes, protocols_to_vote_for
from tidelog.coordinator.group.rebalance import NO_MEMBER_ID, RebalancingGroup, refuse_join
from tidelog.coordinator.group.settings import (
    METADATA_BYTES_MAX,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PENDING_MEMBERS_MAX,
    GroupSettings,
)
from tidelog.coordinator.group.state import GroupEvent, GroupState
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidelog.wire.messages.group_records import GroupMetadataValue
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberResponse
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

KNOWN_ID_VERSION = 4
"""From this version of JoinGroup on, a member first gets its id and then joins with it (KIP-394)."""
SKIP_ASSIGNMENT_VERSION = 9
"""From this version of JoinGroup on, a static leader that came back is told so and need not assign (KIP-814)."""


class Joining(NamedTuple):
    """A join and who sent it."""

    request: JoinGroupRequest
    reply: Reply
    client_id: str
    client_host: str
    version: int
    """Of JoinGroup."""
    fresh_uuid: str
    """A new random id in text, for a member that has none yet."""
    fresh_id: str = ""
    """The same in the form of the consumer protocol, for a group of that."""

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has one timeout for both."""
        return self.request.session_timeout_ms if self.version == 0 else self.request.rebalance_timeout_ms

    @property
    def asks_for_an_id(self) -> bool:
        """Whether the answer is a member id, with which the client is to join again (KIP-394)."""
        request = self.request
        known = request.member_id != NO_MEMBER_ID or request.group_instance_id is not None
        return self.version >= KNOWN_ID_VERSION and not known


class ClassicGroup(RebalancingGroup):
    """Every method is one step of the machine; what it leads to is added to a Decision."""

    __slots__ = ()

    @classmethod
    def from_record(
        cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings, deadlines: Deadlines, now: Moment
    ) -> "ClassicGroup":
        """The group as its last record left it: stable with its members, each with a new session, or empty."""
        group = cls(group_id, settings, deadlines, now)
        group.generation = value.generation
        group.protocol_type = value.protocol_type
        group.state_since_ms = value.current_state_timestamp if value.current_state_timestamp >= 0 else now.wall_ms
        if not value.members:
            if value.protocol_type:
                group._note_subscriptions()
            return group
        group.state = GroupState.STABLE
        group.protocol_name = value.protocol
        for told in value.members:
            if told.member_id in group.members or told.group_instance_id in group.members.static_ids:
                continue  # no group was ever like that; the record is not ours
            member = Member(
                member_id=told.member_id,
                instance_id=told.group_instance_id,
                client_id=told.client_id,
                client_host=told.client_host,
                rebalance_timeout_ms=told.rebalance_timeout if told.rebalance_timeout >= 0 else told.session_timeout,
                session_timeout_ms=told.session_timeout,
                protocols=[(value.protocol or "", told.subscription)],
                session=Deadline(group._session_over, told.member_id),
                assignment=told.assignment,
            )
            group.members.add(member)
            group._renew_session(member, now)
        group._note_subscriptions()
        if value.leader is not None and value.leader in group.members:
            group.members.leader_id = value.leader
        return group

    # Join

    def join(self, joining: Joining, now: Moment) -> Decision:
        """Answered at once, or when the rebalance's join phase ends."""
        out = Decision()
        request = joining.request
        protocols = protocols_of(request)
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self._drop(member_id, out, now)
            refuse_join(joining.reply, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
        elif not self._supports(joining, protocols):
            refuse_join(joining.reply, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, out)
        elif self.members.metadata_bytes + metadata_bytes(protocols) > METADATA_BYTES_MAX:
            refuse_join(joining.reply, member_id, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
        elif member_id == NO_MEMBER_ID:
            self._join_new(joining, protocols, out, now)
        elif member_id in self.members.pending:
            if request.group_instance_id is None:
                self._add(member_id, joining, protocols, out, now)
            else:
                # An id is handed out in advance only to members without an instance id. Kafka answers the same.
                refuse_join(joining.reply, NO_MEMBER_ID, ErrorCode.UNKNOWN_SERVER_ERROR, out)
        else:
            try:
                member = self.member(member_id, request.group_instance_id)
            except ApiError as error:
                refuse_join(joining.reply, member_id, error.code, out)
            else:
                self._rejoin(member, joining, protocols, out, now)
        return out

    def _join_new(self, joining: Joining, protocols: Protocols, out: Decision, now: Moment) -> None:
        instance_id = joining.request.group_instance_id
        if instance_id is not None:
            member_id = f"{instance_id}-{joining.fresh_uuid}"
            known = self.members.static_ids.get(instance_id)
            if known is None:
                self._add(member_id, joining, protocols, out, now)
            else:
                self._come_back(self.members.by_id[known], member_id, joining, protocols, out, now)
            return
        member_id = f"{joining.client_id}-{joining.fresh_uuid}"
        if joining.version < KNOWN_ID_VERSION:
            self._add(member_id, joining, protocols, out, now)
        elif len(self.members.pending) >= PENDING_MEMBERS_MAX:
            refuse_join(joining.reply, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
        else:
            session = Deadline(self._pending_over, member_id)
            self.members.pending[member_id] = session
            self._deadlines.set(session, now.monotonic_ms + joining.request.session_timeout_ms)
            refuse_join(joining.reply, member_id, ErrorCode.MEMBER_ID_REQUIRED, out)

    def _add(self, member_id: str, joining: Joining, protocols: Protocols, out: Decision, now: Moment) -> None:
        self._forget_pending(member_id)
        request = joining.request
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=joining.client_id,
            client_host=joining.client_host,
            rebalance_timeout_ms=joining.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
            session=Deadline(self._session_over, member_id),
        )
        member.is_new = True
        self._newcomer = self._starting
        self.members.add(member)
        self.members.park_join(member, joining.reply)
        # Its client may be gone for good; without an end, such members would hold up every rebalance.
        self._deadlines.set(member.session, now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(out, now)

    def _rejoin(self, member: Member, joining: Joining, protocols: Protocols, out: Decision, now: Moment) -> None:
        leads = self.members.leader_id == member.member_id
        unchanged = member.protocols == protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # It may have missed the answer to its join.
            out.reply(joining.reply, self._joined(member, with_members=leads))
        elif self.state is GroupState.STABLE and unchanged and not leads:
            out.reply(joining.reply, self._joined(member))
        else:
            # A leader that joins again wants a new assignment, though its own metadata may be the same.
            self._update(member, joining, protocols, out)
            self._rebalance_or_complete(out, now)

    def _update(self, member: Member, joining: Joining, protocols: Protocols, out: Decision) -> None:
        self.members.set_protocols(member, protocols)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.request.session_timeout_ms
        earlier = self.members.park_join(member, joining.reply)
        if earlier is not None:
            refuse_join(earlier, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS, out)

    def _come_back(
        self, member: Member, member_id: str, joining: Joining, protocols: Protocols, out: Decision, now: Moment
    ) -> None:
        """A static member restarted: a new id, the old place. Whoever used the old id is fenced."""
        old_leader_id = self.members.leader_id
        self._answer_parked(member, ErrorCode.FENCED_INSTANCE_ID, member.member_id, out)
        self._deadlines.clear(member.session)
        member.session = Deadline(self._session_over, member_id)
        self.members.rename(member, member_id)
        self._renew_session(member, now)  # by its former timeout, as in Kafka
        self._update(member, joining, protocols, out)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)
        elif self.state is GroupState.COMPLETING_REBALANCE or not self._keeps_generation():
            # In the first case the leader may be assigning to the old id at this moment.
            self._prepare_rebalance(out, now)
        else:
            self.members.take_join(member)
            out.records.append(self.record())
            leads = self.members.leader_id == member_id
            if joining.version >= SKIP_ASSIGNMENT_VERSION:
                out.reply(joining.reply, self._joined(member, with_members=leads, skip_assignment=leads))
            else:
                # Told the old leader's id, it does not take itself for the leader, and so does not assign.
                answer = self._joined(member)
                answer.leader = old_leader_id or ""
                out.reply(joining.reply, answer)

    def _keeps_generation(self) -> bool:
        """Whether the present generation still stands after a static member came back with other metadata."""
        same_protocol = self.members.select_protocol() == self.protocol_name
        return same_protocol and self._record_bytes() <= self._settings.record_bytes_max

    def _has_room_for(self, member_id: str) -> bool:
        members = self.members
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            known = members.by_id.get(member_id)
            if known is not None and known.join_reply is not None:
                return True
            return members.joining < self._settings.group_max_size
        return member_id in members or len(members) < self._settings.group_max_size

    def _supports(self, joining: Joining, protocols: Protocols) -> bool:
        """Whether a protocol can be chosen that this member and all others know. Kafka does not answer the only member
        of a group where none can.
        """
        protocol_type = joining.request.protocol_type
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return joining.asks_for_an_id or bool(protocols_to_vote_for(protocols))
        return protocol_type == self.protocol_type and self.members.support(protocols)

    # Sync

    def sync(self, request: SyncGroupRequest, reply: Reply, now: Moment) -> Decision:
        """The leader brings everyone's assignment, the others wait for theirs."""
        out = Decision()
        try:
            member = self._check_sync(request)
        except ApiError as error:
            out.reply(reply, SyncGroupResponse(error_code=error.code))
            return out
        self._synced(member.member_id)
        if self.state is GroupState.STABLE:
            out.reply(reply, self._assigned(member))  # no sign of life, as in Kafka
            return out
        if member.sync_reply is not None:
            out.reply(member.sync_reply, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member.member_id == self.members.leader_id:
            self._assign({told.member_id: told.assignment for told in request.assignments}, out, now)
        return out

    def _check_sync(self, request: SyncGroupRequest) -> Member:
        member = self.member(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise IllegalGeneration
        if _differ(request.protocol_type, self.protocol_type) or _differ(request.protocol_name, self.protocol_name):
            raise InconsistentGroupProtocol
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress
        return member

    def _assign(self, assignments: dict[str, bytes], out: Decision, now: Moment) -> None:
        """Whom the leader left out gets an empty assignment; whom it made up is ignored."""
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
        if self._record_bytes() > self._settings.record_bytes_max:
            self._refuse_assignment(ErrorCode.UNKNOWN_SERVER_ERROR, out, now)
            self._prepare_rebalance(out, now)
            return
        out.records.append(self.record())
        self._enter(GroupEvent.ASSIGNED, now)
        for member in self.members:
            if member.sync_reply is not None:
                waiting, member.sync_reply = member.sync_reply, None
                out.reply(waiting, self._assigned(member))
                self._renew_session(member, now)

    def _assigned(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def _synced(self, member_id: str) -> None:
        unsynced = self.members.unsynced
        if member_id in unsynced:
            del unsynced[member_id]
            if not unsynced:
                self._deadlines.clear(self._sync_end)

    # Heartbeat, leave, commit

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Moment) -> ErrorCode:
        """NONE, REBALANCE_IN_PROGRESS, or what is wrong with the member. Raises ApiError for the latter too."""
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._renew_session(member, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, request: LeaveGroupRequest, out: Decision, now: Moment) -> list[MemberResponse]:
        """Remove the members that the request names, by member id or (with an empty one) by group instance id."""
        told = []
        left = False
        for identity in request.members:
            error = self._leave_one(identity.member_id, identity.group_instance_id, out)
            left |= error is ErrorCode.NONE
            told.append(MemberResponse(identity.member_id, identity.group_instance_id, error))
        if left:
            self._members_changed(out, now)
        return told

    def _leave_one(self, member_id: str, instance_id: str | None, out: Decision) -> ErrorCode:
        if member_id == NO_MEMBER_ID:
            # An administrator removes a static member, whose member id only the group knows.
            member_id = self.members.static_ids.get(instance_id, NO_MEMBER_ID) if instance_id is not None else ""
        if self._forget_pending(member_id):
            return ErrorCode.NONE
        try:
            member = self.member(member_id, instance_id)
        except ApiError as error:
            return error.code
        self._remove(member, out)
        return ErrorCode.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: Moment) -> None:
        """Raise ApiError unless this committer may commit now; a member's session is renewed."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # an administrator, or a consumer that assigns its partitions itself
        if generation < 0 and not member_id and instance_id is None:
            raise UnknownMemberId
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress
        self._renew_session(member, now)

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """Raises FencedInstanceId when another member has the instance id, UnknownMemberId when there is none."""
        if instance_id is not None:
            known = self.members.static_ids.get(instance_id)
            if known is None:
                raise UnknownMemberId
            if known != member_id:
                raise FencedInstanceId
        member = self.members.by_id.get(member_id)
        if member is None:
            raise UnknownMemberId
        return member


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return [(protocol.name, protocol.metadata) for protocol in request.protocols]


def _differ(asked: str | None, known: str | None) -> bool:
    return asked is not None and known is not None and asked != known
