"""List and describe groups for commands, and format groups and members as text."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.connection import client_error
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.escapes import unescape
from tidelog.cli.offline import coordinator_failure
from tidelog.cli.tables import name_text, ranges
from tidelog.model.addresses import host_port_text
from tidelog.model.ids import indexes_by_topic

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.each import Failure
    from tidelog.client.groups import Group, ListedGroup, Member
    from tidelog.model.ids import TopicPartition

MEMBERS_SHOWN = 5
"""Upper bound on the number of members that are named in one line of text."""
DESCRIBABLE_TYPES = ("", "classic", "consumer")
"""Types of groups whose members can be requested. The type is "" if the broker's version does not report types."""


class ListedGroups(NamedTuple):
    """All groups, sorted by name, and a line for each broker that could not list its groups."""

    listed: "list[ListedGroup]"
    problems: list[str]


class RequestedGroups(NamedTuple):
    """The requested groups in the order of the request, and an error for each group that does not exist."""

    listed: "list[ListedGroup]"
    failures: dict[str, CommandError]


class DescribedGroups(NamedTuple):
    """Groups by name, and errors for the groups that could not be described."""

    groups: "dict[str, Group]"
    failures: dict[str, CommandError]
    vanished: list[str]
    """Groups that were deleted after they had been listed. They are also in `failures`."""


def list_groups(client: "Client") -> ListedGroups:
    answer = client.list_groups()
    problems = [
        f"broker {host_port_text(*address)} did not list its groups, so they are not shown: {failure}"
        for address, failure in answer.failures.items()
    ]
    return ListedGroups(answer.groups, problems)


def find_groups(client: "Client", wanted: Sequence[str]) -> RequestedGroups:
    """Return the wanted groups without duplicates. The error for an unknown name suggests the most similar group.

    The names are looked up in the list of all groups, because a FindCoordinator request could fail while no group
    exists yet.
    """
    groups = list_groups(client)
    by_name = {group.group_id: group for group in groups.listed}
    listed: list[ListedGroup] = []
    failures: dict[str, CommandError] = {}
    for name in dict.fromkeys(wanted):
        if name in by_name:
            listed.append(by_name[name])
        else:
            failures[name] = _unknown_group_error(client, name, list(by_name), groups.problems)
    return RequestedGroups(listed, failures)


def _unknown_group_error(client: "Client", name: str, existing: list[str], problems: list[str]) -> CommandError:
    import difflib

    if offline_error := coordinator_failure(client, name):
        return offline_error
    similar_names = difflib.get_close_matches(name, existing, n=1) if name else []
    remedy = f"did you mean {similar_names[0]}?" if similar_names else "tidelog group list shows all"
    return CommandError("; ".join([f"no such group: {name_text(name)}", remedy, *problems]))


def find_group(client: "Client", name: str) -> "ListedGroup":
    """Return the group with this name. Raises CommandError if it does not exist."""
    requested = find_groups(client, [name])
    for failure in requested.failures.values():
        raise failure
    return requested.listed[0]


def describe_groups(client: "Client", listed: "Sequence[ListedGroup]") -> DescribedGroups:
    """Return state and members of each group, or an error if the group cannot be described."""
    from tidelog.wire.errors import ApiError, ErrorCode

    groups: dict[str, Group] = {}
    failures: dict[str, CommandError] = {}
    vanished = []
    for group in listed:
        if group.type.lower() not in DESCRIBABLE_TYPES:
            failures[group.group_id] = CommandError(
                f"group {name_text(group.group_id)} is of type {group.type.lower()}: its members are not shown"
            )
    describable = [group for group in listed if group.group_id not in failures]
    for name, answer in client.describe_groups(describable).items() if describable else ():
        if not isinstance(answer, Exception):
            groups[name] = answer
            continue
        failures[name] = group_error(answer, name)
        if isinstance(answer, ApiError) and answer.code == ErrorCode.GROUP_ID_NOT_FOUND:
            failures[name] = CommandError(f"group {name_text(name)} does not exist any more")
            vanished.append(name)
    return DescribedGroups(groups, failures, vanished)


def describe_one(client: "Client", name: str) -> "Group":
    """Return state and members of the group. Raises CommandError if it does not exist or cannot be described."""
    described = describe_groups(client, [find_group(client, name)])
    for failure in described.failures.values():
        raise failure
    return described.groups[name]


def group_error(failure: "Failure", name: str) -> CommandError:
    return client_error(failure, f"group {name_text(name)}")


def foreign_protocol_type(protocol_type: str) -> str:
    """Return the protocol type if it is not "consumer", else "".

    Groups with other protocol types, such as `connect`, do not assign partitions to their members.
    """
    return "" if protocol_type in ("", "consumer") else protocol_type


def group_problem(group: "Group") -> str:
    """Return a short text that says why assignments of the group's members are not known; empty if all are known."""
    if protocol_type := foreign_protocol_type(group.protocol_type):
        return f"protocol type {protocol_type}"
    undecoded = sum(bool(member.problem) for member in group.members)
    return f"{undecoded} assignment{'s' * (undecoded > 1)} cannot be decoded" if undecoded else ""


def member_problems(group: "Group") -> list[str]:
    """Return a line for each member whose assignment cannot be decoded; no lines for a foreign protocol type."""
    if foreign_protocol_type(group.protocol_type):
        return []
    return [
        f"group {name_text(group.group_id)}, member {member.member_id}: {member.problem}"
        for member in group.members
        if member.problem
    ]


def state_text(state: str) -> str:
    """Return the state in words: PreparingRebalance becomes "preparing rebalance"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", state).lower() or "unknown"


def host_text(member: "Member") -> str:
    """Return the member's address without the slash that Kafka puts before it."""
    return member.host.removeprefix("/")


def partitions_text(member: "Member") -> str:
    """Return the member's partitions by topic, for example `orders 0-3,7; payments 1`; `?` if they are not known."""
    if member.problem:
        return "?"
    return partition_list_text(member.partitions)


def partition_list_text(partitions: "Iterable[TopicPartition]") -> str:
    """Return the partitions by topic: `orders 0-3,7; payments 1`."""
    by_topic = sorted(indexes_by_topic(partitions).items())
    return "; ".join(f"{topic} {ranges(numbers)}" for topic, numbers in by_topic)


def readers_of(group: "Group", partitions: "Iterable[tuple[str, int]]") -> "Group":
    """Return the group with only those members that may read the topics of these partitions.

    A member whose partitions are not known is kept. If no member has a partition of these topics, as during a
    rebalance, all members are kept: a member may be subscribed to a topic of which it has no partition.
    """
    topics = {topic for topic, _ in partitions}
    readers = [m for m in group.members if m.problem or any(tp.topic in topics for tp in m.partitions)]
    return group._replace(members=readers or group.members)


def members_text(group: "Group") -> str:
    """Return the members as text: billing-1@10.0.0.7 (orders 0-3), ..."""
    names = [f"{m.client_id}@{host_text(m)} ({partitions_text(m) or 'reads nothing'})" for m in group.members]
    shown = ", ".join(names[:MEMBERS_SHOWN])
    return shown + (f" and {len(names) - MEMBERS_SHOWN} more" if len(names) > MEMBERS_SHOWN else "")


def parse_group_names(arguments: Sequence[str], escaped: bool) -> list[str]:
    """Return the names of groups, or the transactional ids, that were given as arguments of a command.

    With `escaped`, the arguments are names as tables show them. Raises UsageError for an invalid escape.
    """
    if not escaped:
        return list(arguments)
    try:
        return [unescape(argument) for argument in arguments]
    except ValueError as error:
        raise UsageError(str(error)) from None
