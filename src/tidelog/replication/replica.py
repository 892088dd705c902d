"""The state of one replica of a partition: its role, leader epoch, log end, local mark, high watermark and ISR. Pure.

`Replica.step` accepts an event and the time, changes the state, and returns effects, which the caller carries out in
order. An event that reports a request or an answer of another broker names the leader epoch to which it belongs. The
event is dropped if that epoch has ended.

Three offsets describe a replica. Each is an exclusive end:

    end offset      the end of the log (LEO)
    local mark      end of the part that is durable enough on this broker: the end offset, or, with `durability=fsync`,
                    the end of the synced part
    high watermark  end of the committed part (HW): consumers may read it, and its writes with acks=all are answered

An acknowledgement with acks=1 waits for the local mark; an acknowledgement with acks=all waits for the high watermark.
A leader never moves the high watermark above its local mark.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from tidelog.log.leader_epochs import UNDEFINED_EPOCH, EpochEnd
from tidelog.metadata.image import NO_LEADER
from tidelog.replication.isr import UNKNOWN, InSyncReplicas, IsrMember
from tidelog.wire.errors import ErrorCode

NO_EPOCH = -1
LAG_MAX_MS = 30_000
"""Default of `replica.lag.time.max.ms`."""

ISR_REFUSED = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST)
"""Errors after which the committed ISR is unchanged: the controller has not carried out AlterPartition."""
ISR_OUTDATED = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
"""Errors that mean that the controller has a newer state of the partition. This broker receives it with the
metadata."""


class Role(Enum):
    OFFLINE = "offline"
    """This broker neither leads nor follows the partition: the partition has no leader, this broker has no replica of
    it, or this broker was the leader and its lease has ended.
    """
    FOLLOWER = "follower"
    LEADER = "leader"


# Events


class BecameLeader(NamedTuple):
    """The metadata names this broker as the leader. An event with the current leader epoch means that the ISR or the
    replicas have changed, or that the broker has regained its lease.
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    min_insync_replicas: int
    is_late: bool = False
    """Whether the partition may have changed after this leader epoch began, but before this broker received the epoch
    with the metadata. In this case, a follower may have sent a fetch in this epoch before the change."""


class BecameFollower(NamedTuple):
    leader_epoch: int
    leader: int


class WentOffline(NamedTuple):
    """The partition has no leader, or this broker has no replica of it any more.

    If this broker leads in `leader_epoch`, only the broker's lease has ended, and it may lead in this epoch again.
    """

    leader_epoch: int


class LogAppended(NamedTuple):
    """Records were appended: the log ends at `end_offset` now."""

    end_offset: int
    is_durable: bool
    """Whether the appended records are durable enough without a sync."""


class LogSynced(NamedTuple):
    """Everything below `end_offset` is durable enough on this broker."""

    end_offset: int


class FollowerFetched(NamedTuple):
    """A follower has fetched from `offset`, so it has all records below this offset."""

    leader_epoch: int
    broker: int
    broker_epoch: int
    offset: int
    log_start_offset: int = UNKNOWN
    """The start of the follower's log."""
    proved_ms: int = 0
    """The follower sent the request after this time. See `isr.FetchTime`."""


class BrokersChanged(NamedTuple):
    eligible: Mapping[int, int]
    """Broker epochs of the brokers that may be in an ISR, by id: registered, not fenced, not shutting down."""


class MinIsrChanged(NamedTuple):
    min_insync_replicas: int


class IsrAnswered(NamedTuple):
    """The controller has answered AlterPartition, or no answer came.

    Any error outside ISR_REFUSED and ISR_OUTDATED means that the outcome is unknown.
    """

    leader_epoch: int
    proposed_partition_epoch: int
    """The partition epoch that the proposal named."""
    error: ErrorCode
    partition_epoch: int = -1
    """The new partition epoch, which belongs to `isr`; -1 after an error."""
    isr: tuple[int, ...] = ()


class LeaderHighWatermark(NamedTuple):
    """The leader's answer to a fetch of this follower names the leader's high watermark."""

    leader_epoch: int
    high_watermark: int


