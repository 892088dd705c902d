"""A member of a classic consumer group, for scenarios. Each step of the protocol is a method."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from tidelog.client.connection import NEWEST
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

COMMIT_BY_NAME = 9
OFFSETS_BY_NAME = 9
"""The last versions of OffsetCommit and OffsetFetch with topic names; later versions contain topic ids only."""

PROTOCOL = "round-robin"
SUBSCRIPTION_VERSION = 1

Assignment = dict[str, list[int]]
"""Partitions by topic."""


R = TypeVar("R", bound=Message)


class CoordinatorClient(Protocol):
    """Sends requests to the group's coordinator."""

    async def ask(self, request: Message, response_class: type[R], /, *, version_max: int = NEWEST) -> R: ...


class SimMember:
    """One member of a group. `client` must be connected to the group's coordinator.

    Methods return error codes to the caller. Only MEMBER_ID_REQUIRED is handled here.
    """

    def __init__(
        self, client: CoordinatorClient, group: str, topics: Sequence[str], *, session_ms: int = 10_000
    ) -> None:
        self.client = client
        self.group = group
        self.topics = list(topics)
        self.session_ms = session_ms
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: list[str] = []
        """All member ids, if this member is the group's leader."""
        self.assignment: Assignment = {}

    async def join(self) -> int:
        """Join the group. Returns the error code. Success is reported only when the join phase is complete."""
        subscription = ConsumerProtocolSubscription(topics=self.topics).encode(SUBSCRIPTION_VERSION)
        metadata = SUBSCRIPTION_VERSION.to_bytes(2, "big") + subscription
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.session_ms,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=metadata)],
        )
        response = await self.client.ask(request, JoinGroupResponse)
        self.member_id = response.member_id
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join()  # with the member id from the response (KIP-394)
        if response.error_code == ErrorCode.NONE:
            self.generation = response.generation_id
            self.leads = response.leader == response.member_id
            self.members = [member.member_id for member in response.members]
        return response.error_code

    async def sync(self, partitions: Mapping[str, int]) -> int:
        """Request the assignment. The leader assigns the partitions round-robin; `partitions` is the number of
        partitions by topic.
        """
        assignments = self._assign(partitions) if self.leads else {}
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=_encode_assignment(part))
                for member, part in assignments.items()
            ],
        )
        response = await self.client.ask(request, SyncGroupResponse)
        if response.error_code == ErrorCode.NONE:
            self.assignment = _decode_assignment(response.assignment)
        return response.error_code

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        return (await self.client.ask(request, HeartbeatResponse)).error_code

    async def leave(self) -> int:
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self.member_id)])
        response = await self.client.ask(request, LeaveGroupResponse)
        return response.error_code or response.members[0].error_code

    async def commit(self, topic: str, partition: int, offset: int) -> int:
        item = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[item])],
        )
        response = await self.client.ask(request, OffsetCommitResponse, version_max=COMMIT_BY_NAME)
        return response.topics[0].partitions[0].error_code

    async def committed(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the committed offset (-1 if no offset is committed), and the error code."""
        requested_group = OffsetFetchRequestGroup(
            group_id=self.group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
        )
        request = OffsetFetchRequest(groups=[requested_group], require_stable=True)
        response = await self.client.ask(request, OffsetFetchResponse, version_max=OFFSETS_BY_NAME)
        group = response.groups[0]
        if group.error_code:
            return -1, group.error_code
        offset = group.topics[0].partitions[0]
        return offset.committed_offset, offset.error_code

    def _assign(self, partitions: Mapping[str, int]) -> dict[str, Assignment]:
        assignments: dict[str, Assignment] = {member: {} for member in self.members}
        all_partitions = [(topic, index) for topic, count in partitions.items() for index in range(count)]
        for number, (topic, index) in enumerate(all_partitions):
            assignments[self.members[number % len(self.members)]].setdefault(topic, []).append(index)
        return assignments


def _encode_assignment(assignment: Assignment) -> bytes:
    parts = [TopicPartition(topic=topic, partitions=indexes) for topic, indexes in assignment.items()]
    body = ConsumerProtocolAssignment(assigned_partitions=parts).encode(SUBSCRIPTION_VERSION)
    return SUBSCRIPTION_VERSION.to_bytes(2, "big") + body


def _decode_assignment(data: bytes) -> Assignment:
    if not data:
        return {}
    version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.max_version)
    decoded, _ = ConsumerProtocolAssignment.decode(data, 2, version)
    return {part.topic: list(part.partitions) for part in decoded.assigned_partitions}
