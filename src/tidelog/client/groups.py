"""What a client asks about groups, as plans like those of `operations`. Each group has an answer of its own.

Group ids are whatever a broker says they are: empty, with a NUL, or (see `ClientConnection.answer`) no UTF-8.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.each import Each, Failure, ask_each, brokers, until_settled
from tidelog.client.error_codes import name_of
from tidelog.client.errors import BrokerUnreachable, Unreachable
from tidelog.client.operations import Ask, AskAny, Backoff, Operation, Request, Retries
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.message import Message
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
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from tidelog.wire.primitives import MalformedMessage

M = TypeVar("M", bound=Message)
V = TypeVar("V")

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members assign partitions of topics to each other."""
CLASSIC, CONSUMER = "Classic", "Consumer"
"""Types of groups (KIP-848), as brokers spell them. There are others: Share, Streams."""
OFFSETS_BY_NAME = 9
"""The last versions of OffsetFetch and OffsetCommit that name topics; later ones take their ids."""
DEAD = "Dead"
"""What versions of DescribeGroups before 6 say of a group that there is not."""


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    """Empty for a group without members that only committed."""
    state: str
    """Empty when the broker's version does not tell, as the type."""
    type: str


class Listed(NamedTuple):
    groups: list[ListedGroup]
    failures: dict[Address, Failure]
    """The brokers that did not say which groups they coordinate."""


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]
    problem: str = ""
    """Why it is not known which partitions the member reads; empty when they are known."""


class Group(NamedTuple):
    group_id: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: int
    """The number of the broker."""
    members: list[Member]


class Coordinator(NamedTuple):
    number: int
    address: Address


def list_groups(cluster: Cluster, backoff: Backoff) -> Operation[Listed]:
    """The groups of every broker, by id. Raises GaveUp when no broker answers in time."""
    found = yield from brokers(cluster, backoff)

    def attempt(addresses: list[Address]) -> Operation[Each[Address, list[ListedGroup]]]:
        answers = yield from ask_each([(each, ListGroupsRequest()) for each in addresses], ListGroupsResponse, NEWEST)
        return dict(zip(addresses, map(_listed, answers), strict=True))

    lists = yield from until_settled(backoff, found.values(), attempt)
    groups: dict[str, ListedGroup] = {}
    failures: dict[Address, Failure] = {}
    for address, answer in lists.items():
        if isinstance(answer, list):
            groups |= {group.group_id: group for group in answer}
        else:
            failures[address] = answer
    return Listed([groups[name] for name in sorted(groups)], failures)


def _listed(answer: ListGroupsResponse | BrokerUnreachable) -> list[ListedGroup] | Failure:
    if isinstance(answer, BrokerUnreachable):
        return answer
    if answer.error_code:
        return error_for(answer.error_code, name_of(answer.error_code))
    return [ListedGroup(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups]


def describe_groups(cluster: Cluster, backoff: Backoff, groups: Iterable[ListedGroup]) -> Operation[Each[str, Group]]:
    """State and members of each. GROUP_ID_NOT_FOUND for one that is not there any more."""
    by_protocol = {group.group_id: group.type == CONSUMER for group in groups}

    def attempt(names: list[str]) -> Operation[Each[str, Group]]:
        old = [name for name in names if not by_protocol[name]]
        new = [name for name in names if by_protocol[name]]
        found = yield from _of_coordinators(
            old, lambda some: DescribeGroupsRequest(groups=some), DescribeGroupsResponse, _classic_groups
        )
        found |= yield from _of_coordinators(
            new,
            lambda some: ConsumerGroupDescribeRequest(group_ids=some),
            ConsumerGroupDescribeResponse,
            _consumer_groups,
        )
        return found

    return (yield from until_settled(backoff, by_protocol, attempt))


def _classic_groups(answer: DescribeGroupsResponse, coordinator: int) -> Each[str, Group]:
    found: Each[str, Group] = {}
    for group in answer.groups:
        code = group.error_code
        if not code and group.group_state == DEAD:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        found[group.group_id] = _failure(code, group.error_message) or _classic_group(group, coordinator)
    return found


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
    """The partitions in a member's assignment, which other clients wrote. Raises MalformedMessage.

    A version that is newer than we know begins as the newest that we know, as for Kafka's clients.
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


def _consumer_groups(answer: ConsumerGroupDescribeResponse, coordinator: int) -> Each[str, Group]:
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


def committed(
    cluster: Cluster, backoff: Backoff, groups: Iterable[str]
) -> Operation[Each[str, Each[TopicPartition, int]]]:
    """What each group has committed, everywhere; a partition may have a failure of its own."""

    def attempt(names: list[str]) -> Operation[Each[str, Each[TopicPartition, int]]]:
        return (
            yield from _of_coordinators(
                names,
                lambda some: OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=None) for name in some]),
                OffsetFetchResponse,
                _committed,
                OFFSETS_BY_NAME,
            )
        )

    return (yield from until_settled(backoff, groups, attempt))


def _committed(answer: OffsetFetchResponse, _: int) -> Each[str, Each[TopicPartition, int]]:
    found: Each[str, Each[TopicPartition, int]] = {}
    for group in answer.groups:
        if group.error_code:
            found[group.group_id] = error_for(group.error_code, name_of(group.error_code))
            continue
        found[group.group_id] = {
            TopicPartition(topic.name, part.partition_index): _failure(part.error_code, None) or part.committed_offset
            for topic in group.topics
            for part in topic.partitions
            if part.error_code or part.committed_offset >= 0
        }
    return found


def commit(
    cluster: Cluster, backoff: Backoff, group_id: str, offsets: Mapping[TopicPartition, int]
) -> Operation[Each[TopicPartition, int]]:
    """Set the offsets of a group without members; each partition's offset, or why it is not set."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for place, offset in offsets.items():
        topic = topics.setdefault(place.topic, OffsetCommitRequestTopic(place.topic))
        topic.partitions.append(OffsetCommitRequestPartition(place.partition, offset, committed_metadata=""))
    request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))

    def attempt(_: list[str]) -> Operation[Each[str, Each[TopicPartition, int]]]:
        def read(answer: OffsetCommitResponse, _: int) -> Each[str, Each[TopicPartition, int]]:
            parts = {
                TopicPartition(topic.name, part.partition_index): part.error_code
                for topic in answer.topics
                for part in topic.partitions
            }
            passing = next((code for code in parts.values() if code and error_for(code).retriable), None)
            if passing is not None and set(parts.values()) == {passing}:
                return {group_id: error_for(passing, name_of(passing))}  # of the whole group, worth another attempt
            return {group_id: {place: _failure(code, None) or offsets[place] for place, code in parts.items()}}

        return (yield from _of_coordinators([group_id], lambda _: request, OffsetCommitResponse, read, OFFSETS_BY_NAME))

    found = (yield from until_settled(backoff, [group_id], attempt))[group_id]
    return found if isinstance(found, dict) else dict.fromkeys(offsets, found)