class Diverged(NamedTuple):
    """The leader's answer to a fetch says that this follower's log differs from the leader's log (KIP-595)."""

    leader_epoch: int
    leader_end: EpochEnd
    """The largest epoch of the leader's log that is not above the epoch that the follower named, and its end offset in
    the leader's log. The end offset is always known."""
    own_end: EpochEnd
    """The largest epoch of the follower's log that is not above `leader_end.leader_epoch`, and its end offset in the
    follower's log."""


class LeftBehind(NamedTuple):
    """The leader's log begins after the end of this follower's log. The follower's log must become empty and begin at
    `offset`.
    """

    leader_epoch: int
    offset: int


class CutEnded(NamedTuple):
    """The cut has ended, and the log ends at `end_offset`. This is reported even if the leader epoch has changed."""

    end_offset: int
    log_start_offset: int = 0


class Tick(NamedTuple):
    """Some time has passed. A leader checks for followers that lag, and repeats a proposal with an unknown outcome."""


Event = (
    BecameLeader
    | BecameFollower
    | WentOffline
    | LogAppended
    | LogSynced
    | FollowerFetched
    | BrokersChanged
    | MinIsrChanged
    | IsrAnswered
    | LeaderHighWatermark
    | Diverged
    | LeftBehind
    | CutEnded
    | Tick
)


# Effects


class MarksMoved(NamedTuple):
    """The local mark or the high watermark has moved: answer the requests that waited for this."""


class FailWaiters(NamedTuple):
    """Requests that began to wait in an epoch before `leader_epoch` get NOT_LEADER_OR_FOLLOWER. If the epoch has not
    changed, only the requests whose records are not appended yet get this error.
    """

    leader_epoch: int


class CutTo(NamedTuple):
    """Remove all records at and above `offset` from the log, then report CutEnded."""

    offset: int
    high_watermark: int
    """The high watermark before the cut. If it is above `offset`, committed records are lost: log this as an error."""
    empties: bool = False
    """Whether to remove all records, so that an empty log begins at `offset`, which may be above the old end."""


