"""A partition on several brokers without disks, network or clocks: real replicas (`replication/replica.py`), logs that
are lists, and a controller of a few lines. Scenarios and a property test drive it; every message is one call.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidelog.log.leader_epochs import EpochEnd, LeaderEpochs
from tidelog.replication.replica import (
    AskForIsr,
    BecameFollower,
    BecameLeader,
    BrokersChanged,
    CutEnded,
    CutTo,
    Diverged,
    Effect,
    Event,
    FailWaiters,
    FetchFrom,
    FollowerFetched,
    IsrAnswered,
    LeaderHighWatermark,
    LeftBehind,
    LogAppended,
    LogSynced,
    MarksMoved,
    MinIsrChanged,
    Replica,
    Role,
    Tick,
    WentOffline,
)
from tidelog.wire.errors import ErrorCode


class Entry(NamedTuple):
    """One record of a log."""

    leader_epoch: int
    value: str


class Waiting(NamedTuple):
    """A produce request that is not answered yet."""

    value: str
    next_offset: int
    acks: str
    leader_epoch: int


class Node:
    """One broker with a replica of the partition."""

    def __init__(self, cluster: "Cluster", broker: int) -> None:
        self.cluster = cluster
        self.broker = broker
        self.broker_epoch = 100 * broker
        self.log: list[Entry | None] = []
        """Records by offset; None below the start."""
        self.log_start = 0
        self.synced = 0
        """Without fsync this is the part of the log that survives a power cut."""
        self.checkpointed = 0
        """The high watermark in the checkpoint file."""
        self.is_up = True
        self.waiting: list[Waiting] = []
        self.replica = Replica(broker, 0, 0)
        self.held_cut: CutTo | None = None
        self.led: BecameLeader | None = None
        """The metadata with which the broker led last."""
        self.partition_epoch: int | None = -1
        """The partition epoch that the broker has seen last; None after a start."""

    @property
    def end(self) -> int:
        return len(self.log)

    def epochs(self) -> LeaderEpochs:
        epochs = LeaderEpochs()
        for offset, entry in enumerate(self.log):
            if entry is not None and entry.leader_epoch > epochs.latest:
                epochs.assign(entry.leader_epoch, offset)
        return epochs

    def delete_before(self, offset: int) -> None:
        """Delete records, as retention and DeleteRecords do: never above the high watermark."""
        self.log_start = max(self.log_start, min(offset, self.replica.high_watermark))
        self.log[: self.log_start] = [None] * self.log_start

    def end_offset_for(self, leader_epoch: int) -> EpochEnd:
        """Answer as `Partition.end_offset_for` does."""
        replica = self.replica
        return self.epochs().end_offset_at_leader(leader_epoch, replica.leader_epoch, replica.epoch_start, self.end)

    def lose_lease(self) -> None:
        """Stop leading, since the broker's lease is over. The metadata is as before."""
        if self.replica.leads:
            self.step(WentOffline(self.replica.leader_epoch))

    def regain_lease(self) -> None:
        """Lead again in the same epoch, with the metadata that the broker had before."""
        led = self.led
        if led is not None and self.replica.role is Role.OFFLINE and self.replica.leader_epoch == led.leader_epoch:
            self.step(led)

    def step(self, event: Event) -> None:
        if isinstance(event, BecameLeader):
            self.led = event
        for effect in self.replica.step(event, self.cluster.now_ms):
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        say = self.cluster.say
        if isinstance(effect, MarksMoved):
            self.answer()
        elif isinstance(effect, FailWaiters):
            failed = [w for w in self.waiting if w.leader_epoch < effect.leader_epoch]
            self.waiting = [w for w in self.waiting if w.leader_epoch >= effect.leader_epoch]
            for waiting in failed:
                say(f"{waiting.value} NOT_LEADER_OR_FOLLOWER")
        elif isinstance(effect, CutTo):
            loudly = ", committed records are lost" if effect.high_watermark > effect.offset else ""
            what = "begins anew at" if effect.empties else "cuts to"
            say(f"{self.broker} {what} {effect.offset}{loudly}")
            self.held_cut = effect
            if not self.cluster.holds_cuts:
                self.end_cut()
        elif isinstance(effect, AskForIsr):
            members = ",".join(f"{member.broker}@{member.broker_epoch}" for member in effect.isr)
            say(f"{self.broker} asks for isr={members} partition_epoch={effect.partition_epoch}")
            self.cluster.questions.append((self, effect))
        elif isinstance(effect, FetchFrom):
            say(f"{self.broker} fetches from {effect.leader} in epoch {effect.leader_epoch}")

    def end_cut(self) -> None:
        assert self.held_cut is not None
        cut, self.held_cut = self.held_cut, None
        if cut.empties:
            self.log, self.log_start = [None] * cut.offset, cut.offset
        del self.log[cut.offset :]
        self.synced = min(self.synced, self.end)
        self.step(CutEnded(self.end, self.log_start))

    def answer(self) -> None:
        replica = self.replica
        for waiting in list(self.waiting):
            mark = replica.high_watermark if waiting.acks == "all" else replica.local_mark
            if mark >= waiting.next_offset:
                self.waiting.remove(waiting)
                self.acknowledge(waiting)

    def acknowledge(self, waiting: Waiting) -> None:
        self.cluster.say(f"{waiting.value} acknowledged acks={waiting.acks}")
        self.cluster.acknowledged(self, waiting)

    def produce(self, value: str, acks: str) -> None:
        """Append a record, and answer the client now or later."""
        replica = self.replica
        if not self.is_up or not replica.leads:
            self.cluster.say(f"{value} NOT_LEADER_OR_FOLLOWER")
            return
        if acks == "all" and replica.is_below_min_isr:
            self.cluster.say(f"{value} NOT_ENOUGH_REPLICAS")
            return
        self.log.append(Entry(replica.leader_epoch, value))
        self.waiting.append(Waiting(value, self.end, acks, replica.leader_epoch))
        if not self.cluster.fsync:
            self.synced = self.end
        self.step(LogAppended(self.end, not self.cluster.fsync))
        self.answer()

    def sync(self) -> None:
        self.synced = self.end
        self.step(LogSynced(self.end))

    def checkpoint(self) -> None:
        self.checkpointed = self.replica.high_watermark

    def stop(self) -> None:
        self.is_up = False
        self.waiting.clear()
        self.cluster.end_sessions(self.broker)

    def start(self) -> None:
        """Start anew: only the log and the checkpoint remain of the replica's state."""
        self.is_up = True
        self.broker_epoch += 1
        self.replica = Replica(self.broker, self.end, self.checkpointed)
        self.synced = self.end
        self.held_cut = None
        self.led = None
        self.partition_epoch = None

    def replace_log(self) -> None:
        """Begin with an empty log in place of a damaged one."""
        self.log.clear()
        self.log_start = self.synced = self.checkpointed = 0
        self.replica = Replica(self.broker, 0, 0)

    def __str__(self) -> str:
        replica = self.replica
        if not self.is_up:
            return f"{self.broker} down"
        role = "leader" if replica.leads else replica.role.value
        text = f"{self.broker} {role} epoch={replica.leader_epoch} end={replica.end_offset} hw={replica.high_watermark}"
        if replica.local_mark != replica.end_offset:
            text += f" local={replica.local_mark}"
        if replica.isr is not None:
            text += f" isr={_listed(replica.isr.committed)}"
            if replica.isr.proposed is not None:
                text += f" asked={_listed(replica.isr.proposed)}"
        if self.log_start:
            text += f" start={self.log_start}"
        records = [f"{entry.value}@{entry.leader_epoch}" for entry in self.log if entry is not None]
        return f"{text} log={','.join(records) or '-'}"


