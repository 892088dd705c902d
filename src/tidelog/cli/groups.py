"""What commands ask about groups, and how they name what they find."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.cli.connection import ANSWER_S, answer, kafka_error
from tidelog.cli.errors import CommandError
from tidelog.cli.offline import coordinator_is_offline
from tidelog.cli.tables import ranges

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

MEMBERS_SHOWN = 5
"""In one line."""


def group_names(admin: "AdminClient") -> list[str]:
    result = answer(admin.list_consumer_groups(request_timeout=ANSWER_S))
    if result.errors:
        raise kafka_error(result.errors[0])
    return sorted(listing.group_id for listing in result.valid)


def existing(admin: "AdminClient", wanted: Sequence[str]) -> list[str]:
    """The wanted groups, in their order. Raises CommandError for one that is not there, with the nearest name.

    Asked before anything else about a group: a broker that has no groups at all yet may have no coordinator to answer.
    """
    known = group_names(admin)
    for name in wanted:
        if name not in known:
            if lost := coordinator_is_offline(admin, name):
                raise lost
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            raise CommandError(
                f"no such group: {name}; " + (f"did you mean {near[0]}?" if near else "tidelog group list shows all")
            )
    return list(dict.fromkeys(wanted))


def describe_groups(admin: "AdminClient", names: Sequence[str]) -> list["ConsumerGroupDescription"]:
    if not names:
        return []
    futures = admin.describe_consumer_groups(list(names), request_timeout=ANSWER_S)
    return [answer(futures[name], f"group {name}") for name in names]


def state(group: "ConsumerGroupDescription") -> str:
    return str(group.state.name).lower().replace("_", " ")


def reads(member: Any) -> str:
    """The member's partitions by topic: orders 0-3,7; payments 1."""
    by_topic: dict[str, list[int]] = {}
    for part in member.assignment.topic_partitions if member.assignment else ():
        by_topic.setdefault(part.topic, []).append(part.partition)
    return "; ".join(f"{topic} {ranges(parts)}" for topic, parts in sorted(by_topic.items()))


def members_text(group: "ConsumerGroupDescription") -> str:
    """Who is in the group, in words: billing-1@10.0.0.7 (orders 0-3), ..."""
    names = [f"{m.client_id}@{m.host.lstrip('/')} ({reads(m) or 'reads nothing'})" for m in group.members]
    shown = ", ".join(names[:MEMBERS_SHOWN])
    return shown + (f" and {len(names) - MEMBERS_SHOWN} more" if len(names) > MEMBERS_SHOWN else "")
