"""One step of a consumer group: a member says what it wants and has, and is told what it shall have (KIP-848).

A step decides and changes nothing: what it leads to stands in its records. Soft state changes at its end, in `finish`,
when nothing can be refused any more.
"""

from collections.abc import Callable

from tidelog.coordinator.consumer.assignors import ASSIGNORS, AssigningMember
from tidelog.coordinator.consumer.group_context import GroupContext
from tidelog.coordinator.consumer.member import NO_TARGET, Member, MemberState, Target, target_record
from tidelog.coordinator.consumer.reconcile import Reconciliation, Reported
from tidelog.coordinator.consumer.records import PARTITION_METADATA, ConsumerRecord
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.consumer.timers import Timer
from tidelog.coordinator.consumer.topics import metadata_hash, names_read, topic_ids
from tidelog.coordinator.decision import Decision, Moment
from tidelog.model.ids import TopicId


class Step:
    """`group` is as it was before the step, or, if the step makes or converts it, as the records so far say."""

    __slots__ = ("_afterwards", "context", "epoch", "group", "now", "out")

    def __init__(self, context: GroupContext, group: ConsumerGroup, now: Moment) -> None:
        self.context = context
        self.group = group
        self.now = now
        self.out = Decision()
        self.epoch = group.epoch
        """The group's after the step."""
        self._afterwards: list[Callable[[], None]] = []

    def at_end(self, change: Callable[[], None]) -> None:
        """A change of soft state."""
        self._afterwards.append(change)

    def finish(self) -> Decision:
        for change in self._afterwards:
            change()
        self.out.shows = self.context.durable.next_offset(self.group.group_id)
        return self.out

    # The member and the group's epoch

    def take_in(self, known: Member, told: Member, *, pattern_is_ready: bool, pattern_changed: bool) -> bool:
        """Write what is new of a member, and begin a new epoch if that, or a change of topics, asks for it.

        Returns whether the member reads other topics than before.
        """
        group = self.group
        names_changed = False
        if told != known:
            self.out.records.append(told.metadata_record(group.group_id))
            names_changed = told.topics != known.topics
        bump = names_changed or pattern_is_ready
        if bump or group.group_id not in self.context.checked:
            self._check_topics(self._names_after(known, told), bump=bump)
        return names_changed or pattern_changed

    def _check_topics(self, names: dict[str, None], *, bump: bool) -> None:
        group = self.group
        fresh_hash = metadata_hash(self.context.image_now(), names)
        if bump or fresh_hash != group.metadata_hash:
            self.epoch = group.epoch + 1
            self.out.records.append(group.epoch_record(self.epoch, fresh_hash))
        if group.has_partition_metadata:
            self.out.records.append(ConsumerRecord(PARTITION_METADATA, group.group_id, "", None))
        self.at_end(lambda: self.context.checked.setdefault(group.group_id))

    def _names_after(self, known: Member, told: Member) -> dict[str, None]:
        group = self.group
        names = dict.fromkeys(group.topics)
        for name in known.topics:
            if group.topics.get(name) == 1:
                names.pop(name, None)
        names.update(dict.fromkeys(told.topics))
        patterns = dict.fromkeys(group.patterns)
        if known.pattern and group.patterns.get(known.pattern) == 1:
            patterns.pop(known.pattern, None)
        if told.pattern:
            patterns[told.pattern] = None
        for pattern in patterns:
            if (resolved := group.resolved.get(pattern)) is not None:
                names.update(dict.fromkeys(resolved.topics))
        return names

    # The target

    def target(self, told: Member, replaced: str | None) -> tuple[int, Target]:
        """The member's, and its epoch: a new one if the group's epoch is ahead and the last is old enough."""
        group = self.group
        before = group.targets.get(replaced or told.member_id, NO_TARGET)
        if group.assignment_epoch >= self.epoch or not self._may_assign():
            return group.assignment_epoch, before
        members = self._assigning(told, replaced)
        image = self.context.image_now()
        counts: dict[bytes, int] = {
            topic.topic_id: len(topic.partitions)
            for ids in dict.fromkeys(member.topic_ids for member in members.values())
            for topic_id in sorted(ids)
            if (topic := image.topics_by_id.get(TopicId(topic_id))) is not None
        }
        targets = ASSIGNORS[self._assignor(told)](members, counts)
        for member_id, target in targets.items():
            if target is not members[member_id].target or member_id not in group.targets:
                self.out.records.append(target_record(group.group_id, member_id, target))
        self.out.records.append(group.target_metadata_record(self.epoch, self.now.wall_ms))
        return self.epoch, targets[told.member_id]

    def _may_assign(self) -> bool:
        interval_ms = self.context.assignment_interval_ms(self.group.group_id)
        last_ms = self.group.assignment_time_ms
        return not last_ms or not interval_ms or self.now.wall_ms >= last_ms + interval_ms

    def _assigning(self, told: Member, replaced: str | None) -> dict[str, AssigningMember]:
        group = self.group
        image = self.context.image_now()
        known: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
        members: dict[str, AssigningMember] = {}
        for member in (*group.members.values(), told):
            member_id = member.member_id
            if member_id == replaced or (member_id == told.member_id and member is not told):
                continue
            subscription = (member.topics, member.pattern)
            ids = known.get(subscription)
            if ids is None:
                ids = known[subscription] = topic_ids(image, names_read(group, member))
            held = replaced if member is told and replaced is not None else member_id
            members[member_id] = AssigningMember(
                ids, group.targets.get(held, NO_TARGET), member.instance_id or member_id
            )
        return members

    def _assignor(self, told: Member) -> str:
        group = self.group
        served = self.context.consumer.assignors
        votes = dict(group.assignors)
        known = group.members.get(told.member_id)
        if known is not None and known.assignor is not None:
            votes[known.assignor] -= 1
        if told.assignor is not None:
            votes[told.assignor] = votes.get(told.assignor, 0) + 1
        votes = {name: count for name, count in votes.items() if count and name in served}
        return max(votes, key=votes.__getitem__) if votes else served[0]

    # The member's assignment

    def reconcile(
        self,
        told: Member,
        replaced: str | None,
        target_epoch: int,
        target: Target,
        reported: Reported | None,
        *,
        subscription_changed: bool,
    ) -> Member:
        """The member after one step towards its target, which is written if it is one."""
        if not subscription_changed and told.is_settled(target_epoch):
            return told
        group = self.group
        own = (None, told.member_id, replaced)
        subscribed = topic_ids(self.context.image_now(), names_read(group, told))
        reconciliation = Reconciliation(
            target_epoch, target, subscribed, lambda topic_id, p: group.owner(topic_id, p) in own, reported
        )
        after = reconciliation.step(told, subscription_changed=subscription_changed)
        if after != told:
            self.out.records.append(after.assignment_record(group.group_id))
            if after.classic is None:
                self.at_end(lambda: self._time_rebalance(after))
        return after

    def _time_rebalance(self, member: Member) -> None:
        timers = self.context.timers
        group_id = self.group.group_id
        if member.state is MemberState.UNREVOKED:
            timers.set(Timer.REBALANCE, group_id, member.member_id, member.rebalance_timeout_ms, self.now, member.epoch)
        else:
            timers.cancel(Timer.REBALANCE, group_id, member.member_id)
