"""All groups of one partition of `__consumer_offsets`. The core finds the group of each request, and the group makes
the decision.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from tidelog.coordinator.consumer.groups import ConsumerGroups
from tidelog.coordinator.consumer.heartbeats import HeartbeatCall
from tidelog.coordinator.consumer.state import PROTOCOL_TYPE, ConsumerGroupState
from tidelog.coordinator.consumer.topics import changed_names
from tidelog.coordinator.deadlines import Deadlines
from tidelog.coordinator.decision import Decision, LoadOrder, Moment, Producer, Reply
from tidelog.coordinator.group.classic import ClassicGroup, JoinCall
from tidelog.coordinator.group.deletion import check_deletable, check_offsets_deletable, is_empty, is_subscribed
from tidelog.coordinator.group.durable import DurableGroup, DurableGroups
from tidelog.coordinator.group.members import ClassicMember
from tidelog.coordinator.group.offsets import OffsetCommit, PreparedCommit, expired_offsets, prepare_commit
from tidelog.coordinator.group.pending_offsets import OffsetKey
from tidelog.coordinator.group.rebalance import NO_MEMBER_ID, refuse_join
from tidelog.coordinator.group.records import AnyRecord, GroupRecord, OffsetRecord, decode_record
from tidelog.coordinator.group.settings import GROUPS_MAX, GroupSettings
from tidelog.coordinator.group.state import GroupState
from tidelog.metadata.image import MetadataImage
from tidelog.model.steps import run_all
from tidelog.wire.errors import (
    ApiError,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    UnknownMemberId,
)
from tidelog.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from tidelog.wire.messages.group_records import GroupMetadataValue
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

GROUP_MUST_EXIST_SINCE = 9
"""The first version of OffsetCommit in which a commit with a generation gets GROUP_ID_NOT_FOUND if the group does not
exist."""
SWEEP_RECORDS_MAX = 500
"""Upper bound on the tombstones of offsets in one batch of a sweep or of `forget_topics`."""
DELETE_RECORDS_MAX = 200
"""Upper bound on the tombstones of offsets in one batch of a deletion. Other requests are handled between two
batches."""


CLASSIC = "classic"
CONSUMER = "consumer"


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState | ConsumerGroupState
    group_type: str = CLASSIC


class GroupCore:
    """The durable state of all groups, and the soft state of groups that have or recently had members."""

    load_order = LoadOrder.LAST_OF_EACH_KEY

    def __init__(self, settings: GroupSettings, image_now: Callable[[], MetadataImage] = MetadataImage) -> None:
        self.settings = settings
        self.durable = DurableGroups()
        self.groups: dict[str, ClassicGroup] = {}
        """Soft state of classic groups. A classic group that is in `durable` but not here is empty."""
        self.deadlines = Deadlines()
        self.consumers = ConsumerGroups(settings, self.durable, self.groups, self.deadlines, image_now)

    # Durable state

    def decode(self, key: bytes, value: bytes | None) -> AnyRecord | None:
        """Decode a record. Returns None for an unknown type of record. Raises MalformedMessage."""
        return decode_record(key, value)

    def replay(self, record: AnyRecord, next_offset: int) -> None:
        self.durable.replay(record, next_offset)

    def replay_pending(
        self, record: AnyRecord, next_offset: int, producer: Producer, record_offset: int, *, is_superseded: bool
    ) -> None:
        if isinstance(record, OffsetRecord):  # a transaction has no other records
            self.durable.replay_pending(record, next_offset, producer, record_offset, is_superseded=is_superseded)

    def end_transaction(self, producer: Producer, next_offset: int, *, is_commit: bool) -> None:
        self.durable.end_transaction(producer, next_offset, is_commit=is_commit)

    def loaded(self, now: Moment) -> Decision:
        """Restore the soft state after all records have been replayed: start new sessions, and rebalance groups that
        have more members than the limit allows.
        """
        out = Decision()
        for group_id, durable in self.durable.by_id.items():
            if durable.metadata is not None and durable.metadata.members:
                group = self._restore(group_id, durable.metadata, now)
                self.groups[group_id] = group
                group.shrink_to_fit(out, now)
        self.consumers.loaded(now)
        return out

    def topics_changed(self, old: MetadataImage, new: MetadataImage, now: Moment) -> None:
        """React to changed topics. Consumer groups that subscribe to a changed topic compute a new assignment at
        their next heartbeat.
        """
        changed = changed_names(old, new)
        if changed:
            self.consumers.topics_changed(changed, now)

    # Requests

    def consumer_heartbeat(self, beat: HeartbeatCall, now: Moment) -> Decision:
        """Handle ConsumerGroupHeartbeat. `beat.reply` is called with the response. Raises ApiError."""
        return self.consumers.heartbeat(beat, now)

    def join(self, joining: JoinCall, now: Moment) -> Decision:
        """Handle JoinGroup for a group of either protocol, or for a new group."""
        request = joining.request
        group_id = request.group_id
        durable = self.durable.by_id.get(group_id)
        consumer = None if durable is None else durable.consumer
        if consumer is not None and consumer.members:
            return self.consumers.join(consumer, joining, now)
        is_new = durable is None or consumer is not None
        group = self.groups.get(group_id)
        if group is None:
            if is_new:
                if request.member_id != NO_MEMBER_ID:
                    return _refuse(joining, ErrorCode.UNKNOWN_MEMBER_ID)
                if self._is_full():
                    return _refuse(joining, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            group = self._restore(group_id, durable.metadata if durable else None, now)
        out = group.join(joining, now)
        if group.members or group.members.pending:
            self.groups[group_id] = group
            if consumer is not None:  # a consumer group without members may be replaced by a classic group
                out.records += consumer.tombstones()
                self.consumers.forget(group_id)
            if is_new:
                out.records.append(_empty_group_record(group_id, now))
        out.awaited_offset = self.durable.next_offset(group_id)
        return out

    def sync(self, request: SyncGroupRequest, reply: Reply, now: Moment) -> Decision:
        consumer = self.consumers.find(request.group_id)
        if consumer is not None:
            return self.consumers.sync(consumer, request, reply, now)
        group = self.groups.get(request.group_id)
        if group is None:
            out = Decision()
            out.reply(reply, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return out
        out = group.sync(request, reply, now)
        out.awaited_offset = self.durable.next_offset(request.group_id)
        return out

    def heartbeat(self, request: HeartbeatRequest, now: Moment) -> ErrorCode:
        consumer = self.consumers.find(request.group_id)
        if consumer is not None:
            return self.consumers.classic_heartbeat(consumer, request, now)
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        try:
            return group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, now)
        except ApiError as error:
            return error.code

    def leave(self, request: LeaveGroupRequest, reply: Reply, now: Moment) -> Decision:
        consumer = self.consumers.find(request.group_id)
        if consumer is not None:
            return self.consumers.leave(consumer, request, reply, now)
        out = Decision()
        group = self.groups.get(request.group_id)
        if group is None:
            responses = [
                MemberResponse(member.member_id, member.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
                for member in request.members
            ]
        else:
            responses = group.leave(request, out, now)
        out.reply(reply, LeaveGroupResponse(members=responses))
        out.awaited_offset = self.durable.next_offset(request.group_id)
        return out

    def commit(
        self, commit: OffsetCommit, reply: Reply, now: Moment, prepared: PreparedCommit | None = None
    ) -> Decision:
        """Commit offsets. `reply` is called with one error code for each offset. Raises ApiError if the sender may not
        commit.

        `prepared` contains the encoded records if they were encoded in advance, in several steps.
        """
        self.check_commit(commit, now)
        if prepared is None:
            prepared = run_all(prepare_commit(commit, self.settings, now))
        out = Decision()
        out.records, out.batch = list(prepared.records), prepared.batch
        if commit.is_transactional:
            out.producer = Producer(commit.producer_id, commit.producer_epoch)
        out.reply(reply, prepared.codes)
        return out

    def check_commit(self, commit: OffsetCommit, now: Moment) -> None:
        """Raise ApiError unless the sender of the commit may commit now."""
        consumer = self.consumers.find(commit.group_id)
        group = self.groups.get(commit.group_id)
        if commit.is_transactional and not commit.names_member:
            # If a producer names no member, only its transactional id fences it (KIP-447): no member is checked here.
            if commit.group_id not in self.durable.by_id and group is None and self._is_full():
                raise self._too_many_groups()
        elif consumer is not None:
            self.consumers.check_commit(consumer, commit)
        elif group is not None:
            group.check_commit(
                commit.member_id,
                commit.instance_id,
                commit.generation,
                now,
                is_transactional=commit.is_transactional,
            )
        elif commit.group_id in self.durable.by_id:
            if commit.generation >= 0:
                raise UnknownMemberId
        elif commit.generation < 0:
            if self._is_full():
                raise self._too_many_groups()
        else:
            if commit.version >= GROUP_MUST_EXIST_SINCE and not commit.is_transactional:
                raise GroupIdNotFound(f"group {commit.group_id!r} does not exist")
            raise IllegalGeneration

    def delete_some(self, group_id: str, now: Moment) -> tuple[Decision, bool]:
        """Delete at most DELETE_RECORDS_MAX offsets of a group. When no offsets remain, delete the group itself.
        Return the decision, and whether it is the last decision of the deletion.

        Between two decisions, other requests may read the group and find only the remaining offsets. The caller must
        refuse joins until the last decision is applied. Raises ApiError.
        """
        durable, group = self.durable.by_id.get(group_id), self.groups.get(group_id)
        check_deletable(group_id, durable, group)
        out = Decision()
        remaining = self._offset_tombstones(group_id, durable)
        out.records += islice(remaining, DELETE_RECORDS_MAX)
        is_last = next(remaining, None) is None
        if is_last:
            self._delete_group(group_id, durable, group, out, now)
        out.awaited_offset = self.durable.next_offset(group_id)
        return out, is_last

    def delete_offsets(self, group_id: str, offsets: Sequence[tuple[str, int]], reply: Reply, now: Moment) -> Decision:
        """Delete committed offsets. `reply` is called with one error code for each (topic, partition).

        Raises ApiError if the whole request is refused.
        """
        durable, group = self.durable.by_id.get(group_id), self.groups.get(group_id)
        check_offsets_deletable(group_id, durable, group)
        out = Decision()
        codes = []
        is_subscribed_by_topic = {
            topic: is_subscribed(topic, durable, group) for topic in dict.fromkeys(topic for topic, _ in offsets)
        }
        self._retain_simple_group(group_id, durable, now)
        for topic, partition in offsets:
            codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed_by_topic[topic] else ErrorCode.NONE)
            if (
                not is_subscribed_by_topic[topic]
                and durable is not None
                and (
                    durable.committed_offset(topic, partition) is not None
                    or self.durable.pending.contains(OffsetKey(group_id, topic, partition))
                )
            ):
                out.records.append(OffsetRecord(group_id, topic, partition, None))
        out.reply(reply, codes)
        out.awaited_offset = self.durable.next_offset(group_id)
        return out

    def group_for_fetch(
        self, group_id: str, member_id: str | None = None, member_epoch: int = -1
    ) -> tuple[DurableGroup | None, int]:
        """Return the group's state, and the offset up to which the state reflects the log (exclusive end). The caller
        must read the state before the next step changes it.

        For a group of the consumer protocol, raises ApiError if the client names a member that does not exist, or an
        epoch that is not the member's current epoch.
        """
        consumer = self.consumers.find(group_id)
        if consumer is not None:
            self.consumers.check_fetch(consumer, member_id, member_epoch)
        return self.durable.by_id.get(group_id), self.durable.next_offset(group_id)

    def listing(self) -> Iterator[GroupListing]:
        """Yield all groups. If a group is created or deleted during the iteration, it is undefined whether the group
        is included.
        """
        groups, durable_groups = dict(self.groups), dict(self.durable.by_id)
        for group_id, group in groups.items():
            yield GroupListing(group_id, group.protocol_type, group.state)
        for group_id, durable in durable_groups.items():
            if durable.consumer is not None:
                yield GroupListing(group_id, PROTOCOL_TYPE, durable.consumer.state, CONSUMER)
            elif group_id not in groups:
                protocol_type = durable.metadata.protocol_type if durable.metadata is not None else ""
                yield GroupListing(group_id, protocol_type, GroupState.EMPTY)

    def describe(self, group_id: str) -> DescribedGroup | None:
        """Describe a classic group. Returns None if it does not exist. The members' metadata is included only for a
        stable group.

        Raises ApiError for a group of the consumer protocol.
        """
        if self.consumers.find(group_id) is not None:
            raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
        group = self.groups.get(group_id)
        if group is None:
            durable = self.durable.by_id.get(group_id)
            if durable is None:
                return None
            protocol_type = durable.metadata.protocol_type if durable.metadata is not None else ""
            return DescribedGroup(group_id=group_id, group_state=GroupState.EMPTY.value, protocol_type=protocol_type)
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type,
            protocol_data=protocol or "",
            members=[_describe_member(member, protocol) for member in group.members],
        )

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a consumer group. Raises GroupIdNotFound unless it is a group of the consumer protocol."""
        return self.consumers.describe(group_id)

    # Time

    def next_deadline_ms(self) -> int | None:
        """Return a monotonic time in ms before which no deadline is due; None only if no deadline is set."""
        return self.deadlines.next_ms()

    def expire(self, now: Moment) -> Iterator[Decision]:
        """Yield one decision for each deadline that is due."""
        for deadline in self.deadlines.due(now.monotonic_ms):
            out = Decision()
            deadline.callback(deadline.subject, out, now)
            yield out

    def group_ids(self) -> list[str]:
        return list(dict.fromkeys(chain(self.durable.by_id, self.groups)))

    def sweep(self, group_ids: list[str], now: Moment) -> Iterator[Decision]:
        """Yield batches of tombstones: of expired offsets, and of groups that then have neither members nor offsets."""
        for group_id in group_ids:
            durable, group = self.durable.by_id.get(group_id), self.groups.get(group_id)
            expired = []
            if durable is not None:
                retention_ms, pending = self.settings.offsets_retention_ms, self.durable.pending
                expired = [
                    record
                    for record in expired_offsets(group_id, durable, group, retention_ms, now)
                    if not pending.contains(OffsetKey(group_id, record.topic, record.partition))
                ]
            deletes_group = (
                len(expired) == (0 if durable is None else durable.offset_count)
                and is_empty(durable, group)
                and not self.durable.pending.has_group(group_id)
            )
            decisions = list(_in_batches(expired))
            if deletes_group and not decisions:
                decisions.append(Decision())
            for decision in decisions:
                if deletes_group and decision is decisions[-1]:
                    self._delete_group(group_id, durable, group, decision, now)
                yield decision

    def forget_topics(self, topics: dict[str, None], now: Moment) -> Iterator[Decision]:
        """Yield tombstones of all offsets in deleted topics, in batches. A batch may contain tombstones of
        several groups.

        The caller must apply each decision before it requests the next one. Other steps may run between two
        decisions.
        """
        tombstones: list[OffsetRecord] = []
        for group_id in list(self.durable.by_id):
            durable = self.durable.by_id.get(group_id)
            if durable is None:
                continue
            pending = [key for key in self.durable.pending.of_group(group_id) if key.topic in topics]
            if not pending and topics.keys().isdisjoint(durable.offsets):
                continue
            self._retain_simple_group(group_id, durable, now)
            tombstones += [
                OffsetRecord(*key, None)
                for key in pending
                if durable.committed_offset(key.topic, key.partition) is None
            ]
            tombstones += [
                OffsetRecord(group_id, topic, partition, None)
                for topic, partitions in durable.offsets.items()
                if topic in topics
                for partition in partitions
            ]
            full_batches_length = len(tombstones) - len(tombstones) % SWEEP_RECORDS_MAX
            if full_batches_length:
                yield from _in_batches(tombstones[:full_batches_length])
                del tombstones[:full_batches_length]
        yield from _in_batches(tombstones)

    def _retain_simple_group(self, group_id: str, durable: DurableGroup | None, now: Moment) -> None:
        """Ensure that the group of a simple consumer (see `DurableGroup.metadata`) exists until the next sweep, even if
        no record of it remains.
        """
        if durable is not None and durable.metadata is None and durable.consumer is None:
            self.groups.setdefault(group_id, ClassicGroup(group_id, self.settings, self.deadlines, now))

    def _offset_tombstones(self, group_id: str, durable: DurableGroup | None) -> Iterator[OffsetRecord]:
        """Yield tombstones of all offsets of the group, also of those in open transactions."""
        for topic, partitions in durable.offsets.items() if durable is not None else ():
            for partition in partitions:
                yield OffsetRecord(group_id, topic, partition, None)
        for key in self.durable.pending.of_group(group_id):
            if durable is None or durable.committed_offset(key.topic, key.partition) is None:
                yield OffsetRecord(*key, None)

    def _delete_group(
        self, group_id: str, durable: DurableGroup | None, group: ClassicGroup | None, out: Decision, now: Moment
    ) -> None:
        """Delete a group without members: remove its soft state, and add its tombstones to `out`. The tombstones of
        its offsets are not included.
        """
        if group is not None:
            group.delete(now)
            del self.groups[group_id]
        if durable is not None and durable.consumer is not None:
            self.consumers.forget(group_id)
            out.records += durable.consumer.tombstones()
        else:
            out.records.append(GroupRecord(group_id, None))

    def abandon(self) -> list[Reply]:
        """Return the reply functions of all parked requests. The caller must call them with an error, because this core
        is no longer used.
        """
        return list(chain.from_iterable(group.parked_replies() for group in self.groups.values()))

    @staticmethod
    def _too_many_groups() -> ApiError:
        return CoordinatorNotAvailable(f"this coordinator has {GROUPS_MAX} groups already, which is the limit")

    def _is_full(self) -> bool:
        return max(len(self.durable.by_id), len(self.groups)) >= GROUPS_MAX

    def _restore(self, group_id: str, metadata: GroupMetadataValue | None, now: Moment) -> ClassicGroup:
        if metadata is None:
            return ClassicGroup(group_id, self.settings, self.deadlines, now)
        return ClassicGroup.from_record(group_id, metadata, self.settings, self.deadlines, now)


def _refuse(joining: JoinCall, error: ErrorCode) -> Decision:
    out = Decision()
    refuse_join(joining.reply, joining.request.member_id, error, out)
    return out


def _empty_group_record(group_id: str, now: Moment) -> GroupRecord:
    """Return the record that creates a group before its first member has joined."""
    value = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=now.wall_ms)
    return GroupRecord(group_id, value)


def _describe_member(member: ClassicMember, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.metadata_for(protocol),
        member_assignment=member.assignment,
    )


def _in_batches(records: list[OffsetRecord]) -> Iterator[Decision]:
    for start in range(0, len(records), SWEEP_RECORDS_MAX):
        out = Decision()
        out.records += records[start : start + SWEEP_RECORDS_MAX]
        yield out
