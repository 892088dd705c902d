"""The in-sync replicas (ISR) of one partition, from the view of its leader: which replica must leave the ISR, which
replica may join it again, and how far the high watermark may move. Pure.

Three sets of replicas matter:

    committed   the ISR that the controller has confirmed last
    proposed    the ISR that the leader has proposed to the controller, until the answer is known
    maximal     the union of both: any of these replicas may be in the ISR when the next leader is elected

Only the committed ISR counts for `min.insync.replicas`. The maximal ISR limits the high watermark (KIP-497).
"""

from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN = -1
"""An offset or a broker epoch that is not known yet."""
NEVER_CAUGHT_UP_MS = -(1 << 62)
"""The value of `caught_up_ms` for a follower that has never caught up."""


def bounded_min_isr(min_insync_replicas: int, replicas: int) -> int:
    """Return the number of in-sync replicas that acks=all requires: `min.insync.replicas`, but not more than
    `replicas`, the number of all replicas.
    """
    return min(min_insync_replicas, replicas)


class FetchTime:
    """The times of the last two requests in a fetch session. A request also counts as a fetch of each partition that
    it does not name because nothing has changed there (see `FollowerState.session`).
    """

    __slots__ = ("ms", "proved_ms")

    def __init__(self) -> None:
        self.ms = 0
        """The time at which the last request was handled."""
        self.proved_ms = 0
        """The time at which the request before the last request was handled. The follower certainly sent the last
        request after this time, because a request of a session contains the number of the previous answer. The last
        request itself may have been sent long before it was handled, for example while this process was paused."""

    def begin(self, now_ms: int) -> None:
        """Remember `now_ms` as the time at which a request is handled."""
        self.proved_ms, self.ms = self.ms, now_ms


