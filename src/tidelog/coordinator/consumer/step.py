"""One step of a consumer group: process one request of a member and compute its response (KIP-848).

A step makes a decision without changing durable state: durable state changes when the records of the decision are
replayed. Changes of soft state are collected first. `finish` makes them, when the request can no longer be refused.
"""

from collections.abc import Callable

from tidelog.coordinator.consumer.assignors import ASSIGNORS, AssigningMember
from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.member import NO_TARGET, Member, MemberState, Target, target_record
from tidelog.coordinator.consumer.reconcile import Reconciliation, ReportedPartitions
from tidelog.coordinator.consumer.records import PARTITION_METADATA, ConsumerRecord
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.consumer.topics import metadata_hash, subscribed_names, topic_ids
from tidelog.coordinator.decision import Decision, Moment
from tidelog.model.ids import TopicId


class Step:
    """One step. `group` is the group before the step. If the step creates a group or upgrades a classic group, `group`
    is the new group.
    """

    __slots__ = ("_soft_changes", "context", "ends_rebalance", "epoch", "group", "now", "out")

    def __init__(self, context: GroupContext, group: ConsumerGroup, now: Moment) -> None:
        self.context = context
        self.group = group
        self.now = now
        self.out = Decision()
        self.epoch = group.epoch
        """The group's epoch after the step."""
        self.ends_rebalance = False
        """Whether the step upgrades a classic group during a rebalance. Some members of such a group may have no
        assignment yet, so the step begins a new group epoch even if no subscription changes."""
        self._soft_changes: list[Callable[[], None]] = []

    def on_finish(self, change: Callable[[], None]) -> None:
        """Add a change of soft state, which `finish` makes."""
        self._soft_changes.append(change)

    def finish(self) -> Decision:
        for change in self._soft_changes:
            change()
        self.out.awaited_offset = self.context.durable.next_offset(self.group.group_id)
        return self.out

    # The member and the group's epoch

    def update_member(self, current: Member, updated: Member, *, pattern_is_ready: bool, pattern_changed: bool) -> bool:
        """Write the changes of a member. Begin a new group epoch if the member's topic names changed, if
        `pattern_is_ready`, if the step `ends_rebalance`, or if the hash of the group's subscribed topics changed.

        See `update_pattern` for `pattern_changed` and `pattern_is_ready`. Returns whether the member subscribes to
        other topics than before.
        """
        group = self.group
        names_changed = False
        if updated != current:
            self.out.records.append(updated.metadata_record(group.group_id))
            names_changed = updated.topics != current.topics
        needs_new_epoch = names_changed or pattern_is_ready or self.ends_rebalance
        if needs_new_epoch or group.group_id not in self.context.groups_with_current_epoch:
            self._check_topics(self._subscribed_names_after(current, updated), needs_new_epoch=needs_new_epoch)
        return names_changed or pattern_changed

    def _check_topics(self, names: dict[str, None], *, needs_new_epoch: bool) -> None:
        group = self.group
        fresh_hash = metadata_hash(self.context.image_now(), names)
        if needs_new_epoch or fresh_hash != group.metadata_hash:
            self.epoch = group.epoch + 1
            self.out.records.append(group.epoch_record(self.epoch, fresh_hash))
        if group.has_partition_metadata:
            self.out.records.append(ConsumerRecord(PARTITION_METADATA, group.group_id, "", None))
        self.on_finish(lambda: self.context.groups_with_current_epoch.setdefault(group.group_id))

    def _subscribed_names_after(self, current: Member, updated: Member) -> dict[str, None]:
        group = self.group
        names = dict.fromkeys(group.topics)
        for name in current.topics:
            if group.topics.get(name) == 1:
                names.pop(name, None)
        names.update(dict.fromkeys(updated.topics))
        patterns = dict.fromkeys(group.patterns)
        if current.pattern and group.patterns.get(current.pattern) == 1:
            patterns.pop(current.pattern, None)
        if updated.pattern:
            patterns[updated.pattern] = None
        for pattern in patterns:
            if (resolved := group.resolved.get(pattern)) is not None:
                names.update(dict.fromkeys(resolved.topics))
        return names

    # The target

    def target(self, updated: Member, replaced: str | None) -> tuple[int, Target]:
        """Return the target epoch and the member's target assignment.

        If the group's epoch is newer than the target epoch, and at least the assignment interval has passed since
        the last computation, compute new target assignments for all members. `replaced` is the id of the static member
        that `updated` replaces, or None.
        """
        group = self.group
        before = group.targets.get(replaced or updated.member_id, NO_TARGET)
        if group.target_epoch >= self.epoch or not self._may_assign():
            return group.target_epoch, before
        members = self._assignor_input(updated, replaced)
        image = self.context.image_now()
        counts: dict[bytes, int] = {
            topic.topic_id: len(topic.partitions)
            for ids in dict.fromkeys(member.topic_ids for member in members.values())
            for topic_id in sorted(ids)
            if (topic := image.topics_by_id.get(TopicId(topic_id))) is not None
        }
        targets = ASSIGNORS[self._assignor(updated)](members, counts)
        for member_id, target in targets.items():
            if target is not members[member_id].target or member_id not in group.targets:
                self.out.records.append(target_record(group.group_id, member_id, target))
        self.out.records.append(group.target_metadata_record(self.epoch, self.now.wall_ms))
        return self.epoch, targets[updated.member_id]

    def _may_assign(self) -> bool:
        interval_ms = self.context.assignment_interval_ms(self.group.group_id)
        last_ms = self.group.target_time_ms
        return not last_ms or not interval_ms or self.now.wall_ms >= last_ms + interval_ms

    def _assignor_input(self, updated: Member, replaced: str | None) -> dict[str, AssigningMember]:
        """Return the members of the group after this step, in the form that assignors use."""
        group = self.group
        image = self.context.image_now()
        ids_by_subscription: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
        members: dict[str, AssigningMember] = {}
        for member in (*group.members.values(), updated):
            member_id = member.member_id
            if member_id == replaced or (member_id == updated.member_id and member is not updated):
                continue
            subscription = (member.topics, member.pattern)
            ids = ids_by_subscription.get(subscription)
            if ids is None:
                ids = ids_by_subscription[subscription] = topic_ids(image, subscribed_names(group, member))
            target_member_id = replaced if member is updated and replaced is not None else member_id
            members[member_id] = AssigningMember(
                ids, group.targets.get(target_member_id, NO_TARGET), member.instance_id or member_id
            )
        return members

    def _assignor(self, updated: Member) -> str:
        group = self.group
        supported_assignors = self.context.consumer.assignors
        votes = dict(group.assignors)
        current = group.members.get(updated.member_id)
        if current is not None and current.assignor is not None:
            votes[current.assignor] -= 1
        if updated.assignor is not None:
            votes[updated.assignor] = votes.get(updated.assignor, 0) + 1
        votes = {name: count for name, count in votes.items() if count and name in supported_assignors}
        return max(votes, key=votes.__getitem__) if votes else supported_assignors[0]

    # The member's assignment

    def reconcile(
        self,
        updated: Member,
        replaced: str | None,
        target_epoch: int,
        target: Target,
        reported: ReportedPartitions | None,
        *,
        subscription_changed: bool,
    ) -> Member:
        """Advance the member by one step towards its target assignment. If this changes the member, write a record.
        Return the member after the step.
        """
        if not subscription_changed and updated.is_settled(target_epoch):
            return updated
        group = self.group
        allowed_owners = (None, updated.member_id, replaced)
        subscribed = topic_ids(self.context.image_now(), subscribed_names(group, updated))
        reconciliation = Reconciliation(
            target_epoch, target, subscribed, lambda topic_id, p: group.owner(topic_id, p) in allowed_owners, reported
        )
        after = reconciliation.step(updated, subscription_changed=subscription_changed)
        if after != updated:
            self.out.records.append(after.assignment_record(group.group_id))
            if after.classic is None:
                self.on_finish(lambda: self._set_rebalance_timer(after))
        return after

    def _set_rebalance_timer(self, member: Member) -> None:
        timers = self.context.timers
        group_id = self.group.group_id
        if member.state is MemberState.UNREVOKED:
            timers.set(Timer.REBALANCE, group_id, member.member_id, member.rebalance_timeout_ms, self.now, member.epoch)
        else:
            timers.cancel(Timer.REBALANCE, group_id, member.member_id)
