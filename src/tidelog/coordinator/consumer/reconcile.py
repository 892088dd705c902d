"""Compute the next step of one member towards its target assignment (KIP-848).

A member first gives up the partitions that are not in its target, and then gets the free partitions of the target.
"""

from collections.abc import Callable, Container

from tidelog.coordinator.consumer.member import NOTHING_OWNED, Member, MemberState, Owned, Target
from tidelog.wire.errors import ApiError, ErrorCode

ReportedPartitions = dict[bytes, frozenset[int]]
"""The partitions that a member reports as its own, by topic id."""


class Reconciliation:
    """The inputs of a member's next step."""

    __slots__ = ("_is_free", "_reported", "_subscribed", "_target", "_target_epoch")

    def __init__(
        self,
        target_epoch: int,
        target: Target,
        subscribed: Container[bytes],
        is_free: Callable[[bytes, int], bool],
        reported: ReportedPartitions | None,
    ) -> None:
        self._target_epoch = target_epoch
        self._target = target
        self._subscribed = subscribed
        """Ids of the topics that the member subscribes to now. The target may be older than this subscription."""
        self._is_free = is_free
        """Function of a topic id and a partition. It returns whether no other member has the partition."""
        self._reported = reported
        """None if the heartbeat does not report the member's partitions."""

    def step(self, member: Member, *, subscription_changed: bool) -> Member:
        """Return the member after the step. If nothing changes, the result is equal to `member`.

        Raises ApiError if the member has to join again.
        """
        # Without a known state, it is not known which partitions the member must give up. Only a member that reports
        # that it has no partition may continue.
        has_or_may_have_partitions = self._reported is None or len(self._reported) > 0
        if member.state is MemberState.UNKNOWN and has_or_may_have_partitions:
            raise ApiError(
                "the member's state was written by a newer version of the broker and is unknown here: join again",
                ErrorCode.FENCED_MEMBER_EPOCH,
            )
        if member.is_settled(self._target_epoch):
            return self._drop_unsubscribed(member) if subscription_changed else member
        if member.state is MemberState.UNREVOKED and self._still_has(member.revoking):
            return self._drop_unsubscribed(member) if subscription_changed else member
        return self._advance(member)

    def _still_has(self, revoking: Owned) -> bool:
        """Return whether the member still has one of the partitions that it must give up.

        A member that does not report its partitions is assumed to have all of them.
        """
        if self._reported is None:
            return True
        for topic_id, partitions in self._reported.items():
            revoked_partitions = revoking.get(topic_id)
            if revoked_partitions is not None and not partitions.isdisjoint(revoked_partitions):
                return True
        return False

    def _drop_unsubscribed(self, member: Member) -> Member:
        """Revoke partitions of topics that the member no longer subscribes to, without waiting for a new target."""
        if all(topic_id in self._subscribed for topic_id in member.owned):
            return member
        owned: Owned = {}
        revoking = dict(member.revoking)
        for topic_id, partitions in member.owned.items():
            if topic_id in self._subscribed:
                owned[topic_id] = partitions
            else:
                revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
        if not self._still_has(revoking):
            return member._replace(previous_epoch=member.epoch, owned=owned)
        return member._replace(previous_epoch=member.epoch, state=MemberState.UNREVOKED, owned=owned, revoking=revoking)

    def _advance(self, member: Member) -> Member:
        """Begin to revoke the partitions that are not in the target. If the member has none of them, give it the free
        partitions of the target, and the target epoch.
        """
        retained: Owned = {}
        revoking: Owned = {}
        gained: dict[bytes, list[int]] = {}
        is_waiting = False
        for topic_id in {**member.owned, **self._target}:
            target = self._target.get(topic_id, ()) if topic_id in self._subscribed else ()
            target_partitions = frozenset(target)
            owned = member.owned.get(topic_id, {})
            retained_partitions = {
                partition: epoch for partition, epoch in owned.items() if partition in target_partitions
            }
            if len(retained_partitions) < len(owned):
                revoking[topic_id] = {p: epoch for p, epoch in owned.items() if p not in target_partitions}
            if retained_partitions:
                retained[topic_id] = retained_partitions
            missing = [partition for partition in target if partition not in retained_partitions]
            free = [partition for partition in missing if self._is_free(topic_id, partition)]
            is_waiting |= len(free) < len(missing)
            if free:
                gained[topic_id] = free
        if revoking and self._still_has(revoking):
            return member._replace(
                previous_epoch=member.epoch, state=MemberState.UNREVOKED, owned=retained, revoking=revoking
            )
        for topic_id, partitions in gained.items():
            epochs = {**retained.get(topic_id, {}), **dict.fromkeys(partitions, self._target_epoch)}
            retained[topic_id] = dict(sorted(epochs.items()))
        return member._replace(
            epoch=self._target_epoch,
            previous_epoch=member.epoch,
            state=MemberState.UNRELEASED if is_waiting else MemberState.STABLE,
            owned=retained,
            revoking=NOTHING_OWNED,
        )
