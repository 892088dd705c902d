"""What commands ask about groups, and how they name what they find."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.connection import client_error, joined
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.offline import coordinator_failure
from tidelog.cli.tables import name_text, ranges, unescaped

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.each import Failure
    from tidelog.client.groups import Group, ListedGroup, Member

MEMBERS_SHOWN = 5
"""In one line."""
DESCRIBED = ("", "classic", "consumer")
"""Types of groups whose members we can ask for; empty where the broker's version does not tell."""


class Groups(NamedTuple):
    """The groups that there are, in order, and why some may be missing."""

    listed: "list[ListedGroup]"
    problems: list[str]


class Chosen(NamedTuple):
    """Groups that were asked for by name, in that order, and why there is nothing to say of the others."""

    listed: "list[ListedGroup]"
    failures: dict[str, CommandError]


class DescribedGroups(NamedTuple):
    """By name, as many as could be described; and why the others could not."""

    groups: "dict[str, Group]"
    failures: dict[str, CommandError]
    gone: list[str]
    """Those that were listed a moment ago and are not there any more; they are among `failures`, too."""


def list_groups(client: "Client") -> Groups:
    found = client.list_groups()
    problems = [
        f"broker {joined(*address)} does not say which groups it coordinates, they are not shown: {failure}"
        for address, failure in found.failures.items()
    ]
    return Groups(found.groups, problems)


def choose(client: "Client", wanted: Sequence[str]) -> Chosen:
    """The wanted groups, each once. One that is not there has a failure that names the nearest.

    They are looked for in the list: a broker that has no groups at all yet may have no coordinator to answer.
    """
    found = list_groups(client)
    known = {group.group_id: group for group in found.listed}
    listed: list[ListedGroup] = []
    failures: dict[str, CommandError] = {}
    for name in dict.fromkeys(wanted):
        if name in known:
            listed.append(known[name])
        else:
            failures[name] = _not_there(client, name, list(known), found.problems)
    return Chosen(listed, failures)


def _not_there(client: "Client", name: str, known: list[str], problems: list[str]) -> CommandError:
    import difflib

    if lost := coordinator_failure(client, name):
        return lost
    near = difflib.get_close_matches(name, known, n=1) if name else []
    remedy = f"did you mean {near[0]}?" if near else "tidelog group list shows all"
    return CommandError("; ".join([f"no such group: {name_text(name)}", remedy, *problems]))


def the_group(client: "Client", name: str) -> "ListedGroup":
    """Raises CommandError where it is not there."""
    chosen = choose(client, [name])
    for failure in chosen.failures.values():
        raise failure
    return chosen.listed[0]


def describe_groups(client: "Client", listed: "Sequence[ListedGroup]") -> DescribedGroups:
    from tidelog.wire.errors import ApiError, ErrorCode

    groups: dict[str, Group] = {}
    failures: dict[str, CommandError] = {}
    gone = []
    for group in listed:
        if group.type.lower() not in DESCRIBED:
            failures[group.group_id] = CommandError(f"members of a group of type {group.type.lower()} are not shown")
    asked = [group for group in listed if group.group_id not in failures]
    for name, found in client.describe_groups(asked).items() if asked else ():
        if not isinstance(found, Exception):
            groups[name] = found
            continue
        failures[name] = group_error(found, name)
        if isinstance(found, ApiError) and found.code == ErrorCode.GROUP_ID_NOT_FOUND:
            failures[name] = CommandError(f"group {name_text(name)} is not there any more")
            gone.append(name)
    return DescribedGroups(groups, failures, gone)


def describe_one(client: "Client", name: str) -> "Group":
    """Raises CommandError."""
    described = describe_groups(client, [the_group(client, name)])
    for failure in described.failures.values():
        raise failure
    return described.groups[name]


def group_error(failure: "Failure", name: str) -> CommandError:
    return client_error(failure, f"group {name_text(name)}")


def other_protocol(protocol_type: str) -> str:
    """A protocol type that is none of consumers', as `connect`: what their members share are no partitions."""
    return "" if protocol_type in ("", "consumer") else protocol_type


def group_problem(group: "Group") -> str:
    """What is not known of the group's members, in short; empty where all is known."""
    if protocol_type := other_protocol(group.protocol_type):
        return f"protocol type {protocol_type}"
    odd = sum(bool(member.problem) for member in group.members)
    return f"{odd} assignment{'s' * (odd > 1)} cannot be decoded" if odd else ""


def member_problems(group: "Group") -> list[str]:
    """What is not known of a group's consumers, a line for each."""
    if other_protocol(group.protocol_type):
        return []
    return [
        f"group {name_text(group.group_id)}, member {member.member_id}: {member.problem}"
        for member in group.members
        if member.problem
    ]


def state_text(state: str) -> str:
    """PreparingRebalance -> preparing rebalance."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", state).lower() or "unknown"


def host_text(member: "Member") -> str:
    """Kafka puts a slash before an address."""
    return member.host.removeprefix("/")


def reads(member: "Member") -> str:
    """The member's partitions by topic: orders 0-3,7; payments 1. A question mark where they are not known."""
    if member.problem:
        return "?"
    by_topic: dict[str, list[int]] = {}
    for part in member.partitions:
        by_topic.setdefault(part.topic, []).append(part.partition)
    return "; ".join(f"{topic} {ranges(parts)}" for topic, parts in sorted(by_topic.items()))


def members_text(group: "Group") -> str:
    """Who is in the group, in words: billing-1@10.0.0.7 (orders 0-3), ..."""
    names = [f"{m.client_id}@{host_text(m)} ({reads(m) or 'reads nothing'})" for m in group.members]
    shown = ", ".join(names[:MEMBERS_SHOWN])
    return shown + (f" and {len(names) - MEMBERS_SHOWN} more" if len(names) > MEMBERS_SHOWN else "")


def names_from(arguments: Sequence[str], escaped: bool) -> list[str]:
    """The names of groups as they were typed, or with --escaped as tables show them. Raises UsageError."""
    if not escaped:
        return list(arguments)
    try:
        return [unescaped(argument) for argument in arguments]
    except ValueError as error:
        raise UsageError(str(error)) from None
