"""The states of a classic group, as the protocol names them, and the events that change the state."""

from enum import Enum


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(Enum):
    REBALANCE_NEEDED = "a member joined, left, timed out or changed its subscription"
    MEMBERS_JOINED = "the join phase ended with members"
    NOBODY_JOINED = "the join phase ended without members"
    ASSIGNED = "the leader's assignment was accepted"
    DELETED = "the group was deleted"


NEXT_STATE: dict[tuple[GroupState, GroupEvent], GroupState] = {
    (GroupState.EMPTY, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.MEMBERS_JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.NOBODY_JOINED): GroupState.EMPTY,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.ASSIGNED): GroupState.STABLE,
    (GroupState.EMPTY, GroupEvent.DELETED): GroupState.DEAD,
}
"""The next state, by current state and event. Other pairs occur only if Tidelog has a bug."""
