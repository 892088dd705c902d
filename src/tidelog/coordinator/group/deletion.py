"""Checks whether a group or some of its offsets may be deleted now (KIP-229, KIP-496)."""

from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.durable import DurableGroup
from tidelog.coordinator.group.offsets import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import GroupIdNotFound, NonEmptyGroup


def check_deletable(group_id: str, durable: DurableGroup | None, group: ClassicGroup | None) -> None:
    """Raise GroupIdNotFound if the group does not exist, and NonEmptyGroup if it has members."""
    _check_exists(group_id, durable, group)
    if not is_empty(durable, group):
        raise NonEmptyGroup(f"group {group_id!r} has members")


def is_empty(durable: DurableGroup | None, group: ClassicGroup | None) -> bool:
    """Return whether the group has no members. A client that got a member id but has not joined with it yet is not a
    member.
    """
    if durable is not None and durable.consumer is not None and durable.consumer.members:
        return False
    return group is None or group.state is GroupState.EMPTY


def check_offsets_deletable(group_id: str, durable: DurableGroup | None, group: ClassicGroup | None) -> None:
    """Raise GroupIdNotFound if the group does not exist, and NonEmptyGroup if it is a classic group with members of a
    protocol type other than "consumer". Such members do not state their topics.
    """
    _check_exists(group_id, durable, group)
    if group is None or group.state is GroupState.EMPTY:
        return
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise NonEmptyGroup(f"group {group_id!r} has members of protocol type {group.protocol_type!r}")


def is_subscribed(topic: str, durable: DurableGroup | None, group: ClassicGroup | None) -> bool:
    """Return whether a member subscribes to the topic. If the subscriptions of a group of consumers are not known yet
    or cannot be decoded, a member is assumed to subscribe to every topic.
    """
    if durable is not None and durable.consumer is not None:
        return topic in durable.consumer.subscribed_topics()
    if group is None:
        return False
    topics = group.subscribed_topics()
    return group.protocol_type == CONSUMER_PROTOCOL_TYPE if topics is None else topic in topics


def _check_exists(group_id: str, durable: DurableGroup | None, group: ClassicGroup | None) -> None:
    if durable is None and group is None:
        raise GroupIdNotFound(f"group {group_id!r} does not exist")