class Cluster:
    """All brokers, and the controller's state of the partition."""

    def __init__(self, brokers: int, *, min_isr: int = 1, fsync: bool = False) -> None:
        self.fsync = fsync
        self.min_isr = min_isr
        self.now_ms = 0
        self.holds_cuts = False
        self.said: list[str] = []
        self.questions: list[tuple[Node, AskForIsr]] = []
        self.replicas = tuple(range(1, brokers + 1))
        self.nodes = {broker: Node(self, broker) for broker in self.replicas}
        self.fenced: dict[int, None] = {}
        self.fetched_ms: dict[tuple[int, int], int] = {}
        """When the leader (the first broker) has handled the last fetch in the session of the follower (the second)."""
        self.held_fetches: list[tuple[Node, FollowerFetched]] = []
        """Fetches that were sent, and have not reached their leader."""
        self.leader = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr = self.replicas
        self.acknowledged: Callable[[Node, Waiting], None] = lambda node, waiting: None

    def say(self, line: str) -> None:
        self.said.append(line)

    # The controller

    def eligible(self) -> dict[int, int]:
        return {
            broker: node.broker_epoch for broker, node in self.nodes.items() if node.is_up and broker not in self.fenced
        }

    def publish(self, *brokers: int) -> None:
        """Let these brokers (none: all) see the controller's state."""
        for broker in brokers or self.replicas:
            node = self.nodes[broker]
            if not node.is_up:
                continue
            node.step(BrokersChanged(self.eligible()))
            is_late = node.partition_epoch is None or self.partition_epoch != node.partition_epoch + 1
            node.partition_epoch = self.partition_epoch
            if self.leader == broker:
                node.step(
                    BecameLeader(
                        self.leader_epoch, self.partition_epoch, self.isr, self.replicas, self.min_isr, is_late
                    )
                )
            elif self.leader < 0:
                node.step(WentOffline(self.leader_epoch))
            else:
                node.step(BecameFollower(self.leader_epoch, self.leader))

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        """Choose a leader. It is seen with the next `publish`."""
        self.leader = leader
        self.leader_epoch += 1
        self.partition_epoch += 1
        if isr is not None:
            self.isr = isr

    def set_min_isr(self, min_isr: int) -> None:
        self.min_isr = min_isr
        for node in self.nodes.values():
            if node.is_up:
                node.step(MinIsrChanged(min_isr))

    def lose_log(self, broker: int) -> None:
        """The log of a follower is damaged. The broker reports this, follows the controller's entry, and begins with an
        empty log.
        """
        node = self.nodes[broker]
        if not node.is_up or node.held_cut or self.leader in (-1, broker):
            self.say(f"{broker} keeps its log")
            return
        self.isr = tuple(member for member in self.isr if member != broker)
        self.partition_epoch += 1
        node.replace_log()
        self.publish(broker)

    def decide(self, *, loses_answer: bool = False) -> None:
        """Decide the oldest question about the ISR, and let its answer arrive or be lost."""
        asker, question = self.questions.pop(0)
        error = ErrorCode.NONE
        if question.leader_epoch != self.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif question.partition_epoch != self.partition_epoch:
            error = ErrorCode.INVALID_UPDATE_VERSION
        elif any(self.eligible().get(member.broker) != member.broker_epoch for member in question.isr):
            error = ErrorCode.INELIGIBLE_REPLICA
        else:
            self.isr = tuple(member.broker for member in question.isr)
            self.partition_epoch += 1
        self.say(f"controller: {error.name}" + (f" isr={_listed(self.isr)}" if error == ErrorCode.NONE else ""))
        if loses_answer:
            error = ErrorCode.NETWORK_EXCEPTION
        if asker.is_up:
            asker.step(
                IsrAnswered(question.leader_epoch, question.partition_epoch, error, self.partition_epoch, self.isr)
                if error == ErrorCode.NONE
                else IsrAnswered(question.leader_epoch, question.partition_epoch, error)
            )

    # Fetches

    def fetch(self, follower_id: int, records_max: int = 1 << 30) -> None:
        """One fetch of a follower from the leader that it knows: the request, the answer, and what follows from it."""
        follower = self.nodes[follower_id]
        leader = self.nodes.get(follower.replica.leader)
        epoch = follower.replica.leader_epoch
        if leader is None or not (leader.is_up and follower.is_up) or follower.held_cut or follower.replica.leads:
            self.say(f"{follower_id} cannot fetch")
            return
        if not leader.replica.leads or leader.replica.leader_epoch != epoch:
            self.say(
                f"{follower_id} fetches: {'FENCED' if leader.replica.leader_epoch > epoch else 'UNKNOWN'}_LEADER_EPOCH"
            )
            return
        if self.fsync:
            follower.sync()
        offset, last_epoch = follower.end, follower.epochs().latest
        if last_epoch >= 0:
            end = leader.end_offset_for(last_epoch)
            if end.leader_epoch < last_epoch or end.end_offset < offset:
                own = follower.epochs().end_offset_for(end.leader_epoch, follower.end)
                self.say(
                    f"{follower_id} diverges from {leader.broker}: epoch {end.leader_epoch} ends at {end.end_offset}"
                )
                follower.step(Diverged(epoch, end, own))
                return
        is_unknown = last_epoch >= 0 and leader.epochs().precedes_all(last_epoch)
        if offset < leader.log_start or (is_unknown and follower.log_start < offset == leader.log_start):
            self.say(
                f"{follower_id} fetches at {offset}: OFFSET_OUT_OF_RANGE, {leader.broker} begins at {leader.log_start}"
            )
            follower.step(LeftBehind(epoch, leader.log_start))
            return
        fetched = self.report(leader, follower)
        self.fetched_ms[leader.broker, follower_id] = self.now_ms
        leader.step(fetched)
        records = leader.log[offset : offset + records_max]
        follower.log += records
        if records:
            if not self.fsync:
                follower.synced = follower.end
            follower.step(LogAppended(follower.end, not self.fsync))
        follower.step(LeaderHighWatermark(epoch, leader.replica.high_watermark))
        follower.delete_before(leader.log_start)

    def report(self, leader: Node, follower: Node) -> FollowerFetched:
        """Return what the next fetch of the follower reports."""
        proved_ms = self.fetched_ms.get((leader.broker, follower.broker), 0)
        epoch = follower.replica.leader_epoch
        return FollowerFetched(epoch, follower.broker, follower.broker_epoch, follower.end, proved_ms=proved_ms)

    def hold_fetch(self, follower_id: int) -> None:
        """A fetch is sent, and its connection is lost: it arrives with `deliver_fetch`, and its answer never does."""
        follower = self.nodes[follower_id]
        leader = self.nodes.get(follower.replica.leader)
        if leader is None or not follower.is_up or follower.held_cut or follower.replica.leads:
            self.say(f"{follower_id} cannot fetch")
            return
        if self.fsync:
            follower.sync()
        self.held_fetches.append((leader, self.report(leader, follower)))
        self.fetched_ms.pop((leader.broker, follower_id), None)

    def deliver_fetch(self) -> None:
        """Let the oldest held fetch arrive, if its leader still leads in the same epoch."""
        leader, fetched = self.held_fetches.pop(0)
        if leader.is_up and leader.replica.leads and leader.replica.leader_epoch == fetched.leader_epoch:
            leader.step(fetched)

    def end_sessions(self, broker: int) -> None:
        """Forget what a broker that stops has sent and received."""
        self.fetched_ms = {key: time for key, time in self.fetched_ms.items() if broker not in key}
        self.held_fetches = [held for held in self.held_fetches if held[0].broker != broker]

    def tick(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                node.step(Tick())


def _listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