class AskForIsr(NamedTuple):
    """Send AlterPartition to the controller, then report IsrAnswered."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


class FetchFrom(NamedTuple):
    """Fetch from this leader in this epoch, from the end of the log on."""

    leader: int
    leader_epoch: int


Effect = MarksMoved | FailWaiters | CutTo | AskForIsr | FetchFrom


class Replica:
    """The replica of one partition on the broker `node_id`."""

    __slots__ = (
        "_cut_is_running",
        "_eligible",
        "_lag_max_ms",
        "_promotion",
        "_resigned",
        "end_offset",
        "epoch_start",
        "high_watermark",
        "is_alone",
        "isr",
        "leader",
        "leader_epoch",
        "leads",
        "local_mark",
        "node_id",
        "role",
    )

    def __init__(self, node_id: int, end_offset: int, high_watermark: int, *, lag_max_ms: int = LAG_MAX_MS) -> None:
        """Begin offline, with a log that ends at `end_offset` and is completely durable. `high_watermark` is the high
        watermark in the checkpoint. If it is above the log's end, the log's end is used.
        """
        self.node_id = node_id
        self._lag_max_ms = lag_max_ms
        self.role = Role.OFFLINE
        self.leads = False
        """Whether this replica serves clients as the leader. False while a promotion waits for the end of a cut."""
        self.is_alone = False
        """Whether this replica leads and no other replica exists, so that its local mark is the high watermark."""
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.epoch_start = 0
        """On a leader: the end of its log when it began to lead in its epoch, or resumed the epoch with a new lease."""
        self.end_offset = end_offset
        self.local_mark = end_offset
        self.high_watermark = min(high_watermark, end_offset)
        self.isr: InSyncReplicas | None = None
        """The ISR if this replica is a leader, otherwise None."""
        self._eligible: Mapping[int, int] = {}
        self._resigned: InSyncReplicas | None = None
        """The ISR with which this replica led in `leader_epoch`, if the replica stopped because its broker's lease had
        ended. The controller may still answer a proposal of this replica."""
        self._cut_is_running = False
        self._promotion: tuple[BecameLeader, int] | None = None
        """The promotion that waits for the end of a cut, and the time at which it arrived."""

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Change the state, and return the effects in the order in which they must be carried out."""
        return _STEPS[type(event)](self, event, now_ms)

    def appended(self, end_offset: int) -> None:
        """Do the same as `step(LogAppended(end_offset, False))`, without creating an object for each batch."""
        self.end_offset = end_offset

    def appended_alone(self, end_offset: int) -> None:
        """Do the same as `step(LogAppended(end_offset, True))`. Called only if `is_alone` is true. The caller then
        notifies the waiting fetches.

        A broker without followers calls this for every batch, so this method creates no object.
        """
        self.end_offset = self.local_mark = self.high_watermark = end_offset

    # Questions

    @property
    def is_below_min_isr(self) -> bool:
        """Whether a write with acks=all must be refused before anything is appended (NOT_ENOUGH_REPLICAS)."""
        return self.isr is not None and self.isr.is_below_min

    @property
    def is_maximal_isr_below_min(self) -> bool:
        """Whether a committed write with acks=all gets NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
        return self.isr is not None and self.isr.is_maximal_below_min

    @property
    def knows_committed_end(self) -> bool:
        """Whether the high watermark has reached the start of the leader's epoch.

        Until then, a new leader does not know how much the previous leader had committed. So it must not answer
        consumers that ask for the end offset (KIP-207).
        """
        return self.high_watermark >= self.epoch_start

    @property
    def leads_after_cut(self) -> bool:
        """Whether this replica is to lead as soon as the running cut has ended."""
        return self._promotion is not None

    # Roles

    def _became_leader(self, event: BecameLeader, now_ms: int) -> list[Effect]:
        """Begin to lead in a new leader epoch, or continue the current epoch: with another ISR, or after the broker has
        regained its lease.
        """
        if event.leader_epoch < self.leader_epoch:
            return []
        if event.leader_epoch == self.leader_epoch and self.isr is not None:
            if event.partition_epoch <= self.isr.partition_epoch:
                return []
            self.isr.min_insync_replicas = event.min_insync_replicas
            self.isr.commit(event.replicas, event.isr, event.partition_epoch)
            self.isr.joins_after_ms = now_ms
            self._update_is_alone()
            return self._advance(now_ms)
        resigned = None
        if event.leader_epoch == self.leader_epoch:
            resigned = self._resigned
            event = event._replace(is_late=True)
        effects = self._end_epoch(event.leader_epoch)
        if self._cut_is_running:
            self._promotion = event, now_ms
            self.role = Role.FOLLOWER
            self.leader = NO_LEADER
            return effects
        effects += self._begin_to_lead(event, now_ms, resigned)
        if resigned is not None:
            effects.append(MarksMoved())  # the local mark may have moved in the meantime
        return effects

    def _begin_to_lead(self, event: BecameLeader, now_ms: int, resigned: InSyncReplicas | None = None) -> list[Effect]:
        """Begin the epoch, or resume it. If it is resumed, `resigned` is the ISR that this leader had when it resigned.
        This leader appends its next record after this step, so `epoch_start` is the present end of the log.
        """
        self.role = Role.LEADER
        self.leads = True
        self.leader = self.node_id
        self.epoch_start = self.end_offset
        replicas, committed, partition_epoch = event.replicas, event.isr, event.partition_epoch
        if resigned is not None and resigned.partition_epoch < partition_epoch:
            resigned = None  # the metadata is newer
        if resigned is not None:
            # An answer of the controller may be newer than the metadata with which the epoch is resumed.
            replicas, committed, partition_epoch = resigned.replicas, resigned.committed, resigned.partition_epoch
        self.isr = InSyncReplicas(
            self.node_id,
            replicas,
            committed,
            partition_epoch,
            min_insync_replicas=event.min_insync_replicas,
            lag_max_ms=self._lag_max_ms,
            now_ms=now_ms,
        )
        if event.is_late:
            self.isr.joins_after_ms = now_ms
        if resigned is not None:
            self.isr.continue_proposal(resigned, now_ms)
        self._update_is_alone()
        return self._advance(now_ms)

    def _update_is_alone(self) -> None:
        assert self.isr is not None
        self.is_alone = self.isr.replicas == self.isr.committed == (self.node_id,)

    def _became_follower(self, event: BecameFollower, _: int) -> list[Effect]:
        if event.leader_epoch < self.leader_epoch or (event.leader_epoch == self.leader_epoch and self.isr is not None):
            return []
        if event == (self.leader_epoch, self.leader) and self.role is Role.FOLLOWER:
            return []
        effects = self._end_epoch(event.leader_epoch)
        self.role = Role.FOLLOWER
        self.leader = event.leader
        if not self._cut_is_running:
            effects.append(FetchFrom(event.leader, event.leader_epoch))
        return effects

    def _went_offline(self, event: WentOffline, _: int) -> list[Effect]:
        if event.leader_epoch < self.leader_epoch:
            return []
        resigned = (self.isr or self._resigned) if event.leader_epoch == self.leader_epoch else None
        effects = self._end_epoch(event.leader_epoch)
        self.role = Role.OFFLINE
        self.leader = NO_LEADER
        self._resigned = resigned
        return effects

    def _end_epoch(self, leader_epoch: int) -> list[Effect]:
        """Stop leading. If this ends the leader epoch, no request may wait any longer for offsets that a later epoch
        may write again. If the epoch remains the same, requests whose records are appended continue to wait, because
        these records may still be committed.
        """
        has_led = self.role is Role.LEADER or self._resigned is not None
        effects: list[Effect] = [FailWaiters(leader_epoch)] if has_led else []
        self._resigned = None
        self.leader_epoch = leader_epoch
        self.leads = self.is_alone = False
        self.isr = None
        self._promotion = None
        return effects

    # The log

    def _appended(self, event: LogAppended, now_ms: int) -> list[Effect]:
        self.appended(event.end_offset)
        return self._synced(LogSynced(event.end_offset), now_ms) if event.is_durable else []

    def _synced(self, event: LogSynced, now_ms: int) -> list[Effect]:
        if event.end_offset <= self.local_mark:
            return []
        self.local_mark = min(event.end_offset, self.end_offset)
        if self.isr is None:
            return []
        self._advance(now_ms)  # its effect would also be MarksMoved
        return [MarksMoved()]

    def _diverged(self, event: Diverged, _: int) -> list[Effect]:
        """Cut the log at an offset that the leader epochs determine. A cut at the high watermark could lose
        acknowledged records (KIP-101).
        """
        if event.leader_epoch != self.leader_epoch or self.role is not Role.FOLLOWER or self._cut_is_running:
            return []
        leader_end, own_end = event.leader_end, event.own_end
        if own_end.leader_epoch == UNDEFINED_EPOCH:
            offset = leader_end.end_offset
        elif own_end.leader_epoch == leader_end.leader_epoch:
            offset = min(leader_end.end_offset, own_end.end_offset)
        else:
            # The follower has no record of the epoch in `leader_end`. After the cut, its next fetch names the older
            # epoch in `own_end` (KIP-279).
            offset = own_end.end_offset
        self._cut_is_running = True
        # If no record is at or above the offset, the cut still removes leader epochs without records.
        return [CutTo(min(offset, self.end_offset), self.high_watermark)]

    def _left_behind(self, event: LeftBehind, _: int) -> list[Effect]:
        if event.leader_epoch != self.leader_epoch or self.role is not Role.FOLLOWER or self._cut_is_running:
            return []
        self._cut_is_running = True
        return [CutTo(event.offset, self.high_watermark, empties=True)]

    def _cut_ended(self, event: CutEnded, now_ms: int) -> list[Effect]:
        self._cut_is_running = False
        self.end_offset = event.end_offset
        # Everything below the log's start counts as durable, because deleted records need no sync, and as committed,
        # because a leader deletes only committed records. So neither mark is below the log's start.
        self.local_mark = max(min(self.local_mark, event.end_offset), event.log_start_offset)
        self.high_watermark = max(min(self.high_watermark, event.end_offset), event.log_start_offset)
        if self._promotion is not None:
            promotion, began_ms = self._promotion
            self._promotion = None
            return self._begin_to_lead(promotion, max(began_ms, now_ms))
        return [FetchFrom(self.leader, self.leader_epoch)] if self.role is Role.FOLLOWER else []

    def _leader_high_watermark(self, event: LeaderHighWatermark, _: int) -> list[Effect]:
        """Set a follower's high watermark to the leader's, but not above the end of the follower's log.

        A new leader may at first name a lower high watermark. Then the follower does not change its own, since
        committed records remain committed. Only a cut lowers a follower's high watermark.
        """
        if event.leader_epoch != self.leader_epoch or self.role is not Role.FOLLOWER:
            return []
        high_watermark = min(event.high_watermark, self.end_offset)
        if high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [MarksMoved()]

    # The ISR

    def _advance(self, now_ms: int) -> list[Effect]:
        """Move the high watermark as far as the maximal ISR allows. A leader never lowers it."""
        assert self.isr is not None
        limit = self.isr.high_watermark_limit(self.local_mark, self.end_offset, now_ms, self._eligible)
        if limit is None or limit <= self.high_watermark:
            return []
        self.high_watermark = limit
        return [MarksMoved()]

    def _follower_fetched(self, event: FollowerFetched, now_ms: int) -> list[Effect]:
        isr = self.isr
        if event.leader_epoch != self.leader_epoch or isr is None:
            return []
        follower = isr.followers.get(event.broker)
        if follower is None or event.broker_epoch < follower.broker_epoch or event.offset > self.end_offset:
            return []
        follower.fetched(event.offset, event.broker_epoch, self.end_offset, now_ms, event.proved_ms)
        follower.log_start_offset = event.log_start_offset
        effects: list[Effect] = []
        if isr.proposed is None and isr.may_join(
            event.broker, self.high_watermark, self.epoch_start, self._eligible, event.proved_ms
        ):
            effects.append(self._ask((*isr.committed, event.broker)))
        return effects + self._advance(now_ms)

    def _brokers_changed(self, event: BrokersChanged, now_ms: int) -> list[Effect]:
        self._eligible = event.eligible
        return [] if self.isr is None else self._advance(now_ms)

    def _min_isr_changed(self, event: MinIsrChanged, now_ms: int) -> list[Effect]:
        if self.isr is None:
            if self._promotion is not None:
                promotion, began_ms = self._promotion
                self._promotion = promotion._replace(min_insync_replicas=event.min_insync_replicas), began_ms
            return []
        self.isr.min_insync_replicas = event.min_insync_replicas
        return self._advance(now_ms)

    def _tick(self, _: Tick, now_ms: int) -> list[Effect]:
        isr = self.isr
        if isr is None or isr.awaits_metadata:
            return []
        if isr.proposed is not None:
            # It is not known whether the controller has received the proposal. Sending it again is safe, since the
            # proposal names the partition epoch.
            return [] if isr.awaits_answer else [self._ask(isr.proposed)]
        in_sync = isr.without_lagging(self.end_offset, now_ms)
        effects: list[Effect] = [] if in_sync == isr.committed else [self._ask(in_sync)]
        return effects + self._advance(now_ms)

    def _ask(self, members: tuple[int, ...]) -> AskForIsr:
        isr = self.isr
        assert isr is not None
        isr.proposed = members
        isr.awaits_answer = True
        return AskForIsr(self.leader_epoch, isr.partition_epoch, isr.members(members, self._eligible))

    def _isr_answered(self, event: IsrAnswered, now_ms: int) -> list[Effect]:
        isr = self.isr or self._resigned
        if event.leader_epoch != self.leader_epoch or isr is None or isr.proposed is None:
            return []
        if event.proposed_partition_epoch != isr.partition_epoch:
            return []  # the answer is for an earlier proposal, whose outcome has already arrived with the metadata
        isr.awaits_answer = False
        if event.error == ErrorCode.NONE:
            isr.commit(isr.replicas, event.isr, event.partition_epoch)
        elif event.error in ISR_REFUSED:
            isr.proposed = None
        elif event.error in ISR_OUTDATED:
            isr.awaits_metadata = True
        if self.isr is None:
            return []
        self._update_is_alone()
        return self._advance(now_ms)


_STEPS: dict[type[Any], Callable[[Replica, Any, int], list[Effect]]] = {
    BecameLeader: Replica._became_leader,
    BecameFollower: Replica._became_follower,
    WentOffline: Replica._went_offline,
    LogAppended: Replica._appended,
    LogSynced: Replica._synced,
    FollowerFetched: Replica._follower_fetched,
    BrokersChanged: Replica._brokers_changed,
    MinIsrChanged: Replica._min_isr_changed,
    IsrAnswered: Replica._isr_answered,
    LeaderHighWatermark: Replica._leader_high_watermark,
    Diverged: Replica._diverged,
    LeftBehind: Replica._left_behind,
    CutEnded: Replica._cut_ended,
    Tick: Replica._tick,
}
