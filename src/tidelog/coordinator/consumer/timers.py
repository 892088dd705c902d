"""The timers of members of consumer groups. They are soft state: when a new coordinator begins, it starts the session
timers and the rebalance timers anew.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tidelog.coordinator.deadlines import Deadline, Deadlines
from tidelog.coordinator.decision import Decision, Moment


class Timer(Enum):
    """The timers of a member. When a timer expires, the member is removed, and the timer's text is logged as reason."""

    SESSION = "no heartbeat came within the session timeout"
    REBALANCE = "partitions were not given up within the rebalance timeout"
    JOIN = "a classic member did not join within the rebalance timeout"
    SYNC = "a classic member did not sync within the rebalance timeout"


class TimerSubject(NamedTuple):
    timer: Timer
    group_id: str
    member_id: str
    epoch: int
    """The member's epoch when the timer was set; only the rebalance timer uses it."""


class Timers:
    """The timers of all members of the groups in one coordinator partition."""

    __slots__ = ("_deadlines", "_members", "_on_expiry")

    def __init__(self, deadlines: Deadlines, on_expiry: Callable[[TimerSubject, Decision, Moment], None]) -> None:
        self._deadlines = deadlines
        self._on_expiry = on_expiry
        self._members: dict[str, dict[str, dict[Timer, Deadline]]] = {}
        """By group id and member id. Expired and cancelled timers are kept, too, until `forget` is called."""

    def set(self, timer: Timer, group_id: str, member_id: str, after_ms: int, now: Moment, epoch: int = -1) -> None:
        timers = self._members.setdefault(group_id, {}).setdefault(member_id, {})
        deadline = timers.get(timer)
        if deadline is None:
            deadline = timers[timer] = Deadline(self._on_expiry)
        # Only the epoch in a subject can change. Session timers do not use the epoch, so they need no new subject.
        if timer is not Timer.SESSION or deadline.subject is None:
            deadline.subject = TimerSubject(timer, group_id, member_id, epoch)
        self._deadlines.set(deadline, now.monotonic_ms + after_ms)

    def is_set(self, timer: Timer, group_id: str, member_id: str) -> bool:
        deadline = self._members.get(group_id, {}).get(member_id, {}).get(timer)
        return deadline is not None and deadline.at_ms is not None

    def cancel(self, timer: Timer, group_id: str, member_id: str) -> None:
        deadline = self._members.get(group_id, {}).get(member_id, {}).get(timer)
        if deadline is not None:
            self._deadlines.clear(deadline)

    def forget(self, group_id: str, member_id: str) -> None:
        members = self._members.get(group_id)
        if members is None:
            return
        for deadline in members.pop(member_id, {}).values():
            self._deadlines.clear(deadline)
        if not members:
            del self._members[group_id]

    def forget_group(self, group_id: str) -> None:
        for member_id in list(self._members.get(group_id, {})):
            self.forget(group_id, member_id)
