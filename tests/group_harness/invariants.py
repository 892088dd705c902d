"""Invariants of a coordinator's core between any two steps. A violation raises AssertionError."""

from tidelog.coordinator.consumer.groups import ConsumerGroups
from tidelog.coordinator.consumer.member import MemberState
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.members import ClassicMembers, metadata_bytes, protocols_to_vote_for
from tidelog.coordinator.group.rebalance import RebalancingGroup
from tidelog.coordinator.group.state import GroupState


def check_core(core: GroupCore) -> None:
    """Check the core. Call this after the records of the last step were replayed."""
    check_consumer_groups(core.consumers)
    for group_id, group in core.groups.items():
        check_classic_group(group)
        durable = core.durable.by_id.get(group_id)
        metadata = None if durable is None else durable.metadata
        if group.state is GroupState.STABLE:
            assert metadata is not None
            assert metadata.generation == group.generation
            assigned = {member.member_id: member.assignment for member in metadata.members}
            assert {member.member_id: member.assignment for member in group.members} == assigned
        assert metadata is None or metadata.generation <= group.generation
    for group_id, durable in core.durable.by_id.items():
        assert durable.metadata is not None or durable.offsets or durable.consumer is not None
        assert durable.metadata is None or durable.consumer is None
        if durable.metadata is not None and durable.metadata.members:
            assert group_id in core.groups


def check_classic_group(group: RebalancingGroup) -> None:
    members = group.members
    check_members(members)
    if group.state is GroupState.EMPTY:
        assert not members.by_id
        assert group.protocol_name is None
    has_generation = group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)
    if has_generation:
        assert members.by_id
        assert members.parked_join_count == 0
        assert (group._sync_end.at_ms is not None) == bool(members.unsynced)
    if group.state is GroupState.PREPARING_REBALANCE:
        assert group._join_end.at_ms is not None
    for member in members:
        waits = member.join_reply is not None or member.sync_reply is not None
        assert waits or member.session.at_ms is not None, "a member without a session and nothing to wait for"
        assert member.sync_reply is None or group.state is GroupState.COMPLETING_REBALANCE


def check_members(members: ClassicMembers) -> None:
    """Check that the counts agree with the members."""
    all_members = list(members.by_id.values())
    assert members.parked_join_count == sum(member.join_reply is not None for member in all_members)
    assert members.static_ids == {m.instance_id: m.member_id for m in all_members if m.instance_id is not None}
    assert members.metadata_bytes == sum(metadata_bytes(member.protocols) for member in all_members)
    votes: dict[str, int] = {}
    for member in all_members:
        for name in protocols_to_vote_for(member.protocols):
            votes[name] = votes.get(name, 0) + 1
    assert members._votes == votes
    assert (members.leader_id in members.by_id) if all_members else members.leader_id is None
    assert all(member_id == member.member_id for member_id, member in members.by_id.items())
    assert all(member_id in members.by_id for member_id in members.unsynced)
    assert not any(member_id in members.by_id for member_id in members.pending)


def check_consumer_groups(groups: ConsumerGroups) -> None:
    timers = groups.context.timers
    for group_id, durable in groups.context.durable.by_id.items():
        group = durable.consumer
        if group is None:
            continue
        assert group_id not in groups.context.classic_groups
        check_consumer_group(group)
        assert all(timers.is_set(Timer.SESSION, group_id, member_id) for member_id in group.members)
        assert all(member_id in group.members for member_id in timers._members.get(group_id, {}))
        for member in group.members.values():
            if member.state is MemberState.UNREVOKED and member.classic is None and member.epoch >= 0:
                assert timers.is_set(Timer.REBALANCE, group_id, member.member_id)
        for pattern in group.patterns:
            assert pattern in group.resolved or group_id in groups.resolver._searches


def check_consumer_group(group: ConsumerGroup) -> None:
    """Check that the counts agree with the members."""
    members = list(group.members.values())
    assert all(member_id == member.member_id for member_id, member in group.members.items())
    assert group.static_ids == {m.instance_id: m.member_id for m in members if m.instance_id is not None}
    fresh = ConsumerGroup(group.group_id)
    for member in members:
        fresh._put(member.member_id, member)
    for name in ("topics", "patterns", "assignors", "classic_protocols", "classic_count", "subscriptions_bytes"):
        assert getattr(group, name) == getattr(fresh, name), name
    owned = [
        (topic_id, partition)
        for member in members
        for part in (member.owned, member.revoking)
        for topic_id, partitions in part.items()
        for partition in partitions
    ]
    assert len(set(owned)) == len(owned), "a partition has two owners"
    assert sum(map(len, group.owners.values())) == len(owned)
    assert group.owners == fresh.owners
    assert group.target_epoch <= group.epoch
