"""Operations on groups: generators as in the module `operations`. An operation on several groups returns a result or a
failure for each group.

A group id may be any string that a broker sends: empty, with a NUL, or not UTF-8 (see `ClientConnection.answer`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.coordinators import GROUPS, ask_coordinator, ask_coordinators
from tidelog.client.each import Failure, Results, ask_each, brokers, retry_temporary_failures
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ClientError
from tidelog.client.operations import Backoff, Operation
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tidelog.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.primitives import MalformedMessage

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members divide the partitions of topics among themselves."""
CLASSIC, CONSUMER = "Classic", "Consumer"
"""Group types (KIP-848), in the spelling of brokers. There are also the types Share and Streams."""
OFFSETS_BY_NAME_MAX = 9
"""The last version of OffsetFetch and OffsetCommit that identifies topics by name. Later versions use topic ids."""
DEAD = "Dead"
"""The state that DescribeGroups before version 6 returns for a group that does not exist."""


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    """Empty for a group that has only committed offsets and no members."""
    state: str
    """Empty if the broker's version does not send the state."""
    type: str
    """Empty if the broker's version does not send the type."""


class GroupListing(NamedTuple):
    groups: list[ListedGroup]
    failures: dict[Address, Failure]
    """The brokers that did not list their groups, each with the reason."""


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]
    problem: str = ""
    """The reason why the member's partitions are not known; empty if they are known."""


class Group(NamedTuple):
    group_id: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: int
    """The broker id of the group's coordinator."""
    members: list[Member]


def list_groups(cluster: Cluster, backoff: Backoff) -> Operation[GroupListing]:
    """Return the groups of all brokers, sorted by group id. Raises GaveUp when no broker answers in time."""
    addresses_by_id = yield from brokers(cluster, backoff)

    def attempt(addresses: list[Address]) -> Operation[Results[Address, list[ListedGroup]]]:
        answers = yield from ask_each([(each, ListGroupsRequest()) for each in addresses], ListGroupsResponse, NEWEST)
        return dict(zip(addresses, map(_listed, answers), strict=True))

    lists = yield from retry_temporary_failures(backoff, addresses_by_id.values(), attempt)
    groups: dict[str, ListedGroup] = {}
    failures: dict[Address, Failure] = {}
    for address, answer in lists.items():
        if isinstance(answer, list):
            groups |= {group.group_id: group for group in answer}
        else:
            failures[address] = answer
    return GroupListing([groups[name] for name in sorted(groups)], failures)