class FollowerState:
    """The leader's knowledge of one follower in the current leader epoch."""

    __slots__ = (
        "_caught_up_ms",
        "_fetched_ms",
        "_proved_ms",
        "broker_epoch",
        "end_offset",
        "leader_end_at_fetch",
        "log_start_offset",
        "session",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.end_offset = UNKNOWN
        """The end of the follower's log: the offset that its last fetch named."""
        self.broker_epoch = UNKNOWN
        """The broker epoch that its last fetch named."""
        self._caught_up_ms = caught_up_ms
        self._fetched_ms = 0
        self._proved_ms = 0
        self.session: FetchTime | None = None
        """The times of the last two requests in the follower's fetch session. Set while the follower has all records of
        the leader and its requests do not name the partition (KIP-227). In this state, each request of the session
        says that nothing has changed."""
        self.leader_end_at_fetch = UNKNOWN
        """The end of the leader's log at the time of the follower's last fetch."""
        self.log_start_offset = UNKNOWN
        """The start of the follower's log, as named by its last fetch."""

    @property
    def fetched_ms(self) -> int:
        """The time of the last fetch."""
        return self._fetched_ms if self.session is None else max(self._fetched_ms, self.session.ms)

    @property
    def proved_ms(self) -> int:
        """The follower certainly sent its last fetch after this time. See `FetchTime.proved_ms`."""
        return self._proved_ms if self.session is None else max(self._proved_ms, self.session.proved_ms)

    @property
    def caught_up_ms(self) -> int:
        """The last time at which the follower had all records of the leader."""
        return self._caught_up_ms if self.session is None else max(self._caught_up_ms, self.session.ms)

    def leave_session(self) -> None:
        """Leave `session`, because the partition may have changed. From now on, a fetch counts only if it names the
        partition.
        """
        self._fetched_ms, self._caught_up_ms = self.fetched_ms, self.caught_up_ms
        self._proved_ms = self.proved_ms
        self.session = None

    def fetched(self, offset: int, broker_epoch: int, leader_end: int, now_ms: int, proved_ms: int) -> None:
        """Process a fetch from `offset`, which shows that the follower has all records below this offset. The follower
        sent the fetch after `proved_ms`.
        """
        if self.session is not None:
            self.leave_session()
        if offset >= leader_end:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_fetch >= 0:
            # The follower now has all records that the leader had at the time of the previous fetch.
            self._caught_up_ms = max(self._caught_up_ms, self._fetched_ms)
        self.end_offset = offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_fetch = leader_end
        self._fetched_ms = now_ms
        self._proved_ms = max(self._proved_ms, proved_ms)

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Return whether the follower has all records of the leader, or had all of them at some time within the last
        `lag_max_ms` (`replica.lag.time.max.ms`).
        """
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class IsrMember(NamedTuple):
    broker: int
    broker_epoch: int
    """The member's broker epoch, as the leader knows it. If the member has a newer broker epoch, because it has
    registered again, the controller refuses the member (KIP-903)."""


class InSyncReplicas:
    """The ISR of one partition that this broker leads, during one leader epoch.

    The parameter `eligible` maps each broker that may be in an ISR (it is neither fenced nor shutting down) to the
    broker epoch of its current registration.
    """

    __slots__ = (
        "_lag_max_ms",
        "_node_id",
        "awaits_answer",
        "awaits_metadata",
        "committed",
        "followers",
        "joins_after_ms",
        "min_insync_replicas",
        "partition_epoch",
        "proposed",
        "replicas",
    )

    def __init__(
        self,
        node_id: int,
        replicas: tuple[int, ...],
        committed: tuple[int, ...],
        partition_epoch: int,
        *,
        min_insync_replicas: int,
        lag_max_ms: int,
        now_ms: int,
    ) -> None:
        self._node_id = node_id
        self._lag_max_ms = lag_max_ms
        self.replicas = replicas
        self.committed = committed
        self.partition_epoch = partition_epoch
        self.min_insync_replicas = min_insync_replicas
        self.proposed: tuple[int, ...] | None = None
        self.awaits_answer = False
        """Whether the answer to the proposal may still come. If False while `proposed` is set, the outcome is
        unknown."""
        self.awaits_metadata = False
        """Whether the controller has a newer state of the partition than this leader. Until the leader receives that
        state, it sends no proposal."""
        self.joins_after_ms = -1
        """A replica may join the ISR only if its last fetch was certainly sent after this time: the time at which this
        leader received `partition_epoch` with the metadata. The reason for the new epoch may be that the replica has
        lost its log, so an earlier fetch may report records that the replica does not have any more. The value is -1
        while the partition certainly has not changed in this leader epoch: then every fetch in this leader epoch is new
        enough."""
        # Each member of the ISR has the whole `lag_max_ms` for its first fetch. Any other replica is not caught up
        # until its fetches show that it is.
        self.followers = {
            replica: FollowerState(now_ms if replica in committed else NEVER_CAUGHT_UP_MS)
            for replica in dict.fromkeys((*replicas, *committed))
            if replica != node_id
        }

    def continue_proposal(self, resigned: "InSyncReplicas", now_ms: int) -> None:
        """Take over the proposal that this leader had made before it resigned in the same leader epoch.

        The controller may still accept it. Until its outcome is known, its members belong to the maximal ISR.
        """
        for member in resigned.proposed or ():
            if member in self.followers and member not in self.committed:
                self.followers[member] = FollowerState(now_ms)
        self.proposed = resigned.proposed
        self.awaits_answer, self.awaits_metadata = resigned.awaits_answer, resigned.awaits_metadata

    def commit(self, replicas: tuple[int, ...], committed: tuple[int, ...], partition_epoch: int) -> None:
        """Replace the committed state by a newer state of the same leader epoch. This also ends a running proposal."""
        self.replicas = replicas
        self.committed = committed
        self.partition_epoch = partition_epoch
        self.proposed = None
        self.awaits_answer = self.awaits_metadata = False
        self.followers = {
            replica: self.followers.get(replica) or FollowerState(NEVER_CAUGHT_UP_MS)
            for replica in dict.fromkeys((*replicas, *committed))
            if replica != self._node_id
        }

    @property
    def min_isr(self) -> int:
        return bounded_min_isr(self.min_insync_replicas, len(self.replicas))

    @property
    def maximal(self) -> tuple[int, ...]:
        """The committed members and the proposed members."""
        if self.proposed is None:
            return self.committed
        return (*self.committed, *(replica for replica in self.proposed if replica not in self.committed))

    @property
    def is_below_min(self) -> bool:
        """Whether writes with acks=all must be refused and the high watermark must not move (KIP-966)."""
        return len(self.committed) < self.min_isr

    @property
    def is_maximal_below_min(self) -> bool:
        return len(self.maximal) < self.min_isr

    def high_watermark_limit(
        self, local_mark: int, leader_end: int, now_ms: int, eligible: Mapping[int, int]
    ) -> int | None:
        """Return the lowest log end among the members of the maximal ISR, or None if the high watermark must not move.

        `local_mark` counts as this broker's log end. A replica outside the ISR also limits the high watermark if it has
        caught up. Without this limit, the high watermark would always be above the replica's end under constant load,
        and the replica could never join the ISR again.
        """
        if self.is_below_min:
            return None
        limit = local_mark
        maximal = self.maximal
        for replica, follower in self.followers.items():
            if replica in maximal:
                limit = min(limit, follower.end_offset)
            elif (
                replica in self.replicas
                and follower.end_offset < limit
                and self._is_returning(replica, follower, leader_end, now_ms, eligible)
            ):
                limit = follower.end_offset
        return limit

    def _is_returning(
        self, replica: int, follower: FollowerState, leader_end: int, now_ms: int, eligible: Mapping[int, int]
    ) -> bool:
        return follower.is_caught_up(leader_end, now_ms, self._lag_max_ms) and _is_registered(
            replica, follower, eligible
        )

    # Changes

    def without_lagging(self, leader_end: int, now_ms: int) -> tuple[int, ...]:
        """Return this broker and the other committed members that are caught up (`FollowerState.is_caught_up`)."""
        return tuple(
            member
            for member in self.committed
            if member == self._node_id
            or (member in self.followers and self.followers[member].is_caught_up(leader_end, now_ms, self._lag_max_ms))
        )

    def may_join(
        self, replica: int, high_watermark: int, epoch_start: int, eligible: Mapping[int, int], proved_ms: int
    ) -> bool:
        """Return whether a replica outside the ISR may join it. The replica sent its last fetch after `proved_ms`.

        Its log must reach the high watermark and the start of the leader epoch, and the fetch that shows this must be
        new enough (`joins_after_ms`). Its broker must be neither fenced nor shutting down, and must have fetched with
        the broker epoch of its current registration (KIP-903).
        """
        follower = self.followers.get(replica)
        return (
            follower is not None
            and replica not in self.maximal
            and follower.end_offset >= high_watermark
            and follower.end_offset >= epoch_start
            and proved_ms > self.joins_after_ms
            and _is_registered(replica, follower, eligible)
        )

    def members(self, isr: tuple[int, ...], eligible: Mapping[int, int]) -> tuple[IsrMember, ...]:
        """Return the members of `isr` with their broker epochs, for AlterPartition."""
        return tuple(IsrMember(member, self._broker_epoch(member, eligible)) for member in isr)

    def _broker_epoch(self, member: int, eligible: Mapping[int, int]) -> int:
        follower = self.followers.get(member)
        if follower is not None and follower.broker_epoch != UNKNOWN:
            return follower.broker_epoch
        return eligible.get(member, UNKNOWN)


def _is_registered(replica: int, follower: FollowerState, eligible: Mapping[int, int]) -> bool:
    """Return whether the follower has fetched with the broker epoch of its current registration."""
    return follower.broker_epoch != UNKNOWN and follower.broker_epoch == eligible.get(replica)
