"""The requests of clients to one classic group: join, sync, heartbeat and leave, and the check of commits.

Sources: KIP-62, KIP-345 (static members), KIP-394 (member ids), KIP-559 (protocol type and name), KIP-814 (leader).
"""

from typing import NamedTuple

from tidelog.coordinator.deadlines import Deadline, Deadlines
from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.group.members import ClassicMember, Protocols, metadata_bytes, protocols_to_vote_for
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

MEMBER_ID_REQUIRED_SINCE = 4
"""From this version of JoinGroup on, a new member without an instance id gets only a member id as the answer to its
first request. The member then joins with this id (KIP-394)."""
SKIP_ASSIGNMENT_SINCE = 9
"""From this version of JoinGroup on, the response to a static leader that restarted says that the leader must not
assign the partitions again (KIP-814)."""


class JoinCall(NamedTuple):
    """A join request and its sender."""

    request: JoinGroupRequest
    reply: Reply
    client_id: str
    client_host: str
    version: int
    """The version of JoinGroup."""
    fresh_uuid: str
    """A new random UUID as hexadecimal text, for a member that has no id yet."""
    fresh_id: str = ""
    """The UUID of `fresh_uuid`, but as base64 text, for a new member of a group of the consumer protocol."""

    @property
    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout. Version 0 has no such field, so the session timeout is used."""
        return self.request.session_timeout_ms if self.version == 0 else self.request.rebalance_timeout_ms

    @property
    def needs_member_id(self) -> bool:
        """Whether the answer must be only a member id. The client then joins again with this id (KIP-394)."""
        request = self.request
        has_identity = request.member_id != NO_MEMBER_ID or request.group_instance_id is not None
        return self.version >= MEMBER_ID_REQUIRED_SINCE and not has_identity


class ClassicGroup(RebalancingGroup):
    """A classic group. Each method is one step of the state machine, and adds its effects to a Decision."""

    __slots__ = ()

    @classmethod
    def from_record(
        cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings, deadlines: Deadlines, now: Moment
    ) -> "ClassicGroup":
        """Restore a group from its last record. If the record contains members, the group is stable, and a new session
        begins for each member. Otherwise the group is empty.
        """
        group = cls(group_id, settings, deadlines, now)
        group.generation = value.generation
        group.protocol_type = value.protocol_type
        group.state_since_ms = value.current_state_timestamp if value.current_state_timestamp >= 0 else now.wall_ms
        if not value.members:
            if value.protocol_type:
                group._store_subscriptions()
            return group
        group.state = GroupState.STABLE
        group.protocol_name = value.protocol
        for record_member in value.members:
            if record_member.member_id in group.members or record_member.group_instance_id in group.members.static_ids:
                continue  # a second member with the same id; no coordinator writes such a record
            member = ClassicMember(
                member_id=record_member.member_id,
                instance_id=record_member.group_instance_id,
                client_id=record_member.client_id,
                client_host=record_member.client_host,
                rebalance_timeout_ms=record_member.rebalance_timeout
                if record_member.rebalance_timeout >= 0
                else record_member.session_timeout,
                session_timeout_ms=record_member.session_timeout,
                protocols=[(value.protocol or "", record_member.subscription)],
                session=Deadline(group._expire_session, record_member.member_id),
                assignment=record_member.assignment,
            )
            group.members.add(member)
            group._renew_session(member, now)
        group._store_subscriptions()
        if value.leader is not None and value.leader in group.members:
            group.members.leader_id = value.leader
        return group

    # Join

    def join(self, joining: JoinCall, now: Moment) -> Decision:
        """Handle JoinGroup. The request is answered immediately, or when the join phase of a rebalance ends."""
        out = Decision()
        request = joining.request
        protocols = protocols_of(request)
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self._remove_by_id(member_id, out, now)
            refuse_join(joining.reply, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
        elif not self._supports(joining, protocols):
            refuse_join(joining.reply, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, out)
        elif not self._has_memory_for(joining, protocols):
            refuse_join(joining.reply, member_id, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
        elif member_id == NO_MEMBER_ID:
            self._join_new(joining, protocols, out, now)
        elif member_id in self.members.pending:
            if request.group_instance_id is None:
                self._add(member_id, joining, protocols, out, now)
            else:
                # Only a client without an instance id is asked to join again with a new member id, so this request is
                # not valid. Kafka refuses it with the same error.
                refuse_join(joining.reply, NO_MEMBER_ID, ErrorCode.UNKNOWN_SERVER_ERROR, out)
        else:
            try:
                member = self.member(member_id, request.group_instance_id)
            except ApiError as error:
                refuse_join(joining.reply, member_id, error.code, out)
            else:
                self._rejoin(member, joining, protocols, out, now)
        return out

    def _has_memory_for(self, joining: JoinCall, protocols: Protocols) -> bool:
        """Return False if the joining member's protocols need more memory than before, and the protocols of all members
        would exceed METADATA_BYTES_MAX. Otherwise return True. A member that replaces a static member is compared with
        the replaced member.
        """
        request = joining.request
        member_id = request.member_id or self.members.static_ids.get(request.group_instance_id or "", NO_MEMBER_ID)
        old = self.members.by_id.get(member_id)
        growth = metadata_bytes(protocols) - (0 if old is None else metadata_bytes(old.protocols))
        return growth <= 0 or self.members.metadata_bytes + growth <= METADATA_BYTES_MAX

    def _join_new(self, joining: JoinCall, protocols: Protocols, out: Decision, now: Moment) -> None:
        """Handle the join of a client that has no member id yet."""
        instance_id = joining.request.group_instance_id
        if instance_id is not None:
            member_id = f"{instance_id}-{joining.fresh_uuid}"
            old_member_id = self.members.static_ids.get(instance_id)
            if old_member_id is None:
                self._add(member_id, joining, protocols, out, now)
            else:
                self._replace_static(self.members.by_id[old_member_id], member_id, joining, protocols, out, now)
            return
        member_id = f"{joining.client_id}-{joining.fresh_uuid}"
        if joining.version < MEMBER_ID_REQUIRED_SINCE:
            self._add(member_id, joining, protocols, out, now)
        elif len(self.members.pending) >= PENDING_MEMBERS_MAX:
            refuse_join(joining.reply, NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
        else:
            session = Deadline(self._expire_pending, member_id)
            self.members.pending[member_id] = session
            self._deadlines.set(session, now.monotonic_ms + joining.request.session_timeout_ms)
            refuse_join(joining.reply, member_id, ErrorCode.MEMBER_ID_REQUIRED, out)

    def _add(self, member_id: str, joining: JoinCall, protocols: Protocols, out: Decision, now: Moment) -> None:
        """Add a new member, park its join request, and begin or continue a rebalance."""
        self._forget_pending(member_id)
        request = joining.request
        if not self.members:
            self.protocol_type = request.protocol_type
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=joining.client_id,
            client_host=joining.client_host,
            rebalance_timeout_ms=joining.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
            session=Deadline(self._expire_session, member_id),
        )
        member.is_new = True
        self._joined_during_delay = self._is_first_rebalance  # other rebalances have no delay
        self.members.add(member)
        self.members.park_join(member, joining.reply)
        # The client may have disconnected permanently. Without this deadline, its member would delay every rebalance.
        self._deadlines.set(member.session, now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(out, now)

    def _rejoin(
        self, member: ClassicMember, joining: JoinCall, protocols: Protocols, out: Decision, now: Moment
    ) -> None:
        is_leader = self.members.leader_id == member.member_id
        has_same_protocols = member.protocols == protocols
        if self.state is GroupState.COMPLETING_REBALANCE and has_same_protocols:
            # The member may have missed the response to its join.
            out.reply(joining.reply, self._join_response(member, with_members=is_leader))
        elif self.state is GroupState.STABLE and has_same_protocols and not is_leader:
            out.reply(joining.reply, self._join_response(member))
        else:
            # A leader that joins again requests a new assignment, even if its own metadata has not changed.
            self._update(member, joining, protocols, out)
            self._rebalance_or_complete(out, now)

    def _update(self, member: ClassicMember, joining: JoinCall, protocols: Protocols, out: Decision) -> None:
        self.members.set_protocols(member, protocols)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.request.session_timeout_ms
        previous_reply = self.members.park_join(member, joining.reply)
        if previous_reply is not None:
            refuse_join(previous_reply, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS, out)

    def _replace_static(
        self, member: ClassicMember, member_id: str, joining: JoinCall, protocols: Protocols, out: Decision, now: Moment
    ) -> None:
        """Change the id of a static member that restarted, without removing the member. Requests with its instance id
        and its old member id are refused with FENCED_INSTANCE_ID.
        """
        old_leader_id = self.members.leader_id
        self._answer_parked(member, ErrorCode.FENCED_INSTANCE_ID, member.member_id, out)
        self._deadlines.clear(member.session)
        member.session = Deadline(self._expire_session, member_id)
        self.members.rename(member, member_id)
        self._renew_session(member, now)  # with the previous session timeout, as in Kafka
        self._update(member, joining, protocols, out)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(out, now)
        elif self.state is GroupState.COMPLETING_REBALANCE or not self._keeps_generation():
            # In the state COMPLETING_REBALANCE, the leader may be assigning partitions to the old id at this moment.
            self._prepare_rebalance(out, now)
        else:
            self.members.unpark_join(member)
            out.records.append(self.record())
            is_leader = self.members.leader_id == member_id
            if joining.version >= SKIP_ASSIGNMENT_SINCE:
                out.reply(joining.reply, self._join_response(member, with_members=is_leader, skip_assignment=is_leader))
            else:
                # The response contains the leader's id from before the change of ids. Thus the member does not consider
                # itself the leader, and assigns no partitions.
                answer = self._join_response(member)
                answer.leader = old_leader_id or ""
                out.reply(joining.reply, answer)

    def _keeps_generation(self) -> bool:
        """Return whether the current generation remains valid after a static member has joined again, perhaps with
        other metadata.
        """
        same_protocol = self.members.select_protocol() == self.protocol_name
        return same_protocol and self._record_bytes() <= self._settings.record_bytes_max

    def _has_room_for(self, member_id: str) -> bool:
        members = self.members
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            member = members.by_id.get(member_id)
            if member is not None and member.join_reply is not None:
                return True
            return members.parked_join_count < self._settings.group_max_size
        return member_id in members or len(members) < self._settings.group_max_size

    def _supports(self, joining: JoinCall, protocols: Protocols) -> bool:
        """Return whether at least one of the joining member's protocols is supported by all current members. A member
        that joins again is also compared with its own previous protocols, as in Kafka.

        A protocol that the member names more than once does not count. If the only member of a group names every
        protocol more than once, Kafka never answers the join, and Tidelog refuses it.
        """
        protocol_type = joining.request.protocol_type
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return joining.needs_member_id or bool(protocols_to_vote_for(protocols))
        return protocol_type == self.protocol_type and self.members.supports(protocols)

    # Sync

    def sync(self, request: SyncGroupRequest, reply: Reply, now: Moment) -> Decision:
        """Handle SyncGroup. The leader's request contains the assignment of all members. Until it arrives, the requests
        of other members are parked.
        """
        out = Decision()
        try:
            member = self._check_sync(request)
        except ApiError as error:
            out.reply(reply, SyncGroupResponse(error_code=error.code))
            return out
        self._mark_synced(member.member_id)
        if self.state is GroupState.STABLE:
            out.reply(reply, self._sync_response(member))  # as in Kafka, this does not renew the session
            return out
        if member.sync_reply is not None:
            out.reply(member.sync_reply, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member.member_id == self.members.leader_id:
            self._assign({assigned.member_id: assigned.assignment for assigned in request.assignments}, out, now)
        return out

    def _check_sync(self, request: SyncGroupRequest) -> ClassicMember:
        member = self.member(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise IllegalGeneration
        if _differ(request.protocol_type, self.protocol_type) or _differ(request.protocol_name, self.protocol_name):
            raise InconsistentGroupProtocol
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress
        return member

    def _assign(self, assignments: dict[str, bytes], out: Decision, now: Moment) -> None:
        """Store the leader's assignment. A member without an entry in `assignments` gets an empty assignment. Entries
        of unknown members are ignored. If the group's record would be too large, the assignment is refused, and a new
        rebalance begins.
        """
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
        if self._record_bytes() > self._settings.record_bytes_max:
            self._cancel_assignment(ErrorCode.UNKNOWN_SERVER_ERROR, out, now)
            self._prepare_rebalance(out, now)
            return
        out.records.append(self.record())
        self._transition(GroupEvent.ASSIGNED, now)
        for member in self.members:
            if member.sync_reply is not None:
                sync_reply, member.sync_reply = member.sync_reply, None
                out.reply(sync_reply, self._sync_response(member))
                self._renew_session(member, now)

    def _sync_response(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def _mark_synced(self, member_id: str) -> None:
        unsynced = self.members.unsynced
        if member_id in unsynced:
            del unsynced[member_id]
            if not unsynced:
                self._deadlines.clear(self._sync_end)

    # Heartbeat, leave, commit

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Moment) -> ErrorCode:
        """Handle Heartbeat. Return NONE, REBALANCE_IN_PROGRESS or ILLEGAL_GENERATION. Raises ApiError for an unknown or
        fenced member.
        """
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._renew_session(member, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, request: LeaveGroupRequest, out: Decision, now: Moment) -> list[MemberResponse]:
        """Handle LeaveGroup: remove members. The request names each member by its member id, or by its group
        instance id and an empty member id.

        Returns one response for each member in the request.
        """
        responses = []
        any_left = False
        for identity in request.members:
            error = self._remove_leaving(identity.member_id, identity.group_instance_id, out)
            any_left |= error is ErrorCode.NONE
            responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error))
        if any_left:
            self._members_changed(out, now)
        return responses

    def _remove_leaving(self, member_id: str, instance_id: str | None, out: Decision) -> ErrorCode:
        if member_id == NO_MEMBER_ID and instance_id is not None:
            # An administrator that removes a static member knows only its group instance id.
            member_id = self.members.static_ids.get(instance_id, NO_MEMBER_ID)
        if self._forget_pending(member_id):
            return ErrorCode.NONE
        try:
            member = self.member(member_id, instance_id)
        except ApiError as error:
            return error.code
        self._remove(member, out)
        return ErrorCode.NONE

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: Moment, *, is_transactional: bool = False
    ) -> None:
        """Raise ApiError unless the sender of the commit may commit now. If it is a member, renew its session.

        A transactional commit with the new generation is allowed even while the members wait for their assignments.
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # an administrator, or a consumer that assigns its partitions itself
        if generation < 0 and not member_id and instance_id is None:
            raise UnknownMemberId
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration
        if self.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
            raise RebalanceInProgress
        self._renew_session(member, now)

    def member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member. Raises FencedInstanceId if another member has the instance id, and UnknownMemberId if no
        member has the instance id, or none has the member id.
        """
        if instance_id is not None:
            current_member_id = self.members.static_ids.get(instance_id)
            if current_member_id is None:
                raise UnknownMemberId
            if current_member_id != member_id:
                raise FencedInstanceId
        member = self.members.by_id.get(member_id)
        if member is None:
            raise UnknownMemberId
        return member


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return [(protocol.name, protocol.metadata) for protocol in request.protocols]


def _differ(requested: str | None, current: str | None) -> bool:
    return requested is not None and current is not None and requested != current