def _listed(answer: ListGroupsResponse | ClientError) -> list[ListedGroup] | Failure:
    if isinstance(answer, ClientError):
        return answer
    if answer.error_code:
        return error_for(answer.error_code, error_name(answer.error_code))
    return [ListedGroup(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups]


def describe_groups(
    cluster: Cluster, backoff: Backoff, groups: Iterable[ListedGroup]
) -> Operation[Results[str, Group]]:
    """Return the state and the members of each group. A group that no longer exists fails with GROUP_ID_NOT_FOUND."""
    uses_consumer_protocol = {group.group_id: group.type == CONSUMER for group in groups}

    def attempt(names: list[str]) -> Operation[Results[str, Group]]:
        classic = [name for name in names if not uses_consumer_protocol[name]]
        consumer = [name for name in names if uses_consumer_protocol[name]]
        descriptions = yield from ask_coordinators(
            classic, lambda group_ids: DescribeGroupsRequest(groups=group_ids), DescribeGroupsResponse, _classic_groups
        )
        descriptions |= yield from ask_coordinators(
            consumer,
            lambda group_ids: ConsumerGroupDescribeRequest(group_ids=group_ids),
            ConsumerGroupDescribeResponse,
            _consumer_groups,
        )
        return descriptions

    return (yield from retry_temporary_failures(backoff, uses_consumer_protocol, attempt))


def _classic_groups(answer: DescribeGroupsResponse, coordinator: int) -> Results[str, Group]:
    descriptions: Results[str, Group] = {}
    for group in answer.groups:
        code = group.error_code
        if not code and group.group_state == DEAD:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        descriptions[group.group_id] = _failure(code, group.error_message) or _classic_group(group, coordinator)
    return descriptions


def _classic_group(group: DescribedGroup, coordinator: int) -> Group:
    members = [_classic_member(member, group.protocol_type) for member in group.members]
    return Group(
        group.group_id, group.group_state, CLASSIC, group.protocol_type, group.protocol_data, coordinator, members
    )


def _classic_member(member: DescribedGroupMember, protocol_type: str) -> Member:
    partitions: list[TopicPartition] = []
    problem = ""
    if protocol_type != CONSUMER_PROTOCOL:
        problem = f"assignments of protocol type {protocol_type} are not decoded" if member.member_assignment else ""
    else:
        try:
            partitions = decode_assignment(member.member_assignment)
        except MalformedMessage as error:
            problem = f"its assignment of {len(member.member_assignment)} bytes cannot be decoded: {error}"
    return Member(member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions, problem)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions in a member's assignment, which another client encoded. Raises MalformedMessage.

    A version that this client does not know is decoded as the newest known version, as in Kafka's clients, because
    newer versions only append fields.
    """
    from tidelog.client.connection import decoder

    if not data:
        return []
    if len(data) < 2:
        raise MalformedMessage("it is cut short")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise MalformedMessage(f"its version is {version}")
    decode = decoder(ConsumerProtocolAssignment, min(version, ConsumerProtocolAssignment.max_version))
    assignment, _ = decode(data, 2)
    return [
        TopicPartition(topic.topic, number) for topic in assignment.assigned_partitions for number in topic.partitions
    ]


def _consumer_groups(answer: ConsumerGroupDescribeResponse, coordinator: int) -> Results[str, Group]:
    return {
        group.group_id: _failure(group.error_code, group.error_message) or _consumer_group(group, coordinator)
        for group in answer.groups
    }


def _consumer_group(group: DescribedConsumerGroup, coordinator: int) -> Group:
    members = [
        Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            [
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ],
        )
        for member in group.members
    ]
    return Group(
        group.group_id, group.group_state, CONSUMER, CONSUMER_PROTOCOL, group.assignor_name, coordinator, members
    )


def committed_offsets(
    cluster: Cluster, backoff: Backoff, groups: Iterable[str]
) -> Operation[Results[str, Results[TopicPartition, int]]]:
    """Return the committed offsets of each group, by partition. In place of an offset, a partition may have a
    failure.
    """

    def attempt(names: list[str]) -> Operation[Results[str, Results[TopicPartition, int]]]:
        return (
            yield from ask_coordinators(
                names,
                lambda group_ids: OffsetFetchRequest(
                    groups=[OffsetFetchRequestGroup(name, topics=None) for name in group_ids]
                ),
                OffsetFetchResponse,
                _offsets_by_group,
                OFFSETS_BY_NAME_MAX,
            )
        )

    return (yield from retry_temporary_failures(backoff, groups, attempt))


def stable_offsets(
    cluster: Cluster, backoff: Backoff, group: str, topic: str, partitions: Sequence[int]
) -> Operation[Results[TopicPartition, int]]:
    """Return the committed offsets of some partitions of a topic. Partitions without a commit are omitted.

    A partition has the failure UNSTABLE_OFFSET_COMMIT while a transaction with an offset of this partition is open
    (KIP-447); `committed_offsets` ignores open transactions. The request names the partitions, because otherwise a
    broker does not report this failure for a partition without an earlier commit. Raises ApiError if the group's
    coordinator refuses the request.
    """

    wanted = [OffsetFetchRequestTopics(topic, partition_indexes=list(partitions))]

    def attempt(names: list[str]) -> Operation[Results[str, Results[TopicPartition, int]]]:
        return (
            yield from ask_coordinators(
                names,
                lambda group_ids: OffsetFetchRequest(
                    groups=[OffsetFetchRequestGroup(name, topics=wanted) for name in group_ids], require_stable=True
                ),
                OffsetFetchResponse,
                _offsets_by_group,
                OFFSETS_BY_NAME_MAX,
            )
        )

    results = yield from retry_temporary_failures(backoff, [group], attempt)
    offsets = results[group]
    if isinstance(offsets, Exception):
        raise offsets
    return offsets


def _offsets_by_group(answer: OffsetFetchResponse, _: int) -> Results[str, Results[TopicPartition, int]]:
    offsets_by_group: Results[str, Results[TopicPartition, int]] = {}
    for group in answer.groups:
        if group.error_code:
            offsets_by_group[group.group_id] = error_for(group.error_code, error_name(group.error_code))
            continue
        offsets_by_group[group.group_id] = {
            TopicPartition(topic.name, part.partition_index): _failure(part.error_code, None) or part.committed_offset
            for topic in group.topics
            for part in topic.partitions
            if part.error_code or part.committed_offset >= 0
        }
    return offsets_by_group


def commit(
    cluster: Cluster, backoff: Backoff, group_id: str, offsets: Mapping[TopicPartition, int]
) -> Operation[Results[TopicPartition, int]]:
    """Set the committed offsets of a group without members. Return each partition's new offset, or its failure."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, offset in offsets.items():
        topic = topics.setdefault(tp.topic, OffsetCommitRequestTopic(tp.topic))
        topic.partitions.append(OffsetCommitRequestPartition(tp.partition, offset, committed_metadata=""))
    request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))

    def attempt(_: list[str]) -> Operation[Results[str, Results[TopicPartition, int]]]:
        def read(answer: OffsetCommitResponse, _: int) -> Results[str, Results[TopicPartition, int]]:
            codes = {
                TopicPartition(topic.name, part.partition_index): part.error_code
                for topic in answer.topics
                for part in topic.partitions
            }
            retriable_code = next((code for code in codes.values() if code and error_for(code).retriable), None)
            if retriable_code is not None and set(codes.values()) == {retriable_code}:
                # All partitions have the same error, so it concerns the whole group. Another attempt may succeed.
                return {group_id: error_for(retriable_code, error_name(retriable_code))}
            return {group_id: {tp: _failure(code, None) or offsets[tp] for tp, code in codes.items()}}

        return (
            yield from ask_coordinators([group_id], lambda _: request, OffsetCommitResponse, read, OFFSETS_BY_NAME_MAX)
        )

    result = (yield from retry_temporary_failures(backoff, [group_id], attempt))[group_id]
    return result if isinstance(result, dict) else dict.fromkeys(offsets, result)