def delete_groups(cluster: Cluster, backoff: Backoff, groups: Iterable[str]) -> Operation[Each[str, None]]:
    """Each group's failure; None where it is deleted."""

    def read(answer: DeleteGroupsResponse, _: int) -> Each[str, None]:
        return {result.group_id: _failure(result.error_code, None) for result in answer.results}

    def attempt(names: list[str]) -> Operation[Each[str, None]]:
        return (
            yield from _of_coordinators(
                names, lambda some: DeleteGroupsRequest(groups_names=some), DeleteGroupsResponse, read
            )
        )

    return (yield from until_settled(backoff, groups, attempt))


def delete_offsets(
    cluster: Cluster, backoff: Backoff, group_id: str, partitions: Iterable[TopicPartition]
) -> Operation[dict[TopicPartition, int]]:
    """Each partition's error code, 0 where the offset is deleted. Raises ApiError when the whole group is refused."""
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, OffsetDeleteRequestTopic(name))
        topic.partitions.append(OffsetDeleteRequestPartition(index))
    request = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
    retries = Retries(cluster, backoff, ())
    while True:
        try:
            coordinator = (yield from coordinators([group_id]))[group_id]
            if isinstance(coordinator, Exception):
                raise coordinator
            answers = yield Ask([Request(coordinator.address, request)])
            assert isinstance(answers, list)
            (answer,) = answers
            if isinstance(answer, BrokerUnreachable):
                raise answer
            assert isinstance(answer, OffsetDeleteResponse)
            if answer.error_code:
                raise error_for(answer.error_code, f"group {group_id!r}: {name_of(answer.error_code)}")
            return {
                TopicPartition(topic.name, part.partition_index): part.error_code
                for topic in answer.topics
                for part in topic.partitions
            }
        except (ApiError, Unreachable) as error:
            pause = retries.after(error)
        yield pause


def coordinators(groups: Sequence[str]) -> Operation[Each[str, Coordinator]]:
    """Where each group lives."""
    answer = yield AskAny(FindCoordinatorRequest(coordinator_keys=list(groups)))
    assert isinstance(answer, FindCoordinatorResponse)
    found: Each[str, Coordinator] = {}
    for each in answer.coordinators:
        why = f"the coordinator of group {each.key!r}: {each.error_message or name_of(each.error_code)}"
        failure = error_for(each.error_code, why) if each.error_code else None
        found[each.key] = failure or Coordinator(each.node_id, Address(each.host, each.port))
    return found


def _of_coordinators(
    groups: Sequence[str],
    request: Callable[[list[str]], Message],
    kind: type[M],
    read: Callable[[M, int], Each[str, V]],
    version_max: int = NEWEST,
) -> Operation[Each[str, V]]:
    """Ask the coordinators of these groups, each about its own; `read` takes an answer and its broker's number."""
    if not groups:
        return {}
    try:
        where = yield from coordinators(groups)
    except Unreachable as error:
        return dict.fromkeys(groups, error)
    found: Each[str, V] = {}
    of: dict[Coordinator, list[str]] = {}
    for name in groups:
        coordinator = where.get(name) or ApiError(f"no broker says who coordinates group {name!r}")
        if isinstance(coordinator, Coordinator):
            of.setdefault(coordinator, []).append(name)
        else:
            found[name] = coordinator
    answers = yield from ask_each([(each.address, request(of[each])) for each in of], kind, version_max)
    for (coordinator, names), answer in zip(of.items(), answers, strict=True):
        if isinstance(answer, BrokerUnreachable):
            found |= dict.fromkeys(names, answer)
        else:
            told = read(answer, coordinator.number)
            found |= {name: told.get(name, ApiError(f"the answer does not mention group {name!r}")) for name in names}
    return found


def _failure(code: int, message: str | None) -> ApiError | None:
    return error_for(code, message or name_of(code)) if code else None