def delete_groups(cluster: Cluster, backoff: Backoff, groups: Iterable[str]) -> Operation[Results[str, None]]:
    """Delete groups. Return None for each group that was deleted, and the failure of each other group."""

    def read(answer: DeleteGroupsResponse, _: int) -> Results[str, None]:
        return {result.group_id: _failure(result.error_code, None) for result in answer.results}

    def attempt(names: list[str]) -> Operation[Results[str, None]]:
        return (
            yield from ask_coordinators(
                names, lambda group_ids: DeleteGroupsRequest(groups_names=group_ids), DeleteGroupsResponse, read
            )
        )

    return (yield from retry_temporary_failures(backoff, groups, attempt))


def delete_offsets(
    cluster: Cluster, backoff: Backoff, group_id: str, partitions: Iterable[TopicPartition]
) -> Operation[dict[TopicPartition, int]]:
    """Delete committed offsets. Return each partition's error code; 0 if its offset was deleted.

    Raises ApiError if the broker rejects the request for the whole group.
    """
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, OffsetDeleteRequestTopic(name))
        topic.partitions.append(OffsetDeleteRequestPartition(index))
    request = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
    answer = yield from ask_coordinator(cluster, backoff, group_id, GROUPS, request, OffsetDeleteResponse)
    return {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in answer.topics
        for part in topic.partitions
    }


def _failure(code: int, message: str | None) -> ApiError | None:
    return error_for(code, message or error_name(code)) if code else None
